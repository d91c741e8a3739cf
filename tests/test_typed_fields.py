# pyright: basic
"""Every knob of every configuration is what its annotation says, or is refused in one line that names it."""

from __future__ import annotations

import pydoc
import re
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch

from tintformer.errors import TintError
from tintformer.execution.output import TintOutput
from tintformer.rule.learning_rule import LearningRule
from tintformer.simulator.construction import Construction
from tintformer.simulator.geometry import Geometry
from tintformer.typed_fields import Range, check_fields
from tintlab.checks.verify.verify_settings import VerifySettings
from tintlab.harness.arguments import ModelArguments
from tintlab.kinds.icl import InContextLearning
from tintlab.kinds.lm import LanguageModelling
from tintlab.methods.lora import Lora

RULE = LearningRule(learning_rate=0.1)
SETTINGS: dict[Any, dict[str, Any]] = {
    LearningRule: {"learning_rate": 0.1},
    Construction: {},
    Geometry: {"layout": "lean", "dim_aux": 8, "stack": 2, "shards": 2},
    VerifySettings: {},
    Lora: {"learning_rate": 0.1},
    LanguageModelling: {"model": "nano-llama", "data": "wikitext"},
    InContextLearning: {"model": "nano-llama", "task": "sst2"},
    ModelArguments: {"pretrained": "nano-llama", "rule": RULE},
}
"""Every configuration that users or files write, and what it cannot do without."""
ODD: dict[str, Any] = {
    "yes": "yes",
    "no": "no",
    "a list": [1],
    "a dict": {"a": 1},
    "bytes": b"1",
    "an object": object(),
    "NaN": float("nan"),
    "infinity": float("inf"),
    "1e308": 1e308,
    "a huge integer": 10**400,
    "a vector": np.ones(3),
    "a tensor": torch.ones(2, 2),
    "no data": torch.empty((), device="meta"),
    "complex": 1j,
    "a type": int,
}
PLAIN = {bool: True, int: 1, float: 1.5, str: "text"}


def kinds(hint: Any) -> set[Any]:
    """The Python types that an annotation allows."""
    if get_origin(hint) is Annotated:
        return kinds(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return {str}
    inside = get_args(hint)
    return {hint} if not inside else {tuple} if get_origin(hint) is tuple else set().union(*map(kinds, inside))


KNOBS = [
    pytest.param(
        owner, field.name, get_type_hints(owner, include_extras=True)[field.name], id=f"{owner.__name__}.{field.name}"
    )
    for owner in SETTINGS
    for field in fields(owner)
]


@pytest.mark.parametrize(("owner", "name", "hint"), KNOBS)
def test_a_value_of_another_type_is_refused_by_name(owner: Any, name: str, hint: Any) -> None:
    allowed = kinds(hint)
    for title, value in (ODD | {kind.__name__: example for kind, example in PLAIN.items()}).items():
        fits = (
            type(value) in allowed
            or (float in allowed and type(value) is int)
            or (list in map(type, [value]) and tuple in allowed)
            or (type(value) is dict and name == "rates")  # of patterns and factors, kept as pairs
        )
        try:
            made = owner(**(SETTINGS[owner] | {name: value}))
        except TintError as error:
            assert "\n" not in str(error), title
            assert fits or name in str(error), (title, str(error))
            continue
        assert fits, title
        assert type(getattr(made, name)) in allowed, title


@pytest.mark.parametrize(("owner", "name", "hint"), KNOBS)
def test_numbers_of_other_libraries_become_pythons(owner: Any, name: str, hint: Any) -> None:
    allowed = kinds(hint)
    given: dict[Any, list[Any]] = {
        int: [np.int64(2), np.uint8(2), torch.tensor(2)],
        float: [np.float32(0.5), np.float64(0.5), torch.tensor(0.5)],
        bool: [np.True_, torch.tensor(True)],
    }
    together: dict[Any, dict[str, Any]] = {
        Geometry: {"shards": 2, "stack": 2},
        LearningRule: {"attention_gradient": "exact", "momentum": 0.5},
    }
    for kind, values in given.items():
        for value in values if kind in allowed else ():
            found = getattr(owner(**(SETTINGS[owner] | together.get(owner, {}) | {name: value})), name)
            assert type(found) is kind and found == value.item()


def test_every_knob_of_a_rule_is_checked_by_its_annotation() -> None:
    assert all(
        kinds(hint) <= {bool, int, float, str, tuple, type(None)}
        for hint in get_type_hints(LearningRule, include_extras=True).values()
    )
    wrong: Any
    for wrong in ("no", 1, 0, None, np.float64(1.0)):
        with pytest.raises(TintError, match=r"update_norm_scale=.* must be true or false"):
            LearningRule(learning_rate=0.1, update_norm_scale=wrong)
    for wrong in (True, "1e-3", float("nan"), float("inf"), 1e308, -1, 10**400, [0.1], None):
        with pytest.raises(TintError, match=r"learning_rate=.* must be a finite number of at least 0 and at most 3.4e"):
            LearningRule(learning_rate=wrong)
    for wrong in (True, float("nan"), float("inf"), 1e308, 0, "small"):
        with pytest.raises(TintError, match=r"epsilon=.* must be a finite number above 0 and at most 3.4e"):
            LearningRule(learning_rate=0.1, epsilon=wrong)
    assert LearningRule(learning_rate=1).learning_rate == 1.0


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ([1], "is read from its knobs by name"),
        (None, "is read from its knobs by name"),
        ({"learning_rate": 0.1, "patience": 0.9}, "unknown knobs of a learning rule: patience"),
        ({"learning_rate": 0.1, 7: 0.9}, "unknown knobs of a learning rule: 7"),
        ({"steps": 2}, "needs learning_rate"),
        ({"learning_rate": 0.1, "update_norm_scale": "no"}, "update_norm_scale='no' must be true or false"),
    ],
)
def test_rules_out_of_files(knobs: Any, message: str) -> None:
    with pytest.raises(TintError, match=message):
        LearningRule.of(knobs)


