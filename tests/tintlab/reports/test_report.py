# pyright: basic
"""`tint report`: the numbers of the page are those of the pass, whatever the text is; files are whole or absent."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from html import unescape
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from pages import RULE, TRAIN, Read, make
from tiny import TEXT, make_model, make_tokenizer

import tintformer as tint
import tintlab as lab
from tintformer.execution.batch import Batch
from tintformer.learning.text import decode_continuation, encode
from tintformer.study.coloured import cut, visible
from tintformer.study.learn import score_text
from tintlab import reports
from tintlab.checks.verify.gradients import align, simulated_gradient, true_gradient
from tintlab.methods.fine_tuning import fine_tune
from tintlab.reports import Report, write
from tintlab.reports.collect import LIMIT, cosines
from tintlab.reports.drawing import NAMES, Drawing, short, smooth, smoothing_window, tidy
from tintlab.reports.page import perplexity, rule_text, signed


def test_the_numbers_are_those_of_the_pass(report: Report, tmp_path: Path, drawn: None) -> None:
    tokenizer = make_tokenizer()
    ids = torch.tensor([encode(tokenizer, TEXT).input_ids])
    train = torch.arange(ids.shape[1])[None] < TRAIN
    out = tint.Tint(make_model(len(tokenizer)), RULE)(ids, train_mask=train, before=True)
    assert out.logits is not None and out.logits_before is not None and out.token_loss_before is not None
    assert out.loss is not None and out.loss_before is not None
    page = write(report, tmp_path).read_text(encoding="utf-8")
    read = Read(page)
    assert [row["position"] for row in read.data] == list(range(TRAIN, ids.shape[1]))
    for row in read.data:
        place = row["position"]
        for name, losses, logits in (
            ("_before", out.token_loss_before, out.logits_before),
            ("", out.token_loss, out.logits),
        ):
            loss = float(losses[0, place])
            assert row[f"loss{name}"] == pytest.approx(loss, rel=1e-4, abs=1e-6)
            assert row[f"probability{name}"] == pytest.approx(math.exp(-loss), rel=1e-4)
            best = logits[0, place - 1].softmax(-1).topk(5)
            assert [share for _, share, _ in row[f"top{name}"]] == pytest.approx(best.values.tolist(), rel=1e-4)
            words = [visible(tokenizer.decode([token])) for token in best.indices.tolist()]
            assert [word for word, _, _ in row[f"top{name}"]] == words
            actual = [int(token == int(ids[0, place])) for token in best.indices.tolist()]
            assert [mark for _, _, mark in row[f"top{name}"]] == actual
    assert report.loss == pytest.approx(float(out.loss), rel=1e-5)
    assert report.loss_before == pytest.approx(float(out.loss_before), rel=1e-5)
    change = (out.token_loss - out.token_loss_before)[0, TRAIN:]
    assert report.standard_error == pytest.approx(float(change.std() / math.sqrt(len(change))), rel=1e-4)
    for shown in (perplexity(report.loss), perplexity(report.loss_before), signed(report.loss - report.loss_before)):
        assert shown in page
    for words in ("steps=2", "1e-2, as given", f"{TRAIN} trained on", f"torch {torch.__version__}", tint.__version__):
        assert words in unescape(page)


def test_updates_and_cosines(report: Report) -> None:
    tokenizer = make_tokenizer()
    auxiliary = tint.load(make_model(len(tokenizer)))
    ids = torch.tensor([encode(tokenizer, TEXT).input_ids])
    batch = Batch.of(auxiliary, ids, train_mask=torch.arange(ids.shape[1])[None] < TRAIN)
    updates = tint.Tint(auxiliary, RULE)(ids, train_mask=batch.train_mask).updates()
    norms = {(each.layer, each.matrix): each.norm for each in report.updates}
    down = [updates[f"transformer.h.1.mlp.c_proj.{part}"].norm() for part in ("weight", "bias")]
    assert norms[1, "down"] == pytest.approx(math.hypot(*map(float, down)), rel=1e-4)
    value = updates["transformer.h.0.attn.c_attn.weight"][:, 64:], updates["transformer.h.0.attn.c_attn.bias"][64:]
    assert norms[0, "value"] == pytest.approx(math.hypot(*(float(each.norm()) for each in value)), rel=1e-4)
    assert (0, "query") not in norms and (None, "final.norm") in norms
    total = math.sqrt(sum(float(update.double().square().sum()) for update in updates.values()))
    assert math.sqrt(sum(norm**2 for norm in norms.values())) == pytest.approx(total, rel=1e-4)

    assert [cosine.layer for cosine in report.cosines] == [None, 0, 1]
    step = tint.LearningRule(learning_rate=1e-4)
    precise = tint.load(make_model(len(tokenizer)).double())
    expected = align(
        precise,
        step,
        simulated_gradient(precise, step, batch, tint.Tint(precise, step).engine),
        true_gradient(precise, batch),
    )
    assert report.cosines[0].moved == pytest.approx(expected.moved.cosine, abs=1e-4)
    assert report.cosines[0].everything == pytest.approx(expected.everything.cosine, abs=1e-4)
    assert all(cosine.moved is not None and 0 < cosine.moved <= 1 + 1e-6 for cosine in report.cosines)
    # In the top block nothing is left out of the gradient that reaches what moves; plain SGD is the truth itself.
    full = cosines(auxiliary, tint.LearningRule.full(learning_rate=1.0), batch)
    assert all(cosine.everything == pytest.approx(1, abs=1e-5) for cosine in full)
    top = cosines(auxiliary, tint.LearningRule(learning_rate=1.0, layers=1), batch)
    assert top[1].moved is None and top[1].everything is None and top[2].moved is not None


def test_statistics_of_rms_reach_every_part() -> None:
    auxiliary, ids = tint.load(make_model(len(make_tokenizer()))), torch.arange(24)[None]
    rule = tint.LearningRule.full(learning_rate=1e-3, optimizer="rms")
    found = tint.collect_statistics(auxiliary, rule, ids, chunk=8)
    report = make(rule=rule, statistics=found, generate=2)
    assert report.loss != report.loss_before and report.cosines and report.continuations is not None
    with pytest.raises(tint.TintError, match="optimizer='rms' divides by"):
        make(rule=rule)


def test_cosines_are_left_out_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: None) -> None:
    without = make(cosine=False)
    assert not without.cosines and "--no-cosine" in without.no_cosines
    assert "Left out. It was not asked for" in write(without, tmp_path).read_text(encoding="utf-8")
    assert not (tmp_path / "cosines.png").exists()
    monkeypatch.setattr(sys.modules["tintlab.reports.collect"], "LIMIT", 10)
    assert LIMIT > 135e6
    large = make()
    assert not large.cosines and "million parameters" in large.no_cosines
    assert make(cosine=True).cosines


def test_a_rate_of_zero_changes_nothing(tmp_path: Path, drawn: None) -> None:
    still = make(rule=tint.LearningRule(learning_rate=0.0))
    assert all(token.change == 0 for token in still.scored) and all(update.norm == 0 for update in still.updates)
    assert "0%" in write(still, tmp_path).read_text(encoding="utf-8")


def test_nothing_is_asked_of_the_network(report: Report, tmp_path: Path, drawn: None) -> None:
    page = write(report, tmp_path).read_text(encoding="utf-8")
    for tag, attributes in Read(page).tags:
        for name in ("src", "href", "srcset", "action", "poster", "data"):
            address = attributes.get(name)
            assert address is None or address.startswith(("#", "data:,")), (tag, address)
    assert not re.search(r"@import|url\(\s*['\"]?(?!#)|https?://", page)
    identities = re.findall(r'\bid="([^"]*)"', page)
    assert len(identities) == len(set(identities))


def test_the_same_bytes_twice(
    report: Report, drawings: Mapping[str, Drawing], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("tintlab.reports.page.draw", lambda _: drawings)
        write(report, tmp_path / "one")
    write(make(), tmp_path / "two" / "deeper")
    first, second = (sorted(directory.iterdir()) for directory in (tmp_path / "one", tmp_path / "two" / "deeper"))
    assert [file.name for file in first] == [file.name for file in second]
    assert [file.name for file in first] == ["cosines.png", "gain.png", "loss.png", "report.html", "updates.png"]
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes()
        assert one.suffix == ".html" or one.read_bytes().startswith(b"\x89PNG")


def test_an_interruption_leaves_everything_as_it_was(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: None
) -> None:
    def fail(self: Path, content: bytes) -> int:
        if "updates" in self.name:
            raise failures[-1]
        with self.open("wb") as file:
            return file.write(content)

    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "report.html").write_text("old")
    monkeypatch.setattr(Path, "write_bytes", fail)
    failures: list[BaseException] = [KeyboardInterrupt(), OSError(28, "No space left on device")]
    for seen in (tint.TintError, KeyboardInterrupt):
        for name in ("old", "new"):
            with pytest.raises(seen):
                write(report, tmp_path / name)
        failures.pop()
    assert [path.name for path in tmp_path.rglob("*")] == ["old", "report.html"]
    assert (tmp_path / "old" / "report.html").read_text() == "old"


def test_figures_of_an_earlier_report_do_not_stay(report: Report, tmp_path: Path, drawn: None) -> None:
    for name in (*NAMES, "mine"):
        (tmp_path / f"{name}.png").write_bytes(b"old")
    write(report, tmp_path)
    assert not (tmp_path / "rates.png").exists()
    assert (tmp_path / "mine.png").read_bytes() == b"old" and (tmp_path / "loss.png").read_bytes() != b"old"


def test_the_command(
    run_here: Callable[..., None], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_here(model, TEXT, "-o", tmp_path / "out", "--json")
    printed = capsys.readouterr()
    record = json.loads(printed.out)
    assert printed.err == ""
    assert record["output"] == str(tmp_path / "out" / "report.html") and Path(record["output"]).is_file()
    assert record["figures"] == [str(tmp_path / "out" / f"{name}.png") for name in NAMES]
    assert record["rate_choice"]["helps"] and record["loss"] < record["loss_before"]
    assert len(record["tokens"]) == record["evaluation_tokens"] and len(record["cosines"]) == 3
    assert record["baseline"] is None and record["continuations"] is None
    page = Path(record["output"]).read_text(encoding="utf-8")
    assert tidy(record["rule"]["learning_rate"]) in page and f"<bdi>{model.name}</bdi>" in page
    words = ["--learning-rate", "0.01", "--engine", "reference", "--no-cosine", "--tokens", "30"]
    run_here(model, TEXT, "-o", tmp_path / "out", *words)
    printed = capsys.readouterr().out
    assert "wrote" in printed and "trained on 15 tokens, evaluated on 15 tokens" in printed
    names = ["gain.png", "loss.png", "report.html", "updates.png"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names


@pytest.mark.sweep
def test_a_report_by_the_simulator_shows_the_losses_of_the_fast_engine(
    run_here: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records: list[dict[str, Any]] = []
    for engine in ("fast", "simulator"):
        words = ["--learning-rate", "1e-4", "--engine", engine, "-o", tmp_path / engine, "--json"]
        run_here("nano-gpt2", TEXT, *words)
        records.append(json.loads(capsys.readouterr().out))
    fast, simulator = records
    assert (simulator["engine"], len(simulator["figures"])) == ("simulator", len(fast["figures"]))
    for one, other in zip(fast["tokens"], simulator["tokens"], strict=True):
        assert one["position"] == other["position"] and one["token"] == other["token"]
        for key in ("token_loss", "token_loss_before"):
            assert other[key] == pytest.approx(one[key], abs=1e-3)
    for key in ("loss", "loss_before"):
        assert simulator[key] == pytest.approx(fast[key], abs=1e-4)
    for one, other in zip(fast["updates"], simulator["updates"], strict=True):
        assert other["norm"] == pytest.approx(one["norm"], rel=1e-3)
    assert "simulator" in (tmp_path / "simulator" / "report.html").read_text(encoding="utf-8")


def test_the_baseline_and_continuations_are_there_when_asked_for(
    run_here: Callable[..., None], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], drawn: None
) -> None:
    text = TEXT[: TEXT.index("Ben sails")]
    words = [model, text, "-o", tmp_path, "--no-cosine", "--learning-rate", "0.01", "--baseline", "--generate", "7"]
    run_here(*words, "--json")
    record = json.loads(capsys.readouterr().out)
    auxiliary, tokenizer = tint.load(str(model)), make_tokenizer()
    ids = torch.tensor([encode(tokenizer, text).input_ids])
    tuned = fine_tune(auxiliary, ids, record["train_tokens"])
    baseline, found = record["baseline"], record["continuations"]
    assert (baseline["learning_rate"], baseline["steps"]) == (tuned.choice.rate, 1)
    assert baseline["token_loss"] == pytest.approx(tuned.losses, rel=1e-5)
    assert baseline["perplexity"] == pytest.approx(math.exp(tuned.loss), rel=1e-5)
    learnt = tint.Tint(auxiliary, tint.LearningRule(learning_rate=0.01)).adapt(ids[:, : record["train_tokens"]])
    for key, each in (("before", auxiliary.model), ("after", learnt)):
        continued = each.generate(ids, max_new_tokens=7, do_sample=False, attention_mask=torch.ones_like(ids))
        assert found[key] == decode_continuation(tokenizer, continued[0].tolist(), ids.shape[1])
    page = unescape((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert f'<p class="number">{perplexity(tuned.loss)}</p>' in page and tidy(tuned.choice.rate) in page
    assert "How the text goes on" in page and "explicit fine-tuning" in page and "Explicit fine-tuning: " in page
    run_here(*words)
    assert "explicit fine-tuning at its own rate" in capsys.readouterr().out
    with pytest.raises(tint.InputError, match=r"and 999 are to be generated, but .* learned positions"):
        run_here(*words[:-1], "999")


def test_without_matplotlib_the_page_has_sentences_for_figures(
    run_here: Callable[..., None],
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    run_here(model, TEXT, "-o", tmp_path / "out", "--learning-rate", "0.01")
    assert "report.html without figures, which need matplotlib: pip install" in " ".join(
        capsys.readouterr().out.split()
    )
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]
    page = unescape((tmp_path / "out" / "report.html").read_text(encoding="utf-8"))
    assert "Without figures, which need matplotlib: pip install 'tintformer[plots]'" in page and "<svg" not in page
    assert "A line from 0 before the first evaluated token to" in page
    assert "Two lines over positions" in page and "A table of norms; the largest is" in page
    assert "There is none: the rate, 1e-2, was given" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["MODEL", "--file", "EMPTY", "-o", "OUT"], "is empty"),
        (["MODEL", "--file", "BINARY", "-o", "OUT"], "is no UTF-8 text"),
        (["MODEL", "--file", "ZERO", "-o", "OUT"], "is a binary file"),
        (["MODEL", "-o", "OUT"], "there is no text"),
        (["MODEL", "A", "-o", "OUT"], "the text has 2 tokens; at least 4 are needed"),
        (["MODEL", TEXT, "-o", "EMPTY"], "EMPTY is no directory"),
        (["MODEL", TEXT, "-o", "EMPTY/below/it"], "EMPTY is no directory"),
        (["MODEL", TEXT, "-o", "/proc/1/tint"], "cannot write"),
        (["no-model/at/all", TEXT, "-o", "OUT"], "no directory no-model/at/all"),
        (["MODEL", TEXT + TEXT, "-o", "OUT"], "learned positions"),
        (["MODEL", TEXT, "-o", "OUT", "--layers", "9"], "layers=9 but the model has 2 blocks"),
        (["MODEL", TEXT, "-o", "OUT", "--engine", "steam"], "engine='steam' is unknown"),
        (["MODEL", TEXT, "-o", "OUT", "--learning-rate", "1e30"], "is too large for this text"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    run_here: Callable[..., None], model: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "EMPTY").write_bytes(b"")
    (tmp_path / "BINARY").write_bytes(b"\x7fELF\xff\xfe\x00")
    (tmp_path / "ZERO").write_bytes(b"text\0text")
    names = ("EMPTY", "BINARY", "ZERO", "OUT")
    words = [str(tmp_path / word) if word.startswith(names) else word for word in arguments]
    with pytest.raises(tint.TintError, match=message) as caught:
        run_here(*(str(model) if word == "MODEL" else word for word in words))
    assert len(str(caught.value).splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["BINARY", "EMPTY", "ZERO"]


def test_the_line_and_the_exit_code(tmp_path: Path) -> None:
    done = forked.tint("report", tmp_path / "no-model", TEXT, "-o", tmp_path / "out")
    assert done.returncode == 2 and done.stdout == "" and not list(tmp_path.iterdir())
    assert len(done.stderr.splitlines()) == 1 and "no directory" in done.stderr


def test_pieces_of_a_text() -> None:
    pieces = cut("a  b\U0001f600c", ["<s>", "a", "b", "\U0001f600", "\U0001f600", "c"])
    assert [piece.kind for piece in pieces] == ["special", "text", "text", "text", "rest", "text"]
    assert [piece.gap for piece in pieces] == ["", "", "  ", "", "", ""]
    assert visible(" a b ") == "\u2423a b\u2423" and visible("\n\t") == "\u21b5\u21e5" and visible("  ") == "\u2423" * 2
    assert visible("") == ""


def test_small_functions() -> None:
    assert smooth([1.0, 2.0, 6.0], 3) == [1.5, 3.0, 4.0]
    assert all(smoothing_window(count) % 2 == 1 and smoothing_window(count) >= 1 for count in range(1, 99))
    assert rule_text(tint.LearningRule(learning_rate=1.0)) == "default"
    assert rule_text(tint.LearningRule.full(learning_rate=1.0, layers=3)) == "full, layers=3"
    assert (tidy(3.16e-5), tidy(0.01), tidy(0)) == ("3.16e-5", "1e-2", "0")
    assert (short(0.0), short(9.999), short(123.4)) == ("0.00", "10.0", "123")
    assert (perplexity(800.0), perplexity(1.0), perplexity(7.0)) == ("\u221e", "2.72", "1,097")
    assert {"collect", "write"} <= set(reports.__all__)


# The same in Python.


def test_the_page_of_a_result_is_that_of_the_command(
    model: Path, run_here: Callable[..., None], tmp_path: Path
) -> None:
    result = tint.learn(str(model), TEXT, learning_rate=0.01)
    page = lab.report(result, tmp_path / "python", cosine=False)
    run_here(model, TEXT, "--learning-rate", 0.01, "--no-cosine", "-o", tmp_path / "command")
    files = sorted(path.name for path in (tmp_path / "command").iterdir())
    assert [path.name for path in sorted(page.parent.iterdir())] == files
    assert page.read_text(encoding="utf-8") == (tmp_path / "command" / page.name).read_text(encoding="utf-8")


def test_an_update_that_was_learnt_earlier_has_no_report(model: Path) -> None:
    result = tint.learn(str(model), TEXT, learning_rate=0.01)
    with pytest.raises(tint.TintError, match="nothing was learnt from this text"):
        lab.report(score_text(result.auxiliary, TEXT, result.tuned), "nowhere")
    with pytest.raises(tint.InputError, match="result"):
        lab.report("a text", "nowhere")  # type: ignore[arg-type]
