"""Figures of self-attention, drawn from one pass of a small simulator that stores its scores, as the paper does.

What its attentions are called with and return is recorded while they run; the darker a cell, the larger its number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from drawings.grids import Grid, grid_figure
from drawings.parts import BLUE, ORANGE
from tintformer.rule.learning_rule import LearningRule
from tintformer.simulator import prefix
from tintformer.simulator.modules.self_attention import AttentionBackward, AttentionForward, StoreThenRead
from tintformer.simulator.primitives.attention import Attention
from tintformer.simulator.simulator import Simulator, build

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_TOKENS, DIM, NUM_HEADS, STACK = 6, 8, 2, 2
GOLDEN = (1 + 5**0.5) / 2
INK = "#333333"
MATRICES = ("value", "query", "key", "output")


def figures() -> dict[str, Callable[[], Figure]]:
    """By name."""
    return {
        "attention-forward": lambda: grid_figure([forward_grids()]),
        "attention-backward": lambda: grid_figure([store_grids(), read_grids()]),
        "attention-descent": lambda: grid_figure([[*descent_inputs(), *descent_grids()[:1]], descent_grids()[1:]]),
    }


@dataclass(frozen=True, eq=False, kw_only=True)
class Pass:
    """What was seen of one pass: the first call of each attention."""

    simulator: Simulator
    forward: Call
    store: Call
    read: Call
    descents: dict[str, Any]
    """By op, what its descent was called with, and the prefix that it returned."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Call:
    """What an attention was called with, and what its heads gathered."""

    attention: Attention
    asking: Any
    answering: Any
    mask: Tensor | None
    result: Tensor

    def query(self) -> Tensor:
        return _by_token(self.attention.query(self.asking))

    def key(self) -> Tensor:
        return _by_token(self.attention.key(self.answering))

    def value(self) -> Tensor:
        return _by_token(self.attention.value(self.answering))

    def weights(self) -> Tensor:
        """The attention weights of all heads side by side: `[T, H T]`."""
        scores = torch.einsum(
            "bnhmqd,bnhmpd->bnhmqp", self.attention.query(self.asking), self.attention.key(self.answering)
        )
        ((weights, _),) = self.attention.weigh(scores, self.mask)
        return _by_token(weights)


def _by_token(heads: Tensor) -> Tensor:
    """Heads side by side, a line a token; `[1, K, G, 1, T, d]` has them in K and G."""
    return heads[0, :, :, 0].flatten(0, 1).transpose(0, 1).flatten(1)


@cache
def example_pass() -> Pass:
    """One block, two heads, six tokens, all of which train."""
    simulator = example_simulator()
    calls: dict[nn.Module, list[Any]] = {}

    def record(module: nn.Module, inputs: Any, result: Any) -> None:
        calls.setdefault(module, []).append((inputs, result))

    modules = simulator.modules_of(simulator.wired["blocks.0.attention"].op)
    ahead, back = modules.forward_module, modules.backward_module
    assert isinstance(ahead, AttentionForward) and isinstance(back, AttentionBackward)
    assert isinstance(back.value_gradient, StoreThenRead)
    attentions = (ahead.attention, back.value_gradient.store, back.value_gradient.read)
    linears = (simulator.modules_of(simulator.wired[f"blocks.0.{name}"].op) for name in MATRICES)
    descents = {each.descent_module for each in linears if each.descent_module is not None}
    handles = [each.register_forward_hook(record) for each in (*attentions, *descents)]
    ids = torch.arange(NUM_TOKENS)[None] % 5 + 1
    with torch.no_grad():
        simulator(ids, train_mask=torch.ones_like(ids, dtype=torch.bool))
    for handle in handles:
        handle.remove()
    seen = [_call(each, *calls[each][0]) for each in attentions]
    moved = _by_op(simulator, [call for each in descents for call in calls[each]])
    return Pass(simulator=simulator, forward=seen[0], store=seen[1], read=seen[2], descents=moved)


@cache
def example_simulator() -> Simulator:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=8, n_positions=NUM_TOKENS, n_embd=DIM, n_layer=1, n_head=NUM_HEADS, bos_token_id=0, eos_token_id=0
    )
    with torch.random.fork_rng(devices=[]):
        model: Any = GPT2LMHeadModel(config).double().eval()
    # Squares times the golden ratio, without their whole part: spread like random numbers, and the same everywhere.
    # They are large enough for attention weights that differ visibly.
    for number, parameter in enumerate(model.parameters()):
        if parameter.dim() > 1:
            steps = torch.arange(1, parameter.numel() + 1, dtype=torch.float64) + 1000 * number
            parameter.data = (2 * (steps.square() * GOLDEN % 1) - 1).view(parameter.shape)
    return build(model, LearningRule(learning_rate=0.1), stack=STACK, transposition="stored")


