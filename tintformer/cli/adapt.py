"""`tint adapt`: train a model once, and keep what it learnt in a small file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tintformer.cli.options import Device, Dtype, Json, Model, RuleOptions, Statistics, Text, with_rule_options
from tintformer.cli.rule_setup import (
    choose_rule,
    losses_record,
    open_model,
    print_losses,
    print_rate,
    provenance,
    warnings_as_lines,
)
from tintformer.cli.run import Split
from tintformer.console import doing, print_json, say

if TYPE_CHECKING:
    import torch

    from tintformer.auxiliary.description import Auxiliary
    from tintformer.learning.text import Encoded


@with_rule_options
def adapt(
    model: Model,
    text: Text = None,
    *,
    rule: RuleOptions,
    statistics: Statistics = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the update (safetensors).")],
    file: Annotated[
        list[Path] | None, typer.Option(help="Read the text from a file; repeat it for several texts, learnt together.")
    ] = None,
    train_fraction: Annotated[
        float | None, typer.Option(help="Share of each text that is trained on; the rest is scored. All by default.")
    ] = None,
    train_tokens: Annotated[
        int | None, typer.Option(help="Number of tokens of each text that are trained on, instead.")
    ] = None,
    dtype: Dtype = "float32",
    device: Device = None,
    json: Json = False,
) -> None:
    """Train a model on texts and write the update, for `tint run --adapted` and `tintformer.Tuned.load`."""
    from tintformer.learning.text import encode, find_tokenizer, read_text
    from tintformer.storage.whole_files import check_file

    held_out = train_fraction is not None or train_tokens is not None
    split = Split(train_fraction=train_fraction, train_tokens=train_tokens) if held_out else None
    rule.build()
    check_file(output)
    contents = [read_text(text, each) for each in file or [None]]
    with warnings_as_lines():
        auxiliary, tokenizer = open_model(model, dtype, device), find_tokenizer(model)
        input_ids, attended = pad([encode(tokenizer, content) for content in contents])
        record = train_and_save(
            auxiliary, rule, input_ids, attended, training_part(attended, split), output, statistics
        )
    if json:
        print_json(record)
    else:
        print_adapt(record)


def train_and_save(
    auxiliary: Auxiliary,
    options: RuleOptions,
    input_ids: torch.Tensor,
    attended: torch.Tensor,
    train: torch.Tensor,
    output: Path,
    statistics: Path | None = None,
) -> dict[str, Any]:
    """Learn one update from all rows, write it, and say how the loss changed: of what is held out, or else of all."""
    from tintformer.execution.output import warn_of_perplexities
    from tintformer.learning.tint import Tint
    from tintformer.learning.tuned import Tuned

    rule, choice = choose_rule(options, auxiliary, input_ids, train, together=True, attention_mask=attended)
    tuned = Tint(auxiliary, rule, statistics=statistics).adapt(input_ids, train_mask=train, attention_mask=attended)
    held_out = attended & ~train
    doing("scoring before and after")
    before, after = (
        model.score(input_ids, score_mask=held_out if held_out.any() else None, attention_mask=attended).loss
        for model in (Tuned.untrained(auxiliary), tuned)
    )
    assert before is not None and after is not None
    warn_of_perplexities(float(before), float(after))
    tuned.save(output)
    return {
        **provenance(auxiliary, rule, choice),
        "texts": len(input_ids),
        "train_tokens": int(train.sum()),
        "held_out_tokens": int(held_out.sum()),
        **losses_record(float(before), float(after)),
        "output": str(output),
        "bytes": output.stat().st_size,
    }


def training_part(attended: torch.Tensor, split: Split | None) -> torch.Tensor:
    """The first tokens of each text by the split; without one, all tokens."""
    import torch

    if split is None:
        return attended
    num_train = torch.tensor([[split.of(int(row.sum()))] for row in attended])
    return attended & (torch.arange(attended.shape[1]) < num_train)


def pad(texts: list[Encoded]) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts of different lengths as one batch: ids with padding on the right, and which tokens are there."""
    import torch

    input_ids = torch.zeros(len(texts), max(len(text.input_ids) for text in texts), dtype=torch.long)
    attended = torch.zeros_like(input_ids, dtype=torch.bool)
    for row, text in enumerate(texts):
        input_ids[row, : len(text.input_ids)] = torch.tensor(text.input_ids)
        attended[row, : len(text.input_ids)] = True
    return input_ids, attended


def print_adapt(record: dict[str, Any]) -> None:
    """The record for people."""
    texts = "1 text" if record["texts"] == 1 else f"{record['texts']} texts"
    held_out = record["held_out_tokens"]
    how = f"evaluated on the other {held_out}" if held_out else "all of them, and evaluated on the same"
    print_losses(record, f"{record['model']}, {texts}, trained on {record['train_tokens']} tokens, {how}")
    print_rate(record)
    say(f"wrote {record['output']} ({record['bytes'] / 1e6:.1f} MB); use it with `tint run --adapted`")
