# pyright: basic
"""Language modelling: the harness against a plain loop over the Hugging Face model, and runs that are killed."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import forked
import pytest
import torch
from patience import PATIENCE
from torch.nn import functional

from tintformer.analysis.baselines import Explicit, block_names
from tintformer.errors import InputError
from tintformer.experiments.language_modelling import LanguageModelling, open_language
from tintformer.experiments.recipes import FULL_RATES, by_protocol, compared
from tintformer.experiments.record_store import RecordStore
from tintformer.experiments.result_figures import language_figures
from tintformer.experiments.runner import Runner
from tintformer.experiments.tables import language_tables, per_token
from tintformer.experiments.tuning import run_experiment
from tintformer.storage.loading import load

TINT = Path(sys.executable).parent / "tint"


@pytest.fixture
def experiment(text: Path) -> LanguageModelling:
    return LanguageModelling(
        model="nano-llama", data=str(text), shares=(0.5,), length=64, blocks=5, tuning=2, rates=(1e-4, 5e-4, 2e-3)
    )


def run(experiment: LanguageModelling, directory: Path, jobs: int = 1):
    with Runner(RecordStore(directory), jobs=jobs) as runner:
        return {result.method: result for result in run_experiment(experiment, runner)}


def test_the_model_as_it_is_and_fine_tuning_are_what_autograd_gives(
    experiment: LanguageModelling, tmp_path: Path
) -> None:
    results = run(experiment, tmp_path / "records")
    opened = open_language(experiment)
    model = load("nano-llama").model
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


def test_the_rate_is_the_best_of_the_curve(experiment: LanguageModelling, tmp_path: Path) -> None:
    for result in run(experiment, tmp_path / "records").values():
        if result.method != "auxiliary":
            assert [point.rate for point in result.curve] == [0.0, 1e-4, 5e-4, 2e-3][: len(result.curve)]
            assert result.rate == min(result.curve[1:], key=lambda point: point.loss).rate


def test_words_and_bytes_are_those_of_the_scored_text(experiment: LanguageModelling, tmp_path: Path) -> None:
    result = run(experiment, tmp_path / "records")["auxiliary"]
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


def test_other_models_stand_beside_as_they_are(experiment: LanguageModelling, tmp_path: Path) -> None:
    experiments = [experiment, *compared(experiment, ["nano-gpt2"])]
    done = [(each, list(run(each, tmp_path / "records").values())) for each in experiments]
    main, details = language_tables(done)
    assert [row["model"] for row in main.rows] == ["nano-llama"] * 3 + ["nano-gpt2"]
    assert "compare models per word or byte" not in main.note  # the two have one tokenizer
    assert details.rows[-1]["gain"] == "" and details.rows[-1]["per byte"]
    figures = language_figures(done)
    assert figures["perplexity"].startswith(b"\x89PNG") and figures["gain"].startswith(b"\x89PNG")
    assert not language_figures(done[1:])["gain"]  # nothing learnt there


def test_lora_lowers_the_loss(experiment: LanguageModelling, tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="LoRA needs the package peft")
    found = run(replace(experiment, methods=("auxiliary", "lora"), rates=(1e-4, 1e-3), steps=2), tmp_path / "records")
    assert sum(found["lora"].nats) < sum(found["auxiliary"].nats)


def test_the_tables(experiment: LanguageModelling, tmp_path: Path) -> None:
    results = list(run(experiment, tmp_path / "records").values())
    main, details = language_tables([(experiment, results)])
    assert [row["method"] for row in main.rows] == ["the model as it is", "fine-tuning, all block weights", "TinT"]
    perplexity = math.exp(sum(per_token(results[0])) / 5)
    assert main.rows[0]["50%"].startswith(f"{perplexity:.2f} ± ")
    assert details.rows[0]["n"] == "5" and details.rows[2]["share of fine-tuning"].count("%") == 3
    assert main.markdown().count("\n|") == 5
    assert r"50\% \\" in main.latex() and "$\\pm$" in main.latex()
    assert main.csv().splitlines()[0] == "method,50%"


def command(text: Path, output: Path) -> list[str]:
    sizes = ["--length", "64", "--blocks", "6", "--tuning", "2", "--shares", "0.5", "--learning-rate", "1e-4,5e-4"]
    methods = ["--methods", "auxiliary,fine-tuning,tint"]
    return [str(TINT), "eval", "lm", "nano-llama", str(text), *sizes, *methods, "-o", str(output)]


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_in_the_same_tables(text: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    subprocess.run(command(text, whole), check=True, capture_output=True, env=environment, timeout=PATIENCE)
    process = subprocess.Popen(command(text, halved), stdout=subprocess.DEVNULL, env=environment)
    while process.poll() is None and len(list(halved.glob("records/*/*.json"))) < 3:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = len(list(halved.glob("records/*/*.json")))
    assert 3 <= done < len(list(whole.glob("records/*/*.json")))
    assert not list(halved.glob("*.md"))
    times = {path: path.stat().st_mtime_ns for path in halved.glob("records/*/*.json")}
    again = subprocess.run(command(text, halved), capture_output=True, text=True, env=environment, timeout=PATIENCE)
    assert again.returncode == 0, again.stderr
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    written = {path.name for path in whole.iterdir() if path.is_file()}
    start = "lm-nano-llama-texts"
    assert written == {f"{start}{end}" for end in (".md", ".tex", ".csv", "-perplexity.png", "-gain.png", "-rates.png")}
    for name in written:
        assert (whole / name).read_bytes() == (halved / name).read_bytes(), name


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
