"""Compiles a simulator into a list of layers: its modules run once on symbols, in the order of the one walk.

Every stream is symbolic: the quantities that its pieces would be. Each primitive that a module calls becomes a layer
that reads and writes quantities; N steps of descent are unrolled. Then `slots` gives every quantity its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from tintformer.auxiliary.ops import Activation, Add, Attend, Join, Linear, Norm, Op, Product, Weight
from tintformer.execution.executor import Stage
from tintformer.network import attention_layers as attention
from tintformer.network.attention_compiler import AttentionCompiler
from tintformer.network.attention_layers import Destination, Matrix
from tintformer.network.flags import loss_coordinate, num_coordinates
from tintformer.network.layers import (
    ActivationUnit,
    GatedUnit,
    Layer,
    LinearMap,
    Normalise,
    Quantity,
    Term,
    Vocabulary,
    WeightMap,
)
from tintformer.network.slots import Program
from tintformer.network.symbols import Symbol, SymbolicPrefix
from tintformer.rule.optimiser import rate_factor, step_rate
from tintformer.simulator.module_factory import module_name
from tintformer.simulator.modules.norm import ReadRows, RowDescent
from tintformer.simulator.modules.self_attention import AttentionBackward
from tintformer.simulator.primitives import tokenwise
from tintformer.simulator.regions import Cut, Phase
from tintformer.simulator.simulator import Simulator


class Compiler:
    """An executor whose streams are symbols; implements `Executor`."""

    def __init__(self, simulator: Simulator, *, num_tokens: int, num_loops: int = 1):
        """`num_loops`: how often the layers of the first step will run."""
        self.simulator, self.num_tokens, self.num_loops = simulator, num_tokens, num_loops
        self.geometry = simulator.geometry
        self.program = Program()
        self.stage, self.op = Stage("below"), "embedding"
        self.phase: Phase = "forward"
        self.blocks = {name: number for number, name in enumerate(simulator.prefix)}
        self.attention = AttentionCompiler(self)
        self.moved: list[int] = []
        """Prefix blocks that this step has moved so far."""
        self.flags = self.given("flags", -(-num_coordinates(simulator.rule) // self.geometry.dim_slot))

    @property
    def flag(self) -> Quantity:
        """The slot whose first coordinate is 1 for text."""
        return self.flags[0]

    # Writing down.

    def emit(self, layer: Layer) -> None:
        layer.stage, layer.op, layer.phase = self.stage, self.op, self.phase
        self.program.layers.append(layer)

    def new(self, name: str, count: int) -> tuple[Quantity, ...]:
        """Quantities that a layer is about to write."""
        return _numbered(f"{self.op} {name}", count)

    def symbol(self, name: str, count: int) -> Symbol:
        return Symbol(self, self.new(name, count))

    def given(self, name: str, count: int) -> tuple[Quantity, ...]:
        """Quantities that the embedding writes."""
        if name not in self.program.given:
            self.program.given[name] = tuple(
                Quantity(name if count == 1 else f"{name} {i + 1}/{count}") for i in range(count)
            )
        return self.program.given[name]

    # What the walk asks for.

    def begin(self, stage: Stage) -> None:
        if self.stage.phase == "backward":
            self._end_step()
        self.stage = stage

    def embed(self) -> Symbol:
        embedding, width = self.simulator.auxiliary.embedding, self.geometry.dim_aux
        cut = Cut(embedding.tokens.source.shape[1], width)
        x = Symbol(self, self.given("tokens", cut.count), cut)
        if embedding.projection is not None:
            x, _ = self.forward(embedding.projection, (x,))
        if embedding.positions is not None:
            self.op = "embedding"
            x = self.sum_of((x, Symbol(self, self.given("positions", len(x)), x.cut)))
        if embedding.norm is not None:
            x, _ = self.forward(embedding.norm, (x,))
        return x

    def training_part(self, x: Symbol) -> Symbol:
        # Which tokens train is known at run time alone; the others have a gradient of zero.
        return x

    def forward(self, op: Op | Join, inputs: tuple[Symbol, ...]) -> tuple[Symbol, Any]:
        self.op, self.phase = op.name, "forward"
        if isinstance(op, Add):
            return self.sum_of(inputs), inputs
        wired, module = self.simulator.wired[op.name], self.simulator.modules_of(op).forward_module
        match op:
            case Linear():
                y = self.symbol("output", wired.out.count)
                self.emit(attention.LinearForward(self.flag, inputs[0].quantities, y.quantities, self._matrix(op)))
            case Norm():
                y = module(*inputs, self._prefix(op))
            case Activation() | Product():
                y = module(*inputs)
            case Attend():
                y, inputs = self.attention.forward(op, inputs)
        return Symbol(self, y.quantities, wired.out), inputs

    def backward(self, op: Op | Join, saved: Any, gradient: Symbol) -> tuple[Symbol | None, ...]:
        self.op, self.phase = op.name, "backward"
        if isinstance(op, Add):
            return (gradient,) * len(saved)
        return tuple(
            None if dx is None else Symbol(self, dx.quantities, x.cut)
            for x, dx in zip(saved, self._backward(op, saved, gradient), strict=True)
        )

    def _backward(self, op: Op | Product | Attend, saved: Any, gradient: Symbol) -> tuple[Symbol | None, ...]:
        module = self.simulator.modules_of(op).backward_module
        assert module is not None, f"no gradient was expected at {op.name}"
        match op:
            case Linear():
                dx = self.symbol("input gradient", self.simulator.wired[op.name].into.count)
                matrix = self._matrix(op)
                self.emit(attention.LinearBackward(gradient.quantities, dx.quantities, matrix, self.geometry.dim_aux))
                return (dx,)
            case Norm():
                return (module(gradient, *saved, self._prefix(op)),)
            case Activation():
                return (module(gradient, *saved),)
            case Product():
                return module(gradient, *saved)
            case Attend():
                assert isinstance(module, AttentionBackward)
                return self.attention.backward(op, module, gradient, *saved)

    def descend(self, op: Op | Join, saved: Any, gradient: Symbol) -> None:
        self.op, self.phase = op.name, "descent"
        (x,) = saved
        assert isinstance(op, Linear | Norm), f"{op.name} has no parameters"
        self.moved.append(self._prefix(op).block)
        if isinstance(op, Linear):
            matrix, into = self._matrix(op), self._destination()
            self.emit(attention.LinearDescent(self.flag, x.quantities, gradient.quantities, matrix, into))
            return
        module = self.simulator.modules_of(op).descent_module
        assert module is not None, f"{op.name} was not expected to be trained"
        module(gradient, x, self._prefix(op))

    def _destination(self) -> Destination:
        """Where this op's gradient goes in this step."""
        rule, step = self.simulator.rule, self.stage.step or 1
        weights = -step_rate(rule, self.op, step)
        if not rule.momentum:
            return Destination(weights=weights)
        # The op's own factor is part of its velocity: what is left of the rate is the same for all prefix tokens.
        return Destination(weights=weights if rule.nesterov else 0.0, velocity=rate_factor(rule, self.op))

    def _end_step(self) -> None:
        """Behind the last descent of a step: momentum and decay, and the next step's loss weights if it loops."""
        rule, step = self.simulator.rule, self.stage.step or 1
        self.op, self.phase = "step", "descent"
        if rule.remembers:
            along = rule.momentum if rule.nesterov else 1.0
            from_velocity = -(1 - rule.decay) * rule.rate * rule.schedule_factor(step) * along
            self.emit(WeightMap(self.moved, from_velocity=from_velocity, momentum=rule.momentum, decay=rule.decay))
        if self.num_loops > 1:
            self._shift_loss_weights()
        self.moved = []

    def _shift_loss_weights(self) -> None:
        """Every loss weight moves up to the place of the step before it: the layers of a loop read one place."""
        width, last = self.geometry.dim_slot, loss_coordinate(self.num_loops) + 1
        size, dtype = min(width, last), self.simulator.dtype
        matrices: dict[tuple[int, int], Tensor] = {}
        non_zero: Counter[tuple[int, int]] = Counter()  # a model of shapes alone has no entries to count
        for step in range(1, self.num_loops):
            place, following = loss_coordinate(step), loss_coordinate(step + 1)
            for source, factor in ((place, -1.0), (following, 1.0)):
                between = place // width, source // width
                matrix = matrices.setdefault(between, torch.zeros(size, size, dtype=dtype))
                matrix[place % width, source % width] = factor
                non_zero[between] += 1
        written = sorted({slot for slot, _ in matrices})
        terms = [Term(written.index(slot), read, matrix=i) for i, (slot, read) in enumerate(matrices)]
        counts = [non_zero[between] for between in matrices]
        places = [self.flags[slot] for slot in written]
        self.emit(LinearMap(self.flags, places, terms, list(matrices.values()), num_non_zero=counts))

    def add(self, terms: Sequence[Symbol]) -> Symbol:
        self.phase = "backward"  # the walk adds gradients, behind the descent of an op too
        return self.sum_of(terms)

    def sum_of(self, terms: Sequence[Symbol]) -> Symbol:
        """A residual connection, and what modules add between their primitives."""
        if len(terms) == 1:
            return terms[0]
        count = len(terms[0])
        y = Symbol(self, self.new("sum", count), terms[0].cut)
        reads = [quantity for term in terms for quantity in term.quantities]
        self.emit(LinearMap(reads, y.quantities, [Term(i % count, i) for i in range(len(reads))]))
        return y

    def loss_gradient(self, x: Symbol) -> Symbol:
        self.op, self.phase = "loss", "backward"
        if not self.program.before:
            self.program.before = x.quantities
        gradient, unit = self.symbol("gradient", 1), self.simulator.loss_gradient.feed_forward
        (read,), (write,) = x.quantities, gradient.quantities
        if unit is None:
            self.emit(LinearMap([read], [write], [Term(0, 0)]))
        else:
            self.emit(Vocabulary(self.flag, read, write, unit))
        target, ahead = self.given("target", 1)[0], self.simulator.auxiliary.target_offset
        self.emit(attention.NextToken(target, write, self.num_tokens, ahead=ahead))
        weight = self.symbol("weight", 1)
        slot, place = divmod(loss_coordinate(self.stage.step or 1), self.geometry.dim_slot)
        spread = torch.zeros(self.geometry.dim_slot, place + 1, dtype=self.simulator.dtype)
        spread[:, place] = 1
        terms = [Term(0, 0, matrix=0)]
        self.emit(LinearMap([self.flags[slot]], weight.quantities, terms, [spread], num_non_zero=[len(spread)]))
        return Symbol(self, self.gated(gradient, weight, tokenwise.Gated()).quantities, x.cut)

    # The parts of modules.

    def record(self, part: Any, inputs: tuple[Any, ...]) -> Any:
        """The layer that stands for a part of the simulator."""
        match part:
            case tokenwise.Gated():
                left, right = inputs
                return self.gated(left, right, part)
            case tokenwise.Activation():
                y = self.symbol("activation", len(inputs[0]))
                self.emit(ActivationUnit(inputs[0].quantities, y.quantities, part))
                return y
            case tokenwise.Combine():
                return self._combine(part, inputs)
            case tokenwise.Narrow():
                return self._narrow(part, *inputs)
            case tokenwise.GroupNorm():
                (x,) = inputs
                z, handed = self.symbol("normalised", len(x)), self.symbol("factor", 1 if part.joint else len(x))
                self.emit(Normalise(self.flag, x.quantities, (*z.quantities, *handed.quantities), part))
                return z, handed
            case ReadRows():
                return self._read_rows(*inputs)
            case RowDescent():
                return self._row_descent(part, *inputs)
            case _:
                raise AssertionError(f"{type(part).__name__} is no part of a network")

    def gated(self, left: Symbol, right: Symbol, unit: tokenwise.Gated) -> Symbol:
        """A product, element by element; one piece on the right is spread over all on the left."""
        y = self.symbol("product", len(left))
        self.emit(GatedUnit(left.quantities, right.expand_as(left).quantities, y.quantities, unit))
        return y

    def _combine(self, part: tokenwise.Combine, inputs: tuple[Symbol, ...]) -> tuple[Symbol, ...]:
        count, rows = len(inputs[0]), part.rows
        outputs = [self.symbol("combination", count) for _ in rows]
        reads = [quantity for x in inputs for quantity in x.quantities]
        writes = [quantity for y in outputs for quantity in y.quantities]
        terms = [
            Term(row * count + piece, number * count + piece, factor)
            for row, factors in enumerate(rows)
            for piece in range(count)
            for number, factor in enumerate(factors)
            if factor != 0
        ]
        self.emit(LinearMap(reads, writes, terms, scale=part.factor))
        return tuple(outputs)

    def _narrow(self, part: tokenwise.Narrow, x: Symbol) -> Symbol:
        """One matrix for all pieces, or one each; what one piece holds may be spread over several."""
        matrices = [part.weight] if part.weight.dim() == 2 else list(part.weight)
        count = max(len(x), len(matrices))
        y = self.symbol("map", count)
        terms = [Term(i, i % len(x), matrix=i % len(matrices)) for i in range(count)]
        self.emit(LinearMap(x.quantities, y.quantities, terms, matrices, num_non_zero=part.num_non_zero))
        return y

    def sum_pieces(self, x: Symbol) -> Symbol:
        if len(x) == 1:
            return x
        y = self.symbol("sum", 1)
        self.emit(LinearMap(x.quantities, y.quantities, [Term(0, i) for i in range(len(x))]))
        return y

    def _read_rows(self, prefix: SymbolicPrefix) -> tuple[Symbol, ...]:
        shape = list(self.simulator.prefix.values())[prefix.block].shape
        num_pieces, num_rows = shape[1], shape[4]
        rows = [self.symbol("row", num_pieces) for _ in range(num_rows)]
        # Tokens stand piece by piece, the rows of a piece together.
        writes = [row.quantities[piece] for piece in range(num_pieces) for row in rows]
        self.emit(attention.ReadRows(self.flag, writes, prefix.block))
        return tuple(rows)

    def _row_descent(self, part: RowDescent, gradients: dict[Any, Symbol], prefix: SymbolicPrefix) -> SymbolicPrefix:
        num_rows = list(self.simulator.prefix.values())[prefix.block].shape[4]
        reads: list[Quantity] = []
        rows: list[int] = []
        for region, row in zip(part.regions, part.rows, strict=True):
            for piece, quantity in enumerate(gradients[region].quantities):
                reads.append(quantity)
                rows.append(piece * num_rows + row)
        self.emit(attention.RowDescent(reads, prefix.block, rows, self._destination()))
        return prefix

    # Linear layers.

    def _matrix(self, op: Linear) -> Matrix:
        wired = self.simulator.wired[op.name]
        return Matrix(
            block=self._prefix(op).block,
            num_out=wired.out.count,
            num_in=wired.into.count,
            bias=None if op.bias is None else self.geometry.dim_aux,
        )

    def _prefix(self, op: Linear | Norm) -> Any:
        name = module_name(op.name)
        return SymbolicPrefix(self, self.blocks[name]) if name in self.blocks else None

    # What only executors of numbers can do.

    def move(self, x: Symbol, device: torch.device) -> NoReturn:
        raise AssertionError("a model that is spread over devices is refused before it is compiled")

    def plain(self, stream: Symbol) -> Tensor:
        raise AssertionError("a symbol holds no numbers")

    def stream(self, tensor: Tensor, like: Symbol) -> Symbol:
        raise AssertionError("a symbol holds no numbers")

    def updates_of(self, op: Op | Join, row: int | None = None) -> dict[Weight, Tensor]:
        raise AssertionError("a symbol holds no numbers")


def _numbered(name: str, count: int) -> tuple[Quantity, ...]:
    """The pieces of a value."""
    return tuple(Quantity(name if count == 1 else f"{name} {number}/{count}") for number in range(1, count + 1))
