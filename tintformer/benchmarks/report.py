"""What people see of the records: rows of a table, a Markdown page and a figure, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tintformer.benchmarks.settings import BenchError
from tintformer.storage.whole_files import whole_file

Records = Sequence[dict[str, Any]]


def table_rows(records: Records) -> list[dict[str, Any]]:
    """One short row a record, numbers as text."""
    return [
        {
            "model": record["model"],
            "case": record["case"],
            "contestant": record["contestant"],
            "seconds": _text(record["seconds"], "{:.4g}"),
            "/ fast": _text(record["ratio_to_fast"], "{:.2f}"),
            "/ forward": _text(record["ratio_to_forward"], "{:.2f}"),
            "tokens/s": _text(record["tokens_per_second"], "{:.0f}"),
            "MB": _text(record["peak_memory_bytes"], "{:.0f}", 1e-6),
            "peak": _text(record["share_of_peak"], "{:.0%}"),
            "note": _note(record),
        }
        for record in records
    ]


def setting_line(record: dict[str, Any]) -> str:
    """Where and how it was measured, in one line."""
    variables = " ".join(f"{name}={value}" for name, value in record["environment"].items()) or "none"
    return (
        f"{record['dtype']}, {record['threads']} threads on {record['processor']}; torch {record['torch']}, "
        f"transformers {record['transformers']}, tintformer {record['tintformer']}; medians; "
        f"engine {record['engine']}; environment: {variables}"
    )


def markdown(records: Records) -> str:
    """The table as a page, with its setting and its legend."""
    rows = table_rows(records)
    lines = ["# Speed", "", setting_line(records[0]), "", *_legend(records), ""]
    lines += ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    lines += ["| " + " | ".join(row.values()) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def save(records: Records, directory: Path) -> None:
    """Write speed.json, speed.md and speed.png; each under another name first, so that none is ever half there."""
    from tintformer.benchmarks.figure import draw

    try:
        directory.mkdir(parents=True, exist_ok=True)
        with whole_file(directory / "speed.json") as path:
            path.write_text(json.dumps(list(records), indent=2) + "\n", encoding="utf-8")
        with whole_file(directory / "speed.md") as path:
            path.write_text(markdown(records), encoding="utf-8")
        with whole_file(directory / "speed.png") as path:
            draw(records, path)
    except OSError as error:
        raise BenchError(f"cannot write to {directory}: {error.strerror}") from error


def check_output(directory: Path) -> None:
    """Fail before measuring if the results could not be written after it."""
    try:
        import matplotlib  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise BenchError("--output draws a figure and needs matplotlib: pip install matplotlib") from error
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchError(f"cannot write to {directory}: {error.strerror}") from error


def _legend(records: Records) -> list[str]:
    cases = {record["case"]: record["description"] for record in records}
    lines = [f"- `{case}`: {description}" for case, description in cases.items()]
    return [
        *lines,
        "- `/ fast` and `/ forward`: time over that of the engine, and over that of a plain forward pass",
        "- MB: peak memory above the weights, each in a process of its own",
        "- peak: multiply-adds of the necessary products a second, over those of the best square product in "
        "the same process",
    ]


def _note(record: dict[str, Any]) -> str:
    error = record["relative_error"]
    found = "" if error is None or record["contestant"] == "fast_float32" else f"error to float32 {error:.1e}"
    return "; ".join(filter(None, (record["note"], found)))


def _text(value: float | None, pattern: str, factor: float = 1.0) -> str:
    return "" if value is None else pattern.format(value * factor)
