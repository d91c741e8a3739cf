# pyright: basic
"""The one table of cases: tiny models of every family, every variant of the rule; reused at each stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from misaligned import misalign

from tintformer import LearningRule

VOCABULARY = 29
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def _rope(kind: str = "default", **more: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 100.0, **more}


def _llama_like(prefix: str, **knobs: Any) -> tuple[str, dict[str, Any]]:
    shape = {
        "hidden_size": 12,
        "intermediate_size": 20,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "max_position_embeddings": 64,
        "rope_parameters": _rope(),
    }
    return prefix, {**shape, **knobs}


def _gpt2(**knobs: Any) -> tuple[str, dict[str, Any]]:
    return "GPT2", {"n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 64, **knobs}


def _opt(**knobs: Any) -> tuple[str, dict[str, Any]]:
    shape = {"hidden_size": 12, "ffn_dim": 20, "num_hidden_layers": 2, "num_attention_heads": 3}
    return "OPT", {**shape, "max_position_embeddings": 64, **knobs}


def _bloom(**knobs: Any) -> tuple[str, dict[str, Any]]:
    return "Bloom", {"hidden_size": 12, "n_layer": 2, "n_head": 3, **knobs}


def _gptj(**knobs: Any) -> tuple[str, dict[str, Any]]:
    return "GPTJ", {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "rotary_dim": 4, **knobs}


def _neox(**knobs: Any) -> tuple[str, dict[str, Any]]:
    shape = {"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2}
    rope = _rope(partial_rotary_factor=0.5)
    return "GPTNeoX", {**shape, "max_position_embeddings": 64, "rope_parameters": rope, **knobs}


def _gpt_neo(**knobs: Any) -> tuple[str, dict[str, Any]]:
    shape = {
        "hidden_size": 12,
        "num_layers": 2,
        "num_heads": 3,
        "max_position_embeddings": 64,
        "window_size": 3,
    }
    return "GPTNeo", {**shape, "attention_types": [[["global", "local"], 1]], **knobs}


def _phi(**knobs: Any) -> tuple[str, dict[str, Any]]:
    shape = {"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4}
    rope = _rope(partial_rotary_factor=0.5)
    return "Phi", {**shape, "max_position_embeddings": 64, "rope_parameters": rope, **knobs}


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": _gpt2(),
    "gpt2-odd": _gpt2(
        n_inner=17,
        scale_attn_by_inverse_layer_idx=True,
        reorder_and_upcast_attn=True,
        activation_function="relu",
        tie_word_embeddings=False,
    ),
    "gpt2-unscaled": _gpt2(scale_attn_weights=False, activation_function="quick_gelu"),
    "opt": _opt(),
    "opt-350m-kind": _opt(do_layer_norm_before=False, word_embed_proj_dim=8, activation_function="gelu"),
    "opt-bare": _opt(enable_bias=False, layer_norm_elementwise_affine=False, tie_word_embeddings=False),
    "llama": _llama_like("Llama"),
    "llama-grouped": _llama_like(
        "Llama",
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
    ),
    "llama-linear": _llama_like("Llama", rope_parameters=_rope("linear", factor=2.0), hidden_act="gelu"),
    "llama-llama3": _llama_like(
        "Llama",
        num_key_value_heads=1,
        rope_parameters=_rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=16,
        ),
    ),
    "llama-yarn": _llama_like("Llama", rope_parameters=_rope("yarn", factor=4.0, original_max_position_embeddings=16)),
    "mistral": _llama_like("Mistral", num_attention_heads=4, num_key_value_heads=2, head_dim=4, sliding_window=4),
    "mistral-wide": _llama_like("Mistral", sliding_window=None, head_dim=6, tie_word_embeddings=True),
    "qwen2": _llama_like("Qwen2", num_attention_heads=6, num_key_value_heads=2, head_dim=None),
    "qwen2-sliding": _llama_like(
        "Qwen2",
        use_sliding_window=True,
        sliding_window=3,
        max_window_layers=1,
        tie_word_embeddings=True,
        head_dim=None,
    ),
    "qwen3": _llama_like("Qwen3", num_attention_heads=4, num_key_value_heads=2, head_dim=6),
    "qwen3-bias": _llama_like("Qwen3", head_dim=4, attention_bias=True, tie_word_embeddings=True),
    "bloom": _bloom(),
    "bloom-normed-residual": _bloom(n_head=4, apply_residual_connection_post_layernorm=True, tie_word_embeddings=False),
    "gptj": _gptj(),
    "gptj-tied": _gptj(rotary_dim=8, tie_word_embeddings=True, activation_function="gelu_pytorch_tanh"),
    "gpt_neox": _neox(),
    "gpt_neox-sequential": _neox(
        use_parallel_residual=False, attention_bias=False, hidden_act="gelu_fast", tie_word_embeddings=True
    ),
    "gpt_neo": _gpt_neo(),
    "gpt_neo-untied": _gpt_neo(intermediate_size=17, tie_word_embeddings=False, window_size=5),
    "phi": _phi(),
    "phi-grouped": _phi(num_key_value_heads=2, qk_layernorm=True, tie_word_embeddings=True),
    "gemma": _llama_like("Gemma", hidden_act="gelu_pytorch_tanh", head_dim=4),
    "gemma-grouped": _llama_like(
        "Gemma",
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=6,
        tie_word_embeddings=False,
        attention_bias=True,
    ),
}
"""Tiny models by name: the prefix of their Hugging Face classes, and what their configuration sets."""

FIRST = [name for name in MODELS if "-" not in name]
"""One model of each family."""


def covering(rows: Sequence[Any], columns: Sequence[Any]) -> list[Any]:
    """All pairs as parameters of a test: diagonals with every row and column of them, and the others for the sweep."""
    fewer = min(len(rows), len(columns))

    def named(value: Any) -> str:
        return "-".join(map(str, value)) if isinstance(value, tuple) else getattr(value, "__name__", str(value))

    return [
        pytest.param(
            row,
            column,
            id=f"{named(row)}-{named(column)}",
            marks=() if (i - j) % fewer == 0 else pytest.mark.sweep,
        )
        for i, row in enumerate(rows)
        for j, column in enumerate(columns)
    ]


def some(values: Sequence[Any], keep: int = 1) -> list[Any]:
    """The first few as parameters of a test, and the others for the sweep; a tuple is several arguments."""
    return [value if i < keep else _swept(value) for i, value in enumerate(values)]


def every(step: int, values: Iterable[Any], start: int = 0) -> list[Any]:
    """Every so many of the values, from a place on, and the others for the sweep; a tuple is several arguments."""
    return [value if i % step == start else _swept(value) for i, value in enumerate(values)]


def _swept(value: Any) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.sweep)


def swept(values: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Several arguments each as parameters of a test, all of them for the sweep."""
    return [_swept(value) for value in values]


