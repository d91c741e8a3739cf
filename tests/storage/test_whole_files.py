# pyright: basic
"""Files, sets of files and directories that are replaced whole: links, modes, names, leftovers, and many at once."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import PATIENCE
from places import ROOT

from tintformer.errors import InputError, LoadError
from tintformer.storage import staging, whole_files
from tintformer.storage.whole_files import check_directory, check_file, check_settled, whole_directory, whole_file

OLD, NEW = {"config.json": b"old", "only-old": b"old"}, {"config.json": b"new", "only-new": b"new"}


def write_file(place: Path, content: bytes = b"new") -> None:
    with whole_file(place, parents=True) as temporary:
        temporary.write_bytes(content)


def write_set(place: Path, files: dict[str, bytes]) -> None:
    with whole_files.whole_files(place, sorted({*OLD, *NEW})) as folder:
        for name, content in files.items():
            (folder / name).write_bytes(content)


def write_directory(place: Path, files: dict[str, bytes]) -> None:
    with whole_directory(place) as folder:
        for name, content in files.items():
            (folder / name).write_bytes(content)


def contents(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in place.iterdir()}


def in_place(place: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(whole_files, "_can_exchange", lambda target: False)
        write_directory(place, files)


@pytest.mark.parametrize("write", [write_set, write_directory])
@pytest.mark.parametrize("kind", ["absent", "empty", "there", "link", "link to nowhere"])
def test_what_stands_at_the_place(tmp_path: Path, write: Callable[..., None], kind: str) -> None:
    place, target = tmp_path / "place", tmp_path / "elsewhere" / "target"
    if kind in ("link", "link to nowhere"):
        place.symlink_to(target)
    if kind == "empty":
        place.mkdir()
    if kind in ("there", "link"):
        write(place, OLD)
    write(place, NEW)
    assert contents(place) == NEW
    assert place.is_symlink() == kind.startswith("link") and (kind[:4] != "link" or contents(target) == NEW)
    assert not [path for path in tmp_path.rglob(".tint-*")]
    assert not stat.S_IMODE(place.stat().st_mode) & 0o022 and stat.S_IMODE(place.stat().st_mode) & 0o755 == 0o755


def test_a_file_is_written_where_a_link_leads(tmp_path: Path) -> None:
    for target in (tmp_path / "there", tmp_path / "below" / "nowhere"):
        link = tmp_path / f"link to {target.name}"
        link.symlink_to(target)
        write_file(link)
        assert link.is_symlink() and target.read_bytes() == b"new"


def test_every_file_gets_the_mode_that_the_umask_says(tmp_path: Path) -> None:
    for umask in (0o022, 0o077, 0o002):
        before = os.umask(umask)
        try:
            with whole_file(tmp_path / "file") as temporary:
                os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o600))
            write_directory(tmp_path / f"{umask:o}", NEW)
        finally:
            os.umask(before)
        modes = {
            stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "file", *(tmp_path / f"{umask:o}").iterdir())
        }
        assert modes == {0o666 & ~umask}


def test_a_directory_that_cannot_be_exchanged_is_replaced_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    write_directory(place, OLD)
    monkeypatch.chdir(place)
    write_directory(Path("."), NEW)
    assert contents(Path(".")) == NEW, "who stands in a directory keeps standing in it"
    inode = place.stat().st_ino
    in_place(place, OLD, monkeypatch)
    assert contents(place) == OLD and place.stat().st_ino == inode


@pytest.mark.parametrize("write", [write_set, write_directory])
def test_an_error_leaves_the_place_as_it_was(tmp_path: Path, write: Callable[..., None]) -> None:
    bad = {**NEW, "worse": None}
    for place in (tmp_path / "absent" / "below", tmp_path / "there"):
        if place.name == "there":
            write(place, OLD)
        with pytest.raises(TypeError):
            write(place, bad)
    assert contents(tmp_path / "there") == OLD and [path.name for path in tmp_path.iterdir()] == ["there"]


def test_names_and_places_are_tried_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    check_file(tmp_path / ("n" * 255))
    write_file(tmp_path / ("n" * 255))
    check_directory(tmp_path / "a" / ("n" * 255) / "c", ["m" * 255])
    for target, message in (
        (tmp_path / ("n" * 256), "File name too long; choose a shorter name"),
        (tmp_path / "folder", "no regular file"),
        (tmp_path / "pipe", "no regular file"),
        (tmp_path / "nowhere" / "file", "there is no directory"),
        (Path("/proc/file"), "not writable"),
    ):
        with pytest.raises(InputError, match=message):
            check_file(target)
    for directory, names, message in (
        (tmp_path / ("n" * 256), [], "File name too long"),
        (tmp_path / "a" / ("n" * 256) / "b", [], "File name too long"),
        (tmp_path, ["n" * 256], "File name too long"),
        (tmp_path / "file", [], "is no directory; choose"),
        (tmp_path, ["folder"], "it is a directory; remove"),
        (tmp_path, ["pipe"], "no regular file; remove"),
    ):
        with pytest.raises(InputError, match=message):
            check_directory(directory, names)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder", "pipe", "n" * 255}


def stage_in(directory: Path, machine: str = staging._MACHINE) -> Path:
    """What a killed process leaves in the middle of replacing a set."""
    stage = directory / f".tint-{machine}-abcdefg{len(list(directory.iterdir()))}.tmp"
    (stage / "new").mkdir(parents=True)
    (stage / "new" / "config.json").write_bytes(b"stale")
    staging.prepare_undo(stage, ["config.json", "only-new"])
    (directory / "only-new").write_bytes(b"half of a set")
    os.replace(stage / "new" / "config.json", directory / "config.json")
    return stage


def test_what_a_killed_process_began_is_undone_by_readers_and_writers(tmp_path: Path) -> None:
    for use in (lambda: check_settled(tmp_path), lambda: write_file(tmp_path / "other")):
        write_set(tmp_path, OLD)
        stage_in(tmp_path)
        assert (tmp_path / "config.json").read_bytes() == b"stale"
        use()
        (tmp_path / "other").unlink(missing_ok=True)
        assert contents(tmp_path) == OLD


def test_stages_of_the_living_and_of_other_machines_stay(tmp_path: Path) -> None:
    write_set(tmp_path, OLD)
    with staging.staged(tmp_path) as living:
        foreign = tmp_path / ".tint-00000000-abcdefgh.tmp"
        foreign.mkdir()
        (tmp_path / ".tint-mine.tmp").touch()
        write_file(tmp_path / "file")
        assert living.is_dir() and foreign.is_dir() and (tmp_path / ".tint-mine.tmp").exists()
    os.utime(foreign, (0, 0))
    write_file(tmp_path / "file")
    assert not foreign.exists()


def test_a_half_replaced_set_on_another_machine_is_not_read(tmp_path: Path) -> None:
    write_set(tmp_path, OLD)
    stage_in(tmp_path, "00000000")
    with pytest.raises(LoadError, match="holds files of two versions"):
        check_settled(tmp_path)


def test_a_stage_that_means_harm_reaches_nothing_else(tmp_path: Path) -> None:
    victim, model = tmp_path / "victim", tmp_path / "model"
    write_set(victim, OLD)
    for name, at in enumerate(("", "undo", "undo/old", "undo/added")):
        stage = model / f".tint-{staging._MACHINE}-abcdefg{name}.tmp"
        (stage / at).parent.mkdir(parents=True, exist_ok=True)
        (stage if not at else stage / at).symlink_to(victim)
    staging.settle(model)
    assert contents(victim) == OLD


WRITER = """
import sys
from pathlib import Path
from tintformer.storage.whole_files import whole_files
place, word = Path(sys.argv[1]), sys.argv[2]
for number in range(60):
    with whole_files(place, ["a", "b", "c"]) as folder:
        for name in "abc":
            (folder / name).write_text(f"{word} {number}")
print("done")
"""


def test_many_write_the_same_set_over_leftovers_and_one_of_them_stands(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    for number in range(30):
        (place / f".tint-{staging._MACHINE}-{number:08}.tmp" / "new").mkdir(parents=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WRITER, str(place)]
    several = [subprocess.Popen([*command, word], env=environment, stdout=subprocess.PIPE) for word in "xyzk"]
    several[-1].send_signal(signal.SIGKILL)  # wherever it is
    for process in several[:-1]:
        assert process.communicate(timeout=PATIENCE)[0] == b"done\n" and process.returncode == 0
    several[-1].communicate()
    check_settled(place)
    found = contents(place)
    assert set(found) == {"a", "b", "c"} and len(set(found.values())) == 1, found
