"""How large the compiled network of a model is, without building it: depth, width, prefix, parameters, capacity.

The network is compiled on shapes alone, every layer of it, and each layer says its own size.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tintformer.auxiliary.description import Auxiliary, forks
from tintformer.auxiliary.ops import Add, Attend
from tintformer.errors import InputError
from tintformer.network.layers import Layer, Quantity
from tintformer.network.network import Network
from tintformer.rule.learning_rule import LearningRule
from tintformer.simulator.geometry import DEFAULT_STACK
from tintformer.simulator.regions import PHASES, Phase
from tintlab.checks.accounting.network_entries import entries, kept

MAX_BLOCKS = 400
"""More than any published model has; layer by layer, thousands would take minutes."""
TOKENS = 64
"""Text tokens that a network is compiled for if nothing else is asked for and the model has so many positions."""
CLEARING = "LinearMap, clearing slots"
STORED = ("dense", "non_zero", "structured")


@dataclass(frozen=True, kw_only=True)
class LayerCount:
    """Layers of one kind in one direction, and their parameters."""

    kind: str
    """The class of the layers."""
    phase: Phase
    """Which direction: forward, backward or descent."""
    layers: int
    """How many there are."""
    dense: int
    """Entries of all maps over the whole stream."""
    non_zero: int
    """Entries of them that are not zero."""
    structured: int
    """Numbers that the layers keep."""


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What one step must keep for backward, in coordinates of a token; the paper has `dim_sim` for everything."""

    dim_sim: int
    """S D_aux, the paper's width."""
    forward_values: int
    """Every value that the trained blocks compute in one forward pass: the outputs of all ops and residual sums."""
    kept: int
    """What forward leaves and backward reads, in whole slots, under the rule that was compiled."""
    text_slots: int
    """All text slots: what is live at once, by liveness, and what the embedding gives."""
    store: int
    """T H_aux: the attention weights of one token, which a backward attention stores before it reads them."""

    @property
    def widths(self) -> dict[str, float]:
        """The same in multiples of the paper's width."""
        names = ("forward_values", "kept", "text_slots", "store")
        return {name: getattr(self, name) / self.dim_sim for name in names}


@dataclass(frozen=True, kw_only=True)
class NetworkSize:
    """A compiled network in numbers."""

    layers: int
    """The depth, layers that clear slots included."""
    slots: int
    """Text slots."""
    weight_slots: int
    """Slots of a prefix token: a row of a matrix each, and as many more for velocity and base where there are any."""
    slot_width: int
    """Coordinates of a slot."""
    width: int
    """Coordinates of a token."""
    prefix_tokens: int
    """Tokens that hold weights."""
    text_tokens: int
    """The longest text."""
    steps: int
    """Gradient steps inside the pass."""
    auxiliary: int
    """Parameters that hold the auxiliary's own weights: prefix tokens with their padding, tables and head."""
    stages: dict[str, int]
    """Layers by stage of the walk, without those that clear slots."""
    counts: list[LayerCount]
    """Layers and parameters by kind and direction."""
    capacity: Capacity
    """What one step must keep, in coordinates of a token."""

    @property
    def layers_a_step(self) -> int:
        """Layers that one more step adds, without those that clear slots for it."""
        return (self.stages.get("forward", 0) + self.stages.get("backward", 0)) // max(1, self.steps)

    def total(self, measure: str) -> int:
        """A measure, summed over all kinds of layers.

        Args:
            measure: `layers`, `dense`, `non_zero` or `structured`.
        """
        return sum(getattr(each, measure) for each in self.counts)

    def depth(self) -> list[dict[str, Any]]:
        """Layers of every kind: forward, backward, descent and their total."""
        kinds = dict.fromkeys(each.kind for each in self.counts)
        rows = [self._row(kind, "layers", {kind}) for kind in kinds]
        return [*rows, self._row("all", "layers", set(kinds))]

    def stored(self) -> list[dict[str, Any]]:
        """Parameters dense, non-zero and structured: forward, backward, descent and their total."""
        kinds = {each.kind for each in self.counts}
        return [self._row(name.replace("_", "-"), name, kinds) for name in STORED]

    def _row(self, name: str, measure: str, kinds: set[str]) -> dict[str, Any]:
        counts: dict[str, int] = {
            phase: sum(getattr(each, measure) for each in self.counts if each.phase == phase and each.kind in kinds)
            for phase in PHASES
        }
        return {"layer" if measure == "layers" else "parameters": name, **counts, "total": sum(counts.values())}


