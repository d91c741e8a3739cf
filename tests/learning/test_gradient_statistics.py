# pyright: basic
"""Root mean squares of gradients: autograd's, of every chunk on its own; kept on disk, and refused where they lie."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import VOCABULARY, make_model, make_rule
from torch import Tensor
from torch.nn import functional

import tintformer as tint
from tintformer.learning.gradient_statistics import GradientStatistics

CHUNK = 6


def tokens(*shape: int, seed: int = 3) -> Tensor:
    return torch.randint(3, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def by_autograd(model: Any, documents: list[Tensor], names: Any) -> dict[str, Tensor]:
    """Each chunk behind the one token that predicts its first."""
    squares, count = {name: torch.zeros_like(model.get_parameter(name)) for name in names}, 0
    for ids in documents:
        for start in range(0, len(ids), CHUNK):
            read = ids[max(0, start - 1) : start + CHUNK]
            logits = model(read[None, :-1]).logits[0]
            loss = functional.cross_entropy(logits, read[1:], reduction="sum")
            gradients = torch.autograd.grad(loss, [model.get_parameter(name) for name in names])
            count += 1
            for name, gradient in zip(names, gradients, strict=True):
                squares[name] = squares[name] + gradient**2
    return {name: (total / count).sqrt() for name, total in squares.items()}


@pytest.mark.parametrize("name", ["gpt2", "opt"])
def test_they_are_autograds_chunk_by_chunk(name: str) -> None:
    model, ids = make_model(name), tokens(2, 20)
    attended = torch.ones_like(ids)
    attended[1, 14:] = 0
    documents = torch.tensor([[0] * 13 + [1] * 7, [0] * 20])
    counts: list[int] = []
    found = tint.collect_statistics(
        model,
        make_rule("full", optimizer="adam", decay=0.5, schedule=(0.0,)),
        ids,
        chunk=CHUNK,
        carry="none",
        document_ids=documents,
        attention_mask=attended,
        on_chunk=counts.append,
    )
    expected = by_autograd(model, [ids[0, :13], ids[0, 13:], ids[1, :14]], list(found.tensors))
    assert found.chunks == counts[-1] == 3 + 2 + 3 and found.chunk == CHUNK
    for parameter, values in expected.items():
        torch.testing.assert_close(found.tensors[parameter], values, rtol=1e-8, atol=1e-12)


def test_small_gradients_keep_their_digits_beside_large_weights() -> None:
    """Many small chunks of a small model, whose updates a stream would form beside the weights."""
    found = [
        tint.collect_statistics(make_model("llama", dtype), make_rule("full"), tokens(1, 46), chunk=40)
        for dtype in (torch.float32, torch.float64)
    ]
    for name, exact in found[1].tensors.items():
        torch.testing.assert_close(found[0].tensors[name].double(), exact, rtol=1e-3, atol=1e-6 * float(exact.max()))


def test_a_path_what_was_collected_and_its_tensors_are_the_same(tmp_path: Path) -> None:
    model, ids = tint.load(make_model("gpt2")), tokens(1, 24)
    rule = make_rule("default", optimizer="rms", learning_rate=1e-3)
    statistics = tint.collect_statistics(model, rule, tokens(1, 40, seed=4), chunk=CHUNK)
    statistics.save(tmp_path / "statistics")
    found = [
        torch.cat([piece.token_loss for piece in tint.Tint(model, rule, statistics=each).stream(ids, chunk=CHUNK)], 1)
        for each in (statistics, tmp_path / "statistics", str(tmp_path / "statistics"), dict(statistics.tensors))
    ]
    assert all(torch.equal(each, found[0]) for each in found[1:])
    again = GradientStatistics.load(tmp_path / "statistics", model)
    assert (again.chunk, again.chunks, again.base) == (CHUNK, statistics.chunks, statistics.base)
    # Fewer layers have the same gradients.
    tint.Tint(model, replace(rule, layers=1), statistics=statistics)


def test_what_does_not_fit_is_one_line(tmp_path: Path) -> None:
    model, rule = tint.load(make_model("gpt2")), make_rule("default", optimizer="rms")
    statistics = tint.collect_statistics(model, replace(rule, layers=1), tokens(1, 24), chunk=CHUNK)
    statistics.save(tmp_path / "it")
    other = make_model("gpt2", seed=1)
    for given in (statistics, tmp_path / "it"):
        with pytest.raises(tint.LoadError, match="statistics of another model"):
            tint.Tint(other, rule, statistics=given)
    with pytest.raises(tint.RuleError, match="top 1 blocks alone"):
        tint.Tint(model, rule, statistics=statistics)
    with pytest.raises(tint.RuleError, match="attention_gradient='value'"):
        tint.Tint(model, make_rule("full", optimizer="rms", layers=1), statistics=statistics)
    with pytest.raises(tint.RuleError, match="are for optimizer='rms'"):
        tint.Tint(model, make_rule("default"), statistics=statistics)
    with pytest.raises(tint.InputError, match="must be a path"):
        tint.Tint(model, rule, statistics=3)
    with pytest.raises(tint.RuleError, match="is not chosen for optimizer='rms'"):
        tint.choose_rate(model, replace(rule, learning_rate="auto"), tokens(1, 40), torch.ones(1, 40).long())
    with pytest.raises(tint.InputError, match="no chunk has a target"):
        tint.collect_statistics(model, rule, tokens(3, 1))
    (tmp_path / "it").write_bytes((tmp_path / "it").read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(tint.LoadError, match="damaged or changed"):
        GradientStatistics.load(tmp_path / "it", model)
    (tmp_path / "it").write_text("nothing")
    with pytest.raises(tint.LoadError, match="cannot read the statistics"):
        tint.Tint(model, rule, statistics=tmp_path / "it")
