"""Settings that are what their annotations say: one check for every field, whoever gives it, and one explanation.

A dataclass calls `check_fields` in its `__post_init__`; a function checks a keyword by `checked`. What holds one number
(a numpy scalar, a tensor without dimensions) becomes a Python number. A bool is no number, and a number no bool.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import cache
from textwrap import fill
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

LONGEST = 80
"""Characters of a value that a message shows."""
FLOAT32_MAX = 3.4e38
"""The largest rate or step: more than float32 holds, and torch refuses it somewhere in the middle of a pass."""

INT64_MAX = 2**63 - 1
Class = TypeVar("Class", bound=type)


@dataclass(frozen=True, kw_only=True)
class Range:
    """Which numbers a field takes, as in `Annotated[float, Range(above=0)]`; infinity and NaN are never among them."""

    above: float = -math.inf
    at_least: float = -math.inf
    at_most: float = math.inf
    below: float = math.inf

    def holds(self, number: float) -> bool:
        inside = self.above < number < self.below and self.at_least <= number <= self.at_most
        return inside and number not in (math.inf, -math.inf)

    def __str__(self) -> str:
        bounds = {"above": self.above, "of at least": self.at_least, "at most": self.at_most, "below": self.below}
        return " and ".join(f"{word} {bound:g}" for word, bound in bounds.items() if not math.isinf(bound))


@cache
def attribute_docstrings(owner: type) -> dict[str, str]:
    """The text below each attribute in the source of a class, on one line and without backticks."""
    body = ast.parse(inspect.getsource(owner)).body[0]
    assert isinstance(body, ast.ClassDef)
    texts: dict[str, str] = {}
    for attribute, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(attribute, ast.AnnAssign) and isinstance(attribute.target, ast.Name):
            text = ast.literal_eval(below.value) if isinstance(below, ast.Expr) else ""
            texts[attribute.target.id] = " ".join(text.split()).replace("`", "")
    return texts


def explained(owner: Class) -> Class:
    """Let `help()` of a dataclass explain every field: values, default and the text below it in the source."""
    lines = [inspect.cleandoc(owner.__doc__ or ""), "", "Fields:"]
    texts = attribute_docstrings(owner)
    for field in fields(owner):
        if not field.name.startswith("_"):
            values = get_args(_hints(owner)[field.name]) if get_origin(_hints(owner)[field.name]) is Literal else ()
            said = [texts.get(field.name, ""), f"One of {', '.join(map(repr, values))}." if values else ""]
            said += [] if field.default is MISSING else [f"Default: {field.default!r}."]
            text = " ".join(filter(None, said))
            lines.append(fill(f"{field.name}: {text}", 100, initial_indent="    ", subsequent_indent="        "))
    owner.__doc__ = "\n".join(lines)
    return owner


class _Unfit(Exception):
    """A value is not what an annotation says; the message says what it must be."""


def check_fields(settings: Any, error: type[Exception]) -> None:
    """Check every field of a dataclass by its annotation, and put numbers of other libraries into Python's."""
    for name, hint in _hints(type(settings)).items():
        given = getattr(settings, name)
        value = checked(name, given, hint, error)
        if value is not given:
            object.__setattr__(settings, name, value)  # it may be frozen, and is being made


def checked(name: str, value: Any, hint: Any, error: type[Exception]) -> Any:
    """The value as its annotation wants it, or an error that names it and says what it must be."""
    try:
        return _fit(_plain(value), hint)
    except _Unfit as unfit:
        raise error(f"{name}={shown(value)} {unfit}") from None


def shown(value: Any) -> str:
    """A value for a message: on one line, and not a long one."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # it may be anything, also broken
        text = f"<{type(value).__name__}>"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


@cache
def _hints(of: type) -> dict[str, Any]:
    hints = get_type_hints(of, include_extras=True)
    return {field.name: hints[field.name] for field in fields(of)}


def _plain(value: Any) -> Any:
    """What holds one value, as numpy's and torch's scalars do, as that value."""
    if isinstance(value, str):
        return str(value)
    if getattr(value, "shape", None) == () and callable(item := getattr(value, "item", None)):
        try:
            return item()
        except (RuntimeError, ValueError, TypeError):  # a tensor without data, say
            return value
    return value


def _fit(value: Any, hint: Any) -> Any:
    origin = get_origin(hint)
    if origin is Annotated:
        base, *notes = get_args(hint)
        return _in_range(value, base, next((note for note in notes if isinstance(note, Range)), None))
    if origin is Literal:
        choices = get_args(hint)
        if any(type(value) is type(choice) and value == choice for choice in choices):
            return value
        raise _Unfit(f"is unknown; choose one of {', '.join(map(str, choices))}")
    if origin in (Union, UnionType):
        return _first_fit(value, [kind for kind in get_args(hint) if kind is not NoneType], hint)
    if origin is tuple:
        kinds = get_args(hint)
        if len(kinds) == 2 and kinds[1] is Ellipsis:
            return _sequence(value, kinds[0])
        if not isinstance(value, list | tuple) or len(value) != len(kinds):
            raise _Unfit(f"must be {len(kinds)} values")
        return tuple(_fit(_plain(each), kind) for each, kind in zip(value, kinds, strict=True))
    if fit := _FITS.get(hint):
        return fit(value)
    if hint is not Any and isinstance(hint, type) and not isinstance(value, hint):
        raise _Unfit(f"must be a {hint.__name__}")
    return value


def _first_fit(value: Any, kinds: list[Any], hint: Any) -> Any:
    if value is None and NoneType in get_args(hint):
        return None
    reason: _Unfit | None = None
    for kind in kinds:
        try:
            return _fit(value, kind)
        except _Unfit as unfit:
            reason = reason or unfit
    assert reason is not None
    raise reason


def _in_range(value: Any, base: Any, allowed: Range | None) -> Any:
    whole = base is int or int in get_args(base)
    described = f"must be a {'whole' if whole else 'finite'} number {allowed}".rstrip()
    try:
        value = _fit(value, base)
    except _Unfit as unfit:
        raise _Unfit(described if allowed and "number" in str(unfit) else str(unfit)) from None
    if value is not None and allowed is not None and not allowed.holds(value):
        raise _Unfit(described)
    return value


def _sequence(value: Any, kind: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _Unfit("must be a list")
    return tuple(_fit(_plain(each), kind) for each in value)


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Unfit("must be true or false")
    return value


def _int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _Unfit("must be a whole number")
    if abs(value) > INT64_MAX:
        raise _Unfit("is larger than torch can count")
    return value


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Unfit("must be a number")
    try:
        return float(value)
    except OverflowError:  # of an integer with hundreds of digits
        raise _Unfit("must be a finite number") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Unfit("must be a text")
    return value


_FITS: dict[Any, Callable[[Any], Any]] = {bool: _bool, int: _int, float: _float, str: _text}
