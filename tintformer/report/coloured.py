"""A text coloured by what a pass changed, as HTML for a notebook."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

from tintformer.report.page import colour_limit, shade
from tintformer.report.pieces import SIGNS

STRENGTHS = (0.08, 0.18, 0.28, 0.39, 0.5)
"""Opacities of the shades, weak to strong: a notebook's background may be light or dark."""
COLOURS = {"better": "30,140,215", "worse": "240,140,0"}
"""Red, green and blue; in `page.css` those of its light scheme."""


def coloured_html(tokens: Sequence[str], gains: Sequence[float | None]) -> str:
    """A text as one HTML element with its own styles, each token coloured by its gain; for `_repr_html_`.

    `tokens` are the pieces of the text in order, white space included. `gains` are the nats by which the loss of each
    fell; None is a token that was not scored.
    """
    limit = colour_limit([gain for gain in gains if gain is not None])
    spans = Markup("").join(_span(token, gain, limit) for token, gain in zip(tokens, gains, strict=True))
    text = Markup('<div dir="auto" style="white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.9">{}</div>')
    legend = Markup('<div style="font-size:0.85em;opacity:0.75">{}</div>').format(
        f"blue: became likelier; orange, underlined: less likely; strongest from {limit:g} nats on. "
        "Dotted: trained on, or not scored."
    )
    return str(Markup("<div>{}{}</div>").format(text.format(spans), legend))


def _span(token: str, gain: float | None, limit: float) -> Markup:
    shown = escape(token.replace("\n", SIGNS["\n"] + "\n"))
    if gain is None:
        return Markup('<span style="border-bottom:2px dotted;opacity:0.7">{}</span>').format(shown)
    kind, _, level = shade(-gain, limit).partition("-")
    style = f"background:rgba({COLOURS[kind]},{STRENGTHS[int(level) - 1]})" if level else ""
    if kind == "worse":  # not by colour alone
        style += f";text-decoration:underline 2px rgb({COLOURS[kind]})"
    label = f"{'likelier' if gain > 0 else 'less likely'} by {abs(gain):.3f} nats"
    return Markup('<span style="{}" title="{}">{}</span>').format(style, label, shown)
