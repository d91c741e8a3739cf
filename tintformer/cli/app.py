"""The list of commands; each lives in a module of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from tintformer.cli import adapt, build, export, models, run, statistics
from tintformer.console import working
from tintformer.version import __version__
from tintlab.cli import (
    audit,
    bench,
    compare,
    demo,
    evaluate,
    fetch,
    inspect,
    lm_eval,
    params,
    plan,
    probe,
    rates,
    report,
    stream,
    sweep,
    verify,
)

app = typer.Typer(
    name="tint",
    help="Transformers that train another transformer inside one forward pass.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("run")(run.run)
app.command("report")(report.report)
app.command("adapt")(adapt.adapt)
app.command("stream")(stream.stream)
app.command("statistics")(statistics.statistics)
app.command("sweep")(sweep.sweep)
app.command("build")(build.build)
app.command("export")(export.export)
app.command("params")(params.params)
app.command("plan")(plan.plan)
app.command("inspect")(inspect.inspect)
app.command("verify")(verify.verify)
app.command("audit")(audit.audit)
app.command("compare")(compare.compare)
app.command("probe")(probe.probe)
app.command("rates")(rates.rates)
app.command("models")(models.models)
app.command("fetch")(fetch.fetch)
app.command("bench")(bench.bench)
app.add_typer(evaluate.evaluate, name="eval")
app.command("lm-eval", no_args_is_help=True, context_settings=lm_eval.PASS_ON)(lm_eval.lm_eval)


def _announce(group: typer.Typer) -> None:
    """Have every command show at once that it works: what it imports takes seconds."""
    for command in group.registered_commands:
        assert command.callback is not None
        command.callback = working("starting")(command.callback)
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        _announce(inner.typer_instance)


_announce(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Transformers that train another transformer inside one forward pass."""
