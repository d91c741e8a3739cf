# pyright: basic
"""Probes: the shifts are those of plain passes, controls are alike in all but content, and nothing is done twice."""

from __future__ import annotations

import csv
import io
import json
import math
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import TEXT, make_model, make_tokenizer, save_model
from transformers import GPT2Config, GPT2LMHeadModel

import tintformer as tint
import tintlab as lab
from tintformer.bundled import probe_directory
from tintformer.learning.text import find_tokenizer
from tintlab.kinds.context_probe import ContextProbe, context_tokens, prompt_tokens
from tintlab.kinds.probe_inputs import (
    CONTROL,
    SETS,
    Prompt,
    balanced_set,
    demonstration_sets,
    read_prompts,
    shipped_demonstrations,
    shipped_set,
)
from tintlab.kinds.probe_result import MOVED, OTHER, PRIOR, SAME
from tintlab.kinds.probe_result import TEXT as LOSS

RATE = 0.01
OWN = "Ben sails the blue boat. Ada lights the red lamp."
CALM = ["The lamp in the harbour is red. The boat is blue.", "The keeper of the boat is Ben, and the lamp is Ada's."]
PROBES: list[Any] = [
    "The keeper of the lamp is Ada. The boat is blue.",
    "Ada lights the red lamp in the harbour.",
    {"prompt": "The lamp in the harbour is", "labels": ["red", "blue"]},
    {"prompt": "The boat of Ben is ", "labels": ["blue", "red", "green"]},
]


@pytest.fixture(scope="module")
def model() -> tint.Auxiliary:
    tokenizer = make_tokenizer()
    return tint.load(make_model(len(tokenizer)).double(), tokenizer=tokenizer)


@pytest.fixture(scope="module")
def result(model: tint.Auxiliary) -> lab.ProbeResult:
    return lab.probe(model, {CONTROL: CALM, "own": OWN}, probes=PROBES, learning_rate=[0.0, RATE], steps=[1, 2])


def find(result: lab.ProbeResult, contexts: str, after: str, rate: float | None = None, steps: int | None = 1) -> Any:
    (row,) = [
        row
        for row in (*result.rows, *result.demonstrations)
        if (row.contexts, row.after, row.learning_rate) == (contexts, after, rate)
        and row.steps == (None if rate is None else steps)
    ]
    return row


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The units that are run, not taken from records."""
    units: list[Any] = []
    real = ContextProbe.run

    def run(self: ContextProbe, unit: Any) -> Any:
        units.append(unit)
        return real(self, unit)

    monkeypatch.setattr(ContextProbe, "run", run)
    return units


def test_shifts_are_those_of_plain_passes(model: tint.Auxiliary, result: lab.ProbeResult) -> None:
    """Reading by Hugging Face's own model; learning and both by one pass of the reference engine each."""
    tokenizer = model.tokenizer
    length = result.context_tokens
    context = tokenizer(OWN)["input_ids"][: length + 1]  # behind the BOS
    lines = tokenizer("\n", add_special_tokens=False)["input_ids"]
    sim = tint.Tint(model, tint.LearningRule(learning_rate=RATE), engine="reference")

    def losses(ids: list[int], after: str) -> torch.Tensor:
        """Of every token of a prompt but the first."""
        if after == "reading":
            row = torch.tensor([[*context, *lines, *ids]])
            return plain_losses(model.model(row).logits[0], row[0])[-len(ids) + 1 :]
        if after == "learning":  # the prompt in a segment of its own, with a BOS of its own: it sees no context
            row, trained = [*context, context[0], *ids], [True] * len(context) + [False] * (len(ids) + 1)
            segments = [0] * len(context) + [1] * (len(ids) + 1)
        else:
            row = [*context, *lines, *ids]
            trained = [True] * len(context) + [False] * (len(row) - len(context))
            segments = [-1] * (len(row) - len(ids)) + [0] * len(ids)
        out = sim([row], train_mask=[trained], segment_ids=[segments])
        return out.token_loss[0, -len(ids) + 1 :]

    def before(ids: list[int]) -> torch.Tensor:
        row = torch.tensor([[context[0], *ids]])
        return plain_losses(model.model(row).logits[0], row[0])[1:]

    texts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in PROBES[:2]]
    words = [
        [tokenizer(f" {label}", add_special_tokens=False)["input_ids"] for label in each["labels"]]
        for each in PROBES[2:]
    ]
    asked = [tokenizer(each["prompt"].strip(), add_special_tokens=False)["input_ids"] for each in PROBES[2:]]
    for after in ("reading", "learning", "both"):
        shifts = find(result, "own", after, None if after == "reading" else RATE).shifts
        expected = [float((losses(ids, after) - before(ids)).mean()) for ids in texts]
        assert shifts[LOSS].value.value == pytest.approx(sum(expected) / 2, abs=1e-9), after
        moved, first = [], []
        for ids, labels in zip(asked, words, strict=True):
            was, now = (
                torch.stack([-take([*ids, *label])[-len(label) :].sum() for label in labels]).softmax(0)
                for take in (before, partial(losses, after=after))
            )
            moved.append(float((was - now).abs().sum() / 2))
            first.append(float(now[0] - was[0]))
        assert shifts[MOVED].value.value == pytest.approx(sum(moved) / 2, abs=1e-9), after
        assert shifts[PRIOR].value.value == pytest.approx(sum(first) / 2, abs=1e-9), after


