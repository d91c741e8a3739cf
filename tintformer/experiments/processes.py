"""Processes of one run: what a launcher (`torchrun`, `accelerate launch`) has started, here or on several machines.

All of them go through the same work and meet at every exchange. Processes that share no disk learn what the others did;
an error in one of them ends all, and the first does the talking.
"""

from __future__ import annotations

import atexit
import os
import platform
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

from tintformer.errors import InputError, TintError, cause

Value = TypeVar("Value")
PATIENCE = timedelta(hours=2)
"""Longest wait for the others. Shorter than a unit takes, it ends runs that are well; a machine that vanishes without
a word is waited for that long. A process that dies closes its connections, which is noticed at once."""


@dataclass(frozen=True, kw_only=True)
class _Told:
    """What a process brings to an exchange."""

    value: Any = None
    place: dict[str, Any] = field(default_factory=dict[str, Any])
    error: str | None = None
    machine: str = field(default_factory=platform.node)


class Group:
    """Processes that do the same thing; by default this one alone."""

    def __init__(self, rank: int = 0, size: int = 1):
        self.rank, self.size = rank, size
        self._over = size == 1

    @property
    def leads(self) -> bool:
        """Whether this process is the one that prints and writes."""
        return self.rank == 0

    def exchange(self, value: Value, place: dict[str, Any]) -> list[Value]:
        """The values of all processes, by rank; `place` is where in the work they are, which must be the same."""
        if self.size == 1:
            return [value]
        told = self._gather(_Told(value=value, place=place))
        try:
            _check(told)
        except TintError:
            self._over = True
            raise
        return [each.value for each in told]

    def tell(self, error: Exception) -> None:
        """Have the others end at their next exchange, unless they know."""
        if not self._over:
            self._over = True
            self._gather(_Told(error=str(error) if isinstance(error, TintError | OSError) else repr(error)))

    def wait_for_first(self) -> None:
        """After an error: return when the first process has gone. A launcher ends all as soon as one of them fails."""
        with suppress(TintError):
            self._gather(_Told())

    def _gather(self, mine: _Told) -> list[_Told]:
        import torch.distributed as dist

        told = [mine] * self.size
        try:
            dist.all_gather_object(told, mine)
        except RuntimeError as error:
            self._over = True
            raise TintError(
                f"another process of this run has gone, or has not answered within {PATIENCE}; give the same command "
                "again: what is done is kept"
            ) from error
        return told


def _check(told: list[_Told]) -> None:
    """Refuse to go on after an error elsewhere, or with processes that do something else."""
    for rank, each in enumerate(told):
        if each.error is not None:
            raise TintError(f"rank {rank}, on {each.machine}: {each.error}")
    for rank, each in enumerate(told):
        first, other = told[0].place, each.place
        if different := [name for name in first | other if first.get(name) != other.get(name)]:
            raise InputError(
                f"rank {rank}, on {each.machine}, differs from rank 0 in {', '.join(different)}; all need the same "
                "command, model, data and version of the package"
            )


@cache
def group() -> Group:
    """The processes that a launcher has started together with this one; without a launcher, this one alone."""
    size = os.environ.get("WORLD_SIZE", "1")
    if size == "1":
        return Group()
    import torch.distributed as dist

    try:
        # Whatever computes, what is exchanged is small and on the CPU.
        dist.init_process_group("gloo", timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"WORLD_SIZE={size} but the other processes cannot be met ({cause(error)}); start all of them by torchrun "
            "or accelerate launch, or unset WORLD_SIZE"
        ) from error
    # Not before the interpreter ends, so that what went wrong is said while the others still wait for this process.
    atexit.register(dist.destroy_process_group)
    return Group(dist.get_rank(), dist.get_world_size())


@contextmanager
def together(processes: Group) -> Generator[None]:
    """Come to an end together: what fails in one process fails in all of them."""
    try:
        yield
        processes.exchange(None, {"amount of work": "all"})
    except Exception as error:
        with suppress(TintError):  # what went wrong here matters more than that nobody listens
            processes.tell(error)
        raise
