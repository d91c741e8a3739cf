"""In-context learning: learn from demonstrations or from the test input itself, then choose a label word."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from tintformer.errors import InputError
from tintformer.experiments.choosing import ChosenOn, check_chosen_on, rates_tried
from tintformer.experiments.methods import METHODS, check_rules, find_methods

if TYPE_CHECKING:
    from tintformer.auxiliary.description import Auxiliary
    from tintformer.experiments.learning import How
    from tintformer.experiments.packing import Loss, Prompted
    from tintformer.experiments.prompts import Encoder
    from tintformer.experiments.tasks.task import Example, Task

Mode = Literal["single", "multi"]
CONTEXT = 2048
"""Of models that have no longest one."""
AT_ONCE = 40
"""Examples of a unit. More make a kill lose more; fewer leave rows of very different lengths in one batch."""


@dataclass(frozen=True, kw_only=True)
class InContextLearning:
    """One model on one task in one setting, by several methods, over several seeds."""

    model: str
    task: str
    """A shipped description or a YAML file."""
    location: Path | None = None
    """Where the examples are, instead of where the description says."""
    variant: str | None = None
    """Another prompt of the description."""
    methods: tuple[str, ...] = ("auxiliary", "fine-tuning", "tint")
    shots: int = 0
    """Demonstrations; with none the test input itself is trained on, up to its label."""
    mode: Mode = "single"
    """`single`: demonstrations are independent training examples. `multi`: one text with the test input at its end."""
    loss: Loss = "full"
    """Train on the `label` words of demonstrations, or on all tokens (`full`)."""
    test_text: bool = False
    """With demonstrations and the full loss, also train on the text of the test input, as the authors do. Every test
    input then needs a pass of its own."""
    layers: int | None = None
    steps: int = 1
    seeds: tuple[int, ...] = (0, 1, 2)
    """Each draws its own demonstrations; without any there is nothing to draw, and one is enough."""
    tests: int | None = 200
    """Test examples, as many of each label; None: all. With 200 one standard error is about 3 points."""
    tuning: int = 40
    """Examples of the train pool for each seed that choose the rate; they are neither trained on nor tested."""
    rates: tuple[float, ...] | None = None
    """To choose from, or the one to use; None: a grid that finds its own range."""
    chosen_on: ChosenOn = "tuning"
    """Where rates are chosen. `tuning`: by label cross-entropy, one rate for all seeds. `test`: by accuracy on the test
    examples themselves, for each seed, as the authors do; every gain is then optimistic."""
    engine: str = "fast"
    dtype: str = "float32"
    threads: int = 1

    def __post_init__(self) -> None:
        find_methods(self.methods)
        check_chosen_on(self.chosen_on)
        if self.mode not in get_args(Mode):
            raise InputError(f"mode={self.mode!r} is unknown; choose one of {', '.join(get_args(Mode))}")
        if self.shots < 0:
            raise InputError(f"shots={self.shots} must be 0 or more")
        if self.shots == 0 and self.loss == "label":
            raise InputError("without demonstrations there is no label to train on; take --loss full")
        if not self.seeds:
            raise InputError("there is no seed; give at least one")

    def depends_on_seed(self, method: str) -> bool:
        """Whether demonstrations make a difference: an untrained model does not see those of `single`."""
        return self.shots > 0 and not (METHODS[method].preset is None and self.mode == "single")

    def identity(self, unit: ClassificationUnit) -> dict[str, Any]:
        """What decides the result of a unit."""
        from tintformer.experiments.identity import code_version

        opened = open_classification(self)
        rule = self.how(unit)
        return {
            "experiment": "in-context learning",
            "model": opened.identity,
            "dtype": self.dtype,
            "rule": rule and asdict(rule),
            "engine": rule and self.engine,
            "task": opened.task.identity,
            "shots": self.shots,
            "mode": self.mode,
            "loss": rule and self.loss,
            "test_text": rule and self.test_text,
            "seed": unit.seed if self.depends_on_seed(unit.method) or unit.part == "tuning" else None,
            "part": unit.part,
            "tuning": self.tuning if unit.part == "tuning" else None,
            "tests": self.tests if unit.part == "test" else None,
            "examples": [unit.start, unit.stop],
            "threads": self.threads,
            "code": code_version(),
        }

    def num_units(self) -> int:
        """About how many units there are."""
        tests = open_classification(self).count("test")
        scored, tuning = -(-tests // AT_ONCE), -(-(self.tuning if self.chosen_on == "tuning" else tests) // AT_ONCE)
        seeds = len(self.seeds) if self.shots else 1
        return seeds * sum(scored + tuning * rates_tried(self, name) for name in self.methods)

    def run(self, unit: ClassificationUnit) -> dict[str, Any]:
        """Log-probabilities of all label words for a few examples, and for the calibration prompt."""
        import torch

        from tintformer.experiments.scoring import Scorer

        torch.set_num_threads(self.threads)
        opened = open_classification(self)
        examples = opened.examples(unit)
        asked = [opened.prompted(unit.seed, example.text) for example in examples]
        scorer = Scorer(experiment=self, unit=unit)
        calibration = opened.prompted(unit.seed, None)
        *scores, empty = scorer.scores([*asked, calibration])
        return {
            "texts": [example.text for example in examples],
            "labels": [example.label for example in examples],
            "scores": scores,
            "calibration": empty,
            "tokens": [len(answer) for answer in calibration.answers],
            "demonstrations": [each.num_demonstrations for each in asked],
            "cut": sum(each.num_cut for each in asked),
        }

    def how(self, unit: ClassificationUnit) -> How | None:
        """How a unit learns; None where it does not."""
        return self.method_at(unit.method, unit.rate)

    def method_at(self, method: str, rate: float) -> How | None:
        """A method in this experiment's setting; None for one that does not learn."""
        return METHODS[method].how(rate, layers=self.layers, steps=self.steps)


