# pyright: basic
"""Raw files, a text a line and a file for each label: the paper's tasks as their authors distribute them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tintformer.errors import InputError
from tintlab.data.tasks import (
    demonstrations,
    load_task,
    read_task_description,
    test_examples,
    tuning_examples,
)

RAW = {
    "subj": {"plot.tok.gt9.5000": "objective", "quote.tok.gt9.5000": "subjective"},
    "mpqa": {"mpqa.neg": "negative", "mpqa.pos": "positive"},
    "mr": {"rt-polarity.neg": "negative", "rt-polarity.pos": "positive"},
    "cr": {"custrev.neg": "negative", "custrev.pos": "positive"},
}
YAML = """\
kind: classification
title: Mine
path: .
labels: [bad, good]
prompt: "{text} It was"
words: [terrible, great]
"""


def save(directory: Path, names: dict[str, str], lines: int = 6) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, label in names.items():
        texts = [f" {label} caf\xe9 number {number} , \x85 he said . \r\n" for number in range(lines)]
        (directory / name).write_bytes(("".join(texts) + "\n").encode("latin-1"))
    return directory


@pytest.mark.parametrize("name", RAW)
def test_the_papers_tasks_are_read_as_distributed(name: str, tmp_path: Path) -> None:
    task = load_task(name, save(tmp_path, RAW[name]))
    assert (
        Counter(example.label for example in task.test)
        == Counter(example.label for example in task.train)
        == {0: 3, 1: 3}
    )
    for example in (*task.train, *task.test):
        assert example.text.startswith(f"{task.labels[example.label]} caf\xe9 number ") and not example.text.endswith(
            " "
        )
    assert len(test_examples(task, 4)) == len(demonstrations(task, 4, seed=0)) == 4
    # The first of several names that a label's file may have stands in the message about a directory without any.
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=f"{' and '.join(RAW[name])} as distributed"):
        load_task(name, tmp_path / "empty")


def test_another_distribution_and_files_with_a_split(tmp_path: Path) -> None:
    there = save(tmp_path / "senteval", {"subj.objective": "objective", "subj.subjective": "subjective"})
    assert len(load_task("subj", there).train) == 6
    for part in ("train", "test"):  # a split that somebody has made counts
        (there / f"{part}.jsonl").write_text('{"text": "a plot of {part}", "label": 0}\n')
    assert [example.text for example in load_task("subj", there).train] == ["a plot of {part}"]


def test_half_of_it_is_an_error(tmp_path: Path) -> None:
    one = save(tmp_path, {"mpqa.pos": "positive"})
    with pytest.raises(InputError, match=r"holds mpqa.pos but no file of the label 'negative'; put mpqa.neg there"):
        load_task("mpqa", one)
    (one / "mpqa.neg").write_text("\n \n")
    with pytest.raises(InputError, match=r"mpqa.neg is empty; give a file with at least one line"):
        load_task("mpqa", one)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("files: raw.txt", "files is 'raw.txt'; it must hold the name of a file for each label"),
        ("files: {bad: a.txt}", "files is about 'bad'; the labels are bad, good"),
        ("files: {bad: 3, good: b.txt}", "files: bad is 3; it must be a list"),
        ("texts: [a, b]", "texts is ['a', 'b']; it must hold texts for each label"),
        ("encoding: utf-7", "encoding is 'utf-7'; it can be utf-8 or latin-1"),
    ],
)
def test_bad_descriptions(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "mine.yaml").write_text(f"{YAML}{line}\n")
    with pytest.raises(InputError) as caught:
        read_task_description(str(tmp_path / "mine.yaml"))
    assert message in str(caught.value)


def test_the_task_that_holds_its_examples() -> None:
    """Enough for 32 demonstrations and 40 examples to choose a rate on, whichever seed draws them."""
    task = load_task("praise")
    assert len(task.train) == len(task.test) == 80 == len({example.text for example in (*task.train, *task.test)}) / 2
    for seed in range(3):
        shown = demonstrations(task, 32, seed)
        assert len(tuning_examples(task, 40, seed, shown)) == 40
    assert len(test_examples(task, None)) == 80


def test_ones_own_description_in_utf8(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"{YAML}files: {{bad: b.txt, good: g.txt}}\n")
    (tmp_path / "b.txt").write_text("schlecht\n\u00fcbel\n", encoding="utf-8")
    (tmp_path / "g.txt").write_text("gut\nsch\u00f6n\n", encoding="utf-8")
    task = load_task(str(tmp_path / "mine.yaml"))
    assert {example.text for example in (*task.train, *task.test)} == {"schlecht", "\u00fcbel", "gut", "sch\u00f6n"}
