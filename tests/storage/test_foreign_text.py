# pyright: basic
"""Texts are read from what has an end, and no further than a bound."""

from __future__ import annotations

import io
import os
import socket
from pathlib import Path

import pytest

from tintformer.errors import InputError
from tintformer.storage.foreign_text import check_characters, read_bytes, read_stream, user_path


def test_only_what_has_an_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "zero").symlink_to("/dev/zero")
    with (tmp_path / "huge").open("wb") as huge:
        huge.truncate(10_000)
    with socket.socket(socket.AF_UNIX) as bound:
        monkeypatch.chdir(tmp_path)  # the path of a socket is bounded to a hundred bytes
        bound.bind("socket")
    expected = {
        "fifo": "is a pipe, and only regular files",
        "link": "No such file",
        "loop": "cannot read .*levels of symbolic links",
        "zero": "is a device, and only regular files",
        "huge": "10000 bytes, and at most 9999",
        "socket": "is a socket, and only regular files",
        ".": "Is a directory; give the path of a text file",
        "a\0b": "no path holds a zero byte",
        "x" * 300: "File name too long",
    }
    for name, message in expected.items():
        with pytest.raises(InputError, match=message) as caught:
            read_bytes(tmp_path / name, 9_999, "a text file")
        assert len(str(caught.value).splitlines()) == 1
    assert len(read_bytes(tmp_path / "huge", 10_000)) == 10_000


def test_a_pipe_of_the_shell_is_read(tmp_path: Path) -> None:
    """`--file <(command)` is a pipe behind /dev/fd."""
    if not Path("/dev/fd").exists():
        pytest.skip("there is no /dev/fd; the test is for Linux and macOS")
    end, start = os.pipe()
    os.write(start, b"a text")
    os.close(start)
    assert read_bytes(Path(f"/dev/fd/{end}")) == b"a text"
    os.close(end)


def test_an_endless_stream_is_not_kept() -> None:
    with open("/dev/zero", "rb") as zero, pytest.raises(InputError, match="it holds more than the 10 bytes"):
        read_stream(zero, "it", 10)
    assert read_stream(io.BytesIO(b"0123456789"), "it", 10) == b"0123456789"


def test_paths_of_users_that_are_not_there_are_paths() -> None:
    assert str(user_path("~no-such-user-here/x")) == "~no-such-user-here/x"
    assert user_path("~/x") == Path.home() / "x"


def test_half_a_character_is_no_text() -> None:
    assert check_characters("é😀", "it", "repair it") == "é😀"
    with pytest.raises(InputError, match="it holds half a character; repair it"):
        check_characters("a\udcff", "it", "repair it")
