"""Runs: what was asked for, kept beside the records, so that its tables can be made again from them alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tintformer.errors import InputError
from tintformer.experiments.in_context_learning import InContextLearning
from tintformer.experiments.language_modelling import LanguageModelling
from tintformer.experiments.result_figures import in_context_figures, language_figures
from tintformer.experiments.tables import ResultTable, in_context_tables, language_tables
from tintformer.storage.foreign_files import read_foreign_json
from tintformer.storage.whole_files import check_directory, whole_file, whole_files

KINDS: dict[str, type[LanguageModelling | InContextLearning]] = {"lm": LanguageModelling, "icl": InContextLearning}
_FORMATS = {"csv": "csv", "tex": "latex", "md": "markdown"}
_FIGURES = {"lm": ("perplexity", "gain", "rates"), "icl": ("accuracy", "settings", "rates")}


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

    def tables(self, results: Sequence[Sequence[Any]]) -> list[ResultTable]:
        """The tables of the results of each experiment."""
        done: Any = list(zip(self.experiments, results, strict=True))
        return in_context_tables(done, by_length=self.by_length) if self.kind == "icl" else language_tables(done)

    @property
    def files(self) -> list[str]:
        """All that `save_results` can write; the page takes its place last."""
        figures = [f"{self.name}-{figure}.png" for figure in _FIGURES[self.kind]]
        return [*figures, *(f"{self.name}.{suffix}" for suffix in _FORMATS)]

    def check_directory(self, directory: Path) -> None:
        """Refuse a directory that could not keep it, before anything is computed."""
        check_directory(directory, self.files)
        check_directory(directory / "runs", [f"{self.name}.json"])
        check_directory(directory / "records")

    def save(self, directory: Path) -> None:
        """Keep what is asked for, before it is done."""
        content = {**asdict(self), "experiments": [_plain(experiment) for experiment in self.experiments]}
        with whole_file(directory / "runs" / f"{self.name}.json", parents=True) as file:
            file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


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
        content: dict[str, Any] = read_foreign_json(path, error=InputError)
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
    """Tables in every format and figures, but for those with nothing to show; returns their paths."""
    tables, done = run.tables(results), list(zip(run.experiments, results, strict=True))
    figures = in_context_figures(done) if run.kind == "icl" else language_figures(done)
    contents = {
        f"{run.name}.{suffix}": "\n".join(getattr(table, method)() for table in tables).encode()
        for suffix, method in _FORMATS.items()
    }
    contents |= {f"{run.name}-{name}.png": png for name, png in figures.items() if png}
    with whole_files(directory, run.files) as folder:
        for name, content in contents.items():
            (folder / name).write_bytes(content)
    return [directory / name for name in contents]
