"""Runs: what was asked for, kept beside the records, so that its tables can be made again from them alone."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tintformer.errors import InputError, brief, cause
from tintformer.storage.untrusted_files import check_file_name, read_foreign_json, same_file_name
from tintformer.storage.whole_files import check_directory, whole_file, whole_files
from tintlab.kinds.compare_results import comparison_figures, comparison_tables, findings
from tintlab.kinds.comparison import Comparison
from tintlab.kinds.document_streams import DocumentStreams
from tintlab.kinds.icl import InContextLearning
from tintlab.kinds.icl_figures import in_context_figures
from tintlab.kinds.icl_tables import in_context_tables
from tintlab.kinds.lm import LanguageModelling
from tintlab.kinds.lm_results import language_figures, language_tables
from tintlab.kinds.regression import InContextRegression
from tintlab.kinds.regression_results import regression_figures, regression_tables
from tintlab.kinds.stream_results import stream_figures, stream_tables
from tintlab.show.tables import ResultTable

KINDS: dict[str, type[LanguageModelling | InContextLearning | DocumentStreams | InContextRegression | Comparison]] = {
    each.kind: each for each in (LanguageModelling, InContextLearning, DocumentStreams, InContextRegression, Comparison)
}
_FORMATS = {"csv": "csv", "tex": "latex", "md": "markdown"}
_FIGURES = {
    "lm": ("perplexity", "gain", "rates"),
    "icl": ("accuracy", "settings", "formats", "rates"),
    "stream": ("positions", "gain", "rates"),
    "regression": ("examples", "rates"),
    "compare": ("tasks", "blocks", "demonstrations", "rates"),
}
_DRAWN = {
    "lm": language_figures,
    "icl": in_context_figures,
    "stream": stream_figures,
    "regression": regression_figures,
    "compare": comparison_figures,
}
_TABLES = {
    "lm": language_tables,
    "stream": stream_tables,
    "regression": regression_tables,
    "compare": comparison_tables,
}


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
        if self.kind == "icl":
            return in_context_tables(done, by_length=self.by_length)
        return _TABLES[self.kind](done)

    def findings(self, results: Sequence[Sequence[Any]]) -> list[str]:
        """What a comparison has found, in sentences; other kinds let their tables speak."""
        return findings(list(zip(self.experiments, results, strict=True))) if self.kind == "compare" else []

    @property
    def files(self) -> list[str]:
        """All that `save_results` can write; the page takes its place last."""
        figures = [f"{self.name}-{figure}.png" for figure in _FIGURES[self.kind]]
        return [*figures, *(f"{self.name}.{suffix}" for suffix in _FORMATS)]

    @property
    def audit_file(self) -> str:
        """Where its certificates are."""
        return f"{self.name}-audit.json"

    def check_directory(self, directory: Path) -> None:
        """Refuse a directory that could not keep it, before anything is computed."""
        check_directory(directory, [*self.files, self.audit_file])
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
        raise InputError(
            f"{directory} holds no runs; make one with tint eval lm, icl, stream or regression, or with tint compare"
        )
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
    """A run as its file has it; anybody may have written it, so every value is of its kind, and its name its file's."""
    try:
        content: dict[str, Any] = read_foreign_json(path, error=InputError)
        kind = KINDS[content["kind"]]
        content["experiments"] = tuple(kind(**_checked(kind, _revived(fields))) for fields in content["experiments"])
        run = Run(**_checked(Run, content))
        if not run.experiments:
            raise ValueError("it has no experiments")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is no run of this version ({cause(error)}); give its command again, or remove it"
        ) from error
    check_file_name(run.name, f"{path}: the name")
    # One file has one name, so that no run takes the place of another's tables.
    if not same_file_name(run.name, path.stem):
        raise InputError(f"{path}: the name of the run is {brief(run.name)}; name it as its file, or the file as it")
    return run


def _checked(kind: type, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass if each value is of the declared type; whether all are there says the class."""
    hints = get_type_hints(kind)
    for name, value in fields.items():
        if name in hints and not _is_a(value, hints[name]):
            raise TypeError(f"{name} is {brief(value)}")
    return fields


def _is_a(value: Any, hint: Any) -> bool:
    """Whether a value is of a type as the experiments declare theirs: numbers finite, tuples all the way."""
    if hint is Any:
        return True
    if get_origin(hint) in (UnionType, Union):
        return any(_is_a(value, each) for each in get_args(hint))
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_is_a(item, get_args(hint)[0]) for item in value)
    if hint in (int, float) and isinstance(value, bool):
        return False
    if hint is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, hint) and "\0" not in str(value)


def _plain(experiment: Any) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(experiment).items()}


def _revived(fields: dict[str, Any]) -> dict[str, Any]:
    """What JSON does not tell apart: tuples and lists, paths and strings."""
    location: str | None = fields["location"]
    found = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return found | {"location": None if location is None else Path(location)}


def save_results(
    run: Run, results: Sequence[Sequence[Any]], directory: Path, audited: dict[str, Any] | None = None
) -> list[Path]:
    """Tables in every format and figures, but for those with nothing to show; returns their paths.

    Certificates stand beside them. An empty record takes those of an earlier run away, None leaves them.
    """
    done: Any = list(zip(run.experiments, results, strict=True))
    tables, figures = run.tables(results), _DRAWN[run.kind](done)
    contents = {
        f"{run.name}.{suffix}": "\n".join(getattr(table, method)() for table in tables).encode()
        for suffix, method in _FORMATS.items()
    }
    contents |= {f"{run.name}-{name}.png": png for name, png in figures.items() if png}
    if audited:
        contents = {run.audit_file: (json.dumps(audited, indent=2) + "\n").encode(), **contents}
    with whole_files(directory, run.files if audited is None else [run.audit_file, *run.files]) as folder:
        for name, content in contents.items():
            (folder / name).write_bytes(content)
    return [directory / name for name in contents]
