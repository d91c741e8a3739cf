# pyright: basic
"""What the reference says of a parameter: the values it may take, where the code has a name for them.

A griffe extension, for mkdocs.yml and the tests. A name for some literals, `Logits`, becomes these literals. Bounds, as
in `Annotated[int, Range(at_least=1)]`, move from the annotation to the description. `**masks: Unpack[Masks]` becomes
the masks, each with its description.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import griffe

WORDS = {"above": "above", "at_least": "at least", "at_most": "at most", "below": "below"}
"""The bounds of a `Range`, in words."""


class AllowedValues(griffe.Extension):
    """Rewrites annotations and descriptions once the package has been read."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        found = list(_objects(pkg))
        for each in found:
            if isinstance(each, griffe.Function):
                _name_masks(each)
        for each in found:
            if isinstance(each, griffe.Attribute):
                each.annotation, bounds = _open(each.annotation, each.modules_collection)
                if bounds and each.docstring:
                    each.docstring.value += f" Allowed: {bounds}."
            elif isinstance(each, griffe.Function):
                for parameter in each.parameters:
                    parameter.annotation, _bounds = _open(parameter.annotation, each.modules_collection)


def _objects(parent: Any) -> Iterator[Any]:
    for member in list(parent.members.values()):
        if not member.is_alias:
            yield member
            yield from _objects(member) if member.is_module or member.is_class else ()


def _open(annotation: Any, modules: Any) -> tuple[Any, str]:
    """An annotation without names for literals and without bounds, and the bounds in words."""
    notes = [note for each in _annotated(annotation) for note in each.slice.elements[1:]]
    bounds = [_in_words(note, modules) for note in notes if getattr(note, "canonical_name", "") == "Range"]
    return _literals(annotation, modules), ", ".join(bounds)


def _annotated(expression: Any) -> Iterator[Any]:
    """Every `Annotated[...]` in an annotation: a union may have one for its numbers alone."""
    if _is(expression, "typing.Annotated"):
        yield expression
    elif isinstance(expression, griffe.Expr):
        for field in fields(expression):
            part = getattr(expression, field.name)
            for each in part if isinstance(part, list) else [part]:
                if isinstance(each, griffe.Expr) and field.name != "parent":
                    yield from _annotated(each)


def _literals(expression: Any, modules: Any) -> Any:
    if _is(expression, "typing.Annotated"):
        return _literals(expression.slice.elements[0], modules)
    if isinstance(expression, griffe.ExprName):
        meant = _find(expression, modules)
        value = getattr(meant, "value", None)
        # Not what is merely a long type: `Float[Tensor, "batch tokens"]` says more than its definition.
        return value if _is(value, "typing.Literal") or _joins_literals(value) else expression
    if not isinstance(expression, griffe.Expr):
        return expression
    changed = {field.name: getattr(expression, field.name) for field in fields(expression)}
    for name, part in changed.items():
        if isinstance(part, list):
            changed[name] = [_literals(each, modules) for each in part]
        elif isinstance(part, griffe.Expr) and name != "parent":
            changed[name] = _literals(part, modules)
    return replace(expression, **changed)


def _joins_literals(value: Any) -> bool:
    sides = (value.left, value.right) if isinstance(value, griffe.ExprBinOp) else ()
    return any(_is(side, "typing.Literal") for side in sides)


def _is(expression: Any, path: str) -> bool:
    return isinstance(expression, griffe.ExprSubscript) and expression.canonical_path == path


def _find(name: Any, modules: Any) -> Any:
    try:
        found = modules[name.canonical_path]
        return found.final_target if found.is_alias else found
    except (KeyError, griffe.AliasResolutionError, griffe.NameResolutionError):
        return None  # of another package


def _in_words(note: Any, modules: Any) -> str:
    bounds = []
    for argument in note.arguments:
        found = _find(argument.value, modules) if isinstance(argument.value, griffe.ExprName) else None
        bounds.append(f"{WORDS[argument.name]} {argument.value if found is None else found.value}")
    return " and ".join(bounds)


def _name_masks(function: griffe.Function) -> None:
    for parameter in list(function.parameters):
        unpacked: Any = parameter.annotation
        if parameter.kind is griffe.ParameterKind.var_keyword and _is(unpacked, "typing.Unpack"):
            keywords = _find(unpacked.slice, function.modules_collection)
            named = list(keywords.attributes.values())  # its parents' among them
            del function.parameters[parameter.name]
            for each in named:
                kind = griffe.ParameterKind.keyword_only
                function.parameters[each.name] = griffe.Parameter(
                    each.name, annotation=each.annotation, kind=kind, default="None", docstring=each.docstring
                )
            _describe(function, parameter.name, named)


def _describe(function: griffe.Function, name: str, named: list[griffe.Attribute]) -> None:
    """Put the descriptions of keywords in the place of the one of all together."""
    if function.docstring is None:
        return
    lines = (f"    {each.name}: {' '.join(each.docstring.value.split()) if each.docstring else ''}" for each in named)
    entry = rf"^ {{4}}\*\*{name}:.*\n?(?: {{8}}.*\n?)*"
    function.docstring.value = re.sub(
        entry, lambda _: "\n".join(lines) + "\n", function.docstring.value, flags=re.MULTILINE
    )
