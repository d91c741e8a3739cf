"""Audits of experiments: a sample of what is reported, by its own methods at their chosen rates, checked for leaks.

A case is what the runner would run together: blocks in one batch, or test inputs with their label words, each of which
is a document. What is audited are the distributions that the reported scores are taken from, and that they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tintformer.errors import DivergenceError, TintError
from tintlab.checks.audit.audit import audit
from tintlab.checks.audit.certificate import Certificate
from tintlab.data.prompts import Role
from tintlab.data.scoring import to_run
from tintlab.kinds.document_streams import DocumentStreams, StreamResult, open_streams
from tintlab.kinds.icl import InContextLearning, InContextResult, PromptUnit, open_task
from tintlab.kinds.lm import LanguageModelling, LanguageResult, LanguageUnit, open_language
from tintlab.study.experiment import Experiment

if TYPE_CHECKING:
    from torch import Tensor

SAMPLE = 2
"""Blocks or test inputs of a case: the fewest that can leak into one another."""
CHUNKS = 3
"""Of each document of a stream: the last is scored after learning from the others."""
PLACES = 4
"""At which the rest of a document is replaced; a case takes about four times as many runs."""
NEAR = 1e-3
"""Nats, and share, by which what is reported may differ from what is audited: both are rounded sums."""


@dataclass(frozen=True, eq=False, kw_only=True)
class AuditCase:
    """One method in one setting, on a sample."""

    name: str
    score: Callable[[Tensor, Tensor], Tensor]
    """Log-probabilities `[T, V]` of tokens `[T]` of documents `[T]`, NaN where none is scored."""
    ids: Tensor
    document_ids: Tensor
    reported: Callable[[], Sequence[float]]
    """What the experiment reports of each document: the sum of its scores, in nats."""
    fixed: Tensor | None = None
    """Tokens that all scores may depend on."""
    tolerance: float = 0.0
    """Where other tokens change the shapes of what is computed, and so the rounding."""


Cases = Callable[[Any, Sequence[Any]], Iterator[AuditCase]]
"""The cases of an experiment, from its results."""


def language_cases(experiment: LanguageModelling, results: Sequence[LanguageResult]) -> Iterator[AuditCase]:
    """Scores may depend on the training part of their own block and on earlier tokens of it."""
    import torch

    opened = open_language(experiment)
    chosen = opened.scored[:SAMPLE]
    ids = torch.tensor([opened.blocks[at].ids for at in chosen])
    documents = torch.arange(len(ids))[:, None].expand_as(ids)

    def case(result: LanguageResult) -> AuditCase:
        num_train = experiment.num_train(result.share)
        unit = LanguageUnit(method=result.method, rate=result.rate, num_train=num_train, blocks=chosen)

        def score(tokens: Tensor, document_ids: Tensor) -> Tensor:
            out = experiment.predict(opened.model.auxiliary, tokens.view(ids.shape), unit, logits="evaluation")
            return _rows(out.logits, out.evaluation_mask.flatten())

        return AuditCase(
            name=f"{experiment.model}, {opened.texts.name}, share {result.share:g}, {result.method}",
            score=score,
            ids=ids.flatten(),
            document_ids=documents.flatten(),
            reported=lambda: [-nats for nats in experiment.run(unit)["nats"]],
        )

    return map(case, results)


def in_context_cases(experiment: InContextLearning, results: Sequence[InContextResult]) -> Iterator[AuditCase]:
    """Scores of a label word may depend on the demonstrations, its own test input and earlier tokens of the word."""
    import torch

    opened, seed = open_task(experiment), experiment.seeds[0]
    stop = min(SAMPLE, opened.count("test"))

    def case(result: InContextResult) -> AuditCase:
        unit = PromptUnit(method=result.method, rate=result.rates[0], seed=seed, part="test", start=0, stop=stop)
        asked = [opened.prompted(seed, example.text) for example in opened.examples(unit)]
        scorer, (sequences, short) = experiment.scorer(unit), to_run(asked)
        lengths = [len(sequence) for sequence in sequences]
        roles = torch.tensor([role for sequence in sequences for role in sequence.roles])

        def score(tokens: Tensor, document_ids: Tensor) -> Tensor:
            parts = tokens.split(lengths)
            changed = [replace(old, ids=tuple(new.tolist())) for old, new in zip(sequences, parts, strict=True)]
            return _rows(scorer.predict(changed, logits=True)[1], roles == Role.ANSWER)

        def reported() -> list[float]:
            return [value for scores in scorer.scores(asked) for value in (scores[:1] if short else scores)]

        # Behind one context, tokens that several inputs begin with are computed once, and others one by one.
        rounding = math.sqrt(torch.finfo(opened.model.auxiliary.dtype).eps) if scorer.one_context else 0.0
        return AuditCase(
            name=f"{experiment.model}, {opened.task.name}, seed {seed}, {result.method}",
            score=score,
            ids=torch.tensor([token for sequence in sequences for token in sequence.ids]),
            document_ids=torch.arange(len(sequences)).repeat_interleave(torch.tensor(lengths)),
            reported=reported,
            fixed=roles < Role.TEST,
            tolerance=rounding,
        )

    return map(case, results)


def stream_cases(experiment: DocumentStreams, results: Sequence[StreamResult]) -> Iterator[AuditCase]:
    """Scores may depend on earlier tokens of their own document; of each the first chunks are enough to show it."""
    import torch

    opened = open_streams(experiment)
    documents = [opened.ids[at][: CHUNKS * opened.settings.chunk] for at in opened.scored[:SAMPLE]]
    lengths = [len(document) for document in documents]

    def case(result: StreamResult) -> AuditCase:
        def score(tokens: Tensor, document_ids: Tensor) -> Tensor:
            kept: list[Tensor] = []
            experiment.read(result.method, result.rate, [each.tolist() for each in tokens.split(lengths)], kept)
            return torch.cat([rows.log_softmax(-1) for rows in kept])

        def reported() -> list[float]:
            found = experiment.read(result.method, result.rate, documents)
            return [-math.fsum(nats for nats, _ in chunks) for chunks in found]

        return AuditCase(
            name=f"{experiment.model}, {opened.texts.name}, {result.method}",
            score=score,
            ids=torch.tensor([token for document in documents for token in document]),
            document_ids=torch.arange(len(documents)).repeat_interleave(torch.tensor(lengths)),
            reported=reported,
        )

    return map(case, results)


CASES: dict[type[Experiment], Cases] = {
    LanguageModelling: language_cases,
    InContextLearning: in_context_cases,
    DocumentStreams: stream_cases,
}
"""By kind of experiment; another kind joins with an entry."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RunAudit:
    """What audits of all experiments of a run have found."""

    certificates: tuple[Certificate, ...]
    rates_leak: tuple[str, ...]
    """Experiments whose rates were chosen by the scores that they report: no change of a text shows it."""
    diverged: tuple[str, ...]
    """Cases without a finite score, of which nothing can be said."""

    @property
    def passed(self) -> bool:
        return not self.rates_leak and all(certificate.passed for certificate in self.certificates)

    @property
    def leaks(self) -> list[str]:
        """What was found, a line each."""
        chosen = [f"{name}: rates were chosen by the scores that are reported" for name in self.rates_leak]
        return chosen + [f"{each.name}: {finding}" for each in self.certificates for finding in each.findings]

    def record(self) -> dict[str, Any]:
        """Everything, for a file beside the table."""
        return {
            "passed": self.passed,
            "leaks": self.leaks,
            "rates_leak": list(self.rates_leak),
            "diverged": list(self.diverged),
            "certificates": [certificate.record() for certificate in self.certificates],
        }


