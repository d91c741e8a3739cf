"""A unit of a probe: learn from one context, then score unrelated prompts, each alone and behind the context."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from tintformer.errors import DivergenceError, InputError
from tintlab.data.models import OpenModel, open_model
from tintlab.data.packing import SHARED, Packed, loss_by_segment, to_score
from tintlab.data.prompts import Role, tokenise
from tintlab.kinds.probe_inputs import Context, Prompt
from tintlab.methods.methods import Adaptation, learn_once
from tintlab.study.store import UnitResult, canonical, sha256

if TYPE_CHECKING:
    from tintformer.learning.tuned import Tuned

PACKED = 512
"""Tokens of prompts that share one reading of the context. Attention over a sequence grows with the square of its
length; fewer, and the context is read more often."""
SEPARATOR = "\n"
"""Between a context and the prompt that is read behind it."""
Scores = list[list[float]]
"""In nats, for each prompt: the mean loss of a text's tokens, or the loss of each label, summed over its tokens."""


@dataclass(frozen=True, kw_only=True)
class ContextTokens:
    """A context without the token that begins a sequence."""

    ids: tuple[int, ...]
    targets: tuple[bool, ...]
    """Which of them are learnt from."""

    @property
    def num_targets(self) -> int:
        return sum(self.targets)


@dataclass(frozen=True, kw_only=True)
class PromptTokens:
    """A prompt as the sequences that score it: itself, or itself with each label."""

    sequences: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]
    """The first token of each sequence that is scored."""
    is_question: bool

    @property
    def longest(self) -> int:
        return max(map(len, self.sequences))


def context_tokens(tokenizer: Any, contexts: Sequence[Context], length: int | None = None) -> list[ContextTokens]:
    """The first tokens of contexts, each on its own."""
    found: list[ContextTokens] = []
    for context, text in zip(contexts, tokenise(tokenizer, [each.text for each in contexts]), strict=True):
        learnt = {*(text.touching(context.targets) if context.targets else range(len(text.ids)))}
        found.append(
            ContextTokens(ids=text.ids[:length], targets=tuple(at in learnt for at in range(len(text.ids)))[:length])
        )
    return found


