# pyright: basic
"""The configuration: strict, typed, and one clear error for whatever is wrong with it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from cases import FIRST, MODELS, RULES, make_config, make_rule

import tintformer as tint
from tintformer.simulator.construction import Construction

RULE = make_rule("default")


def make(**knobs: Any) -> tint.TintConfig:
    return tint.TintConfig(**{"auxiliary": make_config("gpt2"), "learning_rule": RULE, **knobs})


@pytest.mark.parametrize("name", MODELS)
def test_every_base_comes_back_from_a_file(name: str, tmp_path: Path) -> None:
    config = make(auxiliary=make_config(name), train_fraction=0.5, engine="simulator", construction={"stack": 2})
    config.save_pretrained(tmp_path)
    back = tint.TintConfig.from_pretrained(tmp_path)
    assert type(back.auxiliary) is type(config.auxiliary)
    assert back.to_dict() == config.to_dict()
    assert (back.train_fraction, back.engine, back.construction["stack"]) == (0.5, "simulator", 2)


@pytest.mark.parametrize("rule", RULES)
def test_every_knob_of_a_rule_comes_back(rule: str, tmp_path: Path) -> None:
    given = make_rule(rule, steps=3, layers=1, momentum=0.9, rates={"blocks.0.*": 0.5}, schedule=(1.0, 0.5))
    make(learning_rule=given).save_pretrained(tmp_path)
    assert tint.TintConfig.from_pretrained(tmp_path).rule == given
    written = json.loads((tmp_path / "config.json").read_text())["learning_rule"]
    assert written == json.loads(json.dumps(asdict(given)))


def test_what_is_left_out() -> None:
    config = make()
    assert (config.engine, config.train_fraction) == ("fast", 1.0)
    assert Construction(**config.construction) == Construction()
    assert config.get_text_config().vocab_size == config.auxiliary.vocab_size


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown key": ({"speed": 3, "colour": "red"}, "unknown keys of a Tint configuration: colour, speed; known are"),
    "a way to generate": ({"temperature": 0.5}, "unknown keys of a Tint configuration: temperature"),
    "code": ({"auto_map": {"AutoConfig": "x.Y"}}, "auto_map asks for code"),
    "another kind of model": ({"model_type": "gpt2"}, "model_type 'gpt2' is not 'tint'"),
    "a simulator": ({"format": "tintformer simulator"}, "holds a simulator"),
    "no base": ({"auxiliary": None}, "needs `auxiliary`"),
    "a base that is no dict": ({"auxiliary": ["gpt2"]}, "needs `auxiliary`"),
    "an unknown family": ({"auxiliary": {"model_type": "gpt99"}}, "model_type 'gpt99' is not a known family"),
    "a list for a family": ({"auxiliary": {"model_type": "tint"}}, "model_type 'tint' is not a known family"),
    "a base of wrong types": ({"auxiliary": {"model_type": "gpt2", "n_layer": "two"}}, "cannot be read"),
    "a base with code": (
        {"auxiliary": {"model_type": "gpt2", "auto_map": {}}},
        "auxiliary asks for code of its own",
    ),
    "no rule": ({"learning_rule": None}, "needs `learning_rule`"),
    "a rule without a rate": ({"learning_rule": {"steps": 2}}, "needs learning_rate"),
    "an unknown knob": ({"learning_rule": {"learning_rate": 0.1, "patience": 0.9}}, "learning rule: patience"),
    "a rate that is a text": ({"learning_rule": {"learning_rate": "fast"}}, "learning_rate='fast' must be"),
    "a flag that is a text": (
        {"learning_rule": {"learning_rate": 0.1, "update_norm_scale": "no"}},
        "update_norm_scale='no' must be true or false",
    ),
    "more layers than there are": ({"learning_rule": {"learning_rate": 0.1, "layers": 9}}, "layers=9 but"),
    "another engine": ({"engine": "oracle"}, "engine='oracle' is unknown here"),
    "a share above 1": ({"train_fraction": 1.5}, "train_fraction=1.5 must be"),
    "no share": ({"train_fraction": 0}, "train_fraction=0 must be"),
    "a share that is a flag": ({"train_fraction": True}, "train_fraction=True must be"),
    "a name that is none": ({"base_model": 7}, "base_model=7 must be a text"),
    "an unknown knob of the simulator": ({"construction": {"size": 3}}, "unknown knobs of a simulator: size"),
    "a stack that is a text": ({"construction": {"stack": "4"}}, "stack='4' must be a whole number"),
    "construction that is none": ({"construction": [1]}, r"construction=\[1\] must be the knobs"),
    "no dtype": ({"dtype": "load"}, "dtype='load' is not a floating-point type"),
    "an unknown dtype": ({"dtype": "float7"}, "dtype='float7' is not a floating-point type"),
}


@pytest.mark.parametrize("case", WRONG)
def test_one_clear_error(case: str) -> None:
    knobs, message = WRONG[case]
    with pytest.raises(tint.TintError, match=message):
        make(**knobs)


SIZES: list[dict[str, Any]] = [
    {"model_type": "gpt2", "n_layer": 10**9},
    {"model_type": "qwen2", "num_hidden_layers": 10**9},
    {"model_type": "mistral", "num_hidden_layers": 10**9},
    {"model_type": "gpt_neo", "num_layers": 2, "attention_types": [[["global", "local"], 10**9]]},
    {"model_type": "gpt_neo", "num_layers": 2, "attention_types": [[["global"], 4000]] * 4},
    {"model_type": "bloom", "n_head": 10**9},
    {"model_type": "gptj", "n_positions": 10**12},
    {"model_type": "llama", "vocab_size": 10**12},
]


@pytest.mark.parametrize("settings", SIZES, ids=lambda settings: settings["model_type"])
def test_sizes_of_no_model_are_refused_before_a_class_is_built(settings: dict[str, Any]) -> None:
    with pytest.raises(tint.LoadError, match=r"auxiliary asks for \w+ \d+: more than"):
        make(auxiliary=settings)


@pytest.mark.parametrize("name", FIRST)
def test_published_sizes_are_not_refused(name: str) -> None:
    from tintformer.storage.configs import KNOWN_MODELS

    for settings in KNOWN_MODELS.values():
        if settings["model_type"] == name:
            make(auxiliary=dict(settings))


def test_changes_are_checked_when_they_are_used() -> None:
    config = make()
    config.engine = "warp"
    with pytest.raises(tint.TintError, match="engine='warp'"):
        tint.TintForCausalLM(config)
