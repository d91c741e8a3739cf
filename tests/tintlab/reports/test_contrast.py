# pyright: basic
"""The colours of a report can be read: contrast by WCAG 2.1, in light and in dark."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

TEXT = 4.5
"""What WCAG asks of text at level AA."""

Colour = tuple[float, float, float]


def schemes() -> dict[str, dict[str, str]]:
    """The variables of the style sheet; the dark ones stand in the media query, after the light ones."""
    css = (files("tintlab.reports") / "page.css").read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"--([\w-]+):\s*([^;]+);", part)) for part in re.findall(r":root \{(.*?)\}", css, re.S)[:2]
    )
    return {"light": light, "dark": {**light, **dark}}


def parse(value: str) -> Colour:
    if value.startswith("#"):
        return tuple(int(value[at : at + 2], 16) / 255 for at in (1, 3, 5))  # type: ignore[return-value]
    return tuple(int(part) / 255 for part in value.split(","))  # type: ignore[return-value]


def blend(over: Colour, under: Colour, strength: float) -> Colour:
    return tuple(strength * a + (1 - strength) * b for a, b in zip(over, under, strict=True))  # type: ignore[return-value]


def luminance(colour: Colour) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: Colour, second: Colour) -> float:
    bright, dim = sorted((luminance(first), luminance(second)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def test_the_measure_itself() -> None:
    assert contrast(parse("#000000"), parse("#ffffff")) == pytest.approx(21)
    assert contrast(parse("#777777"), parse("#ffffff")) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_can_be_read(scheme: str) -> None:
    variables = schemes()[scheme]
    colours = {name: parse(value) for name, value in variables.items() if re.match(r"#|\d+,", value)}
    for place in ("page", "card"):
        assert contrast(colours["ink"], colours[place]) >= TEXT
        assert contrast(colours["muted"], colours[place]) >= TEXT
        for mark in ("better", "worse"):
            assert contrast(colours[mark], colours[place]) >= TEXT, (mark, place)
    for change in ("better", "worse"):
        strongest = blend(colours[f"{change}-rgb"], colours["page"], float(variables["strength"]))
        assert contrast(colours["ink"], strongest) >= TEXT, change
