"""Configurations that somebody else wrote, checked before a class is built from them or memory is taken.

A configuration is a few lines that anyone may have written; some families make a list as long as its number of layers.
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

    from tintformer.storage.safetensors_headers import Stored

MOST = 2**24
"""Of anything that is counted. The largest of the supported families stay a hundredfold below."""
MOST_REPEATED = 4096
"""Of what is built or listed one by one: layers and heads."""
_REPEATED = ("layer", "head", "attention_types")
_FREQUENCIES = ("rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base")
"""Base frequencies are written as whole numbers too, and nothing is as large as they are."""
_CODE = ("auto_map", "custom_pipelines", "trust_remote_code")


def check_settings(settings: dict[str, Any], where: str) -> None:
    """Refuse code, and sizes that no supported model has; `where` the settings stand is for the message.

    Keys that the family does not know have no effect, and many published configurations have some.
    """
    for key in _CODE:
        if key in settings:
            raise LoadError(f"{where} asks for code of its own ({key}), and none is run: take {key} out of it")
    for key, value in settings.items():
        if key in _FREQUENCIES or not _is_known(settings.get("model_type"), key):
            continue
        repeated = any(part in str(key) for part in _REPEATED) and not str(key).endswith(("_dim", "_eps", "_epsilon"))
        most = MOST_REPEATED if repeated else MOST
        numbers = [abs(number) for number in _numbers(value)]
        largest = sum(numbers) if repeated else max(numbers, default=0)
        if largest > most:
            raise LoadError(f"{where} asks for {key} {largest}: more than {most} is no model of these families")


def _is_known(model_type: Any, key: str) -> bool:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in families():
        return True
    known: Any = CONFIG_MAPPING[model_type]
    return hasattr(known, key) or key in known.attribute_map


def read_settings(settings: Any, where: str, name: str) -> PreTrainedConfig:
    """The configuration of a supported family from its plain values."""
    from transformers import AutoConfig

    if not isinstance(settings, dict):
        raise LoadError(f"{where} is no configuration of a model")
    model_type = settings.get("model_type")
    if model_type not in families():
        known = ", ".join(sorted(families()))
        raise UnsupportedModelError(name, [f"model_type {model_type!r} is not a known family; known are {known}"])
    check_settings(settings, where)
    try:
        config = AutoConfig.for_model(**settings)
    except Exception as error:  # every family's configuration checks other things in other ways
        raise LoadError(f"the configuration of {name} cannot be read: {cause(error)}") from error
    find_family(config, name)
    return config


def outline(config: Any, num_tensors: int, where: str) -> Any:
    """The model that a configuration describes, without data; no more layers than there are tensors for."""
    from transformers import AutoModelForCausalLM

    layers: int = config.num_hidden_layers
    if layers > num_tensors:
        raise LoadError(f"{where} asks for {layers} layers, but {num_tensors} tensors are there")
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except Exception as error:  # every family's code finds other faults in other ways
        raise LoadError(f"{where} describes no model that can be built: {cause(error)}") from error


def check_fit(config: Any, stored: Stored, name: str) -> None:
    """Compare what a configuration asks for with what is there: shapes under equal names, and the sum of all.

    Names may differ, since transformers renames what older versions wrote; it tells what is missing when it has read
    the rest. Here it matters that no configuration takes more memory than its files account for.
    """
    model = outline(config, len(stored.shapes), f"{name}: its config.json")
    asked = {key: tuple(parameter.shape) for key, parameter in model.named_parameters()}
    check_shapes(asked, stored.shapes, name)
    wanted = sum(parameter.numel() for parameter in model.parameters())
    if wanted > 2 * stored.num_numbers:
        raise LoadError(
            f"{name}: its config.json asks for {wanted} numbers, and its files hold {stored.num_numbers}; "
            "put all files of one model there"
        )


def check_shapes(asked: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]], name: str) -> None:
    """Refuse parameters of another shape than the one that is asked for."""
    misfits = [key for key in sorted(asked.keys() & found.keys()) if asked[key] != found[key]]
    if misfits:
        raise LoadError(
            f"{name} holds {len(misfits)} parameters of another shape than its config.json asks for, the first of them "
            f"{misfits[0]}: {found[misfits[0]]} instead of {asked[misfits[0]]}; put the files of one model there"
        )


def _numbers(value: Any) -> Iterator[int]:
    """Every whole number in a value, at any depth."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _numbers(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _numbers(each)
