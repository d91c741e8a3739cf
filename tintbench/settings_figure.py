"""The figure of in-context learning by layers and steps, drawn again from the table on its page.

    python -m tintbench.settings_figure docs/results/in-context-learning.md

The records behind that page are not in the repository; its table has every accuracy and standard error that the figure
shows. `tint eval table` draws the same figure from records.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tintlab.kinds.icl_figures import AccuracyPoint, settings_figure
from tintlab.methods.methods import METHODS

ROW = re.compile(r"^\| (?P<setting>[^|]+) \| (?P<method>[^|]+) \| plain \| (?P<cells>.+) \| [^|]+ \|$", re.MULTILINE)
"""A row of the table of accuracies, without the average."""
CELL = re.compile(r"(?P<value>[\d.]+)(?: \([\d.]+\))? ± (?P<error>[\d.]+)")
"""An accuracy, its spread over seeds if it has one, and its standard error."""
HEAD = re.compile(r"^\| setting \| method \| scores \| (.+) \| average \|$", re.MULTILINE)


def read_points(page: str) -> list[AccuracyPoint]:
    """What the table of accuracies says of plain scores, for every format with several budgets."""
    title = re.search(r"^\*\*In-context learning, (.+): accuracy\*\*$", page, flags=re.MULTILINE)
    head = HEAD.search(page)
    assert title and head, "the page has no table of accuracies"
    table = page[head.start() : page.index("\n\n", head.start())]
    names = {method.title: name for name, method in METHODS.items()}
    rows = [match.groupdict() for match in ROW.finditer(table)]
    formats = dict.fromkeys(_parts(row["setting"])[0] for row in rows if _parts(row["setting"])[1])
    points: list[AccuracyPoint] = []
    for row in rows:
        shown, budget = _parts(row["setting"])
        # The model as it is stands there once, and is what every format is compared with.
        panels = [shown] if budget else list(formats) if shown == "zero-shot" else []
        for task, cell in zip(head[1].split(" | "), row["cells"].split(" | "), strict=True):
            numbers = CELL.fullmatch(cell)
            assert numbers, f"no accuracy: {cell}"
            points += [
                AccuracyPoint(
                    panel=f"{title[1]}: {panel}",
                    task=task,
                    budget=budget,
                    method=names[row["method"]],
                    value=float(numbers["value"]),
                    error=float(numbers["error"]),
                )
                for panel in panels
            ]
    return points


def _parts(setting: str) -> tuple[str, str]:
    """The format and, where something is learnt, layers x steps."""
    found = re.fullmatch(r"(.+), (\w+ x \d+)", setting)
    return (found[1], found[2]) if found else (setting, "")


def main() -> None:
    """Draw the figure beside the page."""
    page = Path(sys.argv[1])
    target = page.with_name(f"{page.stem}-settings.png")
    target.write_bytes(settings_figure(read_points(page.read_text(encoding="utf-8"))))
    print(target)


if __name__ == "__main__":
    main()
