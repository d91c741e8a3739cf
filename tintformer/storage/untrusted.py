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

    from tintformer.storage.safetensors_headers import SafetensorsHeaders, Shapes

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MAX_SIZE = 2**24
"""Of anything that is counted. The largest vocabularies of the supported families are a sixtieth of it."""
MAX_REPEATED = 4096
"""Of what is built or listed one by one: layers and heads."""
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
        maximum = MAX_REPEATED if repeated else MAX_SIZE
        sizes = [abs(number) for number in _integers_in(value)]
        # GPT-Neo's attention_types repeats each of its entries, so what they add up to counts.
        size = sum(sizes) if repeated else max(sizes, default=0)
        if size > maximum:
            raise LoadError(f"{where} asks for {key} {size}: more than {maximum} is no model of these families")


def _family_has(model_type: Any, key: str) -> bool:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in families():
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


def check_config_matches_weights(config: Any, headers: SafetensorsHeaders, name: str) -> None:
    """Compare what a configuration asks for with the files: shapes under equal names, and the total size.

    Names may differ, since transformers renames what older versions wrote; it reports what is missing when it has read
    the rest. Here it matters that no configuration takes more memory than its files account for; a factor of two is
    left for what files need not hold, such as a tied head.
    """
    model = build_on_meta(config, len(headers.shapes), f"{name}: its config.json")
    check_shapes({key: tuple(each.shape) for key, each in model.named_parameters()}, headers.shapes, name)
    num_elements = sum(parameter.numel() for parameter in model.parameters())
    if num_elements > 2 * headers.num_elements:
        raise LoadError(
            f"{name}: its config.json asks for {num_elements} parameters, and its files hold {headers.num_elements}; "
            "put all files of one model there"
        )


def check_shapes(expected: Shapes, stored: Shapes, name: str) -> None:
    """Refuse stored parameters of another shape than the one that the configuration asks for."""
    wrong = [key for key in sorted(expected.keys() & stored.keys()) if expected[key] != stored[key]]
    if wrong:
        raise LoadError(
            f"{name} holds {len(wrong)} parameters of another shape than its config.json asks for, the first of them "
            f"{wrong[0]}: {stored[wrong[0]]} instead of {expected[wrong[0]]}; put the files of one model there"
        )


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
