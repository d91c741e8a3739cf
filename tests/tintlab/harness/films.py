# pyright: basic
"""A handful of reviews in the files and columns of SST-2, and both runners on them."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any, cast

from lm_eval import evaluate
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

from tintlab.data.scoring import Answers
from tintlab.harness import TASKS
from tintlab.kinds.icl import InContextLearning
from tintlab.study.runner import Runner
from tintlab.study.store import RecordStore
from tintlab.study.tuning import run_experiment

WORDS = (("a dull", "the tired", "a hollow and noisy"), ("a warm", "the witty", "a bright and tender"))
THINGS = ("film .", "tale of a keeper of the lamp .", "comedy , from its first scene to its last .", "boat")


def save_reviews(directory: Path) -> Path:
    """A directory with one directory a task; 24 reviews, half of them to train on."""
    rows = [
        {"text": f"{word} {thing}", "label": label}
        for label, words in enumerate(WORDS)
        for word, thing in product(words, THINGS)
    ]
    (directory / "sst2").mkdir(parents=True)
    for name, part in (("train", rows[::2]), ("test", rows[1::2])):
        (directory / "sst2" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return directory


def own_runner(directory: Path, **experiment: Any) -> dict[str, Answers]:
    """What `tint eval icl` finds, by method."""
    with Runner(RecordStore(directory)) as runner:
        results = run_experiment(InContextLearning(seeds=(0,), methods=("auxiliary", "tint"), **experiment), runner)
    return {result.method: result.answers[0] for result in results}


def manager(settings: dict[str, Any]) -> Any:
    """Our tasks alone, which spares the search for the harness's own."""
    return TaskManager(include_path=str(TASKS), include_defaults=False, metadata=settings)


def harness(
    model: Any, settings: dict[str, Any], *, shots: int = 0, **options: Any
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Metrics and samples of SST-2 in the harness."""
    tasks = manager(settings).load(["tint_sst2"])
    for task in tasks["tasks"].values():
        task.set_config("num_fewshot", shots)
        task.set_fewshot_seed(0)
    found: Any = cast(Any, evaluate)(model, task_dict=tasks, bootstrap_iters=0, **options)
    metrics = {name.removesuffix(",none"): value for name, value in found["results"]["tint_sst2"].items()}
    return metrics, found["samples"]["tint_sst2"]


def request(kind: Any, *arguments: Any, task: str | None = None) -> Instance:
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0, metadata=(task, 0, 1))
