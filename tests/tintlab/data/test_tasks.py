# pyright: basic
"""Task files: what is shipped, every format and place that examples can come from, and one clear line for bad ones."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import SHARED

from tintformer.errors import InputError
from tintlab.data.sources import shipped
from tintlab.data.tasks import (
    Example,
    Prompt,
    Task,
    demonstrations,
    load_task,
    read_task_description,
    test_examples,
    tuning_examples,
)

TASKS = ("agnews", "amazon", "cr", "mpqa", "mr", "sst2", "subj", "yelp")
TEXTS = ("c4", "wikitext-103", "wikitext-2")

YAML = """\
kind: classification
title: Mine
path: data
labels: [bad, good]
prompt: "Review: {text}\\nSentiment:"
words: [Negative, Positive]
"""
ROWS = [('so, so "bad"\nreally', 0), ("fine é", 1), ("bad again", 0), ("good 🙂", 1)]


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def jsonl(rows: list[tuple[str, Any]]) -> str:
    return "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)


def test_what_is_shipped() -> None:
    assert shipped() == tuple(sorted((*TASKS, "praise", *TEXTS)))
    for name in TASKS:
        described, _ = read_task_description(name)
        assert described.hub is not None and described.separator == "\n\n"
        assert described.own_prompt().calibration_prompt == described.calibration
        words = {
            "agnews": ("World", "Sports", "Business", "Technology"),
            "subj": ("objective", "subjective"),
        }
        assert described.words == words.get(name, ("Negative", "Positive"))
    sst2, _ = read_task_description("sst2")
    assert sst2.own_prompt().filled("Fun.") == "Review: Fun.\nSentiment:"
    assert sst2.own_prompt().calibration_prompt == "\nSentiment:"
    assert sst2.variants["it-was"] == Prompt(
        template="{text} It was", words=("terrible", "great"), calibration=" It was"
    )
    assert sst2.variants["symbols"].words == ("@", "#")
    assert sst2.variants["symbols"].template == sst2.prompt
    agnews, _ = read_task_description("agnews")
    assert agnews.prompt == "Article: {text}\nWhat is the article about? Answer:"
    assert agnews.calibration == " Answer:" and read_task_description("subj")[0].prompt == "{text} This is"


def write_rows(path: Path, rows: list[tuple[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text(jsonl(rows), encoding="utf-8")
    elif path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("label", "text"), *((label, text) for text, label in rows)])
    elif path.suffix == ".tsv":
        lines = ["text\tlabel", *(f"{text}\t{label}" for text, label in rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    else:
        pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow; pip install 'tintformer[eval]'")
        import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports]

        table = pyarrow.table({"text": [text for text, _ in rows], "label": [label for _, label in rows]})
        parquet.write_table(table, path)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".parquet"])
@pytest.mark.parametrize("names", [False, True])
def test_every_format_gives_the_same_examples(tmp_path: Path, suffix: str, names: bool) -> None:
    rows = [(text.replace("\n", " ") if suffix == ".tsv" else text, label) for text, label in ROWS]
    given = [(text, ("negative", "positive")[label] if names else label) for text, label in rows]
    write_rows(tmp_path / f"train{suffix}", given[:2])
    write_rows(tmp_path / f"eval{suffix}", given[2:])
    task = load_task("sst2", tmp_path)
    assert task.train == tuple(Example(*row) for row in rows[:2])
    assert task.test == tuple(Example(*row) for row in rows[2:])
    with pytest.raises(FrozenInstanceError):
        task.name = "other"  # pyright: ignore[reportAttributeAccessIssue]


def test_parquet_without_pyarrow_and_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "all.parquet", b"PAR1 and no more")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(InputError) as error:
            load_task("cr", file)
        assert str(error.value) == f"{file} needs pyarrow to be read; install it: pip install 'tintformer[eval]'"
    pytest.importorskip("pyarrow", reason="Parquet needs pyarrow; pip install 'tintformer[eval]'")
    with pytest.raises(InputError, match=r"all\.parquet is truncated or no Parquet file \(.*\); copy it again"):
        load_task("cr", file)


def test_the_files_of_a_directory(tmp_path: Path) -> None:
    """The description's own name first (for SST-2 `validation`), then test, eval and the others."""
    for name in ("train", "eval", "validation", "test"):
        write(tmp_path / f"{name}.jsonl", jsonl([(name, 0), (f"{name} 2", 1)]))
    assert load_task("sst2", tmp_path).test[0].text == "validation"
    assert load_task("mr", tmp_path).test[0].text == "test"
    (tmp_path / "test.jsonl").unlink()
    assert load_task("mr", tmp_path).test[0].text == "eval"
    write(tmp_path / "train.csv", "text,label\nx,0\n")
    with pytest.raises(InputError) as error:
        load_task("mr", tmp_path)
    assert str(error.value) == f"{tmp_path} holds both train.jsonl and train.csv; remove one of them"
    (tmp_path / "train.jsonl").rename(tmp_path / "other.jsonl")
    (tmp_path / "train.csv").unlink()
    with pytest.raises(InputError) as error:
        load_task("mr", tmp_path)
    assert str(error.value) == (
        f"{tmp_path} holds no train with one of the endings .jsonl, .csv, .tsv, .parquet; put one there, "
        "or rt-polarity.neg and rt-polarity.pos as distributed"
    )


