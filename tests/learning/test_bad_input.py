# pyright: basic
"""Bad input gets one clear error that names the cause."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from cases import make_model, make_rule

import tintformer as tint

IDS = torch.tensor([[3, 4, 5, 6, 7, 8], [8, 7, 6, 5, 4, 3]])
TRAIN = torch.tensor([[1, 1, 1, 1, 0, 0]] * 2).bool()


@pytest.fixture(scope="module")
def sim() -> tint.Tint:
    return tint.Tint(make_model("gpt2"), make_rule("default"))


def with_row(mask: torch.Tensor, row: int, value: Any) -> torch.Tensor:
    mask = mask.clone()
    mask[row] = value
    return mask


@pytest.mark.parametrize(
    ("ids", "knobs", "message"),
    [
        (IDS, {"train_mask": with_row(TRAIN, 1, False)}, "row 1 has an empty training part"),
        (
            IDS,
            {"train_mask": TRAIN, "attention_mask": with_row(TRAIN | True, 0, False)},
            "row 0 is all padding",
        ),
        (IDS + 24, {"train_mask": TRAIN}, "token id 32 is outside of the vocabulary of 29"),
        (IDS - 9, {"train_mask": TRAIN}, "token id -6 is outside"),
        (IDS.float(), {"train_mask": TRAIN}, "input_ids has dtype torch.float32"),
        (IDS[0], {"train_mask": TRAIN[0]}, r"input_ids has shape \(6,\)"),
        (IDS[:, :0], {"train_mask": TRAIN[:, :0]}, "neither of them 0"),
        (IDS, {"train_mask": TRAIN[:, :5]}, r"train_mask has shape \(2, 5\) but input_ids has \(2, 6\)"),
        (IDS, {"train_mask": TRAIN.float()}, "train_mask has dtype torch.float32"),
        (IDS, {"train_mask": TRAIN * 2}, "train_mask holds values other than 0 and 1"),
        (IDS, {"train_mask": TRAIN, "loss_mask": TRAIN.double()}, "loss_mask has dtype torch.float64"),
        (IDS, {"train_mask": TRAIN, "segment_ids": IDS - 9}, "segment_ids contains -6"),
        (IDS, {"train_mask": TRAIN, "segment_ids": TRAIN}, "segment_ids has dtype torch.bool"),
        (IDS, {"train_mask": TRAIN, "segment_ids": -TRAIN.long().flip(1)}, "token 2 of row 0 is shared"),
        (IDS, {"train_mask": TRAIN, "position_ids": IDS - 4}, "position_ids contains -1"),
        (IDS, {"train_mask": TRAIN, "position_ids": IDS + 60}, "reaches 69 positions but .* built for 64"),
        (IDS, {"train_mask": TRAIN, "logits": "some"}, "logits='some' is unknown"),
    ],
)
def test_inputs(sim: tint.Tint, ids: torch.Tensor, knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(tint.InputError, match=message):
        sim(ids, **knobs)


@pytest.mark.parametrize("engine", ["fast", "reference", "oracle", "simulator", "network"])
def test_a_step_that_the_rule_does_not_make(engine: str) -> None:
    sim, steps = tint.Tint(make_model("gpt2"), make_rule("full", steps=2), engine=engine), torch.full_like(IDS, 2)
    steps[:, 0] = steps[:, 4:] = 9  # of tokens that are no targets, which no step trains on
    sim(IDS, train_mask=TRAIN, step_ids=steps)
    steps[1, 3] = 3
    with pytest.raises(tint.InputError, match=r"row 1 has step 3 for token 3 but .* steps=2, .* use steps=3"):
        sim(IDS, train_mask=TRAIN, step_ids=steps)


def test_a_step_too_many_is_refused_wherever_a_rule_meets_a_batch(sim: tint.Tint) -> None:
    ids = IDS.repeat(1, 8)  # long enough for a rate to be tried
    masks: Any = {"train_mask": ids > 0, "step_ids": torch.full_like(ids, 2)}
    simulator = tint.build(sim.auxiliary, sim.rule)
    automatic = tint.Tint(sim.auxiliary, make_rule("default", learning_rate="auto"))
    search = partial(tint.choose_rate, sim.auxiliary, sim.rule)
    for learn in (sim.adapt, sim.adapt(IDS).adapt, simulator, automatic, search):
        with pytest.raises(tint.InputError, match="has step 2 for token 1 but the rule makes steps=1"):
            learn(ids, **masks)


def test_longer_than_learned_positions(sim: tint.Tint) -> None:
    ids = torch.full((1, 65), 3)
    with pytest.raises(tint.InputError, match=r"reaches 65 positions .* learned positions"):
        sim(ids, train_mask=torch.ones_like(ids))
    segments = torch.arange(65)[None] // 40
    sim(ids, train_mask=torch.ones_like(ids), segment_ids=segments)


def test_longer_than_rotary_positions_is_a_warning() -> None:
    ids = torch.full((1, 65), 3)
    with pytest.warns(tint.TintWarning, match="extrapolation"):
        tint.Tint(make_model("llama"), make_rule("default"))(ids, train_mask=torch.ones_like(ids))


def test_alibi_takes_no_position_ids() -> None:
    with pytest.raises(tint.InputError, match="ALiBi counts the visible tokens itself"):
        tint.Tint(make_model("bloom"), make_rule("default"))(IDS, train_mask=TRAIN, position_ids=IDS)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"loss": "huber"}, "loss='huber' is unknown; choose one of cross_entropy, mse, quad"),
        ({"norm_gradient": "secant"}, "norm_gradient='secant' is unknown"),
        ({"activation_gradient": "none"}, "activation_gradient='none'"),
        ({"attention_gradient": "all"}, "attention_gradient='all'"),
        ({"reduction": "max"}, "reduction='max'"),
        ({"epsilon_mode": "auto"}, "epsilon_mode='auto'"),
        ({"epsilon": 0.0}, "epsilon=0.0 must be a finite number above 0"),
        ({"learning_rate": float("nan")}, "learning_rate=nan must be a finite number"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0"),
        ({"learning_rate": "automatic"}, "learning_rate='automatic'"),
        ({"steps": 0}, "steps=0 must be a whole number of at least 1"),
        ({"steps": True}, "steps=True"),
        ({"layers": 0}, "layers=0"),
        ({"layers": 1.5}, "layers=1.5"),
        ({"update_query_key": True}, "needs attention_gradient='exact'"),
    ],
)
def test_rules(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(tint.RuleError, match=message):
        tint.LearningRule(**{"learning_rate": 0.1, **knobs})


def test_presets_name_unknown_knobs_and_the_missing_rate() -> None:
    with pytest.raises(tint.RuleError, match="unknown knobs of a learning rule: patience"):
        tint.LearningRule.paper(learning_rate=0.1, patience=0.9)
    with pytest.raises(tint.RuleError, match="needs learning_rate"):
        tint.LearningRule.full()


def test_more_layers_than_there_are() -> None:
    with pytest.raises(tint.RuleError, match="layers=3 but the model has 2 blocks"):
        tint.Tint(make_model("gpt2"), make_rule("default", layers=3))


def test_unknown_engine() -> None:
    with pytest.raises(tint.TintError, match="engine='warp' is unknown"):
        tint.Tint(make_model("gpt2"), make_rule("default"), engine="warp")


def test_every_error_is_a_value_error() -> None:
    for error in (tint.InputError, tint.RuleError, tint.LoadError, tint.UnsupportedModelError):
        assert issubclass(error, tint.TintError) and issubclass(error, ValueError)


@pytest.mark.parametrize("path", ["n" * 300, "a\0b", "\ud800"], ids=["long", "zero byte", "half a character"])
def test_what_can_be_no_path_is_refused_by_whatever_takes_one(sim: tint.Tint, path: str) -> None:
    model, tuned = make_model("gpt2"), sim.adapt(IDS)
    for take in (
        tint.load,
        tint.Simulator.from_pretrained,
        tint.Network.from_pretrained,
        tint.TintForCausalLM.from_pretrained,
        lambda given: tint.Tuned.load(given, model),
        lambda given: tint.StreamState.load(given, model),
        tuned.save,
        tuned.to_peft,
    ):
        with pytest.raises(tint.TintError, match="cannot be a path"):
            take(path)


@pytest.mark.parametrize("path", [None, 3])
def test_what_is_saved_has_a_path(sim: tint.Tint, path: Any) -> None:
    tuned, model = sim.adapt(IDS), make_model("gpt2")
    for take in (
        tuned.save,
        tuned.to_peft,
        lambda given: tint.Tuned.load(given, model),
        lambda given: tint.StreamState.load(given, model),
        tint.Simulator.from_pretrained,
        tint.Network.from_pretrained,
    ):
        with pytest.raises(tint.TintError, match=f"{path} cannot be a path"):
            take(path)
