"""Workload: how many units a run has, how many are done, and how long the rest will take.

A rate is chosen by a search that ends where it likes, so that the total is an estimate until the last rate is known.
Units differ in cost by model, setting and method, and one that has a record costs nothing: what is left is weighed by
the time that units of its own kind took in this run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

FIRST = 3
"""Units that are computed before a time is shown: the first one also loads and warms up what all need."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """The units of one method in one setting, of those that choose its rate or of those that are scored."""

    experiment: Hashable
    setting: Hashable
    method: str
    chooses: bool = False
    """Whether they choose the rate."""

    def kinds(self, method: str) -> tuple[Hashable, ...]:
        """What its units cost as much as by this method, the closest first."""
        return (self.experiment, self.setting, method), (self.experiment, method)


class Workload:
    """Counts units as they are expected, begun and finished."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.done = 0
        self._clock = clock
        self._left: dict[Part, int] = {}
        self._unsettled: set[Part] = set()
        self._times: dict[Hashable, list[float]] = {}
        self._computed = 0
        self._kinds: tuple[Hashable, ...] = ()
        self._part: Part | None = None
        self._since: float | None = None

    def expect(self, part: Part, units: int, *, certain: bool = True) -> None:
        """So many units are foreseen; unless that is certain, `settle` will say when there are no more of them."""
        self._left[part] = self._left.get(part, 0) + units
        if not certain:
            self._unsettled.add(part)

    def begin(self, part: Part, units: int, *, method: str | None = None) -> None:
        """These units come next, by the part's own method unless another one is named."""
        self._part, self._kinds, self._since = part, part.kinds(method or part.method), None
        # A search that goes on longer than foreseen.
        self._left[part] = max(self._left.get(part, 0), units)

    def count(self, units: int) -> None:
        """So many more are finished; the first call after `begin` is of those that have records."""
        now = self._clock()
        self.done += units
        if self._part is not None:
            self._left[self._part] = max(0, self._left[self._part] - units)
        if self._since is not None and units:
            self._computed += units
            for kind in self._kinds:
                self._times.setdefault(kind, []).append((now - self._since) / units)
        self._since = now

    def settle(self, part: Part) -> None:
        """There are no more units of this part."""
        self._left.pop(part, None)
        self._unsettled.discard(part)

    @property
    def total(self) -> int:
        return self.done + sum(self._left.values())

    @property
    def share(self) -> float:
        return self.done / self.total if self.total else 1.0

    def seconds_left(self) -> tuple[float, bool]:
        """Seconds for what is left of kinds that have been timed, and whether that is all that is left."""
        seconds, complete = 0.0, True
        for part, units in self._left.items():
            times = next((self._times[kind] for kind in part.kinds(part.method) if kind in self._times), None)
            if times is not None:
                seconds += units * sum(times) / len(times)
            elif units:
                complete = False
        return seconds, complete

    def __str__(self) -> str:
        """For the status line: `12 of about 40 units, over 3 min left`."""
        about = "about " if self._unsettled else ""
        text = f"{self.done} of {about}{self.total} units"
        seconds, complete = self.seconds_left()
        if self._computed < FIRST or not seconds:
            return text
        return f"{text}, {'about' if complete else 'over'} {duration(seconds)} left"


def duration(seconds: float) -> str:
    """A time as people say it: `40 s`, `7 min`, `2 h 10 min`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
