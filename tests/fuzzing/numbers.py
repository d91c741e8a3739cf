# pyright: basic
"""Numbers: every engine against the oracle, and everything that must not change a number against a plain pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from cases import alone, call
from torch import Tensor

import tintformer as tint
from fuzzing.draws import Settings, draw_batch, draw_model, draw_rule
from fuzzing.kinds import Kind, draw, require
from tintformer.execution.batch import Batch

GROUP = 8
"""Cases with one model."""
AGREEMENT = 1e-8
"""Between engines in float64, as in tests/engines/test_parity.py, relative to what is large."""


def engines(r: Random, rule: tint.LearningRule) -> list[dict[str, Any]]:
    """Some of the engines that a rule can be run by: all of them in a case would be the same few cases."""
    simulator = {
        "engine": "simulator",
        "layout": r.choice(("lean", "paper")),
        "stack": r.choice((1, 2, 3, 4)),
        "tie_blocks": r.random() < 0.5,
        "transposition": r.choice(("scores", "stored")),
    }
    network = {"engine": "network", "stack": r.choice((1, 3, 4)), "dense": r.random() < 0.2, "loop": r.random() < 0.3}
    # Every layer a matrix over the whole stream: two steps of three blocks take gigabytes.
    network["dense"] &= rule.steps == 1
    fast = {"engine": "fast", "dual": r.choice((None, True, False))}
    programs = [{"engine": "reference"}, fast]
    return r.sample([*programs, simulator, simulator, network], 2) if rule.is_linear else programs


def same(found: Tensor, expected: Tensor, what: str, *, times: float = 1.0) -> None:
    """Two computations of one thing in float64."""
    require(found.shape == expected.shape, f"{what}: shape {tuple(found.shape)} instead of {tuple(expected.shape)}")
    if not expected.numel():
        return
    both_nan = torch.equal(found.isnan(), expected.isnan())
    error = float((found - expected).nan_to_num().abs().max())
    allowed = times * AGREEMENT * max(1.0, float(expected.nan_to_num().abs().max()))
    require(both_nan and error <= allowed, f"{what}: differs by {error:.3g}, allowed are {allowed:.3g}")


def same_outputs(found: Any, expected: Any, batch: dict[str, Any], what: str, *, times: float = 1.0) -> None:
    """Logits before and after, losses, and the update of every parameter of every sequence."""
    seen = batch["attention_mask"].bool()
    if expected.logits_before is not None and found.logits_before is not None:
        same(found.logits_before[seen], expected.logits_before[seen], f"{what}: logits before", times=times)
    same(found.logits[seen], expected.logits[seen], f"{what}: logits", times=times)
    same(found.token_loss, expected.token_loss, f"{what}: losses", times=times)
    for row in range(len(seen)):
        same_updates(found.updates(row), expected.updates(row), f"{what} row {row}", times=times)


def same_updates(found: dict[str, Tensor], expected: dict[str, Tensor], what: str, *, times: float = 1.0) -> None:
    require(found.keys() == expected.keys(), f"{what}: other parameters: {sorted(found.keys() ^ expected.keys())}")
    for name, update in expected.items():
        same(found[name], update, f"{what}: update of {name}", times=times)


def parity(r: Random, model: Any, place: Path) -> str:
    rule, batch = _drawn(r, model, place, dense=True, steps=True)
    outcome, truths = "same", dict[tint.LearningRule, Any]()
    given = _statistics(model, rule)
    for engine in engines(r, rule):
        meant = _as_simulated(rule) if engine["engine"] in ("simulator", "network") else rule
        if meant not in truths:
            truths[meant], outcome = _truth(model, meant, batch, given)
        before = not engine.get("loop")  # whose layers overwrite it
        try:
            found = call(tint.Tint(model, rule, **engine, **given), batch, before=before)
        except tint.InputError as error:
            _require_known(error, str(engine))
            continue
        require((found.logits_before is not None) == before, f"{engine}: logits before, or none, against the call")
        same_outputs(found, truths[meant], batch, str(engine))
    return outcome


def _truth(model: Any, rule: tint.LearningRule, batch: dict[str, Any], given: dict[str, Any]) -> tuple[Any, str]:
    try:
        return call(tint.Tint(model, rule, engine="oracle", **given), batch, before=True), "same"
    except tint.InputError as error:  # segments with shared tokens, where gradients are differences
        require("several segments share" in str(error), f"the oracle refuses: {error}")
        return call(tint.Tint(model, rule, engine="reference", **given), batch, before=True), "without the oracle"


def _statistics(model: Any, rule: tint.LearningRule) -> dict[str, Any]:
    """What `rms` divides by, as an option of an engine; other rules take none."""
    if rule.optimizer != "rms":
        return {}
    generator = torch.Generator().manual_seed(5)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    drawn = {name: torch.rand(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    return {"statistics": {name: 0.1 + values for name, values in drawn.items()}}


def _require_known(error: tint.InputError, what: str) -> None:
    """Constructions that do not fit a model or a batch say so; any other refusal of what was drawn is a finding."""
    known = (
        "layout='paper' needs heads",
        "tokens train but a head stores",
        "a network cannot leave out momentum and decay for one row",
        "this schedule changes the rate from step to step",
    )
    require(any(words in str(error) for words in known), f"{what} refuses: {error}")


def _as_simulated(rule: tint.LearningRule) -> tint.LearningRule:
    """An attention has no exact gradient: with a step of the user's own, the simulator's is the perturbed one."""
    chosen = rule.attention_gradient == "exact" and rule.epsilon is not None
    return replace(rule, attention_gradient="perturbed") if chosen else rule


def one_by_one(r: Random, model: Any, place: Path) -> str:
    """A padded batch equals each of its sequences alone."""
    rule, batch = _drawn(r, model, place, dense=True, steps=True)
    network = {"engine": "network", "max_tokens": batch["input_ids"].shape[1]}
    programs = [{"engine": "reference"}, {"engine": "fast"}, {"engine": "fast"}]
    engine = r.choice([*programs, {"engine": "simulator"}, network] if rule.is_linear else programs)
    sim = tint.Tint(model, rule, **engine, **_statistics(model, rule))
    try:
        together = call(sim, batch)
    except tint.InputError as error:
        _require_known(error, str(engine))
        return "refused"
    for row in range(len(batch["input_ids"])):
        kept, single = batch["attention_mask"][row].bool(), call(sim, alone(batch, row))
        same(together.logits[row][kept], single.logits[0], f"{engine} row {row}: logits")
        same(together.token_loss[row][kept], single.token_loss[0], f"{engine} row {row}: losses")
        same_updates(together.updates(row), single.updates(0), f"{engine} row {row}")
    return "same"


def generation(r: Random, model: Any, place: Path) -> str:
    """With and without a cache: the same tokens, and the same logits at every step."""
    rule, batch = _drawn(r, model, place, padding="left", segments=False, positions=False)
    batch.pop("loss_mask", None)
    learner: Any = tint.TintForCausalLM.from_auxiliary(model, rule, engine=r.choice(("fast", "fast", "simulator")))
    options = {
        "max_new_tokens": r.randint(1, 4),
        "do_sample": False,
        "eos_token_id": None,
        "num_beams": r.choice((1, 1, 2)),
        "return_dict_in_generate": True,
        "output_logits": True,
    }
    cached, plain = (learner.generate(**batch, **options, use_cache=use_cache) for use_cache in (True, False))
    for number, (one, other) in enumerate(zip(cached.logits, plain.logits, strict=True)):
        # transformers rounds them to float32
        same(one.double(), other.double(), f"logits of step {number} with a cache", times=100)
    require(torch.equal(cached.sequences, plain.sequences), "other tokens with a cache than without")
    return "same"


def continuation(r: Random, model: Any, place: Path) -> str:
    """Token by token behind a prompt is the whole pass."""
    rule, batch = _drawn(r, model, place, padding="left", segments=False, positions=False, steps=True)
    width = batch["input_ids"].shape[1]
    prompt = r.randint((width + 1) // 2, width)
    batch["train_mask"][:, prompt:] = False
    start = batch["attention_mask"].argmax(1)
    if bool((start + 2 > prompt).any()) or not bool(batch["train_mask"].any(1).all()):
        return "too short"
    sim = tint.Tint(model, rule, engine=r.choice(("fast", "fast", "simulator")))
    engine: Any = sim.engine
    learnt = engine.begin(
        Batch.of(sim.auxiliary, **{key: value[:, :prompt] for key, value in batch.items()}), keep_cache=True
    )
    found = [learnt.logits()]
    while learnt.length < width:
        until = learnt.length + r.randint(1, width - learnt.length)
        learnt.extend(batch["input_ids"][:, learnt.length : until], batch["attention_mask"][:, :until])
        found.append(learnt.logits())
    seen = batch["attention_mask"].bool()
    same(torch.cat(found, dim=1)[seen], call(sim, batch).logits[seen], "logits behind a prompt")
    return "same"


def saved_simulator(r: Random, model: Any, place: Path) -> str:
    rule, batch = _drawn(r, model, place, steps=True)
    knobs = {"layout": r.choice(("lean", "paper")), "stack": r.choice((1, 3, 4)), "tie_blocks": r.random() < 0.5}
    try:
        simulator = tint.build(model, rule, **knobs)
    except tint.InputError as error:
        _require_known(error, str(knobs))
        return "refused"
    simulator.save_pretrained(place / "simulator", full=r.random() < 0.5)
    back = tint.Simulator.from_pretrained(place / "simulator")
    require(back.rule == rule, f"another rule comes back: {back.rule}")
    require(back.construction == simulator.construction, "another construction comes back")
    _same_bits(dict(back.named_parameters()), dict(simulator.named_parameters()))
    same_outputs(call(back, batch), call(simulator, batch), batch, "the simulator from its file")
    return "same"


def saved_learner(r: Random, model: Any, place: Path) -> str:
    """The transformers model: configuration, weights and logits."""
    rule, batch = _drawn(r, model, place, segments=False, positions=False)
    learner: Any = tint.TintForCausalLM.from_auxiliary(model, rule, train_fraction=r.choice((0.5, 1.0)))
    learner.save_pretrained(place / "learner", **r.choice(({}, {"max_shard_size": "2KB"})))
    back: Any = tint.TintForCausalLM.from_pretrained(place / "learner")
    require(back.config.rule == rule, f"another rule comes back: {back.config.rule}")
    require(back.config.to_diff_dict() == learner.config.to_diff_dict(), "another configuration comes back")
    _same_bits(back.state_dict(), learner.state_dict())
    same(back(**batch).logits, learner(**batch).logits, "logits of the model from its file")
    return "same"


def saved_update(r: Random, model: Any, place: Path) -> str:
    """An update in a file, and the Hugging Face model that it gives."""
    rule, batch = _drawn(r, model, place, dense=True, steps=True)
    sim = tint.Tint(model, rule, **_statistics(model, rule))
    ids = batch.pop("input_ids")
    tuned = sim.adapt(ids, **batch)
    masks = {key: batch[key] for key in ("attention_mask", "segment_ids", "position_ids") if key in batch}
    expected: Any = tuned.score(ids, logits="all", **masks)
    tuned.save(place / "update.safetensors")
    back = tint.Tuned.load(place / "update.safetensors", model)
    require(back.rule == rule, f"another rule comes back: {back.rule}")
    same_updates(back.updates(), tuned.updates(), "the update from its file")
    seen = batch["attention_mask"].bool()
    found: Any = back.score(ids, logits="all", **masks).logits
    same(found[seen], expected.logits[seen], "logits with the update from its file")
    frozen = tint.LearningRule(learning_rate=0.0)
    plain: Any = tint.Tint(tuned.to_hf(), frozen, engine="oracle")(
        ids, train_mask=torch.ones_like(ids, dtype=torch.bool), **masks
    )
    same(plain.logits[seen], expected.logits[seen], "logits of to_hf()")
    return "same"


def _same_bits(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    require(found.keys() == expected.keys(), f"other tensors come back: {sorted(found.keys() ^ expected.keys())[:3]}")
    for name, tensor in expected.items():
        equal = found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
        require(equal, f"{name} comes back with other bits")


def _drawn(
    r: Random, model: Any, place: Path, *, dense: bool = False, steps: bool = False, **how: Any
) -> tuple[tint.LearningRule, dict[str, Any]]:
    """A rule and a batch, written down for whoever looks at a finding; `steps` may have data of their own."""
    rule = draw_rule(r, _num_blocks(model), dense=dense)
    batch = draw_batch(r, model, steps=rule.steps if steps else 1, **how)
    written = {"rule": asdict(rule), "batch": {key: value.tolist() for key, value in batch.items()}}
    (place / "case.json").write_text(json.dumps(written, indent=1))
    return rule, batch


def _num_blocks(model: Any) -> int:
    return model.config.num_hidden_layers


@lru_cache(maxsize=1)
def _model(group: int) -> tuple[Any, Settings]:
    return draw_model(draw("model", group))


def _kind(name: str, check: Callable[[Random, Any, Path], str]) -> Kind:
    def run(seed: int, place: Path) -> str:
        model, settings = _model(seed // GROUP)
        (place / "model.json").write_text(json.dumps(settings, indent=1))
        try:
            return check(draw(name, seed), model, place)
        except tint.DivergenceError:
            return "diverged"

    return Kind(name, run, group=GROUP)


NUMBERS = [
    _kind("engines", parity),
    _kind("one-by-one", one_by_one),
    _kind("generation", generation),
    _kind("continuation", continuation),
    _kind("simulator-file", saved_simulator),
    _kind("model-file", saved_learner),
    _kind("update-file", saved_update),
]
