# pyright: basic
"""`learning_rate="auto"` wherever a rule meets a text: for each row on its own; refused where a rate is built in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import TEXT, make_model, make_tokenizer

import tintformer as tint
from tintformer.learning import rate_selection
from tintformer.learning.rate_selection import RateChoice, choose_rate

AUTO = tint.LearningRule(learning_rate="auto")


@pytest.fixture(scope="module")
def auxiliary() -> Any:
    return tint.load(make_model(len(make_tokenizer())))


@pytest.fixture(scope="module")
def rows() -> dict[str, Any]:
    """A text, and a shorter piece from the middle of it, padded."""
    ids = torch.tensor([make_tokenizer()(TEXT)["input_ids"]])
    short = ids[:, 20:80]
    width = ids.shape[1]
    padding = width - short.shape[1]
    there = torch.tensor([[1] * width, [1] * short.shape[1] + [0] * padding])
    both = torch.cat((ids, torch.nn.functional.pad(short, (0, padding))))
    return {"input_ids": both, "attention_mask": there, "train_mask": (torch.arange(width) < 45).expand(2, width)}


def alone(rows: dict[str, Any], row: int) -> dict[str, Any]:
    there = rows["attention_mask"][row].bool()
    return {name: value[row : row + 1, there] for name, value in rows.items()}


@pytest.mark.parametrize("engine", ["fast", "reference", "oracle"])
def test_a_batch_is_its_rows_one_by_one(auxiliary: Any, rows: dict[str, Any], engine: str) -> None:
    sim: Any = tint.Tint(auxiliary, AUTO, engine=engine)
    both = sim(**rows, before=True)
    for row in range(2):
        single = sim(**alone(rows, row), before=True)
        there = rows["attention_mask"][row].bool()
        assert both.learning_rates[row] == single.learning_rates[0]
        torch.testing.assert_close(both.token_loss[row][there], single.token_loss[0], rtol=1e-4, atol=1e-4)
        choice = choose_rate(auxiliary, AUTO, **alone(rows, row))
        assert float(single.learning_rates[0]) == choice.rate
    number = tint.LearningRule(learning_rate=float(both.learning_rates[0]))
    assert torch.equal(
        sim(**alone(rows, 0)).token_loss, tint.Tint(auxiliary, number, engine=engine)(**alone(rows, 0)).token_loss
    )


def test_an_update_has_a_number(auxiliary: Any, rows: dict[str, Any], tmp_path: Path) -> None:
    masks = {name: rows[name] for name in ("input_ids", "attention_mask")}
    tuned = tint.Tint(auxiliary, AUTO).adapt(**masks)
    choice = choose_rate(auxiliary, AUTO, train_mask=rows["attention_mask"], **masks, together=True)
    assert tuned.rule.learning_rate == choice.rate
    tuned.save(tmp_path / "update")
    assert tint.Tuned.load(tmp_path / "update", auxiliary).rule == tuned.rule


def test_the_transformers_model_chooses_for_each_prompt(auxiliary: Any, rows: dict[str, Any], tmp_path: Path) -> None:
    model: Any = tint.TintForCausalLM.from_auxiliary(auxiliary.model, AUTO)
    masks = {name: rows[name] for name in ("input_ids", "attention_mask", "train_mask")}
    learner: Any = tint.Tint(auxiliary, AUTO)
    out, expected = model(**masks), learner(**masks)
    there = masks["attention_mask"].bool()
    torch.testing.assert_close(out.logits[there], expected.logits[there], rtol=1e-3, atol=1e-3)
    options = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    prompt = {name: rows[name][:1, :60] for name in ("input_ids", "train_mask")}
    assert torch.equal(model.generate(**prompt, **options), model.generate(**prompt, **options, use_cache=False))
    with pytest.raises(tint.RuleError, match="'auto' is chosen for each text, but a saved model holds one rate"):
        model.save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()


REFUSALS = {
    "a simulator": lambda model: tint.build(model, AUTO),
    "a simulator ": lambda model: tint.Tint(model, AUTO, engine="simulator"),
    "a network": lambda model: tint.Tint(model, AUTO, engine="network"),
    "a network ": lambda model: tint.compile(model, AUTO, max_tokens=4),
    "a simulator   ": lambda model: tint.TintForCausalLM.from_auxiliary(model.model, AUTO, "simulator"),
}


@pytest.mark.parametrize("holder", REFUSALS)
def test_what_holds_the_rate_in_its_weights_refuses_it(auxiliary: Any, holder: str) -> None:
    with pytest.raises(tint.RuleError, match=f"'auto' is chosen for each text, but {holder.strip()} holds one rate"):
        REFUSALS[holder](auxiliary)


def test_an_export_refuses_it(auxiliary: Any) -> None:
    from tintformer.network.export import PortableFast

    with pytest.raises(tint.RuleError, match="but an export holds one rate: give one, such as tintformer"):
        PortableFast(auxiliary, AUTO)


def test_a_ruinous_result_is_a_warning(auxiliary: Any, rows: dict[str, Any]) -> None:
    ruin = tint.Tint(auxiliary, tint.LearningRule(learning_rate=5.0))
    with pytest.warns(tint.TintWarning, match=r"row 0: learning has made the predictions much worse \(loss"):
        out = ruin(**rows, before=True)
    assert 0 in out.ruined_rows()
    with pytest.warns(tint.TintWarning, match="^learning has made the predictions much worse"):
        ruin(**alone(rows, 0), before=True)
    ruin(**rows)  # nothing is known of before
    with pytest.warns(tint.TintWarning, match="^learning has made the predictions much worse"):
        tint.build(auxiliary, tint.LearningRule(learning_rate=5.0))(**alone(rows, 0), before=True)


def test_the_remedy_is_not_what_was_done_and_the_place_is_the_users(
    auxiliary: Any, rows: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def learnt(**how: Any) -> Any:
        return tint.learn(auxiliary.model, TEXT, tokenizer=make_tokenizer(), **how)

    with pytest.warns(tint.TintWarning, match="leave it to learning_rate='auto'"):
        learnt(learning_rate=5.0)
    ruinous = RateChoice(rate=5.0, curve=(), helps=False, train_tokens=45, evaluation_tokens=0)
    monkeypatch.setattr(rate_selection, "choose_for", lambda *_, **__: ruinous)
    for ruin in (learnt, lambda: tint.Tint(auxiliary, AUTO)(**alone(rows, 0), before=True)):
        with pytest.warns(tint.TintWarning, match="train on more of it, .* a quarter of the rate as") as told:
            ruin()
        assert "'auto'" not in str(told[0].message) and told[0].filename == __file__
