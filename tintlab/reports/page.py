"""`write`: a report as one HTML file that needs nothing else, and a PNG of each figure, all of them or none."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import takewhile
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from tintformer.console import on_one_line
from tintformer.errors import InputError, TintError
from tintformer.learning.words import distinct_words
from tintformer.rule.learning_rule import rule_text
from tintformer.storage.whole_files import check_directory as check
from tintformer.storage.whole_files import whole_files
from tintformer.study.coloured import LEVELS, REST, SIGNS, colour_limit, shade, shown, visible
from tintformer.study.learn_result import LearnResult
from tintformer.typed_fields import checked
from tintformer.version import __version__
from tintlab.reports.collect import Alternative, Report, ScoredToken, collect
from tintlab.reports.drawing import NAMES, Drawing, draw, drawable, numbered, smoothing_window, tidy, unit_exponent
from tintlab.show.plot_style import WITHOUT_FIGURES, has_matplotlib

PAGE = "report.html"
FILES = (*(f"{name}.png" for name in NAMES), PAGE)
"""All that a report can consist of; the page takes its place last."""
LISTED = 6
"""Tokens in each list of largest changes."""
LONGEST = 80
"""Characters of a text's name."""
MINUS = "\N{MINUS SIGN}"


def write(report: Report, directory: Path) -> Path:
    """Write `report.html` and a PNG of each of its figures; returns the page's path.

    The files take their places when all are written: after an error or an interruption the directory is as it was.
    Where matplotlib is missing, the page has a sentence in the place of each figure.
    """
    check_directory(directory)
    drawings = draw(report) if has_matplotlib() else {}
    contents = {f"{name}.png": each.png for name, each in drawings.items()}
    contents[PAGE] = page(report, drawings).encode()
    try:
        with whole_files(directory, FILES) as folder:
            for name, content in contents.items():
                (folder / name).write_bytes(content)
    except OSError as error:
        raise TintError(
            f"cannot write the report into {directory}: {error.strerror or error}; free disk space or choose another "
            "directory"
        ) from error
    return directory / PAGE


def report(result: LearnResult, directory: str | os.PathLike[str], *, cosine: bool | None = None) -> Path:
    """Write the page that `tint report` writes, and return its path: `report.html` and its figures.

    Args:
        result: What `tintformer.learn` returned.
        directory: Where to; it is made.
        cosine: Whether the rule's gradient is compared with the exact one; None leaves that out for a large model.
    """
    checked("result", result, LearnResult, InputError)
    if not result.train_tokens:
        raise TintError("nothing was learnt from this text, so there is no pass to report on")
    check_directory(Path(directory))
    found = collect(
        result.auxiliary,
        result.rule,
        result.text,
        result.encoded,
        result.auxiliary.tokenizer,
        train_tokens=result.train_tokens,
        engine=result.engine,
        choice=result.choice,
        statistics=result.statistics,
        cosine=cosine,
    )
    return write(found, Path(directory))


def check_directory(directory: Path) -> None:
    """Refuse a directory that a report cannot be written into, before anything is computed."""
    check(directory, FILES)


def page(report: Report, drawings: Mapping[str, Drawing]) -> str:
    """The whole page; `drawings` is empty where nothing could be drawn."""
    # Names of models and the text come from outside: autoescape covers whatever is not marked as ours here.
    environment = Environment(autoescape=True, trim_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined)
    environment.filters |= {"perplexity": perplexity, "signed": signed, "percent": percent}
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    limit = colour_limit(token.change for token in report.scored)
    words = [visible(piece.text) for piece in report.pieces]
    texts = [piece.gap + ("" if piece.kind == "rest" else shown(piece)) for piece in report.pieces]
    ranked = sorted(report.scored, key=lambda token: token.change)
    name = report.auxiliary.name
    return environment.from_string(_asset("page.html")).render(
        version=__version__,
        model=name.rstrip("/\\").replace("\\", "/").rpartition("/")[2] or name,
        text=text_name(report),
        report=report,
        scored=report.scored,
        gained=sum(token.change < 0 for token in report.scored),
        facts=list(facts(report)),
        limit=f"{limit:g}",
        shades=[
            *(f"better-{level}" for level in range(LEVELS, 0, -1)),
            "none",
            *(f"worse-{level}" for level in range(1, LEVELS + 1)),
        ],
        tokens=list(_tokens(report, limit)),
        line_sign=SIGNS["\n"],
        changes=[
            ("Became likelier", _changes([token for token in ranked if token.change < 0], texts, limit)),
            ("Became less likely", _changes([token for token in ranked[::-1] if token.change > 0], texts, limit)),
        ],
        continuations=_continuations(report),
        drawn=bool(drawings),
        without_figures=WITHOUT_FIGURES,
        figures=list(_figures(report, drawings)),
        data=list(_data(report, words)),
        style=Markup(_asset("page.css")),
        script=Markup(_asset("page.js")),
    )


def _asset(name: str) -> str:
    return (files("tintlab.reports") / name).read_text(encoding="utf-8")


