# pyright: basic
"""The knobs of a training run and the shapes it can train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tintformer.errors import InputError

PRESETS = ("nano-gpt2", "nano-llama")
WIDTH, LAYERS, HEADS = 192, 6, 6


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything besides the texts that decides the losses of a run."""

    preset: str
    """The architecture: nano-gpt2 or nano-llama."""
    steps: int
    """Steps of the optimiser; the schedule is stretched over them."""
    seed: int = 0
    """Decides the first weights and the order of the windows."""
    vocabulary: int = 3072
    """Entries of the tokenizer; too many waste parameters on rare words, too few make sequences long."""
    context: int = 512
    """The longest text the model reads, in tokens."""
    short_context: int = 256
    """Windows of the first part of the run: attention over them costs less, so more tokens are seen."""
    short_share: float = 0.8
    """Share of the steps with short windows; at 1 the model never meets a text of full length."""
    batch_tokens: int = 2048
    """Tokens of a step; fewer make it noisier, more leave fewer steps for the same time."""
    learning_rate: float = 4e-3
    """The peak of the schedule; too large and the loss stops falling or is no number any more."""
    warmup: int = 100
    """Steps in which the rate rises to its peak."""
    final_rate: float = 0.03
    """What the cosine ends at, as a share of the peak."""
    weight_decay: float = 0.1
    """Pull of every matrix towards zero; norms and biases are left alone."""
    clip: float = 1.0
    """The longest gradient that is taken as it is; longer ones are scaled down to it."""

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise InputError(f"unknown preset {self.preset!r}; choose from {', '.join(PRESETS)}")
        if self.steps < 1:
            raise InputError(f"{self.steps} steps train nothing; give at least 1")
        if not 257 <= self.vocabulary <= 65536:
            raise InputError(
                f"a vocabulary of {self.vocabulary} does not work; give 257 (the bytes and a mark) to 65536"
            )
        if not 1 < self.short_context <= self.context:
            raise InputError(f"windows of {self.short_context} tokens do not fit a context of {self.context}")
        if not 0 <= self.short_share <= 1:
            raise InputError(f"a short share of {self.short_share} is no share; give 0 to 1")
        if self.batch_tokens < self.context:
            raise InputError(f"{self.batch_tokens} tokens a step do not hold one window of {self.context}")
        if not 0 < self.learning_rate < float("inf"):
            raise InputError(f"a learning rate of {self.learning_rate} does not work; give a positive number")

    @property
    def short_steps(self) -> int:
        """Steps with short windows."""
        return round(self.steps * self.short_share)

    def window(self, step: int) -> int:
        """Tokens of each window of a step."""
        return self.short_context if step < self.short_steps else self.context


def create_model(settings: Settings, vocabulary: int, end_of_text: int) -> Any:
    """A model with its first weights, which the seed decides."""
    import torch

    torch.manual_seed(settings.seed)
    marks: dict[str, Any] = {"bos_token_id": end_of_text, "eos_token_id": end_of_text, "pad_token_id": end_of_text}
    return _CREATORS[settings.preset](vocabulary, settings.context, marks)


def _create_gpt2(vocabulary: int, context: int, marks: dict[str, Any]) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=context,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        # The same function as GPT-2's "gelu_new", computed in one kernel.
        activation_function="gelu_pytorch_tanh",
        # A run sees each text less than three times: there is nothing for dropout to prevent.
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=True,
        **marks,
    )
    model = GPT2LMHeadModel(config)
    _start_positions_as_waves(model.transformer.wpe.weight, config.initializer_range)
    return model


def _start_positions_as_waves(weight: Any, scale: float) -> None:
    """First values of learned positions: sines and cosines as large as the token embeddings.

    Neighbours are alike from the first step. It gained next to nothing (a training loss of 4.58 instead of 4.60 after
    1,600 steps, with a slightly shorter schedule); it stays because the bundled weights began this way.
    """
    import torch

    num_positions, width = weight.shape
    frequencies = num_positions ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(num_positions)[:, None] * frequencies
    with torch.no_grad():
        weight.copy_(torch.cat((angles.sin(), angles.cos()), dim=1) * scale * 2**0.5)


def _create_llama(vocabulary: int, context: int, marks: dict[str, Any]) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        max_position_embeddings=context,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        intermediate_size=512,
        tie_word_embeddings=True,
        **marks,
    )
    return LlamaForCausalLM(config)


_CREATORS = {"nano-gpt2": _create_gpt2, "nano-llama": _create_llama}
