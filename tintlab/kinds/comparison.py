"""The comparison: the same demonstrations once read in the context and once learnt from, on the same test inputs.

Beside the model as it is stand two controls: demonstrations with shuffled labels, and an untrained model of the same
shape. Both go through everything that the model itself goes through.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from tintformer.errors import InputError, brief
from tintlab.data.models import untrained_identity
from tintlab.data.packing import TrainedTokens, multi
from tintlab.data.scoring import Answers
from tintlab.kinds.arrangements import LEAST, Labels
from tintlab.kinds.compare_measures import gather_samples
from tintlab.kinds.compare_units import ComparisonUnit, UnitRun, Weights
from tintlab.kinds.icl import AT_ONCE, InContextLearning, OpenTask, PromptUnit, open_task
from tintlab.methods.methods import METHODS
from tintlab.study.experiment import ChosenOn, Experiment, require_within
from tintlab.study.store import UnitResult

if TYPE_CHECKING:
    from tintformer.learning.rate_search import RatePoint
    from tintlab.show.intervals import Estimate

Control = Literal["shuffled", "untrained"]


@dataclass(frozen=True, kw_only=True)
class Comparison(Experiment):
    """One model on one task: reading demonstrations against learning from them, for several numbers of them."""

    kind: ClassVar[str] = "compare"
    version: ClassVar[int] = 1
    """Raised by hand when a number of these units changes."""

    methods: tuple[str, ...] = ("tint",)
    task: str
    """A shipped description or a YAML file."""
    variant: str | None = None
    """Another prompt of the description."""
    shots: tuple[int, ...] = (2, 4, 8)
    """Numbers of demonstrations; of each, as many as fit into the context before a test input, and two at least."""
    loss: TrainedTokens = "label"
    """Learn the `label` words of demonstrations, or all of their tokens (`full`)."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Each draws its own demonstrations, and its own untrained model."""
    tests: int | None = 100
    """Test inputs, as many of each label; None: all."""
    tuning: int = 40
    """Examples of the train pool for each seed that choose the rate; they are neither learnt from nor tested."""
    orders: int = 3
    """Orders of the demonstrations, the one in which they are drawn among them; with 1 nothing is said about order."""
    controls: tuple[Control, ...] = ("shuffled", "untrained")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("shots", "seeds"):
            if not getattr(self, name):
                raise InputError(f"there are no {name}; give one at least")
        for shots in self.shots:
            require_within("shots", shots, LEAST)
        require_within("tests", self.tests, 1)
        require_within("tuning", self.tuning, 1)
        require_within("orders", self.orders, 1, 100)
        if self.engine != "fast" or self.chosen_on != "tuning":
            raise InputError("a comparison learns once for many inputs, at rates from tuning examples; use engine=fast")
        idle = [name for name in self.methods if METHODS[name].preset is None]
        if idle:
            raise InputError(f"{idle[0]} learns nothing that reading could be compared with; choose another method")

    def opened(self) -> OpenTask:
        """Model, task and examples; the demonstrations of a smaller number are the first of the largest."""
        return open_task(
            InContextLearning(
                model=self.model,
                location=self.location,
                task=self.task,
                variant=self.variant,
                methods=self.methods,
                shots=max(self.shots),
                loss=self.loss,
                seeds=self.seeds,
                tests=self.tests,
                tuning=self.tuning,
                layers=self.layers,
                steps=self.steps,
                dtype=self.dtype,
                device=self.device,
                threads=self.threads,
            )
        )

    def identity(self, unit: ComparisonUnit) -> dict[str, Any]:
        opened, rule = self.opened(), self.rule(unit.method, unit.rate)
        model = opened.model.identity
        return {
            "model": model if unit.weights == "pretrained" else untrained_identity(model, unit.seed),
            "rule": rule and asdict(rule),
            "task": opened.task.identity,
            "shots": unit.shots,
            "most_shots": max(self.shots) if unit.part == "tuning" else None,  # tuning examples are none of them
            "loss": self.loss,
            "labels": unit.labels,
            "orders": self.orders,
            "seed": unit.seed,
            "part": unit.part,
            "tuning": self.tuning if unit.part == "tuning" else None,
            "tests": self.tests if unit.part == "test" else None,
            "examples": [unit.start, unit.stop],
        }

    def settings(self) -> list[tuple[Weights, int]]:
        """The model itself with every number of demonstrations, then the untrained one."""
        weights: list[Weights] = ["pretrained", *(["untrained"] if "untrained" in self.controls else [])]
        return [(each, shots) for each in weights for shots in sorted(set(self.shots))]

    def num_targets(self, setting: tuple[Weights, int]) -> int:
        return setting[1]

    def kinds(self, weights: Weights) -> tuple[Labels, ...]:
        """The labels that demonstrations are shown with; shuffled ones are a control of the model itself."""
        return ("true", "shuffled") if weights == "pretrained" and "shuffled" in self.controls else ("true",)

    def units(self, setting: tuple[Weights, int], method: str, rate: float, part: ChosenOn) -> list[ComparisonUnit]:
        """A few inputs each; rates are chosen with the true labels, and shuffled ones are learnt at the same rate."""
        weights, shots = setting
        _check_room(self)
        count = self.opened().count(part)
        return [
            ComparisonUnit(
                method=method,
                rate=rate,
                weights=weights,
                shots=shots,
                labels=labels,
                seed=seed,
                part=part,
                start=start,
                stop=min(start + AT_ONCE, count),
            )
            for labels in (self.kinds(weights) if part == "test" else ("true",))
            for seed in self.seeds
            for start in range(0, count, AT_ONCE)
        ]

    def run(self, unit: ComparisonUnit) -> UnitResult:
        """What the model says to a few inputs, and what reading and learning change inside of it."""
        import torch

        torch.set_num_threads(self.threads)
        return UnitRun(self, unit).result()

    def tuning_loss(self, setting: tuple[Weights, int], results: Sequence[UnitResult]) -> float:
        """Label cross-entropy after learning, on the tuning examples before which demonstrations fit."""
        found: list[float] = []
        for result in results:
            answers = Answers(
                seed=0,
                labels=tuple(result["labels"]),
                scores=tuple(map(tuple, result["learnt"])),
                calibration=(),
                num_tokens=(),
                demonstrations=0,
                cut=0,
            )
            found += answers.cross_entropy()
        if not found:
            raise _no_room(self)
        return fmean(found)

    def summary(
        self,
        setting: tuple[Weights, int],
        method: str,
        rate: float,
        curve: tuple[RatePoint, ...],
        results: Sequence[UnitResult],
    ) -> list[ComparedCase]:
        """One for each kind of labels."""
        weights, shots = setting
        kinds = self.kinds(weights)
        size = len(results) // len(kinds)
        found: list[ComparedCase] = []
        for at, labels in enumerate(kinds):
            mine = results[at * size : (at + 1) * size]
            part = size // len(self.seeds)
            seeds = [mine[number * part : (number + 1) * part] for number in range(len(self.seeds))]
            if not all(any(unit["inputs"] for unit in units) for units in seeds):
                raise _no_room(self)
            sample = gather_samples(seeds)
            if not len(sample.labels):
                raise _no_room(self)
            found.append(
                ComparedCase(
                    method=method,
                    weights=weights,
                    labels=labels,
                    shots=shots,
                    rate=rate,
                    curve=curve if labels == "true" else (),
                    inputs=len(sample.labels),
                    seeds=len(self.seeds),
                    left_out=sum(unit["asked"] for unit in seeds[0]) - len(sample.labels),
                    demonstrations=fmean(count for unit in mine for count in unit["demonstrations"]),
                    measures=sample.measures(),
                    blocks=sample.by_block(),
                )
            )
        return found

    def combined(self, summaries: Sequence[Sequence[list[ComparedCase]]]) -> list[ComparedCase]:
        """In the order of settings, methods and kinds of labels."""
        return [result for each in summaries for results in each for result in results]


