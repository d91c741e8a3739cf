"""The page: one HTML file that needs nothing else. Every string that comes from outside is escaped here."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from tintformer.report.captions import alternative_text, captions
from tintformer.report.collect import Alternative, Report, ScoredToken, count_parameters
from tintformer.report.figures import Drawing
from tintformer.report.panels import tidy
from tintformer.report.pieces import SIGNS, Piece, visible
from tintformer.rule.learning_rule import PRESETS, LearningRule
from tintformer.version import __version__

LEVELS = 5
"""Shades in each direction."""
LISTED = 6
"""Tokens in each list of largest changes."""
MINUS = "\N{MINUS SIGN}"


def page(report: Report, drawings: Mapping[str, Drawing]) -> str:
    """The whole page."""
    limit = colour_limit([token.change for token in report.scored])
    title = report.auxiliary.name.rstrip("/\\").replace("\\", "/").rpartition("/")[2] or report.auxiliary.name
    values = {
        "version": escape(__version__),
        "title": escape(f"{title}: training inside a forward pass"),
        "model": escape(title),
        "lead": escape(_lead(report)),
        "cards": _cards(report),
        "facts": "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>\n" for name, text in facts(report)
        ),
        "legend": _legend(limit, report),
        "text": _text(report, limit),
        "changes": _changes(report),
        "figures": _figures(report, drawings),
        "data": _data(report),
        "style": _asset("page.css"),
        "script": _asset("page.js"),
    }
    return Template(_asset("page.html")).substitute(values)


def _asset(name: str) -> str:
    return (files("tintformer.report") / name).read_text(encoding="utf-8")


# What was done.


def _lead(report: Report) -> str:
    return (
        f"The pass trained the model on the first {report.train_tokens} tokens of a text, and predicted the other "
        f"{len(report.scored)} with the weights that it had learnt."
    )


def _cards(report: Report) -> str:
    before, after = perplexity(report.loss_before), perplexity(report.loss)
    change = report.loss - report.loss_before
    error = "" if report.standard_error is None else f"standard error {report.standard_error:.3f}, "
    gained = sum(token.change < 0 for token in report.scored)
    cards = (
        (f'<span class="from">{before} \N{RIGHTWARDS ARROW}</span> {after}', "perplexity of the evaluation part"),
        (
            f'<span class="{"better" if change < 0 else "worse"}">{signed(change)}</span>',
            f"nats per token, {error}n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{len(report.scored)}",
        ),
        (f"{gained / len(report.scored):.0%}", f"of the tokens became likelier: {gained} of {len(report.scored)}"),
    )
    return "".join(
        f'<div class="card"><p class="number">{number}</p><small>{text}</small></div>\n' for number, text in cards
    )


def perplexity(loss: float) -> str:
    """Three or four digits of it."""
    if loss > 700:
        return "\N{INFINITY}"
    value = math.exp(loss)
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}" if value < 1e6 else f"{value:.2e}"


def signed(value: float) -> str:
    """With its sign, to three digits after the point."""
    return f"{MINUS if value < 0 else '+'}{abs(value):.3f}"


def facts(report: Report) -> Iterable[tuple[str, str]]:
    """The identity of what produced the report."""
    import torch
    import transformers

    auxiliary = report.auxiliary
    size = count_parameters(auxiliary)
    yield "Model", f"{auxiliary.name}, {auxiliary.family} in {str(auxiliary.dtype).removeprefix('torch.')}"
    yield (
        "Size",
        f"{size:,} parameters: {len(auxiliary.blocks)} layers, width {auxiliary.stream_width}, "
        f"vocabulary {auxiliary.vocabulary_size:,}",
    )
    yield "Learning rule", rule_text(report.rule)
    yield "Learning rate", _rate_text(report)
    yield "Tokens", f"{report.train_tokens} trained on, {len(report.scored)} evaluated"
    yield "Engine", report.engine
    yield (
        "Versions",
        f"tintformer {__version__}, torch {torch.__version__}, transformers {transformers.__version__}",
    )


def rule_text(rule: LearningRule) -> str:
    """The preset that is nearest, and every knob that differs from it."""

    def differing(preset: str) -> list[str]:
        start = PRESETS[preset](learning_rate=rule.learning_rate)
        names = [field.name for field in fields(rule)]
        return [f"{name}={getattr(rule, name)}" for name in names if getattr(rule, name) != getattr(start, name)]

    preset = min(PRESETS, key=lambda name: len(differing(name)))
    return ", ".join([preset, *differing(preset)])


def _rate_text(report: Report) -> str:
    rate, choice = tidy(report.rule.learning_rate), report.choice
    if choice is None:
        return f"{rate}, as given"
    tried = f"of {len(choice.curve) - 1} tried on the last {choice.evaluation_tokens} tokens of the training part"
    if choice.helps:
        return f"{rate}, at or just below the best {tried}"
    return f"{rate}, the smallest {tried}: none of them lowered the loss there"


# The text.


def colour_limit(changes: Iterable[float]) -> float:
    """The change with the strongest colour: a round number that nineteen in twenty tokens stay below."""
    sizes = sorted(abs(change) for change in changes)
    typical = max(sizes[min(len(sizes) - 1, math.ceil(0.95 * len(sizes)) - 1)], 1e-6)
    power = 10.0 ** math.floor(math.log10(typical))
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 7, 10) if typical <= step * power * (1 + 1e-9))


def shade(change: float, limit: float) -> str:
    """The class of a token: `better-1` to `better-5`, the same for worse, or nothing for next to no change."""
    level = min(LEVELS, math.floor(LEVELS * abs(change) / limit + 0.75))
    return f"{'better' if change < 0 else 'worse'}-{level}" if level else ""


def _legend(limit: float, report: Report) -> str:
    shades = [f"better-{level}" for level in range(LEVELS, 0, -1)] + ["none"]
    shades += [f"worse-{level}" for level in range(1, LEVELS + 1)]
    swatches = "".join(f'<i class="{name}"></i>' for name in shades)
    return (
        f'<div class="legend"><span class="scale">likelier, {MINUS}{limit:g} nats '
        f'<span class="swatches" aria-hidden="true">{swatches}</span> +{limit:g} nats, less likely (underlined)</span>'
        f'<span><span class="trained">trained on</span> {report.train_tokens} tokens, not scored</span></div>'
    )


def _text(report: Report, limit: float) -> str:
    rows = {token.position: row for row, token in enumerate(report.scored)}
    spans: list[str] = []
    for position, piece in enumerate(report.pieces):
        row = rows.get(position)
        classes = ["t"]
        attributes = f' id="token-{position}"'
        if position < report.train_tokens:
            classes.append("trained")
        if piece.kind != "text":
            classes.append("tag")
        if row is not None:
            classes.append(shade(report.scored[row].change, limit))
            attributes += f' data-row="{row}" tabindex="{-1 if row else 0}"'
        spans.append(
            f'{escape(piece.gap)}<span class="{" ".join(filter(None, classes))}"{attributes}>{_shown(piece)}</span>'
        )
    return "".join(spans)


def _shown(piece: Piece) -> str:
    """A token inside of the text: line breaks get a sign and stay line breaks."""
    if piece.kind == "rest":
        return "\N{MIDLINE HORIZONTAL ELLIPSIS}"
    if piece.kind == "special":
        return escape(visible(piece.text)) or "\N{EMPTY SET}"
    return escape(piece.text).replace("\n", f'<span class="sign">{SIGNS[chr(10)]}</span>\n')


def _data(report: Report) -> str:
    """What a token shows when it is pointed at. No `<` may end the script element that holds it."""
    rows = [
        {
            "position": token.position,
            "word": visible(report.pieces[token.position].text),
            "loss_before": _rounded(token.loss_before),
            "loss": _rounded(token.loss),
            "probability_before": _rounded(math.exp(-token.loss_before)),
            "probability": _rounded(math.exp(-token.loss)),
            "top_before": _alternatives(token.top_before),
            "top": _alternatives(token.top),
        }
        for token in report.scored
    ]
    return json.dumps(rows, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")


def _alternatives(top: Iterable[Alternative]) -> list[Any]:
    return [[visible(each.word), _rounded(each.probability), int(each.actual)] for each in top]


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _changes(report: Report) -> str:
    ranked = sorted(report.scored, key=lambda token: token.change)
    gained = [token for token in ranked[:LISTED] if token.change < 0]
    lost = [token for token in ranked[::-1][:LISTED] if token.change > 0]
    lists = (("Became likelier", gained), ("Became less likely", lost))
    return "".join(_list(report, title, tokens) for title, tokens in lists if tokens)


def _list(report: Report, title: str, tokens: list[ScoredToken]) -> str:
    rows = "".join(
        f'<tr><td><a href="#token-{token.position}"><bdi>{_word(report, token)}</bdi></a></td>'
        f"<td>{_percent(token.loss_before)}</td><td>{_percent(token.loss)}</td>"
        f"<td>{signed(token.change)}</td></tr>\n"
        for token in tokens
    )
    heads = "<tr><th>token</th><th>before</th><th>after</th><th>nats</th></tr>"
    return f"<div><h3>{title}</h3><table>{heads}\n{rows}</table></div>\n"


def _word(report: Report, token: ScoredToken) -> str:
    return escape(visible(report.pieces[token.position].text))


def _percent(loss: float) -> str:
    share = 100 * math.exp(-loss)
    return f"{share:.1f}%" if share >= 9.95 else f"{share:#.2g}%" if share >= 0.01 else "&lt;0.01%"


# The figures.


def _figures(report: Report, drawings: Mapping[str, Drawing]) -> str:
    parts: list[str] = []
    for name, (title, caption) in captions(report).items():
        body = ""
        if name in drawings:
            label = escape(alternative_text(name, report), quote=True)
            body = f'<div role="img" aria-label="{label}">{drawings[name].svg}</div>'
        below = f"<figcaption>{escape(caption)}</figcaption>"
        parts.append(f'<figure id="figure-{name}"><h3>{escape(title)}</h3>\n{body}\n{below}</figure>\n')
    return "".join(parts)
