# pyright: basic
"""What people send to other processes: pickles, copies and torch.save give the same results, or say why not."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import assert_same, make_model, make_rule, some

import tintformer as tint
from tintformer.execution.batch import Batch

IDS = torch.tensor([[3, 4, 5, 6, 7, 8], [8, 7, 6, 5, 4, 3]])
TRAIN = torch.tensor([[1, 1, 1, 1, 0, 0]] * 2).bool()
ENGINES = ("fast", "reference", "oracle", "simulator")


def saved(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "torch.save": saved,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("family", some(["gpt2", "llama"]))
def test_models_that_learn(family: str, engine: str, way: str) -> None:
    sim = tint.Tint(make_model(family), make_rule("default"), engine=engine)
    expected: Any = sim(IDS, train_mask=TRAIN)
    again: Any = WAYS[way](sim)(IDS, train_mask=TRAIN)
    assert_same(again.logits, expected.logits)
    for name, update in expected.updates(1).items():
        assert_same(again.updates(1)[name], update)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("knobs", some([{}, {"attention": "softmax"}, {"layout": "paper", "tie_blocks": False}]))
def test_simulators(way: str, knobs: dict[str, Any]) -> None:
    simulator = tint.build(make_model("gpt2"), make_rule("paper"), **knobs)
    expected: Any = simulator(IDS, train_mask=TRAIN)
    assert_same(WAYS[way](simulator)(IDS, train_mask=TRAIN).logits, expected.logits)


@pytest.mark.parametrize("way", WAYS)
def test_what_has_learnt(way: str) -> None:
    sim = tint.Tint(make_model("llama"), make_rule("full"))
    tuned = sim.adapt(IDS)
    assert_same(WAYS[way](tuned).score(IDS).token_loss, tuned.score(IDS).token_loss)
    causal: Any = tint.TintForCausalLM.from_auxiliary(make_model("llama"), make_rule("default"))
    expected = causal(IDS).logits  # builds its engine
    assert_same(WAYS[way](causal)(IDS).logits, expected)
    cache = causal(IDS, use_cache=True).past_key_values
    following = torch.tensor([[5], [6]])
    copied = WAYS[way](cache)
    assert_same(causal(following, past_key_values=copied).logits, causal(following, past_key_values=cache).logits)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("engine", ENGINES)
def test_outputs(engine: str, way: str) -> None:
    output: Any = tint.Tint(make_model("gpt2"), make_rule("default"), engine=engine)(IDS, train_mask=TRAIN, before=True)
    again = WAYS[way](output)
    for name in ("logits", "logits_before", "token_loss", "loss", "loss_before", "evaluation_mask"):
        assert torch.equal(getattr(again, name), getattr(output, name))
    assert torch.equal(again.log_probability, output.log_probability)
    if way == "deepcopy":
        assert again.updates(0).keys() == output.updates(0).keys()
    else:
        with pytest.raises(tint.TintError, match=r"was pickled, and updates stay .*call updates\(\)"):
            again.updates(0)
        assert len(pickle.dumps(output)) < 50_000  # no model in it
    output.updates(0)


@pytest.mark.parametrize("way", WAYS)
def test_descriptions_batches_and_rules(way: str) -> None:
    auxiliary = tint.load(make_model("gpt2"))
    batch = Batch.of(auxiliary, IDS, train_mask=TRAIN)
    again = WAYS[way](batch)
    assert torch.equal(again.input_ids, IDS) and torch.equal(again.train_positions, batch.train_positions)
    rule = make_rule("paper")
    assert WAYS[way](rule) == rule
    expected: Any = tint.Tint(auxiliary, rule)(IDS, train_mask=TRAIN)
    assert_same(tint.Tint(WAYS[way](auxiliary), rule)(IDS, train_mask=TRAIN).logits, expected.logits)  # pyright: ignore
