"""Rename records that were made when a hash of the code stood in their identity, so that they count by version.

    python -m tintlab.study.rekey_records DIR

`DIR` is what `-o` was given. What is renamed was made by the code before (`LAST_CODE`), whose numbers are those of
version 1 of every kind. Records of another code stay, and count as missing: their numbers may differ. `--code CODE`
renames them too, if they are known not to.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tintformer.errors import TintError
from tintlab.study.store import RecordStore, read_record

LAST_CODE = "0.1.0+48508c62cde4a881"
"""The last hash that was part of an identity."""
KINDS = {
    "language modelling": "lm",
    "in-context learning": "icl",
    "document streams": "stream",
    "in-context regression": "regression",
    "comparison": "compare",
    "probe": "probe",
    "sweep": "sweep",
}
"""Kinds by what identities called them."""


@dataclass(kw_only=True)
class Rekeyed:
    """What has become of the records of a directory."""

    renamed: int = 0
    current: int = 0
    """Those that had a version already."""
    other_code: Counter[str] = field(default_factory=Counter[str])
    """How many were left because other code has made them, by its hash."""
    unreadable: list[str] = field(default_factory=list[str])
    """Those that were left because they are damaged or of no kind that is known, each with the reason."""


def versioned(identity: dict[str, Any]) -> dict[str, Any]:
    """The same identity with a kind and a version in place of a name and a hash of the code."""
    rest = {name: value for name, value in identity.items() if name not in ("experiment", "code")}
    # The CPU went without saying in most kinds.
    return {"kind": KINDS[identity["experiment"]], "version": 1, "device": "cpu"} | rest


def rekey_records(directory: Path, codes: Collection[str] = (LAST_CODE,)) -> Rekeyed:
    """Rename the records of a directory that code with one of these hashes has made.

    Whenever it is stopped, each record is there under one name at least, and the next call goes on.
    """
    store, found = RecordStore(directory), Rekeyed()
    for path in store.paths():
        try:
            record = read_record(path)
        except ValueError as error:
            found.unreadable.append(f"{path} {error}")
            continue
        identity, code = record.identity, record.identity.get("code")
        if code is None:
            found.current += 1
        elif str(identity.get("experiment")) not in KINDS:
            found.unreadable.append(f"{path} is of no kind that is known")
        elif code not in codes:
            found.other_code[str(code)] += 1
        else:
            store.save(versioned(identity), record.result)
            path.unlink()
            found.renamed += 1
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="rekey_records", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", type=Path, help="what -o was given")
    parser.add_argument("--code", action="append", default=[LAST_CODE], help="of records that hold the same numbers")
    asked = parser.parse_args()
    records = asked.directory / "records"
    if not records.is_dir():
        parser.error(f"{asked.directory} holds no records; give the directory that -o was given")
    try:
        found = rekey_records(records, asked.code)
    except (TintError, OSError) as error:
        parser.error(str(error))
    print(f"{found.renamed} records renamed; {found.current} had a version already")
    for code, count in found.other_code.items():
        print(f"{count} left that other code has made; --code {code} renames them too, if its numbers are the same")
    for each in found.unreadable:
        print(f"left as it is: {each}", file=sys.stderr)
    return 1 if found.unreadable else 0


if __name__ == "__main__":
    sys.exit(main())
