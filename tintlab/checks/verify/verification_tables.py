"""What a verification found, judged: one record for programs, rows of tables for people."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

from tintformer.rule.learning_rule import LearningRule
from tintlab.checks.theorems.check import Check
from tintlab.checks.theorems.linear_softmax import SoftmaxError, best
from tintlab.checks.verify.gradients import Alignment, PresetAlignment
from tintlab.checks.verify.lockstep import CheckedPhase, ModuleError
from tintlab.checks.verify.pass_error import PassError
from tintlab.checks.verify.verify_settings import FULL_COSINE, Tolerance

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class PresetReport:
    """What was found about one rule."""

    preset: str
    rule: LearningRule
    tolerance: Tolerance
    modules: list[ModuleError]
    whole: PassError
    gradient: PresetAlignment

    def failures(self) -> Iterator[str]:
        """One line for everything outside of tolerance."""
        for error in self.modules:
            if not error.relative <= self.allowed(error):
                place = error.module if error.layer is None else f"blocks.{error.layer}.{error.module}"
                yield (
                    f"{self.preset}: {error.phase} of {place} errs by {error.relative:.1e} of its size "
                    f"(tolerance {self.allowed(error):.0e})"
                )
        limits = {"logits": self.tolerance.logits, "weights": self.tolerance.logits, "loss": self.tolerance.loss}
        for name, limit in limits.items():
            found = getattr(self.whole, name)
            if not found <= limit:
                where = f" ({self.whole.worst_weight})" if name == "weights" else ""
                yield f"{self.preset}: {name} of the whole pass err by {found:.1e}{where} (tolerance {limit:.0e})"
        cosine = self.gradient.everything.cosine
        judged = self.preset == "full" and math.isfinite(self.tolerance.module)
        if judged and not (cosine is not None and cosine >= FULL_COSINE):
            yield f"{self.preset}: cosine with the true gradient is {cosine}, at least {FULL_COSINE} is asked for"

    def allowed(self, error: ModuleError) -> float:
        """The tolerance that an op's error is measured by."""
        return self.tolerance.difference if error.by_difference else self.tolerance.module


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Everything that was found about a model."""

    identity: dict[str, Any]
    """What was verified: model, dtype, engine, sizes, versions."""
    presets: list[PresetReport]
    theorems: list[Check] = field(default_factory=list[Check])
    softmax: list[SoftmaxError] = field(default_factory=list[SoftmaxError])

    def failures(self) -> list[str]:
        """One line for everything outside of tolerance, and for every bound that does not hold."""
        lines = [line for preset in self.presets for line in preset.failures()]
        for check in self.theorems:
            if not check.holds:
                lines.append(f"{check.name}: {check.measured:.2e} at {check.where} exceeds the bound {check.bound:.2e}")
        for error in self.softmax:
            if not error.holds:
                lines.append(
                    f"linear as softmax attention, {error.form}: {error.measured:.2e} at {error.where}, "
                    f"eps={error.epsilon:.1g}, {error.dtype} exceeds the bound {error.bound:.2e}"
                )
        return lines

    def record(self) -> dict[str, Any]:
        """All of it as plain values; what is not a finite number is null."""
        failures = self.failures()
        found = {
            **self.identity,
            "rules": {each.preset: asdict(each.rule) for each in self.presets},
            "tolerances": {each.preset: asdict(each.tolerance) for each in self.presets},
            "modules": {each.preset: [asdict(error) for error in each.modules] for each in self.presets},
            "passes": {each.preset: asdict(each.whole) for each in self.presets},
            "gradients": {each.preset: asdict(each.gradient) for each in self.presets},
            "theorems": [{**asdict(check), "printed_holds": check.printed_holds} for check in self.theorems],
            "linear_as_softmax": [asdict(error) for error in self.softmax],
            "failures": failures,
            "passed": not failures,
        }
        return _finite(found)


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def module_rows(report: Verification) -> list[Row]:
    """The relative error of every op, a column for each phase: that of the preset nearest to its tolerance.

    What is outside of tolerance has a mark.
    """
    nearest: dict[tuple[int | None, str], dict[str, tuple[float, str]]] = {}
    for each in report.presets:
        for error in each.modules:
            allowed = each.allowed(error)
            share = error.relative / allowed if 0 < allowed < math.inf else error.relative
            mark = "" if error.relative <= allowed else " !"
            row = nearest.setdefault((error.layer, error.module), {})
            row[error.phase] = max(row.get(error.phase, (-1.0, "")), (share, f"{error.relative:.1e}{mark}"))
    return [
        {"layer": "" if layer is None else layer, "module": module}
        | {phase: row[phase][1] if phase in row else "" for phase in get_args(CheckedPhase)}
        for (layer, module), row in nearest.items()
    ]


def pass_rows(report: Verification) -> list[Row]:
    """The whole pass of every rule next to its tolerance."""
    return [
        {
            "preset": each.preset,
            "logits / tolerance": _judged(each.whole.logits, each.tolerance.logits),
            "loss / tolerance": _judged(each.whole.loss, each.tolerance.loss),
            "weights / tolerance": _judged(each.whole.weights, each.tolerance.logits),
            "update, relative": f"{each.whole.updates:.1e}",
        }
        for each in report.presets
    ]


def _judged(found: float, limit: float) -> str:
    if math.isinf(limit):
        return f"{found:.1e}, not judged"
    return f"{found:.1e} / {limit:.0e}" + ("" if found <= limit else " !")


def gradient_rows(report: Verification) -> list[Row]:
    """Cosine and norm ratio with the true gradient, a row a matrix, a column a preset."""
    rows: list[Row] = []
    for index, first in enumerate(report.presets[0].gradient.matrices):
        row: Row = {
            "layer": "" if first.layer is None else first.layer,
            "matrix": first.matrix.removesuffix(".weight").replace(".", " "),
        }
        for each in report.presets:
            matrix = each.gradient.matrices[index]
            row[each.preset] = _aligned(matrix, 4) if matrix.moved else "frozen"
        rows.append(row)
    return rows


def overall_gradient_rows(report: Verification) -> list[Row]:
    """The same over what a preset moves, and over all parameters of the blocks and the final norm."""
    return [
        {
            "preset": each.preset,
            "on what it moves": _aligned(each.gradient.moved, 6),
            "over all block parameters": _aligned(each.gradient.everything, 6),
        }
        for each in report.presets
    ]


def _aligned(alignment: Alignment, digits: int) -> str:
    if alignment.norm_ratio is None:
        return "no gradient"
    cosine = "-" if alignment.cosine is None else f"{alignment.cosine:.{digits}f}"
    return f"{cosine}, {alignment.norm_ratio:.3f}"


def theorem_rows(report: Verification) -> list[Row]:
    """Each theorem at the op that comes nearest to its bound."""
    return [
        {
            "theorem": check.name,
            "bits": check.dtype.removeprefix("float"),
            "nearest at": _short(check.where),
            "measured": f"{check.measured:.1e}{'' if check.holds else ' !'}",
            "bound": f"{check.bound:.1e}",
            "printed": "" if check.printed is None else f"{check.printed:.1e}",
        }
        for check in nearest_checks(report)
    ]


def theorem_notes(report: Verification) -> list[str]:
    """What is to be said about the rows of `theorem_rows`, once each."""
    lines = [f"{check.name}, {_short(check.where)}: {check.note}" for check in nearest_checks(report) if check.note]
    return list(dict.fromkeys(lines))


def nearest_checks(report: Verification) -> list[Check]:
    """Of each theorem and dtype, the check that comes nearest to its bound."""
    nearest: dict[tuple[str, str], Check] = {}
    for check in report.theorems:
        key = check.name, check.dtype
        if key not in nearest or check.ratio > nearest[key].ratio:
            nearest[key] = check
    return list(nearest.values())


def softmax_rows(report: Verification) -> list[Row]:
    """Linear attention as softmax attention at the best eps of each form."""
    return [
        {
            "linear": _short(error.where),
            "form": error.form,
            "bits": error.dtype.removeprefix("float"),
            "eps": f"{error.epsilon:.0e}",
            "relative error": f"{error.relative:.1e}",
            "measured": f"{error.measured:.1e}{'' if error.holds else ' !'}",
            "bound": f"{error.bound:.1e}",
        }
        for error in best(report.softmax)
    ]


def _short(where: str) -> str:
    return where.removeprefix("blocks.")