def _call(attention: Any, inputs: Any, result: Tensor) -> Call:
    asking, answering, mask = (*inputs, None)[:3]
    return Call(attention=attention, asking=asking, answering=answering, mask=mask, result=result)


def _by_op(simulator: Simulator, calls: list[Any]) -> dict[str, Any]:
    """Ops share a module; each is known by its prefix."""
    found: dict[str, Any] = {}
    for inputs, result in calls:
        for name in MATRICES:
            if torch.equal(_prefix_of(simulator, name), inputs[-1]):
                found[name] = (*inputs, result)
    return found


def _prefix_of(simulator: Simulator, name: str) -> Tensor:
    held = simulator.prefix_of(simulator.wired[f"blocks.0.{name}"].op)
    assert held is not None
    return held


# The grids of each figure.


def forward_grids() -> list[Grid]:
    """Queries, keys and values, the attention weights, the output."""
    call = example_pass().forward
    return [
        _grid("1 Query: q of every token, by heads.", call.query(), BLUE),
        _grid("2 Key: k of every token.", call.key(), BLUE),
        _grid("3 Attention weights: a softmax, causal.", call.weights(), INK, group=NUM_TOKENS),
        _grid("4 Value: v of every token.", call.value(), BLUE),
        _grid("5 Output.", _by_token(call.result), ORANGE),
    ]


def store_grids() -> list[Grid]:
    """The first attention of backward: the weights once more, kept in the token."""
    call = example_pass().store
    stored, positions = _by_token(call.result), call.value()
    places = positions.shape[1]
    return [
        _grid("1 Store: attention weights of q and k once more.", call.weights(), INK, group=NUM_TOKENS),
        _grid("2 Value: one-hot positions, the same for all heads.", positions, BLUE, group=places),
        _grid(f"3 A token's store: its weights, with {places} places for every head.", stored, ORANGE),
    ]


def read_grids() -> list[Grid]:
    """The second attention of backward: every token reads its own coordinate of every store."""
    call = example_pass().read
    positions, result = call.query(), call.result[0, :, 0, 0].transpose(0, 1).flatten(1)
    return [
        _grid("4 Read: token j asks with one-hot(j), keys are the stores.", positions, BLUE, group=positions.shape[1]),
        _grid("5 Scores, linear: the same weights, transposed.", call.weights(), INK, group=NUM_TOKENS),
        _grid("6 Value: dy of every token.", call.value(), BLUE),
        _grid("7 Output: dv.", result, ORANGE),
    ]


def descent_inputs() -> list[Grid]:
    """What the descent of the value's matrix is called with."""
    gradient, value, _, _ = example_pass().descents["value"]
    return [
        _grid("1 Key: dv of every token.", gradient[0, 0], BLUE, group=gradient.shape[-1]),
        _grid("2 Value: x of every token.", value[0, 0], BLUE, group=value.shape[-1]),
    ]


def descent_grids() -> list[Grid]:
    """How far the prefix tokens of each matrix move."""
    seen = example_pass()
    texts = {"value": "moved by -rate dv x^T", "output": "moved by its own dy and x"}
    return [
        Grid(
            title=f"{number} W_{name[0]}: {texts[name] if name in seen.descents else 'no descent'}.",
            shades=shaded(moved),
            colour=ORANGE,
            line="prefix token",
            group=seen.simulator.geometry.dim_slot,
        )
        for number, (name, moved) in enumerate(prefix_moves().items(), 3)
    ]


def prefix_moves() -> dict[str, Tensor]:
    """By matrix: what one step adds to its prefix tokens, `[K, S D~]`."""
    seen = example_pass()
    moves: dict[str, Tensor] = {}
    for name in MATRICES:
        held = _prefix_of(seen.simulator, name)
        after = seen.descents[name][-1] if name in seen.descents else held
        moves[name] = prefix.tokens(after - held, seen.simulator.geometry)[0, 0]
    return moves


def _grid(title: str, values: Tensor, colour: str, *, group: int | None = None) -> Grid:
    width = values.shape[1] // NUM_HEADS if group is None else group
    return Grid(title=title, shades=shaded(values), colour=colour, line="token", group=width)


def shaded(values: Tensor) -> Tensor:
    """From 0 to 1 by size; what is not zero can be told from what is."""
    size = values.abs()
    largest = size.max()
    if largest == 0:
        return size
    shades = 0.12 + 0.88 * size / largest
    return torch.where(size > 1e-12 * largest, shades, 0.0)
