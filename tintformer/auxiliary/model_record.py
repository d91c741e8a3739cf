"""What a description has read of a model object, so that a change of the model is seen at the next call.

Numbers may change in place, as an optimizer changes them: weights are shared. But a description does not notice when a
parameter is replaced or converted, a module is hooked or given another setting, and would go on with what it has read.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tintformer.auxiliary.alterations import is_same, patches, settings, uses_kernels
from tintformer.auxiliary.foreign_code import computing_methods, process_patches
from tintformer.errors import TintError

_ENTRIES = 16
"""Numbers along an axis of a parameter that a fingerprint has, about."""
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By size in bytes."""


class _Entry(NamedTuple):
    """A module as it was. References, not addresses: a copy or a pickle of all this refers to the copied model."""

    path: str
    module: nn.Module
    cls: type[nn.Module]
    children: tuple[nn.Module | None, ...]
    tensors: tuple[Tensor | None, ...]
    """Its parameters and, unless accelerate moves them, its buffers."""
    formats: tuple[tuple[torch.dtype, torch.device] | None, ...]
    forward: Any
    """One that is set on the module itself, by accelerate or as a kernel."""
    settings: dict[str, Any]
    """Numbers, switches and functions that are set on the module, those that a description has read among them."""


class ModelRecord:
    """The modules of a model, their classes and their tensors, as they were when the model was described."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.entries = [_entry(path, module) for path, module in model.named_modules()]
        self.methods = {
            cls: {name: getattr(cls, name) for name in computing_methods(cls)}
            for cls in {entry.cls for entry in self.entries}
        }

    def changes(self) -> Iterator[str]:
        """What is no longer as it was, the first of it first; nothing in tens of microseconds for a small model."""
        for path, module, cls, children, tensors, formats, forward, values in self.entries:
            own = module.__dict__
            if (
                type(module) is not cls
                or own.get("forward") is not forward
                or own["_forward_hooks"]
                or own["_forward_pre_hooks"]
                or tuple(own["_modules"].values()) != children
            ):
                yield from self._module_changes(path, module, cls, children, forward)
            now = _tensors(module)
            if len(now) != len(tensors) or not all(map(is_, now, tensors)):
                yield f"{_named(path)} has other tensors"
            elif (found := _formats(now)) != formats:
                was, now_is = next(pair for pair in zip(formats, found, strict=True) if pair[0] != pair[1])
                yield f"{_named(path)} was {_described(was)} and is {_described(now_is)}"
            if values and not all(map(is_, map(own.get, values), values.values())):
                yield from _setting_changes(path, own, values)
        for cls, methods in self.methods.items():
            for name, it in methods.items():
                if getattr(cls, name, None) is not it:
                    yield f"{cls.__name__}.{name} is another"
        yield from (f"{place}: {why}" for place, why in process_patches(self.model, self.methods))

    def require_unchanged(self, name: str) -> None:
        """Refuse a model that is no longer the one that was described."""
        change = next(self.changes(), None)
        if change is not None:
            raise TintError(f"{name} has changed since it was loaded: {change}; load it again, as in Tint(model, rule)")

    def _module_changes(
        self, path: str, module: nn.Module, cls: type, children: tuple[Any, ...], forward: Any
    ) -> Iterator[str]:
        # Hooks that transformers sets while a model runs are no change, so it takes a closer look.
        found = list(patches(module, kernels=uses_kernels(self.model)))
        yield from (f"{_named(path)}: {why}" for why in found)
        if found:
            return
        if type(module) is not cls:
            yield f"{_named(path)} was a {cls.__name__} and is a {type(module).__name__}"
        elif tuple(module.__dict__["_modules"].values()) != children:
            yield f"{_named(path)} has other modules"
        elif module.__dict__.get("forward") is not forward:
            yield f"{_named(path)} has another forward"


class CopiedWeights:
    """What every parameter was at the time when its numbers were copied: whoever copies must see any change.

    The version of a tensor does not move with changes through `.data` or `.numpy()`, so its numbers are looked at too.
    """

    def __init__(self, parameters: list[Tensor], *, stale: bool = False):
        self.parameters, self.stale = parameters, stale
        self.versions = self._versions()
        # Made once: of a small model it takes longer to make views than to read what they show.
        self.bits = [_bits(each) for each in parameters]
        self.entries = [
            each[tuple(slice(None, None, size // _ENTRIES or 1) for size in each.shape)] for each in self.bits
        ]
        self.fingerprint = self._fingerprint()

    def _versions(self) -> list[tuple[int, int]]:
        # A tensor of inference mode keeps no version; its address still tells when it is another.
        return [(each.data_ptr(), 0 if each.is_inference() else each._version) for each in self.parameters]

    def _fingerprint(self) -> Tensor:
        """The sum of all bits, and a few entries for what changes places: about 1% of a pass over a short text."""
        entries = [each.reshape(-1) for each in self.entries]
        return torch.cat((torch.stack([each.sum() for each in self.bits]), *entries))

    def changed(self) -> bool:
        """Whether any of them is no longer what was copied."""
        return self.stale or self._versions() != self.versions or not torch.equal(self._fingerprint(), self.fingerprint)

    def __reduce__(self) -> Any:
        # Copied together with what was copied from them, they are as fresh or as stale as before.
        return _copied_weights, (self.parameters, self.changed())


def _copied_weights(parameters: list[Tensor], stale: bool) -> CopiedWeights:
    return CopiedWeights(parameters, stale=stale)


def _bits(parameter: Tensor) -> Tensor:
    """The memory of a parameter as integers, whose sum depends on no order; as wide ones, which is fastest."""
    together = 8 // parameter.element_size()
    data = parameter.detach()
    if not data.is_contiguous() or data.numel() % together or data.storage_offset() % together:
        return data.view(_INTEGERS[data.element_size()])
    return data.view(-1).view(torch.int64)


def _entry(path: str, module: nn.Module) -> _Entry:
    tensors = _tensors(module)
    children = tuple(module.__dict__["_modules"].values())
    forward = module.__dict__.get("forward")
    return _Entry(path, module, type(module), children, tensors, _formats(tensors), forward, settings(module))


def _setting_changes(path: str, own: dict[str, Any], values: dict[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        if not is_same(own.get(key), value):
            yield f"the {key} of {_named(path)} was {value} and is {own.get(key)}"


def _tensors(module: nn.Module) -> tuple[Tensor | None, ...]:
    own = module.__dict__
    parameters = own["_parameters"].values()
    if not own["_buffers"] or "_hf_hook" in own:
        return tuple(parameters)
    return (*parameters, *own["_buffers"].values())


def _formats(tensors: tuple[Tensor | None, ...]) -> tuple[tuple[torch.dtype, torch.device] | None, ...]:
    return tuple([None if tensor is None else (tensor.dtype, tensor.device) for tensor in tensors])


def _described(form: tuple[torch.dtype, torch.device] | None) -> str:
    return "nothing" if form is None else f"{form[0]} on {form[1]}"


def _named(path: str) -> str:
    return path or "the model itself"
