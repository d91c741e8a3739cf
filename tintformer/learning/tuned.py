"""Tuned: one update, learnt once and used many times."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Set
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from tintformer.auxiliary.description import Auxiliary, ops
from tintformer.auxiliary.ops import Weight
from tintformer.auxiliary.placement import placed_parameters
from tintformer.engines.fast import FastEngine
from tintformer.engines.fast.updates import Factors, MatrixUpdate, Updates
from tintformer.errors import InputError, LoadError, TintError
from tintformer.execution.batch import Batch, Masks
from tintformer.execution.engine import parameter_updates
from tintformer.execution.hook_points import parameter_names
from tintformer.execution.hooks import Hooks, Watchable
from tintformer.execution.output import Logits, TintOutput, positions_of
from tintformer.learning.update_view import By, UpdateEffects, UpdateView, effects
from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.trainable import trainable_weights
from tintformer.storage.loading import load
from tintformer.storage.whole_files import check_file, whole_file
from tintformer.version import __version__

FORMAT = "tintformer-update-1"


class Tuned(Watchable):
    """An auxiliary with one update on top; the auxiliary itself is not changed."""

    def __init__(self, auxiliary: Auxiliary, rule: LearningRule, updates: Updates):
        self.auxiliary, self.rule, self._updates = auxiliary, rule, updates
        self._engine = FastEngine(auxiliary, rule)
        # Scoring has one pass, and it is the one after learning: there are no points of steps to wait at.
        self._engine.hooks = Hooks(auxiliary, rule, learns=False)

    @property
    def hooks(self) -> Hooks:
        return self._engine.hooks

    @classmethod
    def untrained(cls, auxiliary: Auxiliary) -> Tuned:
        """The model as it is, in the form of one that has learnt: what learning is compared with."""
        return cls(auxiliary, LearningRule(learning_rate=0.0), Updates())

    def score(
        self,
        input_ids: Tensor,
        *,
        score_mask: Tensor | None = None,
        logits: Logits = "none",
        **masks: Unpack[Masks],
    ) -> TintOutput:
        """Predict sequences with the updated weights; nothing is learnt.

        `score_mask` restricts the tokens whose loss is taken: with the tokens of a label, `log_probability` is the
        label's. Without it every token with a predecessor is scored. `masks` are `attention_mask`, `segment_ids` and
        `position_ids`, as in a call of `Tint`.
        """
        batch = Batch.to_score(self.auxiliary, input_ids, score_mask=score_mask, **masks)
        result = self._engine.score(batch, self._updates, logits_at=positions_of(logits, batch))
        return TintOutput.of(batch, replace(result, updates=lambda row: self.updates()))  # all rows share it

    def updates(self) -> dict[str, Tensor]:
        """The update of every trainable parameter: Hugging Face's names, shapes and orientation."""
        found = self._updates.formed(trainable_weights(self.rule, self.auxiliary), 0)
        return parameter_updates(found, self.auxiliary, self.rule)

    def update_views(self) -> dict[str, UpdateView]:
        """All that has been learnt, by op and parameter (`blocks.3.value.weight`): norms, singular values, ranks."""
        return {
            name: UpdateView(name=name, weight=weight, update=update)
            for name, weight in self._weights.items()
            if (update := self._update(weight)) is not None
        }

    def only(self, *patterns: str) -> Tuned:
        """With those updates alone whose names fit a pattern (`blocks.3.*`); without a pattern, with none."""
        return self._with(self._fitting(patterns))

    def without(self, *patterns: str) -> Tuned:
        """With all updates but those whose names fit a pattern."""
        return self._with(self.update_views().keys() - self._fitting(patterns))

    def effects(
        self,
        input_ids: Tensor,
        *,
        by: By = "block",
        score_mask: Tensor | None = None,
        **masks: Unpack[Masks],
    ) -> UpdateEffects:
        """What each part of the update does to the log-probability of the scored tokens, alone and on top of the rest.

        `by` says what a part is: a "block", an "op" or a "parameter". Every part costs two scores of the sequences;
        `score_mask` and `masks` are those of `score`.
        """
        return effects(self, lambda tuned: tuned.score(input_ids, score_mask=score_mask, **masks).token_loss, by)

    @property
    def _weights(self) -> dict[str, Weight]:
        """Every parameter of the auxiliary's ops by name, from the first block to the last."""
        steps = chain(*self.auxiliary.blocks, self.auxiliary.final)
        return {name: weight for op in ops(tuple(steps)) for weight, name in parameter_names(op).items()}

    def _update(self, weight: Weight) -> MatrixUpdate | Tensor | None:
        vector = self._updates.vectors.get(weight)
        return self._updates.matrices.get(weight) if vector is None else vector[0]

    def _fitting(self, patterns: tuple[str, ...]) -> set[str]:
        fitting: set[str] = set()
        for pattern in patterns:
            found = {name for name in self.update_views() if fnmatchcase(name, pattern)}
            if not found:
                raise InputError(f"no update fits {pattern!r}; update_views() lists them all")
            fitting |= found
        return fitting

    def _with(self, names: Set[str]) -> Tuned:
        """The same model with some of the updates; tensors are shared."""
        kept = {weight for name, weight in self._weights.items() if name in names}
        return Tuned(self.auxiliary, self.rule, self._updates.of(kept))

    def generate(self, input_ids: Tensor, **options: Any) -> Tensor:
        """Continue sequences with the updated weights, by Hugging Face's own `generate` and its options."""
        input_ids = input_ids.to(self.auxiliary.device)
        options.setdefault("attention_mask", torch.ones_like(input_ids))
        return self.to_hf(share=True).generate(input_ids, **options)

    @torch.no_grad()
    def to_hf(self, *, share: bool = False) -> Any:
        """A plain Hugging Face model with the updated weights, in evaluation mode.

        It is independent of the auxiliary unless `share` is set: then it holds the auxiliary's own tensors wherever
        nothing has been learnt, which saves their memory but must not be trained.
        """
        model = self.auxiliary.model
        if any(parameter.is_meta for parameter in model.parameters()):
            raise TintError(
                f"parts of {self.auxiliary.name} are offloaded, and a Hugging Face model needs its updated weights in "
                "memory; score() works, or load it with a device_map that offloads nothing"
            )
        tensors = chain(model.parameters(), model.buffers()) if share else ()
        result = copy.deepcopy(model, memo={id(tensor): tensor for tensor in tensors})
        for name, update in self.updates().items():
            module, _, attribute = name.rpartition(".")
            parent, old = result.get_submodule(module), result.get_parameter(name)
            setattr(parent, attribute, nn.Parameter(old + update.to(old), requires_grad=old.requires_grad))
        return result.eval()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the update as safetensors: factors or full updates, whichever is smaller, and the base's hash."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        tensors: dict[str, Tensor] = {}
        rates: dict[str, float] = {}
        for key, weight in _keys(self.auxiliary, self.rule).items():
            if weight in self._updates.vectors:
                tensors[f"{key}|vector"] = self._updates.vectors[weight]
            update = self._updates.matrices.get(weight)
            if update is not None and update.dense is not None:
                tensors[f"{key}|delta"] = update.dense
            for number, factors in enumerate(update.factors if update is not None else ()):
                tensors[f"{key}|x{number}"], tensors[f"{key}|g{number}"] = factors.x, factors.g
                rates[f"{key}|{number}"] = factors.rate
        metadata = {
            "format": FORMAT,
            "version": __version__,
            "base": base_hash(self.auxiliary),
            "base_name": self.auxiliary.name,
            "rule": json.dumps(asdict(self.rule)),
            "rates": json.dumps(rates),
        }
        target = Path(path)
        check_file(target)
        try:
            with whole_file(target) as temporary:
                save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, temporary, metadata=metadata)
        except (OSError, SafetensorError) as error:
            raise TintError(f"cannot write {target}: {error}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: Any) -> Tuned:
        """Read an update back onto the model it was learnt on; any other base is refused."""
        auxiliary = load(model)
        metadata, tensors = _read(Path(path))
        # By its bytes, not its name: factors onto other weights would load without complaint and predict nonsense.
        if metadata["base"] != base_hash(auxiliary):
            raise LoadError(
                f"{path} was learnt on other weights ({metadata['base_name']}) than those of {auxiliary.name}; "
                "an update fits its own base only"
            )
        rule = LearningRule(**json.loads(metadata["rule"]))
        rates: dict[str, float] = json.loads(metadata["rates"])
        updates = Updates()
        for key, weight in _keys(auxiliary, rule).items():
            if f"{key}|vector" in tensors:
                updates.vectors[weight] = tensors[f"{key}|vector"].to(weight.home)
            dense = tensors.get(f"{key}|delta")
            factors = [
                Factors(
                    tensors[f"{key}|x{number}"].to(weight.home),
                    tensors[f"{key}|g{number}"].to(weight.home),
                    rate,
                )
                for number, rate in enumerate(_in_order(rates, key))
            ]
            if dense is not None or factors:
                dense = None if dense is None else dense.to(weight.home)
                updates.matrices[weight] = MatrixUpdate(dual=dense is None, keep=True, factors=factors, dense=dense)
        return cls(auxiliary, rule, updates)


def _in_order(rates: dict[str, float], key: str) -> list[float]:
    """The rates of one weight's factors, first step first."""
    count = sum(name.rpartition("|")[0] == key for name in rates)
    return [rates[f"{key}|{number}"] for number in range(count)]


def _keys(auxiliary: Auxiliary, rule: LearningRule) -> dict[str, Weight]:
    """Trainable weights by the name under which they are stored; parts of fused parameters have a number."""
    return {
        weight.name if weight.part is None else f"{weight.name}#{weight.part.index}": weight
        for weight in trainable_weights(rule, auxiliary)
    }


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise LoadError(f"{path} is not an update of tintformer (format {metadata.get('format')!r})")
            return metadata, {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError) as error:
        raise LoadError(f"cannot read the update {path}: {error}") from error


def base_hash(auxiliary: Auxiliary) -> str:
    """SHA-256 of all parameters of the base: names, types, shapes and bytes."""
    digest = hashlib.sha256()
    tied = {data.data_ptr(): name for name, (data, _) in reversed(placed_parameters(auxiliary.model).items())}
    for name, (data, _) in placed_parameters(auxiliary.model).items():
        if tied[data.data_ptr()] != name:  # once, under its first name
            continue
        tensor = data.cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.view(torch.uint8).numpy().data if tensor.dim() else tensor.numpy().tobytes())
    return digest.hexdigest()
