"""Descriptions: small YAML files that become dataclasses, every key checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from tintformer.errors import InputError, cause

SUFFIXES = (".yaml", ".yml")


def shipped() -> tuple[str, ...]:
    """The names of the descriptions that come with the package."""
    folder = files("tintformer.experiments.tasks")
    return tuple(sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml")))


def read_description(name: str) -> tuple[dict[str, Any], str]:
    """The mapping that a shipped name or the path of a YAML file stands for, and what to call it in messages."""
    if Path(name).suffix in SUFFIXES:
        path = Path(name).expanduser()
        try:
            return _mapping(path.read_bytes(), str(path)), str(path)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}; give the path of a YAML file") from error
    if name not in shipped():
        raise InputError(f"{name!r} is unknown; give the path of a YAML file or one of {', '.join(shipped())}")
    file = files("tintformer.experiments.tasks") / f"{name}.yaml"
    return _mapping(file.read_bytes(), f"{name}.yaml"), f"{name}.yaml"


def _mapping(data: bytes, source: str) -> dict[str, Any]:
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML itself lets the last of two equal keys win without a word."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = [key.value for key, _ in node.value]
            for number, (key, _) in enumerate(node.value):
                if key.value in keys[:number]:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {key.value!r} is there twice", problem_mark=key.start_mark
                    )
            return super().construct_mapping(node, deep)

    try:
        content = yaml.load(data.decode("utf-8-sig"), Loader)  # a SafeLoader: no objects but plain ones
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{source} line {line}: byte {data[error.start]:#04x} is no UTF-8; save it so") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{source} line {mark.line + 1}" if mark is not None else source
        raise InputError(f"{place}: this is no YAML ({getattr(error, 'problem', None) or cause(error)})") from error
    if not isinstance(content, dict):
        raise InputError(f"{source} holds no keys; see the descriptions that come with the package")
    return content


def checked(kind: type, given: Any, where: str, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The keywords of a dataclass, taken from a mapping: no unknown one, none missing; `without` are not asked for."""
    if not isinstance(given, Mapping):
        raise InputError(f"{where} is {given!r}; it must hold keys and values")
    known = {field.name: field for field in fields(kind) if field.name not in without}
    unknown = [str(key) for key in given if key not in known]
    if unknown:
        raise InputError(f"{where}: the key {unknown[0]!r} is unknown; known are {', '.join(known)}")
    required = [name for name, field in known.items() if field.default is MISSING and field.default_factory is MISSING]
    missing = [name for name in required if name not in given]
    if missing:
        raise InputError(f"{where}: the key {missing[0]!r} is missing; add it")
    return dict(given)


def a_string(value: Any, where: str) -> str:
    """A string that is not empty; YAML reads no, yes, 1 and null as something else unless they are quoted."""
    if not isinstance(value, str):
        raise InputError(f"{where} is {value!r}, which is no text; put it in quotes")
    if not value:
        raise InputError(f"{where} is empty; give a text")
    return value


def strings(value: Any, where: str) -> tuple[str, ...]:
    """A list of strings, none of them empty."""
    if not isinstance(value, list | tuple):
        raise InputError(f"{where} is {value!r}; it must be a list")
    return tuple(a_string(item, f"{where}[{number}]") for number, item in enumerate(value))


def a_count(value: Any, where: str) -> int | None:
    """A whole number of at least 1, or nothing."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise InputError(f"{where} is {value!r}; it must be a whole number of at least 1")
    return value