def test_a_single_file_is_split_by_a_seed(tmp_path: Path) -> None:
    rows = [(f"text {number}", number % 2) for number in range(21)]
    task = load_task("mr", write(tmp_path / "all.jsonl", jsonl(rows)))
    assert {(e.text, e.label) for e in task.train + task.test} == set(rows)
    assert (len(task.train), len(task.test)) == (10, 11)
    assert sum(e.label for e in task.train) == 5
    again = load_task("mr", write(tmp_path / "turned.jsonl", jsonl(rows[::-1])))
    assert (again.train, again.test) == (task.train, task.test)
    other = load_task("mr", tmp_path / "all.jsonl", split_seed=1)
    assert set(other.test) != set(task.test)


def test_a_task_is_added_by_a_yaml_alone(tmp_path: Path) -> None:
    description = (
        YAML + "text: body\nlabel: grade\ntrain: mine.csv\ntest: theirs\nvariants: {short: {prompt: '{text}'}}"
    )
    file = write(tmp_path / "mine.yaml", description)
    write(tmp_path / "data/mine.csv", "id,grade,body\n1,good,nice\n2,0,awful\n")
    write(tmp_path / "data/theirs.jsonl", '{"body": "nice too", "grade": "good"}\n')
    task = load_task(str(file))
    assert (task.name, task.title, task.labels) == ("mine", "Mine", ("bad", "good"))
    assert task.train == (Example("nice", 1), Example("awful", 0)) and task.test == (Example("nice too", 1),)
    assert task.prompt.calibration_prompt == "\nSentiment:"  # what follows {text}
    assert load_task(str(file), variant="short").prompt.calibration_prompt == ""


