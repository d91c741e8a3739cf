"""`tint adapt`: train a model once, and keep what it learnt in a small file."""

from __future__ import annotations

from dataclasses import dataclass
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
    from tintformer.learning.tuned import Tuned


@dataclass(frozen=True, kw_only=True)
class PeftOptions:
    """Those of an adapter of PEFT; without a directory none is written."""

    directory: Path | None
    rank: int | None
    biases: bool
    norms: bool

    def __post_init__(self) -> None:
        from tintformer.errors import InputError
        from tintformer.typed_fields import Range, checked

        checked("--rank", self.rank, Annotated[int | None, Range(at_least=1)], InputError)
        if self.directory is not None:
            from tintformer.learning.peft_files import FILES
            from tintformer.storage.whole_files import check_directory

            check_directory(self.directory, FILES)
        elif self.rank is not None or not (self.biases and self.norms):
            raise InputError("--rank, --no-biases and --no-norms are for an adapter; name its directory with --peft")

    def write(self, tuned: Tuned, input_ids: torch.Tensor, **masks: Any) -> dict[str, Any] | None:
        """Write the adapter, and say how much of the update and of its gain it keeps."""
        if self.directory is None:
            return None
        doing("writing an adapter of PEFT")
        done = tuned.to_peft(
            self.directory, rank=self.rank, biases=self.biases, norms=self.norms, input_ids=input_ids, **masks
        )
        return {
            "directory": str(self.directory),
            "rank": max(done.ranks.values()),
            "kept": done.kept,
            "gain_kept": done.gain_kept,
            "loss": done.loss_exported,
            "left_out": list(done.left_out),
            "bytes": done.size,
        }


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
    peft: Annotated[
        Path | None, typer.Option(help="Also write a LoRA adapter of PEFT to this directory, and how much it keeps.")
    ] = None,
    rank: Annotated[
        int | None, typer.Option(help="The largest rank of a layer in the adapter; default: exact.")
    ] = None,
    biases: Annotated[
        bool, typer.Option("--biases/--no-biases", help="Whether the adapter has changes of linear layers' biases.")
    ] = True,
    norms: Annotated[bool, typer.Option("--norms/--no-norms", help="Whether the adapter has changed norms.")] = True,
    dtype: Dtype = "float32",
    device: Device = None,
    json: Json = False,
) -> None:
    """Train a model on texts and write the update, for `tint run --adapted` and `tintformer.Tuned.load`."""
    from tintformer.learning.text import encode, find_tokenizer, read_text
    from tintformer.storage.whole_files import check_file

    adapter = PeftOptions(directory=peft, rank=rank, biases=biases, norms=norms)

    held_out = train_fraction is not None or train_tokens is not None
    split = Split(train_fraction=train_fraction, train_tokens=train_tokens) if held_out else None
    rule.build()
    check_file(output)
    contents = [read_text(text, each) for each in file or [None]]
    with warnings_as_lines():
        auxiliary, tokenizer = open_model(model, dtype, device), find_tokenizer(model)
        input_ids, attended = pad([encode(tokenizer, content) for content in contents])
        record = train_and_save(
            auxiliary, rule, input_ids, attended, training_part(attended, split), output, adapter, statistics
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
    adapter: PeftOptions,
    statistics: Path | None = None,
) -> dict[str, Any]:
    """Learn one update from all rows, write it, and say how the loss changed: of what is held out, or else of all."""
    from tintformer.execution.output import warn_of_perplexities
    from tintformer.learning.tint import Tint
    from tintformer.learning.tuned import Tuned

    rule, choice = choose_rule(options, auxiliary, input_ids, train, together=True, attention_mask=attended)
    tuned = Tint(auxiliary, rule, statistics=statistics).adapt(input_ids, train_mask=train, attention_mask=attended)
    held_out = attended & ~train
    score_mask = held_out if held_out.any() else None
    doing("scoring before and after")
    before, after = (
        model.score(input_ids, score_mask=score_mask, attention_mask=attended).loss
        for model in (Tuned.untrained(auxiliary), tuned)
    )
    assert before is not None and after is not None
    warn_of_perplexities(float(before), float(after), auto=choice is not None)
    # The adapter first: an update that PEFT cannot hold is refused, and then nothing is to be there.
    exported = adapter.write(tuned, input_ids, score_mask=score_mask, attention_mask=attended)
    tuned.save(output)
    return {
        **provenance(auxiliary, rule, choice),
        "texts": len(input_ids),
        "train_tokens": int(train.sum()),
        "held_out_tokens": int(held_out.sum()),
        **losses_record(float(before), float(after)),
        "output": str(output),
        "bytes": output.stat().st_size,
        **({} if exported is None else {"peft": exported}),
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
    if "peft" in record:
        print_peft(record["peft"])


def print_peft(record: dict[str, Any]) -> None:
    """What the adapter keeps."""
    gain = "" if record["gain_kept"] is None else f", and {record['gain_kept']:.1%} of its gain in loss"
    say(
        f"wrote an adapter of PEFT to {record['directory']} ({record['bytes'] / 1e6:.1f} MB), rank {record['rank']}: "
        f"it keeps {record['kept']:.1%} of the update's squared norm{gain}"
    )
    if record["left_out"]:
        say(f"left out: the changes of {len(record['left_out'])} biases and norms")
