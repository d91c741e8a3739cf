# pyright: basic
"""In-context learning: scores against the Hugging Face model, engines against each other, runs of two processes."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import forked
import pytest
import torch
from patience import PATIENCE
from praise import save_task
from typer.testing import CliRunner

from tintformer.cli.app import app
from tintformer.errors import InputError
from tintformer.storage.loading import load
from tintlab.data import scoring as label_scoring
from tintlab.data.scoring import Answers
from tintlab.kinds.icl import InContextLearning, open_task
from tintlab.kinds.icl_figures import in_context_figures
from tintlab.kinds.icl_tables import in_context_tables
from tintlab.kinds.recipes import FULL_RATES, LABEL_RATES, by_protocol, by_protocols, compared
from tintlab.study.runner import Runner
from tintlab.study.store import RecordStore
from tintlab.study.tuning import run_experiment

TINT = Path(sys.executable).parent / "tint"


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_task(tmp_path_factory.mktemp("praise"))


@pytest.fixture
def zero(task: Path, tiny_model: str) -> InContextLearning:
    return InContextLearning(
        model=tiny_model, task=str(task), tests=6, tuning=4, rates=(1e-4,), seeds=(0,), methods=("auxiliary", "tint")
    )


@pytest.fixture
def few(zero: InContextLearning) -> InContextLearning:
    return replace(zero, shots=4, loss="label", seeds=(0, 1), rates=(1e-3,))


def run(experiment: InContextLearning, directory: Path, jobs: int = 1):
    with Runner(RecordStore(directory), jobs=jobs) as runner:
        return {result.method: result for result in run_experiment(experiment, runner)}


@pytest.fixture
def bundled(few: InContextLearning) -> InContextLearning:
    """The same on a model that has learnt its language."""
    return replace(few, model="nano-llama")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where tests that change nothing but the experiment find each other's units."""
    return tmp_path_factory.mktemp("records")


def close(one: Answers, other: Answers, tolerance: float = 2e-4) -> None:
    assert one.labels == other.labels
    torch.testing.assert_close(torch.tensor(one.scores), torch.tensor(other.scores), rtol=0, atol=tolerance)
    torch.testing.assert_close(torch.tensor(one.calibration), torch.tensor(other.calibration), rtol=0, atol=tolerance)


@pytest.mark.parametrize("shots", [0, 3])
def test_the_model_as_it_is_scores_whole_label_words(zero: InContextLearning, shots: int, records: Path) -> None:
    experiment = replace(zero, shots=shots, mode="multi", methods=("auxiliary",))
    (answers,) = run(experiment, records)["auxiliary"].answers
    opened = open_task(experiment)
    model, tokenizer = load(zero.model).model, opened.encoder.tokenizer
    shown = "".join(
        f"{each.text} This was said in {('blame', 'praise')[each.label]}\n\n" for each in opened.demonstrations(0)
    )
    from tintlab.data.tasks import test_examples

    for example, scores in zip(test_examples(opened.task, 6), answers.scores, strict=True):
        for word, score in zip(("blame", "praise"), scores, strict=True):
            prompt = f"{shown}{example.text} This was said in"
            ids = torch.tensor(
                [[tokenizer.bos_token_id, *tokenizer(f"{prompt} {word}", add_special_tokens=False).input_ids]]
            )
            start = len(tokenizer(prompt, add_special_tokens=False).input_ids) + 1
            first = opened.encoder.first
            ids, start = (ids, start) if first else (ids[:, 1:], start - 1)
            with torch.no_grad():
                logits = model(ids).logits.log_softmax(-1)
            expected = sum(float(logits[0, at - 1, ids[0, at]]) for at in range(start, ids.shape[1]))
            assert score == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("engine", ["oracle", "simulator"])
def test_learning_once_is_learning_for_each_input(
    few: InContextLearning, engine: str, records: Path, tmp_path: Path
) -> None:
    small = replace(few, tests=2, seeds=(0,))
    fast = run(small, records)["tint"].answers[0]
    other = run(replace(small, engine=engine), tmp_path / engine)["tint"].answers[0]
    close(fast, other)
    plain = run(small, records)["auxiliary"].answers[0]
    assert max(abs(a - b) for a, b in zip(fast.scores[0], plain.scores[0], strict=True)) > 1e-2


