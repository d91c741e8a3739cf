# pyright: basic
"""Bad input to `tint run`, `tint report` and `tint demo`: one line, exit code 2, and nothing half-written."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked
import pytest
from cases import covering
from patience import PATIENCE
from tiny import TEXT, save_model

from tintformer.cli import main
from tintformer.engines.fast.fast_executor import FastExecutor
from tintformer.storage import whole_files
from tintlab.reports.page import FILES

TINT = Path(sys.executable).with_name("tint")
LONG = "The lamp in the harbour is red. " * 200
"""More than the 512 tokens that nano-gpt2 has positions for."""
EARLIER = {"report.html": b"an earlier page", "loss.png": b"its figure", "rates.png": b"another", "mine.txt": b"notes"}


def save(place: Path, name: str, content: bytes) -> str:
    (place / name).write_bytes(content)
    return str(place / name)


TEXTS: dict[str, tuple[list[str], str]] = {
    "an empty file": (["--file", "EMPTY"], "EMPTY is empty; give"),
    "blanks": (["--file", "BLANKS"], "BLANKS is empty; give"),
    "zero bytes": (["--file", "ZERO"], "is a binary file .* give a text file"),
    "no UTF-8": (["--file", "BINARY"], "is no UTF-8 text .* give a text file"),
    "a directory": (["--file", "DIRECTORY"], "cannot read .*DIRECTORY: Is a directory; give"),
    "no file": (["--file", "MISSING"], "cannot read .*MISSING: No such file or directory; give"),
    "below a file": (["--file", "EMPTY/text"], "cannot read .*: Not a directory; give"),
    "no text": ([], "there is no text: give"),
    "two texts": (["a text", "--file", "EMPTY"], "a text and a --file; give one"),
    "one token": (["."], r"the text has \d tokens?; at least 4 are needed, so give a longer one"),
    "two tokens": (["T"], r"the text has \d tokens?; at least 4 are needed, so give a longer one"),
}
OPTIONS: dict[str, tuple[list[str], str]] = {
    "all trained on": (["--train-fraction", "1"], "train_fraction=1 must lie between 0 and 1"),
    "nothing trained on": (["--train-fraction", "0"], "train_fraction=0 must lie between 0 and 1"),
    "no fraction": (["--train-fraction", "nan"], "train_fraction=nan must lie between 0 and 1"),
    "too many tokens": (["--train-tokens", "5000"], r"would be 5000 of \d+ tokens; .* 1 must be left to evaluate"),
    "two lengths": (["--train-tokens", "9", "--train-fraction", "0.5"], "give one of them"),
    "a rate of nan": (["--learning-rate", "nan"], "learning_rate=nan must be a finite number"),
    "a rate that no float32 holds": (["--learning-rate", "1e308"], "is larger than float32 can hold; usual"),
    "an infinite rate": (["--learning-rate", "inf"], "learning_rate=inf must be a finite number"),
    "a negative rate": (["--learning-rate", "-1"], "learning_rate=-1.0 must be .* at least 0"),
    "a word for a rate": (["--learning-rate", "high"], "neither a number nor auto"),
    "a rate that diverges": (["--learning-rate", "1e30"], r"learning_rate=1e\+30 is too large for this text; try"),
    "an unknown engine": (["--engine", "steam"], "engine='steam' is unknown; choose"),
    "an unknown dtype": (["--dtype", "int8"], "dtype='int8' is unknown; choose"),
    "an unknown preset": (["--preset", "best"], "preset='best' is unknown; choose"),
    "too many layers": (["--layers", "9"], "layers=9 but the model has 2 blocks"),
}
Damage = Callable[[Path], Any]
MODELS: dict[str, tuple[Damage, str]] = {
    "truncated weights": (lambda place: cut(place, "model.safetensors", -10), "cannot read .* copy"),
    "the start of weights": (lambda place: cut(place, "model.safetensors", 100), "cannot read .* copy"),
    "empty weights": (lambda place: cut(place, "model.safetensors", 0), "cannot read .* copy"),
    "no weights": (lambda place: (place / "model.safetensors").unlink(), "holds no safetensors"),
    "a truncated configuration": (lambda place: cut(place, "config.json", 99), "config.json as JSON: .*; put"),
    "a configuration of null": (lambda place: save(place, "config.json", b"null"), "cannot read .* copy"),
    "a word for a width": (
        lambda place: edit(place, '"n_embd": 32', '"n_embd": "wide"'),
        "n_embd.*expected int, got str",
    ),
    "weights of another width": (
        lambda place: edit(place, '"n_embd": 32', '"n_embd": 64'),
        r"28 parameters of another shape .*: \(96,\) instead of \(192,\), .*; put",
    ),
    "weights of fewer layers": (
        lambda place: edit(place, '"n_layer": 2', '"n_layer": 3'),
        "lacks 12 parameters of its model .*; put",
    ),
    "a truncated tokenizer": (lambda place: cut(place, "tokenizer.json", -99), "tokenizer.json as JSON: .*; put"),
    "no tokenizer": (lambda place: (place / "tokenizer.json").unlink(), "holds no tokenizer; put"),
}
PLACES = {
    "a file": ("EMPTY", "EMPTY is no directory; choose"),
    "below a file": ("EMPTY/below/it", "EMPTY is no directory; choose"),
    "a link to nowhere": ("LINK", "/proc is not writable .*; choose"),
    "below /proc": ("/proc/tint/report", "/proc is not writable .*; choose"),
    "/proc itself": ("/proc", "/proc is not writable .*; choose"),
}


def cut(place: Path, name: str, length: int) -> None:
    save(place, name, (place / name).read_bytes()[:length])


def edit(place: Path, old: str, new: str) -> None:
    text = (place / "config.json").read_text(encoding="utf-8")
    assert old in text
    (place / "config.json").write_text(text.replace(old, new), encoding="utf-8")


def table(cases: dict[str, tuple[Any, str]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("given", "message"), [pytest.param(*case, id=name) for name, case in cases.items()])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with bad files in it."""
    contents = {"EMPTY": b"", "BLANKS": b" \n\t\r\n ", "ZERO": b"text\0text", "BINARY": b"\x7fELF\xff\xfe"}
    for name, content in contents.items():
        save(tmp_path, name, content)
    (tmp_path / "DIRECTORY").mkdir()
    (tmp_path / "LINK").symlink_to("/proc/nowhere")
    return tmp_path


