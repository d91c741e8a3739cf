"""`tint adapt`: train a model once, and keep what it learnt in a small file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tintformer.cli.options import Dtype, Json, Model, RuleOptions, Text, with_rule_options
from tintformer.cli.rule_setup import (
    choose_rule,
    losses_record,
    open_model,
    print_losses,
    print_rate,
    provenance,
    warnings_as_lines,
)
from tintformer.console import print_json, say

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
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the update (safetensors).")],
    file: Annotated[
        list[Path] | None, typer.Option(help="Read the text from a file; repeat it for several texts, learnt together.")
    ] = None,
    dtype: Dtype = "float32",
    json: Json = False,
) -> None:
    """Train a model on texts and write the update, for `tint run --adapted` and `tintformer.Tuned.load`."""
    from tintformer.learning.text import encode, find_tokenizer, read_text
    from tintformer.storage.whole_files import check_file

    rule.build()
    check_file(output)
    contents = [read_text(text, each) for each in file or [None]]
    with warnings_as_lines():
        auxiliary, tokenizer = open_model(model, dtype), find_tokenizer(model)
        input_ids, attention_mask = pad([encode(tokenizer, content) for content in contents])
        record = train_and_save(auxiliary, rule, input_ids, attention_mask, output)
    if json:
        print_json(record)
    else:
        print_adapt(record)


def train_and_save(
    auxiliary: Auxiliary, options: RuleOptions, input_ids: torch.Tensor, attended: torch.Tensor, output: Path
) -> dict[str, Any]:
    """Learn one update from all rows, write it, and say how the loss on them changed."""
    from tintformer.execution.output import warn_of_perplexities
    from tintformer.learning.tint import Tint
    from tintformer.learning.tuned import Tuned

    rule, choice = choose_rule(options, auxiliary, input_ids, attended, together=True, attention_mask=attended)
    tuned = Tint(auxiliary, rule).adapt(input_ids, attention_mask=attended)
    before = Tuned.untrained(auxiliary).score(input_ids, attention_mask=attended)
    after = tuned.score(input_ids, attention_mask=attended)
    assert before.loss is not None and after.loss is not None
    warn_of_perplexities(float(before.loss), float(after.loss))
    tuned.save(output)
    return {
        **provenance(auxiliary, rule, choice),
        "texts": len(input_ids),
        "train_tokens": int(attended.sum()),
        **losses_record(float(before.loss), float(after.loss)),
        "output": str(output),
        "bytes": output.stat().st_size,
    }


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
    print_losses(record, f"{record['model']}, {texts}, {record['train_tokens']} tokens, all of them trained on")
    print_rate(record)
    say(f"wrote {record['output']} ({record['bytes'] / 1e6:.1f} MB); use it with `tint run --adapted`")
