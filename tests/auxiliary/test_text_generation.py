# pyright: basic
"""Models that are loaded have a tokenizer and generate text; the hub is not asked for what is here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny import make_model, make_tokenizer, save_model

import tintformer as tint
from tintformer.auxiliary.describe import describe
from tintformer.auxiliary.validation import check_model
from tintformer.bundled import BUNDLED


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_model_never_goes_to_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = transformers.AutoTokenizer.from_pretrained

    def from_pretrained(given: str, **options: Any) -> Any:
        asked.append(given)
        assert Path(given).is_dir() and options["local_files_only"]
        return real(given, **options)

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", from_pretrained)
    model = tint.load(name)
    assert not asked, "a tokenizer is found when it is needed"
    assert model.tokenizer is model.tokenizer and len(asked) == 1
    assert model.tokenizer.decode(model.tokenizer("The visit")["input_ids"], skip_special_tokens=True) == "The visit"


def test_text_goes_on_as_transformers_would(directory: Path) -> None:
    model = tint.load(directory)
    ids = torch.tensor([model.tokenizer("The lamp")["input_ids"]])
    plain = model.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False)
    assert model.generate("The lamp", max_new_tokens=5) == model.tokenizer.decode(plain[0, ids.shape[1] :])
    tuned = tint.Tuned.untrained(model)
    assert tuned.generate("The lamp", max_new_tokens=5) == model.generate("The lamp", max_new_tokens=5)
    torch.testing.assert_close(tuned.generate(ids, max_new_tokens=5, do_sample=False), plain)


def test_a_prompt_is_a_text(directory: Path) -> None:
    model = tint.load(directory)
    for prompt, options, message in (
        (torch.tensor([[1, 2]]), {}, "prompt=.* must be a text"),
        ("The lamp", {"seed": 0.5}, "seed=0.5 must be a whole number"),
        ("The lamp", {"max_new_tokens": 500}, "the prompt has .* 500 are to be generated, but .* was built for 128"),
    ):
        with pytest.raises(tint.InputError, match=message):
            model.generate(prompt, **options)  # pyright: ignore[reportArgumentType]


def test_a_model_without_a_tokenizer_says_what_it_needs() -> None:
    plain = make_model(320)
    auxiliary = describe(plain, check_model(plain, "mine"), "mine")
    with pytest.raises(tint.LoadError, match=r"mine came without a tokenizer; give one: tint.load\(model, tokenizer="):
        auxiliary.generate("The lamp")
    given = tint.load(auxiliary, tokenizer=make_tokenizer())
    assert isinstance(given.generate("The lamp", max_new_tokens=2), str)
    assert tint.load(given) is given
