"""`tint stream`: learn while reading; every chunk of a text is scored, then learnt from."""

from __future__ import annotations

import json as json_format
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    Statistics,
    Text,
    Window,
    rule_options,
)
from tintformer.cli.rule_setup import encoded, finite, losses_record, open_model, provenance, shown, warnings_as_lines
from tintformer.console import doing, print_json, print_table, say
from tintformer.errors import InputError

if TYPE_CHECKING:
    from tintformer.study.text_stream import DocumentScores, TextStream
    from tintlab.show.position_gain import ChunkSums
    from tintlab.show.tables import ResultTable


FILES = ("stream.csv", "stream.json", "stream.png", "stream.md")
"""What `-o` writes; the page takes its place last."""


@rule_options("A stream needs a number: chosen on the text that is then scored it would leak.")
def stream(
    model: Model,
    text: Text = None,
    *,
    rule: RuleOptions,
    statistics: Statistics = None,
    file: Annotated[
        list[Path] | None, typer.Option(help="Read a document from a file; repeat it for several documents.")
    ] = None,
    chunk: Chunk = 128,
    window: Window = None,
    carry: CarryOption = "cache",
    special_tokens: SpecialTokens = True,
    state: Annotated[
        Path | None, typer.Option(help="Save what has been learnt here on the way; where it is there, go on from it.")
    ] = None,
    save_every: Annotated[int, typer.Option(min=1, help="Chunks between two saved states.")] = 64,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Directory for a record, tables and a figure.")
    ] = None,
    dtype: Dtype = "float32",
    device: Device = None,
    json: Json = False,
) -> None:
    """Read texts chunk by chunk: each is scored, then learnt from. The model as it is reads the same beside it."""
    from tintformer.learning.streams import StreamSettings
    from tintformer.learning.text import read_text
    from tintformer.storage.whole_files import check_directory, check_file

    made = needs_number(rule)
    settings = StreamSettings(chunk=chunk, window=window, carry=carry)  # type: ignore[arg-type]
    if output is not None:
        check_directory(output, FILES)
    if state is not None and not os.path.exists(state):  # one that is there has been written before
        check_file(state)
    contents = {_name(each): read_text(text, each) for each in file or [None]}
    if len(contents) < len(file or ()):
        raise InputError("a --file is given twice; give each document once")
    with warnings_as_lines():
        from tintformer.study.text_stream import TextStream

        auxiliary = open_model(model, dtype, device)
        documents = [encoded(auxiliary, name, content, special_tokens) for name, content in contents.items()]
        reading = TextStream(auxiliary, made, documents, settings, statistics=statistics, file=state, every=save_every)
        reading.read(progress(reading))
    record = stream_record(reading, special_tokens)
    if output is not None:
        write(reading, record, output)
    if json:
        print_json(record)
    else:
        print_stream(record, output)


def needs_number(options: RuleOptions) -> Any:
    """The rule, whose rate has been given: to choose it on the text that is scored would leak."""
    made = options.build()
    if options.auto:
        raise InputError(
            "a stream needs --learning-rate as a number: auto would choose it on the text that is then scored; take "
            "one that other texts have chosen, by `tint eval stream` or `tint rates`"
        )
    return made


def _name(file: Path | None) -> str:
    return "text" if file is None else str(file)


def progress(reading: TextStream) -> Callable[[TextStream], None]:
    """Says how far it is, how fast, and what has been gained so far."""
    began = time.monotonic()

    def tell(now: TextStream) -> None:
        seconds = max(time.monotonic() - began, 1e-9)
        before, after = (_perplexity(loss) for loss in now.losses())
        speed = (now.tokens_read - reading.resumed_at) / seconds
        # What is looked for comes first: a narrow terminal cuts the rest.
        doing(
            f"{speed:.0f} tokens/s, perplexity {after / before - 1:+.1%} ({before:.2f} -> {after:.2f}), "
            f"{now.tokens_read} of {now.num_tokens} tokens",
            now.tokens_read / now.num_tokens,
        )

    return tell


