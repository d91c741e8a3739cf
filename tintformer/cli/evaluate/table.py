"""`tint eval table`: tables of runs that are done, from their records alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tintformer.cli.evaluate.shared import OUTPUT, show, started
from tintformer.cli.options import Json


def table(
    directory: Annotated[Path, typer.Argument(help="What was given to --output.")] = OUTPUT,
    together: Annotated[bool, typer.Option("--together", help="One table of all runs of a kind.")] = False,
    json: Json = False,
) -> None:
    """Make the tables of all runs of a directory again, as Markdown, LaTeX and CSV; nothing is computed anew."""
    from tintformer.experiments.records import Store
    from tintformer.experiments.runs import join_runs, load_runs
    from tintformer.experiments.work import workers

    with started() as processes, workers(Store(directory / "records"), only_records=True) as crew:
        runs = load_runs(directory) if processes.leads else []
        for run in join_runs(runs) if together else runs:
            show(run, run.results(crew), directory, json=json)
