"""In-context learning: learn from demonstrations or from the test input itself, then choose a label word."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tintformer.errors import DivergenceError, InputError
from tintformer.rule.learning_rule import LearningRule
from tintlab.data.models import OpenModel, open_model
from tintlab.data.packing import Prompted, TrainedTokens, dense, multi, separate, single, to_learn
from tintlab.data.prompts import Encoder
from tintlab.data.scoring import Answers, InputLearning, LabelScorer
from tintlab.data.tasks import Example, Task, demonstrations, load_task, test_examples, tuning_examples
from tintlab.methods.methods import METHODS, learn_once
from tintlab.study.experiment import ChosenOn, Experiment, require_within
from tintlab.study.store import UnitResult

if TYPE_CHECKING:
    from tintformer.learning.rate_search import RatePoint
    from tintformer.learning.tuned import Tuned

Mode = Literal["single", "multi"]
CONTEXT = 2048
"""Of models that have no longest one."""
AT_ONCE = 40
"""Examples of a unit. More make a kill lose more; fewer leave rows of very different lengths in one batch."""


@dataclass(frozen=True, kw_only=True)
class InContextLearning(Experiment):
    """One model on one task in one setting, by several methods, over several seeds.

    Rates are chosen by label cross-entropy on tuning examples, one rate for all seeds, or by accuracy on the test
    examples themselves, for each seed or for all of them.
    """

    kind: ClassVar[str] = "icl"
    version: ClassVar[int] = 1
    """Raised by hand when a number of these units changes."""

    task: str
    """A shipped description or a YAML file."""
    variant: str | None = None
    """Another prompt of the description."""
    shots: int = 0
    """Demonstrations; with none the test input itself is trained on, up to its label."""
    mode: Mode = "single"
    """`single`: demonstrations are independent training examples. `multi`: one text with the test input at its end."""
    loss: TrainedTokens = "full"
    """Train on the `label` words of demonstrations, or on all tokens (`full`)."""
    test_text: bool = False
    """With demonstrations and the full loss, also train on the text of the test input, as the authors do. Every test
    input then needs a pass of its own."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Each draws its own demonstrations; without any there is nothing to draw, and one is enough."""
    tests: int | None = 200
    """Test examples, as many of each label; None: all. With 200 one standard error is about 3 points."""
    tuning: int = 40
    """Examples of the train pool for each seed that choose the rate; they are neither trained on nor tested."""
    one_rate: bool = False
    """Where rates are chosen on the tests: one for all seeds, instead of one for each, as the authors do."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_within("shots", self.shots, 0)
        if self.shots == 0 and self.loss == "label":
            raise InputError("without demonstrations there is no label to train on; take --loss full")
        require_within("tests", self.tests, 1)
        require_within("tuning", self.tuning, 0)
        if not self.seeds:
            raise InputError("there is no seed; give at least one")

    def depends_on_seed(self, method: str) -> bool:
        """Whether demonstrations make a difference: an untrained model does not see those of `single`."""
        return self.shots > 0 and not (METHODS[method].preset is None and self.mode == "single")

    def identity(self, unit: PromptUnit) -> dict[str, Any]:
        opened = open_task(self)
        rule = self.rule(unit.method, unit.rate)
        return {
            "model": opened.model.identity,
            "rule": rule and asdict(rule),
            "engine": rule and self.engine,
            "task": opened.task.identity,
            "shots": self.shots,
            "mode": self.mode,
            "loss": rule and self.loss,
            "test_text": rule and self.test_text,
            "seed": unit.seed if self.depends_on_seed(unit.method) or unit.part == "tuning" else None,
            "part": unit.part,
            # The first of few examples are the first of many (`tasks.py`), so their number decides nothing.
            "examples": [unit.start, unit.stop],
        }

    def settings(self) -> list[tuple[int, ...]]:
        """The seeds that share a rate: all of them, or one each where rates are chosen on what is reported."""
        # Without demonstrations seeds differ in nothing but their tuning examples, and one is enough.
        seeds = self.seeds if self.shots else self.seeds[:1]
        return [seeds] if self.chosen_on == "tuning" or self.one_rate else [(seed,) for seed in seeds]

    def num_targets(self, setting: tuple[int, ...]) -> int:
        """One a demonstration, or so."""
        return max(1, self.shots)

    def units(self, setting: tuple[int, ...], method: str, rate: float, part: ChosenOn) -> list[PromptUnit]:
        """A few examples each, after the demonstrations of each seed."""
        count = open_task(self).count(part)
        return [
            PromptUnit(method=method, rate=rate, seed=seed, part=part, start=start, stop=min(start + AT_ONCE, count))
            for seed in setting
            for start in range(0, count, AT_ONCE)
        ]

    def run(self, unit: PromptUnit) -> UnitResult:
        """Log-probabilities of all label words for a few examples, and for the calibration prompt."""
        import torch

        torch.set_num_threads(self.threads)
        opened = open_task(self)
        examples = opened.examples(unit)
        asked = [opened.prompted(unit.seed, example.text) for example in examples]
        calibration = opened.prompted(unit.seed, None)
        try:
            *scores, empty = self.scorer(unit).scores([*asked, calibration])
        except DivergenceError:  # of an update that all inputs share
            *scores, empty = ([-math.inf] * len(calibration.answers) for _ in (*asked, calibration))
        return {
            "texts": [example.text for example in examples],
            "labels": [example.label for example in examples],
            "scores": scores,
            "calibration": empty,
            "tokens": [len(answer) for answer in calibration.answers],
            "demonstrations": [each.num_demonstrations for each in asked],
            "cut": sum(each.num_cut for each in asked),
        }

    def scorer(self, unit: PromptUnit) -> LabelScorer:
        """What scores the examples of a unit."""
        rule, shown = self.rule(unit.method, unit.rate), self.shots > 0
        if rule is None or (shown and not self.test_text and self.engine == "fast"):
            # Demonstrations alone are learnt from, or nothing at all: one update serves all inputs.
            model = _adapted(self, unit.method, unit.rate, unit.seed)
        else:
            model = InputLearning(
                auxiliary=open_task(self).model.auxiliary,
                rule=rule,
                engine=self.engine,
                loss=self.loss,
                test_text=self.test_text or not shown,
            )
        shared = not isinstance(model, InputLearning)
        return LabelScorer(
            model=model,
            one_context=shared and shown and self.mode == "multi",
            own_segment=shown and self.mode == "single",
        )

    def tuning_loss(self, setting: tuple[int, ...], results: Sequence[UnitResult]) -> float:
        """Label cross-entropy on tuning examples, or the share of wrong answers to test examples."""
        measure = Answers.cross_entropy if self.chosen_on == "tuning" else Answers.wrong
        return fmean(value for answers in _answers(setting, results) for value in measure(answers))

    def summary(
        self,
        setting: tuple[int, ...],
        method: str,
        rate: float,
        curve: tuple[RatePoint, ...],
        results: Sequence[UnitResult],
    ) -> InContextResult:
        answers = _answers(setting, results)
        return InContextResult(method=method, rates=(rate,) * len(setting), curves=(curve,), answers=answers)

    def combined(self, summaries: Sequence[Sequence[InContextResult]]) -> list[InContextResult]:
        """One a method, with all seeds."""
        return [
            InContextResult(
                method=parts[0].method,
                rates=tuple(rate for part in parts for rate in part.rates),
                curves=tuple(curve for part in parts for curve in part.curves),
                answers=tuple(answers for part in parts for answers in part.answers),
            )
            for parts in zip(*summaries, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class PromptUnit:
    """A few examples by one method at one rate, after the demonstrations of one seed."""

    method: str
    rate: float
    seed: int
    part: Literal["test", "tuning"]
    start: int
    stop: int


@dataclass(frozen=True, eq=False, kw_only=True)
class OpenTask:
    """What a process needs to do units: the model, the prompts and the examples."""

    experiment: InContextLearning
    model: OpenModel
    task: Task
    encoder: Encoder
    _shown: dict[int, tuple[Example, ...]] = field(default_factory=dict[int, tuple[Example, ...]])

    def demonstrations(self, seed: int) -> tuple[Example, ...]:
        """Those of a seed."""
        if seed not in self._shown:
            self._shown[seed] = demonstrations(self.task, self.experiment.shots, seed)
        return self._shown[seed]

    def count(self, part: str) -> int:
        """How many examples a part has."""
        return len(self._part(part, self.experiment.seeds[0]))

    def examples(self, unit: PromptUnit) -> tuple[Example, ...]:
        """Those of a unit."""
        return self._part(unit.part, unit.seed)[unit.start : unit.stop]

    def _part(self, part: str, seed: int) -> tuple[Example, ...]:
        if part == "test":
            return test_examples(self.task, self.experiment.tests)
        return tuning_examples(self.task, self.experiment.tuning, seed, self.demonstrations(seed))

    def prompted(self, seed: int, text: str | None) -> Prompted:
        """A test input, or the calibration prompt, as it is put to the model."""
        shown = self.demonstrations(seed)
        # Alone, a test input is a text like any other: its first token is predicted from the BOS.
        pack = single if shown and self.experiment.mode == "single" else multi
        return pack(self.encoder, shown, text)


@lru_cache(maxsize=2)
def open_task(experiment: InContextLearning) -> OpenTask:
    """Load the model and the task."""
    task = load_task(experiment.task, experiment.location, variant=experiment.variant)
    model = open_model(experiment.model, experiment.dtype, experiment.device)
    experiment.check_rules(len(model.auxiliary.blocks))
    context = model.auxiliary.max_positions or CONTEXT
    return OpenTask(
        experiment=experiment,
        model=model,
        task=task,
        encoder=Encoder(tokenizer=model.tokenizer, prompt=task.prompt, context=context),
    )


@lru_cache(maxsize=1)
def _adapted(experiment: InContextLearning, method: str, rate: float, seed: int) -> Tuned:
    """The model after the demonstrations of a seed; of "multi", as many as fit into the context by themselves."""
    opened = open_task(experiment)
    rule = experiment.rule(method, rate)
    if rule is None:
        return learn_once(opened.model.auxiliary, None)
    if experiment.mode == "single":
        # Differences are not linear in the gradients that segments with one BOS add up there, see `dense`.
        pack = separate if isinstance(rule, LearningRule) and rule.takes_differences() else dense
        rows = pack(opened.encoder, opened.demonstrations(seed))
    else:
        rows = (opened.prompted(seed, None).sequences[0].training(),)
    return learn_once(opened.model.auxiliary, rule, **to_learn(rows, loss=experiment.loss))


@dataclass(frozen=True, kw_only=True)
class InContextResult:
    """One method in one setting."""

    method: str
    rates: tuple[float, ...]
    """One a seed; the same for all of them unless each chose its own."""
    curves: tuple[tuple[RatePoint, ...], ...]
    """What rates were chosen from: label cross-entropy on tuning examples, or the share of wrong answers to test
    examples, by rate; one curve for all seeds, or one a seed."""
    answers: tuple[Answers, ...]
    """One a seed."""


def _answers(seeds: Sequence[int], results: Sequence[UnitResult]) -> tuple[Answers, ...]:
    """The results of each seed together; units come seed by seed, as many of each."""
    size = len(results) // len(seeds)
    return tuple(_gather(seed, results[at * size : (at + 1) * size]) for at, seed in enumerate(seeds))


def _gather(seed: int, parts: Sequence[UnitResult]) -> Answers:
    return Answers(
        seed=seed,
        labels=tuple(label for part in parts for label in part["labels"]),
        scores=tuple(tuple(scores) for part in parts for scores in part["scores"]),
        calibration=tuple(parts[0]["calibration"]),
        num_tokens=tuple(parts[0]["tokens"]),
        demonstrations=fmean(count for part in parts for count in part["demonstrations"]),
        cut=sum(part["cut"] for part in parts),
    )
