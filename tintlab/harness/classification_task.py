"""The paper's tasks in the harness: prompts, label words and examples are those of `tint eval icl`.

A task's YAML names one of our descriptions, and all else is read from that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets import Dataset
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from tintformer.errors import InputError
from tintformer.storage.untrusted_files import user_path
from tintlab.data.scoring import Answers
from tintlab.data.tasks import Task, demonstrations, load_task, test_examples

SETTINGS = ("data", "tests", "variant")
"""What `dataset_kwargs` of a task, or `--metadata` for all tasks, may say: see `load_classification`."""


def load_classification(
    name: str, *, data: str | None = None, tests: int | None = None, variant: str | None = None
) -> tuple[Task, Dataset]:
    """A task and its test examples, those that `tint eval icl` takes, in its order.

    `data` is a directory with one directory a task, or the one of this task; `tests` None takes all that can be
    balanced; `variant` is another prompt of the description.
    """
    location = None
    if data is not None:
        location = user_path(data)
        location = location if location.stem == Path(name).stem else location / Path(name).stem
    task = load_task(name, location, variant=variant)
    examples = test_examples(task, tests)
    return task, Dataset.from_list([{"text": example.text, "label": example.label} for example in examples])


class ClassificationTask(ConfigurableTask):
    """A classification task: for every example the label words after its prompt, and after the calibration prompt."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.seed = 0
        super().__init__(config={key: value for key, value in config.items() if key != "class"})

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        given = {name: self.config.metadata[name] for name in SETTINGS if name in (self.config.metadata or {})}
        self.classification, tests = load_classification(self.config.dataset_path, **((dataset_kwargs or {}) | given))
        self.dataset = {"test": tests}

    def doc_to_text(self, doc: Any, doc_to_text: Any = None) -> str:
        return self.classification.prompt.filled(doc["text"])

    def doc_to_target(self, doc: Any, doc_to_target: Any = None) -> int:
        return doc["label"]

    def doc_to_choice(self, doc: Any, doc_to_choice: Any = None) -> list[str]:
        return list(self.classification.prompt.words)

    def set_fewshot_seed(self, seed: int | None = None) -> None:
        """The seed of the demonstrations, as `tint eval icl --seeds` means it."""
        self.seed = seed or 0

    def fewshot_context(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        doc: Any,
        num_fewshot: int,
        system_instruction: str | None = None,
        apply_chat_template: bool = False,
        **kwargs: Any,
    ) -> str:
        """Demonstrations and the test input in one text, as in `--mode multi`."""
        if system_instruction or apply_chat_template:
            raise InputError(f"{self.config.task} has the paper's prompts; leave out chat template and instruction")
        prompt, front = self.classification.prompt, ""
        for example in demonstrations(self.classification, num_fewshot, self.seed):
            whole, _, _ = prompt.continued(prompt.filled(example.text), example.label)
            front += whole + prompt.separator
        return front + self.doc_to_text(doc)

    def construct_requests(self, doc: Any, ctx: Any, **kwargs: Any) -> list[Instance]:
        """The space before a label word stands in the context: a tokenizer may make it a token of its own."""
        kwargs = {key: value for key, value in kwargs.items() if key == "metadata"}
        prompt, question = self.classification.prompt, self.doc_to_text(doc)
        front = ctx.removesuffix(question)
        pairs: list[tuple[str, str]] = []
        for asked in (question, prompt.calibration_prompt):
            for label in range(len(prompt.words)):
                whole, start, _ = prompt.continued(asked, label)
                pairs.append((front + whole[:start], whole[start:]))
        return [
            Instance(request_type="loglikelihood", doc=doc, arguments=pair, idx=number, **kwargs)
            for number, pair in enumerate(pairs)
        ]


def process_results(doc: Any, results: list[tuple[float, bool]]) -> dict[str, float]:
    """Accuracy with and without the paper's calibration, and the cross-entropy of the label in nats."""
    scores = tuple(score for score, _ in results)
    words = len(scores) // 2
    answers = Answers(
        seed=0,
        labels=(doc["label"],),
        scores=(scores[:words],),
        calibration=scores[words:],
        num_tokens=(1,) * words,
        demonstrations=0,
        cut=0,
    )
    return {
        "acc": answers.right()[0],
        "acc_calibrated": answers.calibrated().right()[0],
        "cross_entropy": answers.cross_entropy()[0],
    }
