# pyright: basic
"""The models that ship with the package: found by name, small, in keeping with their cards, and worth adapting."""

from __future__ import annotations

import json
import math
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tintformer import LearningRule, Tint, load
from tintformer.bundled import BUNDLED, bundled_directory, rate_texts
from tintformer.learning.text import encode, find_tokenizer

LIMIT = 8_000_000
# Original prose in the manner of what the models have read.
TEXT = """\
Mrs. Harcourt had not been a week at Ashcombe before she was persuaded that the whole neighbourhood wished to see her
married. Her brother, who was the best of men, but who could not bear to be long in one room, assured her every morning
that Sir Edward was expected; and every evening, when Sir Edward had not come, he was as much surprised as if the roads
had never before been known to be bad. "You will like him," said he; "I am sure that you will like him. He has a very
good house, and he never speaks of it." Mrs. Harcourt replied that she had no doubt of liking the house.
"""
RATE_TEXTS = (
    "16b5c18dea3817f01df5907632fb384bd34a2248cf8cf66c72141383b3b5882e",
    "c25c107851163f490b99bd35cf502dc77a623be8c733440fb33b560e5f68a84e",
    "0b2b386840d07ca7658485cb5679afca445332da92de3f7e9f2de80f5bfc2c5a",
    "7765d8fd5e2b7a805021fc785709a73a6e5685a6b2c9027f0f09148ffa43082c",
    "f494375f03acbb59d0330e99d29a4b2ac407ee5c57c86f8df6e713c2017e3deb",
    "f71f6bb0dd9b91408d4396434edb8f2872b875e0de41462830b23f3921cc2bf9",
    "16e7cecb45f2a9c2658c1101f6eddec87c58ce9df2d3b65f2eeb187be9767ed1",
    "ec70d4d3904d0278a3af4d2381b23e3ebfc9921c8f471e3eb40ba8dd6ab1a8a5",
    "2717b77f4f8bb0bd0303cc5683a3b0aa84ea8b46c2d67e0e55b8a46203453d09",
    "d9c1c19612c7830c60722cc5b1fd7a59cac595db91b0b136f5b7f4a7fc48b560",
)
"""SHA-256 of the texts that rates are measured on: other texts would make other rates, beside those that ship."""


@pytest.fixture(scope="module", params=BUNDLED)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def directory(name: str) -> Path:
    found = bundled_directory(name)
    assert found is not None
    return found


@torch.no_grad()
def token_losses(name: str, text: str) -> torch.Tensor:
    ids = torch.tensor([encode(find_tokenizer(name), text).input_ids])[:, :512]
    logits = load(name).model(input_ids=ids).logits
    return torch.nn.functional.cross_entropy(logits[0, :-1].double(), ids[0, 1:], reduction="none")


def bits_per_byte(name: str, text: str) -> float:
    return float(token_losses(name, text).sum()) / math.log(2) / len(text.encode())


def test_a_name_loads_offline_in_float32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("a bundled model needs no network"))
    auxiliary = load(name)
    assert {parameter.dtype for parameter in auxiliary.model.parameters()} == {torch.float32}
    assert {parameter.dtype for parameter in load(name, dtype=torch.float64).model.parameters()} == {torch.float64}
    assert len(find_tokenizer(name)) == auxiliary.model.config.vocab_size


def test_a_local_directory_of_that_name_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = BUNDLED
    (tmp_path / first).symlink_to(directory(second))
    monkeypatch.chdir(tmp_path)
    assert load(first).model.config.model_type == "llama"
    assert bundled_directory("gpt2") is None


def test_files_are_small_and_whole(name: str) -> None:
    files = {path.name: path.stat().st_size for path in directory(name).iterdir()}
    wanted = {"README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    assert files.keys() == wanted | {"tokenizer_config.json"}
    assert sum(files.values()) <= LIMIT


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        " two  spaces\n\n\n\tand a tab ",
        "Zoë's naïve café, 東京, 🙂",
        "\x00\x7f\r\n",
        "don't I'll O'er 'tis 1,024.50",
    ],
)
def test_the_tokenizer_gives_every_text_back(name: str, text: str) -> None:
    tokenizer = find_tokenizer(name)
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert tokenizer.bos_token_id == tokenizer.eos_token_id not in ids


