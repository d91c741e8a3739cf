"""Measures of a comparison, from what was kept of every input and seed, with intervals over both.

Every measure is computed for each seed over the inputs, and averaged over the seeds. `docs/compare.md` defines them.
"""

# S seeds, O orders of the demonstrations, N inputs, W label words, L blocks, R resamples

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tintlab.show.intervals import Estimate, two_way_bootstrap

SIMILARITIES = {
    "attention_output": "attention output",
    "attention_map": "attention map",
    "block_output": "block output",
    "implicit_update": "implicit update",
    "implicit_effect": "implicit update, effect",
    "attention_scores": "attention scores, as they are",
}
"""Cosines between what reading and learning change, block by block; of the last, between the scores themselves."""
SIZES = {"read_size": "change by reading", "learnt_size": "change by learning"}
"""Of the stream behind a block, relative to the stream."""
PREDICTIONS = {
    "accuracy_zero": "accuracy, zero-shot",
    "accuracy_read": "accuracy, reading",
    "accuracy_learnt": "accuracy, learning",
    "agreement": "agreement of reading and learning",
    "agreement_zero": "agreement of reading and zero-shot",
    "correlation": "correlation of log-odds",
    "change_correlation": "correlation of their changes",
    "kl_zero": "KL, reading to zero-shot",
    "kl_learnt": "KL, reading to learning",
    "kl_removed": "share of the KL removed by learning",
}
ORDERS = {
    "order_read": "spread over orders, reading",
    "order_learnt": "spread over orders, learning",
    "flips_read": "answers that depend on the order, reading",
    "flips_learnt": "answers that depend on the order, learning",
}
SHARE = {"block_share": "share of reading's change along learning's"}
MEASURES = PREDICTIONS | ORDERS | SHARE | SIMILARITIES | SIZES
"""All measures, and what tables call them."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Sample:
    """What was kept of every input that all seeds have."""

    labels: Any
    """Right answers `[N]`."""
    zero: Any
    """Log-probabilities of the label words without demonstrations `[S, N, W]`."""
    read: Any
    """After reading the demonstrations in each order `[S, O, N, W]`; the first is the order in which they are drawn."""
    learnt: Any
    """After learning from them `[S, O, N, W]`; -inf where learning diverged."""
    blocks: dict[str, Any]
    """The similarities and sizes of every block `[S, N, L]`; NaN where there is nothing to compare."""

    def measures(self) -> dict[str, Estimate]:
        """All of them; those of the blocks as a mean over blocks."""
        import numpy as np

        found = {name: two_way_bootstrap([values]) for name, values in self._means().items()}
        found |= {
            "correlation": self._correlation(self._odds(self.read[:, 0]), self._odds(self.learnt[:, 0])),
            "change_correlation": self._correlation(self._change(self.read[:, 0]), self._change(self.learnt[:, 0])),
            "kl_removed": two_way_bootstrap(
                [self._divergence(self.learnt[:, 0]), self._divergence(self.zero)], lambda left, all: 1 - left / all
            ),
        }
        for name in (*SIMILARITIES, *SIZES):
            found[name] = two_way_bootstrap([_mean_over_blocks(self.blocks[name])])
        shares = np.clip(self.blocks["block_output"], 0, None) ** 2
        found["block_share"] = two_way_bootstrap([_mean_over_blocks(shares)])
        return {name: found[name] for name in MEASURES if name in found}

    def by_block(self) -> dict[str, tuple[Estimate, ...]]:
        """The similarities and sizes of each block."""
        return {
            name: tuple(two_way_bootstrap([values[..., at]]) for at in range(values.shape[-1]))
            for name, values in self.blocks.items()
        }

    def _means(self) -> dict[str, Any]:
        """Measures that are means over inputs, `[S, N]` each."""
        read, learnt = self.read[:, 0], self.learnt[:, 0]
        best = _best(read)
        found = {
            "accuracy_zero": 1.0 * (_best(self.zero) == self.labels),
            "accuracy_read": 1.0 * (best == self.labels),
            "accuracy_learnt": 1.0 * (_best(learnt) == self.labels),
            "agreement": 1.0 * (best == _best(learnt)),
            "agreement_zero": 1.0 * (best == _best(self.zero)),
            "kl_zero": self._divergence(self.zero),
            "kl_learnt": self._divergence(learnt),
        }
        if self.read.shape[1] > 1:
            for name, scores in (("read", self.read), ("learnt", self.learnt)):
                answers = _best(scores)
                found[f"flips_{name}"] = 1.0 * (answers != answers[:, :1]).any(1)
                found[f"order_{name}"] = self._odds(scores).std(1, ddof=1).mean(-1)
        return found

    @cached_property
    def _log_read(self) -> Any:
        return _log_softmax(self.read[:, 0])

    def _divergence(self, scores: Any) -> Any:
        """KL of what is predicted after reading from another prediction, over the label words, in nats."""
        import numpy as np

        return (np.exp(self._log_read) * (self._log_read - _log_softmax(scores))).sum(-1)

    def _odds(self, scores: Any) -> Any:
        """Log-odds of every label word but the first against the first."""
        import numpy as np

        with np.errstate(invalid="ignore"):  # NaN where a model diverged
            return scores[..., 1:] - scores[..., :1]

    def _change(self, scores: Any) -> Any:
        return self._odds(scores) - self._odds(self.zero)

    def _correlation(self, x: Any, y: Any) -> Estimate:
        """Pearson's over inputs, of each label word by itself, averaged over label words."""
        products = [x, y, x * y, x * x, y * y]
        samples = [values[..., word] for word in range(x.shape[-1]) for values in products]
        return two_way_bootstrap(samples, _mean_correlation)


