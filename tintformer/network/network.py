"""The network: a transformer, as one list of layers, whose forward pass trains the auxiliary; and `compile`."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.ops import Weight
from tintformer.execution import walk
from tintformer.execution.engine import parameter_updates
from tintformer.network import weights
from tintformer.network.compiler import Compiler, Program, allocate
from tintformer.network.flags import Flags
from tintformer.network.layers import Quantity
from tintformer.network.stream import Frame, Stream
from tintformer.rule.attention import rotation
from tintformer.rule.learning_rule import LearningRule
from tintformer.simulator import prefix
from tintformer.simulator.primitives.tokenwise import FeedForward, Table, constant
from tintformer.simulator.simulator import Simulator, build
from tintformer.storage.loading import load


def compile(model: Any, rule: LearningRule, *, max_tokens: int, before: bool = False, **construction: Any) -> Network:
    """The network that trains `model` by `rule` inside its forward pass, for texts of up to `max_tokens` tokens."""
    return Network(build(load(model), rule, **construction), max_tokens=max_tokens, before=before)


class Embed(nn.Module):
    """Everything that enters: token ids and flags become text coordinates, weights stand in the prefix."""

    def __init__(self, simulator: Simulator, program: Program, slots: dict[Quantity, int], frame: Frame):
        super().__init__()
        self.frame, self.dtype = frame, simulator.dtype
        self.slots = {name: [slots[each] for each in given] for name, given in program.given.items()}
        self.tokens = simulator.embedding
        self.positions, self.position_offset = simulator.positions, simulator.auxiliary.embedding.position_offset
        self.target = Table(simulator.head.rows, dim_slot=frame.width)
        self.rotaries = program.rotaries
        blocks = (weights.to_block(tokens, simulator.geometry) for tokens in simulator.prefix.values())
        self.prefix = nn.ParameterList(map(constant, blocks))

    def forward(self, input_ids: Int[Tensor, "B T"], flags: Flags) -> Stream:
        given = {"flags": flags.table(self.dtype)}
        if "tokens" in self.slots:
            given["tokens"] = self.tokens(input_ids)[:, 0]
        if self.positions is not None:
            given["positions"] = self.positions(flags.position + self.position_offset)[:, 0]
        if "target" in self.slots:
            given["target"] = self.target(input_ids)[:, 0]
        for number, (rotary, head_dim) in enumerate(self.rotaries):
            by, rest = rotation(rotary, flags.position, self.dtype), head_dim - 2 * len(rotary.inverse_frequencies)
            for name, half, other in (("cosines", by.cos, 1.0), ("sines", by.sin, 0.0)):
                head = half.repeat_interleave(2, -1) if rotary.interleaved else torch.cat((half, half), dim=-1)
                head = functional.pad(head, (0, rest), value=other)
                given[f"{name} {number}"] = head.repeat(1, 1, self.frame.width // head_dim)
        nothing = given["flags"].new_zeros(*input_ids.shape, self.frame.width)
        text = [nothing] * self.frame.num_slots
        for name, slots in self.slots.items():
            for slot, piece in zip(slots, given[name].split(self.frame.width, dim=-1), strict=True):
                text[slot] = functional.pad(piece, (0, self.frame.width - piece.shape[-1]))
        return Stream(tuple(text), tuple(self.prefix))


class Head(nn.Module):
    """Logits from one slot of the text."""

    def __init__(self, slot: int, unit: FeedForward):
        super().__init__()
        self.slot, self.unit = slot, unit

    def forward(self, e: Stream) -> Float[Tensor, "B T V"]:
        x = e.text[self.slot]
        return self.unit(x.flatten(0, 1)).unflatten(0, x.shape[:2])


class Network(nn.Module):
    """One stream, one sequence, one list of layers."""

    def __init__(self, simulator: Simulator, *, max_tokens: int, before: bool = False):
        super().__init__()
        self.auxiliary: Auxiliary = simulator.auxiliary
        self.rule: LearningRule = simulator.rule
        self.dtype, self.geometry, self.wired = simulator.dtype, simulator.geometry, simulator.wired
        compiler = Compiler(simulator, num_tokens=max_tokens)
        program = compiler.program
        result = walk.train_in_the_pass(compiler, simulator.auxiliary, simulator.rule)
        program.result = result.quantities
        keep = (*program.result, *(program.before if before else ()))
        layers, slots, num_slots = allocate(program, keep=keep)
        self.frame = Frame(
            width=self.geometry.dim_slot,
            stack=self.geometry.stack,
            num_slots=num_slots,
            num_tokens=max_tokens,
            blocks=tuple(tokens.numel() // tokens.shape[2] // tokens.shape[5] for tokens in simulator.prefix.values()),
        )
        self.shapes = {name.replace("/", "."): tuple(tokens.shape) for name, tokens in simulator.prefix.items()}
        """Of every op's prefix as the simulator holds it, by op, in the order of the sequence."""
        self.embed = Embed(simulator, program, slots, self.frame)
        self.layers: Any = nn.ModuleList(layers)
        self.head = Head(slots[program.result[0]], simulator.head)
        self.head_before = Head(slots[program.before[0]], simulator.head) if before else None
        self.to(simulator.auxiliary.device)
        self.eval()

    def forward(self, input_ids: Int[Tensor, "B T"], flags: Flags) -> Float[Tensor, "B T V"]:
        """Logits of the auxiliary after it has learnt from the text."""
        return self.head(self.run(input_ids, flags))

    def run(self, input_ids: Int[Tensor, "B T"], flags: Flags) -> Any:
        """The stream behind the last layer: the text at the head's input, and the updated weights in the prefix."""
        e = self.embed(input_ids, flags)
        for layer in self.layers:
            e = layer(e)
        return e

    def updates(self, e: Stream, row: int) -> dict[str, Tensor]:
        """What one sequence has learnt, read from the prefix tokens: updates by Hugging Face name."""
        found: dict[Weight, Tensor] = {}
        for number, (name, shape) in enumerate(self.shapes.items()):
            before, after = self.embed.prefix[number], e.prefix[number]
            if after is not before:
                change = weights.from_block(after[row, None] - before, shape, self.geometry)
                found.update(prefix.read(self.wired[name], change, self.geometry))
        return parameter_updates(found, self.auxiliary, self.rule)
