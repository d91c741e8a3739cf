"""Write the drawings of the documentation: of the construction, the compiled network and the few-shot settings.

PYTHONPATH=docs/tools python -m drawings docs/figures
"""

from __future__ import annotations

import sys
from pathlib import Path

from drawings import attention, construction, linear, modes, network
from drawings.parts import write_figures
from tintformer.storage.configs import meta_auxiliary, read_config
from tintlab.show.plot_style import import_matplotlib

MODEL = "facebook/opt-125m"
"""Whose shapes are drawn where a drawing is of a model."""


def draw(directory: Path) -> list[Path]:
    """Write all drawings into a directory, and return their paths."""
    import_matplotlib("figures")
    figures = construction.figures(meta_auxiliary(read_config(MODEL), MODEL))
    for module in (linear, attention, network, modes):
        figures |= module.figures()
    return write_figures(figures, directory)


if __name__ == "__main__":
    for path in draw(Path(sys.argv[1])):
        print(f"wrote {path}")
