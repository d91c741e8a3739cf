"""`tint eval list` and `tint eval table`: what ships with the package, and tables of runs that are done."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from tintformer.cli.options import Json
from tintformer.console import print_json, print_table
from tintformer.errors import InputError, TintError, cause
from tintlab.cli.evaluate.eval_options import OUTPUT
from tintlab.cli.evaluate.eval_run import show, started


def listing(json: Json = False) -> None:
    """What ships: descriptions of data, and the methods that are compared."""
    from tintlab.data.sources import read_description, shipped
    from tintlab.kinds.regression import REGRESSION_METHODS
    from tintlab.methods.methods import METHODS, STREAM_METHODS

    descriptions = {name: read_description(name)[0] for name in shipped()}
    data = [{"name": name, "kind": each["kind"], "title": each["title"]} for name, each in descriptions.items()]
    methods = [{"method": name, "title": method.title} for name, method in METHODS.items()]
    streams = [{"method": name, "title": method.title} for name, method in STREAM_METHODS.items()]
    learners = [{"method": name, "title": method.title} for name, method in REGRESSION_METHODS.items()]
    if json:
        lists = {"data": data, "methods": methods, "stream_methods": streams, "regression_methods": learners}
        print_json(lists)
        return
    print_table(data, title="data")
    print_table(methods, title="methods of lm and icl")
    print_table(streams, title="methods of stream")
    print_table(learners, title="methods of regression")


def table(
    directory: Annotated[Path, typer.Argument(help="What was given to --output.")] = OUTPUT,
    together: Annotated[bool, typer.Option("--together", help="One table of all runs of a kind.")] = False,
    json: Json = False,
) -> None:
    """Make the tables of all runs of a directory again, as Markdown, LaTeX and CSV; nothing is computed anew."""
    from tintformer.storage.hub_models import without_hub
    from tintlab.kinds.runs import join_runs, load_runs
    from tintlab.study.runner import Runner
    from tintlab.study.store import RecordStore
    from tintlab.study.tuning import run_experiment

    records = RecordStore(directory / "records")
    # The runs name their models and data, and may have been written by others.
    with started() as processes, without_hub(), Runner(records, only_records=True) as runner:
        runs = load_runs(directory) if processes.is_first else []
        for run in join_runs(runs) if together else runs:
            run.check_directory(directory)
            with _foreign_records(directory):
                results = [run_experiment(experiment, runner) for experiment in run.experiments]
                show(run, results, directory, json=json)


@contextmanager
def _foreign_records(directory: Path) -> Generator[None]:
    """Nothing is computed here, so that whatever goes wrong with numbers is in the records, which others may write."""
    try:
        yield
    except TintError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        raise InputError(
            f"a record in {directory / 'records'} holds no result of its unit ({cause(error)}); "
            "remove it, and give the run's command again"
        ) from error
