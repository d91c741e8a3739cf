# pyright: basic
"""Where things are: the repository, and real models and texts beside it, if they are there."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHARED = Path(os.environ.get("TINTFORMER_SHARED", ROOT.parent / "shared"))
