# pyright: basic
"""The benchmark: its methods do what they claim, and a small run gives complete records; no times are judged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, get_type_hints

import pytest
import torch
from cases import make_model

from tintbench.cases import CASES, BenchError, SequenceCase, Settings, random_tokens
from tintbench.cases import make_model as make_shape
from tintbench.flops import MultiplyAdds
from tintbench.measuring import PROC, multiply_add_peak
from tintbench.setup import Setup, Skip
from tintbench.speed import measure, measure_peak
from tintbench.speed_tables import markdown, save, table_rows
from tintbench.stream_methods import ExplicitReader
from tintbench.timed_methods import methods_of, prepare
from tintformer import LearningRule, Tint, TintError, load
from tintlab.cli.bench import bench
from tintlab.methods.fine_tuning import Explicit, PerSample, all_names, block_names, rule_names

FAMILIES = ["gpt2", "opt", "llama-grouped"]
RATE = 2e-3


def quick(**knobs: Any) -> Settings:
    tiny = {"models": ("tiny",), "cases": ("tiny", "tiny_few_shot"), "repetitions": 2, "threads": 1, "memory": False}
    return Settings(**{**tiny, **knobs})


def run(settings: Settings) -> list[dict[str, Any]]:
    return [record for records in measure(settings) for record in records]


def tokens(rows: int = 3, length: int = 10) -> torch.Tensor:
    return random_tokens((rows, length), 29, seed=1)


@pytest.fixture(scope="module", autouse=True)
def _small_products() -> Iterator[None]:
    """The machine's peak is not the question here, and takes seconds to find."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tintbench.speed.multiply_add_peak", partial(multiply_add_peak, size=64))
        yield


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    return run(quick())


def test_help_names_every_case() -> None:
    (option,) = get_type_hints(bench, include_extras=True)["case"].__metadata__
    named = re.sub(r"\(.*?\)|;.*", "", option.help).split(",")
    assert [name.strip() for name in named] == list(CASES)


def test_a_run_has_every_method_and_every_field(records: list[dict[str, Any]]) -> None:
    settings = quick()
    expected = [(case, name) for case in settings.cases for name in methods_of(CASES[case], settings)]
    assert [(record["case"], record["method"]) for record in records] == expected
    assert ("tiny", "vmap") in expected and ("tiny_few_shot", "repeat") in expected
    for record in records:
        assert record["repetitions"] == len(record["times"]) == 2
        assert min(record["times"]) <= record["seconds"] <= max(record["times"])
        assert record["tokens_per_second"] == CASES[record["case"]].num_tokens / record["seconds"]
        assert record["share_of_peak"] > 0 and record["ratio_to_forward"] > 0
        assert (record["engine"], record["dtype"], record["threads"]) == ("fast", "float32", 1)
        assert record["peak_memory_bytes"] is None and record["torch"] == torch.__version__
    assert [record["ratio_to_fast"] for record in records if record["method"] == "fast"] == [1.0, 1.0]
    assert [record for record in records if "of 4 inputs, scaled" in record["note"]] != []


def test_a_simulator_runs_between_methods_that_write_into_the_model() -> None:
    found = run(quick(cases=("tiny",), methods=("explicit_block", "fast", "simulator"), repetitions=2))
    losses = [record["evaluation_loss"] for record in found]
    assert [record["method"] for record in found] == ["explicit_block", "fast", "simulator"]
    assert max(losses[1:]) - min(losses[1:]) < 1e-3


def test_methods_predict_alike(records: list[dict[str, Any]]) -> None:
    for case in ("tiny", "tiny_few_shot"):
        here = {record["method"]: record["evaluation_loss"] for record in records if record["case"] == case}
        losses = [loss for name, loss in here.items() if name not in ("forward", "repeat")]
        assert max(losses) - min(losses) < 1e-3


@pytest.mark.sweep
def test_optimisers_of_streams_predict_alike() -> None:
    """Up to their first step, which follows the first chunk."""
    found = run(quick(cases=("tiny_stream",), repetitions=1))
    assert [record["method"] for record in found] == methods_of(CASES["tiny_stream"], quick())
    losses = {record["method"]: record["evaluation_loss"] for record in found if record["method"] != "forward"}
    assert max(losses.values()) - min(losses.values()) < 1e-2


