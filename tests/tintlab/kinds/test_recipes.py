# pyright: basic
"""The paper's three tables: what they consist of, and that they run on models and data that are at hand."""

from __future__ import annotations

from pathlib import Path

import forked
import pytest
from praise import save_task

from tintformer.bundled import read_text
from tintlab.kinds.icl import InContextLearning
from tintlab.kinds.recipes import share_of_blocks, table_icl, table_settings

BASE = InContextLearning(model="", task="sst2", tests=6)


def test_shares_of_blocks() -> None:
    assert [share_of_blocks("nano-llama", share) for share in ("all", "half", "quarter")] == [None, 3, 1]


def test_the_table_of_accuracies_has_the_rows_of_the_paper() -> None:
    found = table_icl(BASE, ["nano-llama"], ["nano-gpt2"])
    rows = [
        (each.model, each.shots, each.mode, each.methods == ("auxiliary",), each.layers, each.steps) for each in found
    ]
    assert rows == [
        ("nano-llama", 0, "single", False, None, 1),
        ("nano-llama", 0, "single", False, 3, 2),
        ("nano-llama", 0, "single", False, 1, 4),
        ("nano-llama", 32, "multi", True, None, 1),
        ("nano-llama", 32, "single", False, None, 1),
        ("nano-llama", 32, "single", False, 3, 2),
        ("nano-llama", 32, "single", False, 1, 4),
        ("nano-gpt2", 0, "single", True, None, 1),
        ("nano-gpt2", 32, "multi", True, None, 1),
    ]


def test_the_table_of_settings_is_the_whole_product() -> None:
    found = table_settings(BASE, ["nano-llama"])
    assert len({(each.loss, each.mode, each.layers, each.steps) for each in found}) == len(found) == 12
    assert {each.shots for each in found} == {32}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two of the paper's tasks as local files, in the columns that their descriptions name."""
    for task in ("mr", "cr"):
        save_task(tmp_path / "data" / task)
    return tmp_path / "data"


@pytest.mark.slow
@pytest.mark.sweep
def test_recipes_run_offline_on_local_models_and_data(data: Path, tmp_path: Path) -> None:
    sizes = ["--tests", "4", "--tuning", "2", "--seeds", "0", "--learning-rate", "1e-3", "-o", str(tmp_path / "out")]
    for recipe in ("table-icl", "table-settings"):
        done = forked.tint("eval", recipe, "--model", "nano-llama", "--data", str(data), *sizes)
        assert done.returncode == 0, done.stderr
        table = (tmp_path / "out" / f"{recipe}-nano-llama.md").read_text()
        assert "| CR | MR |" in table and "average" in table and "Subj" not in table
    text = tmp_path / "text.txt"
    text.write_text("\n".join(read_text(name) for name in ("visit", "address")) + "\n", encoding="utf-8")
    sizes = ["--length", "64", "--blocks", "4", "--tuning", "2", "--learning-rate", "1e-4", "-o", str(tmp_path / "out")]
    done = forked.tint("eval", "table-lm", "--model", "nano-llama,nano-gpt2", "--data", str(text), *sizes)
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "out" / "table-lm-nano-llama-nano-gpt2.md").read_text()
    assert table.count("| nano-gpt2 | TinT |") == 1 and "| 30% | 50% | 70% | 90% |" in table


def test_the_papers_models_need_the_hub(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a text\n")
    words = ["eval", "table-lm", "--data", text, "-o", tmp_path / "out"]
    done = forked.tint(*words, variables={"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "gpt2" in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()
