"""What a probe does, made from what is asked for: contexts at one length, rates, and the units of work."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import TYPE_CHECKING, Annotated, Any

from tintformer.errors import InputError
from tintformer.learning.rule_making import AUTO
from tintformer.rule.learning_rule import LearningRule
from tintformer.typed_fields import Range, checked
from tintlab.kinds.context_probe import (
    SEPARATOR,
    ContextProbe,
    ContextTokens,
    ProbeUnit,
    context_tokens,
    prompt_tokens,
)
from tintlab.kinds.probe_inputs import (
    CONTROL,
    COUNTS,
    Context,
    Contexts,
    Prompt,
    Prompts,
    balanced_set,
    context_sets,
    demonstration_labels,
    demonstration_sets,
    read_prompts,
)
from tintlab.kinds.probe_shifts import Part, on_all, on_labels
from tintlab.kinds.sweep import Rules, make_rules

if TYPE_CHECKING:
    from tintformer.auxiliary.description import Auxiliary
    from tintformer.learning.rate_selection import RatePoint

FACTORS = (0.3, 1.0, 3.0)
"""Of the rate that the control's contexts choose for themselves: less than helps, what helps, and too much."""
RATES = (3e-5, 1e-4, 3e-4)
"""Tried where those contexts choose none."""
DRAWS = 6
"""Contexts of demonstrations in a set."""
FEW = 2
"""Contexts of a set, and of demonstrations, in a quick probe; of prompts it takes every third."""
FEWEST = 8
"""Tokens of a context: fewer hold nothing to learn."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a caller asks for, checked as far as that goes without a model."""

    sets: Mapping[str, tuple[Context, ...]]
    prompts: tuple[Prompt, ...]
    rules_at: Callable[[Sequence[float]], list[tuple[str, LearningRule]]]
    """Every combination, with the name of its rule, at these rates."""
    rates: tuple[float, ...] | None
    """None: still to be found."""
    tokens: int | None
    quick: bool
    demonstrations: bool
    """Whether sets of demonstrations are probed as well."""


def ask(
    contexts: Contexts | None,
    probes: Prompts | None,
    learning_rate: float | str | Sequence[float] | None,
    rule: Rules,
    layers: int | Sequence[int | None] | None,
    steps: int | Sequence[int] | None,
    knobs: Mapping[str, Any],
    *,
    tokens: int | None,
    quick: bool,
) -> Asked:
    """Read and check all that is asked for, before a model is opened."""
    checked("tokens", tokens, Annotated[int | None, Range(at_least=FEWEST)], InputError)
    checked("quick", quick, bool, InputError)

    def rules_at(rates: Sequence[float]) -> list[tuple[str, LearningRule]]:
        return make_rules(rates, rule, layers, steps, knobs)

    given: Any = None if isinstance(learning_rate, str) and learning_rate == AUTO else learning_rate
    rules = make_rules(0.0 if given is None else given, rule, layers, steps, knobs)
    sets, prompts = context_sets(contexts), read_prompts(probes)
    return Asked(
        sets={name: each[:FEW] if quick else each for name, each in sets.items()},
        prompts=_some(prompts) if quick else prompts,
        rules_at=rules_at,
        rates=None if given is None else tuple(dict.fromkeys(each.rate for _, each in rules)),
        tokens=tokens,
        quick=quick,
        demonstrations=contexts is None,
    )