def make_config(name: str) -> Any:
    import transformers

    prefix, knobs = MODELS[name]
    knobs = {key: value for key, value in knobs.items() if value is not None or key == "sliding_window"}
    return getattr(transformers, f"{prefix}Config")(vocab_size=VOCABULARY, **TOKENS, **knobs)


def size_keys(name: str) -> list[str]:
    """What the configuration of a model counts, by the names it has there."""
    others = ("_token_id", "chunk_size_feed_forward", "pretraining_tp", "max_window_layers")
    found = make_config(name).to_dict()
    counts = [key for key, value in found.items() if type(value) is int and not key.endswith(others)]
    return counts + [key for key in ("n_inner", "intermediate_size") if found.get(key, 0) is None]


@cache
def make_model(name: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
    """A tiny model with large random weights, so that every nonlinearity is felt; shared, so never change it."""
    return build_model(MODELS[name][0], make_config(name), dtype, seed)


def build_model(prefix: str, config: Any, dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
    """The model of a configuration, by the prefix of its class, with large random weights."""
    import transformers

    transformers.logging.set_verbosity_error()
    generator = torch.Generator().manual_seed(seed)
    head = "LMHeadModel" if prefix == "GPT2" else "ForCausalLM"
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = getattr(transformers, prefix + head)(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            centre = 1.0 if parameter.dim() == 1 and bool((parameter == 1).all()) else 0.0
            parameter.copy_(centre + 0.3 * noise)
    return misalign(model)


RULES: dict[str, Callable[..., LearningRule]] = {
    "default": LearningRule,
    "paper": LearningRule.paper,
    "full": LearningRule.full,
    "mean": lambda **knobs: LearningRule(reduction="mean", **knobs),
    "mse": lambda **knobs: LearningRule(loss="mse", **knobs),
    "quad": lambda **knobs: LearningRule(loss="quad", **knobs),
    "first-order-relative": lambda **knobs: LearningRule(
        norm_gradient="first_order", activation_gradient="first_order", **knobs
    ),
    "central-fixed": lambda **knobs: LearningRule(
        norm_gradient="central", activation_gradient="central", epsilon_mode="fixed", **knobs
    ),
    "central-relative": lambda **knobs: LearningRule(norm_gradient="central", activation_gradient="central", **knobs),
    "exact-attention": lambda **knobs: LearningRule(attention_gradient="exact", **knobs),
    "perturbed-fixed": lambda **knobs: LearningRule.full(attention_gradient="perturbed", epsilon_mode="fixed", **knobs),
    "perturbed-relative": lambda **knobs: LearningRule.full(attention_gradient="perturbed", **knobs),
    "norm-scale": lambda **knobs: LearningRule(update_norm_scale=True, **knobs),
    "query-key": lambda **knobs: LearningRule(attention_gradient="exact", update_query_key=True, **knobs),
    "full-central": lambda **knobs: LearningRule.full(norm_gradient="central", activation_gradient="central", **knobs),
}
"""Every variant of the learning rule, by name; each takes the knobs of `LearningRule`."""


DESCENTS: dict[str, dict[str, Any]] = {
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.8, "nesterov": True},
    "decay": {"decay": 0.2},
    "rates": {"rates": {"blocks.0.*": 0.5, "*.value": 2.0, "final.*": 0.0}},
    "schedule": {"schedule": (1.0, 0.5)},
    "all": {
        "momentum": 0.5,
        "nesterov": True,
        "decay": 0.1,
        "rates": {"blocks.0.*": 0.5, "*.value": 2.0},
        "schedule": (1.0, 0.5, 0.25),
    },
}
"""Every way to descend that is linear in the gradients, as knobs of `make_rule`."""


def make_rule(name: str, **knobs: Any) -> LearningRule:
    """A variant with a rate that moves a tiny model without throwing it off."""
    rate = {"quad": 1e-4, "mse": 2e-3, "mean": 2e-2}.get(name, 2e-3)
    return RULES[name](**{"learning_rate": rate, **knobs})


def make_batch(*, lengths: tuple[int, ...] = (11, 8, 9), padding: str = "right", seed: int = 1) -> dict[str, Any]:
    """Sequences of different lengths, padded on one side; the first two thirds of each are the training part."""
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths)
    shape = (len(lengths), width)
    ids = torch.randint(3, VOCABULARY, shape, generator=generator)
    attention_mask, train_mask = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.bool)
    for row, length in enumerate(lengths):
        start = 0 if padding == "right" else width - length
        attention_mask[row, start : start + length] = 1
        train_mask[row, start : start + 2 * length // 3] = True
    return {"input_ids": ids, "train_mask": train_mask, "attention_mask": attention_mask}


def with_steps(batch: dict[str, Any], num_steps: int, *, idle: tuple[int, int] | None = None) -> dict[str, Any]:
    """The batch with targets of every step in turn, some of them of all steps; `idle`: a row and its step without."""
    step_ids = (torch.arange(batch["input_ids"].shape[1]) % (num_steps + 1)).expand(batch["input_ids"].shape).clone()
    if idle is not None:
        row, step = idle
        step_ids[row][(step_ids[row] == step) | (step_ids[row] == 0)] = step % num_steps + 1
    return {**batch, "step_ids": step_ids}


ROUND_OFF = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
"""How far two computations of one thing may lie apart, relative to its largest element."""


def assert_same(found: torch.Tensor, expected: torch.Tensor, *, times: float = 1.0) -> None:
    """The same but for round-off: what is computed from the same weights at another place in memory.

    What is stored is compared with `torch.equal`, and so are two identical passes over the same tensors.
    `times` as far apart where a rule takes differences, which divide round-off by their step.
    """
    atol = times * ROUND_OFF[expected.dtype] * max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


def assert_learns_as_torch(name: str, rule: LearningRule, batch: dict[str, Any], **engine: Any) -> None:
    """Logits and updates of every sequence are those of autograd and torch.optim, and of the reference."""
    from tintformer import Tint

    seen = batch["attention_mask"].bool()
    ours = call(Tint(make_model(name), rule, **engine), batch)
    for truth in ("oracle", "reference"):
        true = call_once(name, rule, truth, batch)
        torch.testing.assert_close(ours.logits[seen], true.logits[seen], rtol=0, atol=1e-8)
        for row in range(len(seen)):
            found, expected = ours.updates(row), true.updates(row)
            assert found.keys() == expected.keys()
            for parameter, update in expected.items():
                torch.testing.assert_close(found[parameter], update, rtol=0, atol=1e-8)


def alone(batch: dict[str, Any], row: int) -> dict[str, Any]:
    """One row of a batch with its padding cut away."""
    keep = batch["attention_mask"][row].bool()
    return {key: value[row][keep][None] for key, value in batch.items()}


def call(tint: Any, batch: dict[str, Any], **knobs: Any) -> Any:
    """Run a batch of the form that `make_batch` returns."""
    return tint(batch["input_ids"], **{key: value for key, value in batch.items() if key != "input_ids"}, **knobs)


_CALLED: dict[Any, Any] = {}


def call_once(name: str, rule: LearningRule, engine: str, batch: dict[str, Any]) -> Any:
    """What an engine makes of a batch; made once a session and shared, so never change it."""
    from tintformer import Tint

    key = name, rule, engine, *((key, str(value.tolist())) for key, value in sorted(batch.items()))
    if key not in _CALLED:
        _CALLED[key] = call(Tint(make_model(name), rule, engine=engine), batch)
    return _CALLED[key]
