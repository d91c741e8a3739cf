"""A text token by token as a reader sees it, and coloured by what a pass changed, as HTML for a notebook."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup, escape

from tintformer.errors import InputError

PieceKind = Literal["text", "special", "rest"]
"""`special` tokens are not in the text; a `rest` is one more token of a character that was shown before."""

SIGNS = {" ": "\u2423", "\n": "\u21b5", "\r": "\u240d", "\t": "\u21e5"}
"""What stands for white space where it would not be seen."""


REST = "\N{MIDLINE HORIZONTAL ELLIPSIS}"
"""What stands for one more token of a character."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One token."""

    text: str
    kind: PieceKind = "text"
    gap: str = ""
    """White space before it that belongs to no token: some tokenizers drop it."""


def cut(text: str, tokens: Sequence[str]) -> tuple[Piece, ...]:
    """Find each token in the text, from left to right; `tokens` are those of `tintformer.learning.text.Encoded`."""
    pieces: list[Piece] = []
    end = 0
    for token in tokens:
        rest = text[end:]
        gap = rest[: len(rest) - len(rest.lstrip())]
        if token and rest.startswith(token):
            pieces.append(Piece(text=token))
            end += len(token)
        elif token and rest[len(gap) :].startswith(token):
            pieces.append(Piece(text=token, gap=gap))
            end += len(gap) + len(token)
        else:
            # Bytes of one character are tokens of their own, all with the whole character for a text.
            again = bool(token) and bool(pieces) and text[:end].endswith(token)
            pieces.append(Piece(text=token, kind="rest" if again else "special"))
    return tuple(pieces)


def visible(text: str) -> str:
    """A token by itself, with signs for its line breaks and for the spaces at its ends."""
    text = "".join(SIGNS[character] if character in "\n\r\t" else character for character in text)
    start = len(text) - len(text.lstrip(" "))
    end = len(text.rstrip(" "))
    if start >= end:
        return SIGNS[" "] * len(text)
    return SIGNS[" "] * start + text[start:end] + SIGNS[" "] * (len(text) - end)


def shown(piece: Piece) -> str:
    """A token inside of the text; what the text does not have, as a sign."""
    if piece.kind == "rest":
        return REST
    return piece.text if piece.kind == "text" else visible(piece.text) or "\N{EMPTY SET}"


SHADES = (0.16, 0.36, 0.57, 0.78, 1.0)
"""Shares of the strongest colour, weak to strong; `page.css` has the same."""
LEVELS = len(SHADES)
"""Shades in each direction."""
STRENGTH = 0.5
"""Opacity of the strongest colour in a notebook, whose background may be light or dark."""
COLOURS = {"better": (30, 140, 215), "worse": (240, 140, 0)}
"""Red, green and blue; in `page.css` those of its light scheme."""


def colour_limit(changes: Iterable[float]) -> float:
    """The change with the strongest colour: a round number that nineteen in twenty tokens stay below."""
    sizes = sorted(abs(change) for change in changes)
    typical = max(sizes[min(len(sizes) - 1, math.ceil(0.95 * len(sizes)) - 1)], 1e-6)
    power = 10.0 ** math.floor(math.log10(typical))
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 7, 10) if typical <= step * power * (1 + 1e-9))


def shade(change: float, limit: float) -> str:
    """The class of a token: `better-1` to `better-5`, the same for worse, or nothing for next to no change."""
    level = math.floor(LEVELS * min(abs(change) / limit, 1.0) + 0.75)
    return f"{'better' if change < 0 else 'worse'}-{level}" if level else ""


def coloured_html(tokens: Sequence[str], gains: Sequence[float | None]) -> str:
    """A text as one HTML element with its own styles, each token coloured by its gain; for `_repr_html_`.

    `tokens` are the pieces of the text in order, white space included. `gains` are the nats by which the loss of each
    fell: blue where it fell, orange and underlined where it rose. None is a token that was not scored.
    """
    if len(tokens) != len(gains):
        raise InputError(f"there are {len(tokens)} tokens but {len(gains)} gains; give one for each, or None")
    known = [gain for gain in gains if gain is not None and math.isfinite(gain)]
    limit = colour_limit(known or [0.0])
    spans = (_span(token, gain, limit) for token, gain in zip(tokens, gains, strict=True))
    text = Markup('<div dir="auto" style="white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.9">{}</div>')
    legend = Markup('<div style="font-size:0.85em;opacity:0.75">{}</div>')
    hint = (
        f"blue: became likelier; orange, underlined: less likely; strongest from {limit:g} nats on. "
        "Dotted: trained on, or not scored."
    )
    return str(Markup("<div>{}{}</div>").format(text.format(Markup("").join(spans)), legend.format(hint)))


def _span(token: str, gain: float | None, limit: float) -> Markup:
    shown = escape(token.replace("\n", SIGNS["\n"] + "\n"))
    if gain is None or math.isnan(gain):
        return Markup('<span style="border-bottom:2px dotted;opacity:0.7">{}</span>').format(shown)
    label = f"{'likelier' if gain > 0 else 'less likely'} by {abs(gain):.3f} nats"
    return Markup('<span style="{}" title="{}">{}</span>').format(_style(shade(-gain, limit)), label, shown)


def _style(name: str) -> str:
    """The inline form of a class of `shade`."""
    if not name:
        return ""
    kind, _, level = name.partition("-")
    red, green, blue = COLOURS[kind]
    style = f"background:rgba({red},{green},{blue},{STRENGTH * SHADES[int(level) - 1]:.2f})"
    # Not by colour alone: what got worse is underlined as well.
    return style if kind == "better" else f"{style};text-decoration:underline 2px rgb({red},{green},{blue})"