@dataclass(frozen=True, kw_only=True)
class Everything:
    share: Annotated[float, Range(above=0, below=1)] = 0.5
    counts: tuple[int, ...] = (1,)
    path: Path | None = None
    anything: Any = None

    def __post_init__(self) -> None:
        check_fields(self, TintError)


def test_what_annotations_can_say() -> None:
    assert Everything(counts=[np.int64(3), 4]).counts == (3, 4)  # pyright: ignore
    assert Everything(anything=object).anything is object
    cases: list[dict[str, Any]] = [
        {"share": 1.0},
        {"share": 0},
        {"counts": "12"},
        {"counts": (1, 2.0)},
        {"path": 3},
        {"path": "a"},
    ]
    for wrong in cases:
        with pytest.raises(TintError, match=f"{next(iter(wrong))}=.* must be"):
            Everything(**wrong)


def test_messages_are_one_short_line() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    value: Any
    for value in ("x" * 10_000, "a\nb", Broken(), np.zeros((50, 50)), torch.zeros(40, 40)):
        with pytest.raises(TintError) as caught:
            LearningRule(learning_rate=value)
        assert len(str(caught.value)) < 250 and "\n" not in str(caught.value)


def test_every_configuration_is_in_the_table() -> None:
    for owner in SETTINGS:
        required = {
            field.name for field in fields(owner) if field.default is MISSING and field.default_factory is MISSING
        }
        assert required == set(SETTINGS[owner])


def test_help_explains_every_field_with_its_values() -> None:
    text = pydoc.plain(pydoc.render_doc(LearningRule))
    hints = get_type_hints(LearningRule)
    for field in fields(LearningRule):
        (said,) = re.findall(rf"^ \|      {field.name}: (.*(?:\n \|          .*)*)", text, flags=re.MULTILINE)
        said = " ".join(said.replace("|", " ").split())
        assert len(said) > 20, field.name
        if field.default is not MISSING:
            assert said.endswith(f"Default: {field.default!r}.")
        if get_origin(hints[field.name]) is Literal:
            assert all(repr(value) in said for value in get_args(hints[field.name]))
    assert "Negative log-likelihood of every evaluation token" in pydoc.plain(pydoc.render_doc(TintOutput))