def count_network(
    model: Any, *, rule: LearningRule | None = None, max_tokens: int | None = None, stack: int = DEFAULT_STACK
) -> NetworkSize:
    """Count the compiled network of a model; nothing is loaded or fetched.

    Args:
        model: A known name, a configuration file or directory, or an auxiliary.
        rule: What it learns by; more steps make a deeper network. None is `LearningRule` with its defaults.
        max_tokens: The longest text; None is 64, or as many as the model has positions.
        stack: Rows of a matrix in one prefix token.
    """
    from tintformer.storage.configs import meta_auxiliary, read_config

    if isinstance(model, Auxiliary):
        model.require_language_model("a count of a network")
        auxiliary = model if model.device.type == "meta" else meta_auxiliary(model.model.config, model.name)
    else:
        auxiliary = meta_auxiliary(read_config(model), str(model))
    if max_tokens is None:
        max_tokens = min(TOKENS, auxiliary.max_positions or TOKENS)
    if len(auxiliary.blocks) > MAX_BLOCKS:
        raise InputError(
            f"{len(auxiliary.blocks)} blocks are too many to write down layer by layer; up to {MAX_BLOCKS} are counted"
        )
    with torch.device("meta"):
        network = Network(auxiliary, rule or LearningRule(learning_rate=1e-4), max_tokens=max_tokens, stack=stack)
    return count_layers(network)


def count_layers(network: Network) -> NetworkSize:
    """The size of a structured network, compiled with its numbers or on the meta device."""
    frame, layers = network.frame, _layers(network)
    held = {id(each): each.numel() for part in (network.embed, network.head) for each in part.parameters()}
    return NetworkSize(
        layers=len(layers),
        slots=frame.num_slots,
        weight_slots=frame.weight_slots,
        slot_width=frame.width,
        width=frame.dim,
        prefix_tokens=frame.num_prefix,
        text_tokens=frame.num_tokens,
        steps=network.rule.steps,
        # Velocity and base are slots of the prefix tokens as well; they begin as zeros and as the weights.
        auxiliary=sum(held.values()) + frame.num_prefix * (frame.weight_slots - frame.stack) * frame.width,
        stages=dict(Counter(layer.stage.phase for layer in layers if layer.op != "clear")),
        counts=_counts(network),
        capacity=_capacity(network),
    )


def _layers(network: Network) -> list[Layer]:
    return list(network.layers)  # pyright: ignore[reportReturnType]


def _counts(network: Network) -> list[LayerCount]:
    """By kind and direction. What several layers keep together counts for the first of them.

    In a loop a layer runs more than once, but its parameters are stored once.
    """
    sums: dict[tuple[str, Phase], Counter[str]] = {}
    seen: set[nn.Module | nn.Parameter] = set()
    for layer in _layers(network):
        kind = CLEARING if layer.op == "clear" else type(layer).__name__
        count = sums.setdefault((kind, layer.phase), Counter())
        count["layers"] += 1
        if layer not in seen:
            seen.add(layer)
            size = entries(layer, network.frame)
            own = [each for each in kept(layer) if each not in seen]
            seen.update(own)
            count.update(dense=size.dense, non_zero=size.non_zero, structured=sum(each.numel() for each in own))
    return [
        LayerCount(kind=kind, phase=phase, layers=count["layers"], **{name: count[name] for name in STORED})
        for (kind, phase), count in sums.items()
    ]


# Capacity.


def _capacity(network: Network) -> Capacity:
    frame, auxiliary = network.frame, network.auxiliary
    attentions = [wired.op for wired in network.wired.values() if isinstance(wired.op, Attend)]
    return Capacity(
        dim_sim=frame.stack * auxiliary.stream_width,
        forward_values=_forward_values(network),
        kept=len(_kept(_layers(network))) * frame.width,
        text_slots=frame.num_slots * frame.width,
        store=max((op.num_heads for op in attentions), default=0) * frame.num_tokens,
    )


def _forward_values(network: Network) -> int:
    blocks = network.auxiliary.blocks
    first = len(blocks) - network.rule.num_trained(len(blocks))
    of_ops = sum(
        wired.out.width for wired in network.wired.values() if wired.block is not None and wired.block >= first
    )
    num_sums = sum(isinstance(fork.join, Add) for block in blocks[first:] for fork in forks(block))
    return of_ops + num_sums * network.auxiliary.stream_width


def _kept(layers: list[Layer]) -> set[Quantity]:
    """What the first step's backward half reads of the forward half; not flags and targets, which are given."""
    backward = [layer for layer in layers if layer.stage.phase == "backward" and layer.stage.step == 1]
    behind = layers.index(backward[0]) if backward else 0
    written = {each for layer in layers[:behind] if layer.op != "clear" for each in layer.writes}
    # A model without learned positions and norm hands its token embeddings to the first block as they are given.
    return {
        each
        for layer in backward
        if layer.op != "clear"
        for each in layer.reads
        if each in written or each.name.startswith("tokens")
    }
