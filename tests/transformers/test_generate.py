# pyright: basic
"""Generation with a cache is scoring step by step without one, and a padded batch is one sequence after the other."""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import FIRST, MODELS, alone, every, make_batch, make_model, make_rule
from tiny import TEXT, save_model
from torch import Tensor
from transformers import AutoTokenizer, DynamicCache, GenerationConfig, TextStreamer, pipeline

import tintformer as tint

NEW = 4
RATE = 3e-2
"""Large enough to change what a tiny model says."""
ENGINES = ["fast", "simulator"]


@cache
def tint_of(name: str, rule: str, engine: str) -> tint.Tint:
    return tint.Tint(make_model(name), make_rule(rule, learning_rate=RATE), engine=engine)


def make(name: str, rule: str = "default", **knobs: Any) -> Any:
    model: Any = tint.TintForCausalLM.from_auxiliary(make_model(name), make_rule(rule, learning_rate=RATE), **knobs)
    model.generation_config.eos_token_id = None  # every sequence gets all its tokens
    return model


def prompt(padding: str = "left") -> dict[str, Any]:
    return make_batch(lengths=(9, 6, 8), padding=padding)


def next_logits(name: str, rule: str, ids: Tensor, train: Tensor, attended: Tensor, engine: str) -> Tensor:
    """What `Tint` predicts for the next token after it has learnt from the prompt, all of it computed anew."""
    later = torch.zeros(len(ids), ids.shape[1] - train.shape[1], dtype=torch.bool)
    out = tint_of(name, rule, engine)(
        ids, train_mask=torch.cat((train, later), dim=1), attention_mask=torch.cat((attended, ~later), dim=1)
    )
    assert out.logits is not None
    return out.logits[:, -1]


def step_by_step(
    name: str, batch: dict[str, Any], *, rule: str = "default", engine: str = "fast", seed: int | None = None
):
    """Greedy, or sampled as transformers samples."""
    ids, train, attended = batch["input_ids"], batch["train_mask"], batch["attention_mask"].bool()
    if seed is not None:
        torch.manual_seed(seed)
    for _ in range(NEW):
        logits = next_logits(name, rule, ids, train, attended, engine).float()
        chosen = logits.argmax(-1, keepdim=True) if seed is None else torch.multinomial(logits.softmax(-1), 1)
        ids = torch.cat((ids, chosen), dim=1)
    return ids


@pytest.mark.parametrize(("name", "engine"), every(3, product(MODELS, ["fast", "simulator"])))
def test_greedy_generation_is_scoring_step_by_step(name: str, engine: str) -> None:
    batch = prompt()
    found = make(name, engine=engine).generate(**batch, max_new_tokens=NEW, do_sample=False)
    assert torch.equal(found, step_by_step(name, batch, engine=engine))


@pytest.mark.parametrize("name", every(3, FIRST))
def test_sampling_with_a_seed_is_scoring_step_by_step(name: str) -> None:
    batch, model = prompt(), make(name)
    for use_cache in (True, False):
        torch.manual_seed(3)
        found = model.generate(**batch, max_new_tokens=NEW, do_sample=True, top_k=0, use_cache=use_cache)
        assert torch.equal(found, step_by_step(name, batch, seed=3))


