# pyright: basic
"""The command line, run as a user would."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any, get_args, get_type_hints

import forked
import pytest
import time_commands
import typer
from all_commands import all_commands
from patience import PATIENCE
from tiny import TEXT

import tintformer
from tintformer import console
from tintformer.auxiliary.families import families
from tintformer.bundled import BUNDLED, TEXTS
from tintformer.cli import main
from tintformer.cli.app import app
from tintlab.cli.demo import demo


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.tint(*arguments)


def test_help_lists_the_commands() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "demo" in done.stdout and "models" in done.stdout


def test_every_command_is_timed() -> None:
    """`python tests/time_commands.py` says after how long a user sees something of each."""
    assert set(time_commands.COMMANDS) == {"--help", *all_commands()}


def test_the_list_of_commands_says_what_each_says_itself() -> None:
    """`tint --help` imports no command, so its lines stand in tables."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert {"run", "demo", "eval"} <= set(commands)
    for name, row in commands.rows.items():
        said = (commands[name].help or "").split("\n\n")[0]
        assert row.help == " ".join(said.split()), name


def test_help_says_everything_once() -> None:
    """Commands share the texts of the learning rule's options."""
    for name, command in all_commands().items():
        for option in get_args(get_type_hints(command, include_extras=True).get("learning_rate"))[1:]:
            assert option.help.count("auto is the default: see") <= 1, name


def test_version() -> None:
    assert run("--version").stdout.strip() == tintformer.__version__


def loaded_by(*words: str) -> tuple[int, set[str]]:
    """The exit code of a command, and the packages that it has imported."""
    code = (
        f"import sys\nsys.argv = ['tint', *{words!r}]\nfrom tintformer.cli import main\n"
        "try:\n    main()\nfinally:\n    print(*sys.modules)"
    )
    surroundings = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, env=surroundings
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "tintformer" in loaded
    return done.returncode, loaded


def test_help_loads_neither_torch_nor_transformers() -> None:
    code, loaded = loaded_by("--help")
    assert code == 0 and not loaded & {"torch", "transformers", "numpy", "matplotlib", "huggingface_hub", "jaxtyping"}


@pytest.mark.parametrize("words", [("run", "no-such-model", "A text of some words."), ("params", "no-such-model")])
def test_an_unknown_model_is_refused_before_seconds_of_imports(words: tuple[str, ...]) -> None:
    code, loaded = loaded_by(*words)
    assert code == 2 and not loaded & {"torch", "transformers"}


