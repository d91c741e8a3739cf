"""`tint plan`: what a run needs before it starts, and how much memory there is."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tintformer.cli.options import Dtype, Json, RuleOptions, rule_options
from tintformer.cli.rule_setup import check_dtype, quiet_libraries
from tintformer.console import print_json, print_table, say
from tintformer.errors import InputError, brief
from tintformer.storage.configs import total_memory

if TYPE_CHECKING:
    from tintlab.checks.plan.estimate import Plan


UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
MEMINFO = Path("/proc/meminfo")


def parse_size(text: str) -> int:
    """Bytes from `24GB`, `80 GiB` or a plain number."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    unit = UNITS.get(found[2]) if found and found[2] else 1
    if found is None or unit is None:
        raise InputError(f"{brief(text)} is no amount of memory; write it as 24GB or 80GiB")
    size = float(found[1]) * unit
    if math.isinf(size):
        raise InputError(f"{brief(text)} is more memory than can be counted; write it as 24GB or 80GiB")
    return int(size)


def free_memory(device: str = "cpu") -> int:
    """What can be had now, without taking it from others; all there is where the system does not say."""
    if device.startswith("cuda"):
        import torch

        if not torch.cuda.is_available():
            raise InputError(f"device={device} is not here; give --memory, such as 24GB, to plan for another machine")
        return torch.cuda.mem_get_info(device)[0]
    lines = MEMINFO.read_text().splitlines() if MEMINFO.exists() else []
    free = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return min(total_memory(), *free)


@rule_options("Here it does not matter.")
def plan(
    model: Annotated[
        str,
        typer.Argument(
            help="A known name such as gpt2 or llama-2-7b-hf, a directory with config.json, or a JSON file.",
            show_default=False,
        ),
    ],
    *,
    rule: RuleOptions,
    tokens: Annotated[int, typer.Option(help="Tokens of a sequence.")],
    batch: Annotated[int, typer.Option(help="Sequences at a time, each of which learns on its own.")] = 1,
    train_tokens: Annotated[
        int | None, typer.Option(help="How many of the tokens are trained on; default: half.")
    ] = None,
    engine: Annotated[str, typer.Option(help="fast or reference.")] = "fast",
    dtype: Dtype = "float32",
    device: Annotated[str, typer.Option(help="Whose free memory counts: cpu, cuda or cuda:1.")] = "cpu",
    memory: Annotated[
        str | None, typer.Option(help="What there is, such as 24GB, instead of what is free on the device now.")
    ] = None,
    json: Json = False,
) -> None:
    """Estimate memory and arithmetic of a run from the model's configuration; exit code 2 if it cannot fit."""

    check_dtype(dtype)
    available = free_memory(device) if memory is None else parse_size(memory)
    quiet_libraries()
    import torch

    from tintlab.checks.plan.estimate import plan as estimate

    foreseen = estimate(
        model,
        tokens=tokens,
        batch=batch,
        train_tokens=train_tokens,
        rule=rule.build(),
        dtype=getattr(torch, dtype),
        engine=engine,
    )
    if json:
        print_json({**foreseen.record(), "memory": available, "fits": foreseen.peak <= available})
    else:
        print_plan(foreseen)
    foreseen.require(available)


def print_plan(foreseen: Plan) -> None:
    """The plan for people."""
    say(
        f"{foreseen.model}, {foreseen.parameters:,} parameters in {foreseen.dtype}, {foreseen.batch} x "
        f"{foreseen.tokens} tokens, {foreseen.train_tokens} of each trained on"
    )
    parts = {**foreseen.parts, "peak": foreseen.peak}
    print_table(
        [
            {"memory": name, "MB": f"{size / 1e6:>12,.1f}", "share": f"{size / foreseen.peak:>5.0%}"}
            for name, size in parts.items()
        ]
    )
    say(f"{foreseen.flops:.3g} floating-point operations: {foreseen.passes:.2f} plain forward passes")
