# pyright: basic
"""Notebooks as pages: a hook of mkdocs that makes one of every notebook in examples/, as it was saved.

Pages link to a notebook where it lies, `../examples/NAME.ipynb`, which works in the repository; here such a link leads
to the page `notebooks/NAME.md`. Links out of a notebook lead into `../docs/`, the folder above, or to another notebook.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import relpath
from typing import Any

from mkdocs.structure.files import File, Files

FOLDER = "notebooks"
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def on_files(files: Files, *, config: Any) -> Files:
    """Add a page for every notebook, and its figures."""
    for path in sorted((Path(config.config_file_path).parent / "examples").glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        lines, figures = [], {}
        for number, cell in enumerate(notebook["cells"]):
            lines += _cell(cell, f"{path.stem}-{number}", figures)
        source = f"\n\n*This page is the notebook `examples/{path.name}`, as it ran.*\n"
        files.append(File.generated(config, f"{FOLDER}/{path.stem}.md", content="\n".join(lines) + source))
        for name, content in figures.items():
            files.append(File.generated(config, f"{FOLDER}/{name}", content=content))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Lead links to notebooks to their pages."""

    def lead(link: re.Match[str]) -> str:
        return f"]({relpath(f'{FOLDER}/{link[1]}.md', str(Path(page.file.src_uri).parent))}"

    return re.sub(r"\]\((?:\.\./)+examples/(\w+)\.ipynb", lead, markdown)


def _cell(cell: dict[str, Any], name: str, figures: dict[str, bytes]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield re.sub(r"\]\((\w+)\.ipynb", r"](\1.md", source.replace("](../docs/", "](../")) + "\n"
        return
    yield f"```python\n{source}\n```\n"
    for number, output in enumerate(cell["outputs"]):
        yield _output(output, f"{name}-{number}.png", figures)


def _output(output: dict[str, Any], name: str, figures: dict[str, bytes]) -> str:
    """Of the formats of an output the richest: a figure, a table or other HTML, text."""
    data = {kind: "".join(content) for kind, content in output.get("data", {}).items()}
    if "image/png" in data:
        figures[name] = base64.b64decode(data["image/png"])
        shown = f"![figure]({name})"
    elif "text/html" in data:
        html = "\n".join(line for line in data["text/html"].splitlines() if line.strip())  # a blank line would end it
        return f'<div class="cell-output">\n{html}\n</div>\n'
    else:
        text = data.get("text/plain") or "".join(output.get("text", output.get("traceback", ())))
        shown = f"```text\n{ANSI.sub('', text).rstrip()}\n```"
    return f'<div class="cell-output" markdown>\n\n{shown}\n\n</div>\n'