def placed(here: Path, words: list[str]) -> list[str]:
    names = ("EMPTY", "BLANKS", "ZERO", "BINARY", "DIRECTORY", "MISSING", "LINK", "OUT")
    return [str(here / word) if word.startswith(names) else word for word in words]


def contents(directory: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
        if "unrelated" not in path.parts
    }


def check_line(code: Any, out: str, err: str, message: str) -> None:
    assert code == 2, err
    assert out == ""
    assert len(err.splitlines()) == 1 and err.startswith("tint: ") and err.endswith("\n"), err
    assert re.search(message, err), err


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Run `tint` in this process, where torch is loaded already, and expect one line."""

    def run(*words: Any, message: str) -> None:
        monkeypatch.setattr(sys, "argv", ["tint", *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as caught:
            main()
        printed = capfd.readouterr()
        check_line(caught.value.code, printed.out, printed.err, message)

    return run


@pytest.fixture
def refuse_twice(refuse: Callable[..., None], here: Path) -> Callable[..., None]:
    """The same for a command and, if it writes, once with nothing there and once with an earlier report."""

    def run(command: str, *words: Any, message: str) -> None:
        if command == "run":
            refuse(command, *words, message=message)
            return
        before = contents(here)
        refuse(command, *words, "-o", here / "OUT" / "below", message=message)
        assert contents(here) == before
        (here / "OUT").mkdir()
        for name, content in EARLIER.items():
            save(here / "OUT", name, content)
        before = contents(here)
        refuse(command, *words, "-o", here / "OUT", message=message)
        assert contents(here) == before

    return run


both = pytest.mark.parametrize("command", ["run", "report"])


def one_or_both(cases: dict[str, Any]) -> pytest.MarkDecorator:
    """Each case with one of the commands, in turn; with the other one in the sweep."""
    return pytest.mark.parametrize(("command", "case"), covering(["run", "report"], list(cases)))


@one_or_both(TEXTS)
def test_texts(refuse_twice: Callable[..., None], model: Path, here: Path, command: str, case: str) -> None:
    given, message = TEXTS[case]
    refuse_twice(command, model, *placed(here, given), message=message)


@one_or_both(OPTIONS)
def test_options(refuse_twice: Callable[..., None], model: Path, command: str, case: str) -> None:
    given, message = OPTIONS[case]
    refuse_twice(command, model, TEXT, *given, message=message)


@one_or_both(MODELS)
def test_damaged_models(refuse_twice: Callable[..., None], model: Path, here: Path, command: str, case: str) -> None:
    damage, message = MODELS[case]
    damaged = here / "unrelated" / "model"
    shutil.copytree(model, damaged)
    damage(damaged)
    refuse_twice(command, damaged, TEXT, message=message)


@pytest.mark.parametrize(("command", "name"), covering(["run", "report"], ["nano-gpt2", "nano-llama"]))
def test_a_bundled_model(refuse_twice: Callable[..., None], here: Path, command: str, name: str) -> None:
    long = save(here, "LONG", LONG.encode())
    message = rf"the text has \d+ tokens, but {name} was built for 512 .*; shorten it.*; --tokens 512 \(tokens=512 in"
    refuse_twice(command, name, "--file", long, message=message)


@both
def test_a_rate_that_makes_a_bundled_model_diverge(refuse: Callable[..., None], here: Path, command: str) -> None:
    words = [command, "nano-gpt2", TEXT, "--learning-rate", "1e9"]
    message = r"learning_rate=1e\+09 is too large for this text; try"
    refuse(*words, *(["-o", here / "OUT"] if command == "report" else []), message=message)
    assert not (here / "OUT").exists()


@pytest.mark.parametrize("command", ["report", "demo"])
@table(PLACES)
def test_places_that_cannot_be_written(
    refuse: Callable[..., None], here: Path, command: str, given: str, message: str
) -> None:
    """Found out before the work: the model that is asked for does not even exist."""
    if given.startswith("/proc") and not Path("/proc/self").exists():
        pytest.skip("there is no /proc; the test is for Linux")
    before = contents(here)
    words = ["no-model/at/all", TEXT] if command == "report" else []
    refuse(command, *words, "-o", *placed(here, [given]), message=message)
    assert contents(here) == before


LONG_NAME = "n" * 256
TOO_LONG_NAME = {
    "report": ["report", "no-model/at/all", TEXT, "-o", LONG_NAME],
    "demo": ["demo", "-o", LONG_NAME],
    "adapt": ["adapt", "no-model/at/all", TEXT, "-o", LONG_NAME],
    "build": ["build", "no-model/at/all", "--learning-rate", "1", "-o", LONG_NAME],
    "stream": ["stream", "no-model/at/all", "a text", "--learning-rate", "1e-3", "--state", LONG_NAME],
    "bench": ["bench", "--quick", "-o", LONG_NAME],
    "eval lm": ["eval", "lm", "no-model/at/all", "nothing.txt", "--name", LONG_NAME],
    "eval icl": ["eval", "icl", "MODEL", "sst2", "--name", LONG_NAME],
    "eval table-lm": ["eval", "table-lm", "--model", "no-model/at/all", "-o", LONG_NAME],
    "lm-eval": [
        "lm-eval",
        "--model",
        "tint",
        "--model_args",
        "pretrained=no-model",
        "--tasks",
        "x",
        "--output_path",
        LONG_NAME,
    ],
}


@pytest.mark.parametrize("command", TOO_LONG_NAME)
def test_names_that_are_too_long_for_the_disk(
    refuse: Callable[..., None], model: Path, here: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found out before the work: the model that is asked for does not even exist, where it is opened first of all."""
    monkeypatch.chdir(here)
    before = contents(here)
    words = [str(model) if word == "MODEL" else word for word in TOO_LONG_NAME[command]]
    refuse(*words, message="File name too long; choose a shorter name|is no name of a file .*; choose")
    assert contents(here) == before


