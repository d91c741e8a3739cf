# pyright: basic
"""Sweeps: the numbers of single runs, in one table; records that are kept, and what a killed sweep does again."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import TEXT, make_tokenizer, save_model

import tintformer as tint
import tintlab as lab
from tintformer.cli import main
from tintlab.kinds.sweep import RATES, make_rules
from tintlab.kinds.text_sweep import TextSweep

RULES = ("default", "full")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def result(directory: Path) -> lab.SweepResult:
    return lab.sweep(directory, TEXT, learning_rate=[0.003, 0.01], rule=RULES, layers=[None, 1], steps=[1, 2])


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The units that are run, not taken from records."""
    ran: list[Any] = []
    real = TextSweep.run

    def run(self: TextSweep, unit: Any) -> Any:
        ran.append(unit)
        return real(self, unit)

    monkeypatch.setattr(TextSweep, "run", run)
    return ran


def test_every_combination_is_a_run_of_its_own(directory: Path, result: lab.SweepResult) -> None:
    assert len(result.rows) == 2 * 2 * 2 * 2
    assert [row.rule for row in result.rows] == ["default"] * 8 + ["full"] * 8
    model = tint.load(directory)
    for row in (result.rows[0], result.rows[-1], result.best):
        alone = tint.learn(
            model, TEXT, rule=row.rule, learning_rate=row.learning_rate, layers=row.layers, steps=row.steps
        )
        assert row.loss == pytest.approx(alone.loss, abs=1e-6)
        assert row.perplexity == pytest.approx(alone.perplexity, rel=1e-5)
        assert result.loss_before == pytest.approx(alone.loss_before, abs=1e-6)
        assert row.change == pytest.approx(alone.loss - alone.loss_before, abs=1e-5) and row.standard_error is not None
        assert (result.train_tokens, result.evaluation_tokens) == (alone.train_tokens, alone.evaluation_tokens)
    assert result.best.loss == min(row.loss for row in result.rows) < result.loss_before
    assert result.best in result.best_by_rule().values() and set(result.best_by_rule()) == set(RULES)


