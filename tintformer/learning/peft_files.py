"""An update as a LoRA adapter of PEFT: low-rank factors of matrices, and what changed beside them.

Two files that PEFT reads and other engines with it: `adapter_config.json` and `adapter_model.safetensors`. The update
of a linear layer `[out, in]` is B A with A `[r, in]` and B `[out, r]`; scales are 1 (alpha = r), and a layer of another
rank than most stands in `rank_pattern` and `alpha_pattern`. Biases of linear layers go along by PEFT's `bias`, norms as
whole modules by `modules_to_save`. PEFT itself is not needed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tintformer.auxiliary.description import Auxiliary, compute_dtype, ops
from tintformer.auxiliary.ops import Linear, Norm, Weight
from tintformer.engines.fast.update_costs import smaller_as_factors
from tintformer.engines.fast.updates import Factors, MatrixUpdate, Updates, widened
from tintformer.errors import TintError
from tintformer.storage.whole_files import whole_files

FILES = ("adapter_model.safetensors", "adapter_config.json")
_PREFIX = "base_model.model."


@dataclass(frozen=True, eq=False)
class LowRank:
    """The update of one Hugging Face matrix `[out, in]` as B A, exact or the nearest of its rank."""

    a: Float[Tensor, "r in"]
    b: Float[Tensor, "out r"]
    squares: float
    """The squared norm of the update itself."""

    @classmethod
    def of(cls, parts: Mapping[Weight, MatrixUpdate], rank: int | None) -> LowRank:
        """Of the updates of the ops that share the matrix; `rank` None: all that there is."""
        left, values, right = _decomposed(parts)
        # What rounding leaves of a zero is no rank.
        smallest = float(values[:1].sum()) * max(len(left), right.shape[1]) * torch.finfo(values.dtype).eps
        exact = int((values > smallest).sum())
        kept = exact if rank is None else min(rank, exact)
        root = values[:kept].sqrt()
        return cls(root[:, None] * right[:kept], left[:, :kept] * root, float(values.square().sum()))

    @property
    def rank(self) -> int:
        return len(self.a)

    @property
    def kept_squares(self) -> float:
        """The squared norm of B A, whose columns and rows are orthogonal."""
        return float((self.a.square().sum(1) * self.b.square().sum(0)).sum())

    def update_of(self, weight: Weight, dtype: torch.dtype) -> MatrixUpdate:
        """What it makes of one of the ops that share the matrix, whose dtype is given."""
        rows = _rows_of(weight, self.b)
        if self.a.dtype == dtype and smaller_as_factors(self.a.shape[1], len(rows), self.rank):
            # Factors are subtracted.
            return MatrixUpdate(
                dual=True, keep=True, factors=[Factors(self.a[None], rows.mT[None], -1.0)], own_bias=True
            )
        return MatrixUpdate(dual=False, keep=True, dense=(rows @ self.a)[None], own_bias=True)


def _decomposed(parts: Mapping[Weight, MatrixUpdate]) -> tuple[Tensor, Tensor, Tensor]:
    """Left vectors, singular values and right vectors of a matrix whose rows belong to several ops."""
    weight = next(iter(parts))
    outputs, inputs = weight.source.shape[:: -1 if weight.transposed else 1]
    rank = sum(factors.x.shape[1] for update in parts.values() for factors in update.factors)
    dtype = compute_dtype(weight.source.dtype)
    if rank >= min(outputs, inputs) or any(update.dense is not None for update in parts.values()):
        whole = torch.zeros(outputs, inputs, dtype=dtype, device=weight.home)
        for part, update in parts.items():
            replace(part, transposed=False).write(update.row(0).to(dtype), into=whole)
        return torch.linalg.svd(whole, full_matrices=False)
    # U V = Q R S^T P^T, with U = Q R and V^T = P S: the small core R S^T has the singular values.
    left, right = torch.zeros(outputs, rank, dtype=dtype, device=weight.home), list[Tensor]()
    column = 0
    for part, update in parts.items():
        for factors in update.factors:
            here = slice(column, column + factors.x.shape[1])
            gradients = widened(factors.g)[0].mT * -float(factors.rate)
            replace(part, transposed=False).write(gradients, into=left[:, here])
            right.append(widened(factors.x)[0])
            column = here.stop
    (of_left, core_left), (of_right, core_right) = torch.linalg.qr(left), torch.linalg.qr(torch.cat(right).mT)
    u, values, v = torch.linalg.svd(core_left @ core_right.mT, full_matrices=False)
    return of_left @ u, values, v @ of_right.mT


def _rows_of(weight: Weight, matrix: Tensor) -> Tensor:
    """The rows of a matrix `[out, ...]` that belong to an op."""
    return replace(weight, source=matrix, transposed=False, device=None).read()


@dataclass(kw_only=True)
class Adapter:
    """An update as PEFT holds it."""

    auxiliary: Auxiliary
    matrices: dict[str, LowRank] = field(default_factory=dict)
    """By name of the linear layer."""
    biases: dict[str, Tensor] = field(default_factory=dict)
    """Whole biases of linear layers, by name of the layer."""
    norms: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    """All parameters of norms, by name of the norm."""
    transposed: bool = False
    left_out: tuple[str, ...] = ()
    """Parameters whose updates are no part of it."""
    squares: float = 0.0
    """The squared norm of the update, and of what is kept of it."""
    kept_squares: float = 0.0
    updates: Updates = field(default_factory=Updates)
    """What is kept, as an update again."""

    @classmethod
    def of(
        cls, auxiliary: Auxiliary, updates: Updates, *, rank: int | None, biases: bool = True, norms: bool = True
    ) -> Adapter:
        """Of what has been learnt; `rank` bounds that of every layer, and biases and norms can be left out."""
        result = cls(auxiliary=auxiliary)
        result.updates.steps_made = None
        for module, linears in _by_module(auxiliary, Linear).items():
            result._add_linear(module, linears, updates, rank=rank, biases=biases)
        for module, (norm,) in _by_module(auxiliary, Norm).items():
            result._add_norm(module, norm, updates, norms=norms)
        if not result.matrices:
            raise TintError("nothing of the update is in a linear layer, and an adapter of PEFT needs one that is")
        return result

    def _add_linear(
        self, module: str, linears: list[Linear], updates: Updates, *, rank: int | None, biases: bool
    ) -> None:
        learnt = {op.weight: updates.matrices[op.weight] for op in linears if op.weight in updates.matrices}
        if learnt:
            _require_linear(module, self.auxiliary.model.get_submodule(module))
            low_rank = LowRank.of(learnt, rank)
            self.squares += low_rank.squares
            if low_rank.rank:  # an update of zeros has none
                self.matrices[module], self.transposed = low_rank, self.transposed or linears[0].weight.transposed
                self.kept_squares += low_rank.kept_squares
                dtype = self.auxiliary.dtype
                self.updates.matrices |= {weight: low_rank.update_of(weight, dtype) for weight in learnt}
        vectors = [op.bias for op in linears if op.bias is not None and op.bias in updates.vectors]
        if self._keeps(vectors, updates, wanted=biases):
            self.biases[module] = _updated(vectors, updates)

    def _add_norm(self, module: str, norm: Norm, updates: Updates, *, norms: bool) -> None:
        there = [weight for weight in (norm.scale, norm.bias) if weight is not None]
        learnt = [weight for weight in there if weight in updates.vectors]
        if self._keeps(learnt, updates, wanted=norms):
            self.norms[module] = {weight.name.rpartition(".")[2]: _updated([weight], updates) for weight in there}

    def _keeps(self, vectors: list[Weight], updates: Updates, *, wanted: bool) -> bool:
        """Whether vectors go along; their squares are counted either way."""
        squares = sum(float(updates.vectors[weight].square().sum()) for weight in vectors)
        self.squares += squares
        if not squares:
            return False
        if not wanted:
            self.left_out += (vectors[0].name,)
            return False
        self.kept_squares += squares
        self.updates.vectors |= {weight: updates.vectors[weight] for weight in vectors}
        return True

    def config(self) -> dict[str, Any]:
        """What `adapter_config.json` says."""
        ranks = {module: low_rank.rank for module, low_rank in self.matrices.items()}
        usual = Counter(ranks.values()).most_common(1)[0][0]
        others = {module: rank for module, rank in ranks.items() if rank != usual}
        # `lora_only` would not look for the bias of a layer whose matrix has not changed.
        bias = "none" if not self.biases else "lora_only" if self.biases.keys() <= ranks.keys() else "all"
        return {
            "alpha_pattern": others,
            "base_model_name_or_path": self.auxiliary.model.name_or_path or self.auxiliary.name,
            "bias": bias,
            "fan_in_fan_out": self.transposed,
            "inference_mode": True,
            "lora_alpha": usual,
            "lora_dropout": 0.0,
            "modules_to_save": list(self.norms) or None,
            "peft_type": "LORA",
            "r": usual,
            "rank_pattern": others,
            "target_modules": list(ranks),
            "task_type": "CAUSAL_LM",
        }

    def tensors(self) -> dict[str, Tensor]:
        """What `adapter_model.safetensors` holds, under PEFT's names."""
        found: dict[str, Tensor] = {}
        for module, low_rank in self.matrices.items():
            found[f"{module}.lora_A.weight"], found[f"{module}.lora_B.weight"] = low_rank.a, low_rank.b
        for module, bias in self.biases.items():
            found[f"{module}.base_layer.bias" if module in self.matrices else f"{module}.bias"] = bias
        for module, parameters in self.norms.items():
            found |= {f"{module}.{name}": value for name, value in parameters.items()}
        return {_PREFIX + name: value.cpu().contiguous() for name, value in sorted(found.items())}

    def write(self, directory: Path) -> int:
        """Write both files or none; returns their size in bytes."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        try:
            with whole_files(directory, FILES) as folder:
                save_file(self.tensors(), folder / FILES[0], metadata={"format": "pt"})
                text = json.dumps(self.config(), indent=2, sort_keys=True)
                (folder / FILES[1]).write_text(text + "\n", encoding="utf-8")
                return sum((folder / name).stat().st_size for name in FILES)
        except (OSError, SafetensorError) as error:
            raise TintError(f"cannot write {directory}: {error}") from error


def _by_module(auxiliary: Auxiliary, kind: type[Linear | Norm]) -> dict[str, list[Any]]:
    """Ops of a kind by the Hugging Face module that holds their parameters; several may share a fused one."""
    found: dict[str, list[Any]] = {}
    for op in ops(tuple(chain(*auxiliary.blocks, auxiliary.final))):
        if not isinstance(op, kind):
            continue
        weight = op.weight if isinstance(op, Linear) else op.scale or op.bias
        if weight is not None:
            found.setdefault(weight.name.rpartition(".")[0], []).append(op)
    return found


def _updated(weights: list[Weight], updates: Updates) -> Tensor:
    """A Hugging Face vector with the updates of its parts, as `Tuned.to_hf` has it."""
    value = weights[0].whole().clone()
    for weight in weights:
        if weight in updates.vectors:
            weight.write(weight.read() + updates.vectors[weight][0].to(value), into=value)
    return value


def _require_linear(name: str, module: Any) -> None:
    from transformers.pytorch_utils import Conv1D

    if not isinstance(module, nn.Linear | Conv1D):
        raise TintError(
            f"PEFT adapts layers of type Linear and Conv1D, and {name} is a {type(module).__name__}; use save() or "
            "to_hf(), or leave its update out with without()"
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class PeftExport:
    """What `Tuned.to_peft` wrote, and how much of the update it is."""

    directory: Path
    """Where the adapter stands."""
    ranks: dict[str, int]
    """By name of the linear layer."""
    kept: float
    """Share of the update's squared norm that the adapter has: 1 where nothing was cut or left out."""
    left_out: tuple[str, ...]
    """Parameters whose updates were left out on request."""
    size: int
    """Bytes of both files."""
    loss_before: float | None = None
    """Mean loss of the scored tokens with the model as it came; None where no tokens were given."""
    loss_after: float | None = None
    """With the whole update."""
    loss_exported: float | None = None
    """With what the adapter has of it."""

    @property
    def gain_kept(self) -> float | None:
        """Share of the gain in loss that the adapter has; None where none was measured, or nothing was gained."""
        if self.loss_before is None or self.loss_after is None or self.loss_exported is None:
            return None
        gain = self.loss_before - self.loss_after
        return (self.loss_before - self.loss_exported) / gain if gain > 0 else None
