"""`probe`: does learning from a context change what a model does with unrelated prompts, and does reading it?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tintformer.errors import InputError
from tintformer.storage.whole_files import check_directory
from tintformer.typed_fields import checked
from tintlab.kinds.probe_inputs import CONTROL, Contexts, Prompts
from tintlab.kinds.probe_result import ProbeResult, ProbeRow
from tintlab.kinds.probe_shifts import rows_of
from tintlab.kinds.probe_study import ProbeStudy, ask, prepare
from tintlab.kinds.sweep import RECORDS, Rules
from tintlab.study.runner import Jobs, ProcessGroup, Runner, UnitProgress
from tintlab.study.store import RecordStore

if TYPE_CHECKING:
    import torch


def probe(
    model: Any,
    contexts: Contexts | None = None,
    *,
    probes: Prompts | None = None,
    learning_rate: float | str | Sequence[float] | None = None,
    rule: Rules = "default",
    layers: int | Sequence[int | None] | None = None,
    steps: int | Sequence[int] | None = None,
    tokenizer: Any = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    tokens: int | None = None,
    quick: bool = False,
    output: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    progress: UnitProgress = lambda _: None,
    **knobs: Any,
) -> ProbeResult:
    """Learn from contexts, read them, or both, and see what that does to prompts that have nothing to do with them.

    Every set of contexts stands beside a control: innocuous contexts of the same length, treated in the same way.

    Args:
        model: As in `learn`.
        contexts: A text, the path of one, several of them, or a dict of such sets by name; a set `innocuous` is the
            control in place of the shipped one. Without any: four sets that ship, and sets of demonstrations with
            balanced and unbalanced labels.
        probes: The path of a file of JSON lines, `{"prompt": ..., "labels": [...]}` with labels where it is a question,
            or a list of such dicts and of texts. Without any: those that ship.
        learning_rate: One rate or several. Without any, or with "auto": that which the control's contexts choose for
            themselves, three tenths of it and three times as much.
        rule: As in `sweep`.
        layers: As in `sweep`.
        steps: As in `sweep`.
        tokenizer: As in `learn`.
        device: As in `learn`.
        dtype: As in `learn`.
        tokens: Use at most so many tokens of each context. All are cut to one length, that of the shortest.
        quick: Two contexts of each set, every third prompt and, unless rates are given, one rate: a first look.
        output: A directory in which what is done is kept as records: the same probe goes on where it was stopped.
        jobs: Processes, with `output`.
        progress: Called with how many units have been finished since it was last called.
        **knobs: Other fields of every rule, by name.
    """
    import torch

    from tintformer.learning.text_model import open_text_model

    checked("jobs", jobs, Jobs, InputError)
    asked = ask(contexts, probes, learning_rate, rule, layers, steps, knobs, tokens=tokens, quick=quick)
    if jobs > 1 and (device is not None or not isinstance(model, str | os.PathLike)):
        raise InputError("other processes load the model by its name; give one without a device, or jobs=1")
    if output is not None:
        check_directory(Path(output) / RECORDS)
    auxiliary = open_text_model(model, tokenizer, device, dtype)
    study = prepare(asked, auxiliary, model, threads=max(1, torch.get_num_threads() // jobs))
    return run_probe(study, output=output, jobs=jobs, progress=progress)


def run_probe(
    study: ProbeStudy,
    *,
    output: str | os.PathLike[str] | None,
    jobs: int = 1,
    progress: UnitProgress = lambda _: None,
    group: ProcessGroup | None = None,
) -> ProbeResult:
    """Do what is left of a probe; without an output nothing is kept."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory()) if output is None else output)
        runner = stack.enter_context(Runner(RecordStore(place / RECORDS), jobs=jobs, progress=progress, group=group))
        before, *found = runner.complete(study.experiment, study.units())
    rows: list[tuple[ProbeRow, ...]] = []
    for part in study.parts:
        count = len(part.units())
        rows.append(tuple(rows_of(part, before, found[:count])))
        found = found[count:]
    questions = sum(each.is_question for each in study.experiment.prompts)
    return ProbeResult(
        model=study.model,
        context_tokens=study.length,
        num_texts=len(study.experiment.prompts) - questions,
        num_questions=questions,
        num_same_labels=study.num_same_labels,
        control=CONTROL,
        balanced=study.parts[1].control if len(rows) > 1 else None,
        rows=rows[0],
        demonstrations=rows[1] if len(rows) > 1 else (),
    )
