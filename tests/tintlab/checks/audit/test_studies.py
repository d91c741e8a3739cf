# pyright: basic
"""Audits of experiments: their own scoring passes, whatever the method; wrong scoring and rates are found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import some
from praise import save_task
from typer.testing import CliRunner

from tintformer.cli.app import app
from tintformer.errors import TintError
from tintformer.learning.tint import Tint
from tintlab.checks.audit.studies import audit_results
from tintlab.data.packing import to_learn
from tintlab.data.scoring import LabelScorer
from tintlab.kinds import document_streams
from tintlab.kinds import lm as language_modelling
from tintlab.kinds.document_streams import DocumentStreams
from tintlab.kinds.icl import InContextLearning
from tintlab.kinds.lm import LanguageModelling
from tintlab.study.runner import Runner
from tintlab.study.store import RecordStore
from tintlab.study.tuning import run_experiment


@pytest.fixture
def lm(text: Path, tiny_model: str) -> LanguageModelling:
    return LanguageModelling(
        model=tiny_model, data=str(text), shares=(0.5,), length=32, blocks=3, tuning=1, rates=(5e-4,)
    )


@pytest.fixture(scope="module")
def icl(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> InContextLearning:
    task = save_task(tmp_path_factory.mktemp("praise"))
    methods = ("auxiliary", "tint")
    return InContextLearning(
        model=tiny_model, task=str(task), tests=2, tuning=2, rates=(1e-3,), seeds=(0,), methods=methods
    )


def audited(experiment: Any, directory: Path, places: int = 1):
    with Runner(RecordStore(directory)) as runner:
        results = run_experiment(experiment, runner)
    return audit_results([experiment], [results], places=places)


@pytest.mark.parametrize("methods", [("auxiliary", "tint"), pytest.param(("lora",), marks=pytest.mark.sweep)])
def test_language_modelling_passes(lm: LanguageModelling, methods: tuple[str, ...], tmp_path: Path) -> None:
    found = audited(replace(lm, methods=methods), tmp_path)
    assert found.passed and not found.diverged, found.leaks
    for certificate in found.certificates:
        assert certificate.documents == 2 and certificate.scored == 32 and certificate.tolerance < 1e-5
        assert {check.verdict for check in certificate.checks} == {"passed"}
        assert all(place % 32 >= 16 for place in certificate.places)


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"shots": 2, "loss": "label"},
        {"shots": 2, "loss": "full", "mode": "multi"},
        {"shots": 2, "loss": "full", "test_text": True},
    ],
    ids=["zero-shot", "single", "multi", "test text"],
)
def test_in_context_learning_passes(icl: InContextLearning, knobs: dict[str, Any], tmp_path: Path) -> None:
    found = audited(replace(icl, **knobs), tmp_path)
    assert found.passed and not found.diverged, found.leaks
    for certificate in found.certificates:
        assert certificate.check("own token").tried and certificate.check("another document").tried
        assert certificate.scored >= certificate.documents >= 2


@pytest.mark.parametrize("methods", some([["sgd"], ["auxiliary", "muon"], ["rms", "lora"]]))
@pytest.mark.parametrize("carry", some(["cache", "recompute", "none"]))
def test_streams_pass(text: Path, tiny_model: str, carry: Any, methods: list[str], tmp_path: Path) -> None:
    experiment = DocumentStreams(
        model=tiny_model, data=str(text), documents="blocks", length=40, chunk=8, window=24, carry=carry, scored=2,
        tuning=1, rates=(1e-3,), methods=tuple(methods),
    )  # fmt: skip
    found = audited(experiment, tmp_path)
    assert found.passed and not found.diverged, found.leaks
    for certificate in found.certificates:
        assert certificate.documents == 2 and certificate.scored == 46
        assert {check.verdict for check in certificate.checks} == {"passed"}


def test_a_stream_that_learns_before_it_scores_is_found(
    text: Path, tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(self: DocumentStreams, method: str, rate: float, documents: Any, kept: Any = None) -> Any:
        """What a document has taught is known when it is scored."""
        auxiliary = document_streams.open_streams(self).model.auxiliary
        rule: Any = self.rule(method, rate)
        found = []
        for document in documents:
            ids = torch.tensor([document])
            out: Any = Tint(auxiliary, rule).adapt(ids).score(ids, logits="all")
            if kept is not None:
                kept.append(torch.cat((torch.full_like(out.logits[0, :1], torch.nan), out.logits[0, :-1])))
            found.append([(float(out.token_loss.double().sum()), len(document) - 1)])
        return found

    monkeypatch.setattr(DocumentStreams, "read", wrong)
    experiment = DocumentStreams(
        model=tiny_model, data=str(text), documents="blocks", length=24, chunk=8, scored=2, tuning=0, rates=(1e-3,),
        methods=("sgd",),
    )  # fmt: skip
    (certificate,) = audited(experiment, tmp_path).certificates
    assert {"own token", "later tokens"} <= set(certificate.kinds)


def test_training_on_what_is_scored_is_found(
    lm: LanguageModelling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*given: Any, input_ids: Any, train_mask: Any, gradients: Any, **how: Any) -> Any:
        """The tokens that are scored are learnt from before."""
        tuned = language_modelling.learn_once(given[0], given[1], input_ids=input_ids)
        return tuned.score(input_ids, score_mask=~train_mask, **how)

    monkeypatch.setattr(language_modelling, "learn_each", wrong)
    found = audited(replace(lm, methods=("tint",)), tmp_path)
    (certificate,) = found.certificates
    assert set(certificate.kinds) == {"own token", "later tokens", "another document"}


def test_training_on_the_label_is_found(
    icl: InContextLearning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(self: LabelScorer, sequences: Any, *, logits: bool) -> Any:
        """The label of a test is learnt from together with its input."""
        from tintlab.methods.methods import learn_once

        learning = to_learn(sequences, loss="full")
        everything = learning["attention_mask"]
        how = {name: learning[name] for name in ("input_ids", "attention_mask", "segment_ids")}
        tuned = learn_once(self.model.auxiliary, self.model.rule, **how, train_mask=everything)
        out = tuned.score(**how, score_mask=everything & ~learning["train_mask"], logits="evaluation")
        return out.token_loss.double().sum(1), out.logits

    monkeypatch.setattr(LabelScorer, "predict", wrong)
    found = audited(replace(icl, methods=("tint",)), tmp_path)
    (certificate,) = found.certificates
    assert {"own token", "another document"} <= set(certificate.kinds)


def test_rates_chosen_on_scores_are_found(lm: LanguageModelling, tmp_path: Path) -> None:
    found = audited(replace(lm, methods=("tint",), chosen_on="test", rates=(1e-4, 5e-4)), tmp_path)
    assert not found.passed and found.rates_leak == (lm.model,)
    assert found.leaks == [f"{lm.model}: rates were chosen by the scores that are reported"]
    assert found.certificates[0].passed


def test_a_rate_that_diverges_is_not_audited(lm: LanguageModelling, tmp_path: Path) -> None:
    found = audited(replace(lm, methods=("auxiliary", "tint"), rates=(1e38,)), tmp_path)
    assert found.passed and len(found.certificates) == 1 and len(found.diverged) == 1


def test_what_is_audited_is_what_is_reported(
    lm: LanguageModelling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = LanguageModelling._losses
    monkeypatch.setattr(LanguageModelling, "_losses", lambda *given: 0.9 * losses(*given))
    with pytest.raises(TintError, match="nats are reported, but the distributions that would be audited give"):
        audited(replace(lm, methods=("auxiliary",)), tmp_path)


@pytest.mark.usefixtures("unrendered")
def test_the_certificate_stands_beside_the_table(
    text: Path, tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        "eval",
        "lm",
        tiny_model,
        str(text),
        "--shares",
        "0.5",
        "--length",
        "32",
        "--blocks",
        "2",
        "--name",
        "it",
    ]
    words += ["--methods", "auxiliary", "--learning-rate", "1e-4", "-o", str(tmp_path)]
    file = tmp_path / "it-audit.json"
    done = CliRunner().invoke(app, [*words, "--audit"])
    assert done.exit_code == 0 and "audit: nothing leaks, 1 samples" in done.output
    record = json.loads(file.read_text())
    assert record["passed"] and record["certificates"][0]["name"].endswith("share 0.5, auxiliary")
    # Tables that are made again from the same records leave it; a run without an audit takes it away.
    assert CliRunner().invoke(app, ["eval", "table", str(tmp_path)]).exit_code == 0 and file.exists()
    assert CliRunner().invoke(app, words).exit_code == 0 and not file.exists()

    predict = LanguageModelling.predict

    def leaks(self: Any, auxiliary: Any, ids: Any, unit: Any, **how: Any) -> Any:
        out = predict(self, auxiliary, ids, unit, **how)
        if out.logits is not None:
            out.logits.mul_(1 + 1e-7 * ids.float().mean())
        return out

    monkeypatch.setattr(LanguageModelling, "predict", leaks)
    done = CliRunner().invoke(app, [*words, "--audit", "--json"])
    assert done.exit_code == 1
    assert not json.loads(done.stdout)["audit"]["passed"] and not json.loads(file.read_text())["passed"]
