# pyright: basic
"""The recipe of the bundled models: runs that survive a kill, baselines that are right, bad input in one line."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import forked
import numpy as np
import pytest
import typer
from cases import some
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

from tintformer.storage import staging
from training import export, split, train
from training.baselines import character_bits, unigram_nats
from training.corpus import Windows, documents
from training.lock import locked
from training.settings import PRESETS, Settings

ROOT = Path(__file__).parents[2]
FILES = {"checkpoint.safetensors", "lock", "losses.jsonl", "run.json", "tokenizer.json"}
STEPS = 10
SHORT = [
    "--steps",
    str(STEPS),
    "--vocabulary",
    "300",
    "--batch-tokens",
    "512",
    "--warmup",
    "2",
]
SHORT += ["--checkpoint-every", "3", "--validate-every", "5"]
OPTIONS = ["--preset", "nano-gpt2", *SHORT]


def write_text(path: Path, num_words: int, seed: int) -> None:
    words = (
        "the",
        "a",
        "mill",
        "river",
        "keeper",
        "bread",
        "stone",
        "sold",
        "carried",
        "gladly",
        "every",
        "morning",
        ".\n",
    )
    choose = random.Random(seed)
    path.write_text("Of the mill\n\n\n\n" + " ".join(choose.choice(words) for _ in range(num_words)))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_text(folder / "mill.train.txt", 2000, 0)
    write_text(folder / "mill.held-out.txt", 200, 1)
    return folder


def start(data: Path, run: Path, preset: str) -> forked.Fork:
    """Training as `python -m training.train` does it."""
    arguments = [
        "train",
        str(data / "mill.train.txt"),
        "--held-out",
        str(data / "mill.held-out.txt"),
        "--preset",
        preset,
        *SHORT,
        "--run",
        str(run),
    ]

    def work() -> None:
        sys.argv = arguments
        typer.run(train.main)

    return forked.Fork(work)


def finish(process: forked.Fork) -> None:
    _, errors = process.communicate()
    assert process.returncode == 0, errors


def losses(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "losses.jsonl").read_text().splitlines()]


def call(command: Callable, *arguments: object) -> Result:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def assert_one_line(result: Result, words: str) -> None:
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ") and words in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.fixture(scope="module")
def whole_run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a run that nothing has disturbed, by preset."""
    folder = tmp_path_factory.mktemp("runs")

    def find(preset: str) -> Path:
        if not (folder / preset).exists():
            finish(start(data, folder / preset, preset))
        return folder / preset

    return find


@pytest.fixture(scope="module")
def uninterrupted(whole_run: Callable[[str], Path]) -> Path:
    return whole_run("nano-gpt2")


@forked.needs_fork
def test_a_run_logs_every_step_and_leaves_nothing_half_written(uninterrupted: Path) -> None:
    records = losses(uninterrupted)
    assert [record["step"] for record in records] == list(range(STEPS))
    assert [record["step"] for record in records if "validation" in record] == [4, 9]
    assert records[-1]["loss"] < records[0]["loss"]
    assert {path.name for path in uninterrupted.iterdir()} == FILES


@forked.needs_fork
@pytest.mark.parametrize("preset", some(list(PRESETS)))
@pytest.mark.sweep
def test_a_killed_run_continues_with_the_same_losses_and_weights(
    data: Path, whole_run: Callable[[str], Path], tmp_path: Path, preset: str
) -> None:
    uninterrupted, run = whole_run(preset), tmp_path / "killed"
    process = start(data, run, preset)
    log = run / "losses.jsonl"
    while not log.exists() or log.read_text().count("\n") < 5:
        assert process.poll() is None
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert process.returncode == -signal.SIGKILL
    assert 5 <= log.read_text().count("\n") < STEPS
    with log.open("a") as torn:
        torn.write('{"step": 7, "lo')
    # What a killed process of this machine leaves of a checkpoint.
    left = Path(tempfile.mkdtemp(prefix=f".tint-{staging._MACHINE}-", suffix=".tmp", dir=run))
    (left / "checkpoint.safetensors").write_bytes(b"half of it")
    finish(start(data, run, preset))
    assert losses(run) == losses(uninterrupted)
    assert {path.name for path in run.iterdir()} == FILES
    expected, actual = (load_file(folder / "checkpoint.safetensors") for folder in (uninterrupted, run))
    assert expected.keys() == actual.keys()
    assert all(bool((expected[name] == actual[name]).all()) for name in expected)


