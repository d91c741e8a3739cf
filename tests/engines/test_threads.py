# pyright: basic
"""Eight threads on one object, or on objects that share a model, get what one thread gets."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import VOCABULARY, covering, make_model
from patience import PATIENCE

import tintformer as tint
from tintformer.transformers.model import TintForCausalLM

# Rates that throw a tiny model off show a mix-up of threads best.
pytestmark = pytest.mark.filterwarnings("ignore:.*learning has made the predictions much worse")

THREADS, CALLS = 8, 2
RULES = {
    "exact": tint.LearningRule(learning_rate=0.05, steps=2, attention_gradient="exact"),
    # Every way in which the oracle takes over a part of the model.
    "differences": tint.LearningRule(
        learning_rate=0.05,
        attention_gradient="perturbed",
        norm_gradient="central",
        activation_gradient="central",
        epsilon_mode="relative",
    ),
}


def sequences(number: int) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (1 + number % 2, 7 + number), generator=torch.Generator().manual_seed(number))


def logits(learner: Any, number: int) -> torch.Tensor:
    ids = sequences(number)
    train = torch.zeros_like(ids)
    train[:, : ids.shape[1] // 2] = 1
    output = learner(ids, train_mask=train, before=True)
    first = next(iter(output.updates(0).values()))
    return torch.cat((output.logits.flatten(), output.token_loss_before.flatten(), first.flatten())).nan_to_num()


def in_threads(work: Callable[[int], torch.Tensor]) -> list[list[torch.Tensor]]:
    """What each of the threads gets, one call after the other, all of them begun at the same time."""
    results: list[list[torch.Tensor]] = [[] for _ in range(THREADS)]
    errors: list[BaseException] = []
    barrier = threading.Barrier(THREADS)

    def run(number: int) -> None:
        try:
            barrier.wait()
            results[number].extend(work(number) for _ in range(CALLS))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not errors, errors
    assert all(len(result) == CALLS for result in results)
    return results


def assert_same(work: Callable[[int], torch.Tensor], alone: Callable[[int], torch.Tensor]) -> None:
    expected = [alone(number) for number in range(THREADS)]
    for found, wanted in zip(in_threads(work), expected, strict=True):
        for each in found:
            torch.testing.assert_close(each, wanted, rtol=1e-9, atol=1e-9)


ENGINES = ["fast", "reference", "oracle", "simulator", "network"]


def make_learner(name: str, rule: str, engine: str) -> tint.Tint:
    # One network for all lengths; without it every length would be compiled by itself.
    options: dict[str, Any] = {"max_tokens": 6 + THREADS} if engine == "network" else {}
    return tint.Tint(make_model(name), RULES[rule], engine=engine, **options)


@pytest.mark.parametrize(("engine", "rule"), covering(ENGINES, list(RULES)))
def test_one_object(engine: str, rule: str) -> None:
    learner = make_learner("llama-grouped", rule, engine)
    assert_same(lambda number: logits(learner, number), lambda number: logits(learner, number))


def test_all_engines_on_one_model() -> None:
    model = make_model("gpt2")
    rule = RULES["differences"]
    engines = ["oracle", "fast", "oracle", "reference", "oracle", "simulator", "oracle", "fast"]
    learners = [tint.Tint(model, rule, engine=engine) for engine in engines]
    fast = tint.Tint(copy.deepcopy(model), rule, engine="reference")
    # Differences are taken another way by each: 1e-9 between engines is what test_parity asks for exact gradients.
    own = [logits(learner, number) for number, learner in enumerate(learners)]
    torch.testing.assert_close(own[1], logits(fast, 1), rtol=1e-4, atol=1e-6)
    assert_same(lambda number: logits(learners[number], number), lambda number: own[number])


@pytest.mark.sweep
def test_networks_are_compiled_while_others_run() -> None:
    """The first call of a length compiles a network for it; here threads that share a length meet in it."""
    model, rule = make_model("llama"), RULES["exact"]
    fresh = tint.Tint(model, rule, engine="network")
    alone = tint.Tint(model, rule, engine="network")
    assert_same(lambda number: logits(fresh, number % 2), lambda number: logits(alone, number % 2))


def test_objects_are_made_while_others_run() -> None:
    model, rule = make_model("llama"), RULES["exact"]
    running = tint.Tint(model, rule, engine="oracle")

    def work(number: int) -> torch.Tensor:
        return logits(running if number % 2 else tint.Tint(model, rule, engine="oracle"), number)

    assert_same(work, lambda number: logits(running, number))


def test_tuned_models_and_generation() -> None:
    learner = tint.Tint(make_model("llama"), RULES["exact"])
    tuned: Any = learner.adapt(sequences(3))
    chat: Any = TintForCausalLM.from_auxiliary(make_model("llama"), RULES["exact"])

    def work(number: int) -> torch.Tensor:
        ids = sequences(number)
        generated = chat.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, min_new_tokens=3, do_sample=False
        )
        return torch.cat((tuned.score(ids, logits="all").logits.flatten(), generated.double().flatten()))

    assert_same(work, work)


def test_hooks_see_the_passes_of_their_own_thread() -> None:
    learner = tint.Tint(make_model("llama"), RULES["exact"])

    def work(number: int) -> torch.Tensor:
        with (
            learner.watch("blocks.1.down.output", when="after") as seen,
            learner.hook("blocks.0.up.output", lambda value, point: value * (1 + number)),
        ):
            found = logits(learner, number)
        assert len(seen) == 1
        return torch.cat((found, seen["after", "blocks.1.down.output"].flatten()))

    assert_same(work, work)
    assert not learner.hooks._hooks


@pytest.mark.parametrize("engine", ENGINES)
def test_the_default_dtype_has_no_say(engine: str) -> None:
    """It is the process's, and from_pretrained in another thread changes it for a while."""
    learner = make_learner("gptj", "exact", engine)
    expected = logits(learner, 1)
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float64, torch.bfloat16):
            torch.set_default_dtype(dtype)
            torch.testing.assert_close(logits(learner, 1), expected, rtol=1e-9, atol=1e-9)
    finally:
        torch.set_default_dtype(before)
