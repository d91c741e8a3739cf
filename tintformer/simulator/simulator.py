"""The simulator: a transformer whose forward pass trains the auxiliary, and `build`, which constructs it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Unpack

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from tintformer.auxiliary.description import Auxiliary, compute_dtype
from tintformer.auxiliary.model_record import CopiedWeights
from tintformer.auxiliary.ops import Weight
from tintformer.engines.reference import check_stream
from tintformer.errors import InputError, TintError
from tintformer.execution import walk
from tintformer.execution.batch import Batch, LearningMasks
from tintformer.execution.continuation import Continuation, KeyValueCache
from tintformer.execution.engine import own_settings, row_updates, undisturbed
from tintformer.execution.examples import Examples, learning_batch
from tintformer.execution.hooks import Hooks, Watchable
from tintformer.execution.inputs import Array
from tintformer.execution.output import EngineResult, Logits, TintOutput, positions_of, predict, warn_of_ruin
from tintformer.rule.head import loss_of
from tintformer.rule.learning_rule import LearningRule, require_built
from tintformer.simulator import checkpoint, prefix
from tintformer.simulator.construction import Construction
from tintformer.simulator.geometry import Geometry, auxiliary_width, derive
from tintformer.simulator.layouts import Layout
from tintformer.simulator.module_factory import ModuleFactory, OpModules, make_structure, module_name, num_slots
from tintformer.simulator.modules.loss_gradient import LossGradient
from tintformer.simulator.modules.movement import num_held
from tintformer.simulator.modules.self_attention import AttentionBackward, Transposition
from tintformer.simulator.primitives.tokenwise import FeedForward, Table, constant
from tintformer.simulator.simulator_executor import SimulatorExecutor
from tintformer.simulator.wiring import ModuleOp, WiredOp, wire
from tintformer.storage.loading import load
from tintformer.typed_fields import checked


def build(model: Any, rule: LearningRule, **construction: Any) -> Simulator:
    """Construct the transformer that trains `model` by `rule` inside its forward pass.

    The auxiliary is never modified; its weights are copied into prefix tokens.

    Args:
        model: What `load` takes, on one device.
        rule: How it learns.
        **construction: Fields of `Construction`: layout, stack, tie_blocks, attention, ...; all else is derived.
    """
    return Simulator(load(model), require_built(rule, "a simulator"), Construction.of(construction))


class Simulator(nn.Module, Watchable):
    """Structure (constant maps, shared by the layers if tied) and the auxiliary's weights as prefix tokens.

    Called on token ids it trains the auxiliary inside the pass and predicts with it, as `Tint` does. `build` makes one.

    Args:
        auxiliary: What `load` returns.
        rule: How it learns.
        construction: How the simulator is built.
    """

    def __init__(self, auxiliary: Auxiliary, rule: LearningRule, construction: Construction):
        super().__init__()
        auxiliary.require_one_device("the simulator")
        self.auxiliary, self.rule, self.construction = auxiliary, require_built(rule, "a simulator"), construction
        with own_settings(auxiliary):
            self._construct()
        self.to(device=auxiliary.device)
        self.eval()

    def _construct(self) -> None:
        auxiliary, rule, construction = self.auxiliary, self.rule, self.construction
        self._hooks = Hooks(auxiliary, rule)
        self.dtype = compute_dtype(auxiliary.dtype)
        self.wired: dict[str, WiredOp] = {wired.op.name: wired for wired in wire(auxiliary, auxiliary_width(auxiliary))}
        factory = self.factory(derive(auxiliary, layout=construction.layout, stack=construction.stack))
        g = factory.layout.geometry
        # Memory is added where the stack leaves too little for the rule's widest module.
        self.geometry: Geometry = replace(g, slots=max(g.slots, num_slots(factory, self.wired.values())))
        factory = self.factory(self.geometry)
        structure = make_structure(factory, self.wired.values(), tie_blocks=construction.tie_blocks)
        self.structure = nn.ModuleDict(structure.modules)
        self._keys = structure.keys
        self.prefix = nn.ParameterDict()
        self.copied_weights = CopiedWeights(list(auxiliary.model.parameters()))
        self._write_prefix()
        self._build_ends()

    def __repr__(self) -> str:
        layout, structural = self.construction.layout, self.num_structural
        return f"<Simulator {self.auxiliary.name}, layout {layout}, {structural:,} structural parameters, {self.rule}>"

    @property
    def hooks(self) -> Hooks:
        return self._hooks

    # The pass.

    def forward(
        self,
        input_ids: Array | Examples,
        *,
        train_mask: Array | None = None,
        before: bool = False,
        logits: Logits = "all",
        **masks: Unpack[LearningMasks],
    ) -> TintOutput:
        """Train on the part under `train_mask`, each sequence on its own, and predict the rest.

        Args:
            input_ids: Token ids `[batch, tokens]`, or `Examples` where the model takes them.
            train_mask: 1 for the tokens that are trained on, 0 for those that are evaluated; Examples have their own.
            before: Add what the model predicted before learning.
            logits: Which logits to return: "all", those that predict "evaluation" tokens, or "none".
            **masks: Those of a call of `Tint`.
        """
        batch = learning_batch(self.auxiliary, input_ids, train_mask, **masks)
        checked("before", before, bool, InputError)
        out = TintOutput.of(batch, self.run(batch, logits_at=positions_of(logits, batch), before=before))
        warn_of_ruin(out)
        return out

    @undisturbed
    @torch.no_grad()
    def run(self, batch: Batch, *, logits_at: Bool[Tensor, "B T"] | None, before: bool) -> EngineResult:
        """Train every sequence on its own, then predict: the simulator as an engine."""
        self._require_current()
        executor = SimulatorExecutor(self, batch)
        observed = self.hooks.observed(executor, batch)
        untrained = walk.forward_pass(observed, self.auxiliary, "before") if before else None
        x = walk.train_in_the_pass(observed, self.auxiliary, self.rule)
        return EngineResult(
            after=predict(batch, self._checked(x.data[:, 0], batch), logits_at, self.head),
            before=None if untrained is None else predict(batch, untrained.data[:, 0], logits_at, self.head),
            updates=lambda row: row_updates(executor, self.auxiliary, self.rule, row),
        )

    @undisturbed
    @torch.no_grad()
    def begin(self, batch: Batch, *, keep_cache: bool) -> SimulatorContinuation:
        """Train every sequence on its own and read it; `keep_cache` keeps the keys and values that going on needs."""
        self._require_current()
        cache = KeyValueCache() if keep_cache else None
        executor = SimulatorExecutor(self, batch, cache=cache)
        x = walk.learn_and_read(self.hooks.observed(executor, batch), self.auxiliary, self.rule, batch)
        return SimulatorContinuation(executor, cache, self._checked(x.data[:, 0], batch))

    def _require_current(self) -> None:
        # Prefix tokens hold copies, tables the model's own memory: after a change it would be neither old nor new.
        if self.copied_weights.changed():
            raise TintError(
                f"the weights of {self.auxiliary.name} have changed since the simulator was built, which holds them in "
                "prefix tokens; build it again"
            )
        narrow = next(self.parameters()).dtype
        if torch.promote_types(narrow, self.dtype) != narrow:
            raise TintError(f"the simulator was built in {self.dtype} and cannot compute in {narrow}; build it again")

    def _checked(self, x: Tensor, batch: Batch) -> Tensor:
        check_stream(x, self.auxiliary, self.rule, batch)
        return x

    def read(self, executor: SimulatorExecutor) -> Tensor:
        """The stream at the head's input, nothing trained."""
        return self._checked(walk.forward_pass(executor, self.auxiliary).data[:, 0], executor.batch)

    def save_pretrained(self, directory: str | os.PathLike[str], *, full: bool = False) -> None:
        """Write the auxiliary's weights and a configuration.

        Args:
            directory: Where to; what `save_pretrained` wrote there before is replaced.
            full: Add every constructed tensor, which reading does not need.
        """
        self.auxiliary.require_unchanged()
        self._require_current()
        checkpoint.save(self, directory, full=full)

    @classmethod
    def from_pretrained(cls, directory: str | os.PathLike[str]) -> Simulator:
        """Read what `save_pretrained` wrote; the structure is rebuilt, bit by bit the same.

        Args:
            directory: What `save_pretrained` wrote.
        """
        return checkpoint.load(directory)

    # The parts.

    def modules_of(self, op: ModuleOp) -> OpModules:
        """The modules that stand for an op."""
        modules = self.structure[self._keys[op.name]]
        assert isinstance(modules, OpModules)
        return modules

    def prefix_of(self, op: ModuleOp) -> Tensor | None:
        """The prefix tokens that hold an op's weights before any step; None for an op without weights."""
        return self.prefix.get(module_name(op.name))

    def weights_in(self, op: ModuleOp, tokens: Tensor) -> dict[Weight, Tensor]:
        """What prefix tokens of an op hold, as weights of the auxiliary."""
        return prefix.read(self.wired[op.name], tokens, self.geometry)

    @property
    def store_capacity(self) -> int | None:
        """Training tokens whose scores the backward attentions have room to store; None where they store none."""
        attentions = (part for part in self.structure.modules() if isinstance(part, AttentionBackward))
        capacities = [part.store_capacity for part in attentions if part.store_capacity is not None]
        return min(capacities, default=None)

    def transposition_of(self, num_training: int) -> Transposition:
        """How the backward attention of a pass with so many training tokens gets at transposed scores."""
        return "stored" if self.store_capacity is not None and num_training <= self.store_capacity else "scores"

    @property
    def num_structural(self) -> int:
        """Constructed parameters, without the auxiliary's own."""
        ends = [self.loss_gradient.next_token]
        return sum(parameter.numel() for part in (self.structure, *ends) for parameter in part.parameters())

    @property
    def num_auxiliary(self) -> int:
        """Parameters that hold the auxiliary's weights: prefix tokens with their padding, tables and head.

        With momentum or decay also the slots of prefix tokens for velocity and base: they start as zeros and as the
        weights, and need no memory before the first step.
        """
        own = sum(parameter.numel() for parameter in self.parameters()) - self.num_structural
        return own + (num_held(self.rule) - 1) * sum(tokens.numel() for tokens in self.prefix.values())

    # Building.

    def factory(self, geometry: Geometry) -> ModuleFactory:
        """What makes the modules of this simulator's auxiliary and rule, for a geometry."""
        num_blocks = len(self.auxiliary.blocks)
        return ModuleFactory(
            layout=Layout(geometry),
            rule=self.rule,
            weigh=self.construction.weigh(self.dtype),
            transposition=self.construction.transposition,
            dtype=self.dtype,
            first_trained=num_blocks - self.rule.num_trained(num_blocks),
        )

    def _write_prefix(self) -> None:
        for wired in self.wired.values():
            tokens = prefix.write(wired, self.geometry, self.dtype)
            if tokens is not None:
                self.prefix[module_name(wired.op.name)] = constant(tokens)

    def _build_ends(self) -> None:
        embedding, head, dim_slot = self.auxiliary.embedding, self.auxiliary.head, self.geometry.dim_slot
        rows = self._shared(embedding.tokens)
        head_rows = rows if head.weight.source is embedding.tokens.source else self._shared(head.weight)
        bias = None if head.bias is None else self._shared(head.bias)
        self.embedding = Table(rows, dim_slot=dim_slot, scale=embedding.scale)
        self.positions = None
        if embedding.positions is not None:
            self.positions = Table(self._shared(embedding.positions), dim_slot=dim_slot)
        weigh = self.construction.weigh(self.dtype)
        loss, layout = loss_of(self.rule, self.auxiliary), Layout(self.geometry)
        self.loss_gradient = LossGradient(head_rows, bias, layout, loss=loss, weigh=weigh)
        self.loss_gradient.to(self.dtype)
        self.head = FeedForward(head_rows, bias, "none")

    def _shared(self, weight: Weight) -> nn.Parameter:
        """A frozen table of the auxiliary: its own memory, if it has the simulator's dtype."""
        return constant(weight.read().to(self.dtype))


class SimulatorContinuation(Continuation):
    """Continued by the simulator itself: the prefix tokens hold what has been learnt."""

    def __init__(self, executor: SimulatorExecutor, cache: KeyValueCache | None, x: Tensor):
        super().__init__(executor.simulator.auxiliary, executor.batch, cache, x)
        self.simulator, self.updated_prefix = executor.simulator, executor.updated_prefix

    def _read(self, batch: Batch, cache: KeyValueCache, start: int) -> Tensor:
        executor = SimulatorExecutor(
            self.simulator, batch, updated_prefix=self.updated_prefix, cache=cache, start=start
        )
        return self.simulator.read(executor)

    def _head(self, rows: Tensor) -> Tensor:
        return self.simulator.head(rows)

    def _reorder_updates(self, rows: Tensor) -> None:
        self.updated_prefix = {name: tokens.index_select(0, rows) for name, tokens in self.updated_prefix.items()}
