# pyright: basic
"""`tint stream` and `tint statistics`, as a user would call them."""

from __future__ import annotations

import json
import math
import subprocess
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import pytest
import torch
from tiny import BOS, TEXT, save_model

import tintformer as tint
from tintformer.learning.streams import StreamSettings
from tintformer.learning.text import encode, find_tokenizer
from tintformer.study.text_stream import Document, TextStream
from tintlab.cli import stream as command

RATE = ("--learning-rate", "0.01")
HOW = ("--chunk", "16", "--window", "48")


def call(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return forked.tint(*arguments)


def answer(*arguments: Any) -> dict[str, Any]:
    done = call(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refused(*arguments: Any) -> str:
    done = call(*arguments)
    assert done.returncode == 2 and done.stderr.startswith("tint: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def nats(model: Any, rule: tint.LearningRule, ids: torch.Tensor, **options: Any) -> float:
    pieces = tint.Tint(model, rule, **options).stream(ids, chunk=16, window=48)
    return sum(float(piece.token_loss.sum()) for piece in pieces)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stream")
    save_model(place / "model")
    (place / "one.txt").write_text(TEXT)
    (place / "two.txt").write_text(TEXT[100:300])
    return place


def test_a_stream_is_that_of_the_package_beside_the_model_as_it_is(place: Path, tmp_path: Path) -> None:
    files = ("--file", place / "one.txt", "--file", place / "two.txt")
    record = answer("stream", place / "model", *files, *RATE, *HOW, "--momentum", "0.5", "-o", tmp_path / "out")
    rule = tint.LearningRule(learning_rate=0.01, momentum=0.5)
    tokenizer = find_tokenizer(str(place / "model"))
    before, after = 0.0, 0.0
    for document, text in zip(record["documents"], (TEXT, TEXT[100:300]), strict=True):
        ids = torch.tensor([encode(tokenizer, text).input_ids])
        losses = [nats(place / "model", each, ids) for each in (tint.LearningRule(learning_rate=0.0), rule)]
        assert document["tokens"] == ids.shape[1]
        assert document["loss_before"] == pytest.approx(losses[0] / (ids.shape[1] - 1), rel=1e-5)
        assert document["loss"] == pytest.approx(losses[1] / (ids.shape[1] - 1), rel=1e-5)
        before, after = before + losses[0], after + losses[1]
    assert record["loss_before"] == pytest.approx(before / record["scored_tokens"], rel=1e-5)
    assert record["gain"]["value"] == pytest.approx((before - after) / record["scored_tokens"], rel=1e-4, abs=1e-6)
    assert record["stream"] == {"chunk": 16, "window": 48, "carry": "cache"}
    assert record["special_tokens"] == [BOS]  # said, not silent
    places = record["by_position"]
    assert places[0]["gain"]["value"] == pytest.approx(0, abs=1e-6) and places[0]["documents"] == 2
    found = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert found == ["stream.csv", "stream.json", "stream.md", "stream.png"]
    assert json.loads((tmp_path / "out" / "stream.json").read_text()) == record
    rows = (tmp_path / "out" / "stream.csv").read_text().splitlines()
    assert rows[0] == "document,start,tokens,nats before,nats after" and len(rows) == 1 + sum(
        -(-document["tokens"] // 16) for document in record["documents"]
    )


def test_the_line_of_progress_has_speed_and_gain_of_what_this_run_has_read(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, float]] = []
    clock = count(100)  # a second a chunk
    monkeypatch.setattr(command, "doing", lambda text, share: said.append((text, share)))
    monkeypatch.setattr(command, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    model, rule = tint.load(place / "model"), tint.LearningRule(learning_rate=0.01)
    text = Document(name="text", input_ids=encode(find_tokenizer(str(place / "model")), TEXT).input_ids[:40])

    def opened() -> TextStream:
        settings = StreamSettings(chunk=16, window=48)
        return TextStream(model, rule, [text], settings, file=tmp_path / "state", every=1)

    reading = opened()
    tell, gains = command.progress(reading), list[float]()

    def stop_after_two(now: TextStream) -> None:
        tell(now)
        before, after = now.losses()
        gains.append(math.exp(after - before) - 1)
        if len(gains) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reading.read(stop_after_two)
    again = opened()
    again.read(command.progress(again))
    before, after = again.losses()
    gains.append(math.exp(after - before) - 1)
    assert gains[0] == 0 and gains[1] != 0  # nothing has been learnt before the first chunk
    for (line, share), speed, gain, read in zip(said, (16, 16, 8), gains, (16, 32, 40), strict=True):
        assert line.startswith(f"{speed} tokens/s, perplexity {gain:+.1%} (") and line.endswith(f"{read} of 40 tokens")
        assert share == read / 40
    assert f"({math.exp(before):.2f} -> {math.exp(after):.2f})" in said[-1][0]


def test_special_tokens_are_said_or_left_out(place: Path) -> None:
    done = call("stream", place / "model", TEXT, *RATE, *HOW)
    assert done.returncode == 0 and f"the tokenizer has added '{BOS}'" in done.stdout
    without = answer("stream", place / "model", TEXT, *RATE, *HOW, "--no-special-tokens")
    with_it = answer("stream", place / "model", TEXT, *RATE, *HOW)
    assert without["special_tokens"] == [] and without["tokens"] == with_it["tokens"] - 1


def test_the_same_command_again_goes_on_from_its_state(place: Path, tmp_path: Path) -> None:
    words = ("stream", place / "model", "--file", place / "one.txt", *RATE, *HOW)
    whole = answer(*words)
    first = answer(*words, "--state", tmp_path / "state", "--save-every", "1")
    again = answer(*words, "--state", tmp_path / "state")
    assert (first["resumed_at"], again["resumed_at"]) == (0, whole["tokens"])
    for record in (first, again):
        assert {**record, "resumed_at": 0} == whole
    before = (tmp_path / "state").read_bytes()
    assert "another rule" in refused(*words, "--decay", "0.1", "--state", tmp_path / "state")
    assert "another text" in refused(*words[:2], TEXT[9:], *words[4:], "--state", tmp_path / "state")
    assert (tmp_path / "state").read_bytes() == before


def test_statistics_are_collected_and_divided_by(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "statistics"
    texts = ("--file", place / "one.txt", "--file", place / "two.txt")
    record = answer("statistics", place / "model", *texts, *HOW, "-o", file)
    assert (
        record["chunk"] == 16 and record["chunks"] * 16 >= record["tokens"] and record["bytes"] == file.stat().st_size
    )
    rms = ("--optimizer", "rms", "--learning-rate", "1e-4")
    model = tint.load(str(place / "model"))
    rule = tint.LearningRule(learning_rate=1e-4, optimizer="rms")
    ids = torch.tensor([encode(find_tokenizer(str(place / "model")), TEXT).input_ids])
    found = answer("stream", place / "model", TEXT, *rms, *HOW, "--statistics", file)
    assert found["loss"] == pytest.approx(nats(model, rule, ids, statistics=file) / (ids.shape[1] - 1), rel=1e-5)
    assert answer("run", place / "model", TEXT, *rms, "--statistics", file)["rule"]["optimizer"] == "rms"
    answer("adapt", place / "model", TEXT, *rms, "--statistics", file, "-o", tmp_path / "update")
    assert "give statistics=" in refused("stream", place / "model", TEXT, *rms, *HOW)
    assert "statistics of another model" in refused("stream", "nano-gpt2", TEXT, *rms, *HOW, "--statistics", file)
    auto = refused("run", place / "model", TEXT, "--optimizer", "rms", "--statistics", file)
    assert "is not chosen for optimizer='rms'" in auto


def test_bad_input_is_one_line_and_nothing_is_written(place: Path, tmp_path: Path) -> None:
    state, out = tmp_path / "state", tmp_path / "out"
    words = ("stream", place / "model", TEXT, "--state", state, "-o", out)
    assert "would choose it on the text that is then scored" in refused(*words)
    assert "window=4 is smaller than chunk=8" in refused(*words, *RATE, "--chunk", "8", "--window", "4")
    assert "carry='all' is unknown" in refused(*words, *RATE, "--carry", "all")
    assert "learned positions" in refused("stream", place / "model", TEXT * 3, *RATE, "--state", state)
    assert "is given twice" in refused("stream", place / "model", *("--file", place / "one.txt") * 2, *RATE)
    assert not state.exists() and not out.exists()