def test_a_table_a_frame_a_csv_and_a_plot(result: lab.SweepResult, tmp_path: Path) -> None:
    shown = repr(result).splitlines()
    assert len(shown) == 3 + len(result.rows) and sum(line.endswith("best") for line in shown) == len(RULES)
    assert str(result.evaluation_tokens) in shown[0] and f"{result.loss_before:.4f}" in shown[1]
    frame = result.frame()
    assert len(frame) == len(result.rows) and frame["loss"].min() == result.best.loss
    assert "<table" in (result._repr_html_() or "")
    rows = list(csv.DictReader(io.StringIO(result.save_csv(tmp_path / "sweep.csv").read_text(encoding="utf-8"))))
    assert [float(row["loss"]) for row in rows] == [row.loss for row in result.rows]
    assert {row["layers"] for row in rows} == {"", "1"}
    assert result.plot(tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(tint.TintError, match="cannot write"):
        result.plot(tmp_path / "missing" / "sweep.png")


def test_what_is_done_is_not_done_again(directory: Path, tmp_path: Path, units: list[Any]) -> None:
    first = lab.sweep(directory, TEXT, learning_rate=0.003, rule=RULES, output=tmp_path)
    assert units[0] is None and len(units) == 1 + 2
    rates: Any = np.array([0.003, 0.01])
    more = lab.sweep(directory, TEXT + "\n", learning_rate=rates, rule=RULES, output=tmp_path)
    assert len(units) == 3 + 2, "only the new rate"
    assert [row for row in more.rows if row.learning_rate == 0.003] == list(first.rows)
    lab.sweep(directory, TEXT, learning_rate=0.003, train_tokens=30, output=tmp_path)
    assert len(units) == 5 + 2, "another training part is other work"


def test_a_killed_sweep_goes_on(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, ran = TextSweep.run, []

    def killed(self: TextSweep, unit: Any) -> Any:
        if len(ran) == 2:
            raise KeyboardInterrupt
        ran.append(unit)
        return real(self, unit)

    settings: dict[str, Any] = {"learning_rate": [0.003, 0.01], "rule": RULES}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TextSweep, "run", killed)
        lab.sweep(directory, TEXT, output=tmp_path, **settings)
    assert len(list((tmp_path / "records").rglob("*.json"))) == 2
    finished: list[int] = []
    again = lab.sweep(directory, TEXT, output=tmp_path, progress=finished.append, **settings)
    assert finished[0] == 2 and sum(finished) == 1 + 4
    assert again.rows == lab.sweep(tint.load(directory), TEXT, **settings).rows


@pytest.mark.slow
@pytest.mark.sweep
def test_several_processes_do_the_same(directory: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"learning_rate": [0.003, 0.01]}
    alone = lab.sweep(directory, TEXT, **settings)
    shared = lab.sweep(directory, TEXT, output=tmp_path, jobs=2, **settings)
    assert [row.loss for row in shared.rows] == pytest.approx([row.loss for row in alone.rows], abs=1e-6)
    with pytest.raises(tint.InputError, match="other processes load the model by its name"):
        lab.sweep(tint.load(directory), TEXT, jobs=2, **settings)


def test_rules_of_ones_own_and_what_is_left_out(directory: Path) -> None:
    mine = tint.LearningRule(learning_rate=0.5, steps=3, norm_gradient="central")
    rules = make_rules(None, {"mine": mine, "printed": "paper"}, None, None, {"reduction": "mean"})
    assert [name for name, _ in rules] == ["mine"] * len(RATES) + ["printed"] * len(RATES)
    assert {rule.steps for name, rule in rules if name == "mine"} == {3}
    assert {rule.reduction for _, rule in rules} == {"mean"} and rules[0][1].learning_rate == RATES[0]
    ((name, _),) = make_rules(0.1, mine, None, None, {})
    assert name == "default, norm_gradient=central"
    found_by = make_rules(0.1, "default", None, None, {}, ["sgd", "muon"])
    assert [(name, rule.optimizer) for name, rule in found_by] == [("default, sgd", "sgd"), ("default, muon", "muon")]
    object_alone = tint.load(directory).model
    found = lab.sweep(object_alone, TEXT, tokenizer=make_tokenizer(), learning_rate=[0.003, 1e30], rule=mine)
    assert math.isinf(found.rows[1].loss) and "diverged" in repr(found) and found.best is found.rows[0]
    assert found.png()


def test_rules_of_one_name_are_all_tried() -> None:
    """Layers and steps have columns of their own, and are not in the name of a rule."""
    rules = [tint.LearningRule(learning_rate=1e-3, layers=layers) for layers in (2, 4)]
    rules += [tint.LearningRule(learning_rate=1e-3, steps=steps) for steps in (1, 2)]
    found = make_rules(1e-3, rules, None, None, {})
    assert [(name, rule.layers, rule.steps) for name, rule in found] == [
        ("default", 2, 1),
        ("default", 4, 1),
        ("default", None, 1),
        ("default", None, 2),
    ]
    # What differs in nothing but what the sweep sets is tried once.
    assert len(make_rules([1e-3, 1e-2], [tint.LearningRule(learning_rate=0.5), *rules, "default"], 1, 1, {})) == 2
    assert len(make_rules(1e-3, {"mine": rules[2], "its": rules[2]}, None, None, {})) == 2


def test_a_text_is_cut_as_everywhere(directory: Path) -> None:
    cut = lab.sweep(directory, TEXT, learning_rate=1e-3, tokens=20)
    learnt = tint.learn(directory, TEXT, learning_rate=1e-3, tokens=20)
    assert cut.rows[0].loss == pytest.approx(learnt.loss, rel=1e-5)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"learning_rate": "auto"}, "a sweep tries the rates that it is given; give numbers"),
        ({"learning_rate": []}, r"learning_rate=\[\] is empty; give one value at least"),
        ({"learning_rate": [-1]}, "learning_rate=-1 must be"),
        ({"rule": {}}, "there are no rules"),
        ({"rule": "best"}, "rule='best' is unknown"),
        ({"layers": [9]}, "layers=9 but the model has 2 blocks"),
        ({"steps": 0}, "steps=0 must be"),
        ({"tokens": 0}, "tokens=0 must be"),
        ({"jobs": 0}, "jobs=0 must be"),
        ({"jobs": "x"}, "jobs='x' must be"),
        ({"optimizer": "newton"}, "optimizer='newton' is unknown"),
        ({"optimizer": "rms"}, "a sweep tries sgd, adam and muon: rms divides by statistics"),
        ({"stack": 2}, "stack: knobs of the simulator"),
        ({"dual": True}, "dual is a knob of an engine"),
        ({"engine": "steam"}, "engine='steam' is unknown"),
    ],
)
def test_bad_input_is_one_line(directory: Path, keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(tint.TintError, match=message) as raised:
        lab.sweep(directory, TEXT, **keywords)
    assert "\n" not in str(raised.value)


def tint_sweep(monkeypatch: pytest.MonkeyPatch, *words: object) -> Any:
    monkeypatch.setattr(sys, "argv", ["tint", "sweep", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_the_command(
    directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    units: list[Any],
) -> None:
    file = tmp_path / "story.txt"
    file.write_text(TEXT + "\n", encoding="utf-8")
    words = (directory, "--file", file, "--rule", "default,full", "--layers", "1,all", "-o", tmp_path / "out")
    assert not tint_sweep(monkeypatch, *words, "--learning-rate", "0.003,1e30", "--json")
    record = json.loads(capsys.readouterr().out)
    expected = lab.sweep(directory, TEXT, learning_rate=[0.003, 1e30], rule=RULES, layers=[1, None], steps=1)
    assert [row["loss"] for row in record["rows"]] == [
        pytest.approx(row.loss) if math.isfinite(row.loss) else None for row in expected.rows
    ]
    assert record["best"]["loss"] == pytest.approx(expected.best.loss)
    assert [Path(path).name for path in record["files"]] == [
        f"sweep-{directory.name}-story.csv",
        f"sweep-{directory.name}-story.png",
    ]
    units.clear()
    assert not tint_sweep(monkeypatch, *words, "--learning-rate", "0.003,1e30", "--name", "again")
    shown = capsys.readouterr().out
    assert not units and "diverged" in shown and "best" in shown and "wrote again.csv, again.png into" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--learning-rate", "auto"], "a sweep tries the rates"),
        (["--learning-rate", "high"], "must be numbers with commas between them"),
        (["--layers", "top"], "--layers 'top' must be whole numbers"),
        (["--steps", "1,x"], "--steps '1,x' must be whole numbers"),
        (["--rule", "best"], "rule='best' is unknown"),
        (["--train-fraction", "1"], "train_fraction=1 must lie between"),
    ],
)
def test_bad_options_are_refused_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tint_sweep(monkeypatch, "no-model", TEXT, *words) == 2
    assert message in capsys.readouterr().err and not list(tmp_path.iterdir())
