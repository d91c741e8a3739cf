# pyright: basic
"""Every option of every command with values that nobody means: one line, exit code 2, nothing written, no traceback.

Commands and options are found in the command line itself, so that new ones are attacked too; a new command needs a line
in `BASES` that works.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
from all_commands import all_commands
from cases import covering, some
from praise import save_task
from tiny import TEXT, save_model

from tintformer.cli import main

RATE = ["--learning-rate", "1e-4"]
ONE = ["--methods", "auxiliary"]
FEW_BLOCKS = ["--length", "32", "--blocks", "2", "--tuning", "1", *RATE, *ONE]
FEW_DOCUMENTS = ["--length", "32", "--scored", "2", "--tuning", "1", *RATE, *ONE]
FEW_FUNCTIONS = ["--functions", "2", "--tuning", "1", "--examples", "2", "--inputs", "2", "--steps", "2", *RATE, *ONE]
FEW_TESTS = ["--tests", "2", "--tuning", "2", "--seeds", "0", *RATE, *ONE]
FEW_INPUTS = ["--tests", "2", "--tuning", "2", "--seeds", "0", "--shots", "2", "--orders", "2", *RATE]
BASES: dict[str, list[str] | None] = {
    "demo": None,  # takes an output alone, which test_bad_input_commands.py attacks
    "run": ["MODEL", TEXT, *RATE],
    "report": ["MODEL", TEXT, "--no-cosine", "-o", "OUT", *RATE],
    "adapt": ["MODEL", TEXT, "-o", "OUT", *RATE],
    "stream": ["MODEL", TEXT, "--chunk", "16", "-o", "OUT", *RATE],
    "statistics": ["MODEL", TEXT, "--chunk", "16", "-o", "OUT"],
    "sweep": ["MODEL", TEXT, "-o", "OUT", *RATE],
    "build": ["MODEL", "-o", "OUT", *RATE],
    "export": None,  # a graph takes seconds to make; test_export_command.py
    "params": ["MODEL", "--layout", "lean"],
    "plan": ["MODEL", "--tokens", "16"],
    "inspect": ["MODEL", TEXT, *RATE],
    "verify": ["MODEL", TEXT, "--tokens", "8", "--no-theorems", "--preset", "default", *RATE],
    "audit": ["MODEL", "--file", "TEXTS", "--tokens", "8", "--places", "1", "-o", "OUT", *RATE],
    "compare": ["MODEL", "SHORT", "-o", "OUT", *FEW_INPUTS],
    "probe": ["MODEL", "--context", "TEXTS", "--probes", "probes.jsonl", "--quick", "-o", "OUT", *RATE],
    "rates": ["MODEL", "TEXTS", "-o", "OUT"],
    "models": [],
    "fetch": [],
    "bench": None,  # its numbers take seconds each; test_bench.py
    "lm-eval": None,  # its options are the harness's
    "eval lm": ["MODEL", "TEXTS", "--shares", "0.5", "-o", "OUT", *FEW_BLOCKS],
    "eval icl": ["MODEL", "TASK", "-o", "OUT", *FEW_TESTS],
    "eval stream": ["MODEL", "TEXTS", "-o", "OUT", "--documents", "blocks", "--chunk", "16", *FEW_DOCUMENTS],
    "eval regression": ["-o", "OUT", *FEW_FUNCTIONS],
    "eval constructions": ["--width", "8", "--tokens", "3"],
    "eval table": ["OUT"],
    "eval list": [],
    "eval table-lm": ["--model", "MODEL", "--data", "TEXTS", "-o", "OUT", *FEW_BLOCKS],
    "eval table-icl": ["--model", "MODEL", "--data", "HERE", "--tasks", "TASK", "-o", "OUT", *FEW_TESTS],
    "eval table-settings": ["--model", "MODEL", "--data", "HERE", "--tasks", "TASK", "-o", "OUT", *FEW_TESTS],
}
LEARN = ("run", "report", "adapt", "build", "inspect", "plan", "verify", "eval lm", "eval icl")
NUMBERS = ("-1", "nan", "9" * 30, "\udcff")
TEXTS = ("../[bold]\x1b[31m\udcff\0" + "x" * 500, "")


COMMANDS = all_commands()


def options(command: str) -> Iterator[tuple[str, type]]:
    """The options of a command that take a number or a text, and which."""
    for name, hint in get_type_hints(COMMANDS[command], include_extras=True).items():
        if get_origin(hint) is not Annotated:
            continue
        hint, info = get_args(hint)[:2]
        if getattr(info, "rich_help_panel", None) == "Learning rule" and command != "run":
            continue  # one piece of code for all commands: `run` stands for them
        kind = next((each for each in get_args(hint) if each is not type(None)), hint)
        flags = [flag for flag in getattr(info, "param_decls", None) or () if flag.startswith("--")]
        if type(info).__name__ == "OptionInfo" and kind in (int, float, str):
            yield (flags or [f"--{name.replace('_', '-')}"])[0], kind


def test_every_command_is_attacked() -> None:
    assert set(BASES) == set(COMMANDS)
    assert {flag for flag, _ in options("plan")} >= {"--tokens", "--batch", "--memory", "--device"}
    assert dict(options("run"))["--steps"] is int and dict(options("eval lm"))["--learning-rate"] is str


def save_short_task(directory: Path) -> None:
    """Of texts so short that two of them fit before a third, into the context of a tiny model."""
    directory.mkdir()
    for part in ("train", "test"):
        rows = ({"text": f"{part} {number}", "label": number % 2} for number in range(12))
        (directory / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (directory / "short.yaml").write_text(
        'kind: classification\ntitle: Short\npath: .\nlabels: [even, odd]\nprompt: "{text} is"\nwords: [red, blue]\n'
    )


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("here")
    save_model(here / "MODEL")
    save_task(here / "task")
    save_short_task(here / "short")
    (here / "TEXTS").write_text(TEXT * 20, encoding="utf-8")
    (here / "probes.jsonl").write_text('{"prompt": "The lamp is", "labels": ["red", "blue"]}\n', encoding="utf-8")
    return here


class Attack:
    """Runs `tint` in this process and looks at what it leaves."""

    def __init__(self, here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
        self.here, self.monkeypatch, self.capfd = here, monkeypatch, capfd
        monkeypatch.chdir(here)
        for name, value in {"HF_HUB_OFFLINE": "1", "TINTFORMER_CACHE": str(here / "cache")}.items():
            monkeypatch.setenv(name, value)

    def files(self) -> set[Path]:
        return {path for path in self.here.rglob("*") if "OUT" not in path.parts}

    def __call__(self, *words: str) -> tuple[Any, str, str]:
        places = {"TASK": "task/praise.yaml", "SHORT": "short/short.yaml", "HERE": "."}
        self.monkeypatch.setattr(sys, "argv", ["tint", *(places.get(word, word) for word in words)])
        self.capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = self.capfd.readouterr()
        return ended.value.code, printed.out, printed.err

    def check(self, *words: str) -> None:
        before = self.files()
        code, out, err = self(*words)
        shown = f"{[word[:40] for word in words]}: {err[:500]}"
        assert code in (0, 2), shown
        if code == 2:
            assert err.startswith(("tint: ", "Usage: ")), shown
            assert err.startswith("Usage: ") or (err.count("\n") == 1 and len(err) < 1200), shown
            assert not (self.here / "OUT").exists(), shown
        assert "\x1b" not in out + err and "Traceback" not in err, shown
        assert self.files() == before, shown
        if (self.here / "OUT").is_dir():
            shutil.rmtree(self.here / "OUT")
        (self.here / "OUT").unlink(missing_ok=True)


@pytest.fixture
def attack(here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Attack:
    if (here / "OUT").exists():  # of a test that failed
        shutil.rmtree(here / "OUT")
    return Attack(here, monkeypatch, capfd)


FIRST = ("plan", "fetch", "eval list", "eval table", "eval table-icl")
"""Commands that every run of the tests attacks: a few seconds of them, and one that reads what others have written."""


@pytest.mark.parametrize(
    "command",
    some([*FIRST, *(name for name, base in BASES.items() if base is not None and name not in FIRST)], len(FIRST)),
)
def test_values_that_nobody_means(attack: Attack, command: str) -> None:
    base = BASES[command]
    assert base is not None
    for flag, kind in options(command):
        for value in TEXTS if kind is str else NUMBERS:
            at = base.index(flag) if flag in base else len(base)
            attack.check(*command.split(), *base[:at], flag, value, *base[at + 2 :])


ODD = {"odd": TEXTS[0], "empty": TEXTS[1], "user": "~nobody-here/x", "comma": ","}
WITH_ARGUMENTS = [command for command, base in BASES.items() if base and base[0][0] != "-"]


@pytest.mark.parametrize(("command", "kind"), covering(WITH_ARGUMENTS, list(ODD)))
def test_arguments_that_nobody_means(attack: Attack, command: str, kind: str) -> None:
    base, value = BASES[command] or [], ODD[kind]
    for at, word in enumerate(base[:2]):
        if not word.startswith("-"):
            attack.check(*command.split(), *base[:at], value, *base[at + 1 :])


@pytest.mark.parametrize("place", some(["/dev/zero", "FIFO", "HUGE", "SOCKET", "LINK", "MODEL"], 3))
def test_texts_in_odd_places(attack: Attack, place: str) -> None:
    """What has no end, may never answer, or is no text."""
    make_odd_places(attack.here)
    for command in ("run", "report", "adapt", "build", "inspect", "verify", "statistics"):
        words = [word for word in BASES[command] or () if word not in (TEXT, *RATE)]
        attack.check(command, *words, "--file", place)
    for option in ("--file", "--ids"):
        attack.check("audit", "MODEL", option, place, "-o", "OUT")
    if place != "MODEL":  # a directory of texts, though there are none in it
        attack.check("eval", "lm", "MODEL", place, *FEW_BLOCKS, "-o", "OUT")
        attack.check("eval", "lm", "MODEL", "wikitext-103", "--data", place, *FEW_BLOCKS, "-o", "OUT")
        attack.check("eval", "icl", "MODEL", "TASK", "--data", place, *FEW_TESTS, "-o", "OUT")
    (attack.here / "x.yaml").unlink(missing_ok=True)
    (attack.here / "x.yaml").symlink_to(place if place.startswith("/") else attack.here / place)
    attack.check("eval", "icl", "MODEL", "x.yaml", *FEW_TESTS, "-o", "OUT")
    attack.check("fetch", "x.yaml")


def make_odd_places(here: Path) -> None:
    if (here / "FIFO").exists():
        return
    os.mkfifo(here / "FIFO")
    (here / "LINK").symlink_to(here / "nowhere")
    with (here / "HUGE").open("wb") as huge:
        huge.truncate(2**40)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("SOCKET")


@pytest.mark.parametrize(
    ("command", "rate"),
    covering(
        ["run", "report", "adapt", "build", "inspect", "plan", "verify", "stream", "eval lm", "eval icl"],
        ["1e308", "nan", "inf", "-inf", "-1", "-1e308", "1e400", "", "٣e400", "\udcff"],
    ),
)
def test_rates_that_nobody_means(attack: Attack, command: str, rate: str) -> None:
    base = [word for word in BASES[command] or () if word not in RATE]
    code, _, err = attack(*command.split(), *base, "--learning-rate", rate)
    assert code == 2 and err.startswith(("tint: ", "Usage: ")), err
    assert not (attack.here / "OUT").exists()
