"""The network: a transformer, as one list of layers, whose forward pass trains the auxiliary; and `compile`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional

from tintformer.auxiliary.description import Auxiliary, ops
from tintformer.auxiliary.ops import Norm, Weight
from tintformer.errors import InputError, LoadError, TintError
from tintformer.execution import walk
from tintformer.execution.batch import Batch
from tintformer.execution.engine import parameter_updates
from tintformer.network import weights
from tintformer.network.compiler import Compiler
from tintformer.network.dense import DenseAttention, dense_form
from tintformer.network.flags import Flags
from tintformer.network.layers import LinearMap, Quantity, WeightMap
from tintformer.network.slots import Program, allocate
from tintformer.network.softmax_heads import by_softmax
from tintformer.network.stream import Frame, Stream
from tintformer.rule.attention import rotation
from tintformer.rule.learning_rule import LearningRule, require_built
from tintformer.simulator import checkpoint, prefix
from tintformer.simulator.construction import AttentionForm, Construction, SoftmaxForm
from tintformer.simulator.geometry import DEFAULT_STACK
from tintformer.simulator.primitives.tokenwise import FeedForward, Table, constant
from tintformer.simulator.simulator import Simulator, build
from tintformer.storage.loading import load
from tintformer.storage.untrusted_files import given_path

Inputs = Shaped[Tensor, "B T *vector"]
"""Token ids, or the vectors of examples."""
MAX_DENSE_BYTES = 8 * 10**9
"""Of the maps that `dense=True` writes out."""


def compile(
    model: Any,
    rule: LearningRule,
    *,
    max_tokens: int,
    stack: int = DEFAULT_STACK,
    dense: bool = False,
    loop: bool = False,
    before: bool = False,
    attention: AttentionForm = "linear",
    softmax_form: SoftmaxForm = "pair",
    softmax_epsilon: float | None = None,
) -> Network:
    """The transformer that trains `model` by `rule` inside its forward pass, for texts of up to `max_tokens` tokens.

    Args:
        model: What `load` takes, on one device.
        rule: How it learns.
        max_tokens: The longest text, at least 2; in float32 at most 2894.
        stack: Rows of a matrix in one prefix token, at least 1.
        dense: Materialise every map over the whole stream, for tiny models.
        loop: Run the layers of one step again for every further step instead of unrolling them.
        before: Keep what the model predicts before learning to the end of the stream; with `loop`, for one step only.
        attention: `softmax` has softmax heads and one extra token in place of every linear attention, an
            approximation; it needs `dense`.
        softmax_form: `pair`: two softmaxes at +epsilon and -epsilon. `printed`: the paper's form.
        softmax_epsilon: Step of these forms, between 0 and 1; None: the best measured for the dtype.
    """
    return Network(
        load(model),
        rule,
        max_tokens=max_tokens,
        stack=stack,
        dense=dense,
        loop=loop,
        before=before,
        attention=attention,
        softmax_form=softmax_form,
        softmax_epsilon=softmax_epsilon,
    )


class Embed(nn.Module):
    """Everything that enters: token ids and flags become text coordinates, weights stand in the prefix."""

    def __init__(self, simulator: Simulator, program: Program, slots: dict[Quantity, int], frame: Frame):
        super().__init__()
        self.frame, self.dtype = frame, simulator.dtype
        self.slots = {name: [slots[each] for each in given] for name, given in program.given.items()}
        """The text slots of what is given, by its name."""
        self.tokens, self.positions = simulator.embedding, simulator.positions
        self.position_offset = simulator.auxiliary.embedding.position_offset
        self.target = Table(simulator.head.rows, dim_slot=frame.width)
        self.rotaries = program.rotaries
        blocks = (weights.to_block(tokens, simulator.geometry) for tokens in simulator.prefix.values())
        self.prefix = nn.ParameterList(map(constant, blocks))

    def forward(self, inputs: Inputs, flags: Flags) -> Stream:
        given = {
            "flags": flags.table(self.dtype),
            "tokens": self.tokens(inputs)[:, 0],
            "target": self.target(inputs if flags.targets is None else flags.targets)[:, 0],
        }
        if self.positions is not None:
            given["positions"] = self.positions(flags.position + self.position_offset)[:, 0]
        for number, (rotary, head_dim) in enumerate(self.rotaries):
            by, rest = rotation(rotary, flags.position, self.dtype), head_dim - 2 * len(rotary.inverse_frequencies)
            for name, half, other in (("cosines", by.cos, 1.0), ("sines", by.sin, 0.0)):
                head = half.repeat_interleave(2, -1) if rotary.interleaved else torch.cat((half, half), dim=-1)
                head = functional.pad(head, (0, rest), value=other)
                given[f"{name} {number}"] = head.repeat(1, 1, self.frame.width // head_dim)
        text = [given["flags"].new_zeros(*inputs.shape[:2], self.frame.width)] * self.frame.num_slots
        for name, slots in self.slots.items():
            for slot, piece in zip(slots, given[name].split(self.frame.width, dim=-1), strict=True):
                text[slot] = functional.pad(piece, (0, self.frame.width - piece.shape[-1]))
        return Stream.before_any_step(
            tuple(text), tuple(self.prefix), momentum=self.frame.momentum, decay=self.frame.decay
        )


class Head(nn.Module):
    """Logits from one slot of the text."""

    def __init__(self, slot: int, unit: FeedForward):
        super().__init__()
        self.slot, self.unit = slot, unit

    def read(self, e: Any) -> Float[Tensor, "B T W"]:
        """The auxiliary's stream at its head's input."""
        return e.text[self.slot]

    def forward(self, e: Any) -> Float[Tensor, "B T V"]:
        x = self.read(e)
        return self.unit(x.flatten(0, 1)).unflatten(0, x.shape[:2])


class Packed(nn.Module):
    """Behind an embedding: the stream as one tensor, for dense layers."""

    def __init__(self, embed: Embed):
        super().__init__()
        self.embed = embed
        self.prefix = embed.prefix

    def forward(self, inputs: Inputs, flags: Flags) -> Float[Tensor, "B length dim"]:
        return self.embed(inputs, flags).pack()


class PackedHead(Head):
    """The head of dense layers."""

    def __init__(self, head: Head, frame: Frame):
        super().__init__(head.slot, head.unit)
        self.frame = frame

    def read(self, e: Any) -> Float[Tensor, "B T W"]:
        return e[:, self.frame.num_prefix :, self.frame.text_slot(self.slot)]


class Network(nn.Module):
    """One stream, one sequence, one list of layers: embed, every layer in order, head, and nothing else.

    It holds no state: the stream alone passes from layer to layer, and behind the last one its prefix tokens hold the
    updated weights. `compile` makes one.

    Args:
        auxiliary: What `load` returns.
        rule: How it learns.
        max_tokens: As in `compile`.
        stack: As in `compile`.
        dense: As in `compile`.
        loop: As in `compile`.
        before: As in `compile`.
        attention: As in `compile`.
        softmax_form: As in `compile`.
        softmax_epsilon: As in `compile`.
    """

    def __init__(
        self,
        auxiliary: Auxiliary,
        rule: LearningRule,
        *,
        max_tokens: int,
        stack: int = DEFAULT_STACK,
        dense: bool = False,
        loop: bool = False,
        before: bool = False,
        attention: AttentionForm = "linear",
        softmax_form: SoftmaxForm = "pair",
        softmax_epsilon: float | None = None,
    ):
        super().__init__()
        _check(auxiliary, rule, max_tokens, dense=dense, loop=loop, before=before)
        forms = Construction(
            stack=stack, attention=attention, softmax_form=softmax_form, softmax_epsilon=softmax_epsilon
        )
        if attention == "softmax" and not dense:
            raise InputError("attention='softmax' needs dense=True: its extra token takes part in every attention")
        self.auxiliary, self.rule, self.dense = auxiliary, rule, dense
        self.settings = {
            **{"max_tokens": max_tokens, "stack": stack, "dense": dense, "loop": loop, "before": before},
            **{"attention": attention, "softmax_form": softmax_form, "softmax_epsilon": softmax_epsilon},
        }
        """How it was compiled."""
        simulator = build(auxiliary, rule, stack=stack)
        self._copied = simulator.copied_weights
        self.dtype, self.geometry, self.wired = simulator.dtype, simulator.geometry, simulator.wired
        num_loops = rule.steps if loop else 1
        compiler = Compiler(simulator, num_tokens=max_tokens, num_loops=num_loops)
        result = walk.train_in_the_pass(compiler, auxiliary, replace(rule, steps=rule.steps // num_loops))
        program = compiler.program
        keep = (*result.quantities, *(program.before if before else ()))
        allocation = allocate(program, keep=keep, num_loops=num_loops)
        self.frame = Frame(
            width=self.geometry.dim_slot,
            stack=self.geometry.stack,
            num_slots=allocation.num_slots,
            num_tokens=max_tokens,
            blocks=tuple(tokens.numel() // tokens.shape[2] // tokens.shape[5] for tokens in simulator.prefix.values()),
            momentum=rule.momentum > 0,
            decay=rule.decay > 0,
        )
        self.shapes = {name.replace("/", "."): tuple(tokens.shape) for name, tokens in simulator.prefix.items()}
        """Of every op's prefix as the simulator holds it, by op, in the order of the sequence."""
        self.embed: Embed | Packed = Embed(simulator, program, allocation.slots, self.frame)
        self.layers = nn.ModuleList(allocation.layers).to(self.dtype)
        self.head = Head(allocation.slots[result.quantities[0]], simulator.head)
        self.head_before = Head(allocation.slots[program.before[0]], simulator.head) if before else None
        if dense:
            self._densify(self.embed, forms)
        self.to(auxiliary.device)
        self.eval()

    def forward(self, input_ids: Inputs, flags: Flags) -> Float[Tensor, "B T V"]:
        """Logits of the auxiliary after it has learnt from the text.

        Args:
            input_ids: Token ids `[batch, max_tokens]`, padded; of examples, their `x`.
            flags: Who trains, who sees whom: those of `flags`.
        """
        return self.head(self.run(input_ids, flags))

    def run(self, input_ids: Inputs, flags: Flags) -> Any:
        """The stream behind the last layer: the text at the head's input, and the updated weights in the prefix.

        Args:
            input_ids: Token ids `[batch, max_tokens]`, padded; of examples, their `x`.
            flags: Those of `flags`.
        """
        e = self.embed(input_ids, flags)
        for layer in self.layers:
            e = layer(e)
        return e

    def require_current(self) -> None:
        """Refuse to go on where the auxiliary's weights, of which the prefix holds copies, have changed."""
        if self._copied.changed():
            raise TintError(
                f"the weights of {self.auxiliary.name} have changed since the network was compiled, which holds them "
                "in prefix tokens; compile it again"
            )

    def __repr__(self) -> str:
        layers, tokens = len(self.layers), self.settings["max_tokens"]
        return f"<Network {self.auxiliary.name}, {layers:,} layers for up to {tokens:,} tokens, {self.rule}>"

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """Write the auxiliary's weights, the rule and how the network was compiled.

        Args:
            directory: Where to.
        """
        checkpoint.write(given_path(directory), self.auxiliary, self.rule, {"network": self.settings}, {})

    @classmethod
    def from_pretrained(cls, directory: str | os.PathLike[str]) -> Network:
        """Read what `save_pretrained` wrote; the layers are compiled again, the same ones bit by bit.

        Args:
            directory: What `save_pretrained` wrote.
        """
        path = given_path(directory, LoadError)
        config, auxiliary, rule, tensors = checkpoint.read(path, ("network",))
        settings = config["network"]
        known = inspect.signature(cls).parameters.keys() - {"auxiliary", "rule"}
        if not isinstance(settings, dict) or settings.keys() != known:
            raise LoadError(
                f"{path / checkpoint.CONFIG} has other settings of a network than {', '.join(sorted(known))}"
            )
        if any(name.startswith(checkpoint.STRUCTURE) for name in tensors):
            raise LoadError(f"{path / checkpoint.WEIGHTS} holds constructed tensors, which a network does not store")
        try:
            return cls(auxiliary, rule, **settings)
        except TintError as error:
            raise LoadError(
                f"{path / checkpoint.CONFIG} describes a network that cannot be compiled: {error}"
            ) from error

    def flags(self, batch: Batch) -> Flags:
        """What enters beside the token ids of a batch.

        Args:
            batch: Sequences of `max_tokens` tokens; `Batch.padded` makes them so long.
        """
        num_tokens = batch.input_ids.shape[1]
        if num_tokens != self.frame.num_tokens:
            remedy = f"compile it with max_tokens={num_tokens}, or "
            remedy += "shorten the text" if num_tokens > self.frame.num_tokens else "make them longer by `Batch.padded`"
            raise InputError(f"sequences of {num_tokens} tokens, but the network has {self.frame.num_tokens}; {remedy}")
        batch.require_steps(self.rule)
        self._require_targets(batch)
        return Flags.of(batch, self.rule)

    def _require_targets(self, batch: Batch) -> None:
        """Refuse steps that a sequence would have to leave out, which only a program can do."""
        if batch.step_ids is None or not self.rule.remembers:
            return  # without a memory, a gradient of zero moves nothing
        trained = batch.train_positions.any(1)
        for step in range(1, self.rule.steps + 1):
            idle = trained & ~batch.train_positions_at(step).any(1)
            if bool(idle.any()):
                raise InputError(
                    f"row {int(idle.nonzero()[0])} has no training target in step {step}, and a network cannot leave "
                    "out momentum and decay for one row: give it a target by step_ids, or use engine='simulator'"
                )

    def updates(self, e: Any, row: int = 0) -> dict[str, Tensor]:
        """What one sequence has learnt, read from the prefix tokens: updates by Hugging Face name.

        Args:
            e: The stream that `run` returned.
            row: Which sequence, from 0.
        """
        return parameter_updates(self.learnt(e, row), self.auxiliary, self.rule)

    def learnt(self, e: Any, row: int = 0) -> dict[Weight, Tensor]:
        """The same by weight."""
        stream = Stream.unpack(e, self.frame) if self.dense else e
        num_rows = len(stream.text[0])
        if not 0 <= row < num_rows:
            raise InputError(f"row={row} of {num_rows} sequences; they are counted from 0")
        found: dict[Weight, Tensor] = {}
        for number, (name, shape) in enumerate(self.shapes.items()):
            before, after = self.embed.prefix[number], stream.prefix[number]
            if len(after) > row:  # prefix tokens that all sequences share have not learnt
                change = weights.from_block(after[row, None] - before, shape, self.geometry)
                found.update(prefix.read(self.wired[name], change, self.geometry))
        return found

    def _densify(self, embed: Embed, forms: Construction) -> None:
        """Every map a full matrix over the whole stream, every attention over all tokens."""
        _check_dense_size([layer for layer in set(self.layers) if isinstance(layer, LinearMap | WeightMap)], self)
        if forms.attention == "softmax":
            embed.prefix.append(constant(torch.zeros_like(embed.prefix[0][:, :1])))
            self.frame = replace(self.frame, blocks=(*self.frame.blocks, 1))
        dense_layers: dict[nn.Module, nn.Module] = {}
        for layer in self.layers:
            if layer not in dense_layers:  # in a loop a layer stands there more than once
                dense_layer = dense_form(layer, self.frame, self.dtype)
                if forms.attention == "softmax" and isinstance(dense_layer, DenseAttention):
                    dense_layer = by_softmax(dense_layer, self.frame, forms.softmax_form, forms.epsilon(self.dtype))
                dense_layers[layer] = dense_layer
        self.layers = nn.ModuleList(dense_layers[layer] for layer in self.layers)
        self.embed = Packed(embed)
        self.head = PackedHead(self.head, self.frame)
        if self.head_before is not None:
            self.head_before = PackedHead(self.head_before, self.frame)


