"""`tint models`: which families of decoders can be simulated."""

from __future__ import annotations

from typing import Any

from tintformer.cli.options import Json
from tintformer.console import print_json, print_table


def models(json: Json = False) -> None:
    """List the families of decoders that can be simulated, with their features."""
    rows = family_rows()
    if json:
        print_json(rows)
        return
    design = ("norm", "positions", "block", "feed_forward")
    print_table(
        [
            {"family": row["family"], "design": ", ".join(row[key] for key in design), "notes": row["notes"]}
            for row in rows
        ]
    )


def family_rows() -> list[dict[str, Any]]:
    """One row a family, read from the registry and from the family's default configuration."""
    from transformers import AutoConfig

    from tintformer.auxiliary.families import families

    rows: list[dict[str, Any]] = []
    for family in families().values():
        config = AutoConfig.for_model(family.model_type)
        gate = "gated " if family.paths.gate else ""
        rows.append(
            {
                "family": family.title,
                "model_type": family.model_type,
                "norm": {"layer": "LayerNorm", "rms": "RMSNorm"}[family.norm],
                "positions": family.position_scheme,
                "block": f"{family.order(config).replace('_', ' ')} block",
                "feed_forward": gate + family.activation(config),
                "grouped_queries": "yes" if hasattr(config, "num_key_value_heads") else "no",
                "notes": family.notes,
                "example": family.example,
            }
        )
    return rows