@dataclass(frozen=True, kw_only=True)
class ClassificationUnit:
    """A few examples by one method at one rate, after the demonstrations of one seed."""

    method: str
    rate: float
    seed: int
    part: Literal["test", "tuning"]
    start: int
    stop: int


@dataclass(frozen=True, eq=False, kw_only=True)
class OpenClassification:
    """What a process needs to do units: the model, the prompts and the examples."""

    experiment: InContextLearning
    auxiliary: Auxiliary
    identity: dict[str, str]
    task: Task
    encoder: Encoder
    _shown: dict[int, tuple[Example, ...]] = field(default_factory=dict[int, "tuple[Example, ...]"])

    def demonstrations(self, seed: int) -> tuple[Example, ...]:
        """Those of a seed."""
        from tintformer.experiments.tasks.choose import demonstrations

        if seed not in self._shown:
            self._shown[seed] = demonstrations(self.task, self.experiment.shots, seed)
        return self._shown[seed]

    def count(self, part: str) -> int:
        """How many examples a part has."""
        return len(self._part(part, self.experiment.seeds[0]))

    def examples(self, unit: ClassificationUnit) -> tuple[Example, ...]:
        """Those of a unit."""
        return self._part(unit.part, unit.seed)[unit.start : unit.stop]

    def _part(self, part: str, seed: int) -> tuple[Example, ...]:
        from tintformer.experiments.tasks.choose import test_examples, tuning_examples

        if part == "test":
            return test_examples(self.task, self.experiment.tests)
        return tuning_examples(self.task, self.experiment.tuning, seed, self.demonstrations(seed))

    def prompted(self, seed: int, text: str | None) -> Prompted:
        """A test input, or the calibration prompt, as it is put to the model."""
        from tintformer.experiments.packing import multi, single

        shown = self.demonstrations(seed)
        # Alone, a test input is a text like any other: its first token is predicted from the BOS.
        pack = single if shown and self.experiment.mode == "single" else multi
        return pack(self.encoder, shown, text)


@lru_cache(maxsize=2)
def open_classification(experiment: InContextLearning) -> OpenClassification:
    """Load the model and the task."""
    from tintformer.experiments.models import open_model
    from tintformer.experiments.prompts import Encoder
    from tintformer.experiments.tasks.load import load_task

    task = load_task(experiment.task, experiment.location, variant=experiment.variant)
    model = open_model(experiment.model, experiment.dtype)
    check_rules(experiment.methods, len(model.auxiliary.blocks), layers=experiment.layers, steps=experiment.steps)
    context = model.auxiliary.max_positions or CONTEXT
    return OpenClassification(
        experiment=experiment,
        auxiliary=model.auxiliary,
        identity=model.identity,
        task=task,
        encoder=Encoder(tokenizer=model.tokenizer, prompt=task.prompt, context=context),
    )
