"""How torch's threads wait for work; must be set before torch is imported."""

from __future__ import annotations

import os


def use_sleeping_threads() -> None:
    """Let waiting threads sleep, unless the user has said how they shall wait.

    By default they spin: up to a third faster for small models on a machine that nobody else uses, and many times
    slower as soon as anybody does.
    """
    if "GOMP_SPINCOUNT" not in os.environ:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