def test_words_of_the_texts_are_few_tokens(name: str) -> None:
    assert len(encode(find_tokenizer(name), TEXT).input_ids) < len(TEXT) / 2.5


def test_the_card_says_what_the_configuration_says(name: str) -> None:
    card = (directory(name) / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", card, flags=re.MULTILINE))
    model = load(name).model
    config = model.config
    assert f"# {name}\n" in card
    assert rows["parameters"] == f"{sum(parameter.numel() for parameter in model.parameters()):,}"
    assert (rows["layers"], rows["width"]) == (str(config.num_hidden_layers), str(config.hidden_size))
    assert (rows["heads"], rows["vocabulary"]) == (str(config.num_attention_heads), f"{config.vocab_size:,}")
    assert rows["context"] == f"{config.max_position_embeddings} tokens" == "512 tokens"
    assert rows["stored as"] == json.loads((directory(name) / "config.json").read_text())["dtype"]
    assert rows.get("key/value heads") == ("2" if name == "nano-llama" else None)
    assert f"--preset {name}" in card and f"--steps {rows['steps'].replace(',', '')}" in card


def test_the_card_beats_its_baselines(name: str) -> None:
    card = (directory(name) / "README.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (\S+) \| ([\d,]+) \| ([\d,]+) \| ([\d.]+) \| \*\*([\d.]+)\*\* \| ([\d.]+) \| ([\d.]+) \|$", card, re.M
    )
    assert len(rows) == 4
    for _, num_bytes, num_tokens, *rates in rows:
        nats, bits, character, unigram = (float(rate) for rate in rates)
        per_byte = int(num_tokens.replace(",", "")) / int(num_bytes.replace(",", ""))
        assert math.isclose(nats * per_byte / math.log(2), bits, abs_tol=2e-3)
        assert bits < 0.85 * character < unigram


def test_prose_of_its_kind_is_predicted_and_noise_is_not(name: str) -> None:
    bits = bits_per_byte(name, TEXT)
    assert bits < 2.1
    shuffled = " ".join(sorted(TEXT.split(), key=lambda word: word[::-1]))
    assert bits_per_byte(name, shuffled) > bits + 0.3


def test_all_positions_of_the_context_are_trained(name: str) -> None:
    """The second half of a full window is predicted no worse than the first."""
    losses = token_losses(name, TEXT * 4)
    assert len(losses) == 511
    assert float(losses[256:].mean()) < float(losses[:256].mean()) + 0.2


def test_transformers_reads_it_without_us(name: str) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(directory(name), dtype=torch.float32, local_files_only=True)
    ids = torch.tensor([encode(find_tokenizer(name), "She was the daughter of").input_ids])
    written = model.generate(ids, max_new_tokens=8, do_sample=False, attention_mask=torch.ones_like(ids))
    assert written.shape == (1, ids.shape[1] + 8)
    torch.testing.assert_close(model(ids).logits, load(name).model(ids).logits)


def test_adapting_to_the_first_part_helps_with_the_second(name: str) -> None:
    ids = torch.tensor([encode(find_tokenizer(name), TEXT + TEXT).input_ids])
    mask = torch.arange(ids.shape[1])[None] < ids.shape[1] // 2
    out = Tint(load(name), LearningRule(learning_rate=1e-4))(ids, train_mask=mask, before=True)
    assert out.loss is not None and out.loss_before is not None
    assert float(out.loss) < float(out.loss_before) - 0.05


def test_the_texts_that_rates_are_measured_on_stay() -> None:
    assert tuple(sha256(text.encode()).hexdigest() for text in rate_texts()) == RATE_TEXTS