@lru_cache(maxsize=8)
def _check_room(experiment: Comparison) -> None:
    """Refuse a context that is too short for the texts, before anything is computed."""
    opened, parts = experiment.opened(), get_args(ChosenOn)
    for seed, part in product(experiment.seeds, parts):
        unit = PromptUnit(method="", rate=0.0, seed=seed, part=part, start=0, stop=opened.count(part))
        shown = opened.demonstrations(seed)[:LEAST]
        prompts = (multi(opened.encoder, shown, example.text) for example in opened.examples(unit))
        if not any(each.num_demonstrations == LEAST for each in prompts):
            raise _no_room(experiment)


def _no_room(experiment: Comparison) -> InputError:
    return InputError(
        f"{brief(experiment.task)}: hardly a test input leaves room for {LEAST} demonstrations in the context of "
        f"{experiment.model}; take a model with a longer one, or a task of shorter texts"
    )


@dataclass(frozen=True, kw_only=True)
class ComparedCase:
    """What came out for one model, or a control of it, with one number of demonstrations."""

    method: str
    """By which it learnt, as `tint eval list` calls it."""
    weights: str
    """`pretrained` or `untrained`."""
    labels: str
    """`true` or `shuffled`."""
    shots: int
    """How many demonstrations were asked for."""
    rate: float
    """Of learning."""
    curve: tuple[RatePoint, ...]
    """What the rate was chosen from: label cross-entropy on tuning examples."""
    inputs: int
    """Test inputs, the same for every seed."""
    seeds: int
    """How many draws of demonstrations."""
    left_out: int
    """Test inputs before which there was no room for two demonstrations, with one seed at least."""
    demonstrations: float
    """How many were read and learnt from, on average."""
    measures: dict[str, Estimate]
    """By their names in `comparison_measures`."""
    blocks: dict[str, tuple[Estimate, ...]]
    """Similarities and sizes by block, from the first to the last."""

    @property
    def case(self) -> str:
        """What tables call it."""
        if self.weights == "untrained":
            return "untrained model"
        return "shuffled labels" if self.labels == "shuffled" else "the model"

    def estimates(self) -> Iterator[tuple[str, int | None, Estimate]]:
        """Every measure with its name and, where it is of one block, the number of that from 1."""
        yield from ((name, None, estimate) for name, estimate in self.measures.items())
        for name, blocks in self.blocks.items():
            yield from ((name, number, estimate) for number, estimate in enumerate(blocks, 1))
