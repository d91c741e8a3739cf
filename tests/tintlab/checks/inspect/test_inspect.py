# pyright: basic
"""What `tint inspect` shows: regions hold what the reference engine has, and the plan says where they stand."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from cases import FIRST, assert_same, covering, every, make_batch, make_model, make_rule
from tiny import TEXT, save_model
from typer.testing import CliRunner

import tintformer as tint
import tintlab as lab
from tintformer.auxiliary.ops import Add, Linear, Norm
from tintformer.engines.reference import TensorExecutor
from tintformer.errors import InputError
from tintformer.execution import walk
from tintformer.execution.batch import Batch
from tintformer.simulator import prefix
from tintlab.checks.inspect.inspection import Observation, observe, plan, prefix_rows, rows_of
from tintlab.cli import inspect as command

EXACT = 1e-12
COMPARED = ("input", "output", "gradient", "left", "right", "query", "key", "value")
"""Regions that hold values which the reference has too; the others are of the module's own making."""


def named(op: Any, values: list[torch.Tensor], **more: torch.Tensor) -> dict[str, torch.Tensor]:
    """What an op is given, under the names that its regions ought to have."""
    names = {"Product": ("left", "right"), "Attend": ("query", "key", "value")}.get(type(op).__name__, ("input",))
    return {**dict(zip(names, values, strict=True)), **more}


class Recorder(TensorExecutor):
    """The reference, which writes down what every op is given."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.seen: list[tuple[str, str, dict[str, torch.Tensor]]] = []

    def forward(self, op: Any, inputs: Any) -> Any:
        y, saved = super().forward(op, inputs)
        self._write(op, "forward", inputs, output=y)
        return y, (saved, inputs)

    def backward(self, op: Any, saved: Any, gradient: Any) -> Any:
        self._write(op, "backward", saved[1], gradient=gradient)
        return super().backward(op, saved[0], gradient)

    def descend(self, op: Any, saved: Any, gradient: Any) -> None:
        self._write(op, "descent", saved[1], gradient=gradient)
        super().descend(op, saved[0], gradient)

    def _write(self, op: Any, phase: str, values: Any, **more: Any) -> None:
        if not isinstance(op, Add):
            self.seen.append((op.name, phase, named(op, values, **more)))


def recorded(simulator: Any, batch: Batch) -> list[tuple[str, str, dict[str, torch.Tensor]]]:
    recorder = Recorder(simulator.auxiliary, simulator.rule, batch)
    with torch.no_grad():
        walk.train_in_the_pass(recorder, simulator.auxiliary, simulator.rule)
    return recorder.seen


def batch_for(simulator: Any, **knobs: Any) -> Batch:
    given = make_batch(**knobs)
    return Batch.of(simulator.auxiliary, given.pop("input_ids"), **given)


def whole(observation: Observation) -> dict[str, torch.Tensor]:
    """What the reference has too, by name; the pieces of an attention's values put together."""
    values: dict[str, list[torch.Tensor]] = {}
    for name, value in observation.values.items():
        quantity, _, number = name.partition(" ")
        if quantity in COMPARED and (not number or number.isdigit()):
            values.setdefault(quantity if number.isdigit() else name, []).append(value)
    return {name: torch.cat(pieces, dim=-1) for name, pieces in values.items()}


def assert_close(found: torch.Tensor, expected: torch.Tensor, what: Any) -> None:
    error = float((found - expected).abs().max())
    assert error <= EXACT * max(1.0, float(expected.abs().max())), (what, error)


# Values.


@pytest.mark.parametrize(
    ("family", "layout"),
    every(5, list(product([*FIRST, "opt-350m-kind", "phi-grouped", "llama-grouped"], ["lean", "paper"]))),
)
def test_regions_hold_what_the_reference_has(family: str, layout: str) -> None:
    simulator = tint.build(make_model(family), make_rule("default", steps=2), layout=layout, stack=2)
    observations, _ = observe(simulator, **make_batch(lengths=(9, 7)))
    batch = batch_for(simulator, lengths=(9, 7))
    expected = recorded(simulator, batch)
    assert [(each.op, each.phase) for each in observations] == [(op, phase) for op, phase, _ in expected]
    for observation, (op, phase, values) in zip(observations, expected, strict=True):
        found = whole(observation)
        assert {"forward": "output"}.get(phase, "gradient") in found and len(found) > (phase == "forward"), op
        for name, region in found.items():
            seen = batch.attention_mask[:, : region.shape[1]]
            assert_close(region[seen], values[name][:, : region.shape[1]][seen], (op, phase, name))


