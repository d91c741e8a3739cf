"""`tint eval constructions`: one linear layer by earlier papers' constructions and by TinT's, built and run."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tintformer.cli.options import Json
from tintformer.console import print_json, print_table, say

if TYPE_CHECKING:
    from tintlab.checks.constructions import ConstructedLinear


def constructions(
    width: Annotated[int, typer.Option(help="Inputs and outputs of the layer, from 4 to 1024.")] = 64,
    tokens: Annotated[int, typer.Option(help="Tokens of the pass, at most the width.")] = 16,
    stack: Annotated[int, typer.Option(help="Rows of the matrix in one prefix token of TinT.")] = 4,
    json: Json = False,
) -> None:
    """Build one linear layer as earlier papers did and as TinT does, run it, and count: forward pass and gradient step.

    Memory tape with GELU products, attention copy and prefix attention; nothing is written.
    """
    from tintlab.checks.constructions import compare_constructions

    found = compare_constructions(width, tokens, stack=stack)
    if json:
        counted = [asdict(each) for each in found]
        print_json({"width": width, "tokens": tokens, "stack": stack, "constructions": counted})
        return
    print_table([_forward(each) for each in found], title=f"W x, {width} x {width}, {tokens} tokens")
    steps = [_step(each) for each in found if each.step_parameters is not None]
    print_table(steps, title="one step of descent, W - rate dy x^T")
    say("tokens: those of the context that hold the weights")
    say("float64, float32: the largest error, relative to the largest entry of what is right")


def _forward(found: ConstructedLinear) -> dict[str, Any]:
    return {
        "construction": found.name,
        "tokens": "" if found.weight_tokens is None else f"{found.weight_tokens:,}",
        "layers": f"{found.layers:,}",
        "parameters": f"{found.parameters:,}",
        "non-zero": f"{found.non_zero:,}",
        **_errors(found.errors),
    }


def _step(found: ConstructedLinear) -> dict[str, Any]:
    return {
        "construction": found.name,
        "layers": f"{found.step_layers:,}",
        "parameters": f"{found.step_parameters:,}",
        **_errors(found.step_errors or {}),
    }


def _errors(errors: dict[str, float]) -> dict[str, str]:
    return {dtype: f"{error:.1e}" for dtype, error in errors.items()}
