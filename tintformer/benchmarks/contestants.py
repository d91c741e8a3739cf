"""Who takes part in which case."""

from __future__ import annotations

from tintformer.benchmarks import few_shot, sequences
from tintformer.benchmarks.cases import Case, SequenceCase
from tintformer.benchmarks.contestant import Contestant, Ground
from tintformer.benchmarks.settings import Settings

FORMS = ("fast_dual", "fast_materialised")
SIMULATORS = ("simulator", "simulator_paper")
"""Who takes part only where a case or the user names them: many times slower, and about other questions."""
LOWER = ("forward", "explicit_block", "repeat", "fast", "fast_float32")
"""Who takes part in half precision unless others are named: the question there is what the precision brings."""


def known_names() -> tuple[str, ...]:
    """All contestants of any case."""
    return tuple(dict.fromkeys((*sequences.CONTESTANTS, *few_shot.CONTESTANTS)))


def participants(case: Case, settings: Settings) -> list[str]:
    """The contestants of a case: those that are named, or those that suit the dtype and the options."""
    table = sequences.CONTESTANTS if isinstance(case, SequenceCase) else few_shot.CONTESTANTS
    suiting = [name for name in table if case.contestants is None or name in case.contestants]
    if settings.contestants:
        return [name for name in suiting if name in settings.contestants]
    suiting = [name for name in suiting if settings.forms or name not in FORMS]
    suiting = [name for name in suiting if case.contestants is not None or name not in SIMULATORS]
    if settings.dtype == "bfloat16":
        return [name for name in suiting if name in (*LOWER, *FORMS)]
    return [name for name in suiting if name != "fast_float32"]


def prepare(name: str, ground: Ground, case: Case) -> Contestant:
    """Make a contestant ready to run; raises `Skip` with the reason where it cannot take part."""
    if isinstance(case, SequenceCase):
        return sequences.CONTESTANTS[name](ground, case)
    return few_shot.CONTESTANTS[name](ground, case)