def test_the_identity_changes_with_data_and_prompt(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", jsonl(ROWS))
    write(tmp_path / "test.jsonl", jsonl(ROWS[:2]))
    base = load_task("mr", tmp_path)
    assert base.identity == load_task("mr", tmp_path).identity and base.identity["variant"] is None
    assert load_task("mr", tmp_path, variant="symbols").identity != base.identity
    assert load_task("cr", tmp_path).data_hash == base.data_hash
    write(tmp_path / "test.jsonl", jsonl([ROWS[0], (ROWS[1][0], 0)]))
    assert load_task("mr", tmp_path).data_hash != base.data_hash
    json.dumps(base.identity)


def test_the_hub_gives_splits_and_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def load_dataset(*arguments: Any, split: str, **keywords: Any) -> Any:
        calls.append((*arguments, split, keywords["streaming"]))
        return iter([{"sentence": f"{split} {number}", "label": number % 2} for number in range(4)])

    monkeypatch.setitem(
        sys.modules,
        "datasets",
        SimpleNamespace(load_dataset=load_dataset, config=SimpleNamespace(HF_HUB_OFFLINE=False)),
    )
    task = load_task("sst2")
    assert calls == [("stanfordnlp/sst2", None, "train", False), ("stanfordnlp/sst2", None, "validation", False)]
    assert task.test[1] == Example("validation 1", 1)
    with pytest.raises(InputError) as error:
        load_task("mr")
    assert str(error.value) == (
        "cornell-movie-review-data/rotten_tomatoes train row 1: there is no column 'text', only 'sentence', 'label'; "
        "name the columns in the task file"
    )


def without(key: str) -> str:
    return "".join(line + "\n" for line in YAML.splitlines() if not line.startswith(f"{key}:"))


def changed(key: str, value: str) -> str:
    return without(key) + f"{key}: {value}\n"


BAD_YAML = [
    ("", " holds no keys; see the descriptions that come with the package"),
    ("- a\n", " holds no keys; see the descriptions that come with the package"),
    ("a: [1\nb: 2\n", " line 2: this is no YAML (expected ',' or ']', but got ':')"),
    (b"kind: x\ntitle: caf\xe9\n", " line 2: byte 0xe9 is no UTF-8; save it so"),
    (YAML + "words: [a, b]\n", " line 7: this is no YAML (the key 'words' is there twice)"),
    ("kind: text\n", " describes no task (its kind is 'text'); the kind must be 'classification'"),
    (without("words"), ": the key 'words' is missing; add it"),
    (
        YAML + "template: x\n",
        ": the key 'template' is unknown; known are kind, title, labels, prompt, words, calibration, separator, "
        "variants, path, hub, train, test, text, label, limit, files, encoding, texts",
    ),
    (changed("prompt", '"Review:"'), ": the prompt 'Review:' has {text} 0 times; write it once"),
    (changed("prompt", '"{text} {text}"'), ": the prompt '{text} {text}' has {text} 2 times; write it once"),
    (changed("prompt", "3"), ": prompt is 3, which is no text; put it in quotes"),
    (changed("words", "[no, yes]"), ": words[0] is False, which is no text; put it in quotes"),
    (changed("words", '["", good]'), ": words[0] is empty; give a text"),
    (changed("words", '[" ", good]'), ": the label word ' ' is empty; give each label a word"),
    (
        changed("words", '[" bad", good]'),
        ": the label word ' bad' has spaces around it; leave them out, one is put before it",
    ),
    (
        changed("words", "[great, greater]"),
        ": the label word 'great' is the beginning of 'greater'; choose words that differ",
    ),
    (
        changed("words", "[same, same]"),
        ": the label word 'same' is the beginning of 'same'; choose words that differ",
    ),
    (changed("words", "[one]"), ": there are 2 labels but 1 label words; give each label a word"),
    (changed("words", "one"), ": words is 'one'; it must be a list"),
    (changed("labels", "[0, 1]"), ": labels[0] is 0, which is no text; put it in quotes"),
    (changed("labels", "[x, x]"), ": the labels are x, x; at least two different ones are needed"),
    (YAML + "calibration: '{text}'\n", ": the calibration prompt '{text}' has {text}; write it without a text"),
    (YAML + "separator: ''\n", ": separator is empty; give a text"),
    (YAML + "calibration: 3\n", ": calibration is 3, which is no text; put it in quotes"),
    (YAML + "variants: {a: {separator: 3}}\n", ": variant a: separator is 3, which is no text; put it in quotes"),
    (YAML + "limit: many\n", ": limit is 'many'; it must be a whole number of at least 1"),
    (YAML + "hub: 3\n", ": hub is 3; it must hold keys and values"),
    (YAML + "variants: [a]\n", ": variants is ['a']; it must hold names, each with its keys"),
    (
        YAML + "variants: {a: b}\n",
        ": variant a is 'b'; it must hold some of the keys prompt, words, calibration, separator",
    ),
    (
        YAML + "variants: {a: {label: b}}\n",
        ": variant a: the key 'label' is unknown; known are prompt, words, calibration, separator",
    ),
    (YAML + "variants: {a: {prompt: b}}\n", ": variant a: the prompt 'b' has {text} 0 times; write it once"),
    (without("path"), " names neither a path nor a data set of the hub; give the files with --data"),
]


@pytest.mark.parametrize(("content", "message"), BAD_YAML)
def test_bad_task_files_get_one_clear_line(tmp_path: Path, content: str | bytes, message: str) -> None:
    write(tmp_path / "data/train.jsonl", jsonl(ROWS))
    write(tmp_path / "data/test.jsonl", jsonl(ROWS))
    file = write(tmp_path / "mine.yaml", content)
    with pytest.raises(InputError) as error:
        load_task(str(file))
    assert str(error.value) == f"{file}{message}"


UNKNOWN = " is unknown; the task file has 0 (bad), 1 (good)"
GOOD = '{"text": "fine", "label": 1}\n'
BAD_DATA: list[tuple[str, str | bytes, str]] = [
    ("jsonl", "", " is empty; give a file with at least one row"),
    ("jsonl", "\n \n", " is empty; give a file with at least one row"),
    (
        "jsonl",
        GOOD + '{"txt": "fine", "label": 1}\n',
        " line 2: there is no column 'text', only 'txt', 'label'; name the columns in the task file",
    ),
    ("jsonl", GOOD + '{"text": "fine"}\n', " line 2: there is no column 'label', only 'text'; name the columns in the task file"),  # noqa: E501
    ("jsonl", GOOD + '{"text": "x", "label": 2}\n', f" line 2: the label 2{UNKNOWN}"),
    ("jsonl", '{"text": "x", "label": -1}\n', f" line 1: the label -1{UNKNOWN}"),
    ("jsonl", '{"text": "x", "label": true}\n', f" line 1: the label True{UNKNOWN}"),
    ("jsonl", '{"text": "x", "label": "Good"}\n', f" line 1: the label 'Good'{UNKNOWN}"),
    ("jsonl", '{"text": "x", "label": null}\n', f" line 1: the label None{UNKNOWN}"),
    ("jsonl", GOOD + '{"text": "fin', " line 2: the file is truncated in the middle of a row; copy it again"),
    (
        "jsonl",
        '{"text": "fin\n' + GOOD,
        " line 1: this is no JSON (Unterminated string starting at column 10); write one object a line",
    ),
    ("jsonl", "[1, 2]\n", " line 1: this is no object but [1, 2]; write one object a line"),
    ("jsonl", '{"text": null, "label": 1}\n', " line 1: the text is None; it must be a string, so name another column"),
    ("jsonl", '{"text": " ", "label": 1}\n', " line 1: the text is empty; remove the row"),
    ("jsonl", '{"text": "\\ud83d", "label": 1}\n', " line 1: the text holds half a character; remove the row or repair it"),  # noqa: E501
    (
        "jsonl",
        GOOD.encode() + '{"text": "café", "label": 1}\n'.encode("latin-1"),
        " line 2: byte 0xe9 is no UTF-8; save the file in that encoding",
    ),
    ("jsonl", GOOD.encode("utf-16"), " line 1: byte 0xff is no UTF-8; save the file in that encoding"),
    ("jsonl", b"\0\0", " line 1: there is a zero byte, so this is a binary file; give text in UTF-8"),
    ("csv", "", " is empty; give a file with at least one row"),
    ("csv", "text,label\n", " is empty; give a file with at least one row"),
    ("csv", "fine,1\n", " is empty; give a file with at least one row"),
    ("csv", "a,a\n1,2\n", " line 1: two columns have one name (a, a); rename one"),
    (
        "csv",
        "text,label\nso, so,1\n",
        " line 2: the row has 3 fields but the header 2; "
        "the file is truncated, or a text with a separator is not quoted",
    ),
    (
        "csv",
        "text,label\nfine,1\nfi",
        " line 3: the row has 1 fields but the header 2; "
        "the file is truncated, or a text with a separator is not quoted",
    ),
    ("csv", 'text,label\n"fine, 1\n', " line 2: the file is truncated in the middle of a row; copy it again"),
    ("csv", 'text,label\n"a"b,1\n', " line 2: ',' expected after '\"'; repair the row"),
    ("csv", "text,label\nfine,1.0\n", f" line 2: the label '1.0'{UNKNOWN}"),
    ("csv", "text,label\ncafé,1\n".encode("latin-1"), " line 2: byte 0xe9 is no UTF-8; save the file in that encoding"),
]  # fmt: skip


@pytest.mark.parametrize(("suffix", "content", "message"), BAD_DATA)
def test_bad_data_files_get_one_clear_line(tmp_path: Path, suffix: str, content: str | bytes, message: str) -> None:
    task = write(tmp_path / "mine.yaml", YAML)
    write(tmp_path / "data/train.jsonl", jsonl(ROWS))
    file = write(tmp_path / f"data/test.{suffix}", content)
    with pytest.raises(InputError) as error:
        load_task(str(task))
    assert str(error.value) == f"{file}{message}"


def test_bad_names(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"^'sst3' is unknown; give the path of a YAML file or one of agnews, amazon, "
    ):
        load_task("sst3")
    with pytest.raises(InputError, match=r"^sst2\.yaml has no variant 'odd'; it has it-was, symbols$"):
        load_task("sst2", variant="odd")
    with pytest.raises(InputError, match="absent is not there; give a directory with train and test files, or one"):
        load_task("sst2", tmp_path / "absent")
    with pytest.raises(InputError, match=r"notes\.txt is no data file; give one of \.jsonl, \.csv, \.tsv, \.parquet"):
        load_task("sst2", write(tmp_path / "notes.txt", "x"))
    with pytest.raises(InputError, match="a single file needs two examples of a label at least"):
        load_task("sst2", write(tmp_path / "short.jsonl", jsonl(ROWS[:2])))
    with pytest.raises(InputError, match=r"^wikitext-2\.yaml describes no task \(its kind is 'text'\)"):
        load_task("wikitext-2")


@pytest.mark.parametrize("name", ["sst2", "mr", "cr", "agnews", "amazon"])
def test_real_data(name: str) -> None:
    directory = SHARED / "data" / "icl" / name
    if not directory.exists():
        pytest.skip(f"{name} is not here; put it into ../shared/data/icl")
    task = load_task(name, directory)
    assert (len(task.train), len(task.test)) == (2000, 500)
    assert {example.label for example in task.test} == set(range(len(task.labels)))


LABELS = ("bad", "middling", "good")


def make_task(num_train: int = 90, num_test: int = 60) -> Task:
    return Task(
        name="mine",
        title="Mine",
        labels=LABELS,
        prompt=Prompt(template="{text} is", words=LABELS),
        train=tuple(Example(f"train {number}", number % 3) for number in range(num_train)),
        test=tuple(Example(f"test {number}", number % 3) for number in range(num_test)),
    )


TASK = make_task()


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 5), st.booleans())
def test_three_disjoint_choices_that_grow(k: int, n: int, seed: int, balanced: bool) -> None:
    shown = demonstrations(TASK, k, seed, balanced)
    tested = test_examples(TASK, n, balanced)
    tuned = tuning_examples(TASK, n, seed, shown, balanced)
    assert (len(shown), len(tested), len(tuned)) == (k, n, n)
    assert len({example.text for example in (*shown, *tested, *tuned)}) == k + 2 * n
    assert set(shown) | set(tuned) <= set(TASK.train) and set(tested) <= set(TASK.test)
    assert demonstrations(TASK, k + 1, seed, balanced)[:k] == shown
    assert test_examples(TASK, n + 1, balanced)[:n] == tested
    assert tuning_examples(TASK, n + 1, seed, shown, balanced)[:n] == tuned
    if balanced:
        for choice in (shown, tested, tuned):
            counts = Counter(example.label for example in choice)
            assert max(counts.values(), default=0) - min((counts[label] for label in range(3)), default=0) <= 1


