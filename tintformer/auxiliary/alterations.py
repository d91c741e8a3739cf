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
from torch import Tensor, nn

from tintformer.auxiliary.foreign_code import (
    HOOKING,
    computing_methods,
    foreign_source,
    origin,
    package,
    patched_methods,
    process_patches,
)
from tintformer.errors import cause

_SHOWN = 4
"""Names of modules that a reason lists; of the others it gives the number."""
_FOLLOWED = frozenset({"eps", "variance_epsilon", "attention_scaling"})
"""Numbers that are read off the modules themselves."""
_TABLES_READ = {"inv_freq", "original_inv_freq", "embed_scale"}
"""Buffers that are read off the modules; the others are computed anew from the configuration."""
_UNREAD = {
    # Gradients, other tasks, dropout (which is off), and what transformers itself writes down as it goes.
    *("training", "gradient_checkpointing", "padding_idx", "inplace", "p", "loss_type", "name_or_path"),
    *("kernel_config", "max_seq_len_cached"),
    # Shapes: the weights have their own.
    *("in_features", "out_features", "num_embeddings", "embedding_dim", "vocab_size", "normalized_shape"),
    # Read once, when the module is made; the third says how to round.
    *("GPT2Attention.scale_attn_weights", "GPT2Attention.scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"),
    "GPTNeoXAttention.rotary_ndims",
}
"""Settings of modules that have no say in what is computed, some of them in one class only."""
_SHARED = "in several places, where the model's class has one for each; restore them"
_ROUNDING = 2 * torch.finfo(torch.bfloat16).eps
_PLAIN = (bool, int, float, str, tuple, list, type(None))
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
    for name in computing_methods(type(module)) & own.keys():
        if not _is_own(module, name, kernels):
            yield f"its {name} is patched; take the patch away: del module.{name}"
    for hook in _accelerate_hooks(module):
        if package(origin(hook)) not in HOOKING:
            yield f"a hook of class {type(hook).__name__}; remove it: accelerate.hooks.remove_hook_from_module(module)"
    for kind, hooks in (("forward hook", own["_forward_hooks"]), ("forward pre-hook", own["_forward_pre_hooks"])):
        for hook in hooks.values():
            if package(origin(hook)) not in HOOKING:
                yield _remedy(origin(hook)) or f"a {kind}; remove it: remove() of the handle that registering it gave"


def uses_kernels(model: Any) -> bool:
    """Whether transformers has put kernels of the same meaning in the place of some modules' `forward`."""
    return bool(getattr(model, "_use_kernels", False))


def settings(module: nn.Module) -> dict[str, Any]:
    """The plain values and functions that are set on a module and may have a say in what it computes."""
    cls = type(module)
    return {
        key: value
        for key, value in module.__dict__.items()
        if key[0] != "_"
        and _may_have_a_say(cls, key)
        and (isinstance(value, _PLAIN) or (callable(value) and key != "forward"))
    }


@functools.cache
def _may_have_a_say(cls: type, key: str) -> bool:
    return not ("drop" in key or key in _UNREAD or f"{cls.__name__}.{key}" in _UNREAD)


def _compare(model: Any) -> Iterator[tuple[str, str]]:
    """Paths and reasons: the model beside one that its class makes anew from its configuration, without weights."""
    modules = dict(model.named_modules(remove_duplicate=False))
    classes = {type(module) for module in modules.values()}
    yield from process_patches(model, classes)
    try:
        expected = _made_anew(model)
    except Exception as error:  # whatever a constructor raises for settings that were changed afterwards
        yield "", f"its configuration makes no {type(model).__name__} ({cause(error)}); restore it"
        return
    patched = {cls: list(patched_methods(cls)) for cls in classes}
    replaced = {cls: _replaced_class(cls, expected) for cls in set(map(type, expected.modules()))}
    shared = _shared(model, modules, expected)
    other: list[str] = []
    """Modules of another class: what is inside of them belongs to them."""
    for path, its in expected.named_modules(remove_duplicate=False):
        if path.startswith(tuple(f"{outer}." for outer in other)):
            continue
        module = modules.get(path)
        if module is None:
            why = "missing, where the configuration has one; restore it"
        elif path in shared:
            why = f"one module {_SHARED}"
        else:
            why = _other_class(module, its) or replaced[type(its)]
        if module is None or why:
            other.append(path)
            yield path, str(why)
            continue
        reasons = [*patches(module, kernels=uses_kernels(model)), *patched[type(module)]]
        yield from ((path, reason) for reason in (*reasons, *_other_settings(module, its, model)))
        yield from ((path, reason) for reason in _other_tables(module, its, expected))
        for key, _ in its.named_parameters(recurse=False, remove_duplicate=False):
            if not reasons and module.__dict__["_parameters"].get(key) is None:
                yield f"{path}.{key}", "no parameter of its module; make it one: torch.nn.Parameter"
            if f"{path}.{key}" in shared:
                yield f"{path}.{key}", f"one weight {_SHARED}"


