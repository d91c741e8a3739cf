# pyright: basic
"""A model that changes after `Tint(model)` is followed where it can be, and refused in one line where it cannot."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import VOCABULARY, covering, make_model
from torch import nn

import tintformer as tint
from tintformer.auxiliary.description import ops
from tintformer.auxiliary.model_record import CopiedWeights
from tintformer.auxiliary.ops import Linear
from tintformer.transformers.model import TintForCausalLM

ENGINES = ["fast", "reference", "oracle", "simulator"]
RULE = tint.LearningRule(learning_rate=0.05)
IDS = torch.randint(3, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(3))
TRAIN = torch.arange(9).expand(2, 9) < 5


def copied(name: str = "llama", dtype: torch.dtype = torch.float32) -> Any:
    return copy.deepcopy(make_model(name, dtype))


def up(model: Any) -> Any:
    return model.model.layers[0].mlp.up_proj


def logits(learner: Any) -> torch.Tensor:
    return learner(IDS, train_mask=TRAIN).logits


def assert_refused(call: Callable[[], Any], reason: str = "has changed since it was loaded") -> None:
    with pytest.raises(tint.TintError, match=reason) as caught:
        call()
    assert "\n" not in str(caught.value), caught.value


@torch.no_grad()
def double(model: Any) -> None:
    """In place, as an optimizer changes weights."""
    for parameter in model.parameters():
        parameter.mul_(1.5)


REPLACED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "state dict, assigned": (
        lambda model: model.load_state_dict({key: 2 * value for key, value in model.state_dict().items()}, assign=True),
        "other tensors",
    ),
    "float64": (lambda model: model.to(torch.float64), "torch.float32 on cpu and is torch.float64 on cpu"),
    "half": (lambda model: model.half(), "is torch.float16"),
    "bfloat16 of one module": (lambda model: up(model).bfloat16(), r"layers\.0\.mlp\.up_proj .*bfloat16"),
    "a parameter": (
        lambda model: setattr(up(model), "weight", nn.Parameter(2 * up(model).weight)),
        r"layers\.0\.mlp\.up_proj has other tensors",
    ),
    "a module": (
        lambda model: setattr(model.model.layers[0].mlp, "up_proj", nn.Linear(12, 20, bias=False)),
        r"layers\.0\.mlp has other modules",
    ),
    "another device": (lambda model: model.to("meta"), "other tensors"),
    "a bias": (lambda model: setattr(up(model), "bias", nn.Parameter(torch.ones(20))), "other tensors"),
    "another buffer": (
        lambda model: model.model.rotary_emb.register_buffer("inv_freq", 2 * model.model.rotary_emb.inv_freq),
        "rotary_emb has other tensors",
    ),
    "resized": (lambda model: model.resize_token_embeddings(VOCABULARY + 3), "has other"),
}


@pytest.mark.parametrize(("how", "engine"), covering(list(REPLACED), ENGINES))
def test_what_cannot_be_followed_is_refused_at_the_next_call(how: str, engine: str) -> None:
    change, reason = REPLACED[how]
    model = copied()
    learner = tint.Tint(model, RULE, engine=engine)
    logits(learner)
    change(model)
    assert_refused(lambda: logits(learner), reason)
    if how not in ("another device", "bfloat16 of one module"):
        logits(tint.Tint(model, RULE, engine=engine))


@pytest.mark.parametrize(("engine", "dtype"), covering(ENGINES, [torch.float32, torch.float16]))
def test_changes_in_place_are_followed_and_a_simulator_asks_to_be_built_again(engine: str, dtype: torch.dtype) -> None:
    model = copied(dtype=dtype)
    learner = tint.Tint(model, RULE, engine=engine)
    before = logits(learner)
    double(model)
    if engine == "simulator":
        assert_refused(lambda: logits(learner), "build it again")
        return
    expected = logits(tint.Tint(model, RULE, engine=engine))
    torch.testing.assert_close(logits(learner), expected, rtol=0, atol=0)
    assert not torch.equal(before, expected)


def through_data(model: Any) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(1.5)


def through_numpy(model: Any) -> None:
    for parameter in model.parameters():
        values = parameter.detach().numpy()
        values *= 1.5


def one_number(model: Any) -> None:
    model.model.norm.weight.data[5] += 1e-3


def exchanged_rows(model: Any) -> None:
    up(model).weight.data[:] = up(model).weight.data.flip(0)


UNSEEN = [through_data, through_numpy, one_number, exchanged_rows]
"""Changes that leave the version of a tensor as it is."""


@pytest.mark.parametrize(("change", "engine"), covering(UNSEEN, ENGINES))
def test_changes_that_torch_does_not_see(change: Callable[[Any], None], engine: str) -> None:
    model = copied()
    learner = tint.Tint(model, RULE, engine=engine)
    before = logits(learner)
    change(model)
    if engine == "simulator":
        assert_refused(lambda: logits(learner), "build it again")
        assert_refused(lambda: logits(copy.deepcopy(learner)), "build it again")
        return
    expected = logits(tint.Tint(model, RULE, engine=engine))
    torch.testing.assert_close(logits(learner), expected, rtol=0, atol=0)
    assert not torch.equal(before, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_number_counts_in_any_layout(dtype: torch.dtype) -> None:
    memory = torch.arange(1, 64).to(dtype)
    layouts = [memory[:32], memory[1:32], memory[1:33], memory[:60].view(6, 10).T, memory[7]]
    for weights in layouts:
        copies = CopiedWeights([weights])
        assert not copies.changed()
        numbers = weights if weights.dim() else weights[None]
        for place in range(len(numbers)):
            numbers.data[place] += 1
            assert copies.changed()
            numbers.data[place] -= 1
        assert not copies.changed()


@pytest.mark.parametrize("engine", ENGINES)
def test_numbers_that_were_read_off_a_module_are_refused(engine: str) -> None:
    model = copied()
    learner = tint.Tint(model, RULE, engine=engine)
    twin = copy.deepcopy(learner)
    expected = logits(learner)
    model.model.norm.variance_epsilon = 0.5
    assert_refused(lambda: logits(learner), r"the variance_epsilon of model\.norm was 1e-06 and is 0\.5; load it again")
    assert not torch.equal(logits(tint.Tint(model, RULE, engine=engine)), expected)
    torch.testing.assert_close(logits(twin), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("engine", ["fast", "reference", "oracle"])
def test_data_that_is_exchanged_is_followed(engine: str) -> None:
    """As `vector_to_parameters` and averages of weights do it."""
    model = copied()
    learner = tint.Tint(model, RULE, engine=engine)
    logits(learner)
    for parameter in model.parameters():
        parameter.data = 1.5 * parameter.data
    torch.testing.assert_close(logits(learner), logits(tint.Tint(model, RULE, engine=engine)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "engine"), covering(["llama", "gpt2", "bloom", "llama-grouped"], ENGINES))
def test_a_deep_copy_follows_the_copied_model_and_no_other(engine: str, name: str) -> None:
    learner = tint.Tint(copied(name), tint.LearningRule(learning_rate=0.05, norm_gradient="central"), engine=engine)
    expected = logits(learner)
    twin = copy.deepcopy(learner)
    model = twin.auxiliary.model
    assert model is not learner.auxiliary.model
    assert twin.engine.auxiliary is twin.auxiliary
    for steps in (*twin.auxiliary.blocks, twin.auxiliary.final):
        for op in ops(steps):
            assert not isinstance(op, Linear) or op.weight.source is model.get_parameter(op.weight.name)
    torch.testing.assert_close(logits(twin), expected, rtol=1e-6, atol=1e-6)
    double(learner.auxiliary.model)
    torch.testing.assert_close(logits(twin), expected, rtol=1e-6, atol=1e-6)
    double(model)
    if engine == "simulator":
        assert_refused(lambda: logits(twin), "build it again")
        assert_refused(lambda: logits(copy.deepcopy(twin)), "build it again")
    else:
        torch.testing.assert_close(logits(twin), logits(learner), rtol=1e-6, atol=1e-6)
        assert not torch.equal(logits(twin), expected)
    model.to(torch.float64)
    assert_refused(lambda: logits(twin), "float64")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_shallow_copy_shares_the_model(engine: str) -> None:
    learner = tint.Tint(copied(), RULE, engine=engine)
    other = copy.copy(learner)
    assert other.auxiliary is learner.auxiliary
    torch.testing.assert_close(logits(other), logits(learner), rtol=0, atol=0)
    learner.auxiliary.model.to(torch.float64)
    assert_refused(lambda: logits(other), "float64")


def test_tuned_models() -> None:
    model = copied()
    tuned: Any = tint.Tint(model, RULE).adapt(IDS)
    expected = tuned.score(IDS, logits="all").logits
    twin = copy.deepcopy(tuned)
    double(model)
    assert not torch.equal(tuned.score(IDS, logits="all").logits, expected)
    torch.testing.assert_close(twin.score(IDS, logits="all").logits, expected, rtol=1e-6, atol=1e-6)
    double(twin.auxiliary.model)
    torch.testing.assert_close(
        twin.score(IDS, logits="all").logits, tuned.score(IDS, logits="all").logits, rtol=1e-6, atol=1e-6
    )
    assert twin.update_views().keys() == tuned.update_views().keys()
    up(model).weight = nn.Parameter(2 * up(model).weight)
    assert_refused(lambda: tuned.score(IDS))
    assert_refused(lambda: tuned.to_hf())
    assert_refused(lambda: tuned.generate(IDS))


def test_a_saved_update_is_of_the_base_that_it_was_learnt_on(tmp_path: Any) -> None:
    model = copied()
    tuned = tint.Tint(model, RULE).adapt(IDS)
    model.to(torch.float64)
    assert_refused(lambda: tuned.save(tmp_path / "update.safetensors"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("engine", ["fast", "simulator"])
def test_the_transformers_model_follows(engine: str) -> None:
    model = TintForCausalLM.from_auxiliary(copied(), RULE, engine=engine)

    def predicted(learner: Any) -> torch.Tensor:
        return learner(IDS, train_mask=TRAIN).logits.float()

    changes: list[Callable[[Any], Any]] = [
        double,
        lambda base: setattr(up(base), "weight", nn.Parameter(2 * up(base).weight.detach())),
        lambda base: base.load_state_dict({key: value / 2 for key, value in base.state_dict().items()}, assign=True),
        lambda base: base.load_state_dict(base.state_dict(), assign=True),
        lambda base: base.to(torch.float64),
    ]
    for change in changes:
        predicted(model)
        change(model.auxiliary)
        expected = logits(tint.Tint(model.auxiliary, RULE, engine=engine)).float()
        torch.testing.assert_close(predicted(model), expected, rtol=1e-5, atol=1e-5)
    twin = copy.deepcopy(model)
    double(twin.auxiliary)
    assert not torch.allclose(predicted(twin), predicted(model))
    up(model.auxiliary).register_forward_hook(lambda *given: None)
    with pytest.raises(tint.UnsupportedModelError, match="forward hook"):
        predicted(model)


def test_a_simulator_by_itself() -> None:
    model = copied()
    simulator = tint.build(model, RULE)
    expected = logits(simulator)
    twin = copy.deepcopy(simulator)
    double(model)
    assert_refused(lambda: logits(simulator), "build it again")
    assert_refused(lambda: simulator.save_pretrained("never-written"), "build it again")
    torch.testing.assert_close(logits(twin), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(logits(copy.deepcopy(twin).double()).float(), expected, rtol=1e-4, atol=1e-4)
    assert_refused(lambda: logits(twin.half()), "built in torch.float32 and cannot compute in torch.float16")


def test_a_model_in_inference_mode() -> None:
    with torch.inference_mode():
        model = copied()
        model.load_state_dict({key: value.clone() for key, value in model.state_dict().items()}, assign=True)
    for engine in ENGINES:
        logits(tint.Tint(model, RULE, engine=engine))
