"""`tint rates`: measure once which learning rates suit a model and a rule, for `auto` to start from."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tintformer.cli.options import Device, Dtype, Json, Model, RuleOptions, rule_options
from tintformer.cli.rule_setup import open_model, warnings_as_lines
from tintformer.console import print_json, print_table, progress_bar, say
from tintformer.errors import InputError, brief
from tintlab.cli.evaluate.eval_options import whole_numbers

if TYPE_CHECKING:
    from tintformer.learning.rate_prior import RatePrior

SHORTEST = 16
"""Tokens of a piece below which `auto` makes no trials either."""
KEEPS = ".txt", ".md", ".rst", ".py"
"""Files of a directory that are read."""


@rule_options("Not given here: it is what is measured.")
def rates(
    model: Model,
    texts: Annotated[
        list[Path] | None,
        typer.Argument(help="Texts, or directories of them; without any, those that ship.", show_default=False),
    ] = None,
    *,
    rule: RuleOptions,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the file here, not to the cache directory.")
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Training tokens of the pieces of text, with commas between them; default: 32,128,512. Long ones "
            "take most of the time.",
            show_default=False,
        ),
    ] = None,
    dtype: Dtype = "float32",
    device: Device = None,
    json: Json = False,
) -> None:
    """Measure on TEXTS which learning rates suit MODEL and a rule, and keep it: `auto` starts from there.

    Texts of the kinds that the model will learn from are best, of a few thousand tokens each. What is measured is kept:
    the same command again goes on where it was stopped.
    """
    from tintformer.learning.rate_prior import prior_file, write_prior
    from tintformer.learning.text import encode, find_tokenizer
    from tintformer.storage.whole_files import check_file
    from tintlab.rates import LENGTHS, measure

    if "learning_rate" in rule:
        raise InputError("`tint rates` measures the learning rate; leave out --learning-rate")
    built = rule.build()
    chosen = LENGTHS if lengths is None else piece_lengths(lengths)
    if output is not None:
        check_file(output)
    contents = read_texts(texts)
    with warnings_as_lines():
        auxiliary, tokenizer = open_model(model, dtype, device), find_tokenizer(model)
        encoded = [encode(tokenizer, content).input_ids for content in contents]
        with progress_bar() as progress:
            prior = measure(auxiliary, built, encoded, lengths=chosen, progress=progress)
        target = prior_file(prior.weights[0], prior.rule) if output is None else output
        write_prior(prior, target)
    if json:
        print_json({**asdict(prior), "file": str(target)})
    else:
        _print(prior, target)


def piece_lengths(text: str) -> tuple[int, ...]:
    """Numbers of tokens, of which the folds of a training part leave something to learn and to score."""
    found = whole_numbers("--lengths", text)
    if min(found) < SHORTEST:
        raise InputError(f"--lengths {brief(text)} has pieces of {min(found)} tokens; give {SHORTEST} at least")
    return found


def read_texts(paths: list[Path] | None) -> list[str]:
    """The texts of files and directories; without any, those that ship with the package."""
    from tintformer.bundled import rate_texts
    from tintformer.learning.text import read_text

    if not paths:
        return rate_texts()
    return [read_text(file=file) for path in paths for file in _files(path)]


def _files(path: Path) -> list[Path]:
    from tintformer.storage.untrusted_files import user_path

    if not (directory := user_path(path)).is_dir():
        return [path]
    found = sorted(each for each in directory.rglob("*") if each.suffix in KEEPS and each.is_file())
    if not found:
        raise InputError(f"{path} holds no texts (*{', *'.join(KEEPS)}); give files, or another directory")
    return found


def _print(prior: RatePrior, target: Path) -> None:
    rows = [
        {
            "trained tokens": table.tokens,
            "pieces": table.pieces,
            "loss before": f"{table.loss:.2f}",
            "best rate": f"{prior.steps[best] / table.tokens:.2g}",
            "its gain": f"{table.gain[best]:.3f} ± {table.spread[best]:.3f}",
        }
        for table in prior.lengths
        for best in [table.gain.index(max(table.gain))]
    ]
    print_table(rows, title=f"{prior.model}: what pieces of texts gained, in nats per token")
    say(f"wrote {target}; `auto` starts from it for this model and rule")
