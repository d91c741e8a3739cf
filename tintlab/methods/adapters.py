"""Adapters at test time: what `peft` puts into a model, trained by Adam, as a baseline for learning in the pass.

Adapters are trained in the Hugging Face model under autograd. What they have learnt becomes `Updates` of the fast
engine, which does all scoring, so that a method differs from the others in how it learns and in nothing else.
Which adapters there are: `lora.py`, `ia3.py`.
"""

from __future__ import annotations

import copy
import inspect
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from tintformer.errors import DivergenceError, InputError, RuleError
from tintformer.rule.learning_rule import LearningRule, Reduction
from tintformer.typed_fields import check_fields

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Adam

    from tintformer.auxiliary.description import Auxiliary
    from tintformer.auxiliary.ops import Linear, Weight
    from tintformer.engines.fast.updates import MatrixUpdate, Updates
    from tintformer.execution.batch import Batch
    from tintformer.execution.output import Logits, TintOutput
    from tintformer.learning.tuned import Tuned

ADAPTER = "default"
TOKENS = 2048
"""Tokens that run together, padding included, unless one sequence alone has more. More want more memory."""


@dataclass(frozen=True, kw_only=True)
class AdapterMethod(ABC):
    """What kind of adapter the top blocks have, and how it is trained."""

    learning_rate: float
    """Of Adam, whose first steps move every entry by about this much, however small the gradient is. Too large and
    noise is learnt; the best one is far above that of SGD."""
    layers: int | None = None
    """How many of the top blocks have adapters; None: all."""
    steps: int = 1
    """Steps of Adam."""
    reduction: ClassVar[Reduction] = "sum"
    """Losses of the targets are summed. Adam divides the scale of the loss away, so their number scales no rate."""

    def __post_init__(self) -> None:
        _ = self.rule  # refuses what no rule accepts
        check_fields(self, RuleError)

    @property
    def rule(self) -> LearningRule:
        """The rule that may move whatever has an adapter: to `Tuned` it says what the update can contain."""
        return LearningRule.full(
            learning_rate=self.learning_rate, layers=self.layers, steps=self.steps, update_norm_scale=False
        )

    def num_trained(self, num_blocks: int) -> int:
        """How many of `num_blocks` blocks learn; asking for more than there are is an error."""
        return self.rule.num_trained(num_blocks)

    @property
    def initial_seed(self) -> int:
        """Draws what starts at random, the same for every sequence."""
        return 0

    @abstractmethod
    def targets(self, linears: Sequence[Linear]) -> list[Linear]:
        """Those of the linears that get an adapter."""

    @abstractmethod
    def config(self, linears: Sequence[Linear]) -> Any:
        """The configuration of `peft` that puts adapters around the modules of these linears."""

    @abstractmethod
    def learnt(self, linear: Linear, layer: Any, dtype: Any) -> tuple[MatrixUpdate, Tensor | None]:
        """The update of a linear's matrix, and of its bias if that moves, from the adapter around its module."""


def learn(auxiliary: Auxiliary, method: AdapterMethod, batch: Batch) -> Tuned:
    """One update from all sequences, the losses of their targets summed, as `Tint.adapt` learns."""
    from tintformer.learning.tuned import Tuned

    updates = Adapters(auxiliary, method).train(_examples(batch, range(len(batch.input_ids))))
    return Tuned(auxiliary, method.rule, updates)


def learn_each(auxiliary: Auxiliary, method: AdapterMethod, batch: Batch, *, logits: Logits = "all") -> TintOutput:
    """Every sequence learns on its own and is then predicted; the result is that of `Tint(...)`."""
    from tintformer.engines.fast import FastEngine
    from tintformer.execution.output import TintOutput, positions_of

    wanted = positions_of(logits, batch)
    adapters = Adapters(auxiliary, method)
    updates = _one_a_row([adapters.train(_examples(batch, [row])) for row in range(len(batch.input_ids))])
    return TintOutput.of(batch, FastEngine(auxiliary, method.rule).score(batch, updates, logits_at=wanted))


