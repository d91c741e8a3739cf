"""Workload: how many units a run has, how many are done, and how long the rest will take.

A rate is chosen by a search that ends where it likes, so that the total is an estimate until the last rate is known:
searches to come are expected to be as long as those of the run that have ended. Units differ in cost by model, setting,
method and by whether they choose a rate, and one that has a record costs nothing: what is left is weighed by the time
that units of its own kind took in this run, and by how many of the last such part had records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

FIRST = 3
"""Units that are computed before a time is shown: the first one also loads and warms up what all need, and is left out
of the times."""


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
        # What chooses a rate shares work between rates: the same in another setting is closer than the rest in its own.
        own = self.experiment, self.setting, method
        return (*own, self.chooses), (self.experiment, method, self.chooses), own, (self.experiment, method)


class Workload:
    """Counts units as they are expected, begun and finished."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.done = 0
        self._clock = clock
        self._left: dict[Part, int] = {}
        self._unsettled: set[Part] = set()
        self._learners: set[str] = set()
        """Methods that have a rate to choose."""
        self._times: dict[Hashable, list[float]] = {}
        self._computed = 0
        self._kinds: tuple[Hashable, ...] = ()
        self._part: Part | None = None
        self._counts_records = True
        self._coming = 0
        """Units of the current part that have begun and are not finished."""
        self._since: float | None = None
        self._begun: dict[Part, int] = {}
        self._searched: dict[Hashable, list[int]] = {}
        """Units that each search of an experiment took, of those that have ended."""
        self._recorded: dict[bool, tuple[Part, int, int]] = {}
        """The last part that chooses, and the last that does not: units with records, and all that have begun."""

    def expect(self, part: Part, units: int, *, certain: bool = True) -> None:
        """So many units are foreseen; unless that is certain, `settle` will say when there are no more of them."""
        self._left[part] = self._left.get(part, 0) + units
        if part.chooses:
            self._learners.add(part.method)
        if not certain:
            self._unsettled.add(part)

    def begin(self, part: Part, units: int, *, method: str | None = None) -> None:
        """These units come next, by the part's own method unless another one is named."""
        self._part, self._coming = part, units
        self._kinds, self._since = self._kinds_of(part, method or part.method), None
        self._begun[part] = self._begun.get(part, 0) + units
        # What another method has done says nothing of this one: all searches begin with the model as it is.
        self._counts_records = method in (None, part.method)
        # A search that goes on longer than foreseen.
        self._left[part] = max(self._left.get(part, 0), units)

    def count(self, units: int) -> None:
        """So many more are finished; the first call after `begin` is of those that have records."""
        now = self._clock()
        self.done += units
        if self._part is not None:
            self._left[self._part] = max(0, self._left[self._part] - units)
            if self._since is None and self._counts_records:
                self._note_records(self._part, units)
            self._coming -= units
        if self._since is not None and units:
            if self._computed:
                for kind in self._kinds:
                    self._times.setdefault(kind, []).append((now - self._since) / units)
            self._computed += units
        self._since = now

    def _kinds_of(self, part: Part, method: str) -> tuple[Hashable, ...]:
        """What a part's units by a method cost as much as, the closest first."""
        # One that learns costs about as much as others that learn, and many times as much as the model as it is.
        learns = ("learns", part.experiment, part.chooses), ("learns", part.experiment)
        return (*part.kinds(method), *(learns if method in self._learners else ()))

    def _note_records(self, part: Part, units: int) -> None:
        last, found, begun = self._recorded.get(part.chooses, (part, 0, 0))
        found, begun = (found, begun) if last == part else (0, 0)
        self._recorded[part.chooses] = part, found + units, begun + self._coming

    def _missing(self, chooses: bool) -> float:
        """The share of units to come that have no records, as far as the last parts tell."""
        kinds = [chooses] if chooses else [False, True]  # where rates are not chosen yet, nothing is scored at them
        known = [self._recorded[kind] for kind in kinds if kind in self._recorded]
        return max((1 - found / begun for _, found, begun in known if begun), default=1.0)

    def settle(self, part: Part) -> None:
        """There are no more units of this part."""
        self._left.pop(part, None)
        self._unsettled.discard(part)
        taken = self._searched.setdefault(part.experiment, [])
        taken.append(self._begun.get(part, 0))
        for other in self._unsettled:
            if other.experiment == part.experiment and other not in self._begun:
                self._left[other] = round(sum(taken) / len(taken))

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
            kinds = self._kinds_of(part, part.method)
            times = next((self._times[kind] for kind in kinds if kind in self._times), None)
            # Of units that have begun the records have been counted.
            begun = min(units, self._coming) if part == self._part else 0
            missing = begun + (units - begun) * self._missing(part.chooses)
            if times is not None:
                seconds += missing * sum(times) / len(times)
            elif missing:
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
