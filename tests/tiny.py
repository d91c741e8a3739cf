# pyright: basic
"""A tiny random model with a tokenizer of its own, saved as a user would have it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from misaligned import misalign
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

TEXT = (
    "The lamp in the harbour is red. The boat in the harbour is blue. The keeper of the lamp is Ada. "
    "The keeper of the boat is Ben. Ada lights the red lamp. Ben sails the blue boat. "
    "The lamp in the harbour is red. The boat in the harbour is blue. The keeper of the lamp is Ada. "
    "The keeper of the boat is Ben. Ada lights the red lamp. Ben sails the blue boat."
)
BOS, PAD = "<s>", "<pad>"


def make_tokenizer(*, bos: bool = True) -> Any:
    """A byte-level BPE of a few hundred entries; it puts a BOS first if asked to."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=[BOS, PAD], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator([TEXT], trainer)
    if bos:
        backend.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=BOS, eos_token=BOS, pad_token=PAD)


def make_model(vocabulary: int, *, layers: int = 2, positions: int = 128) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = GPT2Config(
            vocab_size=vocabulary,
            n_positions=positions,
            n_embd=32,
            n_layer=layers,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=1,
            initializer_range=0.2,  # large enough for the frozen head to tell tokens apart
        )
        return misalign(GPT2LMHeadModel(config).eval())


def save_model(directory: Path, *, positions: int = 128) -> Path:
    """Model and tokenizer in one directory."""
    tokenizer = make_tokenizer()
    make_model(len(tokenizer), positions=positions).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