@dataclass(frozen=True, eq=False, kw_only=True)
class _Examples:
    """One or more segments as the model sees them, `[tokens]` or `[rows, tokens]` with padding on the right.

    Every segment runs as a sequence of its own behind the shared tokens, as in the oracle: causality is then the only
    mask, which every family knows, with its own windows and positions.
    """

    ids: Tensor
    attended: Tensor
    positions: Tensor
    targets: Tensor
    scored: Tensor

    @property
    def num_tokens(self) -> int:
        return self.ids.shape[-1]


def _examples(batch: Batch, rows: Iterable[int]) -> Iterator[_Examples]:
    """The segments of some rows that have targets, each up to its last one."""
    from tintformer.execution.inputs import SHARED

    for row in rows:
        attended, segments, unused = batch.attention_mask[row], batch.segment_ids[row], batch.train_positions[row]
        shared = attended & (segments == SHARED)
        for segment in segments[attended & ~shared].unique().tolist() or [SHARED]:
            visible = shared | attended & (segments == segment)
            scored = unused & visible
            unused = unused & ~scored  # targets among the shared tokens count once
            if not scored.any():
                continue
            kept = visible.nonzero()[:, 0]
            kept = kept[kept <= scored.nonzero().max()]
            yield _Examples(
                ids=batch.input_ids[row, kept],
                attended=attended[kept],
                positions=batch.positions[row, kept],
                targets=batch.targets[row, kept],
                scored=scored[kept],
            )


def _padded(examples: Iterable[_Examples]) -> Iterator[_Examples]:
    """Sequences of similar lengths put together, as many as there is room for."""
    from torch.nn.utils.rnn import pad_sequence

    def together() -> _Examples:
        columns = {each.name: [getattr(example, each.name) for example in group] for each in fields(_Examples)}
        return _Examples(**{name: pad_sequence(column, batch_first=True) for name, column in columns.items()})

    group: list[_Examples] = []
    for example in sorted(examples, key=lambda each: each.num_tokens):
        if group and (len(group) + 1) * example.num_tokens > TOKENS:
            yield together()
            group = []
        group.append(example)
    if group:
        yield together()


class Adapters:
    """A private copy of the model with adapters; all other tensors are shared with the auxiliary."""

    def __init__(self, auxiliary: Auxiliary, method: AdapterMethod):
        from tintformer.auxiliary.description import ops
        from tintformer.auxiliary.ops import Linear

        self.method, self.dtype = method, auxiliary.dtype
        trained = auxiliary.blocks[len(auxiliary.blocks) - method.num_trained(len(auxiliary.blocks)) :]
        linears = [op for steps in trained for op in ops(steps) if isinstance(op, Linear)]
        modules = {module_of(op.weight) for op in method.targets(linears)}
        # A fused module has one adapter, which moves all of its parts.
        self.linears = [op for op in linears if module_of(op.weight) in modules]
        self.model = _with_adapters(auxiliary.model, method, self.linears)
        self.takes_positions = "position_ids" in inspect.signature(auxiliary.model.forward).parameters
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.initial = [parameter.detach().clone() for parameter in self.parameters]

    def train(self, examples: Iterable[_Examples]) -> Updates:
        """What the examples teach, their losses summed; every call starts from the same adapters."""
        import torch

        adam, groups = self.restart(), list(_padded(examples))
        for step in range(self.method.steps):
            adam.zero_grad()
            for group in groups:
                with torch.enable_grad():
                    loss = self._loss(group)
                if not math.isfinite(loss.item()):
                    raise self.divergence("the training loss", step)
                loss.backward()
            adam.step()
        return self._updates()

    def restart(self) -> Adam:
        """The adapters as they were made, and an optimiser that has seen nothing."""
        import torch

        with torch.no_grad():
            for parameter, initial in zip(self.parameters, self.initial, strict=True):
                parameter.copy_(initial)
        return torch.optim.Adam(self.parameters, lr=self.method.learning_rate)

    def _loss(self, examples: _Examples) -> Tensor:
        """Summed over the targets; the head sees no other position, because logits of all of them would be large."""
        import torch

        from tintformer.rule.head import token_loss

        options = {"position_ids": examples.positions} if self.takes_positions else {}
        head = self.model.get_output_embeddings()
        handle = head.register_forward_pre_hook(lambda module, inputs: (inputs[0][examples.scored][None],))
        try:
            # An explicit mask: without it, HF takes a gap in the position ids for the start of another sequence.
            out = self.model(
                input_ids=examples.ids, attention_mask=examples.attended.long(), use_cache=False, **options
            )
        finally:
            handle.remove()
        logits = out.logits[0].to(torch.promote_types(out.logits.dtype, torch.float32))
        return token_loss(logits, examples.targets[examples.scored]).sum()

    def _updates(self) -> Updates:
        import torch

        from tintformer.engines.fast.updates import Updates

        updates = Updates()
        for op in self.linears:
            layer = self.model.get_submodule(module_of(op.weight))
            if not all(bool(torch.isfinite(each.sum())) for each in layer.parameters() if each.requires_grad):
                raise self.divergence(f"the update of {op.weight.name}", self.method.steps)
            updates.matrices[op.weight], bias = self.method.learnt(op, layer, self.dtype)
            if op.bias is not None and bias is not None:
                updates.vectors[op.bias] = bias
        return updates

    def divergence(self, where: str, step: int) -> DivergenceError:
        when = f" after step {step} of {self.method.steps}" if step else ""
        return DivergenceError.at(where, self.method.learning_rate, when)


