# pyright: basic
"""The model card: what the model is, what it was trained on, how well it predicts, what it cannot do."""

from __future__ import annotations

import re
from typing import Any

from training.export import Run
from training.results import Result

_CARD = """\
---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---

# {name}

{summary}

## Shape

{shape}

## Data

{data}

The files are UTF-8 text. The tokenizer, byte-level BPE, was trained on the training texts alone.

{data_notes}

## Training

{training}

```bash
{command}
```

## Held-out loss

Measured by `python -m training.export` on the weights in this folder, read back as float32: windows of {context} tokens
that do not overlap, every token of the held-out texts scored once. The order-3 character model knows the three
characters before each one (Witten-Bell interpolation); the unigram model knows how often each token of this tokenizer
occurs. Both were counted on the training texts.

{held_out}

## Limits

{limits}

## Licence

The weights and the tokenizer are under the Apache License 2.0, like the code. {licence_notes}
"""

_SUMMARY = {
    "nano-gpt2": "A very small GPT-2: LayerNorm, learned positions, GELU, tied embeddings.",
    "nano-llama": "A very small LLaMA: RMSNorm, rotary positions, SwiGLU, grouped queries, tied embeddings.",
}
_PURPOSE = "It ships with tintformer, so that training inside a forward pass can be seen with nothing to download."
_LIMITS = "It is a toy: its sentences hold together for a few words, and nothing it says is to be relied on."


def write_card(run: Run, model: Any, results: list[Result], notes: str) -> str:
    """The card of a finished run; `notes` adds the sections "Data", "Limits" and "Licence" that no program can know."""
    remarks = _sections(notes)
    settings = run.settings
    return _CARD.format(
        name=settings.preset,
        summary=f"{_SUMMARY[settings.preset]}\n{_PURPOSE}",
        shape=_table(("what", "value"), _shape(model)),
        data=_table(("file", "use", "bytes", "SHA-256 begins with"), _files(run)),
        data_notes=remarks.get("Data", ""),
        training=_table(("what", "value"), _training(run)),
        command=_wrapped(run.command),
        context=settings.context,
        held_out=_table(_HEADINGS, [_row(result) for result in results]),
        limits=remarks.get("Limits", _LIMITS),
        licence_notes=remarks.get("Licence", ""),
    )


def _shape(model: Any) -> list[tuple[str, ...]]:
    config = model.config
    rows = [
        ("parameters", f"{sum(parameter.numel() for parameter in model.parameters()):,}"),
        ("layers", str(config.num_hidden_layers)),
        ("width", str(config.hidden_size)),
        ("heads", str(config.num_attention_heads)),
        ("vocabulary", f"{config.vocab_size:,}"),
        ("context", f"{config.max_position_embeddings} tokens"),
        ("stored as", "float16"),
    ]
    if hasattr(config, "num_key_value_heads"):
        rows.insert(4, ("key/value heads", str(config.num_key_value_heads)))
        rows.insert(5, ("feed-forward width", str(config.intermediate_size)))
    return rows


def _files(run: Run) -> list[tuple[str, ...]]:
    used = [(source, "training") for source in run.texts] + [(source, "held out") for source in run.held_out]
    return [(source.name, use, f"{source.num_bytes:,}", f"`{source.sha256[:16]}`") for source, use in used]


def _training(run: Run) -> list[tuple[str, ...]]:
    settings = run.settings
    seen = settings.steps * settings.batch_tokens
    return [
        ("steps", f"{settings.steps:,}"),
        ("tokens a step", f"{settings.batch_tokens:,}"),
        ("tokens seen", f"{seen:,} ({seen / run.num_tokens:.2f} times the {run.num_tokens:,} of the training texts)"),
        ("windows", f"{settings.short_context} tokens for {settings.short_steps:,} steps, then {settings.context}"),
        ("optimiser", "Muon for the matrices of the blocks, AdamW for embeddings, norms and biases"),
        ("weight decay", f"{settings.weight_decay:g}, for norms and biases none"),
        ("gradients", f"clipped to a norm of {settings.clip:g}"),
        ("learning rate", f"{settings.learning_rate:g} after {settings.warmup} steps of warm-up, then a cosine"),
        ("precision", "float32, on one CPU core"),
        ("seed", str(settings.seed)),
    ]


_HEADINGS = ("text", "bytes", "tokens", "nats per token", "bits per byte", "order-3 characters", "unigram")


def _row(result: Result) -> tuple[str, ...]:
    return (
        result.name,
        f"{result.num_bytes:,}",
        f"{result.num_tokens:,}",
        f"{result.nats_per_token:.3f}",
        f"**{result.bits_per_byte:.3f}**",
        f"{result.character_bits_per_byte:.3f}",
        f"{result.unigram_bits_per_byte:.3f}",
    )


def _table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _wrapped(command: str) -> str:
    """A command with each text and each option on its own line."""
    program, *rest = re.split(r" (?=--)|(?<=training\.train) |(?<=\.txt) ", command)
    return " \\\n    ".join((program, *rest))


def _sections(notes: str) -> dict[str, str]:
    """The text under each heading `# NAME` of the notes."""
    sections: dict[str, str] = {}
    for part in f"\n{notes}".split("\n# ")[1:]:
        heading, _, body = part.partition("\n")
        sections[heading.strip()] = body.strip()
    return sections
