"""Configurations that somebody else wrote, checked before a class is built from them or memory is allocated.

Whoever publishes a model chooses its config.json, which could name Python code of its own for transformers to run
(`auto_map`), ask for so many layers, heads or coordinates that building the model takes all memory (some families list
their layers), or describe another model than the weights beside it, so that transformers fills the rest with random
numbers. Each is refused with one line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from tintformer.auxiliary.families import families
from tintformer.auxiliary.validation import find_family
from tintformer.errors import LoadError, UnsupportedModelError, cause

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MAX_SIZE = 2**24
"""Of anything that is counted. The largest vocabularies of the supported families are a sixtieth of it."""
MAX_REPEATED = 4096
"""Of what is built or listed one by one: layers and heads."""
MAX_LABELS = 2**16
"""Of a classifier, each of which becomes an entry in two tables of names; here they have no use."""
MAX_BRANCHES = 256
"""Of sequences that a prompt becomes, and of tokens that are guessed ahead: every one is computed with at once."""
_BRANCHES = (
    "num_beams",
    "num_beam_groups",
    "num_return_sequences",
    "num_assistant_tokens",
    "prompt_lookup_num_tokens",
    "max_matching_ngram_size",
    "assistant_lookbehind",
    "target_lookbehind",
    "ngram_len",
)
_LENGTHS = ("max_length", "max_new_tokens", "min_length", "min_new_tokens", "max_cache_len", "prefill_chunk_size")
_TABLES = ("sampling_table_size", "context_history_size", "context_width")
"""Of watermarks."""
_REPEATED = ("layer", "head", "attention_types")
_FREQUENCIES = ("rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base")
"""Base frequencies are written as integers too, are larger than any size, and allocate nothing."""
_CODE = ("auto_map", "custom_pipelines", "trust_remote_code")


def refuse_code_and_huge_sizes(settings: dict[str, Any], where: str) -> None:
    """Refuse custom code, and sizes that no supported model has; `where` the settings stand is for the message.

    Keys that the family does not know have no effect, and many published configurations have some.
    """
    for key in _CODE:
        if key in settings:
            raise LoadError(f"{where} asks for code of its own ({key}), and none is run: take {key} out of it")
    for key, value in settings.items():
        if key in _FREQUENCIES or not _family_has(settings.get("model_type"), key):
            continue
        repeated = any(part in str(key) for part in _REPEATED) and not str(key).endswith(("_dim", "_eps", "_epsilon"))
        maximum = MAX_REPEATED if repeated else MAX_LABELS if key == "num_labels" else MAX_SIZE
        sizes = [abs(number) for number in _integers_in(value)]
        # GPT-Neo's attention_types repeats each of its entries, so what they add up to counts.
        size = sum(sizes) if repeated else max(sizes, default=0)
        if size > maximum:
            raise LoadError(f"{where} asks for {key} {size}: more than {maximum} is no model of these families")
    refuse_huge_generation(settings, where)


def refuse_huge_generation(settings: Any, where: str) -> None:
    """Refuse what makes generation take all memory before its first token; old models have it in their config.json."""
    if not isinstance(settings, dict):
        raise LoadError(f"{where} holds no settings; it must be a JSON object")
    limits: dict[str, int] = {key: MAX_BRANCHES for key in _BRANCHES} | {key: MAX_SIZE for key in (*_LENGTHS, *_TABLES)}
    asked: dict[str, float] = {}
    for key, value in _numbers_by_key(settings):
        asked[key] = max(value, asked.get(key, 0))
    for key, value in asked.items():
        if value > limits.get(key, value):
            raise LoadError(f"{where} asks for {key} {value:g} when it generates; at most {limits[key]} are allowed")
    # Beam search allocates the whole result, of every beam, at its start.
    beams, length = asked.get("num_beams", 1), max(asked.get("max_length", 0), asked.get("max_new_tokens", 0))
    if beams > 1 and beams * length > MAX_SIZE:
        raise LoadError(f"{where} asks for {beams:g} beams of {length:g} tokens; make one of them smaller")


def _numbers_by_key(settings: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Every number with the name it has, at any depth: watermarks and caches have settings of their own."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _numbers_by_key(value)
        elif isinstance(value, int | float):
            yield key, value


def _family_has(model_type: Any, key: str) -> bool:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if not isinstance(model_type, str) or model_type not in families():
        return True  # every key may matter
    config_class: Any = CONFIG_MAPPING[model_type]
    return hasattr(config_class, key) or key in config_class.attribute_map


def build_config(settings: Any, where: str, name: str) -> PreTrainedConfig:
    """The configuration of a supported family from its settings as JSON gives them, checked first."""
    from transformers import AutoConfig

    if not isinstance(settings, dict):
        raise LoadError(f"{where} is no configuration of a model")
    model_type = settings.get("model_type")
    if model_type not in families():
        known = ", ".join(sorted(families()))
        raise UnsupportedModelError(name, [f"model_type {model_type!r} is not a known family; known are {known}"])
    refuse_code_and_huge_sizes(settings, where)
    try:
        config = AutoConfig.for_model(**settings)
    except Exception as error:  # every family's configuration checks other things in other ways
        raise LoadError(f"the configuration of {name} cannot be read: {cause(error)}") from error
    find_family(config, name)
    return config


def read_dtype(found: Any, where: str) -> torch.dtype:
    """The dtype of weights that a file or a caller names; one in which nothing here computes is refused."""
    dtype = getattr(torch, found, None) if isinstance(found, str) else found
    if dtype not in DTYPES:
        known = ", ".join(str(each).removeprefix("torch.") for each in DTYPES)
        raise LoadError(f"{where}={found!r:.40} is not a floating-point type that models have; choose one of {known}")
    return dtype


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds neither NaN nor infinity, in no memory and at the speed of reading it."""
    return not tensor.numel() or all(bool(torch.isfinite(end)) for end in tensor.aminmax())


def build_on_meta(config: Any, num_tensors: int, where: str) -> Any:
    """The model that a configuration describes, without data; no more layers than there are tensors for."""
    from transformers import AutoModelForCausalLM

    # Parameters on the meta device take no memory, but the modules that hold them do.
    layers: int = config.num_hidden_layers
    if layers > num_tensors:
        raise LoadError(f"{where} asks for {layers} layers, but {num_tensors} tensors are there")
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except Exception as error:  # every family's code finds other faults in other ways
        raise LoadError(f"{where} describes no model that can be built: {cause(error)}") from error


def _integers_in(value: Any) -> Iterator[int]:
    """Every integer in a value, at any depth."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _integers_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _integers_in(each)