def test_a_directory_in_the_place_of_a_figure(refuse: Callable[..., None], here: Path) -> None:
    (here / "OUT" / "updates.png").mkdir(parents=True)
    refuse("report", "no-model/at/all", TEXT, "-o", here / "OUT", message=r"updates\.png: it is a directory; remove")


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("moment", ["write", "rename"])
def test_a_full_disk(
    refuse: Callable[..., None],
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    earlier: bool,
) -> None:
    out = tmp_path / "deep" / "out"
    if earlier:
        out.mkdir(parents=True)
        for name, content in EARLIER.items():
            save(out, name, content)
    before = contents(tmp_path)
    write, replace = Path.write_bytes, os.replace
    full = OSError(28, "No space left on device")

    def failing_write(path: Path, data: bytes) -> int:
        if path.name == "report.html":
            write(path, data[:100])
            raise full
        return write(path, data)

    def failing_rename(source: Path, target: Path) -> None:
        if source.parent.name == "new" and source.name == "report.html":
            assert (target.parent / "updates.png").exists()  # others have taken their places before it
            raise full
        replace(source, target)

    if moment == "write":
        monkeypatch.setattr(Path, "write_bytes", failing_write)
    else:
        monkeypatch.setattr(whole_files.os, "replace", failing_rename)
    words = ["report", model, TEXT, "--learning-rate", "0.01", "--no-cosine", "-o", out]
    refuse(*words, message="cannot write the report into .*: No space left on device; free disk space")
    assert contents(tmp_path) == before