def test_two_processes_do_not_train_in_one_folder(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    code = (
        "import sys, pathlib\nfrom training.lock import locked\n"
        "with locked(pathlib.Path(sys.argv[1])):\n    print('in', flush=True)\n    sys.stdin.read()"
    )
    pipe, environment = subprocess.PIPE, os.environ | {"PYTHONPATH": str(ROOT)}
    other = subprocess.Popen([sys.executable, "-c", code, str(run)], stdin=pipe, stdout=pipe, env=environment)
    with other:
        assert other.stdout is not None and other.stdout.readline() == b"in\n"
        result = call(train.main, data / "mill.train.txt", *OPTIONS, "--run", run)
        assert_one_line(result, f"another process is training in {run}; wait")
        assert [path.name for path in run.iterdir()] == ["lock"]
        other.kill()
    with locked(run):  # the lock goes with the process
        pass


@forked.needs_fork
def test_a_folder_continues_its_own_run_only(data: Path, uninterrupted: Path) -> None:
    result = call(train.main, data / "mill.train.txt", *OPTIONS, "--seed", "5", "--run", uninterrupted)
    assert_one_line(result, "other settings")


@forked.needs_fork
def test_export_writes_a_model_whose_card_states_the_losses(data: Path, uninterrupted: Path, tmp_path: Path) -> None:
    target = tmp_path / "models" / "mill"
    result = call(export.main, uninterrupted, "--data", data, "--into", target)
    assert result.exit_code == 0, result.output
    total = json.loads(result.stdout.splitlines()[-1])
    card = (target / "README.md").read_text()
    nats, bits = total["model_nats"] / total["num_tokens"], total["model_nats"] / math.log(2) / total["num_bytes"]
    assert f"| {nats:.3f} | **{bits:.3f}** |" in card
    assert "| Muon for the matrices of the blocks, AdamW for embeddings" in card
    assert f"| steps | {STEPS} |" in card and "mill.train.txt" in card
    assert total["num_bytes"] == len((data / "mill.held-out.txt").read_bytes().rstrip(b"\n"))
    assert math.isclose(total["bits_per_byte"], bits, abs_tol=1e-4)
    assert {str(tensor.dtype) for tensor in load_file(target / "model.safetensors").values()} == {"torch.float16"}
    assert [path.name for path in target.parent.iterdir()] == ["mill"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot read"),
        (b"", "is empty"),
        (b"\xff\xfe\x00", "no UTF-8 text"),
        (b"Too short to learn from.", "too small"),
        (b"before <|endoftext|> after", "marks where a text ends"),
    ],
    ids=["missing", "empty", "binary", "small", "mark"],
)
def test_bad_text_gets_one_line_and_writes_nothing(content: bytes | None, words: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    if content is not None:
        text.write_bytes(content)
    result = call(train.main, text, *OPTIONS, "--run", tmp_path / "run")
    assert_one_line(result, words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--preset", "nano-bert", "unknown preset"),
        ("--steps", "0", "at least 1"),
        ("--vocabulary", "12", "a vocabulary of 12"),
        ("--batch-tokens", "100", "100 tokens a step"),
        ("--learning-rate", "-1", "learning rate"),
    ],
)
def test_bad_settings_get_one_line(option: str, value: str, words: str, data: Path, tmp_path: Path) -> None:
    result = call(train.main, data / "mill.train.txt", *OPTIONS, option, value, "--run", tmp_path / "run")
    assert_one_line(result, words)
    assert not (tmp_path / "run").exists()


