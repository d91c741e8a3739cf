# pyright: basic
"""Reading against learning: traces against the Hugging Face model, measures of made-up answers, and a whole run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from praise import save_task
from typer.testing import CliRunner

import tintformer as tint
import tintlab as lab
from tintformer.cli.app import app
from tintformer.storage.loading import load
from tintlab.data.models import open_untrained
from tintlab.data.prompts import Role
from tintlab.data.tasks import Example
from tintlab.kinds.arrangements import arranged, shuffled
from tintlab.kinds.compare_measures import MEASURES, SIMILARITIES, SIZES, Sample, compare_estimates
from tintlab.kinds.compare_results import comparison_figures, comparison_tables
from tintlab.kinds.compare_traces import similarities, trace_alone, trace_reading
from tintlab.kinds.compare_units import ComparisonUnit, UnitRun
from tintlab.kinds.comparison import Comparison
from tintlab.show.intervals import Estimate, two_way_bootstrap

EXAMPLES = tuple(Example(f"text {number}", number % 2) for number in range(8))
SMALL = [
    "--tests",
    "2",
    "--tuning",
    "2",
    "--seeds",
    "0,1",
    "--shots",
    "2,3",
    "--orders",
    "2",
    "--learning-rate",
    "1e-3",
]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_task(tmp_path_factory.mktemp("praise"))


@pytest.fixture(scope="module")
def experiment(task: Path) -> Comparison:
    return Comparison(model="nano-llama", task=str(task), shots=(3,), tests=4, tuning=2, seeds=(0,), rates=(1e-3,))


def unit_run(experiment: Comparison) -> UnitRun:
    unit = ComparisonUnit(
        method="tint", rate=1e-3, weights="pretrained", shots=3, labels="true", seed=0, part="test", start=0, stop=4
    )
    return UnitRun(experiment, unit)


def test_traces_are_those_of_the_hugging_face_model(experiment: Comparison) -> None:
    """Outputs of blocks and maps of attention at the query, read in full or without the demonstrations."""
    run = unit_run(experiment)
    prompts = [each.read[0] for each in run._asked()]
    model = load("nano-llama").model
    model.set_attn_implementation("eager")
    read, alone = trace_reading(run.plain, prompts), trace_alone(run.plain, prompts)
    for number, prompt in enumerate(prompts):
        sequence = prompt.sequences[0]
        test = [at for at, role in enumerate(sequence.roles) if role == Role.TEST]
        without = [at for at, role in enumerate(sequence.roles) if role not in (Role.CONTEXT, Role.LABEL)]
        for trace, kept in ((read, range(len(sequence))), (alone, without)):
            places = torch.tensor([list(kept)])
            ids = torch.tensor(sequence.ids)[places]
            with torch.no_grad():
                out = model(ids, position_ids=places, output_hidden_states=True, output_attentions=True)
            query, own = list(kept).index(test[-1]), [list(kept).index(at) for at in test]
            for block, expected in enumerate(out.hidden_states[1:-1]):  # the last has the final norm on top
                torch.testing.assert_close(trace.block_output[block][number], expected[0, query], atol=2e-4, rtol=1e-3)
            for block, weights in enumerate(out.attentions):
                expected = weights[0, :, query, own]
                found = trace.attention_map[block][number, :, : len(own)]
                torch.testing.assert_close(found, expected / expected.sum(-1, keepdim=True), atol=1e-4, rtol=1e-3)


def test_changes_are_alike_where_learning_is_reading(experiment: Comparison) -> None:
    """A trace beside itself has cosine 1, one that changes nothing none, and sizes are those of the change."""
    run = unit_run(experiment)
    prompts = [each.read[0] for each in run._asked()]
    plain, read = trace_alone(run.plain, prompts), trace_reading(run.plain, prompts)
    found = similarities(run.model, plain, read, read, {})
    for name in ("attention_output", "attention_map", "block_output", "attention_scores"):
        # What the first block attends to depends on the input's own tokens alone, which no context changes.
        first = int(name == "attention_map")
        assert torch.isnan(found[name][:first]).all()
        torch.testing.assert_close(found[name][first:], torch.ones_like(found[name][first:]))
    torch.testing.assert_close(found["read_size"], found["learnt_size"])
    assert torch.isnan(found["implicit_update"]).all(), "nothing was learnt"
    nothing = similarities(run.model, plain, read, plain, {})
    assert torch.isnan(nothing["block_output"]).all() and not nothing["learnt_size"].any()


def test_an_untrained_model_has_the_same_shape_and_nothing_of_the_weights() -> None:
    trained, drawn = load("nano-gpt2").model, open_untrained("nano-gpt2", "float32", None, 0).model
    theirs = dict(drawn.named_parameters())
    assert {name: value.shape for name, value in trained.named_parameters()} == {
        name: value.shape for name, value in theirs.items()
    }
    assert not torch.equal(trained.transformer.wte.weight, drawn.transformer.wte.weight)
    other = open_untrained("nano-gpt2", "float32", None, 1).model
    assert not torch.equal(other.transformer.wte.weight, drawn.transformer.wte.weight)
    again = open_untrained("nano-gpt2", "float32", None, 0).model
    assert torch.equal(again.transformer.wte.weight, drawn.transformer.wte.weight)


@pytest.mark.parametrize("count", range(2, 9))
def test_shuffled_labels_are_the_same_labels_elsewhere(count: int) -> None:
    for seed in range(5):
        found = shuffled(EXAMPLES[:count], seed, 2)
        assert [each.text for each in found] == [each.text for each in EXAMPLES[:count]]
        assert sorted(each.label for each in found) == sorted(each.label for each in EXAMPLES[:count])
        kept = sum(one.label == other.label for one, other in zip(found, EXAMPLES, strict=False))
        assert kept <= -(-count // 2)
        assert found == shuffled(EXAMPLES[:count], seed, 2)


def test_an_order_has_all_demonstrations() -> None:
    orders = [arranged(EXAMPLES, 0, order, "true", 2) for order in range(4)]
    assert orders[0] == EXAMPLES and len(set(orders)) == 4
    assert all(set(order) == set(EXAMPLES) for order in orders)
    assert {each.text for each in arranged(EXAMPLES, 0, 2, "shuffled", 2)} == {each.text for each in EXAMPLES}


def sample(read: np.ndarray, learnt: np.ndarray, zero: np.ndarray, cosines: float = 0.5) -> Sample:
    seeds, _, inputs, _ = read.shape
    blocks = {name: np.full((seeds, inputs, 3), cosines) for name in (*SIMILARITIES, *SIZES)}
    return Sample(labels=read[0, 0].argmax(-1), zero=zero, read=read, learnt=learnt, blocks=blocks)


def made_up(seed: int = 0, orders: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(2, orders, 20, 3))


def test_measures_of_what_is_the_same() -> None:
    read = made_up()
    found = sample(read, read + 1.0, made_up(1)[:, 0]).measures()  # a constant on all label words changes no answer
    assert list(found) == list(MEASURES)
    for name in ("agreement", "correlation", "change_correlation", "kl_removed"):
        assert found[name].value == pytest.approx(1.0) and found[name].low == pytest.approx(1.0), name
    assert found["kl_learnt"].value == pytest.approx(0.0, abs=1e-12) and found["kl_zero"].value > 0.1
    assert found["order_read"] == found["order_learnt"] and found["order_read"].value > 0.1
    assert found["block_share"].value == pytest.approx(0.25)
    assert 0 < found["flips_read"].value <= 1


def test_measures_of_what_has_nothing_in_common_and_of_one_order() -> None:
    found = sample(made_up(0, 1), made_up(2, 1), made_up(1, 1)[:, 0], -0.5).measures()
    assert abs(found["correlation"].value) < 0.5 and found["correlation"].low < 0 < found["correlation"].high
    assert found["block_share"].value == 0.0, "a change the other way is no share"
    assert "order_read" not in found


def test_where_learning_diverged_it_has_no_answer() -> None:
    read, learnt = made_up(), made_up(2)
    learnt[:, :, 0] = -np.inf
    found = sample(read, learnt, made_up(1)[:, 0]).measures()
    assert all(np.isfinite(estimate.value) for estimate in found.values())
    assert found["accuracy_learnt"].value <= 0.95


def test_intervals_draw_seeds_and_units() -> None:
    constant = two_way_bootstrap([np.full((3, 5), 2.0)])
    assert (constant.value, constant.low, constant.high) == (2.0, 2.0, 2.0)
    between_seeds = np.array([[0.0] * 50, [1.0] * 50])
    assert two_way_bootstrap([between_seeds]) == Estimate(value=0.5, low=0.0, high=1.0)
    with_gaps = np.array([[1.0, np.nan, 3.0], [1.0, 2.0, np.nan]])
    assert two_way_bootstrap([with_gaps]).value == pytest.approx((2.0 + 1.5) / 2)
    assert np.isnan(two_way_bootstrap([np.full((2, 3), np.nan)]).value)
    one, other = Estimate(value=1.0, low=0.9, high=1.1), Estimate(value=0.5, low=0.4, high=0.95)
    assert compare_estimates(one, other) == "no clear difference"
    assert compare_estimates(one, Estimate(value=0.5, low=0.4, high=0.6)) == "higher"


@pytest.fixture(scope="module")
def done(task: Path, tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """What the command prints as JSON, and where it has kept its records."""
    place = tmp_path_factory.mktemp("compared")
    words = ["compare", tiny_model, str(task), *SMALL, "-o", str(place), "--json"]
    ended = CliRunner().invoke(app, words, catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return place, json.loads(ended.stdout)


def test_a_whole_run_beside_its_controls(done: tuple[Path, dict]) -> None:
    place, printed = done
    (cases,) = printed["results"]
    assert [(each["weights"], each["labels"], each["shots"]) for each in cases] == [
        *(("pretrained", labels, shots) for shots in (2, 3) for labels in ("true", "shuffled")),
        *(("untrained", "true", shots) for shots in (2, 3)),
    ]
    for case in cases:
        assert (
            list(case["measures"]) == list(MEASURES) and case["inputs"] == 2 and case["demonstrations"] == case["shots"]
        )
        assert all(-1.001 <= case["measures"][name]["value"] <= 1.001 for name in SIMILARITIES)
        assert all(len(case["blocks"][name]) == 2 for name in (*SIMILARITIES, *SIZES))
        # A summed loss with a segment for each demonstration knows no order but by rounding.
        assert case["measures"]["order_learnt"]["value"] < 1e-3
        assert case["measures"]["learnt_size"]["value"] > 0 and case["measures"]["read_size"]["value"] > 0
    assert cases[2]["measures"]["order_read"]["value"] > 1e-3
    name = printed["run"]
    assert {path.name for path in place.glob("*.png")} == {f"{name}-blocks.png", f"{name}-demonstrations.png"}
    assert "share of reading's change along learning's" in (place / f"{name}.md").read_text()


@pytest.mark.usefixtures("unrendered")
def test_what_is_done_is_not_done_again(done: tuple[Path, dict], task: Path, tiny_model: str) -> None:
    """Neither by the command that makes tables, nor from Python."""
    place, printed = done
    ended = CliRunner().invoke(app, ["eval", "table", str(place)], catch_exceptions=False)
    assert ended.exit_code == 0 and "lies along the change that learning" in " ".join(ended.stdout.split())
    records = {path: path.stat().st_mtime_ns for path in (place / "records").rglob("*.json")}
    settings = {"tests": 2, "tuning": 2, "seeds": (0, 1), "shots": (2, 3), "orders": 2, "learning_rate": 1e-3}
    result = lab.compare(tiny_model, str(task), output=place, **settings)
    assert {path: path.stat().st_mtime_ns for path in (place / "records").rglob("*.json")} == records
    value = printed["results"][0][0]["measures"]["block_share"]["value"]
    rows = [row for row in result.records() if row["measure"] == "block_share" and row["block"] is None]
    assert rows[0]["value"] == pytest.approx(value) and rows[0]["case"] == "the model"
    assert "lies along the change that learning makes" in repr(result) and len(result.tables()) == 3
    # Several tasks begin with a line each; here the same one stands for two.
    twice = list(zip(result.experiments * 2, result.cases * 2, strict=True))
    assert comparison_figures(twice)["tasks"].startswith(b"\x89PNG") and not comparison_figures(twice[:1])["tasks"]
    overview, likeness, *others = comparison_tables(twice)
    assert len(overview.rows) == 2 and [table.title for table in others][1:] == [t.title for t in result.tables()][1:]
    most = printed["results"][0][2]["measures"]["block_share"]["value"]  # of three demonstrations
    assert overview.rows[0]["n"] == "2 x 2" and overview.rows[0]["along learning's"].startswith(f"{most:.1%} [")
    assert likeness.rows[0]["the model"] == f"{most:.3f} to {most:.3f}"
    verdict = likeness.rows[0]["higher / lower than untrained"]
    against = next(row["against it"] for row in others[0].rows if "along learning's" in row["measure"])
    assert verdict == {"higher": "2 / 0 of 2", "lower": "0 / 2 of 2"}.get(against, "0 / 0 of 2")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"methods": ("auxiliary",)}, "auxiliary learns nothing that reading could be compared with"),
        ({"shots": (1,)}, "shots=1 must be a whole number from 2"),
        ({"shots": ()}, "there are no shots"),
        ({"engine": "reference"}, "use engine=fast"),
        ({"controls": ("none",)}, "controls"),
        ({"tuning": 0}, "tuning=0"),
    ],
)
def test_comparisons_that_cannot_be_made(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(tint.InputError, match=message):
        Comparison(model="nano-llama", task="sst2", **wrong)


def test_texts_that_leave_no_room(task: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (task.parent / "test.jsonl").read_text().splitlines()]
    long = [row | {"text": row["text"] * 60 + str(number)} for number, row in enumerate(rows)]
    for name in ("train", "test"):
        lines = [json.dumps(row | {"text": f"{name} {row['text']}"}) for row in long]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    with pytest.raises(tint.InputError, match="leaves room for 2 demonstrations in the context of nano-llama"):
        lab.compare("nano-llama", str(task), data=tmp_path, tests=2, tuning=2, seeds=[0], shots=2, learning_rate=1e-3)


@pytest.mark.parametrize("jobs", [0, "x"])
def test_a_number_of_processes_that_is_none(jobs: Any) -> None:
    with pytest.raises(tint.InputError, match=f"jobs={jobs!r} must be"):
        lab.compare("nano-llama", "sst2", jobs=jobs)
