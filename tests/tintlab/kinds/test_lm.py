# pyright: basic
"""Language modelling: the harness against a plain loop over the Hugging Face model, and runs that are killed."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from cases import some
from torch.nn import functional

from tintformer.bundled import read_text
from tintformer.errors import InputError
from tintformer.learning.tint import Tint
from tintformer.storage.loading import load
from tintlab.kinds import lm as language_modelling
from tintlab.kinds.lm import LanguageModelling, LanguageUnit, open_language
from tintlab.kinds.lm_results import language_figures, language_tables, per_token
from tintlab.kinds.recipes import FULL_RATES, by_protocol, compared
from tintlab.kinds.runs import load_runs
from tintlab.methods.fine_tuning import Explicit, block_names
from tintlab.methods.shared_gradients import SharedGradients
from tintlab.study.runner import Runner
from tintlab.study.store import RecordStore
from tintlab.study.tuning import run_experiment


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled texts in a file that no test changes."""
    path = tmp_path_factory.mktemp("text") / "texts.txt"
    path.write_text("\n".join(read_text(name) for name in ("visit", "address")) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def experiment(text: Path, tiny_model: str) -> LanguageModelling:
    return LanguageModelling(
        model=tiny_model, data=str(text), shares=(0.5,), length=64, blocks=5, tuning=2, rates=(1e-4, 5e-4, 2e-3)
    )


@pytest.fixture
def learnt(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The batches whose gradients are taken, in a process that has kept none."""
    from tintformer.engines.fast import FastEngine

    batches: list[Any] = []
    learn = FastEngine.learn
    monkeypatch.setattr(FastEngine, "learn", lambda self, batch: batches.append(batch) or learn(self, batch))
    monkeypatch.setattr(language_modelling, "_TRIED", SharedGradients(many_rates=True))
    monkeypatch.setattr(language_modelling, "_ONCE", SharedGradients(many_rates=False))
    return batches


def run(experiment: LanguageModelling, directory: Path, jobs: int = 1):
    with Runner(RecordStore(directory), jobs=jobs) as runner:
        return {result.method: result for result in run_experiment(experiment, runner)}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records")


@pytest.fixture(scope="module")
def results(experiment: LanguageModelling, records: Path) -> dict[str, Any]:
    """What comes out of the experiment as it stands."""
    return run(experiment, records)


def test_the_model_as_it_is_and_fine_tuning_are_what_autograd_gives(
    experiment: LanguageModelling, results: dict[str, Any]
) -> None:
    opened = open_language(experiment)
    model = load(experiment.model).model
    ids = torch.tensor([opened.blocks[at].ids for at in opened.scored])
    with torch.no_grad():
        logits = model(ids).logits[:, 31:-1]
    plain = functional.cross_entropy(logits.flatten(0, 1), ids[:, 32:].flatten(), reduction="none").view(5, 32)
    assert results["auxiliary"].nats == pytest.approx(plain.sum(1).tolist(), abs=1e-3)
    tuner = Explicit(model, block_names(load(model)), results["fine-tuning"].rate)
    tuned = tuner.tune_each(ids, 32).view(5, 32).sum(1).tolist()
    assert results["fine-tuning"].nats == pytest.approx(tuned, abs=1e-3)
    assert results["fine-tuning"].tokens == 32


def test_blocks_that_choose_rates_are_not_scored(experiment: LanguageModelling) -> None:
    opened = open_language(experiment)
    assert len(opened.tuning) == 2 and len(opened.scored) == 5
    assert not set(opened.tuning) & set(opened.scored)


def test_the_scored_blocks_are_the_same_whatever_else_is_asked(experiment: LanguageModelling) -> None:
    scored, tuning = open_language(experiment).scored, open_language(experiment).tuning
    for other in (
        replace(experiment, rates=(1e-3,)),
        replace(experiment, rates=None),
        replace(experiment, methods=("auxiliary",)),
        replace(experiment, tuning=3),
        by_protocol(experiment, "paper"),
    ):
        assert open_language(other).scored == scored
    # More of them are the same and others; those that choose rates never change, and more of them extend them too.
    for count in (1, 2, 3, 8):
        other = open_language(replace(experiment, blocks=count))
        assert other.scored[:5] == scored[:count] and other.tuning == tuning
    assert open_language(replace(experiment, tuning=3)).tuning[:2] == tuning
    # All others, also where no rate is chosen.
    rest = open_language(replace(experiment, blocks=None))
    assert rest.scored[:5] == scored and sorted(rest.scored + rest.tuning) == list(range(len(rest.blocks)))
    assert open_language(replace(experiment, blocks=None, rates=(1e-3,))).scored == rest.scored


def test_a_text_that_is_too_short_for_both_is_scored_whole_at_one_rate(experiment: LanguageModelling) -> None:
    count = len(open_language(experiment).blocks)
    short = replace(experiment, tuning=count, blocks=None)
    with pytest.raises(InputError, match=f"gives {count} blocks of 64 tokens; {count + 1} are needed"):
        open_language(short)
    assert sorted(open_language(replace(short, rates=(1e-3,))).scored) == list(range(count))
    assert sorted(open_language(replace(short, methods=("auxiliary",))).scored) == list(range(count))


def test_records_serve_other_numbers_of_blocks_grids_and_methods(experiment: LanguageModelling, tmp_path: Path) -> None:
    def new(changed: LanguageModelling) -> tuple[int, dict[str, Any]]:
        before = len(list(tmp_path.rglob("*.json")))
        found = run(changed, tmp_path)
        return len(list(tmp_path.rglob("*.json"))) - before, found

    base = replace(experiment, blocks=3, methods=("auxiliary", "tint"), rates=(1e-4, 5e-4))
    # Tuning blocks as they are and at two rates, scored blocks as they are and at one.
    count, first = new(base)
    assert count == 2 * 3 + 3 * 2
    count, more = new(replace(base, blocks=4))
    assert count == 2 and more["tint"].nats[:3] == first["tint"].nats
    finer = replace(base, rates=(1e-4, 3e-4, 5e-4))
    count, found = new(finer)
    assert count == 2 + (3 if found["tint"].rate == 3e-4 else 0)
    count, found = new(replace(base, rates=(first["tint"].rate,)))
    assert count == 0 and found["tint"].nats == first["tint"].nats
    assert new(replace(base, methods=("auxiliary",)))[0] == 0
    count, _ = new(replace(base, tuning=3))
    assert count >= 3  # one block more, as it is and at two rates; another rate may win


def test_a_grid_takes_each_gradient_once_however_little_is_kept(
    experiment: LanguageModelling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learnt: list[Any]
) -> None:
    monkeypatch.setattr(language_modelling, "_TRIED", SharedGradients(many_rates=True, budget=1))
    found = run(replace(experiment, methods=("tint",)), tmp_path / "grid")["tint"]
    assert len(found.curve) == 4 and len(learnt) == len(open_language(experiment).tuning) + len(found.nats)
    # A search goes rate by rate, and takes them again where they do not fit.
    monkeypatch.setattr(language_modelling, "_TRIED", SharedGradients(many_rates=True))
    learnt.clear()
    found = run(replace(experiment, methods=("tint",), rates=None), tmp_path / "search")["tint"]
    assert len(found.curve) > 4 and len(learnt) == len(open_language(experiment).tuning) + len(found.nats)


@pytest.mark.parametrize("method", some(["fine-tuning", "tint-paper", "moved"], 2))
def test_rates_share_a_gradient_and_change_no_number(
    experiment: LanguageModelling, learnt: list[Any], method: str
) -> None:
    experiment = replace(experiment, length=256, blocks=1, tuning=1)
    opened = open_language(experiment)
    auxiliary, (block, *_) = opened.model.auxiliary, opened.tuning
    ids = torch.tensor([opened.blocks[block].ids])
    for num_train in (16, 200):  # as factors, and as matrices
        train = (torch.arange(256) < num_train)[None]
        for rate in (1e-4, 1e-3, 1e-4):
            unit = LanguageUnit(method=method, rate=rate, num_train=num_train, blocks=(block,))
            shared = experiment.predict(auxiliary, ids, unit).token_loss
            rule: Any = experiment.rule(method, rate)
            plain = Tint(auxiliary, rule)(ids, train_mask=train, logits="none")
            assert torch.allclose(shared, plain.token_loss, rtol=1e-4, atol=1e-4)
    assert len(learnt) == 2
    # A scored block has one rate: what methods share of it is kept, and nothing else.
    unit = LanguageUnit(method=method, rate=1e-4, num_train=16, blocks=opened.scored[:1])
    for _ in "ab":
        experiment.run(unit)
    assert len(learnt) == (4 if method == "tint-paper" else 3)


def test_true_gradients_are_taken_once_for_all_methods(experiment: LanguageModelling, learnt: list[Any]) -> None:
    opened = open_language(experiment)
    auxiliary, block = opened.model.auxiliary, opened.scored[0]
    ids = torch.tensor([opened.blocks[block].ids])
    train = (torch.arange(64) < 40)[None]
    losses: list[Any] = []
    for method in ("fine-tuning", "linears", "moved"):
        unit = LanguageUnit(method=method, rate=2e-3, num_train=40, blocks=(block,))
        losses.append(experiment.predict(auxiliary, ids, unit).token_loss)
        rule: Any = experiment.rule(method, 2e-3)
        plain = Tint(auxiliary, rule)(ids, train_mask=train, logits="none")
        assert torch.allclose(losses[-1], plain.token_loss, rtol=1e-4, atol=1e-4)
    assert len(learnt) == 1 and not torch.equal(losses[0], losses[1]) and not torch.equal(losses[1], losses[2])


def test_the_rate_is_the_best_of_the_curve(results: dict[str, Any]) -> None:
    for result in results.values():
        if result.method != "auxiliary":
            assert [point.rate for point in result.curve] == [0.0, 1e-4, 5e-4, 2e-3][: len(result.curve)]
            assert result.rate == min(result.curve[1:], key=lambda point: point.loss).rate


def test_words_and_bytes_are_those_of_the_scored_text(experiment: LanguageModelling, results: dict[str, Any]) -> None:
    result = results["auxiliary"]
    opened = open_language(experiment)
    blocks = [opened.blocks[at] for at in opened.scored]
    assert result.bytes == sum(sum(block.num_bytes[32:]) for block in blocks)
    assert result.words == sum(sum(block.num_words[32:]) for block in blocks)


def test_other_engines_give_the_same(experiment: LanguageModelling, tmp_path: Path) -> None:
    small = replace(experiment, blocks=2, rates=(5e-4,))
    fast = run(small, tmp_path / "fast")
    for engine in ("oracle", "simulator"):
        other = run(replace(small, engine=engine), tmp_path / engine)
        for name in ("fine-tuning", "tint"):
            assert other[name].nats == pytest.approx(fast[name].nats, rel=1e-4), engine


def test_a_method_at_the_rate_of_another(experiment: LanguageModelling, tmp_path: Path) -> None:
    found = run(replace(experiment, methods=("moved-same-rate", "tint", "auxiliary")), tmp_path / "records")
    assert found["moved-same-rate"].rate == found["tint"].rate
    assert found["moved-same-rate"].nats != found["tint"].nats
    with pytest.raises(InputError, match="takes the rate of tint; add that method"):
        replace(experiment, methods=("moved-same-rate",))


@pytest.mark.sweep
def test_processes_share_the_work_and_the_numbers(experiment: LanguageModelling, tmp_path: Path) -> None:
    assert run(experiment, tmp_path / "one", jobs=1) == run(experiment, tmp_path / "two", jobs=2)


def test_a_diverged_rate_loses(experiment: LanguageModelling, tmp_path: Path) -> None:
    found = run(replace(experiment, rates=(5e-4, 1e6)), tmp_path / "records")["tint"]
    assert found.rate == 5e-4 and math.isfinite(sum(found.nats))


def test_the_protocol_of_the_paper_chooses_on_the_scored_blocks(experiment: LanguageModelling, tmp_path: Path) -> None:
    changed = by_protocol(replace(experiment, rates=None), "paper")
    assert changed.rates == FULL_RATES and not open_language(changed).tuning
    results = list(run(changed, tmp_path / "records").values())
    for result in results[1:]:
        best = min(result.curve[1:], key=lambda point: point.loss)
        assert result.rate == best.rate and best.loss == pytest.approx(sum(per_token(result)) / 5, abs=1e-12)
    assert "OPTIMISTIC" in language_tables([(changed, results)])[0].note


@pytest.mark.usefixtures("unrendered")
def test_other_models_stand_beside_as_they_are(
    experiment: LanguageModelling, results: dict[str, Any], records: Path
) -> None:
    bundled = replace(experiment, model="nano-llama", blocks=3, rates=(5e-4,))
    done = [(each, list(run(each, records).values())) for each in (bundled, *compared(bundled, ["nano-gpt2"]))]
    main, details = language_tables(done)
    assert [row["model"] for row in main.rows] == ["nano-llama"] * 3 + ["nano-gpt2"]
    assert "compare models per word or byte" not in main.note  # the two have one tokenizer
    other, _ = language_tables([(experiment, list(results.values())), *done])
    assert "compare models per word or byte" in other.note
    assert details.rows[-1]["gain"] == "" and details.rows[-1]["per byte"]
    figures = language_figures(done)
    assert figures["perplexity"].startswith(b"\x89PNG") and figures["gain"].startswith(b"\x89PNG")
    assert not language_figures(done[1:])["gain"]  # nothing learnt there


def test_lora_lowers_the_loss(experiment: LanguageModelling, tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="LoRA needs the package peft")
    found = run(replace(experiment, methods=("auxiliary", "lora"), rates=(1e-4, 1e-3), steps=2), tmp_path / "records")
    assert sum(found["lora"].nats) < sum(found["auxiliary"].nats)


def test_the_tables(experiment: LanguageModelling, results: dict[str, Any]) -> None:
    main, details = language_tables([(experiment, list(results.values()))])
    assert [row["method"] for row in main.rows] == ["the model as it is", "fine-tuning, all block weights", "TinT"]
    perplexity = math.exp(sum(per_token(results["auxiliary"])) / 5)
    assert main.rows[0]["50%"].startswith(f"{perplexity:.2f} ± ")
    assert details.rows[0]["n"] == "5" and details.rows[2]["share of fine-tuning"].count("%") == 3
    assert main.markdown().count("\n|") == 5
    assert r"50\% \\" in main.latex() and "$\\pm$" in main.latex()
    assert main.csv().splitlines()[0] == "method,50%"


def words(text: Path, output: Path) -> list[str]:
    sizes = ["--length", "64", "--blocks", "6", "--tuning", "2", "--shares", "0.5", "--learning-rate", "1e-4,5e-4"]
    methods = ["--methods", "auxiliary,fine-tuning,tint"]
    return ["eval", "lm", "nano-llama", str(text), *sizes, *methods, "-o", str(output)]


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_in_the_same_tables(text: Path, tmp_path: Path) -> None:
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    done = forked.tint(*words(text, whole))
    assert done.returncode == 0, done.stderr
    process = forked.start(*words(text, halved))
    while process.poll() is None and len(list(halved.glob("records/*/*.json"))) < 3:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    kept = len(list(halved.glob("records/*/*.json")))
    assert 3 <= kept < len(list(whole.glob("records/*/*.json")))
    assert not list(halved.glob("*.md"))
    times = {path: path.stat().st_mtime_ns for path in halved.glob("records/*/*.json")}
    again = forked.tint(*words(text, halved))
    assert again.returncode == 0, again.stderr
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    written = {path.name for path in whole.iterdir() if path.is_file()}
    start = "lm-nano-llama-texts"
    assert written == {f"{start}{end}" for end in (".md", ".tex", ".csv", "-perplexity.png", "-gain.png", "-rates.png")}
    for name in written:
        assert (whole / name).read_bytes() == (halved / name).read_bytes(), name


@pytest.mark.usefixtures("unrendered")
def test_a_first_table_is_the_beginning_of_the_whole_run(text: Path, tmp_path: Path) -> None:
    short = ["--length", "64", "--learning-rate", "1e-4,5e-4", "--json", "-o", tmp_path]
    done = forked.tint("eval", "lm", "nano-llama", text, "--quick", *short)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["results"][0]
    assert [result["method"] for result in found] == ["auxiliary", "fine-tuning", "moved", "tint"]
    # A text of fewer blocks than it would score is scored to its end.
    (whole,) = load_runs(tmp_path)
    opened = open_language(whole.experiments[0])
    assert len(opened.tuning) == 4 and {len(result["nats"]) for result in found} == {len(opened.blocks) - 4}
    assert {result["share"] for result in found} == {0.5} and (tmp_path / "lm-nano-llama-texts-quick.md").exists()
    records = len(list(tmp_path.glob("records/*/*.json")))
    longer = ["--methods", "auxiliary", "--shares", "0.5", "--blocks", "3", "--tuning", "1"]
    assert forked.tint("eval", "lm", "nano-llama", text, *longer, *short).returncode == 0
    assert len(list(tmp_path.glob("records/*/*.json"))) == records


def test_the_list_names_data_and_methods() -> None:
    done = forked.tint("eval", "list", "--json")
    found = json.loads(done.stdout)
    assert {"sst2", "wikitext-103"} <= {each["name"] for each in found["data"]}
    assert {"auxiliary", "fine-tuning", "tint"} <= {each["method"] for each in found["methods"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shares", "0.5,x"], "--shares '0.5,x' must be numbers"),
        (["--shares", "1"], "it must lie between 0 and 1"),
        (["--methods", "magic"], "unknown method 'magic'; choose from auxiliary"),
        (["--length", "4096", "--blocks", "9"], "blocks of 512 tokens; 17 are needed"),
        (["--dtype", "int3"], "dtype='int3' is unknown"),
        (["--data", "nowhere.txt"], "nowhere.txt is not there"),
    ],
)
def test_bad_input_is_one_line(text: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    done = forked.tint("eval", "lm", "nano-llama", text, "-o", tmp_path / "out", *arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and message in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()
