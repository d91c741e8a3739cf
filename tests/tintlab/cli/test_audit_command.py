# pyright: basic
"""`tint audit`: our stream passes, somebody's function is imported and its leak named, and bad input is one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny import TEXT, save_model

FUNCTIONS = '''
import torch
import weights_beside_it

def right(ids, document_ids=None):
    """A bigram model, without a score for the first token of a document."""
    rows = weights_beside_it.table()[ids].log_softmax(-1).roll(1, 0)
    rows[0] = torch.nan
    if document_ids is not None:
        rows[1:][document_ids[1:] != document_ids[:-1]] = torch.nan
    return rows

def leaks(ids, document_ids=None):
    return right(ids.flip(0)).flip(0)

def losses(ids):
    return [float(row[token]) if token == token else 0.0 for row, token in zip(right(ids), ids)]

def fails(ids):
    raise KeyError("no such row")

def exits(ids):
    raise SystemExit(7)

def is_long(ids):
    return torch.zeros(3)

constant = 3
'''
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    save_model(folder / "model")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    (folder / "other.txt").write_text(TEXT[40:200], encoding="utf-8")
    (folder / "my_scores.py").write_text(FUNCTIONS)
    (folder / "weights_beside_it.py").write_text(
        "import torch\n\ndef table():\n    return torch.randn(400, 400, generator=torch.Generator().manual_seed(0))\n"
    )
    # What nobody has named is not run, whatever it is called.
    for name in ("json", "rich", "torch", "transformers"):
        (folder / f"{name}.py").write_text("raise SystemExit('imported')\n")
    (folder / "ends.py").write_text("raise SystemExit('imported')\n")
    (folder / "ids.json").write_text(json.dumps([list(range(20)), list(range(5, 30))]))
    (folder / "no_ids.json").write_text('[[1, 2], [3, "four"]]')
    return folder


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    from tintformer.cli import main

    monkeypatch.chdir(folder)
    before = list(sys.path)

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tint", "audit", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert sys.path == before
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    yield run
    for name in ("my_scores", "weights_beside_it"):
        sys.modules.pop(name, None)


STREAM = ("model", "--file", "text.txt", "--tokens", "20", "--chunk", "6", "--places", "2")


def test_our_stream_passes(run: Run, folder: Path) -> None:
    code, out, _ = run(*STREAM, "--file", "other.txt", "--window", "12", "-o", "certificate.json")
    assert code == 0 and "nothing leaks at 2 of 38 places (" in out and "wrote certificate.json" in out
    record = json.loads((folder / "certificate.json").read_text())
    assert record["passed"] and record["documents"] == 2 and record["rule"]["learning_rate"] == 1e-5
    assert record["stream"] == {"chunk": 6, "window": 12, "carry": "cache"}
    assert {check["verdict"] for check in record["checks"]} == {"passed"}
    code, out, _ = run(*STREAM, "--carry", "recompute", "--learning-rate", "1e-3", "--steps", "2", "--json")
    assert code == 0 and json.loads(out)["stream"]["carry"] == "recompute"
    # Two documents longer than the context of 128 learned positions are cut to it.
    assert run("model", "--file", "text.txt", "--places", "1", "--chunk", "64")[0] == 0


def test_a_function_of_the_user_is_audited(run: Run, folder: Path) -> None:
    text = ("--file", "text.txt", "--tokenizer", "model", "--tokens", "30")
    assert run("--score", "my_scores:right", *text, "--file", "other.txt")[0] == 0
    code, out, _ = run("--score", "my_scores:leaks", *text, "--places", "3")
    assert code == 1 and "LEAKS: later tokens" in out and "tokens" in out
    code, out, _ = run("--score", "my_scores:leaks", *text, "--places", "3", "--json")
    finding = json.loads(out)["findings"][0]
    assert finding["kind"] == "later tokens" and finding["token"] == finding["score"] + 1
    code, out, _ = run("--score", "my_scores:right", "--ids", "ids.json", "--json")
    assert code == 0 and json.loads(out)["documents"] == 2 and json.loads(out)["tokens"] == 45
    code, out, _ = run("--score", "my_scores:losses", *text)
    assert code == 0 and "not checked: score gives no" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give a MODEL, whose stream is audited, or --score module:function, and not both"),
        (("model", "--score", "my_scores:right"), "and not both"),
        (("model",), "give a text with --file, or token ids with --ids"),
        ((*STREAM, "--tokenizer", "model"), "--tokenizer goes with --score"),
        ((*STREAM, "--window", "3"), "window=3 is smaller than chunk=6"),
        ((*STREAM, "--carry", "all"), "carry='all' is unknown"),
        ((*STREAM, "--learning-rate", "auto"), "would be chosen on the text that is then scored"),
        ((*STREAM, "-o", "nowhere/certificate.json"), "nowhere"),
        (("model", "--ids", "no_ids.json"), "no_ids.json holds no token ids"),
        (("model", "--ids", "text.txt"), "cannot read text.txt as JSON"),
        (("--score", "my_scores:right", "--file", "text.txt"), "need --tokenizer MODEL"),
        (("--score", "my_scores:right", "--ids", "ids.json", "--tokenizer", "model"), "leave out --tokenizer"),
        (("--score", "my_scores:right", "--ids", "ids.json", "--chunk", "3"), "so leave out --chunk"),
        (("--score", "my_scores.py:right", "--ids", "ids.json"), "must be module:function"),
        (("--score", "my_scores", "--ids", "ids.json"), "must be module:function"),
        (("--score", "nowhere_at_all:f", "--ids", "ids.json"), "cannot be imported (ModuleNotFoundError"),
        (("--score", "ends:f", "--ids", "ids.json"), "cannot be imported (it ends the program)"),
        (("--score", "my_scores:constant", "--ids", "ids.json"), "my_scores has no function constant"),
        (("--score", "my_scores:fails", "--ids", "no_docs.json"), "failed (KeyError: 'no such row')"),
        (("--score", "my_scores:exits", "--ids", "no_docs.json"), "failed (it ends the program)"),
        (("--score", "my_scores:is_long", "--ids", "no_docs.json"), "of shape (3,) for 9 tokens"),
    ],
)
def test_bad_input_is_one_line(run: Run, folder: Path, words: tuple[str, ...], message: str) -> None:
    (folder / "no_docs.json").write_text(json.dumps(list(range(9))))
    code, out, err = run(*words)
    assert code == 2 and not out and err.startswith("tint: ") and err.count("\n") == 1 and message in err, err
