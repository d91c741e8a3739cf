# pyright: basic
"""Figures of the construction: those in the documentation are what the code draws, and what they show is true."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from drawings import construction as construction_figures
from drawings.__main__ import MODEL, draw
from drawings.example import example, example_slots, head_work
from drawings.parts import write_figures

import tintlab as lab
from tintformer.errors import TintError
from tintformer.storage.configs import meta_auxiliary, read_config

matplotlib = pytest.importorskip("matplotlib", reason="figures need matplotlib: pip install 'tintformer[plots]'")

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "docs" / "figures"
PAGES = {
    "simulator.md": (
        "prefix",
        "heads",
        "modules",
        "parameters",
        "h-split",
        "linear-forward",
        "linear-backward",
        "linear-descent",
        "attention-forward",
        "attention-backward",
        "attention-descent",
    ),
    "how-tint-works.md": ("pass-layers",),
    "experiments.md": ("modes",),
    "network.md": ("network-prefix", "network-slots"),
}
NAMES = tuple(name for names in PAGES.values() for name in names)
LARGEST = 200_000


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("figures") / "new"
    assert sorted(path.stem for path in draw(directory)) == sorted(NAMES)
    return directory


@pytest.fixture(scope="module")
def odd() -> Any:
    """A small model whose width no stack divides."""
    config = read_config("gpt2")
    config.n_embd, config.n_head, config.n_layer, config.n_positions, config.vocab_size = 21, 3, 1, 16, 8
    return meta_auxiliary(config, "odd")


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_small_drawings_without_a_date(drawn: Path, name: str) -> None:
    text = (drawn / f"{name}.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert len(text) < LARGEST
    assert "dc:date" not in text and "<image" not in text


@pytest.mark.parametrize("name", NAMES)
def test_published_figures_are_what_the_code_draws(drawn: Path, name: str) -> None:
    (pinned,) = re.findall(r"^matplotlib==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    if matplotlib.__version__ != pinned:
        pytest.skip(f"published figures are those of matplotlib {pinned}, this is {matplotlib.__version__}")
    message = "draw it again with `make figures`"
    assert (drawn / f"{name}.svg").read_bytes() == (PUBLISHED / f"{name}.svg").read_bytes(), message


@pytest.mark.parametrize("page", PAGES)
def test_pages_show_their_figures_with_words_for_who_cannot_see_them(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    shown = dict((link, alt) for alt, link in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", text))
    for name in PAGES[page]:
        assert len(shown[f"figures/{name}.svg"]) > 15
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (ROOT / "docs" / link).exists(), link


def test_drawing_again_gives_the_same_bytes_and_leaves_the_settings_alone(
    drawn: Path, odd: Any, tmp_path: Path
) -> None:
    matplotlib.rcParams["font.size"] = 23
    try:
        write_figures(construction_figures.figures(odd), tmp_path)
        assert matplotlib.rcParams["font.size"] == 23
    finally:
        matplotlib.rcdefaults()
    for name in ("prefix", "heads"):  # the example is the same for every model
        assert (tmp_path / f"{name}.svg").read_bytes() == (drawn / f"{name}.svg").read_bytes()
    assert (tmp_path / "modules.svg").read_bytes() != (drawn / "modules.svg").read_bytes()


@pytest.mark.parametrize("layout", construction_figures.LAYOUTS)
def test_every_entry_of_the_example_sits_in_one_place(layout: str) -> None:
    rows, columns = example_slots(layout)
    g = example(layout).geometry
    token, slot, coordinate = (rows >= 0).nonzero(as_tuple=True)
    entries = torch.stack((rows, columns))[:, token, slot, coordinate].T.tolist()
    assert sorted(entries) == [[row, column] for row in range(16) for column in range(17)]
    assert torch.equal(rows[token, slot, coordinate], slot * g.num_prefix + token)
    assert torch.equal(columns[token, slot, coordinate], coordinate)


@pytest.mark.parametrize("layout", construction_figures.LAYOUTS)
def test_heads_divide_the_matrix_among_themselves(layout: str) -> None:
    g = example(layout).geometry
    works = head_work(layout)
    assert [work.phase for work in works] == ["forward", "backward", "descent"]
    for work in works:
        assert work.rows.shape == work.columns.shape == (g.num_heads, g.dim_slot)
        assert torch.equal(work.block.sum(0)[:16, :17], torch.ones(16, 17, dtype=torch.long))
        for head in range(g.num_heads):
            slot, part = divmod(head, g.shards)
            assert work.rows[head].nonzero().flatten().tolist() == list(
                range(slot * g.num_prefix, (slot + 1) * g.num_prefix)
            )
            assert work.columns[head].nonzero().flatten().tolist() == list(
                range(part * g.head_dim, (part + 1) * g.head_dim)
            )
            within = work.rows[head][:, None] & work.columns[head]
            assert not (work.block[head] & ~within).any()


def test_the_counts_are_those_of_the_formula_and_of_the_accounting(drawn: Path) -> None:
    formula = construction_figures.formula_counts(meta_auxiliary(read_config(MODEL), MODEL))
    assert formula["all"] == 1_275_936_768
    assert sum(number for kind, number in formula.items() if kind != "all") == formula["all"]
    text = (drawn / "parameters.svg").read_text(encoding="utf-8")
    lean = [lab.count_parameters(MODEL, layout="lean", tie_blocks=tied).structural for tied in (True, False)]
    for number in (formula["all"], formula["linear"], *lean):
        assert f">{construction_figures.short(number)}<" in text


def test_a_width_that_the_formula_does_not_know_is_drawn_without_it(odd: Any) -> None:
    counts = construction_figures.parameter_counts(odd)
    assert counts["paper, formula"] == {}
    assert counts["lean, tied"]["activation"] == 0
    assert counts["lean, tied"]["all"] == counts["lean, untied"]["all"] < counts["paper, constructed"]["all"]
    construction_figures.parameters_figure(odd)


def test_bad_directories_and_a_missing_library_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TintError, match="cannot write into"):
        draw(tmp_path / "file")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(TintError, match=r"figures need matplotlib; install it with pip install 'tintformer\[plots\]'"):
        draw(tmp_path)
