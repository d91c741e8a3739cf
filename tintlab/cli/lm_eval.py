"""`tint lm-eval`: the lm-evaluation-harness's own command line, with our model and tasks."""

from __future__ import annotations

import json as json_format
import sys
from argparse import ArgumentParser
from collections.abc import Generator
from contextlib import contextmanager, nullcontext, redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from tintformer.cli.options import Json
from tintformer.console import doing, hand_over, print_json
from tintformer.errors import InputError
from tintlab.cli.evaluate.eval_run import started

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
"""How typer is told that what it does not know is for the harness."""
WITHOUT_TASKS = ("ls", "validate")
"""Commands of the harness that evaluate nothing, and say themselves what they need."""

app = typer.Typer(add_completion=False)


@app.command("lm-eval", no_args_is_help=True, context_settings=PASS_ON)
def lm_eval(
    context: typer.Context,
    data: Annotated[
        Path | None,
        typer.Option(help="Examples of our tasks: a directory with one directory a task, or the one of a task."),
    ] = None,
    tests: Annotated[
        int | None, typer.Option(help="Test examples of each of our tasks, as many of each label; default: 200.")
    ] = None,
    variant: Annotated[str | None, typer.Option(help="Another prompt of our tasks' descriptions.")] = None,
    json: Json = False,
) -> None:
    """Run the lm-evaluation-harness with the model `tint`, which learns from every context, and the paper's tasks.

    All other options are the harness's own: --model tint --model_args pretrained=MODEL,learning_rate=RATE
    --tasks tint_sst2 --batch_size 8 --output_path DIR --log_samples, and more (`lm_eval run --help`).
    """
    if find_spec("lm_eval") is None:
        raise InputError("lm-eval is not installed; pip install 'tintformer[eval]'")
    _check_tasks(context.args)
    doing("loading the harness")
    with started() as processes:
        from lm_eval.__main__ import cli_evaluate

        from tintlab.harness import TASKS

        given: dict[str, Any] = {"data": data and str(data), "tests": tests, "variant": variant}
        settings = {name: value for name, value in given.items() if value is not None}
        arguments = list(context.args)
        if not any(argument.startswith("--include_path") for argument in arguments):
            arguments += ["--include_path", str(TASKS)]
        if settings:
            arguments += ["--metadata", json_format.dumps(settings)]
        with _results_whole(arguments, written=processes.is_first, read=json) as (words, folder):
            sys.argv = ["lm_eval", *words]
            hand_over("running the harness")
            # It prints tables, and has no way to print anything else.
            with redirect_stdout(StringIO()) if json else nullcontext():
                cli_evaluate()
            if json and processes.is_first:
                print_json(_read_results(folder))


def _check_tasks(arguments: list[str]) -> None:
    """Refuse to evaluate nothing; the harness finds out when it has loaded a model, and ends in a traceback."""
    parser = ArgumentParser(add_help=False)
    parser.add_argument("--tasks", "-t", nargs="*")
    parser.add_argument("--config", "-C", nargs="?")  # a file, which may name tasks
    parser.add_argument("--help", "-h", action="store_true")
    found, _ = parser.parse_known_args(arguments)
    if arguments[:1] not in [[name] for name in WITHOUT_TASKS] and found == parser.parse_args([]):
        raise InputError(
            "there is no task; give --tasks, such as --tasks tint_sst2: `tint lm-eval ls tasks` lists them"
        )


@contextmanager
def _results_whole(arguments: list[str], *, written: bool, read: bool) -> Generator[tuple[list[str], Path | None]]:
    """The arguments with another place for the results, which move to the user's when the harness has written all.

    Results that are `read` are written in any case, and go away if nobody asked for them.
    """
    from tintformer.storage.whole_files import check_directory, whole_files

    parser = ArgumentParser(add_help=False)
    parser.add_argument("--output_path", "-o")
    found, others = parser.parse_known_args(arguments)
    if not found.output_path:
        with TemporaryDirectory() if read else nullcontext() as temporary:
            yield ([*arguments, "--output_path", temporary], Path(temporary)) if temporary else (arguments, None)
        return
    place = Path(found.output_path)
    name = place.name if place.suffix == ".json" else ""  # of a file the harness takes the name, and adds the time
    directory = place.parent if name else place
    check_directory(directory, [f"{place.stem}_{'0' * len('2000-01-01T00-00-00.000000')}.json"] if name else ())
    with whole_files(directory) as folder:
        yield [*others, "--output_path", str(folder / name)], folder
        if written and not any(folder.iterdir()):  # the harness goes on after a full disk
            raise InputError(f"the harness could not write its results into {directory}; its warning says why")


def _read_results(folder: Path | None) -> Any:
    """What the harness has written of a run as a whole; samples are in files of their own kind."""
    files = [] if folder is None else sorted(folder.rglob("*.json"))
    if not files:
        raise InputError("the harness has written no results; what it says above is the reason")
    return json_format.loads(files[-1].read_text(encoding="utf-8"))
