"""How figures look: one set of colours and one style for reports, experiments and the construction."""

from __future__ import annotations

from typing import Any

from tintformer.errors import TintError

INSTALL = "pip install 'tintformer[plots]'"
WITHOUT_FIGURES = f"without figures, which need matplotlib: {INSTALL}"
INK, MUTED, FAINT = "#1f2329", "#667079", "#d5dae0"
BETTER, WORSE = "#0072b2", "#d55e00"
"""Okabe and Ito's blue and vermilion, which colour-blind people can tell apart."""

VARIABLES = {INK: "ink", MUTED: "muted", FAINT: "faint", BETTER: "better", WORSE: "worse"}
"""By colour, the name of its variable in `page.css`."""

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "tintformer",  # names inside of the file are the same on every run
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that a figure has the same measures everywhere
    "font.size": 8.5,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.labelcolor": INK,
}


def has_matplotlib() -> bool:
    """Whether figures can be drawn: matplotlib is an extra, because most of the package draws nothing."""
    try:
        import matplotlib as _  # noqa: F401
    except ImportError:
        return False
    return True


def import_matplotlib(purpose: str) -> Any:
    """The library itself; `purpose` opens the message where it is missing."""
    if not has_matplotlib():
        raise TintError(f"{purpose} need matplotlib; install it with {INSTALL}")
    import matplotlib

    return matplotlib
