"""What makes a model object compute other than its classes say: adapters, other modules, patches, hooks.

We read a model's weights and never run its modules. Whatever a module does beside its class's own `forward` would be
left out without a word, and is refused here instead. What accelerate and transformers put there themselves is allowed.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tintformer.errors import cause

_SHOWN = 4
"""Names of modules that a reason lists; of the others it gives the number."""
_HARMLESS = {"extra_repr", "reset_parameters"}
"""Methods that a subclass may replace: they print or initialise."""
_FOLLOWED = {"eps", "variance_epsilon", "attention_scaling", "p"}
"""Numbers that are read off the modules themselves, and the share of a dropout, which is off."""
_ALLOWED = ("transformers", "accelerate")
"""Packages whose own hooks move tensors or record outputs, and change no number."""
_MERGE = (
    "merge it: peft.PeftModel.from_pretrained(base, directory).merge_and_unload(), with the base model and the "
    "directory that save_pretrained of this one writes"
)
_REMEDIES = {
    "peft": f"an adapter of peft; {_MERGE}",
    "torch.ao": "quantised; load the full-precision checkpoint",
    "torchao": "quantised; load the full-precision checkpoint",
    "bitsandbytes": "quantised; load the full-precision checkpoint",
    "torch.nn.utils.weight_norm": "weight norm; fold it in: torch.nn.utils.remove_weight_norm(module)",
    "torch.nn.utils.spectral_norm": "spectral norm; fold it in: torch.nn.utils.remove_spectral_norm(module)",
    "torch.nn.utils.prune": "pruning; make it permanent: torch.nn.utils.prune.remove(module, 'weight')",
}
"""By the package or module that a class or a hook comes from."""


def alterations(model: Any) -> list[str]:
    """Every reason why the modules do not compute what configuration and classes say, with the modules' names."""
    found: dict[str, list[str]] = {}
    for path, why in _compare(model):
        found.setdefault(why, []).append(path or "the model itself")
    return [f"{_listed(paths)}: {why}" for why, paths in found.items()]


def patches(module: nn.Module, *, kernels: bool) -> Iterator[str]:
    """What stands between a call of a module and its class's own code; `kernels` says that transformers' may."""
    own = module.__dict__
    if "parametrizations" in own["_modules"]:
        keys = ", ".join(repr(key) for key, _ in own["_modules"]["parametrizations"].named_children())
        yield f"parametrized; fold it in: torch.nn.utils.parametrize.remove_parametrizations(module, {keys})"
    for name in _computing_methods(type(module)) & own.keys():
        if not _is_own(module, name, kernels):
            yield f"its {name} is patched; take the patch away: del module.{name}"
    for hook in _accelerate_hooks(module):
        if _origin(hook).split(".")[0] not in _ALLOWED:
            yield f"a hook of class {type(hook).__name__}; remove it: accelerate.hooks.remove_hook_from_module(module)"
    for kind, hooks in (("forward hook", own["_forward_hooks"]), ("forward pre-hook", own["_forward_pre_hooks"])):
        for hook in hooks.values():
            if _origin(hook).split(".")[0] not in _ALLOWED:
                yield _remedy(_origin(hook)) or f"a {kind}; remove it: remove() of the handle that registering it gave"


def uses_kernels(model: Any) -> bool:
    """Whether transformers has put kernels of the same meaning in the place of some modules' `forward`."""
    return bool(getattr(model, "_use_kernels", False))


def _compare(model: Any) -> Iterator[tuple[str, str]]:
    """Paths and reasons: the model beside one that its class makes anew from its configuration, without weights."""
    modules = dict(model.named_modules(remove_duplicate=False))
    try:
        expected = _made_anew(model)
    except Exception as error:  # whatever a constructor raises for settings that were changed afterwards
        yield "", f"its configuration makes no {type(model).__name__} ({cause(error)}); restore it"
        return
    other: list[str] = []
    """Modules of another class: what is inside of them belongs to them."""
    for path, its in expected.named_modules(remove_duplicate=False):
        if path.startswith(tuple(f"{outer}." for outer in other)):
            continue
        module = modules.get(path)
        why = "missing, where the configuration has one; restore it" if module is None else _other_class(module, its)
        if module is None or why:
            other.append(path)
            yield path, str(why)
            continue
        reasons = list(patches(module, kernels=uses_kernels(model)))
        if (patched := _patched_class(type(module))) is not None:
            reasons.append(patched)
        yield from ((path, reason) for reason in (*reasons, *_other_numbers(module, its)))
        for key, _ in its.named_parameters(recurse=False, remove_duplicate=False):
            if not reasons and module.__dict__["_parameters"].get(key) is None:
                yield f"{path}.{key}", "no parameter of its module; make it one: torch.nn.Parameter"


