"""Colours of a report. Figures are drawn in these; on the page each is a variable with a value for light and dark."""

from __future__ import annotations

INK, MUTED, FAINT = "#1f2329", "#667079", "#d5dae0"
BETTER, WORSE = "#0072b2", "#d55e00"
"""Okabe and Ito's blue and vermilion, which colour-blind people can tell apart."""

VARIABLES = {INK: "ink", MUTED: "muted", FAINT: "faint", BETTER: "better", WORSE: "worse"}
"""By colour, the name of its variable in `page.css`."""
