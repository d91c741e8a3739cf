# pyright: basic
"""One report and one model for all tests of reports, and the command in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import typer
from pages import make
from tiny import save_model

from tintlab.cli.report import report as command
from tintlab.reports import Report
from tintlab.reports.drawing import Drawing, draw, drawable


@pytest.fixture(scope="session")
def report() -> Report:
    return make()


@pytest.fixture(scope="session")
def drawings(report: Report) -> Mapping[str, Drawing]:
    return draw(report)


@pytest.fixture
def drawn(drawings: Mapping[str, Drawing], monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of the one report in whatever is written: to draw them takes longer than all else."""
    had = lambda report: {name: drawings[name] for name in drawable(report) if name in drawings}  # noqa: E731
    monkeypatch.setattr("tintlab.reports.page.draw", had)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def run_here() -> Callable[..., None]:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command("report")(command)
    return lambda *arguments: app([str(word) for word in arguments], standalone_mode=False)