def test_demonstrations_alone_move_the_weights(few: InContextLearning, records: Path) -> None:
    full = replace(few, loss="full", seeds=(0,), tests=2)
    without = run(full, records)["tint"].answers[0]
    with_text = run(replace(full, test_text=True), records)["tint"].answers[0]
    assert without.scores != with_text.scores


def test_seeds_draw_their_own_demonstrations_and_share_a_rate(few: InContextLearning, records: Path) -> None:
    result = run(replace(few, rates=(1e-4, 1e-3)), records)["tint"]
    assert [answers.seed for answers in result.answers] == [0, 1]
    assert result.answers[0].labels == result.answers[1].labels
    assert result.answers[0].scores != result.answers[1].scores
    assert result.rates[0] in (1e-4, 1e-3) and result.rates[0] == result.rates[1] and result.curves[0][0].rate == 0.0
    opened = open_task(few)
    assert opened.demonstrations(0) != opened.demonstrations(1)


def test_multi_says_how_many_were_shown(zero: InContextLearning, records: Path) -> None:
    experiment = replace(zero, shots=40, loss="label", mode="multi", tests=2, methods=("auxiliary", "tint"))
    answers = run(experiment, records)["tint"].answers[0]
    assert 5 < answers.demonstrations < 40


def test_zero_shot_trains_on_the_test_input(zero: InContextLearning, records: Path) -> None:
    found = run(zero, records)
    assert found["tint"].answers[0].scores != found["auxiliary"].answers[0].scores
    with pytest.raises(InputError, match="there is no label to train on"):
        replace(zero, loss="label")


