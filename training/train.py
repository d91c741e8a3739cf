# pyright: basic
"""`python -m training.train`: a small model from text files; the same command again continues a run that was killed."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from tintformer.errors import InputError
from tintformer.storage.whole_files import whole_file
from training.console import one_line_errors, quiet_libraries
from training.corpus import END_OF_TEXT, Source, Windows, encode_sources, encode_whole, read_sources
from training.lock import locked
from training.settings import Settings, create_model

VALIDATION_WINDOWS = 16
"""Of each held-out text, while training; `training.export` scores all of it."""


@one_line_errors
def main(
    texts: Annotated[list[Path], typer.Argument(help="Text files to train on.")],
    preset: Annotated[str, typer.Option(help="nano-gpt2 or nano-llama.")],
    run: Annotated[Path, typer.Option(help="Folder of the run: tokenizer, checkpoint and losses.")],
    steps: Annotated[int, typer.Option(help="Steps of the optimiser.")],
    held_out: Annotated[list[Path] | None, typer.Option(help="Text file to judge by; may be given often.")] = None,
    seed: Annotated[int, typer.Option(help="Decides first weights and order of the data.")] = Settings.seed,
    vocabulary: Annotated[int, typer.Option(help="Entries of the tokenizer.")] = Settings.vocabulary,
    batch_tokens: Annotated[int, typer.Option(help="Tokens of a step.")] = Settings.batch_tokens,
    learning_rate: Annotated[float, typer.Option(help="Peak of the schedule.")] = Settings.learning_rate,
    warmup: Annotated[int, typer.Option(help="Steps up to the peak.")] = Settings.warmup,
    validate_every: Annotated[int, typer.Option(min=1, help="Steps between two looks at held-out text.")] = 200,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps between two checkpoints.")] = 100,
) -> None:
    """Train a small language model on text files, on the CPU, in float32."""
    settings = Settings(
        preset=preset,
        steps=steps,
        seed=seed,
        vocabulary=vocabulary,
        batch_tokens=batch_tokens,
        learning_rate=learning_rate,
        warmup=warmup,
    )
    sources, judges = read_sources(texts), read_sources(held_out or [])
    description = _describe(settings, sources, judges)
    _check_folder(run, description)
    _train(run, settings, sources, judges, description, validate_every, checkpoint_every)


def _describe(settings: Settings, sources: list[Source], judges: list[Source]) -> dict[str, Any]:
    return {
        "settings": asdict(settings),
        "texts": [source.record() for source in sources],
        "held_out": [source.record() for source in judges],
    }


def _check_folder(run: Path, description: dict[str, Any]) -> None:
    """A folder continues the run it holds and no other."""
    try:
        earlier = json.loads((run / "run.json").read_text())
    except FileNotFoundError:
        return
    for key, value in description.items():
        if earlier.get(key) != value:
            raise InputError(f"{run} holds a run with other {key.replace('_', ' ')}; choose another --run folder")


def _train(
    run: Path,
    settings: Settings,
    sources: list[Source],
    judges: list[Source],
    description: dict[str, Any],
    validate_every: int,
    checkpoint_every: int,
) -> None:
    from training.vocabulary import find_vocabulary, train_vocabulary

    if (run / "run.json").exists():
        tokenizer = find_vocabulary(run / "tokenizer.json", sources, settings.vocabulary)
    else:  # nothing is written for texts that turn out to be too small
        tokenizer = train_vocabulary(sources, settings.vocabulary)
    windows = Windows(encode_sources(tokenizer, sources), settings)
    rows = [encode_whole(tokenizer, judge) for judge in judges]
    with locked(run):
        # Looked at once more: while the texts were encoded, another process may have come and gone.
        _check_folder(run, description)
        _open_folder(run, tokenizer, {**description, "tokens": len(windows.tokens), "command": _command()})
        _run_loop(run, settings, tokenizer, windows, rows, validate_every, checkpoint_every)


def _run_loop(
    run: Path,
    settings: Settings,
    tokenizer: Any,
    windows: Windows,
    rows: list[Any],
    validate_every: int,
    checkpoint_every: int,
) -> None:
    quiet_libraries()
    from training.evaluate import score
    from training.loop import Trainer

    model = create_model(settings, tokenizer.get_vocab_size(), tokenizer.token_to_id(END_OF_TEXT))

    def validate() -> float | None:
        if not rows:
            return None
        scores = [score(model, row, settings.context, num_windows=VALIDATION_WINDOWS) for row in rows]
        return sum(nats for nats, _ in scores) / sum(count for _, count in scores)

    Trainer(run, model, windows, settings).run(validate, validate_every, checkpoint_every)


def _open_folder(run: Path, tokenizer: Any, description: dict[str, Any]) -> None:
    if (run / "run.json").exists():
        return
    with whole_file(run / "tokenizer.json") as temporary:
        tokenizer.save(str(temporary))
    with whole_file(run / "run.json") as temporary:
        temporary.write_text(json.dumps(description, indent=2) + "\n")


def _command() -> str:
    return shlex.join(["python", "-m", "training.train", *sys.argv[1:]])


if __name__ == "__main__":
    typer.run(main)
