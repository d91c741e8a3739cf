"""How torch's threads wait for work; must be set before torch is imported."""

from __future__ import annotations

import os
import sys


def use_sleeping_threads() -> None:
    """Let waiting threads sleep, unless the user has said how they shall wait, or torch is there already.

    By default they spin: up to a third faster for small models on a machine that nobody else uses, and many times
    slower as soon as anybody does. `import tintformer` says so to torch; torch reads it once, when it is imported.
    """
    if "torch" not in sys.modules and "GOMP_SPINCOUNT" not in os.environ:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