def _with_adapters(model: Any, method: AdapterMethod, linears: Sequence[Linear]) -> Any:
    """A copy of the module tree, in evaluation mode, whose only parameters that learn are adapters."""
    import torch
    from torch import nn

    try:
        from peft import get_peft_model
    except ImportError as error:
        name = type(method).__name__.lower()
        raise InputError(
            f"method {name} needs the package peft; install it (pip install 'tintformer[eval]')"
        ) from error
    # Parameters of its own around the same memory: peft freezes them, and the auxiliary's must keep their flags.
    memo: dict[int, Any] = {id(each): nn.Parameter(each.detach(), requires_grad=False) for each in model.parameters()}
    memo |= {id(buffer): buffer for buffer in model.buffers()}
    twin = copy.deepcopy(model, memo=memo).eval()
    with torch.random.fork_rng(devices=[]):  # peft draws on the CPU, wherever the model is
        torch.default_generator.manual_seed(method.initial_seed)
        return get_peft_model(twin, method.config(linears)).eval().get_base_model()


def module_of(weight: Weight) -> str:
    """The path of the module that a weight belongs to."""
    return weight.name.removesuffix(".weight")


def pattern_of(linears: Iterable[Linear]) -> str:
    """A pattern that the paths of their modules match in full, and no other."""
    return "|".join(dict.fromkeys(re.escape(module_of(op.weight)) for op in linears))


def _one_a_row(learnt: Sequence[Updates]) -> Updates:
    """Updates of single sequences as one, a row for each."""
    import torch

    from tintformer.engines.fast.updates import Updates

    together = Updates()
    for weight in list(learnt[0].matrices):
        # Taken out, because matrices that are formed are large and one copy of them is enough.
        together.matrices[weight] = _rows_of([updates.matrices.pop(weight) for updates in learnt])
    for weight in learnt[0].vectors:
        together.vectors[weight] = torch.cat([updates.vectors[weight] for updates in learnt])
    return together


def _rows_of(parts: Sequence[MatrixUpdate]) -> MatrixUpdate:
    """Updates of one matrix, each a factor pair or formed, as the rows of one."""
    import torch

    from tintformer.engines.fast.updates import Factors, MatrixUpdate

    first = parts[0]
    if first.dense is not None:
        dense = torch.cat([part.dense for part in parts if part.dense is not None])
        return MatrixUpdate(dual=False, dense=dense, own_bias=first.own_bias)
    factors = [part.factors[0] for part in parts]
    x, g = torch.cat([each.x for each in factors]), torch.cat([each.g for each in factors])
    return MatrixUpdate(dual=True, factors=[Factors(x, g, factors[0].rate)], own_bias=first.own_bias)
