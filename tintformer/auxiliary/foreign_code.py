"""Code of others where torch's and transformers' own should be: patched classes and functions, hooks of the process.

A function is judged by where its code was written, not by the name that it bears: `functools.wraps` copies names.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module

HOOKING = ("transformers", "accelerate")
"""Packages whose own hooks move tensors or record outputs, and change no number."""
_JUDGED = ("torch", "transformers")
"""Packages of which we know whose code they run; a family of a third party may import what it likes."""
_THEIRS = frozenset({*_JUDGED, "accelerate", "kernels", "safetensors", "huggingface_hub", *sys.stdlib_module_names})
"""Packages whose functions stand in these by import."""
_HARMLESS = {"extra_repr", "reset_parameters"}
"""Methods that a subclass may replace: they print or initialise."""

_GLOBAL_HOOKS: dict[str, dict[int, Any]] = {
    "forward hook": vars(torch_module)["_global_forward_hooks"],
    "forward pre-hook": vars(torch_module)["_global_forward_pre_hooks"],
}
"""Those that run with every module of the process."""
_known: dict[str, dict[str, Any]] = {}
"""What was found to be its own in a module, by name: every call looks again, and nearly always at the same."""


def origin(thing: Any) -> str:
    """The module in which a function, a method or the class of an object was written."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    thing = getattr(thing, "__func__", thing)
    if isinstance(thing, FunctionType):
        return str(thing.__globals__.get("__name__"))
    return str(thing.__module__ if hasattr(thing, "__qualname__") else type(thing).__module__)


def package(name: str) -> str:
    """The package of a module's name."""
    return name.partition(".")[0]


def foreign_source(thing: Any) -> str | None:
    """Where a callable, or one that it wraps, was written, if neither these packages nor theirs have done it."""
    while thing is not None:
        written = origin(thing)
        while isinstance(thing, functools.partial):
            thing = thing.func
        thing = getattr(thing, "__func__", thing)
        if package(written) not in _THEIRS and written != "None":  # built-in functions name no module
            code = getattr(thing, "__code__", None)
            return f"{written}.{code.co_qualname if code else getattr(thing, '__qualname__', type(thing).__qualname__)}"
        thing = getattr(thing, "__wrapped__", None)
    return None


@functools.cache
def computing_methods(cls: type) -> frozenset[str]:
    """Methods whose replacement may change what a class computes: its own, and not those that every module has."""
    from transformers import GenerationMixin, PreTrainedModel

    generic = {*PreTrainedModel.__mro__, *GenerationMixin.__mro__}
    own = {
        name
        for each in cls.__mro__
        if each not in generic
        for name, value in vars(each).items()
        if callable(value) and not isinstance(value, type) and not name.startswith("__") and name not in _HARMLESS
    }
    return frozenset(own | {"forward", "_call_impl", "__call__", "__getattr__"})


def patched_methods(cls: type) -> Iterator[str]:
    """Functions that were put in the place of a class's own methods."""
    for name in sorted(computing_methods(cls)):
        owner = next((each for each in cls.__mro__ if name in vars(each)), None)
        if owner is None:
            continue
        function = vars(owner)[name]
        source = foreign_source(function) if package(owner.__module__) in _JUDGED else None
        if name == "forward" and owner is not nn.Module and source is None:
            written = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
            source = (
                None if written == (owner.__module__, f"{owner.__qualname__}.forward") else ".".join(map(str, written))
            )
        if source is not None:
            yield f"{owner.__name__}.{name} is patched ({source}); restore the class's own"


def process_patches(model: Any, classes: Iterable[type]) -> Iterator[tuple[str, str]]:
    """What changes modules without a trace in them, as places and reasons; `classes` are those of the modules."""
    for kind, hooks in _GLOBAL_HOOKS.items():
        # Torch's own count operations.
        if any(package(origin(hook)) not in (*HOOKING, "torch") for hook in tuple(hooks.values())):
            yield "every module", f"a global {kind}; remove it: remove() of the handle that registering it gave"
    homes = {cls.__module__ for cls in classes if package(cls.__module__) == "transformers"}
    for home in sorted(homes):
        known = _known.setdefault(home, {})
        for name, value in tuple(vars(sys.modules[home]).items()):
            if known.get(name, known) is value:
                continue
            if callable(value) and (source := foreign_source(value)) is not None:
                yield home, f"its {name} is patched ({source}); restore the module's own"
            else:
                known[name] = value
    yield from (("the model itself", why) for why in _other_attention(model, homes))


def _other_attention(model: Any, homes: Iterable[str]) -> Iterator[str]:
    """An attention that is registered with transformers and not its own, or such a mask."""
    name = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if name is None:
        return
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    found = [getattr(sys.modules[home], "ALL_ATTENTION_FUNCTIONS", {}) for home in homes]
    functions: list[Callable[..., Any] | None] = [each.get(name) for each in (*found, ALL_MASK_ATTENTION_FUNCTIONS)]
    for source in dict.fromkeys(foreign_source(function) for function in functions):
        if source is not None:
            yield f"its attention {name!r} is {source}; take transformers' own: model.set_attn_implementation('eager')"