@pytest.mark.parametrize(("name", "engine"), every(5, product(FIRST, ["fast", "simulator"])))
def test_a_padded_batch_is_one_sequence_after_the_other(name: str, engine: str) -> None:
    batch, model = prompt(), make(name, "full", engine=engine)
    together = model.generate(**batch, max_new_tokens=NEW, do_sample=False)
    for row in range(3):
        single = alone(batch, row)
        found = model.generate(**single, max_new_tokens=NEW, do_sample=False)
        assert torch.equal(found[0], together[row, -found.shape[1] :])


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped", "bloom", "mistral"])
def test_the_logits_of_every_step(name: str) -> None:
    batch, model = prompt(), make(name)
    options = {"max_new_tokens": NEW, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    cached, plain = (model.generate(**batch, **options, use_cache=use_cache) for use_cache in (True, False))
    assert isinstance(cached.past_key_values, tint.TintCache) and plain.past_key_values is None
    assert cached.past_key_values.get_seq_length() == 9 + NEW - 1
    for first, second in zip(cached.logits, plain.logits, strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=1e-6)  # transformers rounds them to float32


def test_the_whole_prompt_trains_unless_told_otherwise() -> None:
    batch = prompt()
    everything = batch | {"train_mask": batch["attention_mask"].bool()}
    del batch["train_mask"]
    for use_cache in (True, False):
        found = make("gpt2").generate(**batch, max_new_tokens=NEW, do_sample=False, use_cache=use_cache)
        assert torch.equal(found, step_by_step("gpt2", everything))
        half = make("gpt2", train_fraction=0.5).generate(
            **batch, max_new_tokens=NEW, do_sample=False, use_cache=use_cache
        )
        number = batch["attention_mask"].cumsum(-1)
        part = (number <= torch.tensor([[4], [3], [4]])) & batch["attention_mask"].bool()
        assert torch.equal(half, step_by_step("gpt2", batch | {"train_mask": part}))


def test_learning_changes_what_is_generated() -> None:
    batch = prompt()
    learnt = make("llama").generate(**batch, max_new_tokens=12, do_sample=False)
    frozen: Any = tint.TintForCausalLM.from_auxiliary(make_model("llama"), tint.LearningRule(learning_rate=0.0))
    plain = frozen.generate(**batch, max_new_tokens=12, do_sample=False, eos_token_id=None)
    assert not torch.equal(learnt, plain)
    expected = make_model("llama").generate(
        batch["input_ids"],
        attention_mask=batch["attention_mask"],
        max_new_tokens=12,
        do_sample=False,
        eos_token_id=None,
    )
    assert torch.equal(plain, expected)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("use_cache", [True, False])
def test_beams(engine: str, use_cache: bool) -> None:
    """Three beams that keep the two best: compared with a search that scores every step anew."""
    batch = alone(prompt(), 0)
    model = make("llama", engine=engine)
    options = {"num_beams": 3, "num_return_sequences": 2, "do_sample": False, "length_penalty": 0.0}
    found = model.generate(**batch, max_new_tokens=4, use_cache=use_cache, **options)
    beams = [(0.0, batch["input_ids"])]
    for _ in range(4):
        grown = []
        for score, ids in beams:
            attended = torch.ones_like(batch["train_mask"])
            logits = next_logits("llama", "default", ids, batch["train_mask"], attended, engine)
            best = logits.log_softmax(-1)[0].topk(6)
            grown += [
                (score + float(value), torch.cat((ids, index.view(1, 1)), dim=1))
                for value, index in zip(*best, strict=True)
            ]
        beams = sorted(grown, key=lambda beam: -beam[0])[:3]
    assert torch.equal(found, torch.cat([ids for _, ids in beams[:2]]))


def test_several_samples_of_a_prompt() -> None:
    batch, model = alone(prompt(), 0), make("gpt2")
    torch.manual_seed(0)
    found = model.generate(**batch, max_new_tokens=NEW, do_sample=True, num_return_sequences=3)
    assert found.shape == (3, 9 + NEW) and len(set(map(tuple, found.tolist()))) > 1


def test_a_conversation_goes_on_with_what_was_learnt() -> None:
    model, cache = make("llama"), tint.TintCache()
    batch = alone(prompt(), 0)
    first = model.generate(**batch, max_new_tokens=3, do_sample=False, past_key_values=cache)
    longer = torch.cat((first, torch.tensor([[5, 6, 7]])), dim=1)
    found = model.generate(longer, max_new_tokens=1, do_sample=False, past_key_values=cache)
    expected = next_logits("llama", "default", longer, batch["train_mask"], torch.ones(1, 9, dtype=torch.bool), "fast")
    assert found[0, -1] == expected.argmax(-1)[0]


def test_sequences_that_end_early() -> None:
    batch, model = prompt(), make("gpt2")
    everything = model.generate(**batch, max_new_tokens=NEW, do_sample=False)
    end = int(everything[0, 9])
    assert end not in everything[1, 9:].tolist()
    found = model.generate(**batch, max_new_tokens=NEW, do_sample=False, eos_token_id=end, pad_token_id=0)
    assert found[0, 9:].tolist() == [end] + [0] * (NEW - 1)
    assert torch.equal(found[1], everything[1])


def test_what_generation_refuses() -> None:
    model, batch = make("gpt2"), prompt()
    for wrong, message in (
        ({"cache_implementation": "static"}, "cache_implementation='static'"),
        ({"prefill_chunk_size": 4}, "prefill_chunk_size"),
        ({"past_key_values": DynamicCache()}, "past_key_values is a DynamicCache"),
    ):
        with pytest.raises(tint.InputError, match=message):
            model.generate(**batch, max_new_tokens=2, **wrong)
    with pytest.raises(ValueError, match="assisted generation is not supported"):
        model.generate(**alone(batch, 0), max_new_tokens=2, prompt_lookup_num_tokens=2)
    with pytest.raises(ValueError, match="train_masks"):
        model.generate(**batch, max_new_tokens=2, train_masks=batch["train_mask"])
    with pytest.raises(tint.InputError, match="has learned positions"):
        model.generate(**batch, max_new_tokens=80)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base, target = tmp_path_factory.mktemp("base"), tmp_path_factory.mktemp("tint")
    save_model(base)
    rule = tint.LearningRule(learning_rate=1e-3)
    tint.TintForCausalLM.from_auxiliary(base, rule).save_pretrained(target)
    AutoTokenizer.from_pretrained(base).save_pretrained(target)
    return target


def test_a_pipeline(saved: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(saved)
    model: Any = tint.TintForCausalLM.from_pretrained(saved)
    generator = pipeline("text-generation", model=model, tokenizer=tokenizer)
    texts = [TEXT[:60], TEXT[:90]]
    options = {"max_new_tokens": 6, "do_sample": False}
    together = generator(texts, batch_size=2, **options)
    for text, found in zip(texts, together, strict=True):
        assert found[0]["generated_text"].startswith(text)
        ids = tokenizer(text, return_tensors="pt")
        alone = model.generate(ids["input_ids"], attention_mask=ids["attention_mask"], **options)
        assert found[0]["generated_text"] == tokenizer.decode(alone[0], skip_special_tokens=True)


def test_a_pipeline_from_a_directory(saved: Path) -> None:
    generator: Any = pipeline("text-generation", model=str(saved))
    assert type(generator.model) is tint.TintForCausalLM
    assert len(generator(TEXT[:60], max_new_tokens=3)[0]["generated_text"]) > 60


def test_a_streamer(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(saved)
    model: Any = tint.TintForCausalLM.from_pretrained(saved)
    ids = tokenizer(TEXT[:60], return_tensors="pt")["input_ids"]
    config = GenerationConfig(max_new_tokens=4, do_sample=False, pad_token_id=1)
    model.generate(ids, generation_config=config, streamer=TextStreamer(tokenizer))
    assert capsys.readouterr().out.startswith("<s>" + TEXT[:60])
