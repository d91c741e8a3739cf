"""States of streams on disk: what `StreamState.save` writes, read back bit by bit in the form in which it was saved.

One safetensors file with a checksum. Tensors are named after the weight (`#0` to `#2` for parts of a fused one) or the
attention, and their kind: `matrix` (the updated matrix of every row), `change`, factors (`x0`, `g0`, `rate0`,
`velocity0`), `vector`, and the optimiser's `velocity`, `square`, `count`; `key` and `value` of the cache, and
`cache|seen`, `cache|positions`. Metadata are texts: the base's hash, the rule, the settings, where each row stands, and
the hash of the statistics that `rms` divides by.
Whoever reads a text may keep notes and tensors (`kept|NAME`) of its own in the same file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.ops import Weight
from tintformer.engines.fast.running_matrix import RunningMatrix
from tintformer.engines.fast.updates import Factors, MatrixUpdate, Updates
from tintformer.errors import LoadError, TintError
from tintformer.execution.continuation import KeyValueCache
from tintformer.learning.update_files import base_hash, read_object, read_rule, weight_keys
from tintformer.rule.optimiser import Moments
from tintformer.storage.checksums import CHECKSUM, read_tensors, write_tensors
from tintformer.storage.untrusted import is_finite
from tintformer.storage.untrusted_files import given_path
from tintformer.storage.whole_files import check_file, whole_file
from tintformer.version import __version__

if TYPE_CHECKING:
    from tintformer.learning.streams import StreamState

FORMAT = "tintformer-stream-1"
_METADATA = {"format", "version", "base", "base_name", "rule", "stream", CHECKSUM}
_MOMENTS = ("velocity", "square", "count")
_KEPT = "kept"


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What a reader keeps with a state, in one file with it: the two are of one moment."""

    notes: dict[str, Any]
    """As JSON has them."""
    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])


def write_state(target: Path, state: StreamState, kept: Kept | None = None) -> None:
    """Write a state whole or not at all."""
    from safetensors import SafetensorError

    check_file(target)
    keys = weight_keys(state.auxiliary, state.rule)
    metadata = {
        "format": FORMAT,
        "version": __version__,
        "base": base_hash(state.auxiliary),
        "base_name": state.auxiliary.name.encode(errors="backslashreplace").decode(),
        "rule": json.dumps(asdict(state.rule)),
        "stream": json.dumps(
            {
                "settings": asdict(state.settings),
                "rows": [asdict(past) for past in state.pasts],
                "steps_made": state.memory.steps_made,
                "statistics": state.statistics_hash(),
            }
        ),
    }
    tensors = {**_of_updates(keys, state.memory.updates), **cache_tensors(state)}
    if kept is not None:
        metadata[_KEPT] = json.dumps(kept.notes)
        tensors |= {f"{_KEPT}|{name}": tensor for name, tensor in kept.tensors.items()}
    tensors = _apart(tensors)
    try:
        with whole_file(target) as temporary:
            write_tensors(temporary, tensors, metadata)
    except (OSError, SafetensorError) as error:
        raise TintError(f"cannot write {target}: {error}") from error


def read_state(path: Path, auxiliary: Auxiliary) -> StreamState:
    """Read a state that a stream of this model has left."""
    return read_kept(path, auxiliary)[0]


