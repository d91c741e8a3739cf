# pyright: basic
"""What the package computes on tiny models in float64, through the public interface of the core alone.

Every family by every rule on every engine, then all that goes a way of its own: optimisers, streams, generation with a
cache, forms of the constructions, masks, and simple auxiliaries. A number's name is `model/rule/engine/quantity`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from cases import DESCENTS, FIRST, MODELS, RULES, VOCABULARY, call, make_batch, make_model, make_rule, with_steps
from torch import Tensor

import tintformer as tint

Numbers = Iterator[tuple[str, Tensor]]

ENGINES = ("fast", "reference", "oracle", "simulator", "network")
PRESETS = ("default", "paper", "full")
OPTIMISERS: dict[str, dict[str, Any]] = {
    **DESCENTS,
    "rms": {"optimizer": "rms", "momentum": 0.5},
    "adam": {"optimizer": "adam", "schedule": (1.0, 0.5)},
    "muon": {"optimizer": "muon", "momentum": 0.9, "nesterov": True, "decay": 0.1},
}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "oracle": ("oracle", {}),
    "fast-factors": ("fast", {"dual": True}),
    "fast-matrices": ("fast", {"dual": False}),
    "simulator-paper": ("simulator", {"layout": "paper", "stack": 2}),
    "simulator-untied": ("simulator", {"tie_blocks": False, "stack": 3}),
    "softmax-pair": ("simulator", {"attention": "softmax"}),
    "printed-softmax": ("simulator", {"attention": "softmax", "softmax_form": "printed"}),
    "softmax-paper": ("simulator", {"attention": "softmax", "layout": "paper"}),
    "network-loop": ("network", {"loop": True, "max_tokens": 13}),
    "network-dense": ("network", {"dense": True}),
    "softmax-network": ("network", {"dense": True, "attention": "softmax"}),
}
"""Ways to hold updates and to construct, each with its engine and its options."""


def rules() -> Numbers:
    """Every model by the presets, and one model of each family by every other variant of the rule, on every engine."""
    for name in MODELS:
        for rule in RULES:
            if rule in PRESETS or name in FIRST:
                learn, batch = make_rule(rule, steps=2), make_batch()
                for engine in ENGINES:
                    yield from of_a_pass(f"{name}/{rule}", engine, make_model(name), learn, batch)
                yield from _adapted(f"{name}/{rule}", make_model(name), learn, batch)


def optimisers() -> Numbers:
    """Every optimiser and way to descend, on every engine that can do it."""
    for number, (optimiser, knobs) in enumerate(OPTIMISERS.items()):
        for name in (FIRST[number % len(FIRST)], "llama-grouped"):
            rule, options = make_rule("full", steps=3, **knobs), _statistics(name, knobs)
            for engine in ENGINES if rule.optimizer == "sgd" else ("fast", "reference", "oracle"):
                yield from of_a_pass(f"{name}/{optimiser}", engine, make_model(name), rule, make_batch(), **options)
            yield from _adapted(f"{name}/{optimiser}", make_model(name), rule, make_batch(), **options)


def streams() -> Numbers:
    """What a stream scores and learns: every family and every way to carry the past, and every optimiser."""
    ids = torch.randint(3, VOCABULARY, (2, 40), generator=torch.Generator().manual_seed(3))
    cases: list[tuple[str, str, Any, dict[str, Any]]]
    cases = [(name, "full", carry, {}) for name in FIRST for carry in ("none", "recompute", "cache")]
    cases += [("llama-grouped", optimiser, "cache", knobs) for optimiser, knobs in OPTIMISERS.items()]
    for name, rule, carry, knobs in cases:
        reader = tint.Tint(make_model(name), make_rule("full", **knobs), **_statistics(name, knobs))
        pieces = list(reader.stream(ids, chunk=8, window=20, carry=carry))
        key = f"{name}/{rule}/stream-{carry}"
        yield f"{key}/token_loss", torch.cat([piece.token_loss for piece in pieces], dim=1)
        yield from _updates(key, 2, pieces[-1].state.updates)


def generation() -> Numbers:
    """Tokens and logits of what is written after a prompt was learnt from, with a cache and without."""
    for name in FIRST:
        for engine in ("fast", "simulator") if name in ("gpt2", "llama") else ("fast",):
            model: Any = tint.TintForCausalLM.from_auxiliary(
                make_model(name), make_rule("default", learning_rate=3e-2), engine=engine
            )
            model.generation_config.eos_token_id = None  # every sequence gets all its tokens
            for cached in (True, False):
                found = model.generate(
                    **make_batch(lengths=(9, 6), padding="left"),
                    max_new_tokens=4,
                    do_sample=False,
                    use_cache=cached,
                    return_dict_in_generate=True,
                    output_logits=True,
                )
                key = f"{name}/default/generate-{engine}-{'cache' if cached else 'plain'}"
                yield f"{key}/tokens", found.sequences.double()
                yield f"{key}/logits", torch.stack(found.logits).double()


def forms() -> Numbers:
    """The ways to construct and to hold updates, on three families."""
    for name in ("gpt2", "llama-grouped", "bloom"):
        for form, (engine, options) in FORMS.items():
            rule, batch = make_rule("default", steps=2), make_batch(lengths=(9, 8))
            yield from of_a_pass(f"{name}/short", engine, make_model(name), rule, batch, label=form, **options)


def masks() -> Numbers:
    """Padding on the left, top blocks alone, targets by step, and several texts in one sequence."""
    left, packed = make_batch(padding="left"), make_batch(lengths=(12, 12))
    packed["segment_ids"] = (torch.arange(12) // 6).expand(2, -1)
    packed["loss_mask"] = (torch.arange(12) % 4 > 0).expand(2, -1)
    cases = {
        "left": (left, make_rule("full", steps=2)),
        "top": (left, make_rule("full", steps=2, layers=1)),
        "steps": (with_steps(make_batch(), 2), make_rule("default", steps=2)),
        "packed": (packed, make_rule("default")),
    }
    for name in ("gpt2", "mistral"):
        for case, (batch, rule) in cases.items():
            for engine in ENGINES:
                yield from of_a_pass(f"{name}/{case}", engine, make_model(name), rule, batch)


def examples() -> Numbers:
    """Regression and perceptrons, which learn from vectors."""
    models = {
        "regression": tint.regression(5, 2, dtype=torch.float64),
        "mlp": tint.mlp([3, 7, 2], activation="tanh", dtype=torch.float64),
    }
    for name, model in models.items():
        generator = torch.Generator().manual_seed(7)
        x, y = (
            torch.randn(2, 9, width, dtype=torch.float64, generator=generator)
            for width in (model.stream_width, model.vocabulary_size)
        )
        batch = {"input_ids": tint.Examples(x, y, (torch.arange(9) < 6).expand(2, -1))}
        for rule, knobs in {"default": {}, "momentum": {"momentum": 0.5, "decay": 0.1}}.items():
            learn = make_rule("default", learning_rate=0.02, steps=3, **knobs)
            for engine in ENGINES:
                yield from of_a_pass(f"{name}/{rule}", engine, model, learn, batch)


def of_a_pass(case: str, engine: str, model: Any, rule: Any, batch: Any, *, label: str = "", **options: Any) -> Numbers:
    """Yield logits, losses and updates of one forward pass."""
    before = not options.get("loop")  # which keeps nothing of what was there before
    out = call(tint.Tint(model, rule, engine=engine, **options), batch, before=before)
    key, seen = f"{case}/{label or engine}", batch["attention_mask"].bool() if "attention_mask" in batch else ...
    yield f"{key}/logits", out.logits[seen]
    yield f"{key}/token_loss", out.token_loss
    if before:
        yield f"{key}/logits_before", out.logits_before[seen]
        yield f"{key}/token_loss_before", out.token_loss_before
    yield from _updates(key, len(out.token_loss), out.updates)


def _adapted(case: str, model: Any, rule: Any, batch: Any, **options: Any) -> Numbers:
    """One update for all sequences, and how they are scored with it."""
    ids, mask = batch["input_ids"], batch["attention_mask"]
    tuned = tint.Tint(model, rule, **options).adapt(ids, attention_mask=mask)
    yield f"{case}/tuned/token_loss", tuned.score(ids, attention_mask=mask).token_loss
    yield from _updates(f"{case}/tuned", 1, lambda row: tuned.updates())


def _updates(key: str, num_rows: int, of_row: Callable[[int], dict[str, Tensor]]) -> Numbers:
    for row in range(num_rows):
        for parameter, change in of_row(row).items():
            yield f"{key}/row {row}/{parameter}", change


def _statistics(name: str, knobs: dict[str, Any]) -> dict[str, Any]:
    """The option of a rule that divides by root mean squares: positive numbers for every weight."""
    if knobs.get("optimizer") != "rms":
        return {}
    generator, weights = torch.Generator().manual_seed(5), make_model(name).named_parameters()
    drawn = {weight: 0.1 + torch.rand(p.shape, generator=generator, dtype=p.dtype) for weight, p in weights}
    return {"statistics": drawn}


PARTS = (rules, optimisers, streams, generation, forms, masks, examples)


def all_numbers() -> dict[str, Tensor]:
    return {key: value.detach().clone().contiguous() for part in PARTS for key, value in part()}
