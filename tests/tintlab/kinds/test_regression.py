# pyright: basic
"""In-context regression: its numbers are those of closed forms, and its runs are kept and made again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tintformer as tint
from tintlab.kinds.regression import InContextRegression, RegressionUnit, draw
from tintlab.kinds.regression_results import regression_figures, regression_tables
from tintlab.kinds.runs import Run, load_runs, save_results
from tintlab.study.runner import Runner
from tintlab.study.store import RecordStore
from tintlab.study.tuning import run_experiment

SMALL = InContextRegression(
    inputs=3, examples=(2, 6), functions=4, tuning=3, queries=5, steps=30, hidden=6, rates=(0.05, 0.3), dtype="float64"
)


def errors(experiment: InContextRegression, method: str, examples: int, rate: float = 0.0) -> torch.Tensor:
    unit = RegressionUnit(method=method, rate=rate, examples=examples, part="test")
    return torch.tensor(experiment.run(unit)["errors"], dtype=torch.float64)


def scored(weights: torch.Tensor) -> torch.Tensor:
    drawn = draw(SMALL, "test")
    return (drawn.query_x @ weights - drawn.query_y).square().mean((1, 2))


@pytest.mark.parametrize("engine", ["fast", "simulator", "network"])
def test_one_step_is_the_closed_form(engine: str) -> None:
    drawn = draw(SMALL, "test")
    x, y = drawn.x[:, :6], drawn.y[:, :6]
    expected = scored(0.3 / 6 * x.mT @ y)  # from weights of zero, a mean over six examples
    torch.testing.assert_close(errors(replace(SMALL, engine=engine), "one-step", 6, 0.3), expected, rtol=0, atol=1e-10)


def test_many_steps_tend_to_least_squares() -> None:
    few, many = (errors(replace(SMALL, steps=steps), "many-steps", 2, 0.1) for steps in (1, 2000))
    smallest_norm = errors(SMALL, "least-squares", 2)
    torch.testing.assert_close(many, smallest_norm, rtol=0, atol=1e-3)
    assert not torch.allclose(few, smallest_norm, rtol=0, atol=1e-2)
    assert errors(SMALL, "least-squares", 6).max() < 1e-20  # as many examples as there are unknowns, and no noise
    assert errors(replace(SMALL, noise=0.5), "least-squares", 6).min() > 1e-3


def test_functions_have_unit_variance_and_contexts_are_nested() -> None:
    for kind in ("linear", "perceptron"):
        many = replace(SMALL, model=kind, functions=4000, queries=1, inputs=5)
        assert errors(many, "auxiliary", 2).mean() == pytest.approx(1, abs=0.15)
    longer = draw(replace(SMALL, examples=(2, 6, 9)), "test")
    assert torch.equal(longer.x[:, :6], draw(SMALL, "test").x)
    assert not torch.equal(draw(SMALL, "test").x[:3], draw(SMALL, "tuning").x)


def test_a_rate_that_diverges_is_a_result() -> None:
    unit = RegressionUnit(method="many-steps", rate=1e30, examples=6, part="test")
    assert SMALL.run(unit) == {"errors": None}
    assert SMALL.tuning_loss(6, [{"errors": None}]) == float("inf")


def test_a_run_is_kept_and_goes_on(tmp_path: Path) -> None:
    experiments = (SMALL, replace(SMALL, model="perceptron", methods=("auxiliary", "perceptron")))
    run = Run(name="small", kind="regression", experiments=experiments)
    run.save(tmp_path)
    assert load_runs(tmp_path) == [run]
    done: list[int] = []
    with Runner(RecordStore(tmp_path / "records"), progress=done.append) as runner:
        results = [run_experiment(each, runner) for each in experiments]
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "records").rglob("*.json")}
    with Runner(RecordStore(tmp_path / "records"), only_records=True) as runner:
        assert [run_experiment(each, runner) for each in load_runs(tmp_path)[0].experiments] == results
    assert kept == {path: path.stat().st_mtime_ns for path in (tmp_path / "records").rglob("*.json")}
    names = {path.name for path in save_results(run, results, tmp_path)}
    assert {"small.csv", "small.md", "small.tex", "small-examples.png", "small-rates.png"} == names
    by_examples, details = regression_tables(list(zip(experiments, results, strict=True)))
    assert by_examples.headings == ["functions", "method", "2", "6"]
    assert len(by_examples.rows) == 6 + 2 and len(details.rows) == 2 * len(by_examples.rows)
    least = next(row for row in by_examples.rows if row["method"] == "least squares")
    assert float(least["6"]) < 1e-20


def test_tables_and_figures_of_what_diverged_and_of_one_function() -> None:
    lone = replace(SMALL, functions=1, rates=(1e30,), methods=("auxiliary", "many-steps"), tuning=0)
    results = [
        lone.summary(6, method, rate, (), [lone.run(RegressionUnit(method=method, rate=rate, examples=6, part="test"))])
        for method, rate in (("auxiliary", 0.0), ("many-steps", 1e30))
    ]
    tables = regression_tables([(lone, results)])
    assert tables[0].rows[1]["6"] == "inf" and tables[1].rows[1]["squared error"] == "diverged"
    assert regression_figures([(lone, results)])["examples"].startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"inputs": 0}, "inputs=0 must be a whole number from 1 to 4096"),
        ({"examples": ()}, "there are no sizes of the context"),
        ({"examples": (0,)}, "examples=0"),
        ({"noise": -1.0}, "noise=-1 must be a number from 0 to 1e6"),
        ({"tuning": 0}, "rates are chosen on functions of their own"),
        ({"methods": ("tint",)}, "unknown method 'tint'"),
        ({"model": "cubic"}, "model='cubic'"),
        ({"steps": 0}, "steps=0"),
    ],
)
def test_what_cannot_be_done_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(tint.InputError) as error:
        replace(SMALL, **fields)
    assert message in str(error.value)


@pytest.mark.usefixtures("unrendered")
def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from tintformer.cli import main

    words = "eval regression --inputs 2 --examples 1,3 --functions 3 --tuning 2 --steps 3 --hidden 4 --json"
    monkeypatch.setattr("sys.argv", ["tint", *words.split(), "--learning-rate", "0.1,0.3", "-o", str(tmp_path)])
    found: list[Any] = []
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        found.append(json.loads(capfd.readouterr().out))
    assert found[0] == found[1] and found[0]["run"] == "regression-linear-2"
    assert {each["examples"] for each in found[0]["results"][0]} == {1, 3}
