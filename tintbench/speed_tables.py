"""What people see of the records of `tint bench`: rows of a table, a Markdown page and a figure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tintbench.cases import BenchError
from tintbench.results import markdown_table
from tintformer.storage.foreign_markup import to_label
from tintformer.storage.whole_files import check_directory, whole_files
from tintlab.show.plot_style import import_matplotlib

Records = Sequence[dict[str, Any]]
FILES = ("speed.json", "speed.png", "speed.md")
"""What `--output` writes; the page takes its place last."""

COLOURS = {
    "forward": "#999999",
    "explicit_rule": "#56B4E9",
    "explicit_block": "#0072B2",
    "explicit_all": "#CC79A7",
    "vmap": "#E69F00",
    "repeat": "#D55E00",
    "fast": "#009E73",
    "fast_dual": "#F0E442",
    "fast_materialised": "#B8A500",
    "fast_float32": "#000000",
    "top_quarter": "#7FCDB4",
    "decay": "#C7B8E6",
    "rates": "#9C86D1",
    "momentum": "#6A51A3",
    "muon": "#3F007D",
}
"""Okabe and Ito's colours, which colour-blind people can tell apart, and shades of them."""

TOP = 5.0
"""Bars end here; the training repeated for every input is two orders of magnitude away from the rest."""


def table_rows(records: Records) -> list[dict[str, Any]]:
    """One short row a record, numbers as text."""
    return [
        {
            "model": record["model"],
            "case": record["case"],
            "method": record["method"],
            "seconds": _text(record["seconds"], "{:.4g}"),
            "/ fast": _text(record["ratio_to_fast"], "{:.2f}"),
            "/ forward": _text(record["ratio_to_forward"], "{:.2f}"),
            "cpu / forward": _text(record["processor_ratio_to_forward"], "{:.2f}"),
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
    return "\n".join(lines) + "\n" + markdown_table(rows)


def save(records: Records, directory: Path) -> None:
    """Write speed.json, speed.md and speed.png, all of them or none."""
    try:
        with whole_files(directory, FILES) as folder:
            (folder / "speed.json").write_text(json.dumps(list(records), indent=2) + "\n", encoding="utf-8")
            (folder / "speed.md").write_text(markdown(records), encoding="utf-8")
            draw(records, folder / "speed.png")
    except OSError as error:
        raise BenchError(f"cannot write to {directory}: {error.strerror}") from error


def check_output(directory: Path) -> None:
    """Fail before measuring if the results could not be written after it."""
    import_matplotlib("the figures of --output")
    check_directory(directory, FILES)


def _legend(records: Records) -> list[str]:
    cases = {record["case"]: record["description"] for record in records}
    lines = [f"- `{case}`: {description}" for case, description in cases.items()]
    return [
        *lines,
        "- `/ fast` and `/ forward`: time over that of the engine, and over that of a plain forward pass",
        "- `cpu / forward`: the same by time of the processor, which others on the machine lengthen less",
        "- MB: peak memory above the weights, each in a process of its own",
        "- peak: multiply-adds of the necessary products a second, over those of the best square product in "
        "the same process",
    ]


def _note(record: dict[str, Any]) -> str:
    error = record["relative_error"]
    found = "" if error is None or record["method"] == "fast_float32" else f"error to float32 {error:.1e}"
    return "; ".join(filter(None, (record["note"], found)))


def _text(value: float | None, pattern: str, factor: float = 1.0) -> str:
    return "" if value is None else pattern.format(value * factor)


def draw(records: Records, path: Path) -> None:
    """Write the figure as PNG; what was not measured, or has nothing to be compared with, is left out."""
    from matplotlib.figure import Figure

    shown = [record for record in records if record["ratio_to_fast"] is not None]
    models = list(dict.fromkeys(record["model"] for record in shown)) or [""]
    figure = Figure(figsize=(9, 3.4 * len(models)), layout="constrained")
    panels = figure.subplots(len(models), 1, squeeze=False)[:, 0]
    for panel, model in zip(panels, models, strict=True):
        _panel(panel, [record for record in shown if record["model"] == model])
        panel.set_title(to_label(model), loc="left")
    handles = {
        label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside right upper", frameon=False)
    figure.savefig(path, format="png", dpi=150)


def _panel(panel: Any, records: Records) -> None:
    cases = list(dict.fromkeys(record["case"] for record in records))
    names = [name for name in COLOURS if any(record["method"] == name for record in records)]
    left = 0.0
    ticks: list[float] = []
    for case in cases:
        here = {record["method"]: record["ratio_to_fast"] for record in records if record["case"] == case}
        present = [name for name in names if name in here]
        for place, name in enumerate(present):
            height = min(here[name], TOP)
            panel.bar(left + place, height, width=0.9, color=COLOURS[name], label=name)
            mark = "" if here[name] <= TOP else " \N{UPWARDS ARROW}"
            panel.text(left + place, height, f"{here[name]:.3g}{mark}", ha="center", va="bottom", fontsize=7)
        ticks.append(left + (len(present) - 1) / 2)
        left += len(present) + 1
    panel.set_xticks(ticks, cases)
    panel.axhline(1, color="black", linewidth=0.8)
    panel.set_ylabel("time / fast")
    panel.margins(y=0.1)
    panel.spines[["top", "right"]].set_visible(False)
