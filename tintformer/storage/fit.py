"""Whether weights on disk are those of the model that their configuration describes: everything that is not, at once.

transformers fills what is missing with random numbers, leaves out what nothing asks for, and takes integers for
weights. A model that lost half of its layers that way still gives plausible numbers. Its own rules decide what belongs
where, since it renames what older versions wrote: it is asked to load the headers, as tensors without data, and its
report is read before there is any.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from tintformer.errors import LoadError, cause
from tintformer.storage.safetensors_headers import shorten
from tintformer.storage.untrusted import build_on_meta

if TYPE_CHECKING:
    from tintformer.storage.gguf_headers import GgufHeader
    from tintformer.storage.safetensors_headers import SafetensorsHeaders, Shapes

MOST_TABLES = 2**30
"""Bytes of buffers that a configuration may ask for without weights of that size beside it."""
DTYPES = ("F16", "BF16", "F32", "F64")
"""Of weights, as safetensors call them."""
_OLD_BUFFERS = (r"\.attn\.bias$", r"\.masked_bias$", r"rotary_emb\.inv_freq$")
"""Constants that versions of transformers long past wrote beside the weights."""


def check_config_matches_weights(config: Any, headers: SafetensorsHeaders, name: str) -> None:
    """Refuse files that are not the model which a configuration asks for, before a tensor is read."""
    model = _plan(config, headers, name)
    report = _rehearse(type(model), config, headers, name)
    if report is None:  # what bounds memory; the rest is found when the tensors have been read
        check_shapes({key: tuple(each.shape) for key, each in model.named_parameters()}, headers.shapes, name)
        _check_num_elements(model, headers, name)
    refuse_differences(model, report or {}, name, _wrong_dtypes(model, headers))


def check_tables(model: Any, num_bytes: int, where: str) -> None:
    """Refuse tables of positions that are larger than the weights beside them."""
    size = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    if size > max(MOST_TABLES, num_bytes):
        raise LoadError(f"{where} asks for {size} bytes of tables besides its weights")


def check_size(config: Any, header: GgufHeader, name: str) -> None:
    """Refuse a GGUF file whose settings ask for more than its tensors are."""
    _check_num_elements(_plan(config, header, name), header, name)


def _plan(config: Any, stored: SafetensorsHeaders | GgufHeader, name: str) -> Any:
    """The model that a configuration describes, without data, and no larger than the files account for."""
    model = build_on_meta(config, stored.num_tensors, f"{name}: its config.json")
    check_tables(model, stored.num_bytes, f"{name}: its config.json")
    return model


def _check_num_elements(model: Any, stored: SafetensorsHeaders | GgufHeader, name: str) -> None:
    num_elements = sum(parameter.numel() for parameter in model.parameters())
    # A factor of two is left for what files need not hold, such as a tied head.
    if num_elements > 2 * stored.num_elements:
        raise LoadError(
            f"{name}: its config.json asks for {num_elements} parameters, and its files hold {stored.num_elements}; "
            "put all files of one model there"
        )


def refuse_differences(model: Any, report: dict[str, Any], name: str, wrong_dtypes: Sequence[str] = ()) -> None:
    """Refuse whatever a loading report of transformers lists, and tensors of dtypes that are no weights'."""
    shapes = [
        f"{key}: {tuple(stored)} instead of {tuple(wanted)}"
        for key, stored, wanted in sorted(report.get("mismatched_keys", ()))
    ]
    left = sorted(key for key in report.get("unexpected_keys", ()) if not _is_ignored(model, key))
    found = {
        "lacks {} parameters of its model": sorted(report.get("missing_keys", ())),
        "holds {} tensors that its configuration does not ask for": left,
        "holds {} parameters of another shape than it asks for": shapes,
        "holds {} tensors that are no floating-point weights": wrong_dtypes,
    }
    reasons = [f"{text.format(len(names))} ({shorten(names)})" for text, names in found.items() if names]
    if reasons:
        raise LoadError(
            f"{name} {'; it '.join(reasons)}; put all files of one model there, in full or half precision, with the "
            "config.json that belongs to them"
        )


def refuse_untied(model: Any, name: str) -> None:
    """Refuse a checkpoint with two versions of weights that its configuration calls one."""
    for copy, source in model.get_expanded_tied_weights_keys(all_submodels=True).items():
        first, second = model.get_parameter(copy), model.get_parameter(source)
        if first is not second and not first.is_meta and not torch.equal(first, second.to(first.device)):
            raise LoadError(
                f"{name} holds other numbers in {copy} than in {source}, which its config.json calls one weight; set "
                "tie_word_embeddings to false there if both are meant"
            )


def _rehearse(model_class: Any, config: Any, headers: SafetensorsHeaders, name: str) -> dict[str, Any] | None:
    """The report of transformers on loading tensors without data; None where accelerate, which it needs, is missing."""
    if find_spec("accelerate") is None:
        return None
    state = {key: torch.empty(shape, device="meta") for key, shape in headers.shapes.items()}
    try:
        with _silent_transformers():
            return model_class.from_pretrained(
                None,
                config=config,
                state_dict=state,
                device_map={"": "meta"},
                dtype=torch.float32,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )[1]
    except Exception as error:  # every family's code finds other faults in other ways
        raise LoadError(f"{name}: its weights do not fit its config.json: {cause(error)}") from error


def check_shapes(expected: Shapes, stored: Shapes, name: str) -> None:
    """Refuse stored parameters of another shape than the one that the configuration asks for."""
    wrong = [key for key in sorted(expected.keys() & stored.keys()) if expected[key] != stored[key]]
    if wrong:
        raise LoadError(
            f"{name} holds {len(wrong)} parameters of another shape than its config.json asks for, the first of them "
            f"{wrong[0]}: {stored[wrong[0]]} instead of {expected[wrong[0]]}; put the files of one model there"
        )


def _wrong_dtypes(model: Any, headers: SafetensorsHeaders) -> list[str]:
    """Quantised codes, truth values and the like, but for what the class does not read."""
    asked = set(model.state_dict())
    return [
        f"{key}: {dtype}"
        for key, dtype in sorted(headers.dtypes.items())
        if dtype not in DTYPES and (_spellings(model, key) & asked or not _is_ignored(model, key))
    ]


def _is_ignored(model: Any, key: str) -> bool:
    """Whether a stored tensor is a constant that the class makes itself."""
    patterns: Iterable[str] = (*(model._keys_to_ignore_on_load_unexpected or ()), *_OLD_BUFFERS)
    buffers = {name for name, _ in model.named_buffers()}
    return bool(_spellings(model, key) & buffers) or any(re.search(pattern, key) for pattern in patterns)


def _spellings(model: Any, key: str) -> set[str]:
    """The names that a stored tensor may have in a model: with and without the name of the model inside of it."""
    prefix = f"{model.base_model_prefix}."
    return {key, prefix + key, key.removeprefix(prefix)}


@contextmanager
def _silent_transformers() -> Generator[None]:
    """No table and no bar of what is only rehearsed."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars
    from transformers.utils import logging as messages

    logger = logging.getLogger("transformers")
    level, had_bars, hub_had_none = logger.level, messages.is_progress_bar_enabled(), are_progress_bars_disabled()
    logger.setLevel(logging.CRITICAL)
    messages.disable_progress_bar()
    try:
        yield
    finally:
        logger.setLevel(level)
        with warnings.catch_warnings():  # the hub's bars cannot be switched on where a variable forbids them
            warnings.simplefilter("ignore")
            if had_bars:
                messages.enable_progress_bar()
            if hub_had_none:
                disable_progress_bars()
