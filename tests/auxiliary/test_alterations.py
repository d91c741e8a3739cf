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
    if name in ("a factor of attention", "an embedding that renormalises its rows"):
        return  # plain attributes are looked at when a model is loaded
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


def test_a_patched_class_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = copied()
    learner = tint.Tint(model, RULE)
    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", lambda self, x: x)
    message = refusal(model)
    assert "LlamaMLP.forward is patched" in message
    with pytest.raises(tint.TintError, match="LlamaMLP"):
        learner(IDS, train_mask=torch.ones_like(IDS))


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
