"""Packing: prompts as the sequences, segments and masks that `Tint` and `Tuned.score` take.

"single" treats demonstrations as independent training examples: segments that see themselves and the first BOS alone.
"multi" is one text of all demonstrations and the test input (section "Experiments" of the paper).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from tintformer.errors import InputError
from tintlab.data.prompts import Encoder, Question, Role, Scored, common_start
from tintlab.data.tasks import Example

if TYPE_CHECKING:
    from torch import Tensor

TrainedTokens = Literal["label", "full"]
SHARED = -1
"""The segment id of tokens that all segments see, as in `tintformer.execution.batch`."""


@dataclass(frozen=True, kw_only=True)
class Packed:
    """One sequence: tokens, what each is there for, and the segment it belongs to."""

    ids: tuple[int, ...]
    roles: tuple[Role, ...]
    segments: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def training(self) -> Packed:
        """The demonstrations alone, for `Tint.adapt`: what stands before the test input."""
        end = next((number for number, role in enumerate(self.roles) if role >= Role.TEST), len(self))
        return Packed(ids=self.ids[:end], roles=self.roles[:end], segments=self.segments[:end])

    def alone(self) -> Packed:
        """The test input of "single" and the BOS: all that its answer sees, for `Tuned.score`."""
        kept = [number for number, at in enumerate(self.segments) if at in (SHARED, self.segments[-1])]
        return Packed(
            ids=tuple(self.ids[number] for number in kept),
            roles=tuple(self.roles[number] for number in kept),
            segments=tuple(min(self.segments[number], 0) for number in kept),
        )


@dataclass(frozen=True, kw_only=True)
class Prompted:
    """A test input as it is put to a model, once for each label word."""

    sequences: tuple[Packed, ...]
    """One for each label word, equal up to the answer."""
    answers: tuple[tuple[int, ...], ...]
    """The tokens of each label word, as they are scored."""
    num_demonstrations: int
    """How many are in it; "multi" takes as many as fit."""
    num_cut: int
    """How many texts lost their end because they were too long."""


# The two modes are those of the case study "In-Context Learning" and its figure of few-shot settings.
def single(encoder: Encoder, demonstrations: Sequence[Example], text: str | None) -> Prompted:
    """Demonstrations and test input as segments after one shared BOS; positions restart in each of them.

    Every segment may be as long as the context; None in place of a text asks with the calibration prompt.
    """
    shown = [encoder.demonstration(example) for example in demonstrations]
    question = encoder.question(text)
    segments = [scored for scored, _ in shown]
    return Prompted(
        sequences=tuple(_segmented(encoder, [*segments, scored]) for scored in question.scored),
        answers=question.answers,
        num_demonstrations=len(shown),
        num_cut=sum(cut for _, cut in shown) + question.cut,
    )


def multi(encoder: Encoder, demonstrations: Sequence[Example], text: str | None) -> Prompted:
    """One text of demonstrations and test input, with as many of the first demonstrations as fit.

    The test input is cut only if it does not fit even without any. Without demonstrations this is the zero-shot
    sequence; None in place of a text asks with the calibration prompt.
    """
    question, count = _with_demonstrations(encoder, demonstrations, text)
    first = encoder.first
    sequences = tuple(
        Packed(
            ids=first + scored.ids,
            roles=(Role.FIRST,) * len(first) + scored.roles,
            segments=(0,) * (len(first) + len(scored)),
        )
        for scored in question.scored
    )
    return Prompted(sequences=sequences, answers=question.answers, num_demonstrations=count, num_cut=int(question.cut))


def _with_demonstrations(encoder: Encoder, demonstrations: Sequence[Example], text: str | None) -> tuple[Question, int]:
    """A question after as many demonstrations as fit, and their number."""
    best, count = encoder.question(text), 0
    if best.cut:
        return best, count
    guess = encoder.room_for(demonstrations, best)
    # Where pieces meet, tokens may merge, so the guess is tried, and its neighbours after it.
    while guess > count:
        question = encoder.question_after(demonstrations[:guess], text)
        if question.longest <= encoder.room:
            best, count = question, guess
            break
        guess -= 1
    while count < len(demonstrations):
        question = encoder.question_after(demonstrations[: count + 1], text)
        if question.longest > encoder.room:
            break
        best, count = question, count + 1
    return best, count


def separate(encoder: Encoder, demonstrations: Sequence[Example]) -> tuple[Packed, ...]:
    """One sequence a demonstration: adapting on them together is "single" without a test input."""
    return tuple(_segmented(encoder, [encoder.demonstration(example)[0]]) for example in demonstrations)


def dense(encoder: Encoder, demonstrations: Sequence[Example]) -> tuple[Packed, ...]:
    """The same as `separate` in fewer sequences, none longer than the longest demonstration: hardly any padding.

    Equal for gradients that are linear in their targets. Differences are not: where segments share the BOS, a
    difference of the sum of their gradients is not the sum of their differences.
    """
    parts = sorted((encoder.demonstration(example)[0] for example in demonstrations), key=len, reverse=True)
    rows: list[list[Scored]] = []
    for part in parts:
        fitting = (row for row in rows if sum(map(len, row)) + len(part) <= len(parts[0]))
        row = next(fitting, None)
        if row is None:
            rows.append([part])
        else:
            row.append(part)
    return tuple(_segmented(encoder, row) for row in rows)


def _segmented(encoder: Encoder, parts: Sequence[Scored]) -> Packed:
    first = encoder.first
    return Packed(
        ids=(*first, *(token for part in parts for token in part.ids)),
        roles=(*(Role.FIRST for _ in first), *(role for part in parts for role in part.roles)),
        segments=(*(SHARED for _ in first), *(number for number, part in enumerate(parts) for _ in part.ids)),
    )


def after_shared(sequences: Sequence[Packed]) -> tuple[Packed, ...]:
    """Sequences that begin alike as one: their common beginning once, then the rest of each as a segment that sees it.

    Positions in a segment go on where the common beginning ends, so that each reads as it did alone. The token that
    predicts an answer stays in its segment, because nothing is predicted across the border of one.
    """
    first = sequences[0]
    answer = min(sequence.roles.index(Role.ANSWER) for sequence in sequences)
    common = common_start([sequence.ids for sequence in sequences], answer - 1)
    rests = [(sequence.ids[common:], sequence.roles[common:]) for sequence in sequences]
    return (
        Packed(
            ids=(*first.ids[:common], *(token for ids, _ in rests for token in ids)),
            roles=(*first.roles[:common], *(role for _, roles in rests for role in roles)),
            segments=(*(SHARED for _ in range(common)), *(at for at, (ids, _) in enumerate(rests) for _ in ids)),
        ),
    )


def loss_by_segment(rows: Sequence[Packed], token_loss: Tensor) -> Tensor:
    """What the segments of each row lost, in their order; shared tokens belong to none."""
    import torch

    losses: list[Tensor] = []
    for row, lost in zip(rows, token_loss.double(), strict=True):
        segments = torch.tensor(row.segments, device=lost.device)
        losses += [lost[: len(row)][segments == at].sum() for at in sorted({*row.segments} - {SHARED})]
    return torch.stack(losses)


def to_learn(sequences: Sequence[Packed], *, loss: TrainedTokens, test_text: bool = True) -> dict[str, Any]:
    """The keywords of `Tint(...)` and `Tint.adapt`: everything but the answer is the training part.

    `loss` "label" has the labels of demonstrations as targets, "full" all tokens; then `test_text` says whether the
    test input without its answer is learnt from as well, as the authors do.
    """
    import torch

    if loss not in get_args(TrainedTokens):
        raise InputError(f"loss={loss!r} is unknown; choose one of {', '.join(get_args(TrainedTokens))}")
    # "Label loss" and "full context loss" of the paper differ in their targets alone: every token is still attended to.
    wanted = {Role.LABEL} if loss == "label" else {Role.CONTEXT, Role.LABEL} | ({Role.TEST} if test_text else set())
    if any(wanted.isdisjoint(sequence.roles) for sequence in sequences):
        raise InputError(f"loss={loss!r} has nothing to learn from without demonstrations; give some")
    roles, attended = _padded([each.roles for each in sequences], Role.FIRST), _attended(sequences)
    return dict(
        input_ids=_padded([each.ids for each in sequences], 0),
        attention_mask=attended,
        segment_ids=_padded([each.segments for each in sequences], 0),
        train_mask=(roles != Role.ANSWER) & attended,
        loss_mask=torch.isin(roles, torch.tensor(sorted(wanted))) & attended,
    )


def to_score(sequences: Sequence[Packed]) -> dict[str, Any]:
    """The keywords of `Tuned.score`: the answers are scored."""
    return dict(
        input_ids=_padded([each.ids for each in sequences], 0),
        attention_mask=_attended(sequences),
        segment_ids=_padded([each.segments for each in sequences], 0),
        score_mask=_padded([each.roles for each in sequences], Role.FIRST) == Role.ANSWER,
    )


def _attended(sequences: Sequence[Packed]) -> Tensor:
    return _padded([(1,) * len(each) for each in sequences], 0).bool()


def _padded(rows: Sequence[tuple[int, ...]], filling: int) -> Tensor:
    """Rows as one tensor, the shorter ones filled up on the right."""
    import torch

    if not rows:
        raise InputError("there are no sequences; give at least one")
    longest = max(map(len, rows))
    return torch.tensor([[*row, *(filling for _ in range(longest - len(row)))] for row in rows])