def perplexity(loss: float) -> str:
    """Three or four digits of it."""
    if loss > 700:
        return "\N{INFINITY}"
    value = math.exp(loss)
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}" if value < 1e6 else f"{value:.2e}"


def signed(value: float, digits: int = 3) -> str:
    """With its sign, to so many digits after the point."""
    return f"{MINUS if value < 0 else '+'}{abs(value):.{digits}f}"


def percent(loss: float) -> str:
    """The probability of a token with this loss."""
    share = 100 * math.exp(-loss)
    return f"{share:.1f}%" if share >= 9.95 else f"{share:#.2g}%" if share >= 0.01 else "<0.01%"


def text_name(report: Report) -> str:
    """The name of the text, cut, and without what would turn the direction of writing or could not be written."""
    name = on_one_line(report.name)
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"


# What was done.


def facts(report: Report) -> Iterator[tuple[str, str]]:
    """The identity of what produced the report."""
    import torch
    import transformers

    auxiliary = report.auxiliary
    yield "Model", f"{auxiliary.name}, {auxiliary.family} in {str(auxiliary.dtype).removeprefix('torch.')}"
    yield (
        "Size",
        f"{auxiliary.model.num_parameters():,} parameters: {len(auxiliary.blocks)} layers, "
        f"width {auxiliary.stream_width}, vocabulary {auxiliary.vocabulary_size:,}",
    )
    yield "Learning rule", rule_text(report.rule)
    yield "Learning rate", _rate_text(report)
    if (tuned := report.baseline) is not None:
        steps = "1 step" if tuned.steps == 1 else f"{tuned.steps} steps"
        yield (
            "Baseline",
            f"explicit fine-tuning: autograd and SGD on all weights of the blocks and the final norm, {steps}, at its "
            f"own rate {tidy(tuned.choice.rate)}",
        )
    yield "Tokens", f"{report.train_tokens} trained on, {len(report.scored)} evaluated"
    yield "Engine", report.engine
    yield (
        "Versions",
        f"tintformer {__version__}, torch {torch.__version__}, transformers {transformers.__version__}",
    )


def _rate_text(report: Report) -> str:
    rate, choice = tidy(report.rule.rate), report.choice
    if choice is None:
        return f"{rate}, as given"
    return f"{rate}: {choice.reason}" if choice.reason else rate


# The text.


def _tokens(report: Report, limit: float) -> Iterator[dict[str, Any]]:
    """Every token of the text: its classes, its lines, and its row in the data if it was scored."""
    rows = {token.position: row for row, token in enumerate(report.scored)}
    for position, piece in enumerate(report.pieces):
        row = rows.get(position)
        classes = (
            "t",
            "trained" if position < report.train_tokens else "",
            "tag" if piece.kind != "text" else "",
            "" if row is None else shade(report.scored[row].change, limit),
        )
        yield {
            "gap": piece.gap,
            "classes": " ".join(filter(None, classes)),
            "row": row,
            "lines": shown(piece).split("\n"),
        }


def _changes(ranked: Sequence[ScoredToken], texts: Sequence[str], limit: float) -> list[dict[str, Any]]:
    """The rows of a list of largest changes: tokens in their words, and those among their neighbours."""
    by_position = {token.position: token for token in ranked}
    rows = distinct_words(texts, by_position, LISTED)
    return [
        {
            "token": by_position[position],
            "left": _on_one_line(context.left),
            "before": context.before,
            "piece": visible(context.token) or REST,
            "after": context.after,
            "right": _on_one_line(context.right),
            "shade": shade(by_position[position].change, limit),
        }
        for context, position in rows
    ]


def _on_one_line(text: str) -> str:
    """With signs for the line breaks and tabs that a line of a table does not have."""
    return "".join(character if character == " " else SIGNS.get(character, character) for character in text)


def _continuations(report: Report) -> list[tuple[str, str, str]]:
    """Title, what both begin with, and how each goes on."""
    found = report.continuations
    if found is None:
        return []
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(found.before, found.after, strict=False))
    same = "".join(character for character, _ in pairs)
    sides = (("Before", found.before), ("After", found.after))
    return [(title, _with_signs(same), _with_signs(text.removeprefix(same))) for title, text in sides]


def _with_signs(text: str) -> str:
    """With a sign at every line break."""
    return text.replace("\n", SIGNS["\n"] + "\n")