def _made_anew(model: Any) -> nn.Module:
    package = type(model.config).__module__.rpartition(".")[0]
    # A subclass of a user's is measured by the class that it extends, which lives where its configuration does.
    own = (cls for cls in type(model).__mro__ if cls.__module__.rpartition(".")[0] == package)
    with torch.device("meta"):
        return next(own, type(model))(copy.deepcopy(model.config))


def _other_class(module: nn.Module, expected: nn.Module) -> str | None:
    cls, its = type(module), type(expected)
    if cls is its or (isinstance(expected, nn.Dropout) and cls is nn.Identity):
        return None
    if issubclass(cls, its):
        between = cls.__mro__[: cls.__mro__.index(its)]
        replaced = {name for each in between for name in vars(each)} & _computing_methods(its)
        if not replaced:
            return None
    else:
        replaced = set()
    what = f" with another {', '.join(sorted(replaced))}" if replaced else ""
    return _remedy(_origin(module)) or f"a {cls.__name__}{what}, where the model's class has {its.__name__}; restore it"


def _other_numbers(module: nn.Module, expected: nn.Module) -> Iterator[str]:
    """Factors and bounds that were set on a module afterwards, where we go by the configuration."""
    now, then = module.__dict__, expected.__dict__
    for key in now.keys() & then.keys():
        pair = now[key], then[key]
        if float in map(type, pair) and pair[0] != pair[1] and key not in _FOLLOWED and "drop" not in key:
            yield f"its {key} is {pair[0]}, where the configuration makes it {pair[1]}; restore it"


@functools.cache
def _computing_methods(cls: type) -> frozenset[str]:
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


def _is_own(module: nn.Module, name: str, kernels: bool) -> bool:
    """Whether a method that is set on the module itself is its class's all the same, or a kernel for it."""
    value = module.__dict__[name]
    if name == "forward":
        if _accelerate_hooks(module):  # which calls what it has found there
            value = module.__dict__.get("_old_forward", value)
        if kernels and hasattr(type(module), "kernel_layer_name"):
            return True
    same = getattr(value, "__func__", None) is getattr(type(module), name, None)
    return same and value.__self__ is module


def _accelerate_hooks(module: nn.Module) -> tuple[Any, ...]:
    """What accelerate has attached: one hook, or a SequentialHook of several."""
    hook = module.__dict__.get("_hf_hook")
    return () if hook is None else tuple(getattr(hook, "hooks", (hook,)))


def _patched_class(cls: type) -> str | None:
    """A function that was put in the place of a class's `forward`, recognised by where it says that it was written."""
    owner = next((each for each in cls.__mro__ if "forward" in vars(each)), None)
    function = None if owner is None else vars(owner)["forward"]
    written = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if owner is None or written == (owner.__module__, f"{owner.__qualname__}.forward") or owner is nn.Module:
        return None
    return f"{owner.__name__}.forward is patched ({'.'.join(map(str, written))}); restore the class's own"


def _origin(thing: Any) -> str:
    """The module in which a function, a method or the class of an object was written."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    thing = getattr(thing, "__func__", thing)
    return str(thing.__module__ if hasattr(thing, "__qualname__") else type(thing).__module__)


def _remedy(origin: str) -> str | None:
    return next((text for name, text in _REMEDIES.items() if f"{origin}.".startswith(f"{name}.")), None)


def _listed(paths: list[str]) -> str:
    more = len(paths) - _SHOWN
    return ", ".join(paths[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
