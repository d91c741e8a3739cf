# pyright: basic
"""Streams compared: all methods with the same windows, rates from other documents, records that outlive a kill."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tintformer.errors import InputError, LoadError
from tintformer.learning.streams import StreamSettings
from tintformer.learning.tint import Tint
from tintformer.rule.learning_rule import LearningRule
from tintformer.storage.loading import load
from tintlab.cli.evaluate.tracking import _stream_metrics
from tintlab.data.texts import TextSet
from tintlab.kinds.counted_work import WorkCounter
from tintlab.kinds.document_streams import DocumentStreams, StreamUnit, open_streams, statistics_of
from tintlab.kinds.runs import Run, load_runs, save_results
from tintlab.kinds.stream_results import _gained, stream_tables
from tintlab.methods.lora import Lora, stream_lora
from tintlab.methods.methods import STREAM_METHODS
from tintlab.study.runner import Runner
from tintlab.study.store import RecordStore
from tintlab.study.tuning import run_experiment

CARRIES = ["none", "recompute", "cache"]


@pytest.fixture
def experiment(text: Path, tiny_model: str) -> DocumentStreams:
    return DocumentStreams(
        model=tiny_model,
        data=str(text),
        documents="blocks",
        length=40,
        chunk=16,
        window=48,
        scored=2,
        tuning=1,
        methods=("auxiliary", "sgd", "rms", "top-quarter"),
        rates=(1e-4, 1e-3),
    )


def run(experiment: DocumentStreams, directory: Path, **how: Any) -> list[Any]:
    with Runner(RecordStore(directory / "records"), **how) as runner:
        return run_experiment(experiment, runner)


def test_a_run_is_kept_and_shown(experiment: DocumentStreams, tmp_path: Path) -> None:
    done = Run(name="it", kind="stream", experiments=(experiment,))
    done.save(tmp_path)
    results = run(experiment, tmp_path)
    assert [result.method for result in results] == ["auxiliary", "sgd", "rms", "top-quarter"]
    opened = open_streams(experiment)
    assert len(opened.tuning) == 1 and len(opened.scored) == 2 and not set(opened.tuning) & set(opened.scored)
    plain, sgd = results[0], results[1]
    assert [sum(each) for each in plain.tokens] == [39] * 2 and [len(each) for each in plain.nats] == [3] * 2
    # Nothing is learnt before the first chunk is scored.
    assert [each[0] for each in sgd.nats] == pytest.approx([each[0] for each in plain.nats], rel=1e-5)
    assert sgd.rate in (1e-4, 1e-3) and sgd.rate == min(sgd.curve[1:], key=lambda point: point.loss).rate
    order = sorted(opened.scored, key=lambda at: (-len(opened.ids[at]), at))
    for at, found in zip(order, sgd.nats, strict=True):
        pieces = Tint(opened.model.auxiliary, LearningRule.full(learning_rate=sgd.rate)).stream(
            torch.tensor([opened.ids[at]]), chunk=16, window=48
        )
        assert found == pytest.approx([float(piece.token_loss.sum()) for piece in pieces], rel=1e-5)
    # The tables from the records alone; a killed run finds the same.
    (again,) = load_runs(tmp_path)
    assert again == done
    repeated = run(again.experiments[0], tmp_path, only_records=True)
    assert repeated == results
    names = {path.name for path in save_results(again, [repeated], tmp_path)}
    assert {"it.md", "it.csv", "it.tex", "it-positions.png", "it-gain.png", "it-rates.png"} == names
    told = [name for values in _stream_metrics(experiment, results, False) for name in values]
    assert {"perplexity/tiny/sgd", "rate/tiny/sgd", "loss/tiny/sgd"} <= set(told)
    overview, positions = stream_tables([(experiment, results)])
    rows = {row["method"]: row for row in overview.rows}
    assert rows["the model as it is"]["passes"] == "1.00" and 1 < float(rows["SGD, top quarter"]["passes"]) < 3
    assert float(rows["SGD, top quarter"]["passes"]) < float(rows["SGD"]["passes"])
    assert "on another document" in overview.note and overview.note.startswith(opened.texts.name)
    # The same by runs of their own, whose rates differ.
    plain_and_sgd = replace(experiment, methods=("auxiliary", "sgd"), rates=(sgd.rate,))
    others = replace(experiment, methods=("auxiliary", "rms", "top-quarter"))
    parts = [(others, [plain, *results[2:]]), (plain_and_sgd, results[:2])]
    assert [table.rows for table in stream_tables(parts)] == [overview.rows, positions.rows]
    assert list(positions.rows[0])[1:] == ["0 to 16", "16 to 32", "32 to 48"]
    # A method that two runs had at two rates stands there twice, in tables and figures.
    at_another = replace(sgd, rate=2e-4)
    _, twice = stream_tables([*parts, (replace(plain_and_sgd, rates=(2e-4,)), [plain, at_another])])
    assert [row["method"] for row in twice.rows].count("SGD") == 2
    assert [name for name, _ in _gained([plain, sgd, at_another])] == ["sgd", "sgd"]


def test_documents_together_are_documents_alone(experiment: DocumentStreams) -> None:
    opened = open_streams(experiment)
    units = [StreamUnit(method="sgd", rate=1e-3, documents=(at,)) for at in opened.scored]
    together = experiment.run(StreamUnit(method="sgd", rate=1e-3, documents=opened.scored))
    for at, unit in enumerate(units):
        alone = experiment.run(unit)
        assert alone["tokens"] == [together["tokens"][at]]
        assert alone["nats"][0] == pytest.approx(together["nats"][at], rel=1e-5)
    assert len(replace(experiment, batch=2).units("documents", "sgd", 0.0, "test")) == 1


def test_what_decides_a_number_is_in_the_identity(experiment: DocumentStreams, tmp_path: Path) -> None:
    unit = StreamUnit(method="rms", rate=1e-3, documents=open_streams(experiment).scored[:1])
    known = experiment.identity(unit)
    assert known == replace(experiment, scored=1, rates=(1e-3, 1e-2)).identity(unit)
    statistics_of(experiment).save(tmp_path / "statistics")
    for other in (
        replace(experiment, carry="recompute"),
        replace(experiment, window=64),
        replace(experiment, statistics=str(tmp_path / "statistics")),
        replace(experiment, steps=2),
    ):
        assert other.identity(unit) != known
    given = replace(experiment, statistics=str(tmp_path / "statistics")).run(unit)
    assert given == experiment.run(unit)
    # Statistics are of no matter to those that do not divide by them.
    plain = replace(unit, method="sgd")
    assert replace(experiment, statistics=str(tmp_path / "statistics")).identity(plain) == experiment.identity(plain)


def test_a_rate_that_diverges_is_a_result(experiment: DocumentStreams, tmp_path: Path) -> None:
    wild = replace(experiment, rates=(1e30,), methods=("auxiliary", "sgd"))
    results = run(wild, tmp_path)
    assert results[1].nats is None and stream_tables([(wild, results)])[0].rows[1]["gain"] == "diverged"


@pytest.mark.parametrize("carry", CARRIES)
def test_lora_reads_what_the_others_read(carry: Any, tiny_model: str) -> None:
    pytest.importorskip("peft")
    model, settings = load(tiny_model), StreamSettings(chunk=8, window=20, carry=carry)
    ids = torch.randint(5, 300, (1, 42), generator=torch.Generator().manual_seed(0))
    document = ids[0].tolist()
    expected = [
        (float(piece.token_loss.double().sum()), int(piece.scored.sum()))
        for piece in Tint(model, LearningRule(learning_rate=0.0)).stream(ids, chunk=8, window=20, carry=carry)
    ]
    (still,) = stream_lora(model, Lora(learning_rate=0.0), [document], settings)
    assert [count for _, count in still] == [count for _, count in expected]
    assert [nats for nats, _ in still] == pytest.approx([nats for nats, _ in expected], rel=1e-4)
    # Every document begins with adapters that have learnt nothing.
    first, second = stream_lora(model, Lora(learning_rate=1e-3), [document, document], settings)
    assert first == second
    assert first[0] == pytest.approx(still[0]) and abs(first[-1][0] - still[-1][0]) > 1e-3


def test_every_method_has_a_rule(experiment: DocumentStreams) -> None:
    everything = replace(experiment, model="nano-llama", methods=tuple(STREAM_METHODS))
    blocks = len(load("nano-llama").blocks)
    rules = {name: everything.rule(name, 1e-3) for name in STREAM_METHODS}
    assert rules["auxiliary"] is None and isinstance(rules["lora"], Lora)
    assert rules["top-quarter"] == LearningRule.full(learning_rate=1e-3, layers=max(1, blocks // 4))
    rising = rules["layer-rates"]
    assert isinstance(rising, LearningRule) and rising.rates[-1] == (f"blocks.{blocks - 1}.*", 1.0)


def test_articles_begin_at_their_headings() -> None:
    lines = ("\n", "before\n", " = One = \n", "\n", "text\n", " = = Part = = \n", "more", " = Two words = \n", "end\n")
    for texts in (lines, ("".join(line if line.endswith("\n") else line + "\n" for line in lines),)):
        found = TextSet(name="x", texts=texts).articles()
        assert found == (" = One = \n\ntext\n = = Part = = \nmore\n", " = Two words = \nend\n")


def test_work_is_counted_in_place_too() -> None:
    a, b = torch.ones(2, 3, 4), torch.ones(2, 4, 5)
    total = torch.zeros(2, 3, 5)
    for product in (torch.baddbmm, torch.Tensor.baddbmm_, lambda _, a, b: a @ b):
        with WorkCounter() as counter:
            product(total, a, b)
        assert counter.flops == 2 * 2 * 3 * 4 * 5
    query = torch.ones(1, 2, 8, 16, requires_grad=True)
    with WorkCounter() as counter:
        out = torch.nn.functional.scaled_dot_product_attention(query, query, query)
        forward = counter.flops
        out.sum().backward()
    assert forward == 2 * 2 * 8 * 8 * 32 and counter.flops == 3.5 * forward


def test_bad_input_is_one_line(experiment: DocumentStreams, tmp_path: Path) -> None:
    for message, knobs in {
        "documents='pages' is unknown": {"documents": "pages"},
        "window=8 is smaller than chunk=16": {"window": 8},
        "unknown method 'fine-tuning'": {"methods": ("fine-tuning",)},
        "give at least one": {"tuning": 0},
        "streams need engine='fast'": {"engine": "oracle"},
        "shortest=50 must be": {"shortest": 50},
        "statistics are for the method rms": {"statistics": "file", "methods": ("sgd",)},
    }.items():
        with pytest.raises(InputError, match=message):
            replace(experiment, **knobs)
    for message, knobs in {
        "documents of at least": {"scored": 10**6},
        "has no lines ' = Title = '": {"documents": "articles"},
        "learned positions": {"model": "nano-gpt2", "length": 600, "scored": 1, "methods": ("auxiliary",)},
    }.items():
        with pytest.raises(InputError, match=message):
            replace(experiment, **knobs).settings()
    with pytest.raises(LoadError, match="cannot read the statistics"):
        replace(experiment, statistics=str(tmp_path / "nowhere")).settings()
