# pyright: basic
"""What users type, as files in tests/frozen: every parameter of every command, and every public Python name.

    python tests/public_names.py record     # after a change that is meant

`tests/test_public_names.py` compares the files with what there is, and says what differs, one line each.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any

from all_commands import walk

from tintformer import __version__

FROZEN = Path(__file__).parent / "frozen"
PACKAGES = ("tintformer", "tintlab")

Snapshot = dict[str, dict[str, Any]]
"""What is known of a thing, by the thing: `tint run --steps`, `tintformer.Tint.adapt(train_mask)`."""


def command_parameters() -> Snapshot:
    """Every command and its parameters as they are typed; of an attribute that most do not have, only those that do."""
    found: Snapshot = {}
    for words, command in walk():
        name = f"tint {words}".strip()
        found[name] = {"help": command.help}
        for parameter in command.params:
            found[f"{name} {parameter.opts[0]}"] = _parameter(parameter)
    return found


def _parameter(parameter: Any) -> dict[str, Any]:
    seldom = {
        "also": [*parameter.opts[1:], *parameter.secondary_opts],
        "required": parameter.required,
        "flag": getattr(parameter, "is_flag", False),
        "multiple": parameter.multiple,
        "hidden": parameter.hidden,
        "shown default": parameter.show_default if isinstance(parameter.show_default, str) else None,
        "panel": parameter.rich_help_panel,
    }
    return {
        "kind": parameter.param_type_name,
        "type": _annotation(parameter.type_descriptor.annotation),
        "default": _portable(parameter.default),
        "help": parameter.help,
        **{key: value for key, value in seldom.items() if value},
    }


def _portable(default: Any) -> Any:
    """A default that says the same on every machine."""
    return default.as_posix() if isinstance(default, PurePath) else default


def python_names() -> Snapshot:
    """Every public name of the packages that there are; of a class its own public methods and properties too."""
    found: Snapshot = {}
    for package in filter(find_spec, PACKAGES):
        module = importlib.import_module(package)
        for name in module.__all__:
            found |= _name(f"{package}.{name}", getattr(module, name))
    return found


def _name(path: str, value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if inspect.isclass(value):
        yield from _class(path, value)
    elif inspect.isfunction(value):
        yield path, {"kind": "function"}
        yield from _call(path, value)
    else:
        yield path, {"kind": type(value).__name__}


def _class(path: str, owner: type) -> Iterator[tuple[str, dict[str, Any]]]:
    ours = [each for each in owner.__mro__ if _is_ours(each)]
    yield path, {"kind": "class", "bases": [each.__name__ for each in owner.__bases__]}
    if any("__init__" in vars(each) for each in ours):
        yield from _call(path, owner.__init__, owner)
    named = {name: member for each in reversed(ours) for name, member in vars(each).items()}
    for name, member in sorted(named.items()):
        function = getattr(member, "__func__", member)
        if name.startswith("_") and name != "__call__":
            continue
        if isinstance(member, property | cached_property) or inspect.isfunction(function):
            yield f"{path}.{name}", {"kind": type(member).__name__}
        if inspect.isfunction(function):
            yield from _call(f"{path}.{name}", function)


def _call(path: str, function: Any, owner: type = object) -> Iterator[tuple[str, dict[str, Any]]]:
    """How a function is called: its parameters in their order, then each with its annotation and its default.

    The fields that a dataclass inherits from another package are left out: they change with its version.
    """
    strangers = [each for each in owner.__mro__ if not _is_ours(each)]
    foreign = {name for each in strangers for name in getattr(each, "__dataclass_fields__", ())}
    signature = inspect.signature(function)
    known = [each for each in signature.parameters.values() if each.name not in foreign]
    bare = [each.replace(annotation=each.empty, default=each.empty) for each in known]
    yield f"{path}()", {"parameters": str(inspect.Signature(bare))}
    for each in known:
        if each.name not in ("self", "cls"):
            annotation = {} if each.annotation is each.empty else {"type": _annotation(each.annotation)}
            yield f"{path}({each.name})", {**annotation, **({} if each.default is each.empty else _default(each))}


def _default(parameter: inspect.Parameter) -> dict[str, str]:
    default = _portable(parameter.default)
    if callable(default):
        return {"default": default.__qualname__}  # its repr has an address
    return {"default": "__version__" if default == __version__ else repr(default)}


def _is_ours(owner: type) -> bool:
    return owner.__module__.partition(".")[0] in PACKAGES


def _annotation(annotation: Any) -> str:
    """An annotation without the modules that its names stand in, which a move changes."""
    return annotation if isinstance(annotation, str) else re.sub(r"\b\w+\.", "", inspect.formatannotation(annotation))


SNAPSHOTS = {"commands": command_parameters, "python_names": python_names}


def frozen(name: str) -> Snapshot:
    return json.loads((FROZEN / f"{name}.json").read_text(encoding="utf-8"))


def now(name: str) -> Snapshot:
    """What there is, as it would be read from a file."""
    return json.loads(json.dumps(SNAPSHOTS[name]()))


def differences(old: Snapshot, new: Snapshot) -> list[str]:
    """One line for each thing that is gone or new, without what it consists of, and for each attribute that differs."""
    moved = {thing: "new" if thing in new else "gone" for thing in old.keys() ^ new.keys()}
    below = tuple(f"{thing}{mark}" for thing in moved for mark in " .(")
    found = [f"{thing}: {what}" for thing, what in moved.items() if not thing.startswith(below)]
    for thing in old.keys() & new.keys():
        for attribute in old[thing].keys() | new[thing].keys():
            before, after = old[thing].get(attribute), new[thing].get(attribute)
            if before != after:
                found.append(f"{thing}: {attribute} {before!r} -> {after!r}")
    return sorted(found)


def record() -> None:
    for name, take in SNAPSHOTS.items():
        lines = (f"{json.dumps(thing)}: {json.dumps(about)}" for thing, about in take().items())
        (FROZEN / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["record"]:
        sys.exit(__doc__)
    record()
