"""`verify`: a model, a text and an engine; what the engine gets wrong, and what the approximations cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import transformers
from torch import Tensor

from tintformer.auxiliary.description import Auxiliary
from tintformer.console import Progress
from tintformer.errors import InputError
from tintformer.execution.batch import Batch
from tintformer.storage.loading import load
from tintformer.typed_fields import checked
from tintformer.version import __version__
from tintlab.checks.theorems.on_model import check_linear_as_softmax, check_theorems
from tintlab.checks.verify.first_blocks import in_float64, keep_first_blocks, num_blocks_to_keep
from tintlab.checks.verify.gradients import Gradients, align, rate_of_share, simulated_gradient, true_gradient
from tintlab.checks.verify.lockstep import compare
from tintlab.checks.verify.pass_error import compare_pass
from tintlab.checks.verify.recorder import record
from tintlab.checks.verify.verification_tables import PresetReport, Verification
from tintlab.checks.verify.verified_engine import VerifiedEngine
from tintlab.checks.verify.verify_settings import SHARE, VerifySettings, tolerance_for

GRADIENT_SHARE = 0.1
"""Where updates are looked at for themselves (op by op, and as a gradient), they move the weights by this share,
whatever the rate of the pass is: large, so that their digits do not drown in those of the weights."""
DTYPES = (torch.float32, torch.float64)


def verify(
    auxiliary: Auxiliary,
    input_ids: Tensor,
    train_mask: Tensor,
    subject: VerifiedEngine,
    settings: VerifySettings | None = None,
    *,
    layers: int | None = None,
    progress: Progress = lambda text, share: None,
) -> Verification:
    """Verify an engine on a model and a text: op by op, as a whole, as a gradient; and the theorems on the model.

    Args:
        auxiliary: A model, in float32 or float64.
        input_ids: Token ids, `[batch, tokens]`.
        train_mask: Which of them are trained on, `[batch, tokens]`; the others are evaluated.
        subject: The engine, as `find_verified_engine` makes it.
        settings: Presets, learning rate, steps, and whether theorems are checked; None is the defaults.
        layers: Keeps the first blocks of the model only; None keeps all of a small model and a few of a large one.
        progress: Is called with what is being done and the share of the work that is finished.
    """
    auxiliary = load(auxiliary)
    settings = VerifySettings() if settings is None else settings
    checked("settings", settings, VerifySettings, InputError)
    if auxiliary.dtype not in DTYPES:
        raise InputError(f"a model in {auxiliary.dtype} cannot be verified; load it in float32 or float64")
    total = len(auxiliary.blocks)
    auxiliary = keep_first_blocks(auxiliary, num_blocks_to_keep(auxiliary, layers))
    batch = Batch.of(auxiliary, input_ids, train_mask=train_mask)
    if not bool(batch.evaluation_positions.any()):
        raise InputError("there is no token to evaluate: train_mask covers all of them; leave out the last ones")
    parts = 1 + len(settings.presets) + 2 * settings.theorems

    progress("the true gradient", 0.0)
    precise = in_float64(auxiliary)
    truth = true_gradient(precise, batch)
    rate = settings.learning_rate or rate_of_share(auxiliary, truth, SHARE) / settings.steps
    presets: list[PresetReport] = []
    for number, preset in enumerate(settings.presets, start=1):
        progress(f"the rule {preset!r}", number / parts)
        presets.append(_verify_preset(auxiliary, precise, batch, subject, settings, preset, rate, truth))
    report = Verification(identity=_identity(auxiliary, total, batch, subject, rate), presets=presets)
    if not settings.theorems:
        return report
    progress("the theorems", 1 - 2 / parts)
    recorder = record(precise, batch)
    theorems = check_theorems(recorder)
    progress("linear attention as softmax attention", 1 - 1 / parts)
    return replace(report, theorems=theorems, softmax=check_linear_as_softmax(recorder))


def _verify_preset(
    auxiliary: Auxiliary,
    precise: Auxiliary,
    batch: Batch,
    subject: VerifiedEngine,
    settings: VerifySettings,
    preset: str,
    rate: float,
    truth: Gradients,
) -> PresetReport:
    rule = settings.rule(preset, rate)
    large_rate = rate_of_share(auxiliary, truth, GRADIENT_SHARE)
    one_step = replace(rule, learning_rate=large_rate, steps=1)
    in_modules = replace(rule, learning_rate=large_rate / rule.steps)
    found = simulated_gradient(auxiliary, one_step, batch, subject.engine(auxiliary, one_step))
    return PresetReport(
        preset=preset,
        rule=rule,
        tolerance=tolerance_for(rule, auxiliary.dtype, settings.tolerance, approximate=subject.approximate),
        modules=compare(auxiliary, in_modules, batch, subject.executor(auxiliary, in_modules, batch)),
        whole=compare_pass(auxiliary, precise, rule, batch, subject),
        gradient=align(auxiliary, rule, found, truth),
    )


def _identity(auxiliary: Auxiliary, total: int, batch: Batch, subject: VerifiedEngine, rate: float) -> dict[str, Any]:
    """The identity of what was verified."""
    return {
        "model": auxiliary.name,
        "dtype": str(auxiliary.dtype).removeprefix("torch."),
        "device": str(auxiliary.device),
        "engine": subject.name,
        "construction": subject.construction,
        "layers": len(auxiliary.blocks),
        "layers_of_model": total,
        "tokens": int(batch.attention_mask.sum()),
        "train_tokens": int(batch.train_mask.sum()),
        "learning_rate": rate,
        "versions": {
            "tintformer": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }
