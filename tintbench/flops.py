"""How many multiply-adds the products of a method need, read off the description of the model.

Counted are the linears, the attention (half of each square of scores: it is causal) and the head; everything else is
too little to matter. All blocks learn. P is the number of tokens that are trained on, T of those that are predicted.
"""

from __future__ import annotations

from collections.abc import Iterator

from tintformer.auxiliary.description import Auxiliary, ops
from tintformer.auxiliary.ops import Linear, Weight
from tintformer.rule.learning_rule import LearningRule
from tintformer.rule.optimiser import trained_weights


class MultiplyAdds:
    """Counts for one sequence of one model under one rule."""

    def __init__(self, auxiliary: Auxiliary, rule: LearningRule):
        self.auxiliary, self.rule = auxiliary, rule
        self.linears = list(_linears(auxiliary))
        self.head = auxiliary.head.weight.source.numel()

    def forward(self, tokens: int, logits: int) -> int:
        """One pass over `tokens`, with the head at `logits` of them."""
        return tokens * sum(_elements(op) for op in self.linears) + 2 * self._scores(tokens) + logits * self.head

    def training(self, tokens: int) -> int:
        """The rule's pass over the scored positions and its gradient, without the update.

        Back through attention values alone: scores once more, then their transpose times the gradient; linears of
        queries and keys are off the path.
        """
        on_the_path = sum(_elements(op) for op in self.linears if op.group != "query_key")
        return self.forward(tokens, tokens) + tokens * (on_the_path + self.head) + 2 * self._scores(tokens)

    def update(self, trained: int, predicted: int | None = None) -> int:
        """The update of every moved linear in the cheaper form: materialised, or dual if it is `predicted` with.

        Materialised, it is an outer product for each trained token; dual, each predicted token meets each trained one
        twice, on the input's side and on the output's.
        """
        total = 0
        for op in self.linears:
            if trained_weights(self.rule, op):
                out, width = _shape(op.weight)
                dual = None if predicted is None else predicted * (width + out)
                total += trained * (width * out if dual is None else min(width * out, dual))
        return total

    def engine(self, trained: int, tokens: int) -> int:
        """Learn from the first `trained` tokens, predict the rest: positions that predict a trained token learn."""
        return (
            self.training(trained - 1)
            + self.update(trained - 1, tokens)
            + self.forward(tokens, logits=tokens - trained)
        )

    def explicit_training(self, tokens: int, names: list[str]) -> int:
        """Forward, exact backward and update by autograd of the parameters in `names`, logits everywhere.

        Back through fused attention takes five products of the size of the scores, one of them for the scores.
        """
        moved = {id(self.auxiliary.model.get_parameter(name)) for name in names}
        elements = sum(_elements(op) for op in self.linears)
        outer = sum(_elements(op) for op in self.linears if op.weight.name in names)
        if id(self.auxiliary.model.get_output_embeddings().weight) in moved:
            outer += self.head
        backward = tokens * (elements + self.head + outer) + 5 * self._scores(tokens)
        return self.forward(tokens, tokens) + backward

    def _scores(self, tokens: int) -> int:
        """One product of the size of the scores, over all layers."""
        total = 0
        for attend in self.auxiliary.attentions():
            seen = min(tokens, attend.window or tokens)
            pairs = seen * (seen + 1) // 2 + (tokens - seen) * seen
            total += pairs * attend.num_heads * attend.head_dim
        return total


def _linears(auxiliary: Auxiliary) -> Iterator[Linear]:
    for steps in (*auxiliary.blocks, auxiliary.final):
        yield from (op for op in ops(steps) if isinstance(op, Linear))


def _shape(weight: Weight) -> tuple[int, int]:
    """Outputs and inputs of our part of a parameter."""
    out, width = weight.source.shape[::-1] if weight.transposed else weight.source.shape
    return (out if weight.part is None else out // weight.part.count), width


def _elements(op: Linear) -> int:
    out, width = _shape(op.weight)
    return out * width