def _some(prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """Every third prompt of each kind, texts and questions with the same labels."""
    kinds: dict[tuple[str, ...], list[Prompt]] = {}
    for prompt in prompts:
        kinds.setdefault(prompt.labels, []).append(prompt)
    return tuple(prompt for each in kinds.values() for prompt in each[::3])


@dataclass(frozen=True, kw_only=True)
class ProbeStudy:
    """All that a probe does: the model as it is, then parts with contexts."""

    experiment: ContextProbe
    model: str
    length: int
    """Tokens of every context but demonstrations."""
    parts: tuple[Part, ...]
    """Sets of contexts, and sets of demonstrations if there are any."""
    num_same_labels: int
    """Questions with the labels of the demonstrations."""

    def units(self) -> list[ProbeUnit]:
        return [ProbeUnit(), *(unit for part in self.parts for unit in part.units())]


def prepare(
    asked: Asked,
    auxiliary: Auxiliary,
    model: Any,
    *,
    threads: int,
    on_point: Callable[[RatePoint], None] | None = None,
) -> ProbeStudy:
    """Tokens of all that is asked for, and rates where none were given."""
    from tintlab.data.models import OpenModel, model_identity
    from tintlab.data.prompts import first_token, tokenise

    tokenizer = auxiliary.tokenizer
    begin = first_token(tokenizer, None)
    experiment = ContextProbe(
        prompts=prompt_tokens(tokenizer, asked.prompts),
        first=() if begin is None else (begin,),
        separator=tokenise(tokenizer, [SEPARATOR])[0].ids,
        model=os.fspath(model) if isinstance(model, str | os.PathLike) else auxiliary.name,
        dtype=str(auxiliary.dtype).removeprefix("torch."),
        threads=threads,
        opened=OpenModel(auxiliary=auxiliary, tokenizer=tokenizer, identity=model_identity(auxiliary.model, tokenizer)),
    )
    room = _room(auxiliary, experiment)
    sets = _cut({name: context_tokens(tokenizer, each) for name, each in asked.sets.items()}, experiment, asked, room)
    length = len(sets[CONTROL][0].ids)
    rates = asked.rates or _found_rates(asked, auxiliary, experiment, sets[CONTROL], on_point)
    rules = asked.rules_at(rates)
    for _, rule in rules:
        rule.num_trained(len(auxiliary.blocks))
    parts = [Part(sets=sets, rules=rules, control=CONTROL, measures=on_all(asked.prompts))]
    if asked.demonstrations:
        parts += _demonstrations(asked, tokenizer, rules, room)
    return ProbeStudy(
        experiment=experiment,
        model=auxiliary.name,
        length=length,
        parts=tuple(parts),
        num_same_labels=sum({*each.labels} == {*demonstration_labels()} for each in asked.prompts),
    )


def _room(auxiliary: Auxiliary, experiment: ContextProbe) -> int:
    """Tokens of a context that leave the longest prompt behind it within the model's positions."""
    around = len(experiment.first) + len(experiment.separator) + max(each.longest for each in experiment.prompts)
    room = (auxiliary.max_positions or 2**31) - around
    if room < FEWEST:
        raise InputError(
            f"the longest probe leaves {max(room, 0)} of the {auxiliary.max_positions} tokens that {auxiliary.name} "
            f"was built for, and a context needs {FEWEST}; give shorter probes"
        )
    return room


def _cut(
    sets: Mapping[str, list[ContextTokens]], experiment: ContextProbe, asked: Asked, room: int
) -> dict[str, list[ContextTokens]]:
    """All contexts at one length, so that they differ neither in what they train on nor in where prompts stand.

    It is that of the shortest. Contexts of the control that are shorter go on with the next one.
    """
    control = sets[CONTROL]
    longest_control = sum(len(each.ids) for each in control)
    others = [len(each.ids) for name, contexts in sets.items() if name != CONTROL for each in contexts]
    length = min(*others, longest_control, room, asked.tokens or room)
    if length < FEWEST:
        raise InputError(f"the shortest context has {length} tokens; at least {FEWEST} are needed, so give longer ones")
    joined: list[ContextTokens] = []
    for at in range(len(control)):
        following = islice(cycle(control), at, at + len(control))
        ids = tuple(token for each in following for token in (*each.ids, *experiment.separator))
        joined.append(ContextTokens(ids=ids[:length], targets=(True,) * length))
    cut = {
        name: [replace(each, ids=each.ids[:length], targets=each.targets[:length]) for each in contexts]
        for name, contexts in sets.items()
    }
    return cut | {CONTROL: joined}


def _found_rates(
    asked: Asked,
    auxiliary: Auxiliary,
    experiment: ContextProbe,
    control: Sequence[ContextTokens],
    on_point: Callable[[RatePoint], None] | None,
) -> list[float]:
    """Rates about that which the control's contexts choose for themselves, as `tint run` would choose one for each."""
    import torch

    from tintformer.learning.rate_selection import choose_rate

    ids = torch.tensor([(*experiment.first, *each.ids) for each in control])
    rule = replace(asked.rules_at([0.0])[0][1], steps=1, layers=None)
    found = choose_rate(auxiliary, rule, ids, torch.ones_like(ids, dtype=torch.bool), on_point=on_point).rate
    rates = [float(f"{found * factor:.2g}") for factor in FACTORS] if found else list(RATES)
    return rates[1:2] if asked.quick else rates


def _demonstrations(asked: Asked, tokenizer: Any, rules: Sequence[tuple[str, LearningRule]], room: int) -> list[Part]:
    """Demonstrations with balanced and unbalanced labels, as many as fit; none if hardly any do."""
    for count in COUNTS:
        contexts = demonstration_sets(count, FEW if asked.quick else DRAWS)
        sets = {name: context_tokens(tokenizer, each) for name, each in contexts.items()}
        every = [context for each in sets.values() for context in each]
        if max(len(context.ids) for context in every) > room:
            continue
        # Where losses are summed, a few labels pull less than all tokens: a rate that is larger by as much makes up.
        share = sum(context.num_targets for context in every) / sum(len(context.ids) for context in every)
        scaled = [
            (name, rule if rule.reduction == "mean" else replace(rule, learning_rate=_rounded(rule.rate / share)))
            for name, rule in rules
        ]
        measures = on_labels(asked.prompts, demonstration_labels())
        return [Part(sets=sets, rules=scaled, control=balanced_set(count), measures=measures)]
    return []


def _rounded(rate: float) -> float:
    return float(f"{rate:.2g}")