def audit_results(
    experiments: Sequence[Experiment],
    results: Sequence[Sequence[Any]],
    *,
    places: int = PLACES,
    on_case: Callable[[str], None] = lambda name: None,
) -> RunAudit:
    """Audit all methods in all settings at the rates of their results, each on a sample.

    `on_case` is told what comes next.
    """
    import torch

    certificates: list[Certificate] = []
    diverged: list[str] = []
    for experiment, found in zip(experiments, results, strict=True):
        torch.set_num_threads(experiment.threads)
        for case in CASES[type(experiment)](experiment, found):
            on_case(case.name)
            try:
                certificates.append(_audited(case, places))
            except DivergenceError:
                diverged.append(case.name)
    rates_leak = tuple(dict.fromkeys(each.model for each in experiments if _chooses_on_scores(each)))
    return RunAudit(certificates=tuple(certificates), rates_leak=rates_leak, diverged=tuple(diverged))


def _audited(case: AuditCase, places: int) -> Certificate:
    _check_reported(case)
    return audit(
        case.score,
        case.ids,
        case.document_ids,
        places=places,
        tolerance=case.tolerance,
        fixed=case.fixed,
        name=case.name,
    )


def _chooses_on_scores(experiment: Experiment) -> bool:
    chooses = any(method.chooses_rate for method in experiment.compared().values())
    return experiment.chosen_on == "test" and chooses and not experiment.has_one_rate


def _check_reported(case: AuditCase) -> None:
    """What is audited must be what is reported."""
    rows = case.score(case.ids, case.document_ids)
    taken = rows.gather(1, case.ids.to(rows.device)[:, None])[:, 0].double().nan_to_num(0.0)
    for number, reported in enumerate(case.reported()):
        audited = float(taken[case.document_ids == number].sum())
        if not abs(audited - reported) <= NEAR * max(1.0, abs(reported)):
            raise TintError(
                f"{case.name}: {reported:.6g} nats are reported, but the distributions that would be audited give "
                f"{audited:.6g}; this is a mistake of the package, so please report it"
            )


def _rows(logits: Tensor | None, where: Tensor) -> Tensor:
    """Log-probabilities at some tokens, NaN at the others."""
    assert logits is not None
    rows = logits.new_full((len(where), logits.shape[-1]), math.nan)
    rows[where.to(rows.device)] = logits.log_softmax(-1)
    return rows
