"""Tint: a model that learns inside its own forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Unpack

from tintformer.engines.fast import FastEngine
from tintformer.errors import InputError, RuleError, TintError
from tintformer.execution.batch import LearningMasks
from tintformer.execution.engine import Adapts, Engine
from tintformer.execution.examples import Examples, learning_batch
from tintformer.execution.hooks import Hooks, Watchable
from tintformer.execution.inputs import Array
from tintformer.execution.output import Logits, TintOutput, positions_of, warn_of_ruin
from tintformer.learning.engine_registry import make_engine
from tintformer.learning.gradient_statistics import settle_statistics
from tintformer.learning.rate_selection import choose_for, with_rates
from tintformer.learning.streams import Carry, Piece, StreamSettings, StreamState, read_stream
from tintformer.learning.tuned import Tuned, training_batch
from tintformer.rule.learning_rule import LearningRule, require_rule
from tintformer.storage.loading import load
from tintformer.typed_fields import checked


class Tint(Watchable):
    """An auxiliary model, a learning rule and an engine that runs them in one pass.

    Args:
        model: What `load` takes: a name, a directory, a transformers model, or an `Auxiliary`.
        rule: How it learns.
        engine: `fast` is what people run. `simulator` is the paper's construction and `network` the same compiled to
            one list of layers; `reference` has every formula written out, `oracle` is the model under autograd.
        **options: Those of the engine. `fast`: `dual`, which leaves every update as factors (True) or forms every
            updated matrix (False; by default whichever costs less), and for a rule with `optimizer="rms"` the
            `statistics` to divide by: a path, what `collect_statistics` returns, or tensors by name (`reference` and
            `oracle` take them too). `simulator`: the fields of `Construction`. `network`: `max_tokens`, `stack`,
            `dense` and `loop`, as in `compile`.
    """

    def __init__(self, model: Any, rule: LearningRule, *, engine: str = "fast", **options: Any):
        self.auxiliary = load(model)
        self.rule, self.engine_name, self._options = rule, engine, options
        self.rate_is_chosen = require_rule(rule).is_auto  # or set by who has chosen the rule's number
        # Too many layers are refused here, before an engine is built, which takes the simulator a while.
        rule.num_trained(len(self.auxiliary.blocks))
        if rule.is_auto and self.auxiliary.takes_examples:
            raise RuleError(f"learning_rate='auto' is chosen for a text; give a number for {self.auxiliary.name}")
        if "statistics" in options:
            options["statistics"] = settle_statistics(options["statistics"], self.auxiliary, rule)
        self.engine: Engine = make_engine(engine, self.auxiliary, rule, **options)

    def __repr__(self) -> str:
        return f"<Tint {self.auxiliary.name}, engine {self.engine_name}, {self.rule}>"

    def __call__(
        self,
        input_ids: Array | Examples,
        *,
        train_mask: Array | None = None,
        before: bool = False,
        logits: Logits = "all",
        **masks: Unpack[LearningMasks],
    ) -> TintOutput:
        """Train on the part under `train_mask`, each sequence on its own, and predict the rest.

        With `learning_rate="auto"` the rate of each sequence is chosen by its own training part, and `learning_rates`
        of the output has it.

        Args:
            input_ids: Token ids `[batch, tokens]`: a tensor, an array of numpy, or nested lists; `Examples` where the
                model is a `regression` or an `mlp`.
            train_mask: 1 for the tokens that are trained on, 0 for those that are evaluated. It restricts the loss, not
                attention. Examples have their own.
            before: Add what the model predicted before learning, in `loss_before`, `token_loss_before` and
                `logits_before`.
            logits: Which logits to return: "all", those that predict "evaluation" tokens, or "none".
            **masks: `attention_mask`, `segment_ids`, `position_ids` and `loss_mask`, all `[batch, tokens]` and
                optional; `LearningMasks` says what each means.
        """
        batch = learning_batch(self.auxiliary, input_ids, train_mask, **masks)
        checked("before", before, bool, InputError)
        logits_at = positions_of(logits, batch)
        if self.rule.is_auto:
            batch = with_rates(self.auxiliary, self.rule, batch)
        out = TintOutput.of(batch, self.engine.run(batch, logits_at=logits_at, before=before))
        warn_of_ruin(out, auto=self.rate_is_chosen)
        return out

    @property
    def hooks(self) -> Hooks:
        """The hooks of its passes; the oracle has none."""
        if self.engine.hooks is None:
            raise TintError("the oracle has no hook points: autograd runs it, not the walk; choose another engine")
        return self.engine.hooks

    def stream(
        self,
        input_ids: Array,
        *,
        chunk: int = 128,
        window: int | None = None,
        carry: Carry = "cache",
        document_ids: Array | None = None,
        attention_mask: Array | None = None,
        loss_mask: Array | None = None,
        state: StreamState | None = None,
        logits: bool = False,
    ) -> Iterator[Piece]:
        """Learn while reading: every chunk of a document is scored, then learnt from, by one forward pass.

        Args:
            input_ids: Token ids `[batch, tokens]`. Each row is a document, or several one after the other.
            chunk: Tokens that are scored together, before any of them is learnt from.
            window: Tokens of a chunk and its past together; None: the model's context, and at most 1,024.
            carry: What a chunk sees of its past. "none": the one token that predicts its first. "recompute": up to
                window - chunk tokens, read again with today's weights. "cache": their keys and values as they were
                read.
            document_ids: The document of each token, rising along a row. Every document begins with the weights as
                they came.
            attention_mask: 0 at padding.
            loss_mask: Restricts what is learnt from, not what is scored.
            state: That of a piece to go on from.
            logits: Have every piece keep the logits that its tokens were scored by, `[batch, tokens, vocabulary]`.
        """
        if not isinstance(self.engine, FastEngine):
            raise TintError("stream() needs engine='fast': the other engines learn in one pass and keep nothing")
        if self.rule.is_auto:
            raise InputError(
                "learning_rate='auto' would be chosen on the text that is then scored; give a number, chosen on other "
                "text by tintformer.choose_rate or `tint eval stream`"
            )
        return read_stream(
            self.engine,
            input_ids,
            StreamSettings(chunk=chunk, window=window, carry=carry),
            document_ids=document_ids,
            attention_mask=attention_mask,
            loss_mask=loss_mask,
            state=state,
            logits=logits,
        )

    def adapt(
        self, input_ids: Array | Examples, *, train_mask: Array | None = None, **masks: Unpack[LearningMasks]
    ) -> Tuned:
        """One update from one or more training sequences, their losses summed, to be used many times.

        Args:
            input_ids: Token ids `[batch, tokens]`, or `Examples`.
            train_mask: 1 for the tokens that are trained on; without it all attended tokens are.
            **masks: Those of a call.
        """
        if not isinstance(self.engine, Adapts):
            raise TintError("adapt() needs engine='fast': the other engines keep no update for later")
        batch = training_batch(self.auxiliary, input_ids, train_mask, **masks)
        if not self.rule.is_auto:
            statistics = self._options.get("statistics")
            return Tuned(self.auxiliary, self.rule, self.engine.adapt(batch), statistics=statistics)
        # One update has one rate, which is a number from here on.
        choice = choose_for(self.auxiliary, self.rule, batch, together=True)
        return Tint(self.auxiliary, replace(self.rule, learning_rate=choice.rate), **self._options).adapt(
            input_ids, train_mask=train_mask, **masks
        )
