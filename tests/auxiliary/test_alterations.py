# pyright: basic
"""A model object that computes other than its classes say is refused, with names and a remedy that works."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from cases import MODELS, VOCABULARY, make_model
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.flop_counter import FlopCounterMode
from transformers.activations import ACT2FN
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.llama import modeling_llama

import tintformer as tint

IDS = torch.randint(3, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(3))
RULE = tint.LearningRule(learning_rate=0.0)


class Doubled(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


class Initialised(nn.Linear):
    """A class of one's own that computes what its base does."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)


class Scaled(nn.Embedding):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 3 * super().forward(input)


class OtherNorm(modeling_llama.LlamaRMSNorm):
    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states


class OtherModel(transformers.LlamaForCausalLM):
    def forward(self, *args: Any, **options: Any) -> Any:
        output: Any = super().forward(*args, **options)
        output.logits = 2 * output.logits
        return output


class Tempered(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x


def copied(name: str = "llama") -> Any:
    return copy.deepcopy(make_model(name, torch.float32))


def layer(model: Any) -> Any:
    return model.model.layers[1]


def as_class(module: nn.Module, cls: type) -> None:
    module.__class__ = cls


def refusal(model: Any) -> str:
    with pytest.raises(tint.TintError) as caught:
        tint.load(model)
    assert isinstance(caught.value, tint.UnsupportedModelError)
    return str(caught.value)


def tint_logits(model: Any) -> Any:
    return tint.Tint(model, RULE)(IDS, train_mask=torch.ones_like(IDS)).logits


def assert_same_as_hugging_face(model: Any) -> None:
    with torch.no_grad():
        expected = model(input_ids=IDS).logits
    torch.testing.assert_close(tint_logits(model), expected, rtol=0, atol=1e-4)


ALTERATIONS: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "a linear with another forward": (
        lambda model: as_class(layer(model).mlp.up_proj, Doubled),
        ("model.layers.1.mlp.up_proj", "Doubled", "Linear"),
    ),
    "an embedding with another forward": (
        lambda model: as_class(model.model.embed_tokens, Scaled),
        ("model.embed_tokens", "Scaled", "Embedding"),
    ),
    "a norm with another forward": (
        lambda model: as_class(model.model.norm, OtherNorm),
        ("model.norm", "OtherNorm", "LlamaRMSNorm"),
    ),
    "a norm of another kind": (
        lambda model: setattr(layer(model), "input_layernorm", nn.RMSNorm(12)),
        ("model.layers.1.input_layernorm", "RMSNorm", "LlamaRMSNorm"),
    ),
    "another activation": (
        lambda model: setattr(layer(model).mlp, "act_fn", nn.Tanh()),
        ("model.layers.1.mlp.act_fn", "Tanh"),
    ),
    "an identity": (
        lambda model: setattr(layer(model), "mlp", nn.Identity()),
        ("model.layers.1.mlp:", "Identity", "LlamaMLP"),
    ),
    "a module around another": (
        lambda model: setattr(model, "lm_head", nn.Sequential(model.lm_head, Tempered())),
        ("lm_head", "Sequential"),
    ),
    "fewer blocks than configured": (
        lambda model: model.model.layers.__delitem__(1),
        ("model.layers.1", "missing"),
    ),
    "a model with another forward": (
        lambda model: as_class(model, OtherModel),
        ("the model itself", "OtherModel", "LlamaForCausalLM"),
    ),
    "a forward hook": (
        lambda model: layer(model).register_forward_hook(lambda module, args, output: 2 * output),
        ("model.layers.1", "forward hook", "remove()"),
    ),
    "a forward pre-hook": (
        lambda model: layer(model).mlp.register_forward_pre_hook(lambda module, args: (2 * args[0],)),
        ("model.layers.1.mlp", "forward pre-hook", "remove()"),
    ),
    "a hook on the whole model": (
        lambda model: model.register_forward_hook(lambda module, args, output: None),
        ("the model itself", "forward hook"),
    ),
    "a hook of dropout": (
        lambda model: layer(model).self_attn.register_forward_hook(functools.partial(lambda *given: None, 1)),
        ("model.layers.1.self_attn", "forward hook"),
    ),
    "a patched forward": (
        lambda model: setattr(layer(model).mlp, "forward", lambda x: x),
        ("model.layers.1.mlp", "forward is patched", "del"),
    ),
    "a forward of the whole model": (
        lambda model: setattr(model, "forward", functools.partial(model.forward, use_cache=False)),
        ("the model itself", "forward is patched"),
    ),
    "old weight norm": (
        lambda model: nn.utils.weight_norm(layer(model).mlp.up_proj),
        ("model.layers.1.mlp.up_proj", "remove_weight_norm"),
    ),
    "weight norm": (
        lambda model: parametrizations.weight_norm(layer(model).mlp.up_proj),
        ("model.layers.1.mlp.up_proj", "remove_parametrizations"),
    ),
    "old spectral norm": (
        lambda model: nn.utils.spectral_norm(layer(model).mlp.up_proj),
        ("model.layers.1.mlp.up_proj", "remove_spectral_norm"),
    ),
    "spectral norm": (
        lambda model: parametrizations.spectral_norm(layer(model).mlp.up_proj),
        ("model.layers.1.mlp.up_proj", "remove_parametrizations"),
    ),
    "a parametrization": (
        lambda model: parametrize.register_parametrization(model.model.norm, "weight", Tempered()),
        ("model.norm", "remove_parametrizations"),
    ),
    "pruning": (
        lambda model: prune.random_unstructured(layer(model).mlp.up_proj, "weight", 0.5),
        ("model.layers.1.mlp.up_proj", "prune.remove"),
    ),
    "a factor of attention": (
        lambda model: setattr(layer(model).self_attn, "scaling", 0.25),
        ("model.layers.1.self_attn", "scaling is 0.25", "restore"),
    ),
    "an embedding that renormalises its rows": (
        lambda model: setattr(model.model.embed_tokens, "max_norm", 0.5),
        ("model.embed_tokens", "max_norm is 0.5, where the configuration makes it None"),
    ),
    "attention that sees what comes later": (
        lambda model: setattr(layer(model).self_attn, "is_causal", False),
        ("model.layers.1.self_attn", "is_causal is False, where the configuration makes it True"),
    ),
    "another number of groups": (
        lambda model: setattr(layer(model).self_attn, "num_key_value_groups", 3),
        ("model.layers.1.self_attn", "num_key_value_groups is 3, where the configuration makes it 1"),
    ),
    "a tensor for a factor": (
        lambda model: setattr(layer(model).self_attn, "scaling", torch.tensor(0.25)),
        ("model.layers.1.self_attn", "scaling is 0.25"),
    ),
    "one block twice": (
        lambda model: model.model.layers.__setitem__(0, model.model.layers[1]),
        ("model.layers.0, model.layers.1", "one module in several places"),
    ),
    "one weight twice": (
        lambda model: setattr(layer(model).mlp.up_proj, "weight", model.model.layers[0].mlp.up_proj.weight),
        ("model.layers.0.mlp.up_proj.weight, model.layers.1.mlp.up_proj.weight", "one weight in several places"),
    ),
    "a plain tensor for a parameter": (
        lambda model: (
            layer(model).mlp.up_proj._parameters.pop("weight"),
            setattr(layer(model).mlp.up_proj, "weight", torch.ones(20, 12)),
        ),
        ("model.layers.1.mlp.up_proj.weight", "no parameter"),
    ),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("name", ALTERATIONS)
def test_what_changes_a_module_is_refused_at_load_and_at_the_next_call(name: str) -> None:
    alter, expected = ALTERATIONS[name]
    model = copied()
    before = tint.Tint(model, RULE)
    before(IDS, train_mask=torch.ones_like(IDS))
    alter(model)
    message = refusal(model)
    assert all(part in message for part in expected), message
    assert message.count("\n  - ") == 1, message
    with pytest.raises(tint.TintError) as caught:
        before(IDS, train_mask=torch.ones_like(IDS))
    assert "\n" not in str(caught.value) and "load" in str(caught.value), caught.value


def test_all_reasons_at_once_and_modules_of_one_reason_together() -> None:
    model = copied()
    for block in model.model.layers:
        as_class(block.mlp.up_proj, Doubled)
        as_class(block.mlp.down_proj, Doubled)
        as_class(block.mlp.gate_proj, Doubled)
    model.model.norm.register_forward_hook(lambda *given: None)
    with torch.no_grad():
        model.lm_head.weight[0, 0] = float("nan")
    message = refusal(model)
    assert message.count("\n  - ") == 3
    assert "and 2 more" in message and "model.norm" in message and "lm_head.weight contains NaN" in message


@pytest.mark.parametrize(
    "alter",
    [
        lambda model: model.requires_grad_(False),
        lambda model: model.train(),
        lambda model: model.gradient_checkpointing_enable(),
        lambda model: model.enable_input_require_grads(),
        lambda model: model(input_ids=IDS, output_hidden_states=True, output_attentions=True),
        lambda model: as_class(layer(model).mlp.up_proj, Initialised),
        lambda model: as_class(model, type("Mine", (transformers.LlamaForCausalLM,), {"generate": None, "more": 1})),
        lambda model: model.add_module("value_head", nn.Linear(12, 1)),
        lambda model: model.set_attn_implementation("eager"),
        lambda model: layer(model).mlp.register_full_backward_hook(lambda *given: None),
        lambda model: setattr(layer(model).mlp, "forward", layer(model).mlp.forward),
        lambda model: model.resize_token_embeddings(VOCABULARY + 3),
        lambda model: setattr(model.lm_head, "weight", model.model.embed_tokens.weight),
        lambda model: model.model.layers[0].self_attn.q_proj.register_state_dict_pre_hook(lambda *given: None),
    ],
)
def test_what_changes_no_number_stays_allowed(alter: Callable[[Any], Any]) -> None:
    model = copied()
    alter(model)
    assert_same_as_hugging_face(model.eval())


@pytest.mark.parametrize("name", MODELS)
def test_models_that_have_run_are_the_same_models(name: str) -> None:
    """What transformers leaves in a model that has run and generated is no change."""
    model = copied(name)
    learner = tint.Tint(model, RULE)
    model(input_ids=IDS, output_hidden_states=True)
    model.generate(IDS, max_new_tokens=2, do_sample=False)
    learner(IDS, train_mask=torch.ones_like(IDS))
    tint.load(model)


def test_dropout_may_be_taken_out() -> None:
    model = copied("gpt2")
    model.transformer.drop = nn.Identity()
    model.transformer.h[0].mlp.dropout.p = 0.0
    assert_same_as_hugging_face(model)


def doubled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A patch that bears the name of what it replaces."""

    @functools.wraps(function)
    def patch(*args: Any, **options: Any) -> Any:
        return 2 * function(*args, **options)

    return patch


def silent(*args: Any, **options: Any) -> Any:
    return sdpa_attention_forward(*args, **options)[0] * 0, None


class Flat(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0 * x


def register(kind: str) -> Callable[[pytest.MonkeyPatch, Any], None]:
    """A hook of the process, which is taken away with the other patches."""

    def alter(monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
        monkeypatch.setitem(vars(nn.modules.module)[kind], -1, lambda module, *given: None)

    return alter


def other_attention(monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, "silent", silent)
    model.set_attn_implementation("silent")


PROCESS: dict[str, tuple[Callable[[pytest.MonkeyPatch, Any], None], tuple[str, ...]]] = {
    "a hook of every module": (
        register("_global_forward_hooks"),
        ("every module", "a global forward hook", "remove()"),
    ),
    "a pre-hook of every module": (
        register("_global_forward_pre_hooks"),
        ("every module", "a global forward pre-hook", "remove()"),
    ),
    "a forward": (
        lambda patch, model: patch.setattr(modeling_llama.LlamaMLP, "forward", lambda self, x: x),
        ("model.layers.0.mlp", "LlamaMLP.forward is patched"),
    ),
    "a forward that bears its name": (
        lambda patch, model: patch.setattr(
            modeling_llama.LlamaMLP, "forward", doubled(modeling_llama.LlamaMLP.forward)
        ),
        ("model.layers.0.mlp", "LlamaMLP.forward is patched", "doubled.<locals>.patch", "restore"),
    ),
    "torch's forward": (
        lambda patch, model: patch.setattr(nn.Linear, "forward", doubled(nn.Linear.forward)),
        ("model.layers.0.self_attn.q_proj", "Linear.forward is patched"),
    ),
    "a call": (
        lambda patch, model: patch.setattr(
            modeling_llama.LlamaMLP, "__call__", doubled(nn.Module.__call__), raising=False
        ),
        ("model.layers.0.mlp", "LlamaMLP.__call__ is patched"),
    ),
    "what every call runs": (
        lambda patch, model: patch.setattr(nn.Module, "_call_impl", doubled(nn.Module._call_impl)),
        ("the model itself", "Module._call_impl is patched"),
    ),
    "an attention": (
        other_attention,
        ("the model itself", "its attention 'silent'", "set_attn_implementation('eager')"),
    ),
    "transformers' attention": (
        lambda patch, model: patch.setitem(transformers.AttentionInterface._global_mapping, "sdpa", silent),
        ("the model itself", "its attention 'sdpa'"),
    ),
    "a function of the model's module": (
        lambda patch, model: patch.setattr(
            modeling_llama, "apply_rotary_pos_emb", lambda query, key, *given: (query, key)
        ),
        ("transformers.models.llama.modeling_llama", "apply_rotary_pos_emb is patched", "restore"),
    ),
}


@pytest.mark.parametrize("name", PROCESS)
def test_what_changes_modules_from_elsewhere_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alter, expected = PROCESS[name]
    model = copied()
    learner = tint.Tint(model, RULE)
    with monkeypatch.context() as patch:
        alter(patch, model)
        message = refusal(model)
        assert all(part in message for part in expected) and message.count("\n  - ") == 1, message
        with pytest.raises(tint.TintError, match="has changed since it was loaded") as caught:
            learner(IDS, train_mask=torch.ones_like(IDS))
        assert "\n" not in str(caught.value)
    model.set_attn_implementation("eager")
    assert_same_as_hugging_face(model)


def test_a_class_of_another_that_transformers_takes_for_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ACT2FN, "silu", Flat)
    model = transformers.LlamaForCausalLM(make_model("llama", torch.float32).config)
    message = refusal(model)
    assert "model.layers.0.mlp.act_fn" in message and "Flat" in message and "restore" in message


def test_operations_may_be_counted() -> None:
    """Torch's counter hooks every module of the process, and looks on."""
    with FlopCounterMode(display=False):
        tint_logits(copied())


def scale_table(model: Any) -> None:
    for block in model.transformer.h:
        block.attn.embed_positions = 0.5 * block.attn.embed_positions


SETTINGS: dict[str, tuple[str, Callable[[Any], Any], tuple[str, ...]]] = {
    "order of norms": (
        "opt",
        lambda model: setattr(model.model.decoder.layers[0], "do_layer_norm_before", False),
        ("model.decoder.layers.0", "do_layer_norm_before is False"),
    ),
    "an offset of positions": (
        "opt",
        lambda model: setattr(model.model.decoder.embed_positions, "offset", 1),
        ("model.decoder.embed_positions", "offset is 1"),
    ),
    "parallel branches": (
        "gpt_neox",
        lambda model: setattr(model.gpt_neox.layers[0], "use_parallel_residual", False),
        ("gpt_neox.layers.0", "use_parallel_residual is False"),
    ),
    "a residual": (
        "bloom",
        lambda model: setattr(model.transformer.h[0], "apply_residual_connection_post_layernorm", True),
        ("transformer.h.0", "apply_residual_connection_post_layernorm is True"),
    ),
    "the number of a layer": (
        "gpt2",
        lambda model: setattr(model.transformer.h[1].attn, "layer_idx", 0),
        ("transformer.h.1.attn", "layer_idx is 0, where the configuration makes it 1"),
    ),
    "the width of rotations": (
        "gptj",
        lambda model: setattr(model.transformer.h[0].attn, "rotary_dim", 2),
        ("transformer.h.0.attn", "rotary_dim is 2"),
    ),
    "a table of sines": (
        "gptj",
        scale_table,
        ("transformer.h.0.attn, transformer.h.1.attn", "its embed_positions has"),
    ),
    "a mask": (
        "gpt_neo",
        lambda model: model.transformer.h[1].attn.attention.bias.fill_(True),
        ("transformer.h.1.attn.attention", "its bias has other numbers"),
    ),
    "a window": (
        "qwen2-sliding",
        lambda model: setattr(model.model.layers[1].self_attn, "sliding_window", None),
        ("model.layers.1.self_attn", "sliding_window is None, where the configuration makes it 3"),
    ),
    "a configuration": (
        "llama",
        lambda model: setattr(layer(model).self_attn, "config", transformers.LlamaConfig(rms_norm_eps=0.5)),
        ("model.layers.1.self_attn", "its config is not the model's"),
    ),
    "the function of an activation": (
        "llama-linear",
        lambda model: setattr(model.model.layers[0].mlp.act_fn, "act", torch.tanh),
        ("model.layers.0.mlp.act_fn", "its act is"),
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_set_on_a_module_is_refused(name: str) -> None:
    family, alter, expected = SETTINGS[name]
    model = copied(family)
    learner = tint.Tint(model, RULE)
    alter(model)
    message = refusal(model)
    assert all(part in message for part in expected) and message.count("\n  - ") == 1, message
    if name not in ("a mask", "a configuration"):  # tables and configurations are looked at when a model is loaded
        with pytest.raises(tint.TintError, match="has changed since it was loaded"):
            learner(IDS, train_mask=torch.ones_like(IDS))


@pytest.mark.parametrize(
    ("name", "alter"),
    [
        ("llama", lambda model: setattr(model.model.embed_tokens, "padding_idx", 5)),
        ("llama", lambda model: setattr(model.model.layers[0].self_attn, "attention_dropout", 0.5)),
        ("llama", lambda model: setattr(model.model.norm, "variance_epsilon", 0.5)),
        ("gpt2", lambda model: setattr(model.transformer.h[0].attn, "scale_attn_weights", False)),
        ("gpt2", lambda model: setattr(model.transformer.h[1].attn, "scale_attn_by_inverse_layer_idx", True)),
        ("gpt_neox", lambda model: setattr(model.gpt_neox.layers[0].attention, "rotary_ndims", 2)),
    ],
)
def test_settings_that_are_followed_or_not_read_stay_allowed(name: str, alter: Callable[[Any], Any]) -> None:
    model = copied(name)
    alter(model)
    assert_same_as_hugging_face(model)


@pytest.mark.parametrize("name", ["gptj", "gpt_neo"])
def test_tables_may_be_rounded_with_the_model(name: str) -> None:
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        tint.load(copied(name).to(torch.bfloat16).to(dtype))


def test_dynamic_quantisation_is_refused() -> None:
    if "none" in torch.backends.quantized.supported_engines[-1:]:
        pytest.skip("torch has no quantised kernels on this processor")
    with pytest.warns(Warning):  # deprecated by torch, and used all the same
        model = torch.ao.quantization.quantize_dynamic(copied(), {nn.Linear}, dtype=torch.qint8)
    message = refusal(model)
    assert "full-precision" in message and "q_proj" in message


def test_accelerate_may_dispatch_and_take_back() -> None:
    accelerate = pytest.importorskip("accelerate", reason="needs the package accelerate")
    model = copied()
    accelerate.dispatch_model(model, {"": "cpu"}, force_hooks=True)
    assert_same_as_hugging_face(model)
    accelerate.cpu_offload(copied())
    accelerate.hooks.remove_hook_from_module(model, recurse=True)
    assert_same_as_hugging_face(model)


def test_a_hook_of_accelerate_does_not_hide_a_patch() -> None:
    accelerate = pytest.importorskip("accelerate", reason="needs the package accelerate")
    model = copied()
    layer(model).mlp.forward = lambda x: x
    accelerate.dispatch_model(model, {"": "cpu"}, force_hooks=True)
    assert "model.layers.1.mlp" in refusal(model)

    class Doubling(accelerate.hooks.ModelHook):
        def post_forward(self, module: nn.Module, output: Any) -> Any:
            return 2 * output

    model = copied()
    accelerate.hooks.add_hook_to_module(layer(model).mlp, Doubling())
    assert "Doubling" in refusal(model)


def with_lora(model: Any) -> Any:
    peft = pytest.importorskip("peft", reason="LoRA needs the package peft")
    model.add_adapter(peft.LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    return model.eval()


def test_an_added_adapter_is_refused_and_its_remedy_works(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="LoRA needs the package peft")
    model = with_lora(copied())
    with torch.no_grad():
        expected = model(input_ids=IDS).logits
    message = refusal(model)
    assert "merge_and_unload()" in message and "model.layers.0.self_attn.q_proj" in message
    # The remedy that the message gives.
    model.save_pretrained(tmp_path)
    merged = peft.PeftModel.from_pretrained(copied(), tmp_path).merge_and_unload()
    torch.testing.assert_close(tint_logits(merged), expected, rtol=0, atol=1e-4)


def test_an_adapter_directory_that_transformers_opens_is_refused(tmp_path: Path) -> None:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    copied().save_pretrained(base)
    with_lora(transformers.LlamaForCausalLM.from_pretrained(base)).save_pretrained(adapter)
    model = transformers.AutoModelForCausalLM.from_pretrained(adapter)
    assert type(model).__name__ == "LlamaForCausalLM"
    assert "merge_and_unload()" in refusal(model)


def test_objects_around_a_model_say_what_to_pass() -> None:
    peft = pytest.importorskip("peft", reason="LoRA needs the package peft")
    wrapped = peft.get_peft_model(copied(), peft.LoraConfig(target_modules=["q_proj"]))
    for model, remedy in (
        (wrapped, r"model\.merge_and_unload\(\)"),
        (torch.compile(copied(), backend="eager"), r"model\._orig_mod"),
        (nn.DataParallel(copied()), r"model\.module"),
        (nn.Linear(2, 2), "a transformers model"),
    ):
        with pytest.raises(tint.LoadError, match=remedy) as caught:
            tint.load(model)
        assert "\n" not in str(caught.value)


def test_a_model_compiled_in_place_computes_the_same() -> None:
    model = copied()
    model.compile(backend="eager")
    tint.load(model)