def fresh(code: str) -> subprocess.CompletedProcess[str]:
    """A process that has imported nothing."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)


def test_importing_the_package_is_light_and_every_name_resolves() -> None:
    assert fresh("import sys, tintformer\nprint('torch' in sys.modules)").stdout.split() == ["False"]
    assert all(hasattr(tintformer, name) for name in tintformer.__all__)
    with pytest.raises(AttributeError, match="No tintformer attribute nothing"):
        _ = tintformer.nothing  # type: ignore[attr-defined]


def test_dir_shows_public_names_alone() -> None:
    assert dir(tintformer) == sorted(tintformer.__all__)
    tintformer.load  # noqa: B018
    assert "storage" in vars(tintformer) and dir(tintformer) == sorted(tintformer.__all__)


class Begun(Exception):
    """A command has said that it works."""


def test_every_command_says_at_once_that_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(text: str) -> None:
        raise Begun(text)

    monkeypatch.setattr(console._STATUS, "begin", begin)
    for name, command in all_commands().items():
        with pytest.raises(Begun, match="starting"):
            command()
        assert command.__doc__, name


def test_something_is_shown_before_the_libraries_are_imported() -> None:
    """Standard error stands for a terminal; the process ends when it says that it works."""
    code = (
        "import io, os, sys\n"
        "class Terminal(io.StringIO):\n"
        "    isatty = lambda self: True\n"
        "    def write(self, text):\n"
        "        if 'starting' in text:\n"
        "            print(*sys.modules, flush=True)\n"
        "            os._exit(0)\n"
        "        return super().write(text)\n"
        "sys.argv = ['tint', 'plan', 'nano-llama', '--tokens', '8']\n"
        "os.environ |= {'TERM': 'xterm'}\n"
        "sys.stderr = Terminal()\n"
        "from tintformer.cli import main\n"
        "main()\n"
    )
    done = fresh(code)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "tintformer" in loaded and not loaded & {"torch", "transformers", "numpy", "typer", "rich"}, done.stderr


def test_a_command_goes_on_to_its_end_behind_what_it_shows_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def plan() -> None:
        sys.argv, sys.stderr = ["tint", "plan", "nano-llama", "--tokens", "8"], Terminal()
        try:
            main()
        finally:
            print("starting" in sys.stderr.getvalue())

    monkeypatch.setenv("TERM", "xterm")
    done = forked.call(plan)
    assert done.returncode == 0 and "plain forward passes" in done.stdout and done.stdout.endswith("True\n"), done


def test_models_lists_every_family() -> None:
    done = run("models", "--json")
    assert done.returncode == 0
    rows = json.loads(done.stdout)
    assert [row["model_type"] for row in rows] == list(families())
    table = run("models").stdout
    assert all(row["family"].split()[0] in table for row in rows)


def test_the_readme_lists_every_family() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    for row in json.loads(run("models", "--json").stdout):
        line = next(line for line in readme.splitlines() if line.startswith(f"| {row['family']} "))
        for key in ("norm", "positions", "feed_forward"):
            assert row[key] in line, (row["family"], key)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("models", "texts"),
    [(("nano-gpt2",), ("address",)), pytest.param(BUNDLED, TEXTS, marks=pytest.mark.sweep)],
    ids=["one", "all"],
)
def test_the_demo_learns_and_its_engines_agree(
    models: tuple[str, ...], texts: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make package` runs all of it from the wheel."""
    if texts != TEXTS:
        monkeypatch.setattr("tintformer.bundled.read_text", lambda name: TEXT)
    monkeypatch.setattr("tintformer.bundled.BUNDLED", models)
    monkeypatch.setattr("tintformer.bundled.TEXTS", texts)
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    done = forked.tint("demo", "--json", cwd=tmp_path, variables=offline)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert [(result["model"], result["text"]) for result in results] == list(product(models, texts))
    for result in results:
        before, explicit, fast, simulator = result["perplexities"].values()
        assert explicit < before and fast < before
        assert simulator == pytest.approx(fast, rel=1e-4)
        assert result["engines_differ_by"] < 1e-3
        assert 0.7 < result["cosine"] <= 1
        assert result["simulator"] < result["auxiliary"] < result["paper"]
        assert len(result["gained_most"]) == 5
    reports = [Path(result["report"]) for result in results if result["report"]]
    pairs = zip(models, texts, strict=True)
    assert [path.parent.name for path in reports] == [f"{model}-{text}" for model, text in pairs]
    assert all((tmp_path / path).read_text().startswith("<!doctype html>") for path in reports)


def test_the_demo_tells_what_it_knows_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tintformer.bundled as bundled
    import tintformer.simulator.simulator as simulator

    told: list[str] = []
    build = simulator.build

    def build_and_listen(*given: Any, **knobs: Any) -> Any:
        told.append(capsys.readouterr().out)
        return build(*given, **knobs)

    monkeypatch.setattr(bundled, "BUNDLED", ("nano-gpt2",))
    monkeypatch.setattr(bundled, "TEXTS", ("visit",))
    monkeypatch.setattr(bundled, "read_text", lambda name: TEXT)
    monkeypatch.setattr(simulator, "build", build_and_listen)
    monkeypatch.chdir(tmp_path)
    demo(output=tmp_path / "out", report=False, json=False)
    first, _, known, last = [line.strip() for line in told[0].splitlines()]
    assert first.startswith("nano-gpt2 reads visit: ") and known.startswith("explicit fine-tuning")
    assert last.startswith("inside the pass, fast engine") and last.count("perplexity") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip().startswith("inside the pass, constructed simulator")
    assert lines[-2] == "" and lines[-1].startswith("nano-gpt2 on visit: perplexity ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [("nonsense",), ("models", "--nonsense"), ("demo", "extra")])
def test_bad_arguments_exit_with_two(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
