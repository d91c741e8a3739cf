"""Traces: what a pass leaves at the query, the token that predicts the answer, block by block.

Three passes over a test input: with the demonstrations before it (read), without them (plain), and without them by a
model that has learnt from them (learnt). In the last two every token keeps the position that it has in the first.
"""

# N inputs, T tokens, S tokens of the longest test input, H heads, D width

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tintformer.auxiliary.description import compute_dtype, forks
from tintformer.auxiliary.ops import Attend, Fork, Move, Rotary, Step
from tintformer.rule import attention
from tintlab.data.packing import Packed, Prompted, after_shared, to_score
from tintlab.data.prompts import Role
from tintlab.kinds.compare_measures import SIMILARITIES, SIZES
from tintlab.kinds.implicit_update import ImplicitUpdate, feed_forwards, kept_positions

if TYPE_CHECKING:
    from tintformer.auxiliary.description import Auxiliary
    from tintformer.execution.hooks import HookPoint
    from tintformer.learning.tuned import Tuned
    from tintformer.learning.update_view import UpdateView

ROUNDING = 100.0
"""Changes below so many times the last digit count as none. Too few, and the direction of rounding is compared."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Places:
    """Where the test inputs of a batch are: rows and columns of their tokens, in the order of the inputs."""

    rows: Int[Tensor, " N"]
    columns: Int[Tensor, "N S"]
    """Of the tokens of each test input up to its query; what is behind a shorter one is its query again."""
    lengths: Int[Tensor, " N"]
    positions: Int[Tensor, "N S"]
    """In the text with the demonstrations."""

    @classmethod
    def of(cls, found: Sequence[tuple[int, list[int], list[int]]]) -> Places:
        """From the row, the columns and the positions of each input."""
        longest = max(len(columns) for _, columns, _ in found)

        def filled(numbers: list[int]) -> list[int]:
            return numbers + numbers[-1:] * (longest - len(numbers))

        return cls(
            rows=torch.tensor([row for row, _, _ in found]),
            columns=torch.tensor([filled(columns) for _, columns, _ in found]),
            lengths=torch.tensor([len(columns) for _, columns, _ in found]),
            positions=torch.tensor([filled(positions) for _, _, positions in found]),
        )

    @property
    def real(self) -> Bool[Tensor, "N S"]:
        """Which of the columns are tokens of their own."""
        return torch.arange(self.columns.shape[1]) < self.lengths[:, None]

    def at_query(self, value: Float[Tensor, "B T D"]) -> Float[Tensor, "N D"]:
        return self.at_tokens(value)[torch.arange(len(self.rows)), self.lengths - 1]

    def at_tokens(self, value: Float[Tensor, "B T D"]) -> Float[Tensor, "N S D"]:
        return value[self.rows[:, None], self.columns]


@dataclass(frozen=True, eq=False, kw_only=True)
class Trace:
    """What one pass left at the queries of N inputs; every list has one entry a block."""

    attention_output: list[Float[Tensor, "N D"]] = field(default_factory=list[Tensor])
    """What the attention adds to the stream."""
    attention_scores: list[Float[Tensor, "N H S"]] = field(default_factory=list[Tensor])
    """Before the softmax, of the query for the tokens of its own test input; 0 where a shorter input has none."""
    attention_map: list[Float[Tensor, "N H S"]] = field(default_factory=list[Tensor])
    """The softmax over these tokens alone."""
    block_output: list[Float[Tensor, "N D"]] = field(default_factory=list[Tensor])
    """The stream behind the block."""
    feed_forward_input: list[Float[Tensor, "N D"]] = field(default_factory=list[Tensor])
    """What the first matrices of the feed-forward layer read."""


def trace_reading(model: Tuned, asked: Sequence[Prompted]) -> Trace:
    """The trace of test inputs that stand behind the same demonstrations, which are read once for all of them."""
    sequences = [each.sequences[0] for each in asked]
    (row,) = after_shared(sequences)
    shared = row.segments.count(-1)
    found: list[tuple[int, list[int], list[int]]] = []
    start = shared
    for sequence in sequences:
        own = _test_tokens(sequence)
        # The beginning of a test input may be shared too; behind it the segment goes on where that ended.
        found.append((0, [at if at < shared else start + at - shared for at in own], own))
        start += len(sequence) - shared
    return _trace(model, [row], Places.of(found), None)


def trace_alone(model: Tuned, asked: Sequence[Prompted]) -> Trace:
    """The trace of the same test inputs without the demonstrations, all tokens where they were."""
    rows: list[Packed] = []
    positions: list[list[int]] = []
    found: list[tuple[int, list[int], list[int]]] = []
    for number, sequence in enumerate(each.sequences[0] for each in asked):
        kept = [at for at, role in enumerate(sequence.roles) if role not in (Role.CONTEXT, Role.LABEL)]
        rows.append(
            Packed(
                ids=tuple(sequence.ids[at] for at in kept),
                roles=tuple(sequence.roles[at] for at in kept),
                segments=(0,) * len(kept),
            )
        )
        positions.append(kept)
        own = _test_tokens(sequence)
        found.append((number, [kept.index(at) for at in own], own))
    longest = max(map(len, positions))
    padded = torch.tensor([each + [0] * (longest - len(each)) for each in positions])
    return _trace(model, rows, Places.of(found), kept_positions(model.auxiliary, padded))


def _test_tokens(sequence: Packed) -> list[int]:
    return [at for at, role in enumerate(sequence.roles) if role == Role.TEST]


def _trace(model: Tuned, rows: Sequence[Packed], places: Places, position_ids: Tensor | None) -> Trace:
    auxiliary, trace = model.auxiliary, Trace()
    queries, keys = list[Tensor](), list[Tensor]()
    wanted: dict[str, tuple[list[Tensor], Callable[[Tensor], Tensor]]] = {}
    for number, layer in enumerate(feed_forwards(auxiliary)):
        (attend,) = (fork.join for fork in forks(auxiliary.blocks[number]) if isinstance(fork.join, Attend))
        wanted |= {
            f"{attend.name}.input.query": (queries, places.at_tokens),
            f"{attend.name}.input.key": (keys, places.at_tokens),
            f"blocks.{number}.output.output": (trace.attention_output, places.at_query),
            layer.input_point: (trace.feed_forward_input, places.at_query),
            f"{_last(auxiliary.blocks[number])}.output": (trace.block_output, places.at_query),
        }

    def look(value: Tensor, point: HookPoint) -> None:
        # No more is kept than what is asked for: the streams of all blocks would be much.
        if point.name in wanted:
            kept, select = wanted[point.name]
            kept.append(select(value).to(compute_dtype(value.dtype)))

    with model.hook("blocks.*", look):
        model.score(**to_score(rows), position_ids=position_ids)
    for attend, query, key in zip(auxiliary.attentions(), queries, keys, strict=True):
        scores_NHS, visible_N1S = _scores(attend, query, key, places)
        trace.attention_scores.append(scores_NHS.masked_fill(~visible_N1S, 0.0))
        trace.attention_map.append(scores_NHS.masked_fill(~visible_N1S, -torch.inf).softmax(-1))
    return trace


def _last(block: Sequence[Step]) -> str:
    """The name of what makes the output of a block."""
    step = block[-1]
    assert not isinstance(step, Move), "a move stands at the beginning of a block"
    return step.join.name if isinstance(step, Fork) else step.name


def _scores(
    op: Attend, query: Float[Tensor, "N S D"], key: Float[Tensor, "N S E"], places: Places
) -> tuple[Float[Tensor, "N H S"], Bool[Tensor, "N one S"]]:
    """The scores of each query for the tokens of its test input, and which of these it sees."""
    here, everything = places.positions.to(query.device), torch.arange(len(query), device=query.device)
    last = (places.lengths - 1).to(query.device)
    visible = places.real.to(query.device)
    if op.window is not None:
        visible = visible & (here[everything, last, None] - here < op.window)
    rotation = attention.rotation(op.position, here, query.dtype) if isinstance(op.position, Rotary) else None
    nothing_hidden = query.new_zeros(1, 1, 1, 1, query.shape[1])
    context = attention.AttentionContext(mask=nothing_hidden, positions=here, rotation=rotation)
    heads = attention.split((query, key, key), op, context)
    asking_NKG1d = heads.query[everything, :, :, last][..., None, :]
    return attention.scores(heads._replace(query=asking_NKG1d), op, context).flatten(1, 3), visible[:, None]


def similarities(
    auxiliary: Auxiliary, plain: Trace, read: Trace, learnt: Trace, updates: Mapping[str, UpdateView]
) -> dict[str, Float[Tensor, "L N"]]:
    """How alike the changes by reading and by learning are, for every block and input; NaN where there is none.

    `updates` is what has been learnt, by the names of `Tuned.update_views`.
    """
    found: dict[str, list[Tensor]] = {name: [] for name in (*SIMILARITIES, *SIZES)}
    for number, layer in enumerate(feed_forwards(auxiliary)):
        for name in ("attention_output", "attention_map", "block_output"):
            base, *others = (getattr(trace, name)[number].flatten(1) for trace in (plain, read, learnt))
            by_reading, by_learning = (_beyond_rounding(other - base, base) for other in others)
            found[name].append(torch.cosine_similarity(by_reading, by_learning, dim=-1))
            if name == "block_output":
                for size, change in zip(SIZES, (by_reading, by_learning), strict=True):
                    found[size].append((change.norm(dim=-1) / base.norm(dim=-1)).nan_to_num(0.0))
        scores = [trace.attention_scores[number].flatten(1) for trace in (read, learnt)]
        found["attention_scores"].append(torch.cosine_similarity(scores[0], scores[1], dim=-1))
        before, after = plain.feed_forward_input[number], read.feed_forward_input[number]
        implicit = ImplicitUpdate.of(layer, before, before + _beyond_rounding(after - before, before))
        moved = {name: updates[name].delta.to(before) for name in implicit.left if name in updates}
        nothing = torch.full_like(before[:, 0], torch.nan)
        found["implicit_update"].append(implicit.cosines(moved) if moved else nothing)
        found["implicit_effect"].append(implicit.effect_cosines(moved) if moved else nothing)
    return {name: torch.stack([value.cpu() for value in values]) for name, values in found.items()}


def _beyond_rounding(change: Float[Tensor, "N D"], base: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
    """A change, or NaN where it is no more than rounding: its direction would be noise."""
    least = ROUNDING * torch.finfo(change.dtype).eps * base.norm(dim=-1, keepdim=True)
    return change.masked_fill(change.norm(dim=-1, keepdim=True) <= least, torch.nan)
