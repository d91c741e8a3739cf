"""`tint statistics`: root mean squares of gradients on a text, for the optimiser `rms`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tintformer.cli.options import (
    CarryOption,
    Chunk,
    Device,
    Dtype,
    Json,
    Model,
    RuleOptions,
    SpecialTokens,
    Text,
    Window,
    rule_options,
)
from tintformer.cli.rule_setup import open_model, provenance, warnings_as_lines
from tintformer.console import doing, print_json, say


@rule_options("Here it does not matter.")
def statistics(
    model: Model,
    text: Text = None,
    *,
    rule: RuleOptions,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write them (safetensors).")],
    file: Annotated[
        list[Path] | None, typer.Option(help="Read a document from a file; repeat it for several documents.")
    ] = None,
    chunk: Chunk = 128,
    window: Window = None,
    carry: CarryOption = "cache",
    special_tokens: SpecialTokens = True,
    dtype: Dtype = "float32",
    device: Device = None,
    json: Json = False,
) -> None:
    """Collect root mean squares of gradients on texts that will not be scored, for `--optimizer rms --statistics`."""
    import torch

    from tintformer.cli.rule_setup import encoded
    from tintformer.learning.streams import StreamSettings
    from tintformer.learning.text import read_text
    from tintformer.storage.whole_files import check_file

    made = rule.build()
    StreamSettings(chunk=chunk, window=window, carry=carry)  # type: ignore[arg-type]
    check_file(output)
    contents = [(each, read_text(text, each)) for each in file or [None]]
    with warnings_as_lines():
        from tintformer.learning.gradient_statistics import collect_statistics

        auxiliary = open_model(model, dtype, device)
        documents = [encoded(auxiliary, str(name), content, special_tokens).input_ids for name, content in contents]
        ids = torch.tensor([[token for document in documents for token in document]])
        numbers = torch.tensor([[number for number, document in enumerate(documents) for _ in document]])
        total = sum(-(-len(document) // chunk) for document in documents)
        found = collect_statistics(
            auxiliary,
            made,
            ids,
            chunk=chunk,
            window=window,
            carry=carry,  # type: ignore[arg-type]
            document_ids=numbers,
            on_chunk=lambda count: doing(f"{count} of {total} chunks", min(1.0, count / total)),
        )
        found.save(output)
    record = {
        **provenance(auxiliary, made, None),
        "gradient": dict(found.gradient),
        "chunk": found.chunk,
        "chunks": found.chunks,
        "tokens": ids.shape[1],
        "output": str(output),
        "bytes": output.stat().st_size,
    }
    if json:
        print_json(record)
        return
    say(f"{auxiliary.name}: {found.chunks} chunks of {chunk} tokens, {len(found.tensors)} parameters")
    say(f"wrote {output} ({output.stat().st_size / 1e6:.1f} MB); use it with --optimizer rms --statistics {output}")
