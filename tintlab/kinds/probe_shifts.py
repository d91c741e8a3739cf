"""Shifts of a probe: from the scores of units to the rows of a result, every set of contexts beside its control."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tintformer.rule.learning_rule import LearningRule
from tintlab.kinds.context_probe import ContextTokens, ProbeUnit
from tintlab.kinds.probe_inputs import Prompt
from tintlab.kinds.probe_result import MOVED, OTHER, PRIOR, SAME, TEXT, After, ProbeRow, Shift
from tintlab.study.store import UnitResult

Measures = Callable[[UnitResult, UnitResult, str], dict[str, list[float]]]
"""By measure, the change on every prompt: from the scores of the model as it is to those found `alone` or `behind`."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Sets of contexts with the rules that they are learnt by, and the set that is their control."""

    sets: Mapping[str, Sequence[ContextTokens]]
    rules: Sequence[tuple[str, LearningRule]]
    control: str
    measures: Measures

    def units(self) -> list[ProbeUnit]:
        """Every context read, then every one by every rule."""
        contexts = [context for each in self.sets.values() for context in each]
        rules = (None, *(rule for _, rule in self.rules))
        return [ProbeUnit(rule=rule, context=context) for rule in rules for context in contexts]


@dataclass(frozen=True, kw_only=True)
class _Treatment:
    """What was done with all contexts, and what that gave, by set."""

    after: After
    results: Mapping[str, Sequence[UnitResult]]
    rule: tuple[str, LearningRule] | None = None
    """With its name; None where nothing was learnt."""

    @property
    def where(self) -> str:
        """Where the prompts stood."""
        return "alone" if self.after == "learning" else "behind"

    def changes(self, part: Part, before: UnitResult, name: str) -> dict[str, list[list[float]]] | None:
        """By measure, a row for each context of a set and a column for each prompt; None if any context diverged."""
        if self.num_diverged(name):
            return None
        found = [part.measures(before, each, self.where) for each in self.results[name]]
        return {measure: [each[measure] for each in found] for measure in found[0]}

    def num_diverged(self, name: str) -> int:
        return sum(each[self.where] is None for each in self.results[name])


def rows_of(part: Part, before: UnitResult, found: Sequence[UnitResult]) -> list[ProbeRow]:
    """Rows of all sets, in their order: reading first, then learning and both by every rule."""
    results = iter(found)

    def by_set() -> dict[str, list[UnitResult]]:
        return {name: [next(results) for _ in contexts] for name, contexts in part.sets.items()}

    read = by_set()
    treatments = [_Treatment(after="reading", results=read)]
    for rule in part.rules:
        learnt = by_set()
        treatments.append(_Treatment(after="learning", results=learnt, rule=rule))
        treatments.append(_Treatment(after="both", results=learnt, rule=rule))
    return [_row(part, before, treatment, name, read[name]) for name in part.sets for treatment in treatments]


def _row(part: Part, before: UnitResult, treatment: _Treatment, name: str, read: Sequence[UnitResult]) -> ProbeRow:
    """One set after one treatment, beside the control after the same; `read` has what its contexts lose unlearnt."""
    own = treatment.changes(part, before, name) or {}
    control = treatment.changes(part, before, part.control) if name != part.control else None
    learnt = [
        now["context"] - was["context"]
        for now, was in zip(treatment.results[name], read, strict=True)
        if treatment.rule is not None and now["context"] is not None
    ]
    called, rule = treatment.rule or (None, None)
    return ProbeRow(
        contexts=name,
        num_contexts=len(read),
        after=treatment.after,
        rule=called,
        learning_rate=None if rule is None else rule.rate,
        layers=None if rule is None else rule.layers,
        steps=None if rule is None else rule.steps,
        num_diverged=treatment.num_diverged(name),
        context_change=math.fsum(learnt) / len(learnt) if learnt else None,
        shifts={
            measure: Shift.of(table, None if control is None else control[measure]) for measure, table in own.items()
        },
    )


def on_all(prompts: Sequence[Prompt]) -> Measures:
    """The loss of texts, and the labels of all questions."""

    def measures(before: UnitResult, found: UnitResult, where: str) -> dict[str, list[float]]:
        pairs = list(zip(prompts, before["alone"], found[where], strict=True))
        asked = [(_priors(was), _priors(now)) for prompt, was, now in pairs if prompt.labels]
        changed = {
            TEXT: [now[0] - was[0] for prompt, was, now in pairs if not prompt.labels],
            MOVED: [math.fsum(abs(a - b) for a, b in zip(was, now, strict=True)) / 2 for was, now in asked],
            PRIOR: [now[0] - was[0] for was, now in asked],
        }
        return {name: values for name, values in changed.items() if values}

    return measures


def on_labels(prompts: Sequence[Prompt], labels: Sequence[str]) -> Measures:
    """The first label of questions with the labels of the demonstrations, and of the others."""

    def measures(before: UnitResult, found: UnitResult, where: str) -> dict[str, list[float]]:
        changed: dict[str, list[float]] = {SAME: [], OTHER: []}
        for prompt, was, now in zip(prompts, before["alone"], found[where], strict=True):
            if prompt.labels:
                same = {*prompt.labels} == {*labels}
                at = prompt.labels.index(labels[0]) if same else 0
                changed[SAME if same else OTHER].append(_priors(now)[at] - _priors(was)[at])
        return {name: values for name, values in changed.items() if values}

    return measures


def _priors(losses: Sequence[float]) -> list[float]:
    """The probability of each label among the labels."""
    least = min(losses)
    weights = [math.exp(least - loss) for loss in losses]
    return [weight / math.fsum(weights) for weight in weights]
