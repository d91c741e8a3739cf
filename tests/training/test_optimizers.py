# pyright: basic
"""The optimisers of the recipe: Muon makes singular values alike, and every parameter has one optimiser."""

from __future__ import annotations

import pytest
import torch

from training.optimizers import Muon, create_optimizers, orthogonalize
from training.settings import PRESETS, Settings, create_model


@pytest.mark.parametrize("shape", [(24, 24), (16, 64), (64, 16), (3, 20, 12)], ids=str)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_singular_values_become_alike_and_their_vectors_stay(shape: tuple[int, ...], scale: float) -> None:
    matrices = scale * torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    result = orthogonalize(matrices)
    assert result.shape == matrices.shape
    u, values, vh = torch.linalg.svd(matrices, full_matrices=False)
    # The iteration raises a singular value that is tiny beside the others only part of the way.
    clear = values > 0.02 * values.norm(dim=-1, keepdim=True)
    assert clear.float().mean() > 0.9
    inside = u.mT @ result @ vh.mT
    diagonal = inside.diagonal(dim1=-2, dim2=-1)
    assert float(diagonal[clear].min()) > 0.6 and float(diagonal.max()) < 1.3
    torch.testing.assert_close(inside, torch.diag_embed(diagonal), atol=1e-9, rtol=0)


def test_a_matrix_of_zeros_stays() -> None:
    assert not orthogonalize(torch.zeros(4, 6)).any()


@pytest.mark.parametrize("preset", PRESETS)
def test_every_parameter_belongs_to_one_optimiser(preset: str) -> None:
    model = create_model(Settings(preset=preset, steps=1), 300, 0)
    muon, adam = create_optimizers(model, Settings(preset=preset, steps=1))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    held = [
        [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]
        for optimizer in (muon, adam)
    ]
    assert sorted([*held[0], *held[1]]) == sorted(names.values())
    parameters = dict(model.named_parameters())
    blocks = (".h.", ".layers.")
    assert all(parameters[name].ndim == 2 and any(block in name for block in blocks) for name in held[0])
    assert all(parameters[name].ndim == 1 or not any(block in name for block in blocks) for name in held[1])
    decayed = [parameter for group in adam.param_groups if group["weight_decay"] for parameter in group["params"]]
    assert decayed and all(parameter.ndim == 2 for parameter in decayed)


def test_muon_lowers_a_loss_and_decays_weights() -> None:
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(2, 8, 12, generator=generator)
    weights = [torch.nn.Parameter(torch.zeros(8, 12)) for _ in range(2)] + [torch.nn.Parameter(torch.zeros(12, 8))]
    optimizer = Muon(weights, lr=0.1, weight_decay=0.0)
    losses: list[float] = []
    for _ in range(80):
        parts = (weights[0] - target[0], weights[1] - target[1], weights[2] - target[0].T)
        loss = torch.stack([part.square().sum() for part in parts]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0] and losses[5] < losses[0]
    torch.testing.assert_close(weights[2].T, weights[0])  # a matrix and its transpose take the same steps

    still = torch.nn.Parameter(torch.ones(3, 3))
    still.grad = torch.zeros(3, 3)
    Muon([still], lr=0.1, weight_decay=0.5).step()
    torch.testing.assert_close(still.detach(), torch.full((3, 3), 0.95))


def test_muon_needs_a_gradient() -> None:
    with pytest.raises(AssertionError, match="takes part in the loss"):
        Muon([torch.nn.Parameter(torch.ones(2, 2))], lr=0.1, weight_decay=0.0).step()
