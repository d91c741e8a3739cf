# pyright: basic
"""A finished model and the baselines on the held-out texts, in the same units."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from tintformer.errors import InputError
from training.baselines import character_bits, unigram_nats
from training.corpus import encode_sources, encode_whole
from training.evaluate import score


@dataclass(frozen=True, kw_only=True)
class Result:
    """One held-out text; sums, so that results can be added."""

    name: str
    num_bytes: int
    num_tokens: int
    model_nats: float
    unigram_nats: float
    character_bits: float

    @property
    def nats_per_token(self) -> float:
        return self.model_nats / self.num_tokens

    @property
    def bits_per_byte(self) -> float:
        return self.model_nats / math.log(2) / self.num_bytes

    @property
    def unigram_bits_per_byte(self) -> float:
        return self.unigram_nats / math.log(2) / self.num_bytes

    @property
    def character_bits_per_byte(self) -> float:
        return self.character_bits / self.num_bytes

    def record(self) -> dict[str, Any]:
        """The sums and the rates that a reader compares."""
        rates = ("nats_per_token", "bits_per_byte", "unigram_bits_per_byte", "character_bits_per_byte")
        return {**asdict(self), **{rate: round(getattr(self, rate), 4) for rate in rates}}


def measure(run: Any, model: Any, tokenizer: Any) -> list[Result]:
    """Each held-out text of a run, and all of them together."""
    if not run.held_out:
        raise InputError("the run has no held-out text; train with --held-out, or there is nothing to measure")
    train_tokens = encode_sources(tokenizer, run.texts)
    train_bytes = "\n".join(source.text for source in run.texts).encode()
    results: list[Result] = []
    for source in run.held_out:
        tokens = encode_whole(tokenizer, source)
        nats, count = score(model, tokens, run.settings.context)
        result = Result(
            name=source.name,
            num_bytes=source.num_bytes,
            num_tokens=count,
            model_nats=nats,
            unigram_nats=unigram_nats(train_tokens, tokens[1:], tokenizer.get_vocab_size()),
            character_bits=character_bits(train_bytes, source.text.encode()),
        )
        results.append(result)
    return [*results, _total(results)]


def _total(results: list[Result]) -> Result:
    return Result(
        name="all",
        num_bytes=sum(result.num_bytes for result in results),
        num_tokens=sum(result.num_tokens for result in results),
        model_nats=sum(result.model_nats for result in results),
        unigram_nats=sum(result.unigram_nats for result in results),
        character_bits=sum(result.character_bits for result in results),
    )