@pytest.mark.parametrize(
    ("name", "rule"),
    covering(
        ["gpt2", "llama-grouped", "qwen3"], ["default", "paper", "full", "central-relative", "perturbed-relative"]
    ),
)
def test_every_region_holds_something(name: str, rule: str) -> None:
    """In the lean layout; the paper's has scale and bias in a matrix of its own."""
    simulator = tint.build(make_model(name), make_rule(rule), stack=2)
    for observation in observe(simulator, **make_batch(lengths=(6,)))[0]:
        assert [region.name for region in observation.regions] == list(observation.values), observation.op
        for region in observation.regions:
            whole_width = observation.values[region.name].shape[-1]
            assert region.width * region.pieces >= whole_width > region.width * (region.pieces - 1)
            assert region.start == region.slot * simulator.geometry.dim_slot
            assert region.start + region.width <= simulator.geometry.dim_sim


def test_stored_scores_are_attention_weights() -> None:
    """A region beside the embedding; each head of each token has a row of weights there."""
    simulator = tint.build(make_model("gpt2"), make_rule("default"), transposition="stored")
    observations, _ = observe(simulator, **make_batch(lengths=(6,)))
    backward = [each for each in observations if each.op.endswith("attention") and each.stage == "backward"]
    assert len(backward) == 2
    for observation in backward:
        region = next(region for region in observation.regions if region.name == "stored scores")
        capacity = simulator.geometry.dim_sim // 3
        assert region.beside and region.width == 3 * capacity
        by_head = observation.values["stored scores"].unflatten(-1, (3, -1))
        assert_close(by_head.sum(-1), torch.ones_like(by_head[..., 0]), "rows of weights")


def test_what_a_module_makes_for_itself_is_what_its_region_says() -> None:
    simulator = tint.build(make_model("gpt2"), make_rule("default"))
    for observation in observe(simulator, **make_batch(lengths=(7,)))[0]:
        op = simulator.wired[observation.op].op
        if not isinstance(op, Norm):
            continue
        if observation.stage == "forward":
            for name in ("scale", "bias"):
                weight = getattr(op, name).read()
                assert_close(observation.values[name], weight.expand_as(observation.values[name]), (op.name, name))
        if observation.stage == "backward":
            x, inverse = observation.values["input"], observation.values["one over sigma"]
            sigma = (x.var(-1, correction=0, keepdim=True) + op.epsilon).sqrt()
            assert_close(inverse, (1 / sigma).expand_as(inverse), op.name)


def test_lengths_of_a_relative_difference_are_in_their_regions() -> None:
    simulator = tint.build(make_model("gpt2"), make_rule("central-relative"))
    observations, _ = observe(simulator, **make_batch(lengths=(7,)))
    chosen = [each for each in observations if each.stage == "backward" and each.op.endswith("activation")]
    assert len(chosen) == 2
    for observation in chosen:
        rms = {name: observation.values[name].square().mean(-1, keepdim=True).sqrt() for name in ("gradient", "input")}
        expected = {
            "length of gradient": rms["gradient"],
            "length of input": rms["input"],
            "one over length of input": 1 / rms["input"],
        }
        for name, value in expected.items():
            assert_close(observation.values[name], value.expand_as(observation.values[name]), name)


def test_nothing_stands_beyond_a_region() -> None:
    simulator: Any = tint.build(make_model("llama-grouped"), make_rule("full"), stack=3)
    num_seen = 0

    def look(wired: Any) -> Any:
        def check(module: Any, given: Any, output: Any) -> None:
            nonlocal num_seen
            for region, value in zip(module.regions.given, given, strict=False):
                width = max(row.width for row in rows_of(region, wired, simulator.geometry))
                assert (value[..., width:] == 0).all(), (wired.op.name, region.name)
                num_seen += 1

        return check

    for wired in simulator.wired.values():
        modules = simulator.modules_of(wired.op)
        if not wired.role.endswith(".linear"):  # shared by linears of several widths
            for module in modules.by_phase().values():
                module.register_forward_hook(look(wired))
    simulator(**make_batch(lengths=(6,)))
    assert num_seen > 100


def test_stages_and_steps_follow_the_pass() -> None:
    simulator = tint.build(make_model("gpt2"), make_rule("default", steps=2, layers=1))
    observations, moved = observe(simulator, **make_batch(lengths=(6,)))
    runs = [(each.step, each.stage) for each in observations]
    order = list(dict.fromkeys(runs))
    assert order[:3] == [(None, "forward"), (1, "forward"), (1, "backward")]
    assert order.index((1, "backward")) < order.index((2, "forward")) < order.index((2, "backward"))
    assert order[-1] == (None, "updated") and runs[-1] == (None, "updated")
    below = {each.op for each in observations if each.step is None and each.stage == "forward"}
    assert below and all(op.startswith("blocks.0.") for op in below)
    assert all(name.startswith(("transformer.h.1.", "transformer.ln_f")) for name in moved)


