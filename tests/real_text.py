# pyright: basic
"""Real text as a real model reads it."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoTokenizer


def encode(directory: Path, text: str, num_tokens: int) -> torch.Tensor:
    gguf = [path.name for path in directory.glob("*.gguf")]
    tokenizer = AutoTokenizer.from_pretrained(directory, **({"gguf_file": gguf[0]} if gguf else {}))
    return torch.tensor([tokenizer(text[: 12 * num_tokens])["input_ids"][:num_tokens]])
