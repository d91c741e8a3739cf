"""The figure of few-shot settings, drawn from prompts as experiments pack them.

Who sees whom, which tokens are targets of which loss, and which are scored: all as `Batch` derives it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from drawings.parts import BLUE, GREEN, GREY, ORANGE, SKY, WIDTH, fill_cells, new_figure, patch
from tintformer.execution.batch import Batch
from tintformer.learning.text import find_tokenizer
from tintformer.storage.loading import load
from tintlab.data.packing import SHARED, Packed, multi, single, to_learn
from tintlab.data.prompts import Encoder
from tintlab.data.tasks import Example, Prompt

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODEL = "nano-llama"
PROMPT = Prompt(template="{text} It was", words=("bad", "good"))
SHOWN = (Example("The dog was sad.", 0), Example("They had a big party.", 1), Example("It was cold.", 0))
TEST = "The sun was bright."
PACKERS = {"single": single, "multi": multi}
SEGMENTS = (SKY, ORANGE, GREEN, BLUE)


def figures() -> dict[str, Callable[[], Figure]]:
    """By name."""
    return {"modes": modes_figure}


@dataclass(frozen=True, eq=False, kw_only=True)
class Mode:
    """One packed prompt."""

    packed: Packed
    words: list[str]
    """What each token stands for."""
    visible: Tensor
    """`[T, T]`: whether a token sees another."""
    columns: dict[str, Tensor]
    """`[T]` each: which tokens are targets of a loss, which are scored."""


@cache
def example_mode(mode: str) -> Mode:
    """Three demonstrations and a test input with its first answer."""
    auxiliary, tokenizer = load(MODEL), find_tokenizer(MODEL)
    encoder = Encoder(tokenizer=tokenizer, prompt=PROMPT, context=auxiliary.max_positions or 512, bos=True)
    packed = PACKERS[mode](encoder, SHOWN, TEST).sequences[0]
    batches = {
        "label loss": _batch(auxiliary, packed, "label", test_text=False),
        "full loss": _batch(auxiliary, packed, "full", test_text=False),
        "full loss, test text": _batch(auxiliary, packed, "full", test_text=True),
    }
    first = batches["label loss"]
    columns = {name: _next(batch.train_positions[0]) for name, batch in batches.items()}
    return Mode(
        packed=packed,
        words=[_word(tokenizer, token) for token in packed.ids],
        visible=first.visible()[0],
        columns={**columns, "scored": _next(first.evaluation_positions[0])},
    )


def _batch(auxiliary: Any, packed: Packed, loss: Any, *, test_text: bool) -> Batch:
    return Batch.of(auxiliary, **to_learn([packed], loss=loss, test_text=test_text))


def _next(positions: Tensor) -> Tensor:
    """The tokens that positions predict."""
    return torch.cat((torch.zeros(1, dtype=torch.bool), positions[:-1]))


def _word(tokenizer: Any, token: int) -> str:
    return tokenizer.decode([token]).replace("\n", "\\n").strip() or "_"


def modes_figure() -> Figure:
    """Both modes side by side, a line a token."""
    found = {mode: example_mode(mode) for mode in PACKERS}
    figure: Any = new_figure(WIDTH, 6.4)
    panels = figure.subplots(1, len(found))
    for panel, (name, mode) in zip(panels, found.items(), strict=True):
        _draw(panel, name, mode)
    handles = [patch(colour) for colour in (GREY, *SEGMENTS)] + [patch("black")]
    labels = ["first token", *(f"segment {number}" for number in range(len(SEGMENTS))), "target of the loss, or scored"]
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)
    return figure


def _draw(panel: Any, name: str, mode: Mode) -> None:
    count, segments = len(mode.packed), torch.tensor(mode.packed.segments)
    for segment in sorted(set(mode.packed.segments)):
        colour = GREY if segment == SHARED else SEGMENTS[segment]
        fill_cells(panel, mode.visible & (segments == segment)[:, None], colour)
    for number, (title, marked) in enumerate(mode.columns.items()):
        at = count + 1 + 1.6 * number
        for token in marked.nonzero().flatten().tolist():
            panel.add_patch(_cell(at, token))
        panel.text(at + 0.6, -0.4, title, rotation=90, ha="center", va="bottom", fontsize=7)
        panel.plot([at - 0.2, at - 0.2], [0, count], color=GREY, lw=0.5)
    panel.plot([0, count, count, 0, 0], [0, 0, count, count, 0], color="black", lw=0.6)
    panel.text(0, -0.6, f"{name}: who sees whom", va="bottom", weight="bold")
    panel.set_yticks([token + 0.5 for token in range(count)], mode.words, fontsize=6)
    panel.set_xticks([])
    panel.set_xlabel("token that is seen", loc="left")
    panel.set_xlim(0, count + 8)
    panel.set_ylim(count + 0.1, -7)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)


def _cell(x: float, y: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y + 0.1), 1.2, 0.8, facecolor="black", edgecolor="none")
