"""In-context learning: learn from demonstrations or from the test input itself, then choose a label word."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from tintformer.errors import DivergenceError, InputError
from tintformer.experiments.methods import METHODS, check_rules, find_methods

if TYPE_CHECKING:
    from torch import Tensor

    from tintformer.auxiliary.description import Auxiliary
    from tintformer.experiments.packing import Loss, Packed, Prompted
    from tintformer.experiments.prompts import Encoder
    from tintformer.experiments.tasks.task import Example, Task
    from tintformer.rule.learning_rule import LearningRule
    from tintformer.tuned import Tuned

Mode = Literal["single", "multi"]
CONTEXT = 2048
"""Of models that have no longest one."""
AT_ONCE = 40
"""Examples of a unit. More make a kill lose more; fewer leave rows of very different lengths in one batch."""
ROWS = 8
"""Sequences that run together. More want more memory, fewer are slower."""


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
    engine: str = "fast"
    dtype: str = "float32"
    threads: int = 1

    def __post_init__(self) -> None:
        find_methods(self.methods)
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
        rule = self._rule(unit)
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

    def run(self, unit: ClassificationUnit) -> dict[str, Any]:
        """Log-probabilities of all label words for a few examples, and for the calibration prompt."""
        import torch

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

    def _rule(self, unit: ClassificationUnit) -> LearningRule | None:
        method = METHODS[unit.method]
        return None if method.preset is None else method.rule(unit.rate, layers=self.layers, steps=self.steps)


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


@dataclass(frozen=True, eq=False, kw_only=True)
class Scorer:
    """Learns as a unit says, and scores label words."""

    experiment: InContextLearning
    unit: ClassificationUnit

    def scores(self, asked: Sequence[Prompted]) -> list[list[float]]:
        """The log-probability of every label word, for each input."""
        order = sorted(range(len(asked)), key=lambda at: len(asked[at].sequences[0]))  # little padding
        found: dict[int, list[float]] = {}
        for start in range(0, len(order), ROWS):
            here = order[start : start + ROWS]
            found.update(zip(here, self._batch([asked[at] for at in here]), strict=True))
        return [found[at] for at in range(len(asked))]

    def _batch(self, asked: Sequence[Prompted]) -> list[list[float]]:
        """One sequence an input where every label word is one token: their logits stand in one place."""
        import torch

        words = len(asked[0].answers)
        short = all(len(answer) == 1 for each in asked for answer in each.answers)
        sequences = [sequence for each in asked for sequence in (each.sequences[:1] if short else each.sequences)]
        try:
            token_loss, logits = self._predict(sequences, logits=short)
        except DivergenceError:
            return [[-math.inf] * words for _ in asked]
        if not short:
            return (-token_loss.double().sum(1)).view(len(asked), words).tolist()
        assert logits is not None
        ids = torch.tensor([[answer[0] for answer in each.answers] for each in asked])
        return logits.double().log_softmax(-1).gather(1, ids).tolist()

    def _predict(self, sequences: Sequence[Packed], *, logits: bool) -> tuple[Tensor, Tensor | None]:
        """Losses of the answers by row, and the logits that predict their first tokens."""
        from tintformer.experiments.packing import to_learn, to_score
        from tintformer.tint import Tint

        experiment, auxiliary = self.experiment, open_classification(self.experiment).auxiliary
        rule = experiment._rule(self.unit)  # pyright: ignore[reportPrivateUsage]
        wanted: Literal["evaluation", "none"] = "evaluation" if logits else "none"
        if rule is None or self._learns_once:
            out = self._tuned().score(**to_score(self._visible(sequences)), logits=wanted)
        else:
            test_text = experiment.test_text or experiment.shots == 0
            learnt = to_learn(sequences, loss=experiment.loss, test_text=test_text)
            out = Tint(auxiliary, rule, engine=experiment.engine)(**learnt, logits=wanted)
        return out.token_loss, out.logits

    @property
    def _learns_once(self) -> bool:
        """Whether demonstrations alone are learnt from, so that one update serves all inputs."""
        experiment = self.experiment
        return experiment.shots > 0 and not experiment.test_text and experiment.engine == "fast"

    def _visible(self, sequences: Sequence[Packed]) -> Sequence[Packed]:
        """What the answer can see: segments of demonstrations are invisible to the test input's."""
        packed = self.experiment.shots > 0 and self.experiment.mode == "single"
        return [sequence.alone() for sequence in sequences] if packed else sequences

    def _tuned(self) -> Tuned:
        unit = self.unit
        return _learn_once(self.experiment, unit.method, unit.rate, unit.seed)


@lru_cache(maxsize=1)
def _learn_once(experiment: InContextLearning, method: str, rate: float, seed: int) -> Tuned:
    """The model after the demonstrations of a seed; of "multi", as many as fit into the context by themselves."""
    from tintformer.experiments.packing import separate, to_learn
    from tintformer.tint import Tint
    from tintformer.tuned import Tuned

    opened = open_classification(experiment)
    found = METHODS[method]
    if found.preset is None:
        return Tuned.untrained(opened.auxiliary)
    rule = found.rule(rate, layers=experiment.layers, steps=experiment.steps)
    if experiment.mode == "single":
        rows = separate(opened.encoder, opened.demonstrations(seed))
    else:
        rows = (opened.prompted(seed, None).sequences[0].training(),)
    keywords = to_learn(rows, loss=experiment.loss)
    return Tint(opened.auxiliary, rule).adapt(**keywords)
