"""TintForCausalLM: a transformers model that learns from its prompt inside the pass, by either engine.

B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.utils import GenerationMixin
from transformers.initialization import no_init_weights
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import PreTrainedModel

from tintformer.auxiliary.describe import describe
from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.validation import check_model
from tintformer.errors import InputError, LoadError, TintError
from tintformer.execution.batch import Batch, LearningMasks
from tintformer.execution.engine import Continues
from tintformer.execution.inputs import Array, as_optional_tensor, mask_of, token_ids
from tintformer.learning.engine_registry import ENGINES, make_engine
from tintformer.learning.rate_selection import with_rates
from tintformer.rule.learning_rule import LearningRule, require_number, require_rule
from tintformer.storage.loading import load
from tintformer.storage.safetensors_headers import read_headers
from tintformer.storage.saved_configs import checked_settings
from tintformer.storage.untrusted_files import given_path, user_path
from tintformer.transformers import files
from tintformer.transformers.cache import TintCache
from tintformer.transformers.card import model_card
from tintformer.transformers.config import TintConfig
from tintformer.transformers.label_loss import checked_labels, mean_loss
from tintformer.transformers.register import register_model
from tintformer.typed_fields import Range, checked


@dataclass
class TintCausalLMOutput(CausalLMOutputWithPast):
    """As other causal models return it, and which tokens were learnt from."""

    train_mask: Tensor | None = None


class TintForCausalLM(PreTrainedModel, GenerationMixin):
    """A base model, a learning rule and an engine, in the form that transformers' tools know.

    `forward` trains on the part under `train_mask` (by default `config.train_fraction` of every sequence), each
    sequence on its own, and returns logits of the updated model at every token. `generate` does so with the prompt and
    continues it with what each sequence has learnt.

    Args:
        config: What it is made of.
        auxiliary: The base model itself; without it one is made from the configuration, with weights at random.
    """

    config_class = TintConfig
    config: TintConfig
    _is_stateful = True
    """No assisted generation: it reads guessed tokens together with the prompt, which would be learnt from."""

    def __init__(self, config: TintConfig, auxiliary: PreTrainedModel | None = None):
        config.check()
        setattr(config, "_attn_implementation", None)  # noqa: B010 (protected there); the engines have their own
        super().__init__(config)
        if auxiliary is None:
            config.auxiliary = copy.deepcopy(config.auxiliary)  # which transformers marks with what it has built
            auxiliary = cast(PreTrainedModel, AutoModelForCausalLM.from_config(config.auxiliary, dtype=config.dtype))
        self.auxiliary = auxiliary.eval()
        config.auxiliary.dtype = config.dtype = auxiliary.dtype
        self._built: tuple[Any, Continues] | None = None
        with no_init_weights():  # nothing here has weights besides the base model, which has its own
            self.post_init()
        if auxiliary.can_generate():
            self.generation_config = copy.deepcopy(cast(Any, auxiliary).generation_config)

    @classmethod
    def from_auxiliary(
        cls,
        model: Any,
        rule: LearningRule,
        engine: str = "fast",
        *,
        train_fraction: float = 1.0,
        **construction: Any,
    ) -> TintForCausalLM:
        """A Tint model around a base: a hub id, a directory, a bundled name or a transformers model.

        A model object is not changed, and its tensors are shared.

        Args:
            model: What `load` takes.
            rule: How it learns.
            engine: `fast`, or `simulator`: the same numbers at many times the cost.
            train_fraction: The leading share of every sequence that trains where no `train_mask` is given, above 0 and
                at most 1.
            **construction: Fields of `Construction`, for the simulator.
        """
        auxiliary = load(model)
        require_rule(rule)
        base = _shared(auxiliary.model)
        config = TintConfig(
            auxiliary=base.config,
            learning_rule=rule,
            engine=engine,
            construction=construction,
            train_fraction=train_fraction,
            base_model=_public_name(auxiliary.name),
            dtype=auxiliary.dtype,
        )
        return cls(config, base).eval()

    # The pass.

    def forward(
        self,
        input_ids: Array | None = None,
        attention_mask: Array | None = None,
        train_mask: Array | None = None,
        loss_mask: Array | None = None,
        labels: Array | None = None,
        past_key_values: TintCache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        return_dict: bool | None = None,
        **unknown: Any,
    ) -> Any:
        """Learn, then predict: logits `[B, T, V]` of the updated model, as `Tint` gives them.

        Args:
            input_ids: Token ids `[batch, tokens]`.
            attention_mask: 1 for tokens, 0 for padding, on either side.
            train_mask: 1 for the tokens that are trained on; without it the leading `config.train_fraction` are.
            loss_mask: Restricts the training targets further.
            labels: Token ids, -100 for those that are ignored; they add the mean loss of the updated model.
            past_key_values: A `TintCache`. If it holds a prompt, the new tokens are read with what was learnt from it.
            use_cache: Return a cache that the next call can go on from.
            logits_to_keep: Return the logits of so many of the last tokens; 0, or with `labels`, of all.
            return_dict: False returns a tuple.
            **unknown: Anything else that is not None or False is refused.
        """
        if asked := sorted(key for key, value in unknown.items() if value is not None and value is not False):
            raise InputError(f"{', '.join(asked)}: not an input of this model")
        if input_ids is None:
            raise InputError("there are no input_ids; embeddings cannot be learnt from")
        checked("logits_to_keep", logits_to_keep, Annotated[int, Range(at_least=0)], InputError)
        labels = checked_labels(labels, self.config)
        cache = self._cache(past_key_values, use_cache)
        if cache is not None and cache.continuation is not None:
            if train_mask is not None or loss_mask is not None:
                raise InputError("train_mask belongs to the prompt, and this cache has learnt from one already")
            train, continuation = None, cache.continuation
            continuation.extend(input_ids, attention_mask)
        else:
            engine = self.engine
            ids = token_ids(input_ids, engine.auxiliary)
            train = self._training_part(ids, attention_mask, train_mask)
            given: LearningMasks = {"attention_mask": attention_mask, "loss_mask": loss_mask}
            batch = Batch.of(engine.auxiliary, ids, train_mask=train, **given)
            if engine.rule.is_auto:
                batch = with_rates(engine.auxiliary, engine.rule, batch)
            continuation = engine.begin(batch, keep_cache=cache is not None)
            if cache is not None:
                cache.continuation = continuation
        logits = continuation.logits(None if labels is not None else logits_to_keep or None)
        output = TintCausalLMOutput(
            loss=cast(Any, None if labels is None else mean_loss(logits, labels)),
            logits=cast(Any, logits),
            past_key_values=cache,
            train_mask=train,
        )
        return output.to_tuple() if return_dict is False else output

    def _cache(self, given: Any, use_cache: bool | None) -> TintCache | None:
        if given is None:
            return TintCache() if use_cache else None
        if not isinstance(given, TintCache):
            raise InputError(f"past_key_values is a {type(given).__name__}; give a TintCache, or none")
        return given

    def _training_part(self, input_ids: Tensor, attention_mask: Array | None, train_mask: Array | None) -> Tensor:
        """What the caller asks for, or the leading share of every sequence's tokens, at least one."""
        if train_mask is not None:
            return mask_of("train_mask", train_mask, input_ids)
        attended = torch.ones_like(input_ids, dtype=torch.bool)
        if attention_mask is not None:
            attended = mask_of("attention_mask", attention_mask, input_ids)
        number = attended.cumsum(-1)
        trained = (number[..., -1:] * self.config.train_fraction + 1e-6).floor().clamp(min=1)
        return attended & (number <= trained)

    @property
    def engine(self) -> Continues:
        """What runs the pass, built when it is first needed and anew when weights or configuration have changed."""
        config = self.config
        config.check()
        weights = tuple(
            (parameter.data_ptr(), 0 if parameter.is_inference() else parameter._version, parameter.dtype)
            for parameter in self.auxiliary.parameters()
        )
        # The knobs of the simulator may be there for later while another engine runs.
        known, given = ENGINES[config.engine].options(), config.construction
        options = {name: given[name] for name in known if name in given}
        key = config.rule, config.engine, options, weights
        if self._built is None or self._built[0] != key or self._built[1].auxiliary.has_changed():
            engine = make_engine(config.engine, self._describe(), config.rule, **options)
            assert isinstance(engine, Continues), "the configuration is checked for it"
            self._built = key, engine  # in a tuple, so that a simulator is no submodule
        return self._built[1]

    def _describe(self) -> Auxiliary:
        name = self.config.base_model or self.config.auxiliary.model_type
        return describe(self.auxiliary, check_model(self.auxiliary, name), name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_built": None}  # built again from the copy's own weights

    # Generation.

    def generate(self, inputs: Any = None, *others: Any, **options: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Learn from the prompt and continue it, by transformers' own `generate` and its options.

        Args:
            inputs: Prompts `[batch, tokens]`; also under the name `input_ids`. Pad them on the left.
            *others: Further positional arguments of transformers' `generate`.
            **options: Those of transformers' `generate`, and `attention_mask`, `train_mask` and `loss_mask`.
        """
        # There, whatever is no tensor fails somewhere in the middle.
        for name in ("input_ids", "attention_mask", "train_mask", "loss_mask"):
            if name in options:
                options[name] = as_optional_tensor(name, options[name])
        if (prompt := options.pop("input_ids", inputs)) is None:
            raise InputError("there are no input_ids; give a prompt to learn from and to continue")
        prompt = token_ids(prompt, self.engine.auxiliary)
        parent: Any = super()
        return parent.generate(prompt, *others, **options)

    def _prepare_cache_for_generation(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        generation_mode: Any,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        if generation_config.cache_implementation not in (None, "dynamic"):
            raise InputError(f"cache_implementation={generation_config.cache_implementation!r}: leave it out")
        if generation_config.prefill_chunk_size is not None:
            raise InputError("prefill_chunk_size: a prompt is learnt from as a whole; leave it out")
        given = model_kwargs.get("past_key_values")
        if given is not None:
            self._cache(given, True)
            given._is_user_defined = True
        elif generation_config.use_cache is not False:
            model_kwargs["past_key_values"] = TintCache()

    def prepare_inputs_for_generation(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, input_ids: Tensor, **kwargs: Any
    ) -> dict[str, Any]:
        kwargs.pop("tokenizer", None)  # with stop strings, `generate` hands it on
        parent: Any = super()
        inputs: dict[str, Any] = parent.prepare_inputs_for_generation(input_ids, **kwargs)
        cache = inputs.get("past_key_values")
        if cache is not None and cache.get_seq_length():  # the prompt has been learnt from
            inputs = {key: value for key, value in inputs.items() if key not in ("train_mask", "loss_mask")}
        return inputs

    def _update_model_kwargs_for_generation(
        self, outputs: Any, model_kwargs: dict[str, Any], is_encoder_decoder: bool = False, num_new_tokens: int = 1
    ) -> dict[str, Any]:
        """Without a cache every step learns from the prompt again, and never from what has been generated."""
        model_kwargs = super()._update_model_kwargs_for_generation(
            outputs, model_kwargs, is_encoder_decoder, num_new_tokens
        )
        if outputs.train_mask is not None:
            model_kwargs["train_mask"] = outputs.train_mask
            for name in ("train_mask", "loss_mask"):
                if model_kwargs.get(name) is not None:
                    model_kwargs[name] = functional.pad(model_kwargs[name], (0, num_new_tokens))
        return model_kwargs

    # Files.

    def save_pretrained(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        save_directory: str | os.PathLike[str],
        is_main_process: bool = True,
        state_dict: dict[str, Tensor] | None = None,
        push_to_hub: bool = False,
        max_shard_size: int | str = "5GB",
        **unknown: Any,
    ) -> None:
        """Write the base model's weights once, the configurations and a model card; see `files` for the layout.

        Args:
            save_directory: Where to.
            is_main_process: False writes nothing: one of several processes does.
            state_dict: Refused: the weights are the base model's own.
            push_to_hub: Refused: call `push_to_hub`.
            max_shard_size: The largest file of weights, in bytes or as "5GB".
            **unknown: Anything else that is not None is refused.
        """
        if push_to_hub:
            raise TintError("save_pretrained writes files alone; call push_to_hub(name) for the hub")
        if asked := sorted(key for key, value in unknown.items() if value is not None and key != "token"):
            raise TintError(f"{', '.join(asked)}: not an option of save_pretrained here")
        if state_dict is not None:
            raise TintError("state_dict: the weights are the base model's own; leave it out")
        if not is_main_process:
            return
        self.config.check()
        require_number(self.config.rule, "a saved model")
        self.config.architectures = [type(self).__name__]
        self.config.auxiliary.dtype = self.config.dtype = self.auxiliary.dtype
        checked_settings(self._describe())
        named = {files.PARAMETERS + name: tensor for name, tensor in self.auxiliary.named_parameters()}
        buffers = {files.BUFFERS + name: tensor for name, tensor in files.buffers(self.auxiliary).items()}
        files.write(
            given_path(save_directory),
            config=self.config,
            generation=self.generation_config,
            tensors={name: tensor.detach().cpu() for name, tensor in (named | buffers).items()},
            card=model_card(self.config),
            max_shard_size=max_shard_size,
        )

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike[str] | None, *model_args: Any, **options: Any
    ) -> Any:
        """Read what `save_pretrained` wrote, bit by bit the same: a directory, or a hub id.

        Args:
            pretrained_model_name_or_path: What `save_pretrained` wrote, or a hub id.
            *model_args: Refused: give options by their names.
            **options: `config`, `generation_config`, `dtype`, `device_map` (one device), `output_loading_info` and the
                hub's own (`revision`, `cache_dir`, `token`, ...) are as elsewhere; `engine`, `learning_rule`,
                `construction` and `train_fraction` replace those of the file.
        """
        if pretrained_model_name_or_path is None or model_args:
            raise LoadError("give the directory or the hub id of a Tint model, and options by their names")
        asked = files.PretrainedOptions.of(options)
        given_path(pretrained_model_name_or_path, LoadError)
        directory = files.find_directory(os.fspath(pretrained_model_name_or_path), **asked.hub)
        files.check_files(directory)
        config = files.read_config(directory, asked)
        stored = read_headers(directory)
        files.check_fit(config, stored, directory)
        with no_init_weights():
            model = cls(config)
        model.auxiliary.tie_weights()
        files.fill(model.auxiliary, stored)
        config.auxiliary.dtype = config.dtype = files.convert(model.auxiliary, asked.dtype)
        model.generation_config = asked.generation or files.read_generation(directory) or model.generation_config
        if asked.device is not None:
            cast(Any, model).to(asked.device)
        return (model.eval(), files.loading_report()) if asked.report else model.eval()

    # What transformers asks every model for.

    def get_input_embeddings(self) -> nn.Module:
        return self.auxiliary.get_input_embeddings()

    def get_output_embeddings(self) -> Any:
        return self.auxiliary.get_output_embeddings()

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        raise TintError("resize the embeddings of the base model, then make the Tint model anew")

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: all weights are the base model's."""


def _shared(model: Any) -> PreTrainedModel:
    """A model of its own around the same numbers: converting it, or putting it elsewhere, leaves the other alone."""
    memo: dict[int, Any] = {
        id(parameter): nn.Parameter(parameter.detach(), requires_grad=False) for parameter in model.parameters()
    }
    memo |= {id(buffer): buffer.detach() for buffer in model.buffers()}
    return copy.deepcopy(model, memo)


def _public_name(name: str) -> str:
    """A hub id or a bundled name as it is; of a path its last part, because cards are published."""
    return Path(name).name if user_path(name).exists() or name.startswith((".", "/", "~")) else name


register_model()
