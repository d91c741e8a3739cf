"""Updates on disk: what `Tuned.save` writes and `Tuned.load` reads, checked against base and rule.

One safetensors file. Its metadata are texts: `format`, the `version` that wrote it, the `base`'s hash and `base_name`,
the `rule` and the `rates` as JSON, and a `checksum` over all of these and the tensors (`storage/checksums.py`). Tensors
are named after the weight (`#0` to `#2` for parts of a fused one) and their kind; one update has one row:

    WEIGHT|delta        [1, out, in]   the update of a matrix, float32 at least
    WEIGHT|x0, g0, x1   [1, n, in], [1, n, out]   factors in its place, a pair for each step, in the model's dtype; the
                        update is -rate * g^T x, and `rates` has their rate under WEIGHT|0
    WEIGHT|vector       [1, size]      the update of a bias or a scale, float32 at least

Any subset of the weights that the rule trains may be there, since `Tuned.only` takes updates away.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary, compute_dtype
from tintformer.auxiliary.ops import Weight
from tintformer.auxiliary.placement import placed_parameters
from tintformer.engines.fast.updates import Factors, MatrixUpdate, Updates
from tintformer.errors import LoadError, TintError, cause
from tintformer.rule.learning_rule import LearningRule, require_number
from tintformer.rule.optimiser import trainable_weights
from tintformer.storage.checksums import CHECKSUM, add_tensor, read_tensors, write_tensors
from tintformer.storage.untrusted import is_finite
from tintformer.storage.untrusted_files import given_path
from tintformer.storage.whole_files import check_file, whole_file
from tintformer.version import __version__

FORMAT = "tintformer-update-2"
_FORMATS = "tintformer-update-"
_METADATA = {"format", "version", "base", "base_name", "rule", "rates", CHECKSUM}


def write_update(target: Path, auxiliary: Auxiliary, rule: LearningRule, updates: Updates) -> None:
    """Write an update whole or not at all; what could not be read back is refused."""
    from safetensors import SafetensorError

    check_file(target)
    require_number(rule, "a saved update")
    keys = weight_keys(auxiliary, rule)
    tensors, rates = _as_tensors(keys, updates)
    metadata = {
        "format": FORMAT,
        "version": __version__,
        "base": base_hash(auxiliary),
        # The name may be a path in any encoding, and metadata are UTF-8.
        "base_name": auxiliary.name.encode(errors="backslashreplace").decode(),
        "rule": json.dumps(asdict(rule)),
        "rates": json.dumps(rates),
    }
    try:
        _check_tensors(keys, {key: _header(tensor) for key, tensor in tensors.items()}, rates, auxiliary.dtype)
        _check_values(tensors)
    except LoadError as error:
        raise TintError(f"cannot write {target}: {error}") from error
    try:
        with whole_file(target) as temporary:
            write_tensors(temporary, tensors, metadata)
    except (OSError, SafetensorError) as error:
        raise TintError(f"cannot write {target}: {error}") from error


def read_update(path: Path, auxiliary: Auxiliary) -> tuple[LearningRule, Updates]:
    """Read an update that was learnt on this base, checked from the cheapest to the dearest."""
    metadata, tensors = read_tensors(given_path(path, LoadError), "update", _check_metadata)
    # By its bytes, not its name: factors onto other weights would load without complaint and predict nonsense.
    if metadata["base"] != base_hash(auxiliary):
        raise LoadError(
            f"{path} was learnt on other weights ({metadata['base_name']!r:.80}) than those of {auxiliary.name}; "
            "an update fits its own base only"
        )
    rule, rates = read_rule(metadata, path), read_object(metadata, "rates", path)
    try:
        keys = weight_keys(auxiliary, rule)
        _check_tensors(keys, {name: _header(tensor) for name, tensor in tensors.items()}, rates, auxiliary.dtype)
        _check_values(tensors)
    except TintError as error:
        raise LoadError(f"{path} does not fit its base and rule: {error}") from error
    return rule, _as_updates(keys, tensors, rates)


def _check_metadata(metadata: Mapping[str, str], path: Path) -> None:
    found = metadata.get("format")
    if found is None or not found.startswith(_FORMATS):
        raise LoadError(f"{path} is not an update of tintformer (format {found!r:.80})")
    if found != FORMAT:
        raise LoadError(
            f"{path} is an update of another version (format {found!r:.80}, and {FORMAT!r} is read here): adapt anew"
        )
    for kind, odd in (("lacks", _METADATA - metadata.keys()), ("has unknown", metadata.keys() - _METADATA)):
        if odd:
            raise LoadError(f"{path} {kind} metadata ({sorted(odd)!s:.80}); it is damaged, so adapt anew")


def read_object(metadata: Mapping[str, str], key: str, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(metadata[key])
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path}: its {key} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise LoadError(f"{path}: its {key} are a {type(found).__name__}, and must be an object of JSON")
    return found


def read_rule(metadata: Mapping[str, str], path: Path) -> LearningRule:
    knobs = read_object(metadata, "rule", path)
    # A knob that came later is left at its default, which is what learning was before it came.
    if odd := sorted(
        (knobs.keys() - {field.name for field in fields(LearningRule)}) | ({"learning_rate"} - knobs.keys())
    ):
        raise LoadError(f"{path}: its rule has other knobs than those of this version ({odd!s:.80}): adapt anew")
    try:
        return require_number(LearningRule.of(knobs), "a saved update")
    except (TintError, TypeError) as error:
        raise LoadError(f"{path}: its rule cannot be followed: {cause(error)}") from error


class _Header(NamedTuple):
    dtype: torch.dtype
    shape: tuple[int, ...]


def _header(tensor: Tensor) -> _Header:
    return _Header(tensor.dtype, tuple(tensor.shape))


def _check_tensors(
    keys: Mapping[str, Weight], found: Mapping[str, _Header], rates: Mapping[str, Any], dtype: torch.dtype
) -> None:
    """Refuse tensors and rates that no update of these weights has, and those whose shape or dtype is another."""
    wide, known = compute_dtype(dtype), set[str]()
    counts = Counter(name.rpartition("|")[0] for name in rates)
    for key, weight in keys.items():
        shape = tuple(weight.read().shape)
        if len(shape) == 1:
            expected = {f"{key}|vector": _Header(wide, (1, *shape))}
        else:
            expected = {f"{key}|delta": _Header(wide, (1, *shape))}
            for number in range(counts[key]):
                rank = _rank(found, rates, key, number)
                expected[f"{key}|x{number}"] = _Header(dtype, (1, rank, shape[1]))
                expected[f"{key}|g{number}"] = _Header(dtype, (1, rank, shape[0]))
        for name in expected.keys() & found.keys():
            if found[name] != expected[name]:
                raise LoadError(f"{name} is {_shown(found[name])}, and must be {_shown(expected[name])}")
        known |= expected.keys()
    if odd := sorted(found.keys() - known):
        raise LoadError(f"{odd[0]!r:.120} is none of its tensors, {len(odd)} such in all")
    factors = {name for name in known if name.rpartition("|")[2].startswith("x")}
    if odd := sorted(rates.keys() - {name.replace("|x", "|") for name in factors}):
        raise LoadError(f"there is a rate of {odd[0]!r:.120}, which are none of its factors")


def _rank(found: Mapping[str, _Header], rates: Mapping[str, Any], key: str, number: int) -> int:
    """The rank of a pair of factors, of which there must be both and a rate."""
    rate = rates.get(f"{key}|{number}")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not math.isfinite(rate):
        raise LoadError(f"the rate of {key}|{number} is {rate!r:.40}, and must be a finite number")
    for name in (f"{key}|x{number}", f"{key}|g{number}"):
        if name not in found:
            raise LoadError(f"{name} is missing, of which there is a rate")
    shape = found[f"{key}|x{number}"].shape
    return shape[1] if len(shape) == 3 else 0


def _check_values(tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if not is_finite(tensor):
            raise LoadError(f"{name} contains NaN or infinity")


def _shown(header: _Header) -> str:
    return f"{str(header.dtype).removeprefix('torch.')} {list(header.shape)}"


def _as_tensors(keys: Mapping[str, Weight], updates: Updates) -> tuple[dict[str, Tensor], dict[str, float]]:
    tensors: dict[str, Tensor] = {}
    rates: dict[str, float] = {}
    for key, weight in keys.items():
        if weight in updates.vectors:
            tensors[f"{key}|vector"] = updates.vectors[weight]
        update = updates.matrices.get(weight)
        if update is not None and update.dense is not None:
            tensors[f"{key}|delta"] = update.dense
        for number, factors in enumerate(update.factors if update is not None else ()):
            tensors[f"{key}|x{number}"], tensors[f"{key}|g{number}"] = factors.x, factors.g
            rates[f"{key}|{number}"] = float(factors.rate)  # one update has one row
    return tensors, rates


def _as_updates(keys: Mapping[str, Weight], tensors: Mapping[str, Tensor], rates: Mapping[str, float]) -> Updates:
    updates = Updates()
    updates.steps_made = None  # and no velocity: what an optimiser remembers is no part of an update
    for key, weight in keys.items():
        if (vector := tensors.get(f"{key}|vector")) is not None:
            updates.vectors[weight] = vector.to(weight.home)
        dense, factors = tensors.get(f"{key}|delta"), list[Factors]()
        while (rate := rates.get(f"{key}|{len(factors)}")) is not None:
            x, g = (tensors[f"{key}|{side}{len(factors)}"].to(weight.home) for side in "xg")
            factors.append(Factors(x, g, float(rate)))
        if dense is not None or factors:
            dense = None if dense is None else dense.to(weight.home)
            # What the file holds is what is used, the bias beside factors too, which the engine could derive from them.
            updates.matrices[weight] = MatrixUpdate(
                dual=dense is None, keep=True, factors=factors, dense=dense, own_bias=True
            )
    return updates


def weight_keys(auxiliary: Auxiliary, rule: LearningRule) -> dict[str, Weight]:
    """Trainable weights by the name under which they are stored; parts of fused parameters have a number."""
    return {
        weight.name if weight.part is None else f"{weight.name}#{weight.part.index}": weight
        for weight in trainable_weights(rule, auxiliary)
    }


def base_hash(auxiliary: Auxiliary) -> str:
    """SHA-256 of all parameters of the base: names, types, shapes and bytes."""
    digest = hashlib.sha256()
    tied = {data.data_ptr(): name for name, (data, _) in reversed(placed_parameters(auxiliary.model).items())}
    for name, (data, _) in placed_parameters(auxiliary.model).items():
        if tied[data.data_ptr()] == name:  # once, under its first name
            add_tensor(digest, name, data)
    return digest.hexdigest()
