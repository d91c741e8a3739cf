"""Tuned: one update, learnt once and used many times."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Set
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import chain
from typing import Annotated, Any, Unpack

import torch
from torch import Tensor, nn

from tintformer.auxiliary.description import Auxiliary, ops
from tintformer.auxiliary.ops import Weight
from tintformer.auxiliary.text import continue_text
from tintformer.engines.fast import FastEngine
from tintformer.engines.fast.updates import MatrixUpdate, Updates
from tintformer.errors import InputError, LoadError, TintError, nearest
from tintformer.execution.batch import Batch, LearningMasks, Masks
from tintformer.execution.engine import parameter_updates, undisturbed
from tintformer.execution.examples import Examples, learning_batch, scoring_batch
from tintformer.execution.hooks import Hooks, Watchable, parameter_names
from tintformer.execution.inputs import Array, as_tensor, mask_of, token_ids
from tintformer.execution.output import Logits, TintOutput, positions_of
from tintformer.learning.peft_files import FILES, Adapter, PeftExport
from tintformer.learning.update_files import read_update, write_update
from tintformer.learning.update_view import By, UpdateEffects, UpdateView, effects
from tintformer.rule.learning_rule import LearningRule, require_rule
from tintformer.rule.optimiser import trainable_weights
from tintformer.storage.loading import load
from tintformer.storage.untrusted_files import given_path
from tintformer.storage.whole_files import check_directory
from tintformer.typed_fields import Range, checked


class Tuned(Watchable):
    """An auxiliary with one update on top; the auxiliary itself is not changed.

    `Tint.adapt` makes one, and `Tuned.load` reads one back.

    Args:
        auxiliary: The model that the update was learnt on.
        rule: The rule that it was learnt by.
        updates: What was learnt, weight by weight, as an engine leaves it.
        statistics: Those of the rule, where it divides by any; only `adapt` looks at them.
    """

    def __init__(
        self,
        auxiliary: Auxiliary,
        rule: LearningRule,
        updates: Updates,
        *,
        statistics: Mapping[str, Tensor] | None = None,
    ):
        self.auxiliary, self.rule, self._updates = auxiliary, require_rule(rule), updates
        self._statistics = statistics
        # It scores, and learns nothing: how a rule descends is of no consequence, nor what it would need for that.
        self._engine = FastEngine(auxiliary, replace(rule, optimizer="sgd"))
        # Scoring has one pass, and it is the one after learning: there are no points of steps to wait at.
        self._engine.hooks = Hooks(auxiliary, rule, learns=False)

    def __repr__(self) -> str:
        count = len(self._updates.matrices) + len(self._updates.vectors)
        return f"<Tuned {self.auxiliary.name}: updates of {count} weights, by {self.rule}>"

    @property
    def hooks(self) -> Hooks:
        """The hooks of its passes, which have no steps: all points are those of the pass `after` learning."""
        return self._engine.hooks

    @classmethod
    def untrained(cls, auxiliary: Auxiliary) -> Tuned:
        """The model as it is, in the form of one that has learnt: what learning is compared with.

        Args:
            auxiliary: What `load` returns.
        """
        return cls(auxiliary, LearningRule(learning_rate=0.0), Updates())

    def score(
        self,
        input_ids: Array | Examples,
        *,
        score_mask: Array | None = None,
        logits: Logits = "none",
        **masks: Unpack[Masks],
    ) -> TintOutput:
        """Predict sequences with the updated weights; nothing is learnt.

        Args:
            input_ids: Token ids `[batch, tokens]`, or `Examples`, of which those outside of their training part are
                scored.
            score_mask: 1 for the tokens whose loss is taken: with the tokens of a label, `log_probability` is the
                label's. Without it every token with a predecessor is scored.
            logits: Which logits to return: "all", those that predict scored tokens ("evaluation"), or "none".
            **masks: `attention_mask`, `segment_ids` and `position_ids`, as in a call of `Tint`.
        """
        batch = scoring_batch(self.auxiliary, input_ids, score_mask, **masks)
        result = self._engine.score(batch, self._updates, logits_at=positions_of(logits, batch))
        return TintOutput.of(batch, replace(result, updates=lambda row: self.updates()))  # all rows share it

    def adapt(
        self, input_ids: Array | Examples, *, train_mask: Array | None = None, **masks: Unpack[LearningMasks]
    ) -> Tuned:
        """Learn from more sequences, on top of what has been learnt; this one is left as it is.

        By the same rule: as many steps more, at the same rate, also where it was chosen for the first sequences. Decay
        goes on towards the model as it came.

        Args:
            input_ids: Token ids `[batch, tokens]`, or `Examples`, their losses summed as in `Tint.adapt`.
            train_mask: 1 for the tokens that are trained on; without it all attended tokens are.
            **masks: Those of a call of `Tint`.
        """
        if self.rule.needs_history and self._updates.steps_made is None:
            raise TintError(
                "momentum, schedules and adam go on from what the optimiser remembers, which an update from a file, of "
                "a stream or of some weights alone does not have; go on before it is saved, or adapt to all texts anew"
            )
        batch = training_batch(self.auxiliary, input_ids, train_mask, **masks)
        engine = FastEngine(self.auxiliary, self.rule, statistics=self._statistics)
        return self._having(engine.adapt(batch, self._updates))

    @undisturbed
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
        """With those updates alone whose names fit a pattern; without a pattern, with none.

        Args:
            *patterns: Names of `update_views`, with `*` for anything: `blocks.3.*`, `*.value.weight`.
        """
        return self._with(self._fitting(patterns))

    def without(self, *patterns: str) -> Tuned:
        """With all updates but those whose names fit a pattern.

        Args:
            *patterns: As in `only`.
        """
        return self._with(self.update_views().keys() - self._fitting(patterns))

    def effects(
        self,
        input_ids: Array,
        *,
        by: By = "block",
        score_mask: Array | None = None,
        **masks: Unpack[Masks],
    ) -> UpdateEffects:
        """What each part of the update does to the log-probability of the scored tokens, alone and on top of the rest.

        Every part costs two scores of the sequences.

        Args:
            input_ids: Token ids `[batch, tokens]`.
            by: What a part is: a "block", an "op" or a "parameter".
            score_mask: As in `score`.
            **masks: As in `score`.
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
            checked("pattern", pattern, str, InputError)
            found = {name for name in self.update_views() if fnmatchcase(name, pattern)}
            if not found:
                near = nearest(pattern, self.update_views())
                raise InputError(f"no update fits {pattern!r}; update_views() lists them all{near}")
            fitting |= found
        return fitting

    def _with(self, names: Set[str]) -> Tuned:
        """The same model with some of the updates; tensors are shared."""
        kept = {weight for name, weight in self._weights.items() if name in names}
        return self._having(self._updates.of(kept))

    def _having(self, updates: Updates) -> Tuned:
        """The same model and rule with other updates."""
        return Tuned(self.auxiliary, self.rule, updates, statistics=self._statistics)

    def generate(self, input_ids: Array | str, **options: Any) -> Any:
        """Continue sequences with the updated weights, by Hugging Face's own `generate` and its options.

        Given a text, what is added to it comes back as text: greedily, 40 tokens, unless the options say otherwise.

        Args:
            input_ids: Prompts, `[batch, tokens]`, padded on the left; or one as a text.
            **options: Those of Hugging Face's `generate`: `max_new_tokens`, `do_sample`, `attention_mask`, ...
        """
        if isinstance(input_ids, str):
            return continue_text(self.auxiliary, self.to_hf(share=True), input_ids, **options)
        input_ids = token_ids(input_ids, self.auxiliary)
        given = options.pop("attention_mask", None)
        attended = torch.ones_like(input_ids) if given is None else mask_of("attention_mask", given, input_ids).long()
        options["attention_mask"] = attended
        return self.to_hf(share=True).generate(input_ids, **options)

    @torch.no_grad()
    def to_hf(self, *, share: bool = False) -> Any:
        """A plain Hugging Face model with the updated weights, in evaluation mode.

        Args:
            share: Hold the auxiliary's own tensors wherever nothing has been learnt, which saves their memory; such a
                model must not be trained. By default it is independent of the auxiliary.
        """
        self.auxiliary.require_unchanged()
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

    @undisturbed
    @torch.no_grad()
    def to_peft(
        self,
        directory: str | os.PathLike[str],
        *,
        rank: int | None = None,
        biases: bool = True,
        norms: bool = True,
        input_ids: Array | None = None,
        score_mask: Array | None = None,
        **masks: Unpack[Masks],
    ) -> PeftExport:
        """Write the update as a LoRA adapter of PEFT, for whatever serves such adapters.

        Without a rank it is exact; with one, every layer has the nearest update of that rank, and the result says how
        much is kept.

        Args:
            directory: Where `adapter_config.json` and `adapter_model.safetensors` go, replaced if they are there.
            rank: The largest rank of a layer; None: whatever each needs.
            biases: Write changes of linear layers' biases too, by PEFT's `bias`. Many engines that serve adapters take
                none, and no norms.
            norms: Write changed norms too, by PEFT's `modules_to_save`.
            input_ids: Token ids `[batch, tokens]` to score before and after, for the share of the gain that is kept.
            score_mask: As in `score`.
            **masks: As in `score`.
        """
        self.auxiliary.require_language_model("an adapter of PEFT")
        self.auxiliary.require_unchanged()
        checked("rank", rank, Annotated[int | None, Range(at_least=1)], InputError)
        checked("biases", biases, bool, InputError)
        checked("norms", norms, bool, InputError)
        target = given_path(directory)
        check_directory(target, FILES)
        adapter = Adapter.of(self.auxiliary, self._updates, rank=rank, biases=biases, norms=norms)
        losses: dict[str, float] = {}
        if input_ids is not None:
            models = {"before": self.only(), "after": self, "exported": self._having(adapter.updates)}
            for name, tuned in models.items():
                loss = tuned.score(input_ids, score_mask=score_mask, **masks).loss
                losses[f"loss_{name}"] = float("nan") if loss is None else float(loss)
        return PeftExport(
            directory=target,
            ranks={module: low_rank.rank for module, low_rank in adapter.matrices.items()},
            kept=min(1.0, adapter.kept_squares / adapter.squares),
            left_out=adapter.left_out,
            size=adapter.write(target),
            **losses,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the update as safetensors: factors or full updates, whichever is smaller; see `update_files`.

        Args:
            path: The file, replaced if it is there.
        """
        self.auxiliary.require_unchanged()
        write_update(given_path(path), self.auxiliary, self.rule, self._updates)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: Any, *, statistics: Mapping[str, Tensor] | None = None) -> Tuned:
        """Read an update back onto the model it was learnt on; any other base is refused, and so is a damaged file.

        Args:
            path: What `save` wrote.
            model: What `load` takes.
            statistics: Those of the rule, which `adapt` needs to go on by optimizer="rms".
        """
        path, auxiliary = given_path(path, LoadError), load(model)
        return cls(auxiliary, *read_update(path, auxiliary), statistics=statistics)


def training_batch(
    auxiliary: Auxiliary, input_ids: Array | Examples, train_mask: Array | None, **masks: Unpack[LearningMasks]
) -> Batch:
    """Sequences of which all tokens are trained on, unless `train_mask` says otherwise; Examples always say."""
    if isinstance(input_ids, Examples):
        return learning_batch(auxiliary, input_ids, train_mask, **masks)
    input_ids = as_tensor("input_ids", input_ids)
    train_mask = torch.ones_like(input_ids, dtype=torch.bool) if train_mask is None else train_mask
    return Batch.of(auxiliary, input_ids, train_mask=train_mask, **masks)
