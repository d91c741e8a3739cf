# pyright: basic
"""What the README says works: its example, and the commands it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from cases import make_model

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    make_model("llama", torch.float32).save_pretrained(tmp_path / "my-model")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL):
        exec(compile(code, "README.md", "exec"), namespace)
    printed = capsys.readouterr().out
    assert "->" in printed and "self_attn.v_proj.weight" in printed
    assert (tmp_path / "update.safetensors").exists()
    out = namespace["out"]
    assert float(out.loss) != float(out.loss_before)  # type: ignore[attr-defined]


def test_the_make_targets_exist() -> None:
    makefile = (Path(__file__).parent.parent / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"make ([a-z]+)", README))
    assert {"demo", "test"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_the_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (Path(__file__).parent.parent / link).exists(), link