def test_watching_changes_nothing() -> None:
    simulator = tint.build(make_model("llama"), make_rule("full"))
    given = make_batch(lengths=(8,))
    ids, masks = given["input_ids"], {key: value for key, value in given.items() if key != "input_ids"}
    before = simulator(ids, **masks)
    _, moved = observe(simulator, ids, **masks)
    after = simulator(ids, **masks)
    assert torch.equal(before.logits, after.logits)
    updates = before.updates()
    assert updates.keys() == moved.keys() and all(torch.equal(updates[name], moved[name]) for name in moved)
    assert not any(part._forward_hooks for part in simulator.modules())


# The plan.


@pytest.mark.parametrize(("layout", "stack"), covering(["lean", "paper"], [1, 2, 3]))
def test_prefix_tokens_hold_the_rows_that_the_plan_names(layout: str, stack: int) -> None:
    simulator = tint.build(make_model("llama-grouped"), make_rule("default"), layout=layout, stack=stack)
    g = simulator.geometry
    for wired in simulator.wired.values():
        if not isinstance(wired.op, Linear):
            continue
        weight = wired.op.weight.read()
        stored = simulator.prefix_of(wired.op)
        assert stored is not None
        tokens = prefix.tokens(stored, g).unflatten(-1, (g.stack, g.dim_slot))
        rows = prefix_rows(wired, g)
        assert rows.flatten().sort().values[-len(weight) :].tolist() == list(range(len(weight)))
        for piece, token, slot in (rows >= 0).nonzero().tolist():
            held = tokens[:, piece, token, slot, : wired.into.step].flatten()[: weight.shape[1]]
            assert torch.equal(held, weight[rows[piece, token, slot]]), (wired.op.name, piece, token, slot)


@pytest.mark.parametrize("layout", ["lean", "paper"])
def test_linear_modules_ask_and_answer_as_in_the_table(layout: str) -> None:
    simulator = tint.build(make_model("gpt2"), make_rule("default"), layout=layout, stack=2)
    op = next(op for op in plan(simulator) if op.op == "blocks.1.output")
    said = {
        module.phase: (each.asks, each.query, each.answers, each.key, each.value)
        for module in op.modules
        for each in module.exchanges
    }
    assert said == {
        "forward": ("text", "input", "prefix", "rows", "one-hot position"),
        "backward": ("text", "gradient", "prefix", "one-hot position", "rows"),
        "descent": ("prefix", "one-hot position", "text", "gradient", "input"),
    }
    assert {each.heads for module in op.modules for each in module.exchanges} == {simulator.geometry.num_heads}


@pytest.mark.parametrize("tie_blocks", [True, False])
def test_the_plan_counts_every_parameter_once(tie_blocks: bool) -> None:
    simulator = tint.build(make_model("gpt2"), make_rule("full"), tie_blocks=tie_blocks)
    by_module = {op.module: sum(module.parameters for module in op.modules) for op in plan(simulator)}
    ends = sum(parameter.numel() for parameter in simulator.loss_gradient.next_token.parameters())
    assert sum(by_module.values()) + ends == simulator.num_structural


def test_the_plan_leaves_out_what_the_rule_does_not_need() -> None:
    simulator = tint.build(make_model("gpt2"), make_rule("default", layers=1))
    phases = {op.op: [module.phase for module in op.modules] for op in plan(simulator)}
    assert phases["blocks.0.output"] == ["forward"]
    assert phases["blocks.1.output"] == ["forward", "backward", "descent"]
    assert phases["blocks.1.query"] == ["forward"]
    assert phases["blocks.1.activation"] == ["forward", "backward"]


# The command.


app = typer.Typer()
app.command("inspect")(command.inspect)


def answer(*arguments: Any) -> Any:
    done = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


def test_the_plan_needs_no_weights() -> None:
    record = answer("facebook/opt-125m", "--prefix-token", 3, "--json")
    assert record["geometry"]["dim_sim"] == 4 * 772 and "observations" not in record
    names = [op["op"] for op in record["ops"]]
    assert "blocks.11.query" in names and "final.norm" in names and "blocks.0.query" not in names
    value = next(op for op in record["ops"] if op["op"] == "blocks.11.value")
    assert value["prefix"]["holds"] == ["row 3", "row 196", "row 389", "row 582"]
    assert value["prefix"]["bias"] == 768
    assert record["parameters"]["structural"] == lab.count_parameters("facebook/opt-125m").structural


def test_the_plan_for_people(model: Path) -> None:
    text = answer(model, "--block", 0, "--layout", "paper", "--stack", 2)
    assert "layout paper" in text and "blocks.1." not in text and "final.norm" not in text
    assert "prefix token 0: slot 0 = row 0, slot 1 = row 17" in text
    assert "text asks with input; prefix, by rows, answers with one-hot position" in text
    assert "blocks.0.query" in answer(model, "--all") and "blocks.0.query" not in answer(model)


