# pyright: basic
"""The plan: its pass on shapes holds what the pass on numbers holds, and what processes really take."""

from __future__ import annotations

import json
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from cases import FIRST, every, make_config, make_model, some

import tintformer as tint
from tintbench.flops import MultiplyAdds
from tintbench.measuring import PROC
from tintbench.memory_estimate import compare
from tintformer.engines.fast.fast_engine import predictions
from tintformer.engines.fast.fast_executor import FastExecutor
from tintformer.execution import walk
from tintformer.execution.batch import Batch
from tintformer.storage.configs import meta_auxiliary, read_config, total_memory
from tintlab.checks.plan import estimate
from tintlab.checks.plan.estimate import SLACK, plan
from tintlab.checks.plan.meter import Meter
from tintlab.cli.plan import free_memory, parse_size

FOUR = some(["gpt2, short", "llama, grouped", "gpt2, long", "gpt2, 4 steps"], keep=2)


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return forked.tint(*arguments)


@pytest.mark.skipif(not (PROC / "clear_refs").exists(), reason="peak memory needs Linux; run it there")
@pytest.mark.parametrize("name", FOUR)
@pytest.mark.sweep
def test_it_is_within_a_quarter_of_what_a_process_takes(name: str) -> None:
    foreseen, measured = compare(name)
    assert measured > 2e8, "too small to tell anything"
    assert abs(foreseen / measured - 1) < 0.25


@pytest.mark.parametrize(("name", "steps"), every(5, list(product(FIRST, [1, 3]))))
def test_shapes_hold_what_numbers_hold(name: str, steps: int) -> None:
    """The same meter on the real computation, whose kernels keep a little more, such as the sums of a softmax."""
    model, rule = tint.load(make_model(name)), tint.LearningRule(learning_rate=1e-3, steps=steps)
    foreseen = plan(model.model.config, tokens=24, batch=3, rule=rule, dtype=model.dtype)
    ids = torch.randint(29, (3, 24), generator=torch.Generator().manual_seed(0))
    batch = Batch.of(model, ids, train_mask=(torch.arange(24) < 12).expand(3, -1))
    meter = Meter()
    estimate._hold_weights(meter, model)
    with torch.no_grad(), meter:
        executor = FastExecutor(model, rule, batch)
        x = walk.train_in_the_pass(executor, model, rule)
        predictions(executor, x, None)
    assert foreseen.peak - SLACK == pytest.approx(meter.peak, rel=0.03)


def test_the_arithmetic_is_that_of_an_independent_count() -> None:
    auxiliary = meta_auxiliary(read_config("gpt2"), "gpt2")
    rule = tint.LearningRule(learning_rate=1.0)
    work = MultiplyAdds(auxiliary, rule)
    foreseen = plan("gpt2", tokens=256, train_tokens=128, batch=2, rule=rule)
    assert foreseen.forward_flops == pytest.approx(4 * work.forward(256, 256), rel=0.01)
    assert foreseen.flops == pytest.approx(4 * work.engine(128, 256), rel=0.03)
    assert foreseen.passes == pytest.approx(work.engine(128, 256) / work.forward(256, 256), rel=0.03)


def test_what_costs_more_is_foreseen_to_cost_more() -> None:
    config = make_config("llama")

    def work(**options: Any) -> int:
        return plan(config, **{"tokens": 128, "batch": 4, **options}).work

    def rule(**knobs: Any) -> tint.LearningRule:
        return tint.LearningRule(learning_rate=1.0, **knobs)

    plain = work()
    assert plain < work(batch=8) and plain < work(tokens=256) and plain < work(engine="reference")
    assert plain > work(rule=rule(layers=1))
    assert plan(config, tokens=64, rule=rule(steps=3)).flops > 2 * plan(config, tokens=64).flops
    parts = plan(config, tokens=128, batch=4, dtype=torch.bfloat16).parts
    assert 2 * parts["weights"] == pytest.approx(plan(config, tokens=128, batch=4).parts["weights"], rel=0.01)
    assert all(size > 0 for part, size in parts.items() if part != "logits")


def test_a_directory_needs_no_weights(tmp_path: Path) -> None:
    make_config("gpt_neox").save_pretrained(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]
    assert plan(tmp_path, tokens=16).parameters == make_model("gpt_neox").num_parameters()


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"tokens": 1}, "the training part would be 0 of 1 tokens"),
        ({"tokens": 8, "train_tokens": 8}, "the training part would be 8 of 8 tokens"),
        ({"tokens": 8, "batch": 0}, "batch=0 must be a whole number of at least 1"),
        ({"tokens": 8, "engine": "oracle"}, "engine='oracle' cannot be planned"),
    ],
)
def test_bad_input_is_one_line(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(tint.TintError, match=message):
        plan("gpt2", **knobs)


def test_a_billion_layers_are_refused_before_they_are_built(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 10**9}))
    with pytest.raises(tint.LoadError, match="asks for n_layer 1000000000"):
        plan(tmp_path, tokens=16)


def test_the_command_prints_a_table() -> None:
    done = run("plan", "nano-gpt2", "--tokens", 32, "--batch", 2, "--steps", 2, "--memory", "2GB")
    assert done.returncode == 0, done.stderr
    assert "weights" in done.stdout and "plain forward passes" in done.stdout


def test_what_cannot_fit_is_refused_with_advice_and_its_figures() -> None:
    done = run("plan", "gpt2", "--tokens", 64, "--batch", 8, "--memory", "600MB", "--json")
    assert done.returncode == 2 and "take a smaller batch, fewer tokens" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    record = json.loads(done.stdout)
    assert record["parts"]["weights"] == pytest.approx(4 * 124_439_808, rel=0.01) and record["fits"] is False
    assert record["peak"] == sum(record["parts"].values()) and record["memory"] == 600_000_000
    with pytest.raises(tint.TintError, match="the weights alone are too large"):
        plan("gpt2", tokens=8).require(10**8)


def test_sizes_are_read_as_people_write_them() -> None:
    sizes = {"24GB": 24 * 10**9, "80 GiB": 80 * 2**30, "1.5tb": 15 * 10**11, "4096": 4096}
    assert {text: parse_size(text) for text in sizes} == sizes
    with pytest.raises(tint.InputError, match="'lots' is no amount of memory"):
        parse_size("lots")
    assert 0 < free_memory() <= total_memory()
    with pytest.raises(tint.InputError, match="device=cuda is not here"):
        free_memory("cuda")
