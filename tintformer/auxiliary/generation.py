"""Continue a text with a model: tokens of the prompt, Hugging Face's own `generate`, and text again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tintformer.auxiliary.tokens import decode_continuation, encode
from tintformer.errors import InputError
from tintformer.typed_fields import checked

if TYPE_CHECKING:
    from tintformer.auxiliary.description import Auxiliary

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
