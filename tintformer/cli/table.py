"""The commands of the core, and what a command is to the command line; nothing that they do is imported here.

Another distribution, or the laboratory of this one, adds commands by an entry point of the group `tintformer.commands`:
a sequence of `Command`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """What `tint --help` says of a command, and where it is found once it is asked for."""

    name: str
    place: int
    """In the list of `tint --help`, smallest first."""
    target: str
    """`module:name` of a function, or of a `typer.Typer`."""
    help: str
    """The first paragraph of its docstring."""


COMMANDS = (
    Command(
        "run",
        20,
        "tintformer.cli.run:run",
        "Train a model inside the pass on the first part of a text, and predict the rest with the updated weights.",
    ),
    Command(
        "adapt",
        40,
        "tintformer.cli.adapt:adapt",
        "Train a model on texts and write the update, for `tint run --adapted` and `tintformer.Tuned.load`.",
    ),
    Command(
        "statistics",
        60,
        "tintformer.cli.statistics:statistics",
        "Collect root mean squares of gradients on texts that will not be scored, for `--optimizer rms --statistics`.",
    ),
    Command(
        "build",
        80,
        "tintformer.cli.build:build",
        "Construct the transformer that trains MODEL in its forward pass, and write it to a directory.",
    ),
    Command(
        "export",
        90,
        "tintformer.cli.export:export",
        "Write the pass that trains MODEL and predicts with it as an ONNX graph: ids and two masks in, logits out.",
    ),
    Command(
        "models",
        180,
        "tintformer.cli.models:models",
        "List the families of decoders that can be simulated, with their features.",
    ),
)