def test_a_stream_by_hand_predicts_as_the_engine_does() -> None:
    model, ids = make_model("gpt2", torch.float32), tokens(2, 26)
    auxiliary, rule = load(model), LearningRule.full(learning_rate=RATE)
    by_hand = ExplicitReader(model, block_names(auxiliary), RATE).read_each(ids, 7)
    pieces = Tint(auxiliary, rule).stream(ids, chunk=7)
    torch.testing.assert_close(
        torch.cat([piece.token_loss for piece in pieces], 1)[:, 1:].flatten(), by_hand, rtol=0, atol=1e-4
    )


@pytest.mark.sweep
def test_progress_rises_and_threads_are_put_back() -> None:
    seen: list[float] = []
    before = torch.get_num_threads()
    list(measure(quick(threads=2, cases=("tiny",)), lambda text, share: seen.append(share)))
    assert seen == sorted(seen) and seen[0] >= 0 and seen[-1] <= 1
    assert torch.get_num_threads() == before


@pytest.mark.sweep
def test_half_precision_reports_its_error() -> None:
    found = {record["method"]: record for record in run(quick(dtype="bfloat16", cases=("tiny",), engine="fast"))}
    assert {"fast", "fast_float32"} <= set(found)
    assert found["fast_float32"]["relative_error"] == 0
    assert 0 < found["fast"]["relative_error"] < 0.05


@pytest.mark.sweep
def test_forms_are_extra() -> None:
    found = run(quick(forms=True, engine="fast", cases=("tiny",), repetitions=1))
    losses = {record["method"]: record["evaluation_loss"] for record in found}
    assert losses["fast_dual"] == pytest.approx(losses["fast_materialised"], rel=1e-5)


@pytest.mark.parametrize("names", [rule_names, block_names, all_names])
def test_explicit_restores_the_model(names: Any) -> None:
    model = make_shape("tiny", torch.float32)
    auxiliary = load(model)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    rule = [LearningRule(learning_rate=1.0)] if names is rule_names else []
    tuner = Explicit(model, names(auxiliary, *rule), 1.0)
    ids = tokens()
    changed = tuner.tune_each(ids, 6)
    tuner.tune_once(ids[:2], ids[2:], 1)
    assert not torch.equal(changed, Explicit(model, [], 1.0)._losses(ids, 6))
    for name, value in model.named_parameters():
        assert torch.equal(value, before[name]) and value.requires_grad and value.grad is None, name