def read_kept(path: Path, auxiliary: Auxiliary) -> tuple[StreamState, Kept | None]:
    """The same, with what its reader has kept beside it, which it has to check itself."""
    metadata, tensors = read_tensors(given_path(path, LoadError), "state", _check_metadata)
    if metadata["base"] != base_hash(auxiliary):
        raise LoadError(
            f"{path} is the state of a stream with other weights ({metadata['base_name']!r:.80}) than those of "
            f"{auxiliary.name}; a state fits its own base only"
        )
    rule, stream = read_rule(metadata, path), read_object(metadata, "stream", path)
    beside = {name: tensors.pop(name).clone() for name in [*tensors] if name.startswith(f"{_KEPT}|")}
    kept = None
    if _KEPT in metadata:
        names = {name.removeprefix(f"{_KEPT}|"): tensor for name, tensor in beside.items()}
        kept = Kept(notes=read_object(metadata, _KEPT, path), tensors=names)
    try:
        return _as_state(auxiliary, rule, stream, tensors), kept
    except (TintError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise LoadError(f"{path} does not fit its base and rule ({error!s:.120}); stream the document anew") from error


def _check_metadata(metadata: Mapping[str, str], path: Path) -> None:
    if (found := metadata.get("format")) != FORMAT:
        raise LoadError(f"{path} is no state of a stream of this version (format {found!r:.80}, not {FORMAT!r})")
    if odd := sorted(metadata.keys() - {_KEPT} ^ _METADATA):
        raise LoadError(f"{path} lacks metadata or has unknown ones ({odd!s:.80}); stream the document anew")


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each in memory of its own: branches of a fork have the same inputs, and the format knows no sharing."""
    seen = set[int]()
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        result[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return result


def _of_updates(keys: Mapping[str, Weight], updates: Updates) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for key, weight in keys.items():
        update, moments = updates.matrices.get(weight), updates.moments.get(weight)
        if weight in updates.vectors:
            tensors[f"{key}|vector"] = updates.vectors[weight]
        if isinstance(update, RunningMatrix):
            assert update.formed is not None
            tensors[f"{key}|matrix"] = update.formed
        elif update is not None:
            if update.dense is not None:
                tensors[f"{key}|change"] = update.dense
            for number, part in enumerate(update.factors):
                tensors[f"{key}|x{number}"], tensors[f"{key}|g{number}"] = part.x, part.g
                for name in ("rate", "velocity"):
                    value = torch.as_tensor(getattr(part, name), dtype=torch.float64)
                    tensors[f"{key}|{name}{number}"] = value
        moments = moments if update is None else update.moments
        for name in _MOMENTS if moments is not None else ():
            if (value := getattr(moments, name)) is not None:
                tensors[f"{key}|{name}"] = value
    return tensors


def cache_tensors(state: StreamState) -> dict[str, Tensor]:
    """The keys and values that a state carries."""
    memory = state.memory
    if memory.cache is None or memory.seen is None or memory.positions is None:
        return {}
    entries = {
        f"{name}|{kind}": tensor
        for name, pair in memory.cache.entries.items()
        for kind, tensor in zip(("key", "value"), pair, strict=True)
    }
    return {"cache|seen": memory.seen, "cache|positions": memory.positions, **entries}


def _as_state(auxiliary: Auxiliary, rule: Any, stream: dict[str, Any], tensors: dict[str, Tensor]) -> StreamState:
    from tintformer.learning.streams import Past, StreamSettings, StreamState

    settings = StreamSettings(**stream["settings"])
    # None of another optimiser, and of `rms` in a file from before they were noted: then nothing can be compared.
    statistics = stream.get("statistics")
    if not isinstance(statistics, str | None):
        raise LoadError(f"its statistics are a {type(statistics).__name__}, and must be a hash")
    state = StreamState(auxiliary, rule, settings, len(stream["rows"]), statistics=statistics)
    state.pasts = [Past(**row) for row in stream["rows"]]
    state.memory.steps_made = [int(made) for made in stream["steps_made"]]
    # Into memory of its own: a file that is mapped lies elsewhere than what was saved, and sums may round otherwise.
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not is_finite(tensor):
            raise LoadError(f"{name} contains NaN or infinity")
    rows, left = len(state.pasts), dict(tensors)
    for key, weight in weight_keys(auxiliary, rule).items():
        _read_update(state.memory.updates, key, weight, left, rows, is_linear=rule.is_linear)
    take_cache(state, left)
    if left:
        raise LoadError(f"{next(iter(left))!r:.80} is none of its tensors")
    return state


def _read_update(
    updates: Updates, key: str, weight: Weight, left: dict[str, Tensor], rows: int, *, is_linear: bool
) -> None:
    """Take the tensors of a weight out of those that are left."""
    shape = tuple(weight.read().shape)

    def take(kind: str, *expected: int) -> Tensor | None:
        tensor = left.pop(f"{key}|{kind}", None)
        if tensor is not None and tensor.shape != expected:
            raise LoadError(f"{key}|{kind} has shape {tuple(tensor.shape)}, and must have {expected}")
        return None if tensor is None else tensor.to(weight.home)

    moments = Moments()
    moments.velocity, moments.square = take("velocity", rows, *shape), take("square", rows, *shape)
    moments.count = take("count", rows)
    known = None if moments.velocity is None else moments
    if len(shape) == 1:
        if (vector := take("vector", rows, *shape)) is not None:
            updates.vectors[weight], updates.moments[weight] = vector, moments
        return
    if (matrix := take("matrix", rows, *shape)) is not None:
        updates.matrices[weight] = RunningMatrix(weight=weight, formed=matrix, moments=known, own_bias=True)
        return
    dense, factors = take("change", rows, *shape), list[Factors]()
    while (x := left.get(f"{key}|x{len(factors)}")) is not None:
        number, rank = len(factors), x.shape[1]
        pair = take(f"x{number}", rows, rank, shape[1]), take(f"g{number}", rows, rank, shape[0])
        rate, velocity = (_scalar(left.pop(f"{key}|{name}{number}"), rows) for name in ("rate", "velocity"))
        assert pair[0] is not None
        if pair[1] is None:
            raise LoadError(f"{key}|g{number} is missing")
        factors.append(Factors(pair[0], pair[1], rate, velocity))
    if dense is not None or factors:
        updates.matrices[weight] = MatrixUpdate(
            # As it was: whether the update of a bias is read or implied by factors makes a difference in the last bit.
            dual=dense is None,
            keep=True,
            factors=factors,
            dense=dense,
            moments=known,
            own_bias=not is_linear,
        )


def _scalar(value: Tensor, rows: int) -> float | Tensor:
    if value.dim() == 0:
        return float(value)
    if value.shape != (rows, 1, 1):
        raise LoadError(f"coefficients of {tuple(value.shape)} do not fit {rows} rows")
    return value


def take_cache(state: StreamState, left: dict[str, Tensor]) -> None:
    """Give a state the keys and values that `cache_tensors` has named, and take them out of those that are left."""
    memory, rows = state.memory, len(state.pasts)
    memory.seen, memory.positions = left.pop("cache|seen", None), left.pop("cache|positions", None)
    if memory.seen is None or memory.positions is None or memory.cache is None:
        return
    if memory.seen.shape != memory.positions.shape or len(memory.seen) != rows:
        raise LoadError("what is seen of the cache does not fit its positions")
    cache = KeyValueCache()
    for name in [name.removesuffix("|key") for name in left if name.endswith("|key")]:
        key, value = (left.pop(f"{name}|{kind}").to(state.auxiliary.device) for kind in ("key", "value"))
        cache.entries[name] = key, value
    memory.cache = cache
