# pyright: basic
"""Generation in the harness: by the updated model, until a stop sequence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from films import request

import tintformer as tint
from tintformer.errors import InputError
from tintlab.harness import TintLM
from tintlab.harness.arguments import GenerationOptions

PROMPTS = [
    "The roads to Harlow Lodge were bad, and the roads to Harlow Lodge were long. The roads to",
    "The King",
]
NEW = 8


@pytest.fixture(scope="module")
def lm() -> TintLM:
    return TintLM(pretrained="nano-llama", learning_rate=1e-3, dtype="float64", batch_size=2)


def generate(lm: TintLM, prompts: list[str] = PROMPTS, **options: Any) -> list[str]:
    asked = [request("generate_until", prompt, {"max_gen_toks": NEW, **options}) for prompt in prompts]
    return lm.generate_until(asked)


def step_by_step(lm: TintLM, prompt: str) -> str:
    """Everything computed anew for each token, by `Tint`."""
    sim, ids = tint.Tint(lm.model.auxiliary, lm.arguments.rule), lm.tok_encode(prompt)
    start = len(ids)
    for _ in range(NEW):
        train = torch.arange(len(ids))[None] < start
        logits = sim(torch.tensor([ids]), train_mask=train).logits
        assert logits is not None
        ids.append(int(logits[0, -1].argmax()))
    return lm.tokenizer.decode(ids[start:], skip_special_tokens=True)


@pytest.mark.sweep
def test_it_is_generated_as_if_step_by_step(lm: TintLM) -> None:
    found = generate(lm)
    assert found == [step_by_step(lm, prompt) for prompt in PROMPTS]
    plain = TintLM(pretrained="nano-llama", learning_rate=0, dtype="float64")
    assert generate(plain) != found


def test_it_ends_before_a_stop_sequence(lm: TintLM) -> None:
    whole, _ = generate(lm)
    stop = whole[len(whole) // 2 :][:3]
    assert generate(lm, PROMPTS[:1], until=[stop, "never"]) == [whole.partition(stop)[0]]
    assert generate(lm, PROMPTS[:1], until=stop) == [whole.partition(stop)[0]]


def test_requests_with_other_options_keep_their_places(lm: TintLM) -> None:
    asked = [
        request("generate_until", PROMPTS[0], {"max_gen_toks": 2}),
        request("generate_until", PROMPTS[1], {"max_gen_toks": NEW}),
        request("generate_until", PROMPTS[1], {"max_gen_toks": 2}),
    ]
    short, long, other = lm.generate_until(asked)
    first, second = generate(lm)
    assert first.startswith(short) and second == long and second.startswith(other)


def test_sampling_follows_the_seed(lm: TintLM) -> None:
    def sampled(seed: int) -> list[str]:
        torch.manual_seed(seed)
        return generate(lm, temperature=1.0, top_k=50)

    assert sampled(0) == sampled(0) != sampled(1)


def test_options_have_the_names_of_the_harness() -> None:
    assert GenerationOptions.of({"until": "\n", "temperature": 0.0}) == GenerationOptions(
        max_new_tokens=256, until=("\n",), extra={"do_sample": False}
    )
    assert GenerationOptions.of({"do_sample": False, "temperature": 0.7, "max_new_tokens": 3}).extra == {
        "do_sample": False
    }
    assert GenerationOptions.of({"temperature": 0.7}).extra == {"do_sample": True, "temperature": 0.7}
    with pytest.raises(InputError, match="do_sample=True with temperature=0"):
        GenerationOptions.of({"do_sample": True, "temperature": 0})


def test_more_tokens_than_there_is_room_for_are_refused(lm: TintLM) -> None:
    with pytest.raises(InputError, match="5000 tokens are to be generated"):
        generate(lm, max_gen_toks=5000)


def test_a_prompt_that_is_too_long_loses_its_beginning() -> None:
    lm = TintLM(pretrained="nano-llama", learning_rate=1e-3, dtype="float64", max_length=16 + NEW)
    cut = lm.tokenizer.decode(lm.tok_encode(PROMPTS[0])[-16:])
    assert generate(lm, PROMPTS[:1]) == [step_by_step(lm, cut)]


def test_chat_templates_are_the_tokenizers_own(lm: TintLM, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = [{"role": "user", "content": "Who is dead?"}]
    with pytest.raises(InputError, match="nano-llama has no chat template"):
        lm.apply_chat_template(chat)
    monkeypatch.setattr(
        lm.tokenizer, "chat_template", "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
    )
    assert lm.apply_chat_template(chat) == "user: Who is dead?"
