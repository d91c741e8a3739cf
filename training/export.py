# pyright: basic
"""`python -m training.export`: a finished run as a model folder, float16, with a card that states what was measured."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tintformer.errors import InputError
from tintformer.storage.whole_files import whole_directory
from training.console import one_line_errors, quiet_libraries
from training.corpus import Source, read_sources
from training.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that reached its last step, with the texts it was made from."""

    folder: Path
    settings: Settings
    command: str
    num_tokens: int
    texts: list[Source]
    held_out: list[Source]


@one_line_errors
def main(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    data: Annotated[Path, typer.Option(help="Folder with the texts of the run.")],
    into: Annotated[Path, typer.Option(help="Folder for the model.")],
    notes: Annotated[Path | None, typer.Option(help="Markdown on the data and the limits, for the card.")] = None,
) -> None:
    """Score a finished run on its held-out texts, next to the baselines, and write it as a model with a card."""
    finished = open_run(run, data)
    remarks = notes.read_text(encoding="utf-8") if notes else ""
    quiet_libraries()
    from training.card import write_card
    from training.results import measure

    model, tokenizer = load_rounded(finished)
    results = measure(finished, model, tokenizer)
    with whole_directory(into) as folder:
        save_model(folder, model, tokenizer)
        (folder / "README.md").write_text(write_card(finished, model, results, remarks), encoding="utf-8")
    for result in results:
        typer.echo(json.dumps(result.record()))


def open_run(folder: Path, data: Path) -> Run:
    """The run of a folder, if it is complete and its texts are the ones it was trained on."""
    from training.checkpoint import read_state
    from training.loop import CHECKPOINT

    try:
        description = json.loads((folder / "run.json").read_text())
    except FileNotFoundError as error:
        raise InputError(f"{folder} holds no run; train one with python -m training.train") from error
    settings = Settings(**description["settings"])
    state = read_state(folder / CHECKPOINT)
    if state is None or state["step"] < settings.steps:
        reached = state["step"] if state else 0
        raise InputError(f"{folder} stands at step {reached} of {settings.steps}; give its command again to finish it")
    return Run(
        folder=folder,
        settings=settings,
        command=description["command"],
        num_tokens=description["tokens"],
        texts=_find_texts(description["texts"], data),
        held_out=_find_texts(description["held_out"], data),
    )


def _find_texts(records: list[dict[str, Any]], data: Path) -> list[Source]:
    sources = read_sources([data / record["name"] for record in records])
    for record, source in zip(records, sources, strict=True):
        if source.record() != record:
            raise InputError(f"{data / source.name} is not the text that the run was made from")
    return sources


def load_rounded(run: Run) -> tuple[Any, Any]:
    """The model as it will be read back, its weights rounded to float16, and the tokenizer of the run."""
    from tokenizers import Tokenizer

    from training.checkpoint import load_weights
    from training.corpus import END_OF_TEXT
    from training.loop import CHECKPOINT
    from training.settings import create_model

    tokenizer: Any = Tokenizer.from_file(str(run.folder / "tokenizer.json"))
    model = create_model(run.settings, tokenizer.get_vocab_size(), tokenizer.token_to_id(END_OF_TEXT))
    load_weights(run.folder / CHECKPOINT, model)
    return model.half().float().eval(), tokenizer


def save_model(folder: Path, model: Any, tokenizer: Any) -> None:
    """Weights as float16 safetensors, configurations and tokenizer, as transformers reads them."""
    from transformers import PreTrainedTokenizerFast

    from training.corpus import END_OF_TEXT

    marks = {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT, "pad_token": END_OF_TEXT}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=model.config.max_position_embeddings,
        clean_up_tokenization_spaces=False,
        **marks,
    )
    fast.save_pretrained(folder)
    model.half().save_pretrained(folder)
    model.float()


if __name__ == "__main__":
    typer.run(main)
