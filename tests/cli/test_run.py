# pyright: basic
"""`tint run` and `tint adapt`, as a user would call them."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from tiny import TEXT, save_model

import tintformer as tint
from tintformer.bundled import BUNDLED
from tintformer.cli.adapt import pad
from tintformer.cli.options import RuleOptions
from tintformer.learning.split import Split
from tintformer.learning.text import encode, find_tokenizer
from tintformer.typed_fields import attribute_docstrings

HALF = len(TEXT) // 2


def call(*arguments: Any, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return forked.tint(*arguments, stdin=stdin)


def answer(*arguments: Any, stdin: str | None = None) -> dict[str, Any]:
    done = call(*arguments, "--json", stdin=stdin)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def input_ids(model: Path) -> torch.Tensor:
    return torch.tensor([encode(find_tokenizer(str(model)), TEXT).input_ids])


def test_run_learns_what_the_package_learns(model: Path, input_ids: torch.Tensor) -> None:
    record = answer("run", model, TEXT, "--train-tokens", "60", "--learning-rate", "0.01", "--steps", "2", "--top", "3")
    rule = tint.LearningRule(learning_rate=0.01, steps=2)
    assert record["rule"] == json.loads(json.dumps(asdict(rule))) and record["rate_choice"] is None
    assert record["model"] == str(model) and record["versions"]["tintformer"] == tint.__version__
    train = torch.arange(input_ids.shape[1])[None] < 60
    out = tint.Tint(str(model), rule, engine="reference")(input_ids, train_mask=train, before=True)
    assert out.loss is not None and out.loss_before is not None and out.token_loss_before is not None
    assert (record["train_tokens"], record["evaluation_tokens"]) == (60, input_ids.shape[1] - 60)
    assert record["loss"] < record["loss_before"]
    assert record["loss"] == pytest.approx(float(out.loss), abs=1e-4)
    assert record["loss_before"] == pytest.approx(float(out.loss_before), abs=1e-4)
    assert record["perplexity"] == pytest.approx(math.exp(record["loss"]))
    changes = (out.token_loss - out.token_loss_before)[0].abs()
    assert [token["position"] for token in record["tokens"]] == changes.argsort(descending=True)[:3].tolist()
    assert record["tokens"][0]["token"] in TEXT


def test_run_finds_its_rate_and_continues_the_text(model: Path) -> None:
    record = answer("run", model, "-", "--preset", "paper", "--generate", "5", "--engine", "reference", stdin=TEXT)
    assert record["rule"]["norm_gradient"] == "first_order"
    choice = record["rate_choice"]
    assert choice["helps"] and choice["rate"] == record["rule"]["learning_rate"] > 0
    assert choice["rate"] in [point["rate"] for point in choice["curve"]] and choice["curve"][0]["rate"] == 0
    assert choice["train_tokens"] == record["train_tokens"] > choice["evaluation_tokens"] > 0
    assert record["loss"] < record["loss_before"]
    assert isinstance(record["continuation"], str) and isinstance(record["continuation_before"], str)


@pytest.mark.parametrize("name", BUNDLED)
def test_the_simulator_gives_the_losses_of_the_fast_engine(
    run_here: Callable[..., None], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    records: list[dict[str, Any]] = []
    for engine in ("fast", "simulator"):
        run_here("run", name, TEXT, "--learning-rate", "1e-4", "--engine", engine, "--json")
        records.append(json.loads(capsys.readouterr().out))
    fast, simulator = records
    assert (fast["engine"], simulator["engine"]) == ("fast", "simulator")
    assert simulator["loss_before"] == pytest.approx(fast["loss_before"], abs=1e-4)
    assert simulator["loss"] == pytest.approx(fast["loss"], abs=1e-4)
    assert fast["loss"] != fast["loss_before"]


def test_run_for_people(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text(f"[/b]{TEXT}[b]\n", encoding="utf-8")
    done = call("run", model, "--file", file, "--train-fraction", "0.6", "--generate", "2", "--top", "30")
    assert done.returncode == 0 and done.stderr == ""
    for words in (
        "perplexity",
        "learning rate",
        "no training",
        "chosen",
        "largest change",
        "continuation before: ",
        "continuation after: ",
        "'.'",
    ):
        assert words in done.stdout


def test_adapt_writes_an_update_that_run_uses(model: Path, tmp_path: Path, input_ids: torch.Tensor) -> None:
    update = tmp_path / "update.safetensors"
    record = answer("adapt", model, TEXT, "-o", update, "--preset", "full", "--layers", "1")
    assert record["rule"]["update_query_key"] and record["rule"]["layers"] == 1
    assert record["rate_choice"]["helps"] and record["loss"] < record["loss_before"]
    assert (record["texts"], record["train_tokens"]) == (1, input_ids.shape[1])
    assert record["output"] == str(update) and record["bytes"] == update.stat().st_size
    used = answer("run", model, TEXT, "--adapted", update)
    assert used["rule"] == record["rule"] and used["adapted"] == str(update)
    assert (used["train_tokens"], used["evaluation_tokens"]) == (0, input_ids.shape[1] - 1)
    for key in ("loss", "loss_before", "perplexity", "perplexity_before"):
        assert used[key] == pytest.approx(record[key])


def test_adapt_writes_an_adapter_beside_the_update(
    run_here: Callable[..., None], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    update, adapter = tmp_path / "update", tmp_path / "adapter"
    words = ["adapt", str(model), TEXT, "-o", str(update), "--learning-rate", "0.003", "--preset", "full"]
    kept = []
    for rank in ("1", "3", "500"):
        run_here(*words, "--peft", str(adapter), "--rank", rank, "--json")
        record = json.loads(capsys.readouterr().out)["peft"]
        kept.append(record["kept"])
        assert record["rank"] == min(int(rank), record["rank"]) and not record["left_out"]
        assert record["bytes"] == sum(path.stat().st_size for path in adapter.iterdir())
    assert kept[0] < kept[1] < kept[2] and kept[2] == pytest.approx(1, abs=1e-5)
    assert record["gain_kept"] == pytest.approx(1, abs=1e-3)
    run_here(*words, "--peft", str(adapter), "--no-biases", "--no-norms")
    printed = " ".join(capsys.readouterr().out.split())
    assert "of the update's squared norm, and" in printed and "left out: the changes of" in printed
    with pytest.raises(tint.InputError, match="name its directory with --peft"):
        run_here(*words, "--rank", "2")
    with pytest.raises(tint.InputError, match="--rank=0"):
        run_here(*words, "--rank", "0", "--peft", str(adapter))


def test_adapt_learns_several_files_together(model: Path, tmp_path: Path) -> None:
    files = [tmp_path / "first.txt", tmp_path / "second.txt"]
    for file, text in zip(files, (TEXT[:HALF], TEXT[HALF : HALF + 70]), strict=True):
        file.write_text(text, encoding="utf-8")
    update = tmp_path / "update.safetensors"
    sources = [word for file in files for word in ("--file", file)]
    done = call("adapt", model, *sources, "-o", update, "--learning-rate", "0.003")
    assert done.returncode == 0 and "2 texts" in done.stdout and f"wrote {update}" in done.stdout
    tokenizer = find_tokenizer(str(model))
    ids, attended = pad([encode(tokenizer, file.read_text(encoding="utf-8")) for file in files])
    assert not attended.all()
    expected = tint.Tint(str(model), tint.LearningRule(learning_rate=0.003)).adapt(ids, attention_mask=attended)
    stored = tint.Tuned.load(update, str(model)).updates()
    assert stored.keys() == expected.updates().keys()
    for name, change in expected.updates().items():
        torch.testing.assert_close(stored[name], change)


def test_adapt_scores_what_it_holds_out(
    run_here: Callable[..., None],
    model: Path,
    tmp_path: Path,
    input_ids: torch.Tensor,
    capsys: pytest.CaptureFixture[str],
) -> None:
    update, words = tmp_path / "update", ["--learning-rate", "0.01", "--train-fraction", "0.6"]
    run_here("adapt", str(model), TEXT, "-o", str(update), *words, "--json")
    record = json.loads(capsys.readouterr().out)
    num_tokens = input_ids.shape[1]
    num_train = Split(train_fraction=0.6).of(num_tokens)
    assert (record["train_tokens"], record["held_out_tokens"]) == (num_train, num_tokens - num_train)
    # One text learns in `adapt` what a pass learns from it.
    run_here("run", str(model), TEXT, *words, "--json")
    passed = json.loads(capsys.readouterr().out)
    for key in ("loss", "loss_before"):
        assert record[key] == pytest.approx(passed[key], abs=1e-4)
    run_here("adapt", str(model), TEXT, "-o", str(update), "--learning-rate", "0.01", "--train-tokens", "20")
    assert f"trained on 20 tokens, evaluated on the other {num_tokens - 20}" in capsys.readouterr().out
    with pytest.raises(tint.InputError, match="the training part would be 900 of"):
        run_here("adapt", str(model), TEXT, "-o", str(tmp_path / "none"), "--train-tokens", "900")
    assert list(tmp_path.iterdir()) == [update]


def test_run_cuts_a_long_text(
    run_here: Callable[..., None], model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "long.txt"
    file.write_text(TEXT * 9, encoding="utf-8")
    words = ["--learning-rate", "0.01", "--json"]
    with pytest.raises(tint.InputError, match="was built for 128"):
        run_here("run", str(model), "--file", str(file), *words)
    run_here("run", str(model), "--file", str(file), "--tokens", "40", *words)
    record = json.loads(capsys.readouterr().out)
    assert (record["train_tokens"], record["evaluation_tokens"]) == (20, 20)
    run_here("run", str(model), TEXT, "--tokens", "9999", *words)
    whole = json.loads(capsys.readouterr().out)
    assert whole["train_tokens"] + whole["evaluation_tokens"] < 128


def one_line(done: subprocess.CompletedProcess[str], message: str) -> None:
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and message in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["TEXT", "--train-tokens", "5", "--train-fraction", "0.5"], "give one of them"),
        (["TEXT", "--train-fraction", "1"], "train_fraction=1 must lie between 0 and 1"),
        (["TEXT", "--train-fraction", "0"], "must lie between 0 and 1"),
        (["TEXT", "--train-fraction", "nan"], "must lie between 0 and 1"),
        (["TEXT", "--train-tokens", "1"], "train_tokens=1 must be a whole number of at least 2"),
        (["TEXT", "--norm-gradient", "vague"], "norm_gradient='vague' is unknown"),
        (["TEXT", "--loss", "hinge"], "loss='hinge' is unknown"),
        (["TEXT", "--preset", "best"], "preset='best' is unknown"),
        (["TEXT", "--learning-rate", "fast"], "learning_rate='fast' is neither a number nor auto"),
        (["TEXT", "--learning-rate", "-1"], "learning_rate=-1.0 must be"),
        (["TEXT", "--steps", "0"], "steps=0 must be"),
        (["TEXT", "--update-query-key"], "update_query_key=True needs"),
        (["TEXT", "--dtype", "int8"], "dtype='int8' is unknown"),
        (["TEXT", "--adapted", "no-such-file"], "there is no file no-such-file"),
        (["TEXT", "--adapted", "u", "--steps", "2", "--train-tokens", "9"], "leave out --train-tokens, --steps"),
        (["TEXT", "--file", "FILE"], "there is a text and a --file"),
        ([], "there is no text"),
        (["--file", "EMPTY"], "is empty"),
        (["--file", "BINARY"], "is no UTF-8 text"),
        (["--file", "no-such-file"], "cannot read no-such-file: No such file"),
        ([" "], "the text is empty"),
    ],
)
def test_bad_input_is_refused_before_the_model_is_loaded(tmp_path: Path, arguments: list[str], message: str) -> None:
    contents = {"FILE": TEXT.encode(), "EMPTY": b"", "BINARY": b"\x7fELF\xff\xfe\x00"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    words = [str(tmp_path / word) if word in contents else TEXT if word == "TEXT" else word for word in arguments]
    one_line(call("run", tmp_path / "no-model", *words), message)


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("A", [], "the text has 2 tokens; at least 4 are needed"),
        (TEXT[:20], ["--train-tokens", "60"], "the training part would be 60 of"),
        (TEXT + TEXT, [], "learned positions"),
        (
            TEXT,
            ["--generate", "99"],
            "99 are to be generated, but .* was built for 128",
        ),
        (TEXT, ["--layers", "9"], "layers=9 but the model has 2 blocks"),
        (TEXT, ["--engine", "steam"], "engine='steam' is unknown"),
        (TEXT, ["--adapted", "MODEL/model.safetensors"], "is not an update of tintformer"),
    ],
)
def test_bad_input_that_needs_the_model(
    run_here: Callable[..., None], model: Path, text: str, arguments: list[str], message: str
) -> None:
    words = [word.replace("MODEL", str(model)) for word in arguments]
    with pytest.raises(tint.TintError, match=message):
        run_here("run", str(model), text, *words)


@pytest.fixture
def run_here() -> Callable[..., None]:
    """Run a command in this process: importing torch for each bad input would take minutes."""
    import typer

    from tintformer.cli.adapt import adapt
    from tintformer.cli.run import run

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command("run")(run)
    app.command("adapt")(adapt)
    return lambda *arguments: app(list(arguments), standalone_mode=False)


def test_one_token_and_an_unknown_model_end_in_one_line(model: Path, tmp_path: Path) -> None:
    one_line(call("run", model, "A"), "at least 4 are needed")
    one_line(call("run", tmp_path / "no-model", TEXT), "no directory")


def test_a_model_without_a_tokenizer(run_here: Callable[..., None], model: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((model / name).read_bytes())
    with pytest.raises(tint.LoadError, match="holds no tokenizer"):
        run_here("run", str(tmp_path), TEXT)


@pytest.mark.parametrize("place", ["missing/update", "", "model/config.json/update"])
def test_adapt_refuses_what_it_cannot_write(model: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "model").symlink_to(model)
    before = sorted(tmp_path.rglob("*"))
    one_line(call("adapt", model, TEXT, "-o", tmp_path / place), "cannot write")
    assert sorted(tmp_path.rglob("*")) == before


def test_adapt_writes_nothing_after_an_error(run_here: Callable[..., None], model: Path, tmp_path: Path) -> None:
    update = tmp_path / "update.safetensors"
    with pytest.raises(tint.InputError, match="at least 4 are needed"):
        run_here("adapt", str(model), "A", "-o", str(update))
    with pytest.raises(tint.InputError, match="a text and a --file"):
        run_here("adapt", str(model), TEXT, "--file", str(model / "config.json"), "-o", str(update))
    assert not list(tmp_path.iterdir())


def test_every_knob_of_the_rule_is_an_option_with_its_help() -> None:
    knobs = [field.name for field in fields(tint.LearningRule)]
    for command in ("run", "adapt"):
        shown = call(command, "--help").stdout
        for name in [*knobs, "preset", "dtype", "json"]:
            assert f"--{name.replace('_', '-')} " in shown
        for name, default in {"steps": "(1)", "layers": "(all)", "learning-rate": "(auto)"}.items():
            found = re.search(rf"--{name} .*?\[default: ([^]]*)\]", shown, flags=re.DOTALL)
            assert found is not None and found[1] == default
    for command, said in {
        "stream": "A stream needs a number",
        "audit": "A stream needs a number",
        "statistics": "Here it does not matter",
        "plan": "Here it does not matter",
        "rates": "it is what is measured",
        "build": "without one give a number",
        "export": "without one give a number",
    }.items():
        shown = " ".join(re.sub("[│|]", " ", call(command, "--help").stdout).split())
        assert said in shown and "auto is the default: see" not in shown, command
    assert attribute_docstrings(tint.LearningRule).keys() == set(knobs)
    assert attribute_docstrings(tint.LearningRule)["steps"].startswith("Gradient steps inside the pass. More")


def test_only_given_options_override_the_preset() -> None:
    options = RuleOptions(preset="full", steps=3, learning_rate="1e-3", attention_gradient="perturbed")
    assert options.build() == tint.LearningRule.full(learning_rate=1e-3, steps=3, attention_gradient="perturbed")
    assert RuleOptions().auto and RuleOptions(learning_rate="auto").auto and not options.auto
    assert RuleOptions(preset="paper").build() == tint.LearningRule.paper(learning_rate=0.0)
