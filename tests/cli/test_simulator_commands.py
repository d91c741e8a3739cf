# pyright: basic
"""Commands that build, count, check and show a simulator, run as a user would, and their options."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, get_args

import forked
import pytest
import torch
from cases import assert_same
from tiny import TEXT, save_model

import tintformer as tint
from tintformer.cli.app import app
from tintformer.cli.options import CONSTRUCTION_OPTIONS, flag_of
from tintformer.simulator import construction
from tintformer.simulator.construction import Construction


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return forked.tint(*arguments)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "tiny")


def test_build_writes_what_from_pretrained_reads(model: Path, tmp_path: Path) -> None:
    done = run("build", model, "-o", tmp_path / "sim", "--learning-rate", "1e-3", "--layers", 1, "--untied", "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    simulator = tint.Simulator.from_pretrained(tmp_path / "sim")
    assert record["structural"] == simulator.num_structural
    assert simulator.rule == tint.LearningRule(learning_rate=1e-3, layers=1)
    ids = torch.arange(3, 15)[None]
    direct = tint.build(str(model), simulator.rule, tie_blocks=False)(ids, train_mask=ids < 10)
    assert_same(simulator(ids, train_mask=ids < 10).logits, direct.logits)
    assert (tmp_path / "sim" / "tokenizer.json").exists()
    assert not list(tmp_path.glob(".*")), "a temporary directory was left behind"


def test_build_writes_momentum_decay_rates_and_schedule(model: Path, tmp_path: Path) -> None:
    knobs = ["--momentum", 0.9, "--decay", 0.1, "--rates", "blocks.0.*=0.5", "--schedule", "1,0.5", "--steps", 2]
    done = run("build", model, "-o", tmp_path / "sim", "--learning-rate", "1e-3", *knobs, "--json")
    assert done.returncode == 0, done.stderr
    simulator = tint.Simulator.from_pretrained(tmp_path / "sim")
    rates = {"blocks.0.*": 0.5}
    expected = tint.LearningRule(
        learning_rate=1e-3, momentum=0.9, decay=0.1, rates=tuple(rates.items()), schedule=(1.0, 0.5), steps=2
    )
    assert simulator.rule == expected
    assert json.loads(done.stdout)["auxiliary"] == simulator.num_auxiliary


@pytest.mark.parametrize(
    "command",
    [
        ("build", "nobody/nothing", "-o", "sim"),
        ("export", "nobody/nothing", "-o", "model.onnx"),
        ("inspect", "nobody/nothing"),
        ("run", "nobody/nothing", TEXT, "--engine", "simulator"),
    ],
    ids=lambda command: command[0],
)
def test_dense_optimisers_are_refused_before_a_model_is_looked_for(command: tuple[str, ...]) -> None:
    done = run(*command, "--learning-rate", "1e-3", "--optimizer", "muon")
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("tint: optimizer='muon' cannot be part of a") and done.stderr.count("\n") == 1


def test_build_finds_a_rate_on_a_text_and_writes_full(model: Path, tmp_path: Path) -> None:
    done = run("build", model, TEXT, "-o", tmp_path / "sim", "--layout", "paper", "--stack", 2, "--full")
    assert done.returncode == 0, done.stderr
    assert "constructed parameters" in done.stdout and "learning rate" in done.stdout
    assert tint.Simulator.from_pretrained(tmp_path / "sim").construction.layout == "paper"


def test_build_replaces_a_simulator_and_nothing_else(model: Path, tmp_path: Path) -> None:
    for rate in ("1e-3", "1e-4"):
        assert run("build", model, "-o", tmp_path / "sim", "--learning-rate", rate).returncode == 0
    assert tint.Simulator.from_pretrained(tmp_path / "sim").rule.learning_rate == 1e-4
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    done = run("build", model, "-o", tmp_path / "other", "--learning-rate", "1e-3")
    assert done.returncode == 2 and "holds files that are no simulator" in done.stderr
    assert (tmp_path / "other" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "the learning rate is built in"),
        (["--learning-rate", "1e-3", "--layout", "wide"], "layout='wide' is unknown"),
        (["--learning-rate", "1e-3", "--stack", "0"], "stack=0 must be a whole number"),
        (["--learning-rate", "1e-3", "--attention", "hard"], "attention='hard' is unknown"),
        (["--learning-rate", "1e-3", "--layers", "9"], "layers=9 but the model has"),
    ],
)
def test_build_refuses_in_one_line(model: Path, tmp_path: Path, options: list[str], message: str) -> None:
    done = run("build", model, "-o", tmp_path / "sim", *options)
    assert done.returncode == 2 and message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "sim").exists()


def test_a_simulator_is_no_model(model: Path, tmp_path: Path) -> None:
    assert run("build", model, "-o", tmp_path / "sim", "--learning-rate", "1e-3").returncode == 0
    done = run("run", tmp_path / "sim", TEXT)
    assert done.returncode == 2 and "holds a simulator, not a model" in done.stderr


def test_run_has_the_simulator_as_an_engine(model: Path) -> None:
    fast, simulator = (
        json.loads(run("run", model, TEXT, "--learning-rate", "1e-3", "--engine", engine, "--json").stdout)
        for engine in ("fast", "simulator")
    )
    assert simulator["engine"] == "simulator"
    assert simulator["loss"] == pytest.approx(fast["loss"], abs=1e-5)
    assert simulator["loss"] != simulator["loss_before"]


def test_params_counts_known_sizes_offline(tmp_path: Path) -> None:
    done = run("params", "facebook/opt-125m", "--json")
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["formula"][-1]["total"] == 1_275_936_768
    assert counts["symbols"]["linear"] == 5_013_504 and counts["symbols"]["split"] == 823_296
    built = {(each["layout"], each["tie_blocks"]): each for each in counts["constructed"]}
    assert built["lean", True]["structural"] == 461_758 and built["lean", False]["structural"] == 5_515_246
    paper = built["paper", False]
    assert sum(paper["differences_from_formula"].values()) == paper["structural"] - 1_275_936_768
    assert {"memory tape", "attention copy", "prefix attention"} <= {row["name"] for row in counts["strategies"]}


def test_params_counts_velocity_and_base(model: Path) -> None:
    sizes = {}
    for name, knobs in {"plain": (), "both": ("--momentum", 0.9, "--decay", 0.1)}.items():
        done = run("params", model, "--layout", "lean", "--tokens", 8, *knobs, "--json")
        assert done.returncode == 0, done.stderr
        sizes[name] = json.loads(done.stdout)
    plain, both = (sizes[name]["network"] for name in ("plain", "both"))
    assert (plain["weight_slots"], both["weight_slots"], both["slots"]) == (4, 12, plain["slots"])
    held = [[each["auxiliary"] for each in sizes[name]["constructed"]] for name in ("plain", "both")]
    assert all(more > less for less, more in zip(*held, strict=True))
    assert both["auxiliary"] - plain["auxiliary"] == 2 * plain["prefix_tokens"] * 4 * plain["slot_width"]
    refused = run("params", model, "--momentum", 1)
    assert refused.returncode == 2 and "momentum=1" in refused.stderr


def test_params_prints_tables_and_refuses_in_one_line(model: Path) -> None:
    table = run("params", model, "--layout", "lean").stdout
    assert "simulator by the paper's formulas" in table and "as constructed" in table
    done = run("params", "nobody/nothing")
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1


def test_verify_exits_with_one_outside_of_tolerance(model: Path) -> None:
    arguments = ("verify", model, TEXT, "--tokens", 24, "--preset", "default", "--no-theorems", "--stack", 2)
    done = run(*arguments)
    assert done.returncode == 0 and "within tolerance" in done.stdout, done.stderr
    assert run(*arguments, "--tolerance", "1e-30").returncode == 1
    refused = run("verify", model, TEXT, "--layout", "wide")
    assert refused.returncode == 2 and len(refused.stderr.strip().splitlines()) == 1


def test_inspect_shows_the_plan_and_the_values(model: Path) -> None:
    plan = run("inspect", model, "--stack", 2)
    assert plan.returncode == 0 and "prefix token 0: slot 0 = row 0" in plan.stdout
    values = run("inspect", model, TEXT, "--learning-rate", "1e-3", "--tokens", 16)
    assert values.returncode == 0 and "step 1, backward" in values.stdout and "rms" in values.stdout


# Options for the knobs of a construction.


def options_of(command: str) -> dict[str, Any]:
    from typer.main import get_command

    group: Any = get_command(app)
    return {flag: option for option in group.commands[command].params for flag in option.opts}


@pytest.mark.parametrize("command", ["build", "verify", "inspect", "run"])
def test_every_knob_of_a_simulator_has_its_option(command: str) -> None:
    """A knob that is added to `Construction` without an option fails here."""
    assert set(CONSTRUCTION_OPTIONS) == set(Construction.__dataclass_fields__)
    options = options_of(command)
    for name in Construction.__dataclass_fields__:
        option = options[flag_of(name)]
        assert option.name == name and option.help and option.default is None


def test_options_name_every_choice_of_a_knob() -> None:
    options = options_of("build")
    choices = {
        "layout": construction.LayoutName,
        "attention": construction.AttentionForm,
        "softmax_form": construction.SoftmaxForm,
        "transposition": construction.Transposition,
    }
    for name, literal in choices.items():
        assert all(choice in options[flag_of(name)].help for choice in get_args(literal)), name


def test_every_option_reaches_the_construction(model: Path, tmp_path: Path) -> None:
    given = {
        "layout": "paper",
        "stack": 2,
        "tie_blocks": False,
        "attention": "softmax",
        "softmax_form": "printed",
        "softmax_epsilon": 0.01,
        "transposition": "stored",
    }
    assert set(given) == set(Construction.__dataclass_fields__)
    words = [word for name, value in given.items() for word in (flag_of(name), *([] if value is False else [value]))]
    done = run("build", model, "-o", tmp_path / "sim", "--learning-rate", "1e-3", "--json", *words)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["construction"] == given
    assert tint.Simulator.from_pretrained(tmp_path / "sim").construction == Construction(**given)


def test_run_says_which_transposition_a_training_part_was_given(model: Path) -> None:
    arguments = ("run", model, TEXT, "--learning-rate", "1e-3", "--engine", "simulator", "--layout", "paper", "--json")
    found = {}
    for train_tokens in (4, 80):
        done = run(*arguments, "--train-tokens", train_tokens)
        assert done.returncode == 0, done.stderr
        found[train_tokens] = json.loads(done.stdout)["construction"]["transposition"]
    assert found == {4: "stored", 80: "scores"}


def test_knobs_of_another_engine_are_refused_in_one_line(model: Path) -> None:
    for words, message in (
        (("run", model, TEXT, "--softmax-form", "pair"), "softmax_form: knobs of the simulator; leave them out"),
        (("inspect", model, "--engine", "network", "--untied"), "--untied is a knob of the simulator's modules"),
        (("run", model, TEXT, "--adapted", "x", "--untied"), "--adapted trains no further, so leave out --untied"),
        (("build", model, "-o", "x", "--learning-rate", 1, "--softmax-epsilon", 3), "softmax_epsilon=3.0 must be"),
    ):
        done = run(*words)
        assert done.returncode == 2 and message in done.stderr, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
