# pyright: basic
"""Sizes: what is counted without building is what is built, and every difference from the paper's formula is named."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from cases import FIRST, MODELS, every, make_config, make_model, make_rule, some

import tintformer as tint
import tintlab as lab
from tintformer.storage.configs import meta_auxiliary, read_config
from tintlab.checks.accounting.paper_formula import Formula
from tintlab.checks.accounting.simulator_size import count, factors, non_zero_share

BUILT = [
    (rule, layout, stack, tied)
    for rule in ("default", "perturbed-relative")
    for layout, stack, tied in [("lean", 4, True), ("lean", 1, False), ("paper", 1, False), ("paper", 3, False)]
]


@pytest.mark.parametrize(("name", "built"), every(13, list(product(MODELS, BUILT))))
def test_the_count_equals_the_built_simulator(name: str, built: tuple[str, Any, int, bool]) -> None:
    rule, layout, stack, tied = built
    simulator = tint.build(make_model(name), make_rule(rule), layout=layout, stack=stack, tie_blocks=tied)
    counted = count(simulator)
    assert counted.total == sum(parameter.numel() for parameter in simulator.parameters())
    assert counted.structural == simulator.num_structural == counted.by_kind()[-1]["total"]
    if counted.differences:
        assert counted.formula is not None
        assert sum(each.parameters for each in counted.differences) == counted.structural - counted.formula


@pytest.mark.parametrize("name", every(3, FIRST))
def test_counting_on_shapes_equals_counting_on_weights(name: str) -> None:
    shapes = lab.count_parameters(meta_auxiliary(make_config(name), name), rule=make_rule("default"))
    built = count(tint.build(make_model(name), make_rule("default")))
    assert shapes == built
    assert lab.count_parameters(tint.load(make_model(name)), rule=make_rule("default")) == built


def test_opt_125m_reaches_the_bars() -> None:
    untied, tied = (lab.count_parameters("facebook/opt-125m", tie_blocks=tied) for tied in (False, True))
    assert untied.structural == 5_515_246 < 60e6
    assert tied.structural == 461_758 < 5e6
    assert untied.total == 131_558_838 < 190e6


@pytest.mark.parametrize("name", some(["EleutherAI/pythia-70m", "facebook/opt-125m", "gpt2", "facebook/opt-350m"]))
def test_every_difference_from_the_formula_is_named(name: str) -> None:
    counted = lab.count_parameters(name, layout="paper", tie_blocks=False)
    assert counted.formula is not None and counted.differences
    assert sum(each.parameters for each in counted.differences) == counted.structural - counted.formula


def test_the_papers_linear_module_is_q_but_for_what_is_named() -> None:
    """Padding for the homogeneous coordinate, one more map across heads, switches and the constant: nothing else."""
    config: Any = read_config("facebook/opt-125m")
    auxiliary = meta_auxiliary(config, "facebook/opt-125m")
    formula, padded = Formula.of(config), 780
    head_dim, num_heads = padded // 3, 12
    split = num_heads * head_dim**2 + head_dim * num_heads**2
    positions = 3 * (2048 + padded // 4) * head_dim
    size = lab.count_parameters(auxiliary, layout="paper", stack=4).linear_forward
    assert formula.linear == 5_013_504
    assert size == 4 * split + positions + head_dim * num_heads**2 + 3 * num_heads + padded


def test_the_lean_linear_module_is_one_table_and_two_mixes() -> None:
    config: Any = read_config("facebook/opt-125m")
    auxiliary = meta_auxiliary(config, "facebook/opt-125m")
    table, mix, switch, constant = 193 * 193, 16 * 4, 1, 772
    assert lab.count_parameters(auxiliary, layout="lean", stack=4).linear_forward == table + 2 * mix + switch + constant


def test_a_stack_that_does_not_divide_the_width_has_no_formula() -> None:
    counted = lab.count_parameters("facebook/opt-125m", stack=5)
    assert counted.formula is None and counted.differences == [] and counted.structural > 0


def test_what_each_factor_contributes() -> None:
    """461,758 against 1,275,936,768, factor by factor: sizes, maps shared by all coordinates, tied blocks."""
    auxiliary = meta_auxiliary(read_config("facebook/opt-125m"), "facebook/opt-125m")
    rows = factors(auxiliary, stack=4)
    assert [row.total for row in rows] == [1_275_936_768, 1_150_799_780, 988_837_044, 5_515_246, 461_758]
    head_dim, num_heads = 193, 16
    convention = 4 * (num_heads * head_dim**2 + head_dim * num_heads**2) + 3 * (2048 + 193) * head_dim
    assert [row.linear for row in rows] == [5_013_504, 5_182_356, convention, 38_150, 38_150]
    assert convention == 3_879_107
    product = 1.0
    for row in rows:
        product *= row.smaller
    assert product == pytest.approx(rows[0].total / rows[-1].total)
    assert 11 < rows[-1].smaller < 12


def test_the_non_zero_share_is_that_of_a_built_simulator() -> None:
    built: Any = tint.build(make_model("gpt2"), make_rule("default"), layout="paper", stack=3)
    parameters = list(built.structure.parameters())
    expected = sum(int(each.count_nonzero()) for each in parameters) / sum(each.numel() for each in parameters)
    share = non_zero_share(meta_auxiliary(make_config("gpt2"), "gpt2"), stack=3)
    assert share == pytest.approx(expected) and 0 < expected < 0.5
