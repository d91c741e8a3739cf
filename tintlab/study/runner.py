"""The runner: units of work that are done once, kept, and shared out to processes, on this machine or on several.

A launcher (`torchrun`, `accelerate launch`) may have started several processes. All of them go through the same units
and meet at every exchange. Processes that share no disk learn what the others did; an error in one of them ends all,
and the first does the talking.
"""

from __future__ import annotations

import atexit
import os
import platform
import signal
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Annotated, Any, ClassVar, Protocol, TypeVar

from tintformer.errors import InputError, TintError, cause
from tintformer.threads import use_sleeping_threads
from tintformer.typed_fields import Range
from tintlab.study.store import RecordStore, UnitResult, canonical, key_of, sha256

UnitProgress = Callable[[int], None]
"""Takes how many units have been finished since it was last called."""
Jobs = Annotated[int, Range(at_least=1)]
"""Processes."""
PendingUnits = dict[int, tuple[Any, dict[str, Any]]]
"""Units and their identities, by their place among all units."""
UnitResults = Generator[tuple[int, UnitResult]]
"""Results that are kept, by the same places."""
Value = TypeVar("Value")
PATIENCE = timedelta(hours=2)
"""Longest wait for the others. Shorter than a unit takes, it ends runs that are well; a machine that vanishes without
a word is waited for that long. A process that dies closes its connections, which is noticed at once."""


class RunsUnits(Protocol):
    """What the runner asks of an experiment, which it sends to other processes."""

    kind: ClassVar[str]
    """What its records and runs call it."""
    version: ClassVar[int]
    """Raised by hand when a number changes: records of another version do not count. The golden units of the tests fail
    until it is. Raised without need, it has all units done again."""

    @property
    def dtype(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def device_type(self) -> str: ...
    def identity(self, unit: Any) -> dict[str, Any]: ...
    def run(self, unit: Any) -> UnitResult: ...


def unit_identity(experiment: RunsUnits, unit: Any) -> dict[str, Any]:
    """Everything that decides the result of a unit; its record is named after it.

    The code is there as the version of the kind alone: words, names and places may change, and no record is lost.
    """
    return {
        "kind": experiment.kind,
        "version": experiment.version,
        "dtype": experiment.dtype,
        "threads": experiment.threads,
        "device": experiment.device_type,
        **experiment.identity(unit),
    }


class Runner:
    """Runs units of work, here or in other processes, and keeps what comes out.

    A unit that has a record is not done again. Whatever happens, only units in flight are lost. With `only_records`
    nothing is done at all: what has no record is an error. The processes of a `group` all complete the same units, in
    turns of one each, and every one of them ends up with all results and all records.
    """

    def __init__(
        self,
        store: RecordStore,
        *,
        jobs: int = 1,
        progress: UnitProgress = lambda _: None,
        only_records: bool = False,
        group: ProcessGroup | None = None,
    ):
        self.store, self.jobs, self.progress, self.only_records = store, jobs, progress, only_records
        self.group = group or ProcessGroup()
        assert jobs == 1 or self.group.size == 1, "units are shared out twice"
        self._pool: ProcessPoolExecutor | None = None

    def complete(self, experiment: RunsUnits, units: Sequence[Any]) -> list[UnitResult]:
        """The results of all units, in their order; units with one identity are one piece of work."""
        identities = [unit_identity(experiment, unit) for unit in units]
        keys = [key_of(identity) for identity in identities]
        found = self._found(dict(zip(keys, identities, strict=True)))
        # Units of one identity share a record but count one by one, so that the bar reaches its end.
        self.progress(sum(found[key] is not None for key in keys))
        missing = [keys.index(key) for key, result in found.items() if result is None]
        if missing and self.only_records:
            raise InputError(
                f"{self.store.directory} lacks records of this run (or they were made by another version, or of other "
                "data); give the run's own command again to complete it"
            )
        run = self._in_turns if self.jobs == 1 or len(missing) < 2 else self._in_pool
        for at, result in run(experiment, {at: (units[at], identities[at]) for at in missing}):
            found[keys[at]] = result
            self.progress(keys.count(keys[at]))
        return [result for key in keys if (result := found[key]) is not None]

    def _found(self, identities: dict[str, dict[str, Any]]) -> dict[str, UnitResult | None]:
        """The results that there are records of, here or with another process, by key."""
        found = {key: self.store.find(identity) for key, identity in identities.items()}
        for others in self.group.exchange(found, _contents(list(identities.values()))):
            for key, result in others.items():
                if found[key] is None and result is not None:
                    found[key] = self._kept(identities[key], result)
        return found

    def _kept(self, identity: dict[str, Any], result: UnitResult) -> UnitResult:
        """Save a result and read it back: a resumed run and an uninterrupted one compute with the same numbers."""
        self.store.save(identity, result)
        kept = self.store.find(identity)
        if kept is None:
            raise InputError(f"{self.store.directory} has lost a record that was just written; let nobody remove files")
        return kept

    def _in_turns(self, experiment: RunsUnits, pending: PendingUnits) -> UnitResults:
        """One unit for each process of the group, then one more; each keeps its own before it meets the others."""
        # Turns keep the processes of several machines in step without a scheduler: units of a call take about as long.
        missing = list(pending)
        for start in range(0, len(missing), self.group.size):
            turn = missing[start : start + self.group.size]
            mine = turn[self.group.rank] if self.group.rank < len(turn) else None
            done = None
            if mine is not None:
                unit, identity = pending[mine]
                done = self._kept(identity, experiment.run(unit))
            for at, result in zip(turn, self.group.exchange(done, {"turn": start}), strict=False):
                assert result is not None, "a process has left out its unit"
                yield at, result if at == mine else self._kept(pending[at][1], result)

    def _in_pool(self, experiment: RunsUnits, pending: PendingUnits) -> UnitResults:
        """All of them to processes that are started here, in whatever order they finish."""
        pool = self._pool = self._pool or _pool(self.jobs)
        with _interrupts_later():  # processes are started as units are handed in
            futures = {pool.submit(experiment.run, unit): at for at, (unit, _) in pending.items()}
        try:
            for future in as_completed(futures):
                at = futures[future]
                yield at, self._kept(pending[at][1], future.result())
        except BrokenProcessPool as error:
            raise TintError(
                f"one of the {self.jobs} processes of this run was killed, by the system if memory was short; give the "
                "same command again, with fewer --jobs: what is done is kept"
            ) from error
        finally:
            for future in futures:
                future.cancel()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """End the processes of the pool; after Ctrl-C at once, since their units may take long."""
        if self._pool is None:
            return
        if kind is KeyboardInterrupt:
            for process in list((getattr(self._pool, "_processes", None) or {}).values()):
                process.terminate()
        self._pool.shutdown(cancel_futures=True)


def _contents(identities: Sequence[dict[str, Any]]) -> dict[str, str]:
    """What decides the results, by name: two processes that are to do the same work must agree on each."""
    names = dict.fromkeys(name for identity in identities for name in identity)
    return {name: sha256(canonical([identity.get(name) for identity in identities])) for name in names}


def _pool(jobs: int) -> ProcessPoolExecutor:
    # Spawned, not forked: threads of torch do not survive a fork.
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_start_process)