def _perplexity(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


def stream_record(reading: TextStream, special_tokens: bool) -> dict[str, Any]:
    """What became of the texts, for programs."""
    from dataclasses import asdict

    from tintlab.show.position_gain import gain_by_position, total_gain

    scores, chunk = reading.scores(), reading.settings.chunk
    sums = [chunk_sums(each, chunk) for each in scores]
    total = total_gain(sums)
    return {
        **provenance(reading.auxiliary, reading.rule, None),
        "stream": asdict(reading.settings),
        "special_tokens": added_tokens(reading) if special_tokens else [],
        "tokens": reading.num_tokens,
        "scored_tokens": sum(len(each.after) for each in scores),
        "resumed_at": reading.resumed_at,
        **losses_record(*reading.losses()),
        "gain": _estimate(total),
        "documents": [
            {"name": each.name, "tokens": each.tokens, **losses_record(*(sum(x) / len(x) for x in _pair(each)))}
            for each in scores
        ],
        "by_position": [
            {"start": place.start, "end": place.end, "documents": place.documents, "gain": _estimate(place.gain)}
            for place in gain_by_position(sums, chunk)
        ],
    }


def _pair(scores: DocumentScores) -> tuple[Sequence[float], Sequence[float]]:
    return scores.before, scores.after


def _estimate(estimate: Any) -> dict[str, float | None]:
    return {name: finite(getattr(estimate, name)) for name in ("value", "low", "high")}


def added_tokens(reading: TextStream) -> list[str]:
    """The special tokens that the tokenizer puts around a text of its own accord."""
    from tintformer.learning.text import decode

    tokenizer = reading.auxiliary.tokenizer
    plain, whole = (list(tokenizer("a", add_special_tokens=added)["input_ids"]) for added in (False, True))
    return [decode(tokenizer, [token]) for token in whole if token not in plain]


def chunk_sums(scores: DocumentScores, chunk: int) -> ChunkSums:
    """Losses by chunk; the first of a document has one scored token less."""
    from tintlab.show.position_gain import ChunkSums

    starts = [0, *range(chunk - 1, len(scores.after), chunk)]
    ends = [*starts[1:], len(scores.after)]
    return ChunkSums(
        before=tuple(sum(scores.before[a:b]) for a, b in zip(starts, ends, strict=True)),
        after=tuple(sum(scores.after[a:b]) for a, b in zip(starts, ends, strict=True)),
        tokens=tuple(b - a for a, b in zip(starts, ends, strict=True)),
    )


def write(reading: TextStream, record: dict[str, Any], output: Path) -> None:
    """The record, losses by chunk, the table and, where matplotlib is installed, the figure; all or none."""
    from tintformer.storage.whole_files import whole_files
    from tintlab.show.plot_style import has_matplotlib

    contents = {
        "stream.json": json_format.dumps(record, indent=2).encode() + b"\n",
        "stream.csv": by_chunk(reading).csv().encode(),
        "stream.md": table(record).markdown().encode(),
    }
    if has_matplotlib():
        contents["stream.png"] = figure(reading)
    with whole_files(output, FILES) as folder:
        for name, content in contents.items():
            (folder / name).write_bytes(content)


def by_chunk(reading: TextStream) -> ResultTable:
    """Losses of every chunk."""
    from tintlab.show.tables import ResultTable

    chunk = reading.settings.chunk
    rows = [
        {
            "document": scores.name,
            "start": str(number * chunk),
            "tokens": str(tokens),
            "nats before": repr(before),
            "nats after": repr(after),
        }
        for scores in reading.scores()
        for number, (before, after, tokens) in enumerate(
            zip(*(getattr(chunk_sums(scores, chunk), name) for name in ("before", "after", "tokens")), strict=True)
        )
    ]
    return ResultTable(title="Losses by chunk", note="", rows=tuple(rows))


def table(record: dict[str, Any]) -> ResultTable:
    """Perplexity of every document, by the model as it is and by the one that learns."""
    from tintlab.show.tables import ResultTable

    named = [*record["documents"]]
    if len(named) > 1:
        named.append({**record, "name": "all", "tokens": record["tokens"]})
    rows = [
        {
            "document": each["name"],
            "tokens": str(each["tokens"]),
            "perplexity as it is": shown(each["perplexity_before"]),
            "of the stream": shown(each["perplexity"]),
            "change": _change(each),
            "gain, nats per token": shown(_difference(each)),
        }
        for each in named
    ]
    how = record["stream"]
    note = (
        f"Chunks of {how['chunk']} tokens, windows of {how['window']}, carry {how['carry']}; the model as it is reads "
        f"the same windows. Learning rate {record['rule']['learning_rate']:g}, {record['rule']['optimizer']}."
    )
    return ResultTable(title=f"Stream, {record['model']}", note=note, rows=tuple(rows))


def _difference(losses: dict[str, Any]) -> float | None:
    before, after = losses["loss_before"], losses["loss"]
    return None if before is None or after is None else before - after


def _change(losses: dict[str, Any]) -> str:
    gain = _difference(losses)
    return "" if gain is None else f"{math.expm1(-gain):+.2%}"


def figure(reading: TextStream) -> bytes:
    """Gain by position, as a PNG."""
    import io

    import matplotlib
    from matplotlib.figure import Figure

    from tintlab.show.plot_style import BETTER, STYLE
    from tintlab.show.position_gain import draw_gains, gain_by_position

    chunk = reading.settings.chunk
    places = gain_by_position([chunk_sums(each, chunk) for each in reading.scores()], chunk)
    with matplotlib.rc_context(STYLE):
        drawn = Figure(figsize=(6.4, 3.6), layout="constrained")
        draw_gains(drawn.subplots(), places, color=BETTER, marker="o", ms=3.5, lw=1.2)
        png = io.BytesIO()
        drawn.savefig(png, format="png", dpi=150, metadata={"Software": None})
    return png.getvalue()


def print_stream(record: dict[str, Any], output: Path | None) -> None:
    """The record for people."""
    made = table(record)
    print_table(made.rows, title=made.title)
    say(made.note)
    if record["special_tokens"]:
        added = ", ".join(map(repr, record["special_tokens"]))
        say(f"the tokenizer has added {added} to each document; --no-special-tokens leaves them out")
    if record["resumed_at"]:
        say(f"went on from {record['resumed_at']} tokens that were read before")
    if output is not None:
        say(f"wrote {', '.join(name for name in FILES if (output / name).exists())} into {output}")