def test_the_choice_is_written_down() -> None:
    """These very examples on every machine and in every version: a change makes all records another experiment's."""
    assert [example.text for example in demonstrations(TASK, 5, seed=0)] == DEMONSTRATIONS
    assert [example.text for example in test_examples(TASK, 4)] == TESTED
    assert [example.text for example in tuning_examples(TASK, 4, seed=0)] == TUNED


DEMONSTRATIONS = ["train 6", "train 65", "train 52", "train 17", "train 61"]
TESTED = ["test 38", "test 13", "test 48", "test 17"]
TUNED = ["train 48", "train 56", "train 7", "train 12"]


def test_seeds_differ_and_the_order_of_the_file_does_not_matter() -> None:
    assert set(demonstrations(TASK, 12, 0)) != set(demonstrations(TASK, 12, 1))
    turned = replace(TASK, train=TASK.train[::-1], test=TASK.test[::-1])
    assert demonstrations(turned, 12, 0) == demonstrations(TASK, 12, 0)
    assert test_examples(turned, 12) == test_examples(TASK, 12)
    labels = [example.label for example in demonstrations(TASK, 30, 0)]
    rounds = {tuple(labels[start : start + 3]) for start in range(0, 30, 3)}
    assert all(sorted(turn) == [0, 1, 2] for turn in rounds) and len(rounds) > 2  # labels come in no fixed order


def test_texts_that_occur_twice_count_once_and_those_of_the_test_set_are_not_trained_on() -> None:
    doubled = replace(TASK, train=(*TASK.train, *TASK.train, Example("test 0", 0), Example("train 0", 2)))
    assert len(demonstrations(doubled, 90, 0, balanced=False)) == 90
    assert demonstrations(doubled, 90, 0) == demonstrations(TASK, 90, 0)
    with pytest.raises(InputError, match="k=91, but mine has 90 examples for this; take fewer"):
        demonstrations(doubled, 91, 0, balanced=False)


def test_all_and_too_many() -> None:
    uneven = replace(TASK, test=TASK.test[:10])
    assert len(test_examples(uneven)) == 9 and len(test_examples(uneven, balanced=False)) == 10
    with pytest.raises(InputError) as error:
        test_examples(uneven, 12)
    assert str(error.value) == (
        "n=12 over 3 labels, but mine has 3 examples of 'middling' for this; take at most 9, or do not balance"
    ) or "has 3 examples of 'good'" in str(error.value)
    with pytest.raises(InputError, match="k=-1; it cannot be less than 0"):
        demonstrations(TASK, -1, 0)
