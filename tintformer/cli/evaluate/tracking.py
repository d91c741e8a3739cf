"""`--track`: what a run does and finds, told to any tracker that accelerate knows."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tintformer.errors import InputError, cause

if TYPE_CHECKING:
    from tintformer.experiments.runs import Run

PLACE = "tracking"
"""Below the output directory, for trackers that write files."""


class Tracking:
    """Trackers of a run, or none; all values go to one row of steps, because some trackers refuse to go back."""

    def __init__(self, trackers: Sequence[Any] = ()):
        self._trackers, self._steps, self._units = trackers, 0, 0

    def log(self, values: Mapping[str, float]) -> None:
        """Values of one moment; what is not finite, as the loss of a rate that diverged, is left out."""
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        for tracker in self._trackers if finite else ():
            tracker.log(finite, step=self._steps)
        self._steps += 1

    def count(self, units: int) -> None:
        """So many more units are done."""
        self._units += units
        self.log({"progress/units": self._units})


def check_tracker(name: str | None) -> None:
    """Refuse a tracker that is not there, before any work is done."""
    if name is None:
        return
    try:
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
    except ImportError as error:
        raise InputError("--track needs the package accelerate; pip install 'tintformer[dist]'") from error
    if name not in LOGGER_TYPE_TO_CLASS:
        raise InputError(f"--track {name!r} is unknown; choose one of {', '.join(sorted(LOGGER_TYPE_TO_CLASS))}")
    if name not in map(str, get_available_trackers()):
        raise InputError(f"--track {name} needs a package that is not installed; pip install {name}")


@contextmanager
def tracking(name: str | None, run: Run, output: Path) -> Generator[Tracking]:
    """The tracker of that name, which knows what is asked for; without a name nothing is tracked."""
    if name is None:
        yield Tracking()
        return
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration

    try:
        place = ProjectConfiguration(project_dir=str(output), logging_dir=str(output / PLACE))
        accelerator = Accelerator(log_with=name, project_config=place)
        accelerator.init_trackers(run.name, config=_configuration(run))
    except Exception as error:  # whatever a tracker raises that has no account or no connection
        raise InputError(f"--track {name} does not start: {cause(error)}") from error
    try:
        yield Tracking(accelerator.trackers)
    finally:
        for tracker in accelerator.trackers:  # not `end_training`, which also ends the group of processes
            tracker.finish()


def _configuration(run: Run) -> dict[str, Any]:
    """What is asked for, as plain values; those that differ between the experiments of a run with commas."""
    from tintformer.experiments.identity import code_version

    fields = [asdict(experiment) for experiment in run.experiments]
    values = {name: list(dict.fromkeys(_plain(each[name]) for each in fields)) for name in fields[0]}
    common = {name: found[0] if len(found) == 1 else ", ".join(map(str, found)) for name, found in values.items()}
    return {"run": run.name, "kind": run.kind, "code": code_version(), **common}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return value if value is None or isinstance(value, str | int | float) else str(value)