def _mean_correlation(*means: Any) -> Any:
    import numpy as np

    found: list[Any] = []
    for start in range(0, len(means), 5):
        x, y, xy, xx, yy = means[start : start + 5]
        with np.errstate(invalid="ignore", divide="ignore"):
            found.append((xy - x * y) / np.sqrt((xx - x * x) * (yy - y * y)))
    return sum(found) / len(found)


def _best(scores: Any) -> Any:
    """The label word with the highest score; -1 for a model that diverged, which gives no answer."""
    import numpy as np

    return np.where(np.isfinite(scores.max(-1)), scores.argmax(-1), -1)


def _log_softmax(scores: Any) -> Any:
    import numpy as np

    with np.errstate(invalid="ignore"):  # a diverged model has -inf everywhere, and no distribution
        shifted = scores - scores.max(-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _mean_over_blocks(values: Any) -> Any:
    """The mean over the blocks that have a value; NaN where none has."""
    import numpy as np

    known = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.where(known, values, 0.0).sum(-1) / known.sum(-1)


def compare_estimates(one: Estimate, other: Estimate) -> str:
    """Whether one is above or below the other: their intervals must not touch."""
    if one.low > other.high:
        return "higher"
    if one.high < other.low:
        return "lower"
    return "no clear difference"


def gather_samples(seeds: Sequence[Sequence[dict[str, Any]]]) -> Sample:
    """The inputs that all seeds have, from the results of the units of each seed."""
    import numpy as np

    placed = [_placed(units) for units in seeds]
    common = sorted(set.intersection(*(set(places) for places, _ in placed)))

    def of(name: str, axis: int) -> Any:
        picked = [np.take(values[name], [places.index(at) for at in common], axis=axis) for places, values in placed]
        return np.stack(picked)

    blocks = {name: of(name, 0) for name in (*SIMILARITIES, *SIZES)}
    return Sample(
        labels=of("labels", 0)[0], zero=of("zero", 0), read=of("read", 1), learnt=of("learnt", 1), blocks=blocks
    )


def _placed(units: Sequence[dict[str, Any]]) -> tuple[list[int], dict[str, Any]]:
    """The numbers of the inputs of one seed, and what is known of them as arrays."""
    import numpy as np

    units = [unit for unit in units if unit["inputs"]]
    values: dict[str, Any] = {
        name: np.concatenate([np.asarray(unit[name]) for unit in units], axis=axis)
        for name, axis in (("labels", 0), ("zero", 0), ("read", 1), ("learnt", 1))
    }
    for name in (*SIMILARITIES, *SIZES):
        values[name] = np.concatenate([np.asarray(unit["blocks"][name], dtype=float).T for unit in units])
    return [at for unit in units for at in unit["inputs"]], values
