"""Texts of a model: its tokens, and how a text is continued."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tintformer.errors import InputError, LoadError
from tintformer.typed_fields import checked

if TYPE_CHECKING:
    from tintformer.auxiliary.description import Auxiliary


MIN_TOKENS = 4
"""Fewer cannot be split into a training part with a target and an evaluation part."""


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A text as a model reads it."""

    input_ids: tuple[int, ...]
    tokens: tuple[str, ...]
    """What each token stands for in the text; a special token by its name."""
    ends: tuple[int, ...] = ()
    """Where each of them ends in the text; empty if the tokenizer does not say."""

    def first(self, count: int | None) -> Encoded:
        """Its first tokens; with None, all of them."""
        return Encoded(input_ids=self.input_ids[:count], tokens=self.tokens[:count], ends=self.ends[:count])

    def of(self, text: str) -> str:
        """The part of the text that they cover."""
        return text[: max(self.ends)] if self.ends else text


def encode(tokenizer: Any, text: str, *, at_least: int = MIN_TOKENS, special: bool = True) -> Encoded:
    """Tokens of a text, with the special tokens that the tokenizer itself adds; a BOS never stands there twice.

    Without `special` it adds none: the text goes on from another one.
    """
    offsets = bool(tokenizer.is_fast)
    with panics_as_errors("the tokenizer"):
        encoding = tokenizer(text, return_offsets_mapping=offsets, verbose=False, add_special_tokens=special)
    ids: list[int] = list(encoding["input_ids"])
    spans: list[tuple[int, int]] = list(encoding["offset_mapping"]) if offsets else [(0, 0)] * len(ids)
    if ids[:2] == [tokenizer.bos_token_id] * 2:
        ids, spans = ids[1:], spans[1:]
    if len(ids) < at_least:
        count = "1 token" if len(ids) == 1 else f"{len(ids)} tokens"
        raise InputError(f"the text has {count}; at least {at_least} are needed, so give a longer one")
    # A span keeps the space before a word, which sentencepiece drops when it decodes a token alone.
    tokens = [text[start:end] or decode(tokenizer, [token]) for token, (start, end) in zip(ids, spans, strict=True)]
    ends = tuple(end for _, end in spans) if offsets else ()
    return Encoded(input_ids=tuple(ids), tokens=tuple(tokens), ends=ends)


def decode(tokenizer: Any, ids: list[int]) -> str:
    """The text of some tokens, special ones by name."""
    with panics_as_errors("the tokenizer"):
        return str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))


def decode_continuation(tokenizer: Any, ids: list[int], start: int) -> str:
    """What the tokens from `start` on add to the text of those before, a leading space included."""
    whole, beginning = decode(tokenizer, ids), decode(tokenizer, ids[:start])
    return whole.removeprefix(beginning) if whole.startswith(beginning) else decode(tokenizer, ids[start:])


@contextmanager
def panics_as_errors(what: str) -> Generator[None]:
    """Turn a panic of the library tokenizers, which is no Exception in Python, into an error of one line."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        # The whole of it would quote the text.
        raise LoadError(f"{what} fails within the library tokenizers ({str(error)[:200]}); use another one") from None


def is_panic(error: BaseException) -> bool:
    return type(error).__name__ == "PanicException"


NEW_TOKENS = 40
"""Tokens that are generated unless a number is given."""
_ONLY_ROTARY = "of them; shorten it, or give --beyond-context (beyond_context=True in Python) to see how far it gets"


def continue_text(auxiliary: Auxiliary, model: Any, prompt: str, *, seed: int | None = None, **options: Any) -> str:
    """What `model`, the auxiliary's own or one with its weights updated, adds to a prompt.

    Greedy unless `options`, those of Hugging Face's `generate`, say otherwise. `seed` makes sampling repeatable;
    without it torch's own state is used, as there.
    """
    import torch  # here: commands check the length of a text before torch is there

    checked("prompt", prompt, str, InputError)
    checked("seed", seed, int | None, InputError)
    auxiliary.require_unchanged()
    ids = encode(auxiliary.tokenizer, prompt, at_least=1).input_ids
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, **_padding(auxiliary, model), **options}
    if isinstance(count := options["max_new_tokens"], int) and auxiliary.learned_positions:
        check_context_length(auxiliary, len(ids), generate=count, text="the prompt")
    input_ids = torch.tensor([ids], device=auxiliary.device)
    forked = [auxiliary.device] if auxiliary.device.type == "cuda" else []
    with torch.random.fork_rng(forked, enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        output = model.generate(input_ids, attention_mask=torch.ones_like(input_ids), **options)
    return decode_continuation(auxiliary.tokenizer, output[0].tolist(), len(ids))


def _padding(auxiliary: Auxiliary, model: Any) -> dict[str, Any]:
    """A padding token where the model has none, of which transformers would warn; one prompt is never padded."""
    if model.generation_config.pad_token_id is not None or auxiliary.tokenizer.eos_token_id is None:
        return {}
    return {"pad_token_id": auxiliary.tokenizer.eos_token_id}


def check_context_length(
    auxiliary: Auxiliary, num_tokens: int, beyond_context: bool = False, generate: int = 0, *, text: str = "the text"
) -> None:
    """Refuse more tokens than the model was built for; only positions that are not learned can go beyond."""
    longest = auxiliary.max_positions
    if longest is None or num_tokens + generate <= longest or (beyond_context and not auxiliary.learned_positions):
        return
    tokens = f"{text} has {num_tokens} tokens" + (f" and {generate} are to be generated" if generate else "")
    remedy = "and has learned positions; shorten it" if auxiliary.learned_positions else _ONLY_ROTARY
    if text == "the text" and (room := longest - generate) > 1:
        remedy += f"; --tokens {room} (tokens={room} in Python) takes the first of them"
    raise InputError(f"{tokens}, but {auxiliary.name} was built for {longest} {remedy}")
