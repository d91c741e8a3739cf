# pyright: basic
"""Run the tests nearest to a change, as many as two minutes hold, and name those that are left out.

    python tests/nearest.py                             # what differs from HEAD, and files that git does not know
    python tests/nearest.py --base main                 # what differs from another revision
    python tests/nearest.py tintformer/rule/linear.py   # these files

A change reaches the changed modules, the modules that import them, and the modules that import those. Tests of a module
are those that are named after it in the folder that mirrors its own, and those that import it. A file that is no module
reaches what names it in a string. What a test file takes is in processor_seconds.csv, which `make cost` measures.
"""

from __future__ import annotations

import argparse
import ast
import csv
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "tests" / "processor_seconds.csv"
BUDGET = 110.0
"""Seconds of processor time: two processes spend them in one minute, and half a minute more is their start."""
UNKNOWN = 5.0
"""What a test file is taken to cost that the table does not have."""
READERS = {"docs": ("test_docs.py", "test_site.py"), "examples": ("test_examples.py", "test_docs.py")}
READERS |= dict.fromkeys((".ci", ".github"), ("test_docs.py",))
"""Tests that read what is in a folder of the repository, and name no file there."""
DOTTED = re.compile(r"\w+(\.\w+)+(:\w+)?")


@cache
def python_files() -> tuple[Path, ...]:
    """Return every module of the repository, relative to it; what a tool has made is none."""
    folders = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
    files = [file for path in folders if path.name not in ("build", "dist", "site") for file in path.rglob("*.py*")]
    return tuple(sorted(file.relative_to(ROOT) for file in files if file.suffix in (".py", ".pyi")))


def module_name(path: Path) -> str:
    """Return the name that a file is imported by: dotted, from the outermost package that it is in."""
    parts, folder = [] if path.stem == "__init__" else [path.stem], path.parent
    while folder != Path() and (ROOT / folder / "__init__.py").exists():
        parts, folder = [folder.name, *parts], folder.parent
    return ".".join(parts)


def is_test(path: Path) -> bool:
    return path.parts[0] == "tests" and path.name.startswith("test_")


@cache
def strings_and_imports(path: Path) -> tuple[set[str], set[tuple[str, int]]]:
    """Return the words in a module's strings, and the dotted names that it may import, each with the fewest parts."""
    words, names = set(), set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        match node:
            case ast.Import():
                names.update((alias.name, 1) for alias in node.names)
            case ast.ImportFrom(module=str(module)):
                names.update((f"{module}.{alias.name}", 1) for alias in node.names)
            case ast.Constant(value=str(text)):
                words.update(re.split(r"[^\w.-]+", text))
                if DOTTED.fullmatch(text):  # in a registry; two parts, because `report.html` names no module `report`
                    names.add((text.replace(":", "."), 2))
    return words, names


@cache
def importers() -> dict[Path, set[Path]]:
    """Return for every module which others import it. A stub counts as the module that it describes."""
    modules = {module_name(path): path.with_suffix(".py") for path in python_files()}
    found: dict[Path, set[Path]] = {}
    for path in python_files():
        for name, fewest in strings_and_imports(path)[1]:
            parts = name.split(".")
            prefixes = [".".join(parts[:end]) for end in range(len(parts), fewest - 1, -1)]
            imported = next((modules[prefix] for prefix in prefixes if prefix in modules), None)
            if imported is not None:
                found.setdefault(imported, set()).add(path.with_suffix(".py"))
    return found


def readers(path: Path) -> set[Path]:
    """Return a module itself, or what reads another file: the tests of its place, and who names it, or its folder."""
    found = {Path("tests", test) for test in READERS.get(path.parts[0], ())}
    if path.suffix in (".py", ".pyi"):
        return found | {path.with_suffix(".py")}
    if path.parts[0].startswith("."):  # `run`, of .ci/run, is everybody's word
        return found
    for word in filter(None, (path.name, path.parent.name)):
        found |= {file for file in python_files() if word in strings_and_imports(file)[0]}
        if found:
            break
    return found


