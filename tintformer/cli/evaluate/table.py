"""`tint eval table`: tables of runs that are done, from their records alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tintformer.cli.evaluate.shared import OUTPUT, show, started
from tintformer.cli.output import Json


def table(
    directory: Annotated[Path, typer.Argument(help="What was given to --output.")] = OUTPUT,
    json: Json = False,
) -> None:
    """Make the tables of all runs of a directory again, as Markdown, LaTeX and CSV; nothing is computed anew."""
    from tintformer.experiments.records import Store
    from tintformer.experiments.runs import load_runs
    from tintformer.experiments.work import workers

    with started(), workers(Store(directory / "records"), only_records=True) as crew:
        for run in load_runs(directory):
            show(run, run.results(crew), directory, json=json)