def test_export_refuses_what_is_no_finished_run(data: Path, tmp_path: Path) -> None:
    assert_one_line(call(export.main, tmp_path, "--data", data, "--into", tmp_path / "model"), "holds no run")
    assert not (tmp_path / "model").exists()


def test_split_cuts_by_headings(tmp_path: Path) -> None:
    text = tmp_path / "tales.txt"
    text.write_text("ONE\na\nTWO\nb\nThe TWO again\nTHREE\nc\n")
    assert call(split.main, text, "--start", "^TWO$", "--end", "^THREE$", "--into", tmp_path).exit_code == 0
    assert (tmp_path / "tales.train.txt").read_text() == "ONE\na\nTHREE\nc"
    assert (tmp_path / "tales.held-out.txt").read_text() == "TWO\nb\nThe TWO again\n"
    assert_one_line(call(split.main, text, "--start", "TWO", "--into", tmp_path), "2 lines (3, 5)")
    assert_one_line(call(split.main, text, "--start", "FOUR", "--into", tmp_path), "no line")
    assert_one_line(call(split.main, text, "--start", "THREE", "--end", "ONE", "--into", tmp_path), "after line 6")


def test_documents_lose_no_character() -> None:
    text = "\n\n\n\nOne\n\nstill one\n\n\n\n\nTwo\n\n\n"
    assert "".join(documents(text)) == text
    assert len(documents(text)) == 3  # the line breaks before the first word stand alone


@pytest.mark.parametrize("step", [0, 7, 8, 9])
def test_windows_follow_from_seed_and_step_alone(step: int) -> None:
    settings = Settings(preset="nano-llama", steps=10, batch_tokens=1024)
    tokens = np.arange(4000)
    windows, shifts = Windows(tokens, settings).batch(step)
    length = 256 if step < 8 else 512
    assert windows.shape == (1024 // length, length + 1)
    assert (np.diff(windows, axis=1) == 1).all()
    assert ((shifts >= 0) & (shifts + length <= 512)).all()
    later = Windows(tokens, settings)
    later.batch(step + 1)
    again, shifts_again = later.batch(step)
    assert (again == windows).all() and (shifts_again == shifts).all()


def test_an_epoch_sees_every_window_once() -> None:
    settings = Settings(preset="nano-llama", steps=100, batch_tokens=512, short_share=1.0)
    windows = Windows(np.arange(256 * 11), settings)  # ten windows and room for the offset: five steps
    first_tokens = np.concatenate([windows.batch(step)[0][:, 0] for step in range(5)])
    assert len(set(first_tokens.tolist())) == 10
    assert (np.diff(np.sort(first_tokens)) == 256).all()


def test_unigram_baseline_by_hand() -> None:
    # Counts with one more each: 3, 2, 1 of 6.
    nats = unigram_nats(np.array([0, 0, 1]), np.array([0, 2]), 3)
    assert math.isclose(nats, -math.log(3 / 6) - math.log(1 / 6))


def test_character_baseline_one_probability_at_a_time() -> None:
    train, held_out = b"abracadabra, said the bear; abracadabra", b"a bear said zebra"
    padded, asked = b"\n\n\n" + train, b"\n\n\n" + held_out
    expected = 0.0
    for place in range(3, len(asked)):
        probability = 1 / 256
        for length in range(4):
            context, byte = asked[place - length : place], asked[place]
            after = [padded[i] for i in range(3, len(padded)) if padded[i - length : i] == context]
            if after:
                kinds = len(set(after))
                probability = (after.count(byte) + kinds * probability) / (len(after) + kinds)
        expected -= math.log2(probability)
    assert math.isclose(character_bits(train, held_out), expected, rel_tol=1e-12)