@table(
    {
        "run after loading": (["run", "nano-gpt2", "--file", "LONG"], "was built for 512 .*; shorten it"),
        "report": (["report", "nano-gpt2", "--file", "ZERO", "-o", "OUT"], "is a binary file .*; give"),
        "demo": (["demo", "-o", "EMPTY/below"], "EMPTY is no directory; choose"),
    }
)
def test_as_a_user_would(here: Path, given: list[str], message: str) -> None:
    save(here, "LONG", LONG.encode())
    before = contents(here)
    done = forked.tint(*given, cwd=here)
    check_line(done.returncode, done.stdout, done.stderr, message)
    assert contents(here) == before


OFFLINE, UNREACHABLE = {"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}


@pytest.mark.parametrize(
    ("name", "settings"),
    [("nano-gpt3", OFFLINE), ("nano-gpt3", UNREACHABLE), ("no name!", UNREACHABLE)],
    ids=["offline", "unreachable", "no hub id"],
)
def test_unknown_models_end_without_the_network(here: Path, name: str, settings: dict[str, str]) -> None:
    variables = {"HF_HOME": str(here / "cache"), **settings}
    done = forked.tint("report", name, TEXT, "-o", "OUT", cwd=here, variables=variables)
    near = "; did you mean nano-gpt2\\?" if "gpt" in name else ""
    check_line(done.returncode, done.stdout, done.stderr, f"cannot load '{name}': .*; check the name .*{near}$")
    assert not (here / "OUT").exists()


def test_standard_output_that_is_full() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full; the test is for Linux")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([TINT, "--version"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
    check_line(done.returncode, "", done.stderr, "No space left on device")


ENDLESS = ["report", "nano-gpt2", "--steps", "100000", "--learning-rate", "1e-9"]


def test_an_interrupt_while_importing_ends_quietly(here: Path) -> None:
    text = save(here, "text", (TEXT * 3).encode())
    before = contents(here)
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [TINT, *ENDLESS, "--file", text, "-o", here / "OUT"],
        text=True,
        stdout=pipe,
        stderr=pipe,
        # A shell that runs the tests in the background has its children ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    wait_for_torch(process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err) == (130, "", "")
    assert contents(here) == before


def test_an_interrupt_while_learning_ends_quietly(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = save(here, "text", (TEXT * 3).encode())
    before = contents(here)
    reading, writing = os.pipe()
    forward = FastExecutor.forward

    def tell(*given: Any) -> Any:
        monkeypatch.undo()
        os.write(writing, b"it learns")
        return forward(*given)

    monkeypatch.setattr(FastExecutor, "forward", tell)
    process = forked.start(*ENDLESS, "--file", text, "-o", here / "OUT")
    os.close(writing)
    with open(reading, "rb") as pipe:
        assert pipe.read(9) == b"it learns"
    process.send_signal(signal.SIGINT)
    done = process.end()
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert contents(here) == before


def wait_for_torch(process: subprocess.Popen[str]) -> None:
    """Until the command works: Python itself would print a traceback while it starts."""
    libraries = Path(f"/proc/{process.pid}/maps")
    if not libraries.exists():
        pytest.skip("there is no /proc to see what a process does; the test is for Linux")
    while "libtorch" not in libraries.read_text():
        assert process.poll() is None
        time.sleep(0.01)


def test_a_kill_leaves_the_earlier_report_and_the_next_run_cleans_up(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name, content in EARLIER.items():
        save(out, name, content)
    write = Path.write_bytes

    def kill(path: Path, data: bytes) -> None:
        """When all files but the page are written."""
        write(path, data[:100])
        if path.suffix == ".html":
            os.kill(os.getpid(), signal.SIGKILL)

    words = ["report", str(model), TEXT, "--learning-rate", "0.01", "--no-cosine", "-o", str(out)]
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", kill)
        killed = forked.tint(*words)
    assert killed.returncode == -signal.SIGKILL
    assert {name: (out / name).read_bytes() for name in EARLIER} == EARLIER
    assert len([path for path in out.iterdir() if path.name.startswith(".")]) == 1
    monkeypatch.setattr(sys, "argv", ["tint", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert {path.name for path in out.iterdir()} == {"report.html", "gain.png", "loss.png", "updates.png", "mine.txt"}
    assert (out / "mine.txt").read_bytes() == EARLIER["mine.txt"]
    assert {"report.html", "rates.png"} < set(FILES)
