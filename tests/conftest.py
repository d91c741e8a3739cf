# pyright: basic
"""Fixtures: quiet libraries, one thread a process, and the real models where they are to be had."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from browser import Browser, find_chromium, running
from places import ROOT, SHARED

# What a developer has fetched must not decide a test.
os.environ["TINTFORMER_CACHE"] = CACHE = tempfile.mkdtemp(prefix="tintformer-cache-")
# Two test processes share the cores, and the last digits of a sum depend on the number of threads. This must precede
# the import of torch. Heavy packages are imported by the tests that need them: one file must answer in seconds.
os.environ["OMP_NUM_THREADS"] = "1"
# Some virtual machines offer AMX and then end the first process that multiplies bfloat16 with it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
# What is imported while tests are collected stays to the end: to look through it for garbage is a fifth of that time.
gc.disable()
if os.environ.get("TINTFORMER_TESTS_MISALIGN"):
    import misaligned

    misaligned.install()


def pytest_pycollect_makemodule(module_path: Path) -> None:
    """Make hypothesis repeatable, before the first file that uses it reads its settings."""
    if "hypothesis" in module_path.read_text(encoding="utf-8"):
        from hypothesis import settings

        settings.register_profile("repeatable", derandomize=True)
        settings.load_profile("repeatable")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Collect garbage again, of the tests alone, and spare a run without hypothesis its import at the very end."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)  # a fourteenth of the collections: tests make many short-lived objects
    gc.enable()
    plugin = session.config.pluginmanager.get_plugin("hypothesispytest")
    if plugin is not None and "hypothesis" not in sys.modules:
        session.config.pluginmanager.unregister(plugin)


def pytest_sessionfinish() -> None:
    """Half a gigabyte is in the cache where SmolLM2 was unpacked."""
    shutil.rmtree(CACHE, ignore_errors=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Silence transformers, if a test file has imported it."""
    if "transformers" in sys.modules:
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()


def _need(path: Path, remedy: str) -> Path:
    if not path.exists():
        pytest.skip(f"{path.name} is not here; {remedy}")
    return path


@pytest.fixture(scope="session")
def stories15m() -> Path:
    return _need(SHARED / "models" / "stories15M", "put the model into ../shared/models/stories15M")


@pytest.fixture(scope="session")
def stories_text() -> str:
    path = _need(SHARED / "data" / "corpora" / "tinystories_valid_head.txt", "put the text into ../shared/data/corpora")
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    model = _need(ROOT / ".models" / "smollm2-135m", "run `make models`")
    unpacked = model.with_name("unpacked")
    if unpacked.exists():  # by the fetch; to do it again takes half a minute
        shutil.copytree(unpacked, Path(CACHE) / "unpacked", dirs_exist_ok=True)
    return model


@pytest.fixture(scope="session")
def wikitext() -> str:
    path = _need(SHARED / "data" / "wikitext" / "wikitext2.valid.raw.txt", "put the text into ../shared/data/wikitext")
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Generator[Browser]:
    """A headless Chromium."""
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("there is no Chromium; install Debian's package: apt-get install chromium")
    with running(chromium, tmp_path_factory.mktemp("browser") / "profile") as started:
        yield started


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory with a model of two narrow blocks, for experiments where it does not matter which."""
    from tiny import save_model

    return str(save_model(tmp_path_factory.mktemp("models") / "tiny", positions=512))


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are put together and not rendered, which takes ten times as long: for tests of what is beside them."""
    figure = pytest.importorskip("matplotlib.figure", reason="figures need matplotlib: pip install 'tintformer[plots]'")
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, file, **_: file.write(b"\x89PNG"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """The bundled texts in a file."""
    from tintformer.bundled import read_text

    path = tmp_path / "texts.txt"
    path.write_text("\n".join(read_text(name) for name in ("visit", "address")) + "\n", encoding="utf-8")
    return path
