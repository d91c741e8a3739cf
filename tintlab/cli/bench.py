"""`tint bench`: time and memory against explicit fine-tuning, in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tintformer.cli.options import Device, Json
from tintformer.console import doing, print_json, print_table, say

QUICK: dict[str, Any] = {
    "models": ("tiny",),
    "cases": ("tiny", "tiny_few_shot"),
    "repetitions": 2,
    "memory": False,
}


def bench(
    model: Annotated[
        list[str] | None,
        typer.Option(help="gpt2, opt-125m, smollm2-135m, tiny: shapes with random weights; or any name or directory."),
    ] = None,
    case: Annotated[
        list[str] | None,
        typer.Option(
            help="8x64, 4x256, 2x1024 (batch x tokens), few_shot, long, simulator, network, stream, stream_documents, "
            "tiny, tiny_few_shot, tiny_stream; default: the first four."
        ),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Run only this one; default: all that suit the case.")
    ] = None,
    repetitions: Annotated[int | None, typer.Option(max=10_000, help="Timed runs of each method; default: 5.")] = None,
    threads: Annotated[int, typer.Option(max=4096, help="Threads of torch.")] = 2,
    engine: Annotated[str, typer.Option(help="The engine that runs as the method `fast`.")] = "fast",
    dtype: Annotated[
        str, typer.Option(help="float32, float64, or bfloat16 (which is compared with the engine in float32).")
    ] = "float32",
    device: Device = None,
    forms: Annotated[
        bool, typer.Option("--forms", help="Also the engine with dual updates only, and with materialised ones only.")
    ] = False,
    memory: Annotated[
        bool | None, typer.Option("--memory/--no-memory", help="Peak memory, in a process each; default: yes.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A tiny model and tiny cases, to see it work.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Directory for speed.json, speed.md and speed.png.")
    ] = None,
    json: Json = False,
) -> None:
    """Time train-in-the-pass against a plain forward pass and against explicit fine-tuning.

    All methods take turns in one process, so that drift of the machine hits all alike; times are medians.
    """
    from tintbench.cases import Settings
    from tintbench.speed import measure
    from tintbench.speed_tables import check_output, save

    asked: dict[str, Any] = {
        "models": tuple(model or ()),
        "cases": tuple(case or ()),
        "methods": tuple(method or ()),
        "repetitions": repetitions,
        "memory": memory,
    }
    given: dict[str, Any] = {name: value for name, value in asked.items() if value not in (None, ())}
    fixed: dict[str, Any] = {"threads": threads, "engine": engine, "dtype": dtype, "forms": forms}
    if device not in (None, "cpu"):
        given = {"memory": False, **given, "device": device}
    settings = Settings(**((QUICK if quick else {}) | given | fixed))
    if output is not None:
        check_output(output)
    records: list[dict[str, Any]] = []
    for measured in measure(settings, doing):
        records += measured
        if output is not None:
            save(records, output)  # after each case: hours of measuring survive an interruption
    if json:
        print_json(records)
        return
    _print_tables(records)


def _print_tables(records: list[dict[str, Any]]) -> None:
    """One table a model and case, narrow enough for a terminal, and the notes below it."""
    from tintbench.speed_tables import setting_line, table_rows

    say(setting_line(records[0]))
    for model, case in dict.fromkeys((record["model"], record["case"]) for record in records):
        here = [record for record in records if (record["model"], record["case"]) == (model, case)]
        rows = table_rows(here)
        hidden = ("model", "case", "note")
        print_table(
            [{key: value for key, value in row.items() if key not in hidden} for row in rows],
            title=f"{model}, {case}: {here[0]['description']}",
        )
        for row in rows:
            if row["note"]:
                say(f"{row['method']}: {row['note']}")