def _data(report: Report, words: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What a token shows when it is pointed at."""
    for token in report.scored:
        yield {
            "position": token.position,
            "word": words[token.position],
            "loss_before": _rounded(token.loss_before),
            "loss": _rounded(token.loss),
            "probability_before": _rounded(math.exp(-token.loss_before)),
            "probability": _rounded(math.exp(-token.loss)),
            "top_before": _alternatives(token.top_before),
            "top": _alternatives(token.top),
        }


def _alternatives(top: Iterable[Alternative]) -> list[Any]:
    return [[visible(each.word), _rounded(each.probability), int(each.actual)] for each in top]


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


# The figures.


def _figures(report: Report, drawings: Mapping[str, Drawing]) -> Iterator[dict[str, Any]]:
    for name, (title, caption) in captions(report).items():
        label = alternative_text(name, report) if name in drawable(report) else ""
        if name in drawings:
            yield {"name": name, "title": title, "caption": caption, "label": label, "svg": Markup(drawings[name].svg)}
        else:  # a caption also says why there are no numbers; without matplotlib the sentence takes the figure's place
            yield {"name": name, "title": title, "caption": label or caption, "svg": None}


def captions(report: Report) -> dict[str, tuple[str, str]]:
    """Title and caption by figure, in the order of the page; a figure that is missing is explained."""
    return {
        "loss": (
            "Loss by position",
            f"Evaluation part, before and after; a moving mean over {smoothing_window(len(report.scored))} tokens. "
            "Blue between the lines: the pass has helped. Orange: it has harmed.",
        ),
        "gain": ("Cumulative gain by position", _gain_caption(report)),
        "updates": ("Update norms by layer and matrix", _updates_caption(report)),
        "cosines": ("Simulated against exact gradient", _cosines_caption(report)),
        "rates": ("Learning-rate curve", _rates_caption(report)),
    }


def _gain_caption(report: Report) -> str:
    total, tokens = gain(report, report.loss), len(report.scored)
    caption = (
        f"Loss before minus loss after, summed over the evaluation part up to each position: {total} nats over all "
        f"{tokens} tokens. Where the line rises, the pass helps."
    )
    if (tuned := report.baseline) is None:
        return caption
    fine_tuning = f": {gain(report, tuned.loss)}" if math.isfinite(tuned.loss) else " diverged"
    return f"{caption} Explicit fine-tuning{fine_tuning}."


def gain(report: Report, loss: float) -> str:
    """What a mean loss gains over all tokens."""
    return signed(len(report.scored) * (report.loss_before - loss), 1)


def _updates_caption(report: Report) -> str:
    blocks = [update for update in report.updates if update.layer is not None]
    others = [update for update in report.updates if update.layer is None]
    if not blocks:
        return "Nothing in the blocks has moved."
    exponent = unit_exponent(blocks)
    listed = ", ".join(f"{update.matrix} {update.norm:.2g}" for update in others)
    steps = "1 step" if report.rule.steps == 1 else f"{report.rule.steps} steps"
    unit = f"in units of 1e{exponent}, " if exponent else ""
    tail = f" Outside of the blocks: {listed}." if others else ""
    shades = "its logarithm" if numbered(report) else "its logarithm, from the smallest to the largest"
    return f"Norm of the change of each matrix, with its bias, {unit}after {steps}; the shade is {shades}.{tail}"


def _cosines_caption(report: Report) -> str:
    if not report.cosines:
        return f"Left out. {report.no_cosines}"
    whole = report.cosines[0]
    overall = ", ".join(
        f"{value:.3f} over {what}"
        for value, what in ((whole.moved, "the parameters that move"), (whole.everything, "all parameters"))
        if value is not None
    )
    first = "" if report.rule.steps == 1 else " of the first step"
    return (
        f"Cosine of the rule's gradient{first} with the one that autograd gives for the same loss in float64. Over the "
        f"whole model: {overall or 'not defined, for nothing moves'}. Parameters that stand still count as zeros."
    )


def _rates_caption(report: Report) -> str:
    choice = report.choice
    if choice is None:
        return f"There is none: the rate, {tidy(report.rule.rate)}, was given and not searched for."
    if not choice.curve:
        return f"There is none: {choice.reason}."
    return (
        f"Each rate was tried inside the training part alone: {choice.evaluation_tokens} of its {choice.train_tokens} "
        f"tokens were scored after training on those before them. Chosen is {tidy(choice.rate)}: {choice.reason}."
    )


def alternative_text(name: str, report: Report) -> str:
    """The figure in a sentence, for those who do not see it."""
    if name == "loss":
        return (
            f"Two lines over positions {report.scored[0].position} to {report.scored[-1].position}; their means are "
            f"{report.loss_before:.3f} nats before and {report.loss:.3f} after."
        )
    if name == "gain":
        return f"A line from 0 before the first evaluated token to {gain(report, report.loss)} nats at the last."
    if name == "updates":
        largest = max(report.updates, key=lambda update: update.norm)
        where = "" if largest.layer is None else f" of layer {largest.layer}"
        return f"A table of norms; the largest is {largest.norm:.2g}, of {largest.matrix}{where}."
    if name == "cosines":
        known = [cosine.moved for cosine in report.cosines[1:] if cosine.moved is not None]
        if not known:
            return "Nothing moves, so that no cosine is defined."
        return f"A line over layers; where parameters move the cosine is {min(known):.3f} to {max(known):.3f}."
    assert report.choice is not None
    points = ", ".join(f"{point.loss:.3f} at {tidy(point.rate)}" for point in report.choice.curve)
    return f"Held-out loss by rate: {points}; chosen: {tidy(report.choice.rate)}."