def distances(changed: Iterable[Path]) -> dict[Path, int]:
    """Return the modules that a change reaches, each with the number of imports between."""
    found: dict[Path, int] = {}
    for path in changed:
        found |= dict.fromkeys(readers(path), 0)
        if path.name == "conftest.py":
            found |= {file: 0 for file in python_files() if is_test(file) and path.parent in file.parents}
    for level in (1, 2):
        for path in [path for path, distance in found.items() if distance == level - 1]:
            found = {file: level for file in importers().get(path, ()) if not is_test(file)} | found
    return found


def mirrors(test: Path, module: Path) -> bool:
    """Say whether a test's folder is a module's own or one above it; `tests/lab` may stand for a package `tintlab`."""
    folders, own, package = list(test.parts[1:-1]), list(module.parts[1:-1]), module.parts[0]
    if folders and package.endswith(folders[0]):
        del folders[0]
    return own[: len(folders)] == folders


def rank(test: Path, module: Path, distance: int) -> tuple[int, int] | None:
    """Return imports between a change and a test of a module, and how close the two are: by name, folder or import."""
    if is_test(module):
        return (0, 0) if test == module else None
    beside, imports = mirrors(test, module), test in importers().get(module, ())
    if beside and test.stem == f"test_{module.stem}":
        return distance, 0
    in_folder = beside and test.parent.name != "tests"
    # Tests of a command name it, as `tint demo`.
    if in_folder and (imports or (distance == 0 and module.stem in strings_and_imports(test)[0])):
        return distance, 1
    if imports:
        return distance, 2
    # Neighbours of a changed module come behind what tests its importers.
    return (1, 3) if in_folder and distance == 0 else None


def nearest(changed: Iterable[Path]) -> list[Path]:
    """Return the tests that a change reaches: fewest imports between first, then the closest, then the cheapest."""
    ranks: dict[Path, tuple[int, int]] = {}
    for module, distance in distances(changed).items():
        for test in filter(is_test, python_files()):
            found = rank(test, module, distance)
            if found is not None:
                ranks[test] = min(found, ranks.get(test, found))
    costs = {path: seconds for path, (_, seconds) in table().items()}
    return sorted(ranks, key=lambda test: (ranks[test], costs.get(test, UNKNOWN), test))


def table() -> dict[Path, tuple[int, float]]:
    """Return how many tests a file has, and the seconds of processor time that they take."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {Path(row["file"]): (int(row["tests"]), float(row["seconds"])) for row in csv.DictReader(file)}


def within(budget: float, tests: Iterable[Path]) -> list[Path]:
    """Return the first of some test files, and of the others those that still fit."""
    known, chosen = table(), []
    for test in tests:
        seconds = known[test][1] if test in known else UNKNOWN
        if seconds <= budget:
            budget -= seconds
            chosen.append(test)
    return chosen


def changed_files(base: str) -> list[Path]:
    """Return what differs from a revision, and what git does not know and is not told to ignore."""
    listings = (["diff", "--name-only", "--no-renames", base], ["ls-files", "--others", "--exclude-standard"])
    lists = [
        subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True) for words in listings
    ]
    return [Path(line) for listing in lists for line in listing.stdout.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="changed files; without any, git is asked")
    parser.add_argument("--base", default="HEAD", help="the revision to compare with")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds of processor time, of all tests together")
    given = parser.parse_args()
    changed = [path.resolve().relative_to(ROOT) for path in given.files] or changed_files(given.base)
    tests = nearest(changed)
    chosen, known = within(given.budget, tests), table()
    print(
        f"changed: {len(changed)} files; tests nearest to them: {len(chosen)} files of {len(tests)} within two imports"
    )
    for test in [test for test in tests if test not in chosen]:
        count, seconds = known.get(test, (0, UNKNOWN))
        print(f"left out: {test} ({count} tests, {seconds:.0f} s)")
    if chosen:
        sys.stdout.flush()
        words = ["-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", *map(str, chosen)]
        os.execv(sys.executable, [sys.executable, *words])


if __name__ == "__main__":
    main()
