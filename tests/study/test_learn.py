# pyright: basic
"""Text in, result out: `tint.learn`, what it returns, and that the command line does the same."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import TEXT, make_model, make_tokenizer, save_model
from transformers import AutoModelForCausalLM

import tintformer as tint
from tintformer.cli import main

RATE = 0.01
HOSTILE = "<script>alert('The lamp')</script> & the boat. The <b>keeper</b> of the lamp."


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(directory: Path) -> tint.Auxiliary:
    return tint.load(directory)


@pytest.fixture(scope="module")
def result(model: tint.Auxiliary) -> tint.LearnResult:
    return tint.learn(model, TEXT, learning_rate=RATE, generate=4)


def test_it_learns_what_token_ids_learn(model: tint.Auxiliary, result: tint.LearnResult) -> None:
    ids = torch.tensor([model.tokenizer(TEXT)["input_ids"]])
    num_train = round(ids.shape[1] / 2)
    train = torch.arange(ids.shape[1])[None] < num_train
    out: Any = tint.Tint(model, tint.LearningRule(learning_rate=RATE))(ids, train_mask=train, before=True)
    assert result.train_tokens == num_train and result.evaluation_tokens == int(out.evaluation_mask.sum())
    assert result.loss == pytest.approx(float(out.loss)) and result.loss_before == pytest.approx(float(out.loss_before))
    assert result.perplexity_before > result.perplexity == pytest.approx(math.exp(float(out.loss)))
    updates = out.updates()
    assert result.updates().keys() == updates.keys() == result.tuned.updates().keys()
    for name, update in updates.items():
        torch.testing.assert_close(result.updates()[name], update)
        torch.testing.assert_close(result.tuned.updates()[name], update)


def test_a_name_a_path_an_object_and_a_loaded_model_are_the_same(
    directory: Path, result: tint.LearnResult, tmp_path: Path
) -> None:
    plain: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    (tmp_path / "text.txt").write_text(TEXT + "\n", encoding="utf-8")
    ways: tuple[tuple[Any, dict[str, Any]], ...] = (
        (str(directory), {}),
        (directory, {"dtype": "float32", "device": "cpu"}),
        (plain, {}),  # its name_or_path leads to a tokenizer
        (plain, {"tokenizer": make_tokenizer()}),
        (tint.load(plain, tokenizer=make_tokenizer()), {}),
    )
    for given, options in ways:
        again = tint.learn(given, tmp_path / "text.txt", learning_rate=RATE, **options)
        assert again.encoded == result.encoded and again.train_tokens == result.train_tokens
        assert again.loss == pytest.approx(result.loss, abs=1e-6)
    assert tint.learn("nano-gpt2", TEXT, learning_rate=1e-5).evaluation_tokens > 10


def test_an_object_alone_is_refused_with_the_remedy() -> None:
    with pytest.raises(tint.LoadError, match=r"is a model object, and no tokenizer .* give it: tokenizer="):
        tint.learn(make_model(320), TEXT)
    with pytest.raises(tint.LoadError, match="is no tokenizer of transformers; give the object"):
        tint.learn(make_model(320), TEXT, tokenizer="gpt2")


def test_the_command_line_and_python_do_the_same(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the number of tokens is odd, and where a file ends with a line break."""
    cases: tuple[tuple[int, list[str], dict[str, Any]], ...] = (
        (len(TEXT), [], {}),
        (
            len(TEXT) - 1,
            ["--train-fraction", "0.3", "--learning-rate", "0.01"],
            {"train_fraction": 0.3, "learning_rate": 0.01},
        ),
        (
            len(TEXT) - 30,
            ["--train-tokens", "41", "--steps", "2", "--learning-rate", "0.01"],
            {"train_tokens": 41, "steps": 2, "learning_rate": 0.01},
        ),
    )
    for cut, options, keywords in cases:
        file = tmp_path / "text.txt"
        file.write_text(TEXT[:cut] + "\n", encoding="utf-8")
        words = ["run", directory, "--file", file, "--preset", "full", "--generate", "3", "--json", *options]
        monkeypatch.setattr(sys, "argv", ["tint", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        record = json.loads(capsys.readouterr().out)
        text = file.read_text(encoding="utf-8")
        found: Any = tint.learn(directory, text, rule="full", generate=3, **keywords)
        assert (record["train_tokens"], record["evaluation_tokens"]) == (found.train_tokens, found.evaluation_tokens)
        assert record["rule"]["learning_rate"] == found.learning_rate
        assert (record["rate_choice"] is None) == (found.choice is None) == ("learning_rate" in keywords)
        assert record["loss"] == pytest.approx(found.loss) and record["loss_before"] == pytest.approx(found.loss_before)
        assert record["continuation"] == found.continuation.after


def test_the_rate_is_found_unless_it_is_given(model: tint.Auxiliary) -> None:
    tried: list[float] = []
    found = tint.learn(model, TEXT, on_rate=lambda point: tried.append(point.rate))
    assert found.choice is not None and found.learning_rate in tried and found.choice.helps
    rule = tint.LearningRule.full(learning_rate=0.02)
    assert tint.learn(model, TEXT, rule=rule).rule == rule
    assert tint.learn(model, TEXT, rule=rule, learning_rate=0.01, layers=1).rule == tint.LearningRule.full(
        learning_rate=0.01, layers=1
    )
    assert tint.learn(model, TEXT, rule=rule, learning_rate="auto").choice is not None


def test_a_text_that_follows_is_scored(model: tint.Auxiliary) -> None:
    half = TEXT.index("Ada lights")
    first, second = TEXT[:half] + "\n", TEXT[half : half + 80]
    result = tint.learn(model, first, evaluate=second + "\n", learning_rate=RATE)
    tokens = model.tokenizer(first)["input_ids"]
    assert result.train_tokens == len(tokens) and result.text == first + second
    assert list(result.encoded.input_ids[: len(tokens)]) == tokens
    assert "".join(result.encoded.tokens[len(tokens) :]) == second
    assert result.evaluation_tokens == len(result.encoded.input_ids) - len(tokens)


def test_tables_with_pandas_and_without(result: tint.LearnResult, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = result.token_table()
    assert list(frame.columns)[:5] == ["position", "token", "loss_before", "loss", "change"]
    assert len(frame) == result.evaluation_tokens
    assert frame["loss"].mean() == pytest.approx(result.loss)
    assert "".join(frame["token"]) == "".join(result.encoded.tokens[result.train_tokens :])
    expected = frame.to_dict("records")
    monkeypatch.setitem(sys.modules, "pandas", None)
    rows = result.token_table()
    assert rows == expected and rows[0]["position"] == result.train_tokens
    assert rows[0]["probability"] == pytest.approx(math.exp(-rows[0]["loss"]))


def test_generation_before_and_after(model: tint.Auxiliary, result: tint.LearnResult) -> None:
    greedy = result.generate("The lamp", max_new_tokens=6)
    assert greedy.before == model.generate("The lamp", max_new_tokens=6)
    assert greedy.after == result.tuned.generate("The lamp", max_new_tokens=6) != greedy.before
    shown = str(greedy)
    assert shown.startswith("prompt: The lamp\nbefore: ") and "\nafter:  " in shown
    state = torch.random.get_rng_state()
    one, two = (result.generate("The lamp", do_sample=True, temperature=2.0, seed=3) for _ in range(2))
    assert one == two != result.generate("The lamp", do_sample=True, temperature=2.0, seed=4)
    assert torch.equal(state, torch.random.get_rng_state())
    assert result.continuation is not None and result.continuation.prompt == TEXT
    with pytest.raises(tint.InputError, match=r"the prompt has .* was built for 128"):
        result.generate("The lamp", max_new_tokens=200)


def test_what_it_shows_of_itself(model: tint.Auxiliary, result: tint.LearnResult) -> None:
    assert len(repr(result)) < 400 and "perplexity" in repr(result) and "\n" not in repr(result)
    html = result._repr_html_()
    assert html.count("<span") == len(result.encoded.tokens) and "likelier by" in html and "before</th>" in html
    html = tint.learn(model, HOSTILE, learning_rate=RATE, generate=2)._repr_html_()
    assert "<script>" not in html and "<b>keeper" not in html and "&lt;" in html


def test_the_simulator_and_its_knobs(model: tint.Auxiliary, result: tint.LearnResult) -> None:
    built = tint.learn(model, TEXT, learning_rate=RATE, engine="simulator", stack=2)
    assert built.construction is not None and built.construction["stack"] == 2
    assert built.loss == pytest.approx(result.loss, abs=1e-4)


@pytest.mark.parametrize(
    ("text", "keywords", "message"),
    [
        (7, {}, "text=7 must be a text"),
        (" ", {}, "the text is empty"),
        ("A", {}, "at least 4 are needed"),
        (Path("no-such-file"), {}, "cannot read no-such-file"),
        (TEXT, {"learning_rate": "fast"}, "learning_rate='fast' is neither a number nor 'auto'"),
        (TEXT, {"learning_rate": -1}, "learning_rate=-1 must be"),
        (TEXT, {"rule": "best"}, "rule='best' is unknown; give a LearningRule, or one of default, paper, full"),
        (TEXT, {"rule": 3}, "rule=3 is unknown"),
        (TEXT, {"stepps": 3}, "unknown keyword stepps; .* learning rule"),
        (TEXT, {"stack": 3}, "stack: knobs of the simulator; leave them out with engine='fast'"),
        (TEXT, {"engine": "steam"}, "engine='steam' is unknown"),
        (TEXT, {"steps": 0}, "steps=0 must be"),
        (TEXT, {"layers": 9}, "layers=9 but the model has 2 blocks"),
        (TEXT, {"train_fraction": 2}, "train_fraction=2 must lie between 0 and 1"),
        (TEXT, {"evaluate": TEXT, "train_tokens": 9}, "evaluate says where the training part ends"),
        (TEXT, {"evaluate": TEXT}, "was built for 128 and has learned positions"),
        (TEXT, {"generate": -1}, "generate=-1 must be a whole number of at least 0"),
        (TEXT, {"seed": "x"}, "seed='x' must be a whole number"),
        (TEXT, {"dtype": "int77"}, "dtype='int77' is unknown"),
        (TEXT, {"device": "cpu"}, "a model that is loaded keeps its dtype and device; give them to tint.load"),
    ],
)
def test_bad_input_is_one_line(model: tint.Auxiliary, text: Any, keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(tint.TintError, match=message) as raised:
        tint.learn(model, text, **keywords)
    assert "\n" not in str(raised.value)


def test_a_text_scored_by_an_earlier_update_says_so(model: tint.Auxiliary, result: tint.LearnResult) -> None:
    from tintformer.study.learn import score_text

    scored = score_text(model, TEXT, result.tuned)
    assert "with an update learnt earlier" in repr(scored) and scored.train_tokens == 0