@contextmanager
def _interrupts_later() -> Generator[None]:
    """Hold Ctrl-C back, here and in processes that are started meanwhile, which inherit it."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_process() -> None:
    """Settings of a process that only works: threads that wait sleep, and the parent does the talking."""
    # Ctrl-C goes to the whole group: a process that is idle or in the middle of a unit ends without a word.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    Thread(target=_end_with_parent, daemon=True).start()
    use_sleeping_threads()
    os.environ.setdefault("TQDM_DISABLE", "1")
    import transformers

    transformers.logging.set_verbosity_error()


def _end_with_parent() -> None:
    """A parent that is killed cannot end its pool, whose processes would wait for work, and hold a model, for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@dataclass(frozen=True, kw_only=True)
class _Message:
    """What a process brings to an exchange."""

    value: Any = None
    must_agree: dict[str, Any] = field(default_factory=dict[str, Any])
    error: str | None = None
    machine: str = field(default_factory=platform.node)


class ProcessGroup:
    """Processes that do the same thing; by default this one alone."""

    def __init__(self, rank: int = 0, size: int = 1):
        self.rank, self.size = rank, size
        self._over = size == 1

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that prints and writes."""
        return self.rank == 0

    def exchange(self, value: Value, must_agree: dict[str, Any]) -> list[Value]:
        """The values of all processes, by rank; `must_agree` says where in the work each of them is."""
        if self.size == 1:
            return [value]
        messages = self._gather(_Message(value=value, must_agree=must_agree))
        try:
            _check(messages)
        except TintError:
            self._over = True
            raise
        return [each.value for each in messages]

    def announce_failure(self, error: Exception) -> None:
        """Have the others end at their next exchange, unless they know."""
        if not self._over:
            self._over = True
            self._gather(_Message(error=str(error) if isinstance(error, TintError | OSError) else repr(error)))

    def wait_for_first(self) -> None:
        """After an error: return when the first process has gone. A launcher ends all as soon as one of them fails."""
        with suppress(TintError):
            self._gather(_Message())

    def _gather(self, mine: _Message) -> list[_Message]:
        import torch.distributed as dist

        messages = [mine] * self.size
        try:
            dist.all_gather_object(messages, mine)
        except RuntimeError as error:
            self._over = True
            raise TintError(
                f"another process of this run has gone, or has not answered within {PATIENCE}; give the same command "
                "again: what is done is kept"
            ) from error
        return messages


def _check(messages: list[_Message]) -> None:
    """Refuse to go on after an error elsewhere, or with processes that do something else."""
    for rank, each in enumerate(messages):
        if each.error is not None:
            raise TintError(f"rank {rank}, on {each.machine}: {each.error}")
    for rank, each in enumerate(messages):
        first, other = messages[0].must_agree, each.must_agree
        if different := [name for name in first | other if first.get(name) != other.get(name)]:
            raise InputError(
                f"rank {rank}, on {each.machine}, differs from rank 0 in {', '.join(different)}; all need the same "
                "command, model, data and version of the package"
            )


@cache
def process_group() -> ProcessGroup:
    """The processes that a launcher has started together with this one; without a launcher, this one alone."""
    size = os.environ.get("WORLD_SIZE", "1")
    if size == "1":
        return ProcessGroup()
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
    return ProcessGroup(dist.get_rank(), dist.get_world_size())


@contextmanager
def fail_together(processes: ProcessGroup) -> Generator[None]:
    """Come to an end together: what fails in one process fails in all of them."""
    try:
        yield
        processes.exchange(None, {"amount of work": "all"})
    except Exception as error:
        with suppress(TintError):  # what went wrong here matters more than that nobody listens
            processes.announce_failure(error)
        raise
