"""Runs: what was asked for, kept beside the records, so that its tables can be made again from them alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tintformer.errors import InputError
from tintformer.experiments.classification import InContextLearning
from tintformer.experiments.classification_run import run_classification
from tintformer.experiments.language import LanguageModelling, run_language
from tintformer.experiments.work import Workers
from tintformer.storage.whole_files import whole_file

if TYPE_CHECKING:
    from tintformer.experiments.tables.points import Point
    from tintformer.experiments.tables.table import Table

KINDS: dict[str, type[LanguageModelling | InContextLearning]] = {"lm": LanguageModelling, "icl": InContextLearning}
_FORMATS = {"md": "markdown", "tex": "latex", "csv": "csv"}


@dataclass(frozen=True, kw_only=True)
class Run:
    """Experiments of one kind whose results make tables together."""

    name: str
    """What its files are called."""
    kind: str
    """A key of `KINDS`."""
    experiments: tuple[Any, ...]
    by_length: bool = False
    """Score label words by the mean over their tokens."""

    def results(self, crew: Workers, log: Callable[[Point], None] | None = None) -> list[list[Any]]:
        """The results of each experiment; what has a record is not done again. `log` hears of each when it is done."""
        do: Any = run_language if self.kind == "lm" else run_classification
        results: list[list[Any]] = []
        for experiment in self.experiments:
            results.append(do(experiment, crew))
            if log is not None:
                for point in self.points(experiment, results[-1]):
                    log(point)
        return results

    def points(self, experiment: Any, results: Sequence[Any]) -> Iterator[Point]:
        """What a tracker is told about the results of an experiment."""
        from tintformer.experiments.tables.points import classification_points, language_points

        if self.kind == "lm":
            return language_points(experiment, results)
        return classification_points(experiment, results, by_length=self.by_length)

    def num_units(self) -> int:
        """About how many units there are; how many rates are tried is known only afterwards."""
        return sum(experiment.num_units() for experiment in self.experiments)

    def tables(self, results: Sequence[Sequence[Any]]) -> list[Table]:
        """The tables of those results."""
        from tintformer.experiments.tables.classification import classification_tables
        from tintformer.experiments.tables.language import language_tables

        done: Any = list(zip(self.experiments, results, strict=True))
        return classification_tables(done, by_length=self.by_length) if self.kind == "icl" else language_tables(done)

    def figures(self, results: Sequence[Sequence[Any]]) -> dict[str, bytes]:
        """The figures of those results, PNGs by name; those with nothing to show are left out."""
        from tintformer.experiments.tables.figures import classification_figures, language_figures

        done: Any = list(zip(self.experiments, results, strict=True))
        found = classification_figures(done) if self.kind == "icl" else language_figures(done)
        return {name: png for name, png in found.items() if png}

    def save(self, directory: Path) -> None:
        """Keep what is asked for, before it is done."""
        content = {**asdict(self), "experiments": [_plain(experiment) for experiment in self.experiments]}
        _write(directory / "runs" / f"{self.name}.json", (json.dumps(content, indent=2) + "\n").encode())


def load_runs(directory: Path) -> list[Run]:
    """The runs of a directory, by name."""
    paths = sorted((directory / "runs").glob("[!.]*.json"))
    if not paths:
        raise InputError(f"{directory} holds no runs; make one with tint eval lm or tint eval icl")
    return [_load(path) for path in paths]


def join_runs(runs: Sequence[Run]) -> list[Run]:
    """One run of all those that can stand in one table."""
    groups: dict[tuple[str, bool], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.kind, run.by_length), []).append(run)
    return [
        Run(
            name=f"all-{kind}-by-length" if by_length else f"all-{kind}",
            kind=kind,
            experiments=tuple(dict.fromkeys(experiment for run in group for experiment in run.experiments)),
            by_length=by_length,
        )
        for (kind, by_length), group in groups.items()
    ]


def _load(path: Path) -> Run:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        kind = KINDS[content["kind"]]
        content["experiments"] = tuple(kind(**_revived(fields)) for fields in content["experiments"])
        return Run(**content)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no run of this version; give its command again, or remove it") from error


def _plain(experiment: Any) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(experiment).items()}


def _revived(fields: dict[str, Any]) -> dict[str, Any]:
    """What JSON does not tell apart: tuples and lists, paths and strings."""
    location: str | None = fields["location"]
    found = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return found | {"location": None if location is None else Path(location)}


def save_results(run: Run, results: Sequence[Sequence[Any]], directory: Path) -> list[Path]:
    """Tables in every format and figures; returns their paths."""
    tables = run.tables(results)
    contents = {
        f"{run.name}.{suffix}": "\n".join(getattr(table, method)() for table in tables).encode()
        for suffix, method in _FORMATS.items()
    }
    contents |= {f"{run.name}-{name}.png": png for name, png in run.figures(results).items()}
    for name, content in contents.items():
        _write(directory / name, content)
    return [directory / name for name in contents]


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as temporary:
        temporary.write_bytes(content)