@torch.no_grad()
def plain_losses(logits: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    return -logits[:-1].log_softmax(-1).gather(1, row[1:, None])[:, 0]


def test_a_rate_of_zero_is_the_model_as_it_is(result: lab.ProbeResult) -> None:
    for name in (CONTROL, "own"):
        still, read = find(result, name, "learning", 0.0), find(result, name, "reading")
        assert all(shift.value.value == pytest.approx(0, abs=1e-12) for shift in still.shifts.values())
        assert still.context_change == pytest.approx(0, abs=1e-12) and read.context_change is None
        both = find(result, name, "both", 0.0)
        assert both.shifts[LOSS].value.value == pytest.approx(read.shifts[LOSS].value.value, abs=1e-12)
        assert find(result, name, "learning", RATE).context_change < 0
        assert find(result, name, "learning", RATE, steps=2).context_change < 0


def test_the_control_differs_in_content_alone(model: tint.Auxiliary) -> None:
    """A set with the control's own contexts shifts as it does; whatever is longer is cut, what is shorter goes on."""
    found = lab.probe(model, {CONTROL: CALM, "same": CALM}, probes=PROBES, learning_rate=RATE)
    assert found.context_tokens == min(len(model.tokenizer(text)["input_ids"]) - 1 for text in CALM)
    for after, rate in (("reading", None), ("learning", RATE), ("both", RATE)):
        same, control = find(found, "same", after, rate), find(found, CONTROL, after, rate)
        for name, shift in same.shifts.items():
            assert shift.value.value == pytest.approx(control.shifts[name].value.value)
            assert shift.over_control.value == pytest.approx(0) and not shift.differs
            assert control.shifts[name].over_control is None and not control.shifts[name].differs
    long = lab.probe(model, {CONTROL: CALM, "long": TEXT}, probes=PROBES[:1], learning_rate=RATE)
    joined = sum(len(model.tokenizer(text)["input_ids"]) - 1 for text in CALM)
    assert found.context_tokens < long.context_tokens <= joined
    assert lab.probe(model, TEXT, probes=PROBES[:1], learning_rate=RATE, tokens=9).context_tokens == 9


def test_measures_follow_the_prompts(model: tint.Auxiliary) -> None:
    texts = lab.probe(model, OWN, probes=PROBES[:2], learning_rate=RATE, quick=True)
    assert list(texts.tables()) == [LOSS] and (texts.num_texts, texts.num_questions) == (1, 0)
    assert {row.contexts for row in texts.rows} == {CONTROL, "given"} and not texts.demonstrations
    assert [row.num_contexts for row in texts.rows if row.contexts == CONTROL] == [2, 2, 2]
    asked = lab.probe(model, {"a": OWN, "b": [OWN, TEXT]}, probes=PROBES[2:], learning_rate=RATE)
    assert list(asked.tables()) == [MOVED, PRIOR]
    assert {row.contexts: row.num_contexts for row in asked.rows} == {CONTROL: 6, "a": 1, "b": 2}


def test_what_diverges_is_told_and_compared_with_nothing() -> None:
    tokenizer = make_tokenizer()
    model = tint.load(make_model(len(tokenizer)), tokenizer=tokenizer)  # in float32, where it is soon over
    found = lab.probe(model, {CONTROL: CALM, "own": OWN}, probes=PROBES, learning_rate=1e30)
    row = find(found, "own", "learning", 1e30)
    assert row.num_diverged == 1 and not row.shifts and find(found, "own", "reading").shifts
    assert "diverged (1)" in repr(found) and found.png().startswith(b"\x89PNG")
    assert found.records()[-1][LOSS] is None


def test_rows_tables_a_csv_and_a_figure(result: lab.ProbeResult, tmp_path: Path) -> None:
    assert len(result.rows) == 2 * (1 + 2 * 2 * 2) and len(result.frame()) == len(result.rows)
    shown = repr(result)
    assert "own (1)" in shown and "steps" in shown and "layers" not in shown and "innocuous (2)" in shown
    rows = list(csv.DictReader(io.StringIO(result.save_csv(tmp_path / "it.csv").read_text(encoding="utf-8"))))
    assert [float(row[LOSS]) for row in rows] == [row.shifts[LOSS].value.value for row in result.rows]
    assert all(float(row[f"{LOSS}_low"]) <= float(row[LOSS]) <= float(row[f"{LOSS}_high"]) for row in rows)
    assert rows[0][f"{LOSS}_over_control"] == "" and rows[-1][f"{LOSS}_over_control"] != ""
    assert result.plot(tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")
    assert "<table" in (result._repr_html_() or "")
    assert all(table.markdown() and table.rows for table in result.tables().values())


def test_a_stopped_probe_goes_on(tmp_path: Path, ran: list[Any]) -> None:
    directory = save_model(tmp_path / "model")
    given: dict[str, Any] = {"probes": PROBES, "output": tmp_path / "out", "quick": True}
    first = lab.probe(directory, OWN, learning_rate=RATE, **given)
    assert len(ran) == 1 + 3 + 3  # the model as it is; two of the control and one's own, read and learnt
    assert lab.probe(directory, OWN, learning_rate=RATE, **given).records() == first.records() and len(ran) == 7
    lab.probe(directory, OWN, learning_rate=[RATE, 2 * RATE], **given)
    assert len(ran) == 10
    lab.probe(directory, OWN, learning_rate=RATE, quick=True, output=tmp_path / "out", probes=PROBES[:1])
    assert len(ran) == 17


def test_an_experiment_goes_to_other_processes_without_its_model(model: tint.Auxiliary) -> None:
    probe = ContextProbe(
        prompts=prompt_tokens(model.tokenizer, read_prompts(PROBES)),
        first=(0,),
        separator=(5,),
        model="it",
        dtype="float64",
        opened=object(),  # type: ignore[arg-type]
    )
    sent = pickle.loads(pickle.dumps(probe))
    assert sent.opened is None and (sent.prompts, sent.model) == (probe.prompts, "it")
    with pytest.raises(tint.InputError, match="other processes load the model by its name"):
        lab.probe(model, OWN, jobs=2)


@pytest.fixture(scope="module")
def shipped() -> lab.ProbeResult:
    """A quick look with all that ships, by a tiny random model that reads English."""
    tokenizer = find_tokenizer("nano-gpt2")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=len(tokenizer), n_positions=512, n_embd=16, n_layer=2, n_head=2)
        model = GPT2LMHeadModel(config).eval()
    return lab.probe(tint.load(model, tokenizer=tokenizer), quick=True)


def test_all_that_ships_is_probed(shipped: lab.ProbeResult) -> None:
    assert list(shipped.tables()) == [LOSS, MOVED, PRIOR, SAME, OTHER]
    assert list(dict.fromkeys(row.contexts for row in shipped.rows)) == list(SETS)
    sets = list(dict.fromkeys(row.contexts for row in shipped.demonstrations))
    assert sets == [f"{number} of 8 good" for number in (0, 2, 4, 6, 8)] and shipped.balanced == "4 of 8 good"
    assert (shipped.num_texts, shipped.num_questions, shipped.num_same_labels) == (8, 12, 4)
    assert [shipped.num_prompts(name) for name in (LOSS, MOVED, SAME, OTHER)] == [8, 12, 4, 8]
    (rate,) = {row.learning_rate for row in shipped.rows if row.learning_rate is not None}
    (of_labels,) = {row.learning_rate for row in shipped.demonstrations if row.learning_rate is not None}
    assert of_labels > 10 * rate  # labels are one token in twenty, and their losses are summed
    assert shipped.png().startswith(b"\x89PNG")
    learnt = {row.contexts: row.shifts[SAME] for row in shipped.demonstrations if row.after == "learning"}
    assert [name for name, shift in learnt.items() if shift.over_control is None] == [shipped.balanced]
    # Descent on one label alone makes it likelier than descent on the other does.
    assert learnt["8 of 8 good"].value.value > learnt["0 of 8 good"].value.value


def test_of_demonstrations_the_labels_alone_are_learnt(model: tint.Auxiliary) -> None:
    contexts = demonstration_sets(4, 1)
    tokens = {name: context_tokens(model.tokenizer, each)[0] for name, each in contexts.items()}
    for name, each in tokens.items():
        learnt = [token for token, is_target in zip(each.ids, each.targets, strict=True) if is_target]
        words = model.tokenizer.decode(learnt).split()
        assert (words.count("good"), words.count("bad")) == (int(name[0]), 4 - int(name[0]))


def test_the_files_that_ship_are_plain_and_alike() -> None:
    sets = {name: shipped_set(name) for name in SETS}
    assert {len(contexts) for contexts in sets.values()} == {6}
    lengths = [len(context.text.split()) for contexts in sets.values() for context in contexts]
    assert min(lengths) >= 100 and max(lengths) <= 110
    prompts = read_prompts(None)
    kinds = [each.labels for each in prompts]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        (): 24,
        ("good", "bad"): 12,
        ("yes", "no"): 12,
        ("true", "false"): 12,
    }
    labels = [each.label for each in shipped_demonstrations()]
    assert labels.count("good") == labels.count("bad") == 12 and balanced_set(8) == "4 of 8 good"
    assert all(path.read_text(encoding="utf-8").isascii() for path in probe_directory().iterdir())
    assert len({context.text for contexts in sets.values() for context in contexts}) == 24
    assert len({each.text for each in prompts}) == len(prompts)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "It is"', "truncated"),
        ("[1]", "no object"),
        ('{"text": "It is"}', "'text' is unknown"),
        ('{"labels": ["a", "b"]}', "there is no prompt"),
        ('{"prompt": 3}', "must be a string"),
        ('{"prompt": " "}', "empty"),
        ('{"prompt": "It is", "labels": "yes"}', "two words at least"),
        ('{"prompt": "It is", "labels": ["yes"]}', "two words at least"),
        ('{"prompt": "It is", "labels": ["yes", "yes "]}', "a word of its own"),
        ('{"prompt": "It is", "labels": ["yes", 4]}', "two words at least"),
        ("", "is empty"),
    ],
)
def test_a_bad_file_of_probes_is_one_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "probes.jsonl"
    path.write_text(line, encoding="utf-8")
    with pytest.raises(tint.InputError, match=message) as failed:
        lab.probe("nano-gpt2", probes=path)
    assert "\n" not in str(failed.value) and str(path) in str(failed.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"contexts": Path("missing.txt")}, "cannot read missing.txt"),
        ({"contexts": ""}, "empty"),
        ({"contexts": []}, "no contexts in a set"),
        ({"contexts": {CONTROL: CALM}}, "no context besides"),
        ({"probes": []}, "no probes"),
        ({"probes": [3]}, "a probe is 3"),
        ({"probes": "probes.txt"}, "is no data file"),
        ({"tokens": 3}, "tokens=3"),
        ({"quick": "yes"}, "quick='yes'"),
        ({"jobs": 0}, "jobs=0 must be"),
        ({"learning_rate": []}, "is empty"),
        ({"learning_rate": -1.0}, "learning_rate=-1"),
        ({"rule": "other"}, "rule='other' is unknown"),
        ({"unknown": 1}, "unknown keyword"),
    ],
)
def test_what_cannot_be_probed_is_refused_before_a_model_is_opened(given: dict[str, Any], message: str) -> None:
    with pytest.raises(tint.TintError, match=message) as failed:
        lab.probe("no such model", **given)
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"contexts": "Ben"}, "at least 8 are needed"),
        ({"contexts": OWN, "probes": [TEXT * 4]}, "give shorter probes"),
        ({"contexts": OWN, "probes": [{"prompt": "", "labels": ["a", "b"]}]}, "empty"),
        ({"contexts": OWN, "probes": ["a"]}, "shorter than two tokens"),
        ({"contexts": OWN, "layers": 9}, "9"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(model: tint.Auxiliary, given: dict[str, Any], message: str) -> None:
    with pytest.raises(tint.TintError, match=message) as failed:
        lab.probe(model, **({"probes": PROBES, "learning_rate": RATE} | given))
    assert "\n" not in str(failed.value)


def test_labels_are_found_by_their_characters() -> None:
    """With the tokenizers at hand: words of one token and of several, the space before them theirs."""
    for tokenizer in (make_tokenizer(), find_tokenizer("nano-llama")):
        (found,) = prompt_tokens(tokenizer, [Prompt(text="The boat of Ada is", labels=("blue", "extraordinary"))])
        for ids, start, label in zip(found.sequences, found.starts, (" blue", " extraordinary"), strict=True):
            assert tokenizer.decode(ids[start:]) == label
            assert tokenizer.decode(ids[:start]) == "The boat of Ada is"


def test_the_probe_of_a_rate_chosen_by_the_control(model: tint.Auxiliary) -> None:
    found = lab.probe(model, {CONTROL: CALM, "own": OWN}, probes=PROBES[:1])
    rates = sorted({row.learning_rate for row in found.rows if row.learning_rate is not None})
    assert len(rates) == 3 and rates[2] > 5 * rates[0] and all(map(math.isfinite, rates))
    json.dumps(found.records())
