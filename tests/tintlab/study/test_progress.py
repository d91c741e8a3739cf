# pyright: basic
"""Totals and times that are right: a search that goes on, records that cost nothing, kinds that differ in cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tintlab.kinds.lm import LanguageModelling
from tintlab.study.progress import Part, Workload, duration
from tintlab.study.runner import Runner
from tintlab.study.store import RecordStore
from tintlab.study.tuning import expect_units, run_experiment

PLAIN, CHOICE, LEARNT = (
    Part(experiment="e", setting=0.5, method="auxiliary"),
    Part(experiment="e", setting=0.5, method="tint", chooses=True),
    Part(experiment="e", setting=0.5, method="tint"),
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def do(workload: Workload, clock: Clock, part: Part, seconds: list[float], found: int = 0, method: str = "") -> None:
    """Units of a part as the runner tells of them: those with records first, then one by one."""
    workload.begin(part, found + len(seconds), method=method or None)
    workload.count(found)
    for each in seconds:
        clock.now += each
        workload.count(1)


def test_the_rest_is_weighed_by_the_cost_of_its_kind() -> None:
    clock = Clock()
    workload = Workload(clock)
    workload.expect(PLAIN, 4)
    workload.expect(CHOICE, 6, certain=False)
    workload.expect(LEARNT, 4)
    assert str(workload) == "0 of about 14 units" and workload.share == 0
    do(workload, clock, PLAIN, [1.0, 1.0, 1.0, 1.0])
    # Nothing is known of what learning costs, and of the other kind nothing is left.
    assert str(workload) == "4 of about 14 units"
    do(workload, clock, CHOICE, [], found=2, method="auxiliary")
    assert str(workload) == "6 of about 14 units"
    do(workload, clock, CHOICE, [50.0, 70.0])
    assert workload.seconds_left() == (6 * 60.0, True)
    assert str(workload) == "8 of about 14 units, about 6 min left"
    do(workload, clock, CHOICE, [60.0, 60.0])
    do(workload, clock, CHOICE, [60.0, 60.0])  # one more rate than was foreseen
    assert str(workload) == "12 of about 16 units, about 4 min left" and workload.share == 12 / 16
    workload.settle(CHOICE)
    assert str(workload) == "12 of 16 units, about 4 min left"
    do(workload, clock, LEARNT, [60.0], found=3)
    assert str(workload) == "16 of 16 units" and workload.share == 1


def test_a_search_that_ends_early_and_a_kind_that_was_never_timed() -> None:
    clock = Clock()
    workload = Workload(clock)
    other = Part(experiment="larger", setting=0.5, method="tint")
    workload.expect(CHOICE, 20, certain=False)
    workload.expect(LEARNT, 10)
    workload.expect(other, 5)
    do(workload, clock, CHOICE, [2.0, 2.0, 2.0, 2.0])
    workload.settle(CHOICE)
    assert str(workload) == "4 of 19 units, over 20 s left"


def test_a_method_that_learns_costs_about_as_much_as_another() -> None:
    clock = Clock()
    workload = Workload(clock)
    other = [Part(experiment="e", setting=0.5, method="full", chooses=chooses) for chooses in (True, False)]
    workload.expect(PLAIN, 4)
    for part, units in ((CHOICE, 4), (LEARNT, 2), (other[0], 4), (other[1], 2)):
        workload.expect(part, units, certain=not part.chooses)
    do(workload, clock, PLAIN, [1.0] * 4)
    assert workload.seconds_left() == (0.0, False)
    do(workload, clock, CHOICE, [5.0] * 4)
    workload.settle(CHOICE)
    do(workload, clock, LEARNT, [30.0])
    assert workload.seconds_left() == (30.0 + 4 * 5.0 + 2 * 30.0, True)


def test_searches_to_come_are_as_long_as_those_that_have_ended() -> None:
    workload = Workload(Clock())
    other, elsewhere = (Part(experiment=name, setting=0.9, method="tint", chooses=True) for name in ("e", "larger"))
    for part in (CHOICE, other, elsewhere):
        workload.expect(part, 22, certain=False)
    do(workload, Clock(), CHOICE, [1.0] * 14)
    assert workload.total == 66
    workload.settle(CHOICE)
    assert workload.total == 14 + 14 + 22


def test_records_of_an_earlier_run_shorten_what_is_left() -> None:
    """A run of twice as many blocks: of every scored part half is there, and all that chooses rates."""
    clock = Clock()
    workload = Workload(clock)
    later = [Part(experiment="e", setting=0.9, method="tint", chooses=chooses) for chooses in (True, False)]
    workload.expect(CHOICE, 20, certain=False)
    workload.expect(LEARNT, 8)
    workload.expect(later[0], 20, certain=False)
    workload.expect(later[1], 8)
    do(workload, clock, CHOICE, [], found=20)
    workload.settle(CHOICE)
    do(workload, clock, LEARNT, [99.0, 10.0, 10.0, 10.0], found=4)  # the first one warms up
    assert workload.seconds_left() == (4 * 10.0, True)
    do(workload, clock, later[0], [], found=20)
    workload.settle(later[0])
    workload.begin(later[1], 8)
    workload.count(4)
    clock.now += 10.0
    workload.count(1)
    assert workload.seconds_left() == (3 * 10.0, True)


def test_a_run_that_was_killed_finds_nothing_behind_that_point() -> None:
    clock = Clock()
    workload = Workload(clock)
    workload.expect(PLAIN, 4)
    workload.expect(CHOICE, 4, certain=False)
    workload.expect(LEARNT, 4)
    do(workload, clock, PLAIN, [], found=4)
    do(workload, clock, CHOICE, [], found=2, method="auxiliary")
    do(workload, clock, CHOICE, [5.0, 5.0])
    assert workload.seconds_left() == (4 * 5.0, True)


def test_durations() -> None:
    assert [duration(each) for each in (0.2, 40, 89, 91, 3000, 7800)] == [
        "1 s",
        "40 s",
        "89 s",
        "2 min",
        "50 min",
        "2 h 10 min",
    ]


@pytest.mark.parametrize("rates", [None, (1e-4, 5e-4)], ids=["search", "grid"])
def test_no_run_does_more_units_than_it_has(text: Path, tmp_path: Path, rates: tuple[float, ...] | None) -> None:
    experiment = LanguageModelling(
        model="nano-llama", data=str(text), shares=(0.5,), length=32, blocks=3, tuning=1, rates=rates
    )
    workload, seen = Workload(), []

    def progress(count: int) -> None:
        workload.count(count)
        seen.append((workload.done, workload.total))

    expect_units(experiment, workload)
    # Three methods score three blocks each; two of them try the model as it is and each rate of the grid on one.
    assert rates is None or workload.total == 3 * 3 + 2 * (1 + 2)
    with Runner(RecordStore(tmp_path / "records"), progress=progress) as runner:
        run_experiment(experiment, runner, workload)
    assert all(done <= total for done, total in seen)
    assert seen[-1][0] == seen[-1][1] == workload.total and " of about " not in str(workload)
