# pyright: basic
"""The harness's numbers are our own runner's, example by example."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import pytest
from cases import some
from films import harness, manager, own_runner, save_reviews
from lm_eval.models.huggingface import HFLM
from places import SHARED
from tiny import save_model

from tintformer.errors import InputError
from tintformer.learning.text import find_tokenizer
from tintformer.storage.loading import load
from tintlab.data.scoring import Answers
from tintlab.data.tasks import read_task_description
from tintlab.harness import TintLM

SEVEN = ("agnews", "amazon", "cr", "mpqa", "mr", "sst2", "subj")
EXACT = 1e-9
ROUNDING = 2e-4


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_reviews(tmp_path_factory.mktemp("reviews"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_model(tmp_path_factory.mktemp("tiny")))


def check_equal(answers: Answers, metrics: dict[str, float], samples: list[dict[str, Any]], tolerance: float) -> None:
    """The same examples in the same order, scores and predictions of each of them, and the same averages."""
    assert [sample["target"] for sample in samples] == list(answers.labels)
    for sample, scores in zip(samples, answers.scores, strict=True):
        found = [score for score, _ in sample["filtered_resps"]]
        assert found == pytest.approx([*scores, *answers.calibration], abs=tolerance, rel=0)
    assert [sample["acc"] for sample in samples] == answers.right()
    assert [sample["acc_calibrated"] for sample in samples] == answers.calibrated().right()
    assert metrics["acc"] == pytest.approx(fmean(answers.right()), abs=1e-12)
    assert metrics["acc_calibrated"] == pytest.approx(fmean(answers.calibrated().right()), abs=1e-12)
    assert metrics["cross_entropy"] == pytest.approx(fmean(answers.cross_entropy()), abs=tolerance)


@pytest.mark.parametrize("model", some(["tiny", "nano-llama"]))
def test_every_example_has_the_scores_of_our_own_runner(model: str, tiny: str, reviews: Path, tmp_path: Path) -> None:
    name, rate = (tiny, 3e-3) if model == "tiny" else (model, 1e-3)
    own = own_runner(
        tmp_path, model=name, task="sst2", location=reviews / "sst2", tests=12, rates=(rate,), dtype="float64"
    )
    assert own["auxiliary"].scores != own["tint"].scores
    for method, learning_rate in (("auxiliary", 0), ("tint", rate)):
        lm = TintLM(pretrained=name, learning_rate=learning_rate, dtype="float64", batch_size=5)
        check_equal(own[method], *harness(lm, {"data": str(reviews), "tests": 12}), EXACT)


def test_a_space_that_is_a_token_of_its_own_is_learnt_from_and_not_scored(
    tiny: str, reviews: Path, tmp_path: Path
) -> None:
    setting: dict[str, Any] = {"variant": "symbols", "tests": 4}
    own = own_runner(
        tmp_path, model=tiny, task="sst2", location=reviews / "sst2", rates=(3e-3,), dtype="float64", **setting
    )
    assert own["tint"].num_tokens == (1, 1)
    lm = TintLM(pretrained=tiny, learning_rate=3e-3, dtype="float64")
    assert len(lm.tok_encode(" @", add_special_tokens=False)) == 2
    check_equal(own["tint"], *harness(lm, {"data": str(reviews), **setting}), EXACT)


@pytest.mark.parametrize("method", some(["tint", "auxiliary"]))
def test_demonstrations_are_those_of_our_own_runner(method: str, reviews: Path, tmp_path: Path) -> None:
    own = own_runner(
        tmp_path,
        model="nano-llama",
        task="sst2",
        location=reviews / "sst2",
        tests=4,
        rates=(1e-4,),
        shots=3,
        mode="multi",
        test_text=True,
        dtype="float64",
    )
    lm = TintLM(pretrained="nano-llama", learning_rate=1e-4 if method == "tint" else 0, dtype="float64")
    found = harness(lm, {"data": str(reviews), "tests": 4}, shots=3)
    check_equal(own[method], *found, EXACT)


def test_other_models_of_the_harness_run_the_tasks(reviews: Path, tmp_path: Path) -> None:
    own = own_runner(tmp_path, model="nano-llama", task="sst2", location=reviews / "sst2", tests=6, rates=(1e-4,))
    lm: Any = cast(Any, HFLM)(pretrained=load("nano-llama").model, tokenizer=find_tokenizer("nano-llama"))
    check_equal(own["auxiliary"], *harness(lm, {"data": str(reviews), "tests": 6}), ROUNDING)


def test_limit_takes_the_examples_of_a_smaller_run(reviews: Path, tmp_path: Path) -> None:
    own = own_runner(tmp_path, model="nano-gpt2", task="sst2", location=reviews / "sst2", tests=6, rates=(1e-4,))
    lm = TintLM(pretrained="nano-gpt2", learning_rate=1e-4)
    check_equal(own["tint"], *harness(lm, {"data": str(reviews), "tests": 12}, limit=6), ROUNDING)


def test_sst2_itself(tmp_path: Path) -> None:
    data = SHARED / "data" / "icl"
    if not (data / "sst2").exists():
        pytest.skip("sst2 is not here; put it into ../shared/data/icl/sst2")
    own = own_runner(tmp_path, model="nano-llama", task="sst2", location=data / "sst2", tests=24, rates=(1e-4,))
    lm = TintLM(pretrained="nano-llama", learning_rate=1e-4)
    check_equal(own["tint"], *harness(lm, {"data": str(data), "tests": 24}), ROUNDING)


def test_a_diverged_model_is_right_nowhere(reviews: Path, caplog: pytest.LogCaptureFixture) -> None:
    lm = TintLM(pretrained="nano-gpt2", learning_rate=1e38)
    metrics, _ = harness(lm, {"data": str(reviews), "tests": 4})
    assert metrics["acc"] == metrics["acc_calibrated"] == 0 and metrics["cross_entropy"] == float("inf")
    assert "learning diverged on 5 of 5 contexts" in caplog.text


def test_the_tasks_are_the_shipped_descriptions(tmp_path: Path) -> None:
    for name in (*SEVEN, "yelp"):
        labels = range(len(read_task_description(name)[0].labels))
        rows = "".join(json.dumps({"text": f"text {label}", "label": label}) + "\n" for label in labels)
        (tmp_path / name).mkdir()
        for split in ("train", "test"):
            (tmp_path / name / f"{split}.jsonl").write_text(rows)
    tasks = manager({"data": str(tmp_path), "tests": 2})
    assert tasks.all_subtasks == sorted(f"tint_{name}" for name in (*SEVEN, "yelp"))
    tagged = tasks.load("tint_paper")["tasks"]
    assert sorted(tagged) == [f"tint_{name}" for name in SEVEN]
    for name, task in tagged.items():
        prompt = read_task_description(name.removeprefix("tint_"))[0].own_prompt()
        doc = task.test_docs()[0]
        requests = task.construct_requests(doc, task.fewshot_context(doc, 0), metadata=(name, 0, 1))
        asked = [
            (f"{question} ", word)
            for question in (prompt.filled(doc["text"]), prompt.calibration_prompt)
            for word in prompt.words
        ]
        assert [request.args for request in requests] == asked


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": "nowhere"}, "nowhere/sst2 is not there"),
        ({"tests": 100}, "n=100 over 2 labels, but sst2 has 6 examples"),
        ({"variant": "loud"}, "sst2.yaml has no variant 'loud'"),
    ],
)
def test_bad_settings_are_one_line(settings: dict[str, Any], message: str, reviews: Path) -> None:
    with pytest.raises(InputError, match=message):
        manager({"data": str(reviews)} | settings).load("tint_sst2")


def test_instructions_are_refused(reviews: Path) -> None:
    lm = TintLM(pretrained="nano-gpt2", learning_rate=0)
    with pytest.raises(InputError, match="tint_sst2 has the paper's prompts"):
        harness(lm, {"data": str(reviews), "tests": 4}, system_instruction="Be kind.")
