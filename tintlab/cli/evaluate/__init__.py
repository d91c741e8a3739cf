"""`tint eval`: the paper's experiments on any model and data, resumable."""

from __future__ import annotations

import typer

from tintlab.cli.evaluate.constructions import constructions
from tintlab.cli.evaluate.icl import classification
from tintlab.cli.evaluate.listing import listing, table
from tintlab.cli.evaluate.lm import language
from tintlab.cli.evaluate.paper_tables import table_icl, table_lm, table_settings
from tintlab.cli.evaluate.regression import in_context_regression
from tintlab.cli.evaluate.stream_command import streams

evaluate = typer.Typer(
    name="eval",
    help="The paper's experiments on any model and data.",
    no_args_is_help=True,
    add_completion=False,
)
evaluate.command("lm")(language)
evaluate.command("icl")(classification)
evaluate.command("stream")(streams)
evaluate.command("regression")(in_context_regression)
evaluate.command("constructions")(constructions)
evaluate.command("table")(table)
evaluate.command("list")(listing)
evaluate.command("table-lm")(table_lm)
evaluate.command("table-icl")(table_icl)
evaluate.command("table-settings")(table_settings)
