"""The options of the experiments' commands, and how their texts are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tintformer.cli.options import check_rate
from tintformer.errors import InputError, brief
from tintformer.storage.untrusted_files import check_file_name, to_file_name

Rate = Annotated[
    str,
    typer.Option("--learning-rate", help="A number, numbers to choose from (1e-4,3e-4), or auto: a grid of its own."),
]
Output = Annotated[Path, typer.Option("--output", "-o", help="Directory for records and tables.")]
Jobs = Annotated[int, typer.Option(min=1, max=1024, help="Processes; the cores are divided among them.")]
EngineOption = Annotated[str, typer.Option(help="fast, simulator, reference or oracle; they agree.")]
Protocol = Annotated[
    str,
    typer.Option(help="tuned: rates from data that is not scored; paper: as the authors, rates from what is scored."),
]
AccuracyProtocol = Annotated[
    str,
    typer.Option(
        "--protocol",
        help="tuned: rates from data that is not scored; paper: as the authors, rates from what is scored; both.",
    ),
]
Compare = Annotated[
    str | None, typer.Option(help="Other models, with commas between them, that are scored as they are.")
]
Methods = Annotated[str, typer.Option(help="Methods to compare; `tint eval list` has all.")]
LengthOption = Annotated[int, typer.Option(help="Tokens of a block; never more than the model's context.")]
Blocks = Annotated[int | None, typer.Option(help="Blocks to score; default: all that are not tuned on.")]
TuningBlocks = Annotated[int, typer.Option("--tuning", help="Blocks to choose the rates on; they are not scored.")]
Seeds = Annotated[str, typer.Option(help="Each draws its own demonstrations.")]
Tests = Annotated[int | None, typer.Option(help="Test examples of each task, as many of each label.")]
Tuning = Annotated[int, typer.Option(help="Examples of the train pool that choose the rate, for each seed.")]
Name = Annotated[
    str | None,
    typer.Option(help="What its files are called, to keep them beside those of the same run by other methods."),
]
Track = Annotated[
    str | None,
    typer.Option(
        "--track", help="Tell a tracker of progress and results: trackio, wandb, tensorboard, or another of accelerate."
    ),
]
Audit = Annotated[
    bool,
    typer.Option(
        "--audit", help="Also check a sample of the scores for leaks; the certificate stands beside the table."
    ),
]
OUTPUT = Path("tint-eval")


def less(text: str, usual: object, quick: object) -> str:
    """The help of an option whose default is smaller with --quick."""
    return f"{text} Default: {usual}; with --quick {quick}."


def names(text: str | None) -> tuple[str, ...]:
    """Names with commas between them."""
    return tuple(part.strip() for part in text.split(",")) if text else ()


def named(name: str | None, usual: str) -> str:
    """What a run's files are called: the user's name for it, or the usual one."""
    return to_file_name(usual) if name is None else check_file_name(name, "--name")


def rates(text: str) -> tuple[float, ...] | None:
    """The grid that an option names; None where it is to be found."""
    return None if text == "auto" else tuple(map(check_rate, numbers("--learning-rate", text)))


def seeds(text: str) -> tuple[int, ...]:
    """What `--seeds` names."""
    return whole_numbers("--seeds", text)


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them."""
    parts = names(text)
    if not parts or not all(part.isdecimal() and len(part) < 20 for part in parts):
        raise InputError(f"{option} {brief(text)} must be whole numbers with commas between them, such as 1,2,4")
    return tuple(map(int, parts))


def numbers(option: str, text: str) -> tuple[float, ...]:
    """Numbers with commas between them."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"{option} {brief(text)} must be numbers with commas between them, such as 0.3,0.5") from error
