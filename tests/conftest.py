# pyright: basic
"""Fixtures: quiet libraries, one thread a process, and the real models where they are to be had."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import settings

ROOT = Path(__file__).parent.parent
SHARED = Path(os.environ.get("TINTFORMER_SHARED", ROOT.parent / "shared"))
"""Where real models and texts are, if they are."""

# What a developer has fetched must not decide a test.
os.environ["TINTFORMER_CACHE"] = tempfile.mkdtemp(prefix="tintformer-cache-")
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


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
    return _need(ROOT / ".models" / "smollm2-135m", "run `make models`")


@pytest.fixture(scope="session")
def wikitext() -> str:
    path = _need(SHARED / "data" / "wikitext" / "wikitext2.valid.raw.txt", "put the text into ../shared/data/wikitext")
    return path.read_text(encoding="utf-8")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """The bundled texts in a file."""
    from tintformer.bundled import read_text

    path = tmp_path / "texts.txt"
    path.write_text("\n".join(read_text(name) for name in ("visit", "address")) + "\n", encoding="utf-8")
    return path
