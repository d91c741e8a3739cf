"""Fetching the data sets that descriptions name: their rows go to our cache, where evaluations find them offline."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tintformer.errors import InputError
from tintformer.storage.whole_files import check_directory, whole_file
from tintlab.data.sources import Hub, download_rows, kept_rows, read_description, read_rows
from tintlab.data.tasks import CLASSIFICATION, read_task_description
from tintlab.data.texts import read_text_description


@dataclass(frozen=True, kw_only=True)
class DataToFetch:
    """The part of a data set that an evaluation reads."""

    title: str
    hub: Hub
    splits: tuple[str, ...]
    limit: int | None

    @property
    def files(self) -> list[Path]:
        """Where the rows of each split are kept."""
        return [kept_rows(self.hub, split, self.limit) for split in self.splits]


def data_to_fetch(name: str) -> DataToFetch:
    """What the shipped description of this name, or a YAML file, asks for."""
    if read_description(name)[0].get("kind") == CLASSIFICATION:
        described, source = read_task_description(name)
        splits = (described.train, described.test)
    else:
        described, source = read_text_description(name)
        splits = (described.split,)
    if described.path is not None or described.hub is None:
        raise InputError(f"{source} names no data set of the hub, so there is nothing to fetch; use it as it is")
    return DataToFetch(title=described.title, hub=described.hub, splits=splits, limit=described.limit)


def fetch_data(data: DataToFetch) -> tuple[Path, bool]:
    """The directory of the rows, and whether some were fetched; a file that cannot be read is fetched again."""
    directory = data.files[0].parent
    missing = [pair for pair in zip(data.splits, data.files, strict=True) if not _is_readable(pair[1])]
    if missing:
        check_directory(directory, [file.name for _, file in missing])
    for split, file in missing:
        rows = download_rows(data.hub, split, data.limit)
        with whole_file(file, parents=True) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as lines:
            # Dates and the like become text; texts and labels, which is what is read, stay as they are.
            lines.writelines(f"{json.dumps(dict(row.values), default=str)}\n" for row in rows)
    return directory, bool(missing)


def _is_readable(file: Path) -> bool:
    if not file.is_file():
        return False
    try:
        return bool(read_rows(file))
    except InputError:
        return False
