"""What `learn` returns: losses before and after, token by token, the update, and ways to look at them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from markupsafe import Markup
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.text import NEW_TOKENS, Encoded
from tintformer.console import printable
from tintformer.learning.rate_selection import RateChoice
from tintformer.learning.tuned import Tuned
from tintformer.rule.learning_rule import LearningRule
from tintformer.study.coloured import coloured_html, cut, shown
from tintformer.study.frames import as_frame

SHOWN = 200
"""Characters of a prompt beside its continuations."""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What the model adds to a prompt, before learning and after."""

    prompt: str
    """The text that was continued."""
    before: str
    """What the model added before learning."""
    after: str
    """What it adds now."""

    def __repr__(self) -> str:
        return printable(f"prompt: {self.prompt}\nbefore: {self.before}\nafter:  {self.after}")

    def _repr_html_(self) -> str:
        return side_by_side(self)


@dataclass(frozen=True, eq=False, kw_only=True)
class LearnResult:
    """What became of one text."""

    auxiliary: Auxiliary
    """The model as it was, and still is."""
    text: str
    """What was read, as it was given."""
    encoded: Encoded
    """Its tokens."""
    rule: LearningRule
    """With the rate that was used."""
    choice: RateChoice | None
    """What the rate was chosen from; None if it was given."""
    engine: str
    """Which engine ran."""
    statistics: Any = field(default=None, repr=False)
    """What `optimizer="rms"` divided by, as it was given."""
    construction: dict[str, Any] | None = None
    """How the simulator was built, if it ran."""
    train_tokens: int
    """How many tokens trained; 0 where an earlier update was used."""
    positions: Tensor = field(repr=False)
    """Where the evaluated tokens stand, `[evaluated]`; their losses below."""
    token_loss_before: Tensor = field(repr=False)
    """In nats, `[evaluated]`."""
    token_loss: Tensor = field(repr=False)
    """The same with the updated weights."""
    form_updates: Callable[[], dict[str, Tensor]] = field(repr=False)
    """Behind `updates`."""
    make_tuned: Callable[[], Tuned] = field(repr=False)
    """Behind `tuned`."""
    continuation: Generation | None = None
    """Of the whole text, if it was asked for."""
    seed: int = 0
    """Of sampling, in `generate`."""

    @property
    def evaluation_tokens(self) -> int:
        """How many tokens were scored."""
        return len(self.positions)

    @property
    def loss_before(self) -> float:
        """Mean over the evaluated tokens, in nats."""
        return float(self.token_loss_before.mean())

    @property
    def loss(self) -> float:
        """The same with the updated weights."""
        return float(self.token_loss.mean())

    @property
    def perplexity_before(self) -> float:
        """Of the evaluated tokens, by the model as it is."""
        return _perplexity(self.loss_before)

    @property
    def perplexity(self) -> float:
        """The same with the updated weights."""
        return _perplexity(self.loss)

    @property
    def learning_rate(self) -> float:
        """The rate that was used."""
        return self.rule.rate

    def token_table(self) -> Any:
        """Every evaluated token, in the order of the text: its loss and probability before and after.

        A pandas DataFrame where pandas is installed, otherwise a list of dicts. `change` is negative where learning
        has made the token likelier.
        """
        losses = zip(self.positions.tolist(), self.token_loss_before.tolist(), self.token_loss.tolist(), strict=True)
        rows: list[dict[str, Any]] = [
            {
                "position": position,
                "token": self.encoded.tokens[position],
                "loss_before": before,
                "loss": after,
                "change": after - before,
                "probability_before": math.exp(-before),
                "probability": math.exp(-after),
            }
            for position, before, after in losses
        ]
        return as_frame(rows)

    def updates(self) -> dict[str, Tensor]:
        """The update of every trainable parameter: Hugging Face's names, shapes and orientation."""
        return self.form_updates()

    @cached_property
    def tuned(self) -> Tuned:
        """The model with the update on top: `score`, `generate`, `save`, `to_hf`."""
        return self.make_tuned()

    def generate(self, prompt: str, *, max_new_tokens: int = NEW_TOKENS, **options: Any) -> Generation:
        """Continue a text with the model as it was and as it is now; greedily, unless `options` say otherwise.

        Both start from the same seed.

        Args:
            prompt: The text to continue.
            max_new_tokens: By how many tokens.
            **options: Those of Hugging Face's `generate` (`do_sample=True`, `temperature=0.8`, ...), and `seed`.
        """
        options = {"max_new_tokens": max_new_tokens, "seed": self.seed, **options}
        return Generation(
            prompt=prompt,
            before=self.auxiliary.generate(prompt, **options),
            after=self.tuned.generate(prompt, **options),
        )

    def continued(self, num_tokens: int) -> LearnResult:
        """With the text continued; as it is if there are no tokens to continue it by.

        Args:
            num_tokens: By how many tokens.
        """
        if not num_tokens:
            return self
        return replace(self, continuation=self.generate(self.text, max_new_tokens=num_tokens))

    def __repr__(self) -> str:
        how = f"after learning from {self.train_tokens}" if self.train_tokens else "with an update learnt earlier"
        return printable(
            f"<{self.auxiliary.name}: perplexity {self.perplexity_before:.4g} -> {self.perplexity:.4g} on "
            f"{self.evaluation_tokens} tokens {how}, learning rate {self.learning_rate:.3g}>"
        )

    def _repr_html_(self) -> str:
        gains: list[float | None] = [None] * len(self.encoded.tokens)
        for position, gain in zip(
            self.positions.tolist(), (self.token_loss_before - self.token_loss).tolist(), strict=True
        ):
            gains[position] = gain
        pieces = [piece.gap + shown(piece) for piece in cut(self.text, self.encoded.tokens)]
        title = Markup("<b>{}</b>").format(repr(self)[1:-1])
        after = side_by_side(self.continuation) if self.continuation else ""
        return f"{title}{coloured_html(pieces, gains)}{after}"


def _perplexity(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


def side_by_side(generation: Generation) -> str:
    """Two continuations as HTML; the end of the prompt is enough to know it by."""
    cell = "vertical-align:top;text-align:left;white-space:pre-wrap;width:50%"
    row = Markup('<tr><{0} style="{1}" dir="auto">{2}</{0}><{0} style="{1}" dir="auto">{3}</{0}></tr>')
    rows = row.format("th", cell, "before", "after") + row.format("td", cell, generation.before, generation.after)
    prompt = generation.prompt
    shown = prompt if len(prompt) <= SHOWN else f"\N{HORIZONTAL ELLIPSIS}{prompt[-SHOWN:]}"
    return str(Markup('<div><small>{}</small><table style="width:100%">{}</table></div>').format(shown, rows))
