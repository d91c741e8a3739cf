# pyright: basic
"""What the page shows and how it says it: names, words in context, and whatever the text is, no markup of its own."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import pytest
from pages import Read, make
from tiny import TEXT

from tintformer.study.coloured import COLOURS, SHADES, visible
from tintlab.reports import Report, write
from tintlab.reports.collect import Continuations, name_of

AWKWARD = (
    "\"</script><script>a(1)</script>\" & <b x='y'>\n\n\tHa \U0001f600\U0001f600 "
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d  ${title} $$ &amp; <!-- so"
)


def test_any_text_is_escaped_and_whole(tmp_path: Path, drawn: None) -> None:
    report = make(AWKWARD, train_tokens=20)
    page = write(report, tmp_path).read_text(encoding="utf-8")
    read = Read(page)
    assert [tag for tag, _ in read.tags].count("script") == 2 and page.count("</script>") == 2
    assert not any(name.startswith("on") for _, attributes in read.tags for name in attributes)
    assert "b" not in [tag for tag, _ in read.tags] and "<!-- so" not in page
    pieces = "".join(piece.gap + piece.text for piece in report.pieces if piece.kind == "text")
    assert pieces == AWKWARD
    shown = [(attributes, text) for attributes, text in read.tokens if "tag" not in (attributes["class"] or "").split()]
    assert "".join(text.replace("\u21b5\n", "\n") for _, text in shown) == AWKWARD
    assert len(read.tokens) == len(report.pieces)
    trained = [attributes for attributes, _ in read.tokens if "trained" in (attributes["class"] or "").split()]
    assert len(trained) == 20 and not any("data-row" in attributes for attributes in trained)
    assert sum(attributes.get("tabindex") == "0" for attributes, _ in read.tokens) == 1


def test_the_name_of_a_model_is_escaped(report: Report, tmp_path: Path, drawn: None) -> None:
    name = "hub/<img src=x onerror='a(1)'>\"&"
    named = replace(report, auxiliary=replace(report.auxiliary, name=name))
    read = Read(write(named, tmp_path).read_text(encoding="utf-8"))
    assert "img" not in [tag for tag, _ in read.tags]
    assert not any(name.startswith("on") for _, attributes in read.tags for name in attributes)


def test_the_text_has_a_name(
    run_here: Callable[..., None],
    model: Path,
    report: Report,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    drawn: None,
) -> None:
    assert report.name == "\u201cThe lamp in the harbour is red. The boat in the \u2026\u201d"
    assert name_of("Two words\n") == "\u201cTwo words\u201d" and len(name_of("x" * 999)) < 60
    (tmp_path / "story one.txt").write_text(TEXT)
    quick = ["-o", tmp_path / "out", "--learning-rate", "0.01", "--no-cosine", "--json"]
    run_here(model, "--file", tmp_path / "story one.txt", *quick)
    assert json.loads(capsys.readouterr().out)["text"] == "story one.txt"
    assert f"<title>{model.name} reads story one.txt: training" in (tmp_path / "out" / "report.html").read_text()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(TEXT.encode())))
    run_here(model, "-", *quick)
    assert json.loads(capsys.readouterr().out)["text"] == "standard input"


def test_the_name_of_a_text_is_escaped_and_turns_nothing(report: Report, tmp_path: Path, drawn: None) -> None:
    name = "</title><img src=x onerror='a(1)'>\u202e\udcff\n" + "x" * 300
    continued = Continuations(num_tokens=2, before="<u>one", after="<u>two</p><script>")
    named = replace(report, name=name, continuations=continued)
    page = write(named, tmp_path).read_text(encoding="utf-8")
    read = Read(page)
    assert not {"img", "u"} & {tag for tag, _ in read.tags} and page.count("</script>") == 2
    assert "\u202e" not in page and "\\u202e\\udcff\\n" in page and "x" * 100 not in page
    assert '<span class="same">&lt;u&gt;</span>two&lt;/p&gt;' in page


def test_largest_changes_are_words_in_context(tmp_path: Path, drawn: None) -> None:
    text = TEXT.replace("Ada", "Verrell").replace("The lamp", "A lantern")[:330]
    report = make(text)
    page = write(report, tmp_path).read_text(encoding="utf-8")
    word = r'<span class="word">(.*?)<mark class="(\S*)">(.*?)</mark>(.*?)</span>'
    rows = re.findall(rf'<a href="#token-(\d+)"><bdi>(.*?){word}(.*?)</bdi></a>', page)
    assert 2 <= len(rows) <= 12 and len({position for position, *_ in rows}) == len(rows)
    least = min(report.scored, key=lambda token: token.change)
    assert (rows[0][0], rows[0][3]) == (str(least.position), "better-5")
    for position, left, before, _, piece, after, right in rows:
        token = report.pieces[int(position)].text
        assert unescape(piece) == visible(token.lstrip() or token)
        assert unescape(left + before + piece + after + right) in text
    assert any(before + piece + after in ("Verrell", "lantern") for _, _, before, _, piece, after, _ in rows)


def test_the_shades_are_those_of_the_page() -> None:
    css = (files("tintlab.reports") / "page.css").read_text(encoding="utf-8")
    for kind, colour in COLOURS.items():
        assert f"--{kind}-rgb: {', '.join(map(str, colour))};" in css
        for level, share in enumerate(SHADES, 1):
            strength = "var(--strength)" if share == 1 else f"calc(var(--strength) * {share})"
            assert f".{kind}-{level} {{ background: rgba(var(--{kind}-rgb), {strength}); }}" in css