def test_explicit_restores_the_model_when_it_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_shape("tiny", torch.float32)
    before = [value.detach().clone() for value in model.parameters()]
    tuner = Explicit(model, all_names(load(model)), 1.0)

    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tuner, "_losses", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tuner.tune_each(tokens(), 6)
    assert all(torch.equal(value, old) for value, old in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_explicit_fine_tuning_of_the_blocks_is_the_full_rule(family: str) -> None:
    model, ids = make_model(family), tokens()
    auxiliary = load(model)
    train = (torch.arange(ids.shape[1]) < 6).expand(ids.shape)
    out = Tint(auxiliary, LearningRule.full(learning_rate=RATE), engine="oracle")(ids, train_mask=train, logits="none")
    found = Explicit(model, block_names(auxiliary), RATE).tune_each(ids, 6)
    # Hugging Face works in float32 in places even if the model is float64.
    torch.testing.assert_close(found, out.token_loss[out.evaluation_mask], rtol=1e-5, atol=1e-6)


def test_the_blocks_are_everything_but_embeddings_and_head() -> None:
    auxiliary = load(make_shape("tiny", torch.float32))
    outside = {"transformer.wte.weight", "transformer.wpe.weight"}
    assert set(block_names(auxiliary)) == set(all_names(auxiliary)) - outside
    moved = Tint(auxiliary, LearningRule(learning_rate=RATE), engine="reference")
    updates = moved(torch.ones(1, 6, dtype=torch.long), train_mask=torch.arange(6)[None] < 4).updates()
    assert set(rule_names(auxiliary, LearningRule(learning_rate=RATE))) == set(updates)


@pytest.mark.parametrize("family", FAMILIES)
def test_vmap_is_explicit_fine_tuning(family: str) -> None:
    model, ids = make_model(family), tokens()
    names = rule_names(load(model), LearningRule(learning_rate=RATE))
    implementation = model.config._attn_implementation
    found = PerSample(model, names, RATE).tune_each(ids, 6)
    torch.testing.assert_close(found, Explicit(model, names, RATE).tune_each(ids, 6), rtol=1e-5, atol=1e-6)
    assert model.config._attn_implementation == implementation


def test_vmap_is_skipped_where_memory_does_not_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tintbench.timed_methods.VMAP_LIMIT", 1000)
    setup = Setup(
        auxiliary=load(make_shape("tiny", torch.float32)),
        rule=LearningRule(learning_rate=RATE),
        engine="reference",
        seed=0,
    )
    with pytest.raises(Skip, match="its gradients alone take"):
        prepare("vmap", setup, CASES["tiny"])
    (record,) = run(quick(cases=("tiny",), methods=("vmap",)))
    assert record["note"].startswith("skipped: its gradients") and record["seconds"] is None
    assert record.keys() == run(quick(cases=("tiny",), methods=("forward",)))[0].keys()
    assert "skipped" in markdown([record])


def test_work_of_a_model_counted_by_hand() -> None:
    auxiliary = load(make_shape("tiny", torch.float32))
    work = MultiplyAdds(auxiliary, LearningRule(learning_rate=RATE))
    width, layers, vocabulary = 16, 2, 64
    linears, scores, head = layers * 12 * width**2, layers * 10 * width, vocabulary * width  # 10 pairs of 4 tokens
    assert work.forward(4, 1) == 4 * linears + 2 * scores + head
    path = layers * 10 * width**2
    assert work.training(4) == 4 * (linears + path + 2 * head) + 4 * scores
    assert work.update(4) == 4 * path
    assert work.update(4, 1) < work.update(4)
    everything = work.explicit_training(4, all_names(auxiliary))
    assert everything == 4 * (3 * linears + 3 * head) + 7 * scores
    assert everything - work.explicit_training(4, block_names(auxiliary)) == 4 * head


def test_results_are_written_whole(records: list[dict[str, Any]], tmp_path: Any) -> None:
    save(records, tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["speed.json", "speed.md", "speed.png"]
    assert json.loads((tmp_path / "new" / "speed.json").read_text()) == records
    assert (tmp_path / "new" / "speed.png").read_bytes().startswith(b"\x89PNG")
    assert all(row["method"] in (tmp_path / "new" / "speed.md").read_text() for row in table_rows(records))
    (tmp_path / "file").write_text("")
    with pytest.raises(BenchError, match="cannot write to"):
        save(records, tmp_path / "file")


@pytest.mark.skipif(not (PROC / "clear_refs").exists(), reason="peak memory is measured on Linux only")
@pytest.mark.sweep
def test_peak_memory_sees_the_logits() -> None:
    peak = measure_peak(quick(), "tiny", "8x64", "forward")
    assert peak.why_not == "" and peak.size is not None
    assert 8 * 64 * 64 * 4 // 2 < peak.size < 100e6


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"cases": ("9x9",)}, "case '9x9' is unknown; choose from 8x64, 4x256, 2x1024, few_shot, long"),
        ({"dtype": "int8"}, "dtype 'int8' is unknown; choose from float32"),
        ({"methods": ("slow",)}, "method 'slow' is unknown; choose from forward"),
        ({"engine": "slow"}, "engine 'slow' is unknown; choose from fast"),
        ({"repetitions": 0}, "repetitions=0 must be at least 1"),
        ({"threads": 0}, "threads=0 must be at least 1"),
        ({"models": ("./nothing",)}, r"model './nothing' is no shape known here \(gpt2, .*no directory ./nothing"),
    ],
)
def test_bad_input_gets_one_line(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(TintError, match=message) as caught:
        run(quick(**knobs))
    assert "\n" not in str(caught.value)


@pytest.mark.sweep
def test_a_case_for_one_model_runs_with_that_model(monkeypatch: pytest.MonkeyPatch) -> None:
    case = SequenceCase(batch=1, tokens=8, num_train=4, methods=("fast",), model="tiny", max_repetitions=1)
    monkeypatch.setitem(CASES, "own", case)
    found = run(quick(models=("tiny",), cases=("own", "tiny"), methods=("fast", "forward")))
    assert [(r["case"], r["method"], r["repetitions"]) for r in found] == [
        ("tiny", "forward", 2),
        ("tiny", "fast", 2),
        ("own", "fast", 1),
    ]
