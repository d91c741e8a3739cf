"""TintConfig: what a model that learns inside its pass is made of, checked whole before anything is built from it."""

from __future__ import annotations

from dataclasses import asdict, fields, is_dataclass
from typing import Annotated, Any, ClassVar

from transformers.configuration_utils import PreTrainedConfig

from tintformer.auxiliary.validation import find_family
from tintformer.errors import LoadError, RuleError, TintError
from tintformer.learning.engine_registry import check_rule, engines_that
from tintformer.rule.learning_rule import LearningRule
from tintformer.simulator.construction import Construction
from tintformer.storage.saved_configs import plain_settings
from tintformer.storage.untrusted import build_config, read_dtype
from tintformer.transformers.register import register_config
from tintformer.typed_fields import Range, checked
from tintformer.version import __version__

MODEL_TYPE = "tint"
Share = Annotated[float, Range(above=0, at_most=1)]
_OWN_FIELDS = {"train_fraction": Share, "base_model": str, "tintformer_version": str}
"""What a configuration holds besides the parts that have classes of their own, which check themselves."""

_PASSED_ALONG = {
    "_commit_hash",
    "attn_implementation",
    "experts_implementation",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "torch_dtype",
}
"""What transformers itself hands to a configuration besides its fields."""


class TintConfig(PreTrainedConfig):
    """A base model, a learning rule, an engine, and which part of a prompt is learnt from.

    Made by `TintForCausalLM.from_auxiliary`, or read from a directory. Unknown keys are errors; only the base model's
    own configuration may hold what its family does not know, as many published ones do.
    """

    model_type: ClassVar[str] = MODEL_TYPE
    has_no_defaults_at_init: ClassVar[bool] = True  # a configuration without a base model is none

    auxiliary: Any = None
    """The base model's own configuration; a dict, as files have it, becomes the object of its family."""
    learning_rule: Any = None
    """All knobs of a `LearningRule`, as a dict; a `LearningRule` becomes one."""
    engine: str = "fast"
    """`fast`, or `simulator`: the constructed simulator, the same numbers at many times the cost."""
    construction: Any = None
    """Knobs of the simulator (layout, stack, tie_blocks, ...) as a dict; the fast engine has no use for them."""
    train_fraction: float = 1.0
    """The leading share of every sequence's tokens that trains where no `train_mask` is given; 1 learns from the whole
    prompt. With less, above 0, the rest is read with the updated weights but not learnt from."""
    base_model: str = ""
    """What the base model is called, for messages and the model card."""
    tintformer_version: str = __version__
    """Of what wrote the configuration."""

    def __post_init__(self, **kwargs: Any) -> None:
        if kwargs.get("format") == "tintformer simulator":
            raise LoadError("this directory holds a simulator; open it with tintformer.Simulator.from_pretrained")
        if "auto_map" in kwargs:
            raise LoadError("auto_map asks for code out of the model's directory; none is run: remove it")
        if unknown := sorted(set(kwargs) - _PASSED_ALONG):
            raise LoadError(f"unknown keys of a Tint configuration: {', '.join(unknown)}; known are {_known()}")
        if (found := kwargs.pop("model_type", MODEL_TYPE)) != MODEL_TYPE:
            raise LoadError(f"model_type {found!r} is not {MODEL_TYPE!r}: these are the files of another kind of model")
        self.check()
        if self.dtype is not None:
            read_dtype(self.dtype, "dtype")
        super().__post_init__(**kwargs)

    def check(self) -> None:
        """Turn what files and callers give into its final form, or say what is wrong with it."""
        self.auxiliary = _base(self.auxiliary, self.base_model or "the base model")
        self.learning_rule = asdict(_rule(self.learning_rule))
        self.construction = asdict(_construction(self.construction))
        if self.engine not in (known := engines_that("continues")):
            raise TintError(f"engine={self.engine!r} is unknown here; choose one of {', '.join(known)}")
        for name, hint in _OWN_FIELDS.items():
            setattr(self, name, checked(name, getattr(self, name), hint, TintError))
        self.rule.num_trained(self.auxiliary.num_hidden_layers)
        check_rule(self.engine, self.rule)

    @property
    def rule(self) -> LearningRule:
        """The learning rule as an object."""
        return LearningRule.of(self.learning_rule)

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PreTrainedConfig:
        """The base model's: vocabulary, layers and the like are looked up there."""
        return self.auxiliary

    def to_dict(self) -> dict[str, Any]:
        """As it is written; of the base model's configuration every key, so that no default can change it."""
        result = super().to_dict()
        for name in ("learning_rule", "construction"):
            if is_dataclass(found := result[name]) and not isinstance(found, type):  # not checked yet
                result[name] = asdict(found)
        result["auxiliary"] = plain_settings(self.auxiliary)
        return result


def _known() -> str:
    own = [field.name for field in fields(TintConfig) if field.name not in _inherited()]
    return ", ".join(own)


def _inherited() -> set[str]:
    return {field.name for field in fields(PreTrainedConfig)}


def _base(found: Any, name: str) -> PreTrainedConfig:
    if isinstance(found, PreTrainedConfig):
        find_family(found, name)
        return found
    if not isinstance(found, dict):
        raise LoadError(
            "a Tint configuration needs `auxiliary`, the configuration of its base model; make one with "
            "TintForCausalLM.from_auxiliary"
        )
    return build_config(found, "auxiliary", name)


def _rule(found: Any) -> LearningRule:
    if isinstance(found, LearningRule):
        return found
    if not isinstance(found, dict):
        raise RuleError("a Tint configuration needs `learning_rule`, the knobs of a LearningRule")
    return LearningRule.of(found)


def _construction(found: Any) -> Construction:
    if found is None or isinstance(found, Construction):
        return found or Construction()
    return Construction.of(found)


register_config()
