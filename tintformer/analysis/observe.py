"""The printer's second half: the stream of a running simulator, decoded back into named quantities.

Nothing is computed here. What a module has in its regions is put into an embedding of the simulator's width and read
back from it by region, so what is printed is what the regions hold. B batch, N pieces, T tokens, W width of a quantity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from tintformer.analysis.module_plan import Keep, cut_of, everything, is_trained
from tintformer.auxiliary.ops import Norm
from tintformer.execution import walk
from tintformer.execution.batch import Batch
from tintformer.execution.engine import row_updates
from tintformer.simulator.geometry import Cut
from tintformer.simulator.modules.affine import ReadRows, held
from tintformer.simulator.modules.differences import Difference
from tintformer.simulator.modules.norm import ExactGradient
from tintformer.simulator.modules.self_attention import ScoreGradient
from tintformer.simulator.regions import Phase, decode, encode, regions
from tintformer.simulator.simulator import Simulator
from tintformer.simulator.simulator_executor import SimulatorExecutor
from tintformer.simulator.tokens import Tokens
from tintformer.simulator.wiring import Place, Placed

Stage = Literal["forward", "backward", "descent", "updated"]
"""`updated` is the forward pass with the weights that descent has left."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Observation:
    """What stood in the regions of a module when it ran."""

    op: str
    stage: Stage
    step: int | None
    """Step of descent; None below the trained blocks and in the pass with the updated weights."""
    values: dict[str, Float[Tensor, "B T W"]]
    """The quantities as the auxiliary knows them, by region: what the module is given, and what it makes on the way."""

    @property
    def phase(self) -> Phase:
        """The direction of the module."""
        return "forward" if self.stage == "updated" else self.stage


def observe(simulator: Simulator, batch: Batch, keep: Keep = everything) -> tuple[list[Observation], dict[str, Tensor]]:
    """Run the pass and decode what stands in the regions of every module, in the order in which they run.

    Also how far the weights of the first sequence have moved, by Hugging Face name.
    """
    observer = _Observer(simulator, keep)
    executor = SimulatorExecutor(simulator, batch, observer.see)
    handles = [part.register_forward_hook(observer.hook(names)) for part, names in _makers(simulator.structure)]
    try:
        with torch.no_grad():
            below, trained = walk.train(executor, simulator.auxiliary, simulator.rule)
            observer.close()
            observer.updated = True
            walk.run_without_tape(executor, trained, below)
            observer.close()
    finally:
        for handle in handles:
            handle.remove()
    return observer.seen, row_updates(executor, simulator.auxiliary, simulator.rule, 0)


class _Observer:
    """Collects the regions of one module after the other: what it is given, and what it makes on the way."""

    def __init__(self, simulator: Simulator, keep: Keep):
        self.simulator, self.keep = simulator, keep
        self.seen: list[Observation] = []
        self.updated = False
        self._step, self._last = 1, "forward"
        self._open: tuple[Place, Phase, dict[str, Tensor]] | None = None

    def see(self, op: Placed, phase: Phase, values: dict[str, Tensor]) -> None:
        """A module is about to run."""
        self.close()
        if phase == "forward" and self._last != "forward":
            self._step += 1
        self._last = phase
        place = self.simulator.places[op.name]
        self._open = (place, phase, dict(values)) if self.keep(place) else None

    def hook(self, names: tuple[str | None, ...]) -> Callable[[nn.Module, Any, Any], None]:
        """Keeps what a part of the running module leaves in regions: one name for each of its outputs, or none."""

        def note(part: nn.Module, inputs: Any, output: Any) -> None:
            if self._open is None:
                return
            place, _, values = self._open
            outputs = output if isinstance(output, tuple) else (output,)
            given = held(place.op) if isinstance(part, ReadRows) and isinstance(place.op, Norm) else names
            values.update({name: each for name, each in zip(given, outputs, strict=True) if name is not None})

        return note

    def close(self) -> None:
        """The module has run."""
        if self._open is None:
            return
        (place, phase, values), self._open = self._open, None
        self.seen.append(
            Observation(
                op=place.op.name,
                stage="updated" if self.updated else phase,
                step=None if self.updated or not is_trained(self.simulator, place) else self._step,
                values=decoded(self.simulator, place, phase, values),
            )
        )


def _makers(structure: nn.Module) -> Iterator[tuple[nn.Module, tuple[str | None, ...]]]:
    """The parts of modules that fill regions by themselves, with the region of each output."""
    for part in structure.modules():
        match part:
            case ReadRows():
                yield part, ()  # scale and bias, or the one of them that the norm has
            case ExactGradient():
                yield part.invert, ("one over sigma",)
                yield part.mean, ("mean",)
            case Difference() if part.of_input is not None and part.of_direction is not None:
                yield part.of_direction, (None, "length of gradient", None)
                yield part.of_input, (None, "length of input", "one over length of input")
            case ScoreGradient() if part.length is not None:
                yield part.length, (None, "length of gradient", None)
            case _:
                pass


def decoded(simulator: Simulator, place: Place, phase: Phase, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Put the regions of a module into one embedding, and read them back by name.

    Piece p of every value stands in embedding p; where one value has fewer pieces than another, its slot is empty.
    """
    names = regions(place, phase, simulator.rule)
    live = {name: values[name] for name in names if name in values}
    batch, pieces, tokens = (max(value.shape[axis] for value in live.values()) for axis in range(3))
    embedding = encode(
        {
            name: functional.pad(value, (0, 0, 0, 0, 0, pieces - value.shape[1])).expand(batch, -1, tokens, -1)
            for name, value in live.items()
        },
        names,
        simulator.geometry,
    )
    slots = decode(embedding, names, simulator.geometry)
    return {name: _plain(slots[name], *cut_of(place, phase, name)) for name in live}


def _plain(slot: Float[Tensor, "B N T Dslot"], cut: Cut, piece: int | None) -> Float[Tensor, "B T W"]:
    if piece is None:
        return Tokens(slot[:, : cut.count], cut).plain()
    return slot[:, 0, :, : min(cut.step, cut.width - piece * cut.step)]
