# pyright: basic
"""Trackers: what is read back from one is what the tables say, and a run with one gives the files of a run without."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import forked
import pytest
from praise import save_task
from typer.testing import CliRunner

from tintformer.cli.app import app
from tintformer.errors import InputError
from tintlab.cli.evaluate import tracking
from tintlab.cli.evaluate.tracking import Tracking, check_tracker

accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def invoked(*words: str) -> str:
    done = CliRunner().invoke(app, ["eval", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def tracked(output: Path, run: str) -> dict[str, list[float]]:
    """Every scalar of a run that tensorboard can read, in the order of its steps."""
    events = accumulators.EventAccumulator(str(output / tracking.PLACE / run)).Reload()
    return {tag: [event.value for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def files(directory: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    return {name: content for name, content in found.items() if not name.startswith(tracking.PLACE)}


@pytest.mark.sweep
def test_perplexities_and_curves_are_those_of_the_tables(text: Path, tmp_path: Path) -> None:
    words = ["lm", "nano-llama", str(text), "--methods", "auxiliary,tint", "--shares", "0.5,0.75", "--length", "64"]
    words += ["--blocks", "5", "--tuning", "2", "--learning-rate", "1e-4,5e-4,1e6"]
    plain, output = tmp_path / "plain", tmp_path / "tracked"
    found: dict[str, Any] = json.loads(invoked(*words, "--json", "-o", str(plain)))
    invoked(*words, "-o", str(output), "--track", "tensorboard")
    assert files(output) == files(plain)

    run = "lm-nano-llama-texts"
    values = tracked(output, run)
    with (output / f"{run}.csv").open() as file:
        aux, tint = list(csv.DictReader(list(file)[:3]))
    for share, column in (("0.5", "50%"), ("0.75", "75%")):
        for row, method in ((aux, "auxiliary"), (tint, "tint")):
            (value,) = values[f"perplexity/nano-llama/{method}/{share}"]
            assert row[column].startswith(f"{value:.2f} ± ")
    results = found["results"][0]
    for result in (each for each in results if each["method"] == "tint"):
        name = f"nano-llama/tint/{result['share']:g}"
        rates, losses = zip(*((point["rate"], point["loss"]) for point in result["curve"]), strict=True)
        assert values[f"rate/{name}"] == pytest.approx(rates)
        assert values[f"loss/{name}"] == pytest.approx([loss for loss in losses if loss < float("inf")])
    progress = values["progress/units"]
    assert progress == sorted(progress) and progress[-1] == len(list(output.glob("records/*/*.json")))
    (hparams,) = (output / tracking.PLACE / run).rglob("hparams.yml")
    assert "model: nano-llama" in hparams.read_text() and "shares: 0.5, 0.75" in hparams.read_text()


@pytest.mark.usefixtures("unrendered")
def test_accuracies_and_cross_entropies_are_those_of_the_tables(tmp_path: Path) -> None:
    words = ["icl", "nano-llama", str(save_task(tmp_path / "praise")), "--methods", "auxiliary,tint", "--shots", "4"]
    words += [
        "--tests",
        "10",
        "--tuning",
        "4",
        "--seeds",
        "0,1",
        "--learning-rate",
        "1e-3",
        "-o",
        str(tmp_path / "out"),
    ]
    found = json.loads(invoked(*words, "--track", "tensorboard", "--json"))
    values = tracked(tmp_path / "out", found["run"])
    details = {(row["method"], row["scores"]): row for row in found["tables"][2]["rows"]}
    start = "nano-llama/Praise/4-shot-single-label-loss-all-x-1"
    for method, title in (("auxiliary", "the model as it is"), ("tint", "TinT")):
        for scores in ("plain", "calibrated"):
            row = details[title, scores]
            (accuracy,) = values[f"accuracy/{start}/{method}/{scores}"]
            (nats,) = values[f"cross-entropy/{start}/{method}/{scores}"]
            assert row["accuracy"].startswith(f"{accuracy:.1f} ± ")
            assert row["cross-entropy"].startswith(f"{nats:.3f} ± ")


def test_steps_never_go_back_and_hold_numbers_alone() -> None:
    logged: list[tuple[dict[str, float], int]] = []

    class Kept:
        def log(self, values: dict[str, float], step: int) -> None:
            logged.append((values, step))

    tracker = Tracking([Kept()])
    tracker.count(3)
    tracker.log({"loss": float("inf"), "rate": 1.0})
    tracker.log({"loss": float("nan")})
    tracker.count(2)
    assert logged == [({"progress/units": 3}, 0), ({"rate": 1.0}, 1), ({"progress/units": 5}, 3)]


def test_a_package_that_is_missing_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelerate.tracking.get_available_trackers", lambda: [])
    with pytest.raises(InputError, match="--track wandb needs a package that is not installed; pip install wandb"):
        check_tracker("wandb")
    monkeypatch.setitem(sys.modules, "accelerate.tracking", None)
    with pytest.raises(InputError, match=r"--track needs the package accelerate; pip install 'tintformer\[dist\]'"):
        check_tracker("wandb")


def test_a_tracker_that_does_not_exist_is_one_line_before_any_work(text: Path, tmp_path: Path) -> None:
    words = ["eval", "lm", "no-such-model", text, "-o", tmp_path / "out", "--track", "paper"]
    done = forked.tint(*words, variables={"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "--track 'paper' is unknown; choose one of aim, " in done.stderr and "tensorboard" in done.stderr
    assert not (tmp_path / "out").exists()
