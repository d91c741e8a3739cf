"""What tables and reports call a rule."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields

from tintformer.rule.learning_rule import PRESETS, LearningRule


def rule_text(rule: LearningRule, leave_out: Collection[str] = ()) -> str:
    """The preset that is nearest, and every knob that differs from it, but for those that are left out."""

    def differing(preset: str) -> list[str]:
        start = PRESETS[preset](learning_rate=rule.learning_rate)
        names = [field.name for field in fields(rule) if field.name not in leave_out]
        return [f"{name}={getattr(rule, name)}" for name in names if getattr(rule, name) != getattr(start, name)]

    preset = min(PRESETS, key=lambda name: len(differing(name)))
    return ", ".join([preset, *differing(preset)])
