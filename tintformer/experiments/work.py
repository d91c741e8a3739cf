"""Work: units that are done once, kept, and shared out to processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any, Protocol

from tintformer.errors import InputError
from tintformer.experiments.identity import key_of
from tintformer.experiments.records import Store
from tintformer.waiting import settle_waiting


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


class Workers:
    """Do units of work, here or in other processes, and keep what comes out.

    A unit that has a record is not done again. Whatever happens, only units in flight are lost. With `only_records`
    nothing is done at all: what has no record is an error.
    """

    def __init__(self, store: Store, *, jobs: int = 1, progress: Progress = lambda _: None, only_records: bool = False):
        self.store, self.jobs, self.progress, self.only_records = store, jobs, progress, only_records
        self._pool: ProcessPoolExecutor | None = None

    def complete(self, experiment: Experiment, units: Sequence[Any]) -> list[dict[str, Any]]:
        """The results of all units, in their order; units with one identity are one piece of work."""
        identities = [experiment.identity(unit) for unit in units]
        keys = [key_of(identity) for identity in identities]
        found = {key: self.store.find(identity) for key, identity in zip(keys, identities, strict=True)}
        self.progress(sum(found[key] is not None for key in keys))
        missing = [keys.index(key) for key, result in found.items() if result is None]
        if missing and self.only_records:
            raise InputError(
                f"{self.store.directory} lacks records of this run (or they were made by another version, or of other "
                "data); give the run's own command again to complete it"
            )
        for at, result in self._done(experiment, units, missing):
            self.store.save(identities[at], result)
            # As it will be read back: a resumed run and an uninterrupted one compute with the same numbers.
            found[keys[at]] = self.store.find(identities[at])
            self.progress(keys.count(keys[at]))
        return [result for key in keys if (result := found[key]) is not None]

    def _done(
        self, experiment: Experiment, units: Sequence[Any], missing: list[int]
    ) -> Generator[tuple[int, dict[str, Any]]]:
        if self.jobs == 1 or len(missing) < 2:
            for at in missing:
                yield at, experiment.run(units[at])
            return
        pool = self._pool = self._pool or _pool(self.jobs)
        futures = {pool.submit(experiment.run, units[at]): at for at in missing}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """End the other processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


@contextmanager
def workers(
    store: Store, *, jobs: int = 1, progress: Progress = lambda _: None, only_records: bool = False
) -> Generator[Workers]:
    """Workers that are gone afterwards."""
    crew = Workers(store, jobs=jobs, progress=progress, only_records=only_records)
    try:
        yield crew
    finally:
        crew.close()


def _pool(jobs: int) -> ProcessPoolExecutor:
    # Spawned, not forked: threads of torch do not survive a fork.
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_start)


def _start() -> None:
    """Settings of a process that only works: threads that wait sleep, and the parent does the talking."""
    Thread(target=_end_with_parent, daemon=True).start()
    settle_waiting()
    os.environ.setdefault("TQDM_DISABLE", "1")
    import transformers

    transformers.logging.set_verbosity_error()


def _end_with_parent() -> None:
    """A parent that is killed cannot end its pool, whose processes would wait for work, and hold a model, for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
