"""What is written under the figures of a report, and what is read out in their place."""

from __future__ import annotations

from collections.abc import Sequence

from tintformer.report.collect import Report, UpdateNorm
from tintformer.report.panels import smoothing_window, tidy, unit_exponent


def captions(report: Report) -> dict[str, tuple[str, str]]:
    """Title and caption by figure, in the order of the page; a figure that is missing is explained."""
    return {
        "loss": (
            "Loss by position",
            f"Evaluation part, before and after; a moving mean over {smoothing_window(len(report.scored))} tokens. "
            "Blue between the lines: the pass has helped. Orange: it has harmed.",
        ),
        "updates": ("Update norms by layer and matrix", _updates_caption(report)),
        "cosines": ("Simulated against exact gradient", _cosines_caption(report)),
        "rates": ("Learning-rate curve", _rates_caption(report)),
    }


def _updates_caption(report: Report) -> str:
    blocks = [update for update in report.updates if update.layer is not None]
    others = [update for update in report.updates if update.layer is None]
    if not blocks:
        return "Nothing in the blocks has moved."
    exponent = unit_exponent(blocks)
    unit = f"in units of 1e{exponent}, " if exponent else ""
    tail = f" Outside of the blocks: {_listed(others)}." if others else ""
    return (
        f"Norm of the change of each matrix, with its bias, {unit}after {_steps(report)}; the shade is its logarithm."
        f"{tail}"
    )


def _listed(updates: Sequence[UpdateNorm]) -> str:
    return ", ".join(f"{update.matrix} {update.norm:.2g}" for update in updates)


def _steps(report: Report) -> str:
    return "1 step" if report.rule.steps == 1 else f"{report.rule.steps} steps"


def _cosines_caption(report: Report) -> str:
    if not report.cosines:
        return f"Left out. {report.no_cosines}"
    whole = report.cosines[0]
    overall = ", ".join(
        f"{value:.3f} over {what}"
        for value, what in ((whole.moved, "the parameters that move"), (whole.everything, "all parameters"))
        if value is not None
    )
    first = "" if report.rule.steps == 1 else " of the first step"
    return (
        f"Cosine of the rule's gradient{first} with the one that autograd gives for the same loss in float64. Over the "
        f"whole model: {overall or 'not defined, for nothing moves'}. Parameters that stand still count as zeros."
    )


def _rates_caption(report: Report) -> str:
    choice = report.choice
    if choice is None:
        return f"There is none: the rate, {tidy(report.rule.learning_rate)}, was given and not searched for."
    how = "The rate that is used lies at or just below the best." if choice.helps else "No rate helped."
    return (
        f"Each rate was tried inside the training part alone: trained on {choice.train_tokens} of its tokens, scored "
        f"on the last {choice.evaluation_tokens}. {how}"
    )


def alternative_text(name: str, report: Report) -> str:
    """The figure in a sentence, for those who do not see it."""
    if name == "loss":
        return (
            f"Two lines over positions {report.scored[0].position} to {report.scored[-1].position}; their means are "
            f"{report.loss_before:.3f} nats before and {report.loss:.3f} after."
        )
    if name == "updates":
        largest = max(report.updates, key=lambda update: update.norm)
        where = "" if largest.layer is None else f" of layer {largest.layer}"
        return f"A table of norms; the largest is {largest.norm:.2g}, of {largest.matrix}{where}."
    if name == "cosines":
        known = [cosine.moved for cosine in report.cosines[1:] if cosine.moved is not None]
        if not known:
            return "Nothing moves, so that no cosine is defined."
        return f"A line over layers; where parameters move the cosine is {min(known):.3f} to {max(known):.3f}."
    assert report.choice is not None
    points = ", ".join(f"{point.loss:.3f} at {tidy(point.rate)}" for point in report.choice.curve)
    return f"Held-out loss by rate: {points}; chosen: {tidy(report.choice.rate)}."