def prompt_tokens(tokenizer: Any, prompts: Sequence[Prompt]) -> tuple[PromptTokens, ...]:
    """Prompts as tokens; a label stands behind a space."""
    found: list[PromptTokens] = []
    for prompt in prompts:
        texts = [f"{prompt.text} {label}" for label in prompt.labels] or [prompt.text]
        tokens = tokenise(tokenizer, texts)
        # By characters, and not by the tokens of the prompt alone: where pieces meet, tokens may merge.
        starts = [
            min(each.touching([(len(prompt.text), len(text))])) if prompt.labels else 1
            for text, each in zip(texts, tokens, strict=True)
        ]
        if any(start < 1 or start >= len(each.ids) for start, each in zip(starts, tokens, strict=True)):
            raise InputError(f"the probe {prompt.text[:60]!r} is shorter than two tokens; give a longer one")
        found.append(
            PromptTokens(
                sequences=tuple(each.ids for each in tokens), starts=tuple(starts), is_question=bool(prompt.labels)
            )
        )
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class ProbeUnit:
    """One context, by one rule or as it is merely read; without a context, the model as it is."""

    rule: Adaptation | None = None
    context: ContextTokens | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class ContextProbe:
    """One model and the prompts that it is probed with."""

    kind: ClassVar[str] = "probe"
    version: ClassVar[int] = 1
    """Raised by hand when a number of these units changes."""

    prompts: tuple[PromptTokens, ...]
    first: tuple[int, ...]
    """The token that begins a sequence, if the model has one."""
    separator: tuple[int, ...]
    """What stands between a context and a prompt that is read behind it."""
    model: str
    """The name by which other processes load it."""
    dtype: str
    threads: int = 1
    """Of each process. Recorded, because the last digits of a sum depend on it."""
    opened: OpenModel | None = field(default=None, repr=False)
    """A model that is loaded already; it is not sent to other processes."""

    def __reduce__(self) -> Any:
        return _remade, (replace(self, opened=None).__dict__,)

    @property
    def device_type(self) -> str:
        """Recorded, because kinds of devices add up in orders of their own."""
        return self._opened().auxiliary.device.type

    def identity(self, unit: ProbeUnit) -> dict[str, Any]:
        return {
            "model": self._opened().identity,
            "rule": unit.rule and asdict(unit.rule),
            "context": unit.context and sha256(canonical(asdict(unit.context))),
            "prompts": sha256(canonical([asdict(prompt) for prompt in self.prompts])),
            "around": [self.first, self.separator],
        }

    def run(self, unit: ProbeUnit) -> UnitResult:
        """Scores of all prompts, alone and behind the context, and the loss of the context's own targets.

        A rule that diverges has null for all of them, which is a result too.
        """
        import torch

        torch.set_num_threads(self.threads)
        nothing: UnitResult = {"context": None, "alone": None, "behind": None}
        try:
            return self._found(unit, nothing)
        except DivergenceError:
            return nothing

    def _found(self, unit: ProbeUnit, nothing: UnitResult) -> UnitResult:
        if unit.context is None:
            return nothing | {"alone": self._scores(self._learnt(unit), ())}
        tuned = self._learnt(unit)
        found: UnitResult = {
            "context": self._context_loss(tuned, unit.context),
            # Without a rule it would be the model as it is, once more.
            "alone": None if unit.rule is None else self._scores(tuned, ()),
            "behind": self._scores(tuned, (*unit.context.ids, *self.separator)),
        }
        losses = [loss for scores in (found["alone"], found["behind"]) for row in scores or () for loss in row]
        return found if all(map(math.isfinite, [found["context"], *losses])) else nothing

    def _learnt(self, unit: ProbeUnit) -> Tuned:
        """What an update inside the pass leaves: each context learns on its own, and nothing else is in its pass."""
        import torch

        auxiliary = self._opened().auxiliary
        if unit.context is None or unit.rule is None:
            return learn_once(auxiliary, None)
        ids = torch.tensor([(*self.first, *unit.context.ids)])
        loss = torch.tensor([(*(False for _ in self.first), *unit.context.targets)])
        return learn_once(auxiliary, unit.rule, input_ids=ids, train_mask=torch.ones_like(loss), loss_mask=loss)

    def _context_loss(self, tuned: Tuned, context: ContextTokens) -> float:
        import torch

        scored = torch.tensor([(*(False for _ in self.first), *context.targets)])
        loss = tuned.score(torch.tensor([(*self.first, *context.ids)]), score_mask=scored).loss
        assert loss is not None, "a context without a target"
        return float(loss)

    def _scores(self, tuned: Tuned, before: tuple[int, ...]) -> Scores:
        """What the prompts lose, each by itself behind these tokens."""
        # A prompt's first token is not predicted across the border of its segment, whatever stands before it: the same
        # tokens are scored alone and behind a context.
        losses: list[float] = []
        for row in _packed((*self.first, *before), self.prompts):
            losses += loss_by_segment([row], tuned.score(**to_score([row])).token_loss).tolist()
        scores, rest = list[list[float]](), iter(losses)
        for prompt in self.prompts:
            own = [next(rest) for _ in prompt.sequences]
            scores.append(own if prompt.is_question else [own[0] / (len(prompt.sequences[0]) - 1)])
        return scores

    def _opened(self) -> OpenModel:
        return self.opened or open_model(self.model, self.dtype)


def _packed(before: tuple[int, ...], prompts: Sequence[PromptTokens]) -> Iterator[Packed]:
    """Sequences of prompts as segments behind one beginning that all of them see; positions go on from its end."""
    waiting: list[tuple[tuple[int, ...], int]] = []
    for ids, start in (pair for each in prompts for pair in zip(each.sequences, each.starts, strict=True)):
        if waiting and sum(len(each) for each, _ in waiting) + len(ids) > PACKED:
            yield _row(before, waiting)
            waiting = []
        waiting.append((ids, start))
    yield _row(before, waiting)


def _row(before: tuple[int, ...], sequences: Sequence[tuple[tuple[int, ...], int]]) -> Packed:
    return Packed(
        ids=(*before, *(token for ids, _ in sequences for token in ids)),
        roles=(
            *(Role.FIRST for _ in before),
            *(Role.TEST if at < start else Role.ANSWER for ids, start in sequences for at in range(len(ids))),
        ),
        segments=(*(SHARED for _ in before), *(at for at, (ids, _) in enumerate(sequences) for _ in ids)),
    )


def _remade(fields: dict[str, Any]) -> ContextProbe:
    return ContextProbe(**fields)
