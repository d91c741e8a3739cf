"""What a benchmark is asked to do, checked before anything runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from tintformer.errors import TintError

DTYPES = ("float32", "bfloat16", "float64")


class BenchError(TintError):
    """A benchmark that asks for something unknown."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run of the benchmark; every record carries what matters of it."""

    models: tuple[str, ...] = ("gpt2",)
    """Shapes with random weights by name, or any model that `tintformer.load` takes."""
    cases: tuple[str, ...] = ("8x64", "4x256", "2x1024", "few_shot")
    contestants: tuple[str, ...] = ()
    """Which contestants run; none named: those of each case that suit the dtype."""
    repetitions: int = 5
    """Timed runs of each contestant. Few and one disturbance decides the median; many only cost time."""
    threads: int = 2
    engine: str = "fast"
    """The engine that runs as the contestant `fast`."""
    dtype: str = "float32"
    forms: bool = False
    """Also time the engine with every update in the dual form, and with every update materialised."""
    memory: bool = True
    """Also measure peak memory, each contestant in a process of its own."""
    learning_rate: float = 1e-5
    """Time does not depend on it; random weights stay finite with any small one."""
    seed: int = 0

    def __post_init__(self) -> None:
        from tintformer.benchmarks.cases import CASES
        from tintformer.benchmarks.contestants import known_names
        from tintformer.learning.engine_registry import ENGINES

        _require_known("case", self.cases, CASES)
        _require_known("contestant", self.contestants, known_names())
        _require_known("engine", (self.engine,), ENGINES)
        _require_known("dtype", (self.dtype,), DTYPES)
        _require_positive("repetitions", self.repetitions)
        _require_positive("threads", self.threads)


def _require_known(kind: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise BenchError(f"{kind} {name!r} is unknown; choose from {', '.join(known)}")


def _require_positive(name: str, value: Any) -> None:
    if value < 1:
        raise BenchError(f"{name}={value} must be at least 1")