def _made_anew(model: Any) -> nn.Module:
    home = type(model.config).__module__.rpartition(".")[0]
    # A subclass of a user's is measured by the class that it extends, which lives where its configuration does.
    own = (cls for cls in type(model).__mro__ if cls.__module__.rpartition(".")[0] == home)
    with torch.device("meta"):
        return next(own, type(model))(copy.deepcopy(model.config))


def _other_class(module: nn.Module, expected: nn.Module) -> str | None:
    cls, its = type(module), type(expected)
    if cls is its or (isinstance(expected, nn.Dropout) and cls is nn.Identity):
        return None
    if issubclass(cls, its):
        between = cls.__mro__[: cls.__mro__.index(its)]
        replaced = {name for each in between for name in vars(each)} & computing_methods(its)
        if not replaced:
            return None
    else:
        replaced = set()
    what = f" with another {', '.join(sorted(replaced))}" if replaced else ""
    return _remedy(origin(module)) or f"a {cls.__name__}{what}, where the model's class has {its.__name__}; restore it"


def _replaced_class(cls: type, expected: nn.Module) -> str | None:
    """A class of another's that transformers itself now takes for a module, as one put into ACT2FN."""
    source = foreign_source(cls) if package(type(expected).__module__) == "transformers" else None
    return source and f"a class of one's own ({source}), where transformers has another; restore it"


def _shared(model: Any, modules: dict[str, nn.Module], expected: nn.Module) -> set[str]:
    """Places of one weight, or of one module with weights, where the class has several: we would learn several."""
    ends = {id(getattr(end, "weight", None)) for end in (model.get_input_embeddings(), model.get_output_embeddings())}
    now = {**modules, **dict(model.named_parameters(remove_duplicate=False))}
    weights = [path for path, _ in expected.named_parameters()]
    parts = [path.split(".") for path in weights]
    around = {".".join(part[:depth]): None for part in parts for depth in range(1, len(part))}
    places: dict[int, list[str]] = {}
    for path in (*around, *weights):
        if path in now and id(now[path]) not in ends:  # which may be tied
            places.setdefault(id(now[path]), []).append(path)
    return {path for found in places.values() if len(found) > 1 for path in found}


def _other_settings(module: nn.Module, expected: nn.Module, model: Any) -> Iterator[str]:
    """Factors, bounds and switches that were set on a module afterwards, where we go by the configuration."""
    then = settings(expected)
    now = {key: value for key, value in module.__dict__.items() if key in then}
    for key in sorted(now.keys() - _FOLLOWED):
        if not is_same(now[key], then[key]):
            yield f"its {key} is {now[key]}, where the configuration makes it {then[key]}; restore it"
    config, its = module.__dict__.get("config"), expected.__dict__.get("config")
    if config is not model.config and None not in (config, its) and vars(config) != vars(its):
        yield "its config is not the model's; restore it"


def is_same(value: Any, other: Any) -> bool:
    """Whether two settings are equal; those of two modules may be bound to either."""
    if isinstance(value, functools.partial) and isinstance(other, functools.partial):
        return (value.func, value.args, value.keywords) == (other.func, other.args, other.keywords)
    if isinstance(value, Tensor):  # whose comparison is no answer
        return False
    return getattr(value, "__func__", value) == getattr(other, "__func__", other)


def _other_tables(module: nn.Module, expected: nn.Module, model: Any) -> Iterator[str]:
    """Constant buffers, such as masks and sines, with other numbers than transformers fills them with."""
    tables = {
        key: torch.empty_like(table, device="cpu")
        for key, table in expected.__dict__["_buffers"].items()
        if table is not None and key not in _TABLES_READ
    }
    if not tables or package(type(expected).__module__) != "transformers":
        return
    expected.__dict__["_buffers"].update(tables)
    model._init_weights(expected)
    for key, table in tables.items():
        found = module.__dict__["_buffers"].get(key)
        if found is None or found.is_meta or not table._version:  # offloaded, or not filled
            continue
        # Sines are rounded with the model, which may have gone through half precision; masks are equal or far off.
        its = table.to(found.device, torch.float64)
        if its.shape != found.shape or not torch.allclose(found.double(), its, rtol=0, atol=_ROUNDING):
            yield f"its {key} has other numbers than its class fills it with; restore it"


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


def _remedy(origin: str) -> str | None:
    return next((text for name, text in _REMEDIES.items() if f"{origin}.".startswith(f"{name}.")), None)


def _listed(paths: list[str]) -> str:
    more = len(paths) - _SHOWN
    return ", ".join(paths[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
