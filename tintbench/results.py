"""What the benchmarks that run by themselves share: one line for an error, results as JSON and Markdown, tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import tintformer as tint
from tintformer.storage.whole_files import whole_file


def run_as_script(name: str, main: Callable[[], None]) -> None:
    """Bad input ends in one line on standard error and exit code 2."""
    try:
        main()
    except (tint.TintError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2)


def versions() -> dict[str, Any]:
    """What every result says of where it came from."""
    return {"tintformer": tint.__version__, "torch": torch.__version__, "threads": torch.get_num_threads()}


def save_json(record: Mapping[str, Any], path: Path) -> None:
    """Write every number, each list's entries on lines of their own."""
    with whole_file(path, parents=True) as temporary:
        temporary.write_text(json.dumps(record).replace('{"', '\n{"') + "\n", encoding="utf-8")


def save_markdown(text: str, path: Path) -> None:
    """Write a page."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def markdown_table(rows: Sequence[Mapping[str, str]], *, mark: str = "") -> str:
    """Rows of the same keys as a table; keys are the headings.

    A page of docs/results says above a table which rows make it: `mark` names them (docs/tools/result_tables.py).
    """
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    head = f"<!-- rows: {mark} -->\n\n" if mark else ""
    return head + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def relative_error(found: Sequence[torch.Tensor], truth: Sequence[torch.Tensor]) -> float:
    """|found - truth| / |truth| in float64, all tensors as one vector."""
    wrong = sum(float((a.double() - b).square().sum()) for a, b in zip(found, truth, strict=True))
    return (wrong / sum(float(b.double().square().sum()) for b in truth)) ** 0.5
