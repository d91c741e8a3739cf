"""Work: units that are done once, kept, and shared out to processes, on this machine or on several."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any, Protocol

from tintformer.errors import InputError
from tintformer.experiments.identity import canonical, key_of, sha256
from tintformer.experiments.processes import Group
from tintformer.experiments.records import Store
from tintformer.threads import use_sleeping_threads


class Experiment(Protocol):
    """What knows how to do a unit; it is sent to other processes, so it holds descriptions and no tensors."""

    def identity(self, unit: Any) -> dict[str, Any]:
        """Everything that decides the result of a unit."""
        ...

    def run(self, unit: Any) -> dict[str, Any]:
        """Do a unit."""
        ...


Progress = Callable[[int], None]
"""Hears how many units have been finished since it last did."""
Work = dict[int, tuple[Any, dict[str, Any]]]
"""Units and their identities, by their place among all units."""
Done = Generator[tuple[int, dict[str, Any]]]
"""Results that are kept, by the same places."""


class Workers:
    """Do units of work, here or in other processes, and keep what comes out.

    A unit that has a record is not done again. Whatever happens, only units in flight are lost. With `only_records`
    nothing is done at all: what has no record is an error. The processes of a `group` all complete the same units, in
    turns of one each, and every one of them ends up with all results and all records.
    """

    def __init__(
        self,
        store: Store,
        *,
        jobs: int = 1,
        progress: Progress = lambda _: None,
        only_records: bool = False,
        group: Group | None = None,
    ):
        self.store, self.jobs, self.progress, self.only_records = store, jobs, progress, only_records
        self.group = group or Group()
        assert jobs == 1 or self.group.size == 1, "units are shared out twice"
        self._pool: ProcessPoolExecutor | None = None

    def complete(self, experiment: Experiment, units: Sequence[Any]) -> list[dict[str, Any]]:
        """The results of all units, in their order; units with one identity are one piece of work."""
        identities = [experiment.identity(unit) for unit in units]
        keys = [key_of(identity) for identity in identities]
        found = self._found(dict(zip(keys, identities, strict=True)))
        self.progress(sum(found[key] is not None for key in keys))
        missing = [keys.index(key) for key, result in found.items() if result is None]
        if missing and self.only_records:
            raise InputError(
                f"{self.store.directory} lacks records of this run (or they were made by another version, or of other "
                "data); give the run's own command again to complete it"
            )
        done = self._in_turns if self.jobs == 1 or len(missing) < 2 else self._in_pool
        for at, result in done(experiment, {at: (units[at], identities[at]) for at in missing}):
            found[keys[at]] = result
            self.progress(keys.count(keys[at]))
        return [result for key in keys if (result := found[key]) is not None]

    def _found(self, identities: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any] | None]:
        """The results that there are records of, here or with another process, by key."""
        found = {key: self.store.find(identity) for key, identity in identities.items()}
        for others in self.group.exchange(found, _contents(list(identities.values()))):
            for key, result in others.items():
                if found[key] is None and result is not None:
                    found[key] = self._kept(identities[key], result)
        return found

    def _kept(self, identity: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
        """Save a result and read it back: a resumed run and an uninterrupted one compute with the same numbers."""
        self.store.save(identity, result)
        kept = self.store.find(identity)
        if kept is None:
            raise InputError(f"{self.store.directory} has lost a record that was just written; let nobody remove files")
        return kept

    def _in_turns(self, experiment: Experiment, work: Work) -> Done:
        """One unit for each process of the group, then one more; each keeps its own before it meets the others."""
        missing = list(work)
        for start in range(0, len(missing), self.group.size):
            turn = missing[start : start + self.group.size]
            mine = turn[self.group.rank] if self.group.rank < len(turn) else None
            done = None
            if mine is not None:
                unit, identity = work[mine]
                done = self._kept(identity, experiment.run(unit))
            for at, result in zip(turn, self.group.exchange(done, {"turn": start}), strict=False):
                assert result is not None, "a process has left out its unit"
                yield at, result if at == mine else self._kept(work[at][1], result)

    def _in_pool(self, experiment: Experiment, work: Work) -> Done:
        """All of them to processes that are started here, in whatever order they finish."""
        pool = self._pool = self._pool or _pool(self.jobs)
        futures = {pool.submit(experiment.run, unit): at for at, (unit, _) in work.items()}
        try:
            for future in as_completed(futures):
                at = futures[future]
                yield at, self._kept(work[at][1], future.result())
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """End the other processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


@contextmanager
def workers(
    store: Store,
    *,
    jobs: int = 1,
    progress: Progress = lambda _: None,
    only_records: bool = False,
    group: Group | None = None,
) -> Generator[Workers]:
    """Workers that are gone afterwards."""
    crew = Workers(store, jobs=jobs, progress=progress, only_records=only_records, group=group)
    try:
        yield crew
    finally:
        crew.close()


def _contents(identities: Sequence[dict[str, Any]]) -> dict[str, str]:
    """What decides the results, by name: two processes that are to do the same work must agree on each."""
    names = dict.fromkeys(name for identity in identities for name in identity)
    return {name: sha256(canonical([identity.get(name) for identity in identities])) for name in names}


def _pool(jobs: int) -> ProcessPoolExecutor:
    # Spawned, not forked: threads of torch do not survive a fork.
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_start)


def _start() -> None:
    """Settings of a process that only works: threads that wait sleep, and the parent does the talking."""
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