@pytest.mark.parametrize("methods", [("auxiliary",), ("tint",)])
def test_one_context_for_many_inputs_changes_nothing(
    few: InContextLearning, methods: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    multi = replace(few, mode="multi", methods=methods, seeds=(0,), tests=6)
    together = run(multi, tmp_path / "together")[methods[0]].answers[0]
    monkeypatch.setattr(label_scoring, "SHARED_TOKENS", 1)  # one input at a time
    close(together, run(multi, tmp_path / "apart")[methods[0]].answers[0])


def test_the_protocol_of_the_paper_chooses_on_the_test_examples(few: InContextLearning, records: Path) -> None:
    experiment = by_protocol(replace(few, rates=None, seeds=(0, 1)), "paper")
    assert (experiment.rates, experiment.chosen_on, experiment.test_text) == (LABEL_RATES, "test", False)
    result = run(experiment, records)["tint"]
    assert len(result.rates) == len(result.curves) == len(result.answers) == 2
    for rate, curve, answers in zip(result.rates, result.curves, result.answers, strict=True):
        assert [point.rate for point in curve] == [0.0, *LABEL_RATES]
        best = min(point.loss for point in curve[1:])
        assert best == sum(answers.wrong()) / len(answers.labels)
        assert rate in [point.rate for point in curve if point.loss == best]
    tables = in_context_tables([(experiment, [result])])
    assert "OPTIMISTIC" in tables[0].note and "test examples themselves" in tables[0].note
    full = by_protocol(replace(few, rates=None, loss="full"), "paper")
    assert full.test_text and full.rates == FULL_RATES
    assert by_protocol(few, "tuned") is few
    with pytest.raises(InputError, match="--protocol 'own' is unknown"):
        by_protocol(few, "own")


def test_the_optimistic_rows_stand_beside_the_honest_one(few: InContextLearning, records: Path) -> None:
    settings = [replace(few, rates=(1e-4, 1e-3)), replace(few, rates=(1e-4, 1e-3), layers=1, steps=2)]
    experiments = [each for setting in settings for each in by_protocols(setting, "both")]
    assert [(each.chosen_on, each.one_rate) for each in experiments[:3]] == [
        ("tuning", False),
        ("test", True),
        ("test", False),
    ]
    done = [(each, list(run(each, records).values())) for each in experiments]
    main, entropies, _ = in_context_tables(done)
    rows = {row["setting"]: row["Praise"] for row in main.rows if row["scores"] == "plain" and row["method"] == "TinT"}
    best = [setting for setting in rows if "(2 settings)" in setting]
    assert [setting.split(", ")[1] for setting in best] == [
        "setting and rate from tuning examples (2 settings)",
        "OPTIMISTIC: best setting and rate on the tests",
        "OPTIMISTIC: best setting and rate on the tests",
    ]
    honest, overall, each_seed = (float(rows[setting].split()[0]) for setting in best)
    assert honest <= overall <= each_seed and len(rows) == 2 * 3 + 3
    assert "Of rows that say OPTIMISTIC" in main.note and len(entropies.rows) == len(main.rows)
    # The model as it is does not depend on a choice: it is there once.
    assert [row["method"] for row in main.rows].count("the model as it is") == 2
    still = replace(few, methods=("auxiliary",))
    assert by_protocols(still, "both") == [still] and by_protocols(few, "tuned") == [few]
    with pytest.raises(InputError, match="--protocol 'both' is unknown"):
        by_protocol(few, "both")  # what language modelling asks


def test_other_models_stand_beside_as_they_are(bundled: InContextLearning, records: Path) -> None:
    experiments = [bundled, *compared(bundled, ["nano-gpt2"])]
    done = [(each, list(run(each, records).values())) for each in experiments]
    main, _, _ = in_context_tables(done)
    rows = [(row["model"], row["setting"], row["method"]) for row in main.rows[::2]]
    assert main.rows[0]["parameters"] == "3.0M" and main.rows[-1]["model"] == "nano-gpt2"
    assert rows == [
        ("nano-llama", "zero-shot", "the model as it is"),
        ("nano-llama", "4-shot single, label loss, all x 1", "TinT"),
        ("nano-gpt2", "zero-shot", "the model as it is"),
    ]


def test_losses_without_a_softmax_and_ia3_are_methods(bundled: InContextLearning, records: Path) -> None:
    """Each learns something of its own; gradients of quad are larger by the size of the vocabulary."""
    pytest.importorskip("peft", reason="IA3 needs the package peft")
    scores: set[float] = set()
    for method, rate in (("mse", 1e-5), ("quad", 1e-9), ("ia3", 1e-2)):
        small = replace(bundled, methods=("auxiliary", method), rates=(rate,), tests=2, seeds=(0,))
        found = run(small, records)
        change = found[method].answers[0].scores[0][0] - found["auxiliary"].answers[0].scores[0][0]
        assert math.isfinite(change) and change != 0, method
        scores.add(change)
    assert len(scores) == 3


def test_lora_learns_in_every_format(few: InContextLearning, zero: InContextLearning, tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="LoRA needs the package peft")
    formats = [few, replace(few, mode="multi"), replace(few, loss="full", test_text=True), zero]
    for number, experiment in enumerate(formats):
        small = replace(
            experiment, methods=("auxiliary", "lora"), rates=(3e-3,), tests=2, seeds=(0,), steps=2, layers=2
        )
        found = run(small, tmp_path / str(number))
        change = found["lora"].answers[0].scores[0][0] - found["auxiliary"].answers[0].scores[0][0]
        assert math.isfinite(change) and abs(change) > 1e-3, experiment


def test_settings_of_one_budget_are_a_figure(few: InContextLearning, records: Path) -> None:
    small = replace(few, tests=2, seeds=(0,))
    done = [(each, list(run(each, records).values())) for each in (small, replace(small, layers=1, steps=2))]
    figures = in_context_figures(done)
    assert figures["settings"].startswith(b"\x89PNG") and figures["accuracy"].startswith(b"\x89PNG")
    assert not in_context_figures(done[:1])["settings"]


@pytest.mark.slow
@pytest.mark.sweep
def test_simulator_and_fast_engine_answer_alike(zero: InContextLearning, tmp_path: Path) -> None:
    fifty = replace(zero, tests=50, rates=(3e-4,))
    fast = run(fifty, tmp_path / "fast")["tint"].answers[0]
    built = run(replace(fifty, engine="simulator"), tmp_path / "simulator")["tint"].answers[0]
    assert len(fast.labels) == 50
    close(fast, built, tolerance=1e-3)
    assert fast.right() == built.right() and fast.calibrated().right() == built.calibrated().right()


def test_measures() -> None:
    answers = Answers(
        seed=0,
        labels=(0, 1),
        scores=((-1.0, -2.0), (-1.0, -3.0)),
        calibration=(-1.0, -4.0),
        num_tokens=(1, 2),
        demonstrations=0.0,
        cut=0,
    )
    assert answers.right() == [1.0, 0.0] and answers.calibrated().right() == [0.0, 1.0]
    assert answers.by_length().scores == ((-1.0, -1.0), (-1.0, -1.5))
    assert answers.cross_entropy()[0] == pytest.approx(math.log(1 + math.exp(-1)))
    lost = replace(answers, scores=((-math.inf, -math.inf),) * 2)
    assert lost.right() == [0.0, 0.0] and lost.cross_entropy() == [math.inf, math.inf]


def test_the_tables(bundled: InContextLearning, records: Path) -> None:
    results = list(run(bundled, records).values())
    main, entropies, details = in_context_tables([(bundled, results)])
    assert [list(row) for row in entropies.rows] == [list(row) for row in main.rows]
    assert len(main.rows) == 4 and set(main.rows[0]) == {"setting", "method", "scores", "Praise"}
    accuracies = [100 * sum(each.right()) / 6 for each in results[1].answers]
    spread = abs(accuracies[0] - accuracies[1]) / 2  # as the paper: two seeds, each as far from their mean
    assert main.rows[2]["Praise"].startswith(f"{sum(accuracies) / 2:.1f} ({spread:.1f}) ± ")
    assert "(" not in main.rows[0]["Praise"]  # seeds make no difference
    assert main.rows[0]["setting"] == "zero-shot"  # what does not learn does not see the examples of "single"
    assert main.rows[2]["setting"] == "4-shot single, label loss, all x 1"
    assert details.rows[0]["tokens"] == "2, 1"  # of blame and praise
    assert details.rows[0]["n"] == "6 x 1" and details.rows[2]["n"] == "6 x 2"
    assert (details.rows[0]["demonstrations"], details.rows[2]["demonstrations"]) == ("", "4.0")
    assert details.rows[0]["change of accuracy"] == ""
    assert "[" in details.rows[2]["change of cross-entropy"]


def command(task: Path, output: Path) -> list[str]:
    sizes = ["--tests", "6", "--tuning", "4", "--shots", "4", "--seeds", "0,1", "--learning-rate", "1e-4,1e-3"]
    return [str(TINT), "eval", "icl", "nano-llama", str(task), *sizes, "-o", str(output)]


@pytest.mark.slow
@pytest.mark.sweep
def test_two_processes_on_one_directory_end_in_the_same_tables(task: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    assert forked.tint(*command(task, tmp_path / "one")[1:]).returncode == 0
    both = [subprocess.Popen(command(task, tmp_path / "two"), stdout=subprocess.DEVNULL, env=environment) for _ in "ab"]
    assert [process.wait(timeout=PATIENCE) for process in both] == [0, 0]
    records = {path.name for path in (tmp_path / "one").glob("records/*/*.json")}
    assert records == {path.name for path in (tmp_path / "two").glob("records/*/*.json")}
    victim = next((tmp_path / "two").glob("records/*/*.json"))
    victim.write_text(victim.read_text()[:100])
    again = forked.tint(*command(task, tmp_path / "two")[1:])
    assert again.returncode == 0 and "set aside" in again.stderr
    for suffix in ("md", "tex", "csv"):
        (one,), (other,) = (tmp_path / "one").glob(f"*.{suffix}"), (tmp_path / "two").glob(f"*.{suffix}")
        assert one.read_bytes() == other.read_bytes()
        other.unlink()
    table = forked.tint("eval", "table", tmp_path / "two")
    assert table.returncode == 0, table.stderr
    assert (tmp_path / "two" / one.name).read_bytes() == one.read_bytes()
    victim.unlink()
    lost = forked.tint("eval", "table", tmp_path / "two")
    assert lost.returncode == 2 and "lacks records of this run" in lost.stderr and not victim.exists()


@pytest.mark.usefixtures("unrendered")
def test_a_run_by_other_methods_stands_beside_the_first_and_in_one_table_with_it(task: Path, tmp_path: Path) -> None:
    runner, words = CliRunner(), ["eval", "icl", "nano-llama", str(task), "--tests", "4", "--learning-rate", "1e-4"]
    for options in (["--methods", "auxiliary,tint"], ["--methods", "auxiliary,moved", "--name", "moved"]):
        done = runner.invoke(app, [*words, *options, "-o", str(tmp_path / "out")], catch_exceptions=False)
        assert done.exit_code == 0, done.output
    assert len(list((tmp_path / "out" / "runs").glob("*.json"))) == 2 and (tmp_path / "out" / "moved.md").is_file()
    done = runner.invoke(app, ["eval", "table", str(tmp_path / "out"), "--together"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    table = (tmp_path / "out" / "all-icl.csv").read_text().split("\n\n")[0]
    assert [table.count(name) for name in ("the model as it is", "TinT,", "what TinT moves")] == [2, 2, 2]


@pytest.mark.usefixtures("unrendered")
def test_a_quick_run_is_the_beginning_of_a_whole_one(tmp_path: Path) -> None:
    """On a bundled model and the task that ships with its examples; the records of the first table are used again."""
    runner, words = CliRunner(), ["eval", "icl", "nano-llama", "praise", "--methods", "auxiliary"]

    def records() -> set[Path]:
        return set((tmp_path / "out" / "records").glob("*/*.json"))

    done = runner.invoke(app, [*words, "--quick", "-o", str(tmp_path / "out")], catch_exceptions=False)
    assert done.exit_code == 0 and "50.0 ± 8.0" in done.output, done.output
    first = {path: path.stat().st_mtime_ns for path in records()}
    done = runner.invoke(app, [*words, "--tests", "80", "-o", str(tmp_path / "out")], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert len(first) == 1 and len(records()) == 2  # 40 examples each
    assert all(path.stat().st_mtime_ns == written for path, written in first.items())
    names = {path.name for path in (tmp_path / "out").glob("*.md")}
    assert names == {"icl-nano-llama-praise-zero-shot-allx1-quick.md", "icl-nano-llama-praise-zero-shot-allx1.md"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mode", "double"], "mode='double' is unknown"),
        (["--loss", "label"], "there is no label to train on"),
        (["--settings", "all"], "must be layers/steps"),
        (["--settings", "9/1", "--tests", "4"], "layers=9 but the model has 6 blocks"),
        (["--tests", "4000"], "n=4000 over 2 labels"),
        (["--seeds", "a"], "--seeds 'a' must be whole numbers"),
        (["--normalise", "words"], "--normalise 'words' is unknown"),
        (["--variant", "rude"], "has no variant 'rude'"),
        (["--name", "../out", "--tests", "4"], "--name '../out' is no name of a file"),
    ],
)
def test_bad_input_is_one_line(task: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    done = forked.tint("eval", "icl", "nano-llama", task, "-o", tmp_path / "out", *arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and message in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()


def test_a_directory_without_runs(tmp_path: Path) -> None:
    done = forked.tint("eval", "table", tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "holds no runs" in done.stderr
    (tmp_path / "runs").mkdir()
    for content in ('{"kind": "icl", "experiments": [{"model": 3}]}', "[" * 100_000):
        (tmp_path / "runs" / "icl.json").write_text(content)
        done = forked.tint("eval", "table", tmp_path)
        assert done.returncode == 2 and "is no run of this version" in done.stderr
