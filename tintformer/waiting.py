"""How torch's threads wait for work; to be settled before torch is imported."""

from __future__ import annotations

import os

SPINS = "50000"
"""Rounds that a thread of GNU OpenMP spins before it sleeps, about 0.1 ms. By default it spins for milliseconds, which
makes torch many times slower on a machine that others use too; asleep at once, it wakes late and a quiet machine is
half as fast again."""


def settle_waiting() -> None:
    """Let waiting threads sleep soon, unless the user has said how they shall wait."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