def test_values_are_those_of_the_engine(model: Path) -> None:
    knobs = ("--learning-rate", "0.01", "--token", 4, "--first", 2, "--dtype", "float64", "--all")
    record = answer(model, TEXT, *knobs, "--json")
    assert record["text"]["tokens"] == 24 and record["text"]["train_tokens"] == 12 and record["text"]["token"] == 4
    simulator = tint.build(tint.load(str(model), dtype=torch.float64), tint.LearningRule(learning_rate=0.01))
    ids = torch.tensor([command_ids(model)[:24]])
    batch = Batch.of(simulator.auxiliary, ids, train_mask=torch.arange(24)[None] < 12)
    expected = recorded(simulator, batch)
    assert len(record["observations"]) == len(expected)
    for seen, (op, _, values) in zip(record["observations"], expected, strict=True):
        assert seen["op"] == op
        for region in seen["regions"]:
            if region["name"] in values:
                expected_numbers = values[region["name"]][0, 4, :2].tolist()
                assert region["first"] == pytest.approx(expected_numbers, abs=EXACT), (op, region["name"])
    assert record["moved"]["transformer.ln_f.bias"] > 0
    assert (
        record["moved"].keys()
        == tint.Tint(simulator.auxiliary, simulator.rule)(ids, train_mask=batch.train_mask).updates().keys()
    )


def command_ids(model: Path) -> tuple[int, ...]:
    from tintformer.learning.text import encode, find_tokenizer

    return encode(find_tokenizer(str(model)), TEXT).input_ids


def test_values_for_people(model: Path) -> None:
    text = answer(model, "--values", "--learning-rate", "0.01", "--steps", 2, "--token", 20, "--tokens", 22)
    assert "values are those of token 20" in text
    assert "step 2, descent: blocks.1.up, linear" in text and "forward, updated weights: final.norm, norm" in text
    assert "the token is not among them" in text and "of 4 pieces" in text and "rms" in text


def test_a_simulator_that_was_written_can_be_inspected(model: Path, tmp_path: Path) -> None:
    rule = tint.LearningRule(learning_rate=0.01, layers=1)
    tint.build(str(model), rule, stack=3).save_pretrained(tmp_path / "simulator")
    record = answer(tmp_path / "simulator", "--json")
    assert record["construction"]["stack"] == 3 and record["rule"]["layers"] == 1
    with pytest.raises(InputError, match="is a simulator already, so leave out --preset, --untied"):
        answer(tmp_path / "simulator", "--untied", "--preset", "full")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("MODEL", "--block", 2), "--block 2: .* has the blocks 0 to 1"),
        (("MODEL", "--all", "--block", 1), "--all and --block"),
        (("MODEL", TEXT, "--token", 24), "--token 24: the text has the tokens 0 to 23"),
        (("MODEL", "--layout", "broad"), "layout='broad' is unknown"),
        (("/nowhere",), "no directory /nowhere"),
    ],
)
def test_bad_input_is_refused(model: Path, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(tint.TintError, match=message):
        answer(*(str(model) if word == "MODEL" else word for word in arguments))


# The page that explains it.

PAGE = (Path(__file__).parents[4] / "docs" / "simulator.md").read_text(encoding="utf-8")


def test_the_example_of_the_page_runs(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my-model").symlink_to(model)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(compile(code, "simulator.md", "exec"), namespace)
    assert "->" in capsys.readouterr().out
    assert_same(
        namespace["again"](namespace["input_ids"], train_mask=torch.arange(12)[None] < 8).logits,
        namespace["out"].logits,
    )


def test_the_page_prints_what_the_command_prints(model: Path) -> None:
    knobs = ("--tokens", 17, "--train-tokens", 8, "--prefix-token", 3, "--block", 1, "--learning-rate", "0.01")
    printed = {line.partition("rms")[0] for line in answer(model, TEXT, *knobs).splitlines()}
    shown = re.findall(r"^    ( *(?:step|slot|\d+ heads).*)$", PAGE, flags=re.MULTILINE)
    assert len(shown) == 14
    for line in shown:  # numbers may differ in their last digit
        assert line.partition("rms")[0] in printed, line


def test_the_symbols_of_the_page_exist() -> None:
    symbols = (Path(__file__).parents[4] / "docs" / "symbols.md").read_text(encoding="utf-8")
    simulator = tint.build(make_model("gpt2"), make_rule("default"))
    named = ("dim_aux", "dim_slot", "dim_sim", "stack", "shards", "num_heads", "head_dim", "num_prefix", "max_tokens")
    for name in named:
        assert f"`{name}`" in symbols and hasattr(simulator.geometry, name)
