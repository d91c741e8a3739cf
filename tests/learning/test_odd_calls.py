# pyright: basic
"""Odd calls: what can be converted is, and everything else is refused in one line, by every engine alike."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from cases import assert_same, covering, make_config, make_model, make_rule

import tintformer as tint
import tintlab as lab
from tintlab.checks.verify.verification import verify
from tintlab.checks.verify.verified_engine import find_verified_engine

IDS = torch.tensor([[3, 4, 5, 6, 7, 8], [8, 7, 6, 5, 4, 3]])
TRAIN = torch.tensor([[1, 1, 1, 1, 0, 0]] * 2).bool()
ENGINES = ("fast", "reference", "oracle", "simulator")
RULE = make_rule("default")


def model() -> Any:
    return make_model("gpt2", torch.float32)


@pytest.fixture(scope="module")
def sims() -> dict[str, Any]:
    return {engine: tint.Tint(model(), RULE, engine=engine) for engine in ENGINES}


@pytest.fixture(scope="module")
def causal() -> tint.TintForCausalLM:
    return tint.TintForCausalLM.from_auxiliary(model(), RULE)


@pytest.fixture(scope="module")
def tuned(sims: dict[str, Any]) -> tint.Tuned:
    return sims["fast"].adapt(IDS)


SAME: dict[str, Callable[[torch.Tensor], Any]] = {
    "lists": lambda x: x.tolist(),
    "tuples": lambda x: tuple(map(tuple, x.tolist())),
    "numpy": lambda x: x.numpy(),
    "numpy, reversed twice": lambda x: np.ascontiguousarray(x.numpy()[:, ::-1])[:, ::-1],
    "rows of numpy": lambda x: list(x.numpy()),
    "rows of tensors": lambda x: list(x),
    "int8": lambda x: x.to(torch.int8),
    "int32": lambda x: x.to(torch.int32),
    "uint8": lambda x: x.to(torch.uint8),
    "numpy uint16": lambda x: x.numpy().astype(np.uint16),
    "torch uint16": lambda x: x.to(torch.uint16),
    "read-only": lambda x: np.broadcast_to(x.numpy(), tuple(x.shape)),
}


@pytest.mark.parametrize("form", SAME)
@pytest.mark.parametrize("engine", ENGINES)
def test_what_can_be_converted_is(sims: dict[str, Any], engine: str, form: str) -> None:
    convert = SAME[form]
    given = {"train_mask": TRAIN.long(), "attention_mask": torch.ones_like(IDS), "segment_ids": torch.zeros_like(IDS)}
    expected = sims[engine](IDS, **given)
    found = sims[engine](convert(IDS), **{name: convert(value) for name, value in given.items()})
    assert torch.equal(found.logits, expected.logits)


def test_what_can_be_converted_is_everywhere(causal: Any, tuned: tint.Tuned, sims: dict[str, Any]) -> None:
    ids, train = IDS.tolist(), TRAIN.numpy()
    assert torch.equal(tuned.score(ids).token_loss, tuned.score(IDS).token_loss)
    assert torch.equal(
        tuned.generate(ids, attention_mask=np.ones((2, 6)).astype(int), max_new_tokens=2),
        tuned.generate(IDS, max_new_tokens=2),
    )
    assert torch.equal(sims["fast"].adapt(ids).score(IDS).token_loss, tuned.score(IDS).token_loss)
    expected = causal(IDS, train_mask=TRAIN, labels=IDS)
    found = causal(ids, train_mask=train, attention_mask=np.ones((2, 6), dtype=int), labels=ids)
    assert torch.equal(found.logits, expected.logits) and torch.equal(found.loss, expected.loss)
    expected = causal.generate(IDS, train_mask=TRAIN, max_new_tokens=3, do_sample=False)
    for words in ({"inputs": ids}, {"input_ids": np.array(ids)}):
        assert torch.equal(causal.generate(**words, train_mask=train, max_new_tokens=3, do_sample=False), expected)


BAD_IDS: dict[str, Any] = {
    "None": None,
    "a text": "hello",
    "bytes": b"hello",
    "a number": 3,
    "a flat list": [3, 4, 5],
    "an empty list": [],
    "empty rows": [[], []],
    "ragged": [[3, 4], [5]],
    "too deep": [[[3, 4]], [[5, 6]]],
    "texts": [["a", "b"]],
    "nothing inside": [[None, 3]],
    "floats": [[3.0, 4.0]],
    "numpy floats": np.ones((2, 6)),
    "numpy objects": np.array([[3, None]], dtype=object),
    "float tensor": IDS.float(),
    "bool": TRAIN,
    "complex": IDS.to(torch.complex64),
    "above the vocabulary": [[3, 400]],
    "below 0": [[-3, 4]],
    "huge": [[10**30, 4]],
    "a dict": {"input_ids": IDS},
    "a set": {3, 4},
    "an object": object(),
    "a type": int,
    "a sparse tensor": IDS.to_sparse(),
    "no data": IDS.to("meta"),
    "no dimensions": torch.tensor(3),
}
BAD_MASKS: dict[str, Any] = {
    **{name: BAD_IDS[name] for name in ("a text", "a number", "ragged", "texts", "a dict", "an object", "no data")},
    "floats": TRAIN.float(),
    "list of floats": TRAIN.float().tolist(),
    "a row less": TRAIN[:1],
    "a token less": TRAIN.tolist()[0],
    "twos": (2 * TRAIN.long()).tolist(),
    "a sparse tensor": TRAIN.to_sparse(),
}


def refused(call: Callable[[], Any]) -> None:
    """One line, of ours."""
    with pytest.raises(tint.TintError) as caught:
        call()
    assert "\n" not in str(caught.value).strip() and 10 < len(str(caught.value)) < 300


@pytest.mark.parametrize("bad", BAD_IDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_bad_ids(sims: dict[str, Any], engine: str, bad: str) -> None:
    refused(lambda: sims[engine](BAD_IDS[bad], train_mask=TRAIN))


@pytest.mark.parametrize("bad", BAD_IDS)
def test_bad_ids_elsewhere(causal: Any, tuned: tint.Tuned, sims: dict[str, Any], bad: str) -> None:
    ids = BAD_IDS[bad]
    auxiliary = tuned.auxiliary
    for call in (
        lambda: sims["fast"].adapt(ids),
        lambda: tuned.score(ids),
        lambda: tuned.effects(ids),
        lambda: tuned.generate(ids, max_new_tokens=1),
        lambda: sims["simulator"].engine(ids, train_mask=TRAIN),  # pyright: ignore
        lambda: causal(ids),
        lambda: causal.generate(ids, max_new_tokens=1),
        lambda: tint.choose_rate(auxiliary, RULE, ids, TRAIN),
        lambda: verify(auxiliary, ids, TRAIN, find_verified_engine("fast")),
    ):
        refused(call)


@pytest.mark.parametrize("name", ["train_mask", "attention_mask", "loss_mask", "segment_ids", "position_ids"])
@pytest.mark.parametrize("bad", BAD_MASKS)
def test_bad_masks(causal: Any, sims: dict[str, Any], name: str, bad: str) -> None:
    value = BAD_MASKS[bad]
    if name.endswith("ids") and bad == "twos":
        return
    refused(lambda: sims["fast"](IDS, **{"train_mask": TRAIN, name: value}))
    if name in ("train_mask", "attention_mask", "loss_mask"):
        refused(lambda: causal(IDS, **{name: value}))
    if name in ("attention_mask", "segment_ids", "position_ids"):
        refused(lambda: sims["fast"].adapt(IDS, **{name: value}).score(IDS))


def other_calls(causal: Any, tuned: tint.Tuned, sims: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    sim, auxiliary = sims["fast"], tuned.auxiliary
    rules: dict[str, Any] = {
        "None": None,
        "a dict": {"learning_rate": 0.1},
        "a number": 0.1,
        "the class": tint.LearningRule,
    }
    takes: dict[str, Callable[[Any], Any]] = {
        "Tint": lambda rule: tint.Tint(auxiliary, rule),
        "the simulator by Tint": lambda rule: tint.Tint(auxiliary, rule, engine="simulator"),
        "build": lambda rule: tint.build(auxiliary, rule),
        "from_auxiliary": lambda rule: tint.TintForCausalLM.from_auxiliary(auxiliary, rule),
        "choose_rate": lambda rule: tint.choose_rate(auxiliary, rule, IDS, TRAIN),
        "Tuned": lambda rule: tint.Tuned(auxiliary, rule, tuned._updates),
    }
    calls: dict[str, Callable[[], Any]] = {
        f"{taker} with the rule {name}": lambda take=take, rule=rule: take(rule)
        for taker, take in takes.items()
        for name, rule in rules.items()
    }
    return calls | {
        "plan with a rule of another type": lambda: lab.plan(make_config("gpt2"), tokens=8, rule=0.1),  # pyright: ignore
        "an unknown mask": lambda: sim(IDS, train_mask=TRAIN, label_mask=TRAIN),  # pyright: ignore
        "an unknown mask of a score": lambda: tuned.score(IDS, train_mask=TRAIN),  # pyright: ignore
        "no train_mask": lambda: sim(IDS, train_mask=None),  # pyright: ignore
        "before in words": lambda: sim(IDS, train_mask=TRAIN, before="yes"),  # pyright: ignore
        "before in words, simulator": lambda: sims["simulator"].engine(IDS, train_mask=TRAIN, before=1),  # pyright: ignore
        "logits of another type": lambda: sim(IDS, train_mask=TRAIN, logits=["all"]),  # pyright: ignore
        "logits that are None": lambda: tuned.score(IDS, logits=None),  # pyright: ignore
        "a row in words": lambda: sim(IDS, train_mask=TRAIN).updates("first"),  # pyright: ignore
        "a row that is not there": lambda: sim(IDS, train_mask=TRAIN).updates(2),
        "a pattern that is none": lambda: tuned.only(3),  # pyright: ignore
        "an engine that is a list": lambda: tint.Tint(auxiliary, RULE, engine=["fast"]),  # pyright: ignore
        "an engine that is None": lambda: tint.Tint(auxiliary, RULE, engine=None),  # pyright: ignore
        "a grid of one": lambda: tint.choose_rate(auxiliary, RULE, IDS, TRAIN, grid=1e-3),  # pyright: ignore
        "a grid of words": lambda: tint.choose_rate(auxiliary, RULE, IDS, TRAIN, grid=["a"]),  # pyright: ignore
        "a grid of 1e308": lambda: tint.choose_rate(auxiliary, RULE, IDS, TRAIN, grid=[1e308]),
        "a hook that is none": lambda: sim.hook("blocks.0.down.output", 3).__enter__(),  # pyright: ignore
        "a hook at no name": lambda: sim.hook(3, print).__enter__(),  # pyright: ignore
        "tokens in words": lambda: lab.plan(make_config("gpt2"), tokens="8"),  # pyright: ignore
        "a dtype in words": lambda: tint.load("nano-llama", dtype="float32"),  # pyright: ignore
        "a dtype of storage": lambda: tint.load("nano-llama", dtype=torch.float8_e4m3fn),
        "no model": lambda: tint.Tint(None, RULE),
        "a module": lambda: tint.Tint(torch.nn.Linear(2, 2), RULE),
        "labels of floats": lambda: causal(IDS, labels=IDS.float()),
        "labels outside": lambda: causal(IDS, labels=IDS + 400),
        "labels of another shape": lambda: causal(IDS, labels=[1, 2]),
        "logits_to_keep in words": lambda: causal(IDS, logits_to_keep="all"),
        "a cache of another kind": lambda: causal(IDS, past_key_values=[1]),
        "settings of another type": lambda: verify(auxiliary, IDS, TRAIN, find_verified_engine("fast"), {"steps": 1}),  # pyright: ignore
    }


def test_other_calls(causal: Any, tuned: tint.Tuned, sims: dict[str, Any]) -> None:
    calls = other_calls(causal, tuned, sims)
    assert len(calls) >= 50
    for name, call in calls.items():
        try:
            refused(call)
        except BaseException as error:
            raise AssertionError(name) from error


@contextmanager
def default_dtype(dtype: torch.dtype) -> Any:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def default_device(device: str) -> Any:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


AROUND: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference mode": torch.inference_mode,
    "gradients": torch.enable_grad,
    "no gradients": torch.no_grad,
    "default float64": lambda: default_dtype(torch.float64),
    "default bfloat16": lambda: default_dtype(torch.bfloat16),
    "default meta": lambda: default_device("meta"),
    "default cpu": lambda: default_device("cpu"),
}


@pytest.mark.parametrize(("engine", "around"), covering(list(ENGINES), list(AROUND)))
def test_what_is_set_around_a_call_changes_nothing(sims: dict[str, Any], engine: str, around: str) -> None:
    expected = sims[engine](IDS, train_mask=TRAIN, before=True)
    with AROUND[around]():
        found = sims[engine](IDS.tolist(), train_mask=TRAIN.tolist(), before=True)
        built: Any = tint.Tint(model(), RULE, engine=engine)(IDS, train_mask=TRAIN)
        updates = found.updates(1)
    assert torch.equal(found.logits, expected.logits) and torch.equal(found.logits_before, expected.logits_before)
    assert_same(built.logits, expected.logits)
    assert all(torch.equal(update, updates[name]) for name, update in expected.updates(1).items())


@pytest.mark.parametrize("around", AROUND)
def test_what_is_set_around_other_calls(causal: Any, tuned: tint.Tuned, around: str) -> None:
    expected = causal.generate(IDS, max_new_tokens=3, do_sample=False), causal(IDS).logits, tuned.score(IDS).token_loss
    with AROUND[around]():
        logits, losses = causal(IDS).logits, tuned.score(IDS).token_loss
        if around != "default meta":  # transformers' own generate makes its tensors there
            assert torch.equal(causal.generate(IDS, max_new_tokens=3, do_sample=False), expected[0])
    assert torch.equal(logits, expected[1]) and torch.equal(losses, expected[2])


def changed(name: str, dtype: torch.dtype, change: Callable[[Any], None]) -> Any:
    import copy

    result = copy.deepcopy(make_model(name, dtype))
    change(result)
    return result


def test_dtypes_that_cannot_be_computed_with() -> None:
    def cast(dtype: torch.dtype, *names: str) -> Callable[[Any], None]:
        def change(model: Any) -> None:
            for name, parameter in model.named_parameters():
                if not names or name in names:
                    parameter.data = parameter.data.to(dtype)

        return change

    for engine in ENGINES:
        for dtype, message in ((torch.float8_e4m3fn, "quantised weights"), (torch.bfloat16, "several dtypes")):
            mixed = changed("gpt2", torch.float32, cast(dtype, "transformer.h.0.mlp.c_fc.weight"))
            with pytest.raises(tint.UnsupportedModelError, match=message):
                tint.Tint(mixed, RULE, engine=engine)
    with pytest.raises(tint.UnsupportedModelError, match="float8"):
        tint.Tint(changed("gpt2", torch.float32, cast(torch.float8_e4m3fn)), RULE)


def with_epsilon(epsilon: float) -> Callable[[Any], None]:
    return lambda model: setattr(model.model.layers[1].input_layernorm, "variance_epsilon", epsilon)


FAULTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "nan epsilon": (with_epsilon(float("nan")), "the epsilon of blocks.1.attention_norm is nan"),
    "negative epsilon": (with_epsilon(-1e9), "the epsilon of blocks.1.attention_norm is -1e"),
    "infinite epsilon": (with_epsilon(float("inf")), "the epsilon of blocks.1.attention_norm is inf"),
    "theta": (lambda model: model.model.rotary_emb.inv_freq.fill_(float("inf")), "rotary frequencies are not finite"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_configuration_that_gives_non_finite_numbers_is_named(fault: str) -> None:
    spoil, message = FAULTS[fault]
    with pytest.raises(tint.LoadError, match=message):
        tint.Tint(changed("llama", torch.float32, spoil), RULE)


def overflow(model: Any) -> None:
    with torch.no_grad():
        for name in ("up_proj", "gate_proj"):
            getattr(model.model.layers[1].mlp, name).weight.mul_(1e30)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_model_that_is_non_finite_is_not_the_rates_fault(engine: str) -> None:
    spoiled = changed("llama", torch.float32, overflow)
    message = "NaN or infinity before anything is learnt, so the learning rate is not the cause"
    with pytest.raises(tint.NonFiniteError, match=message) as caught:
        tint.Tint(spoiled, RULE, engine=engine)(IDS, train_mask=TRAIN)
    assert "too large" not in str(caught.value)
    assert engine == "oracle" or "the output of blocks.1." in str(caught.value)
    if engine == "fast":
        for call in (
            lambda: tint.Tint(spoiled, RULE).adapt(IDS),
            lambda: tint.Tuned.untrained(tint.load(spoiled)).score(IDS),
            lambda: tint.TintForCausalLM.from_auxiliary(spoiled, RULE)(IDS),
            lambda: tint.choose_rate(spoiled, RULE, IDS.repeat(1, 4), (TRAIN | True).repeat(1, 4)),
        ):
            with pytest.raises(tint.NonFiniteError, match=message):
                call()


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_a_step_of_differences_that_vanishes_is_not_the_rates_fault(engine: str) -> None:
    rule = tint.LearningRule.paper(learning_rate=1e-4, epsilon=1e-60)
    with pytest.raises(tint.DivergenceError, match="leave out epsilon=1e-60") as caught:
        tint.Tint(model(), rule, engine=engine)(IDS, train_mask=TRAIN)
    assert "the learning rate is not the cause" in str(caught.value)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rate", [1e30, 3e38])
def test_a_rate_that_overflows_is(engine: str, rate: float) -> None:
    with pytest.raises(tint.DivergenceError, match="is too large for this text"):
        tint.Tint(model(), make_rule("default", learning_rate=rate), engine=engine)(IDS, train_mask=TRAIN)