def _check_dense_size(maps: Sequence[nn.Module], network: Network) -> None:
    """Refuse what would not fit in memory, by the maps of the whole stream onto itself, which are most of it."""
    dim = network.frame.dim
    size = len(maps) * dim**2 * network.dtype.itemsize
    if size > MAX_DENSE_BYTES:
        raise InputError(
            f"dense=True would write out {len(maps)} maps of {dim:,} x {dim:,}, which take {size / 1e9:,.0f} GB "
            f"(at most {MAX_DENSE_BYTES / 1e9:g} are allowed): it is for tiny models; leave it out, the layers compute "
            "the same without it, or take fewer blocks, tokens or steps"
        )


def _check(auxiliary: Auxiliary, rule: LearningRule, max_tokens: Any, **switches: Any) -> None:
    """Refuse what no network can be compiled for."""
    require_built(rule, "a network")
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise InputError(f"{name}={value!r} must be true or false")
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 2:
        raise InputError(f"max_tokens={max_tokens!r} must be a whole number of at least 2")
    if auxiliary.learned_positions and auxiliary.max_positions and max_tokens > auxiliary.max_positions:
        raise InputError(
            f"max_tokens={max_tokens} but {auxiliary.name} was built for {auxiliary.max_positions} positions; use fewer"
        )
    if switches["loop"] and switches["before"] and rule.steps > 1:
        raise InputError("loop=True runs one step's layers again and again, which overwrite what was there before any")
    if switches["loop"] and len({rule.schedule_factor(step) for step in range(1, rule.steps + 1)}) > 1:
        raise InputError(
            "loop=True runs the same layers in every step, and this schedule changes the rate from step to step; "
            "use loop=False"
        )
    # Segments are compared by squares of whole numbers, which must be exact.
    if auxiliary.dtype != torch.float64 and 2 * (max_tokens + 2) ** 2 >= 2**24:
        raise InputError(f"max_tokens={max_tokens} is too long for float32; use at most 2894, or a float64 model")
    # Prefix tokens are zero where a norm reads: its epsilon alone keeps it from dividing by zero.
    every_op = [op for steps in (*auxiliary.blocks, auxiliary.final) for op in ops(steps)]
    if flat := [op.name for op in every_op if isinstance(op, Norm) and op.epsilon <= 0]:
        raise InputError(f"the norm {flat[0]} has an epsilon of 0; a network needs one above 0")
