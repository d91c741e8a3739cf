"""`load`: a hub id, a local directory, a bundled or fetched name or a Hugging Face object becomes an auxiliary."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from tintformer.auxiliary.describe import describe
from tintformer.auxiliary.description import Auxiliary
from tintformer.auxiliary.validation import COMPUTED, check_model, find_family
from tintformer.errors import LoadError, TintError, brief, cause
from tintformer.storage.fit import check_config_matches_weights, check_size, refuse_differences, refuse_untied
from tintformer.storage.gguf_headers import read_gguf_header
from tintformer.storage.packages import find_model
from tintformer.storage.safetensors_headers import INDEX, read_headers, refuse_adapters
from tintformer.storage.tokenizers import find_tokenizer, find_tokenizer_of_object
from tintformer.storage.unpacking import plain_copy, unpack
from tintformer.storage.untrusted import refuse_code_and_huge_sizes, refuse_huge_generation
from tintformer.storage.untrusted_files import check_model_files, read_foreign_json
from tintformer.typed_fields import checked

SIMULATOR_FORMAT = "tintformer simulator"
"""What the config.json of a saved simulator says of itself: such a directory holds no auxiliary of its own."""
DeviceMap = str | Mapping[str, int | str | torch.device]


def load(
    model: Any,
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device | None = None,
    device_map: DeviceMap | None = None,
    tokenizer: Any = None,
) -> Auxiliary:
    """Describe a model: a hub id, a directory (safetensors, or one GGUF file), a bundled or fetched name, an HF object.

    Names and paths load in float32 unless `dtype` says otherwise; an object keeps its dtype and device, shares its
    tensors and is never modified. Nothing is fetched unless a name needs the hub; no remote code, no pickles.

    Args:
        model: A hub id (`gpt2`), a directory with safetensors or one GGUF file, a bundled name (`nano-gpt2`,
            `nano-llama`), a name that `tint fetch` has brought (`smollm2-135m`), or a transformers model. What exists
            on disk comes before every name. An `Auxiliary` is returned as it is.
        dtype: A floating-point type of torch; None is float32 for names and paths.
        device: Where the whole model goes: "cpu", "cuda", "cuda:1", a `torch.device`; None leaves it on the CPU, and
            "auto" is that of `device_map`.
        device_map: Spreads a model that is larger than one device, as in transformers: "auto", or devices by module.
            What it leaves on the CPU beside other devices is brought to them whenever it is read. Not together with
            `device`. An object that accelerate has dispatched stays as it is.
        tokenizer: The model's, a transformers object; a name or a path brings its own, found when it is first used.
    """
    if isinstance(model, Auxiliary):
        return _with_tokenizer(model, tokenizer)
    checked("dtype", dtype, torch.dtype | None, LoadError)
    if device == "auto" and device_map is None:
        device, device_map = None, "auto"
    if not isinstance(model, str | os.PathLike):
        return _with_tokenizer(_load_object(model, dtype, device if device_map is None else device_map), tokenizer)
    checked_map = _check_device_map(device, device_map)
    check_device(device)
    auxiliary = _load_name(os.fspath(model), dtype or torch.float32, device, checked_map)
    return _with_tokenizer(auxiliary, tokenizer)


def _with_tokenizer(auxiliary: Auxiliary, tokenizer: Any) -> Auxiliary:
    if tokenizer is None:
        return auxiliary
    from transformers import PreTrainedTokenizerBase

    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise LoadError(f"tokenizer={brief(tokenizer)} is no tokenizer of transformers; give the object, not its name")
    # Callables that can be pickled: models are sent to other processes.
    return replace(auxiliary, open_tokenizer=partial(_itself, tokenizer))


def _itself(tokenizer: Any) -> Any:
    return tokenizer


def _load_object(model: Any, dtype: torch.dtype | None, device: Any) -> Auxiliary:
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise LoadError(f"cannot load a {type(model).__name__}; pass {_what_to_pass(model)}")
    if dtype is not None or device is not None:
        raise LoadError("a model object keeps its dtype and device; convert it before, e.g. model.to(torch.float32)")
    path = getattr(model, "name_or_path", "")
    name = path or type(model).__name__
    auxiliary = describe(model, check_model(model, name), name)
    return replace(auxiliary, open_tokenizer=partial(find_tokenizer_of_object, str(path)))


def _what_to_pass(model: Any) -> str:
    """In place of an object that is no transformers model, but may hold one."""
    for attribute, what in (
        ("merge_and_unload", "the model with its adapter merged: model.merge_and_unload()"),
        ("_orig_mod", "the model that was compiled: model._orig_mod"),
        ("module", "the model inside of it: model.module"),
    ):
        if hasattr(model, attribute):
            return what
    return "a name, a directory or a transformers model"


def check_device(device: str | torch.device | None) -> None:
    """Refuse a device that is not here, or that holds no numbers, before a model is read for it."""
    if device is None or device == "auto":
        return
    try:
        torch.empty(1, device=device)
        reason = "it holds no numbers" if torch.device(device).type == "meta" else None
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError) as error:  # each device its own
        reason = cause(error).partition(". ")[0].partition("\n")[0]
    if reason is not None:
        count = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
        kind = torch.accelerator.current_accelerator() if count else None
        here = ["cpu", *(f"{kind}:{number}" for number in range(count))]
        raise LoadError(f"device={brief(str(device))} cannot be used here ({reason}); there are {', '.join(here)}")


def _check_device_map(device: Any, device_map: DeviceMap | None) -> Any:
    """The map as transformers takes it."""
    if device_map is None:
        return None
    if device is not None:
        raise LoadError("device and device_map say the same thing; give one of them")
    if find_spec("accelerate") is None:
        raise LoadError("device_map needs the package accelerate: pip install accelerate")
    if isinstance(device_map, Mapping) and "disk" in device_map.values():
        raise LoadError("device_map puts parts on disk, from where every step would read them; leave them on the cpu")
    return device_map if isinstance(device_map, str) else dict(device_map)


@contextmanager
def _bars_on_terminals() -> Generator[None]:
    """Let transformers draw its bars on a terminal alone: in a file every redraw is noise."""
    from transformers import modeling_gguf_pytorch_utils
    from transformers.utils import logging as messages

    gguf_reader: Any = modeling_gguf_pytorch_utils
    with ExitStack() as stack:
        # What tqdm makes of None: it looks at the stream.
        if hasattr(messages, "set_tqdm_hook"):  # not in older versions
            hook = messages.set_tqdm_hook(lambda make, given, options: make(*given, **{"disable": None, **options}))
            stack.callback(messages.set_tqdm_hook, hook)
        if hasattr(gguf_reader, "tqdm"):  # of its own, which no hook sees
            stack.callback(setattr, gguf_reader, "tqdm", gguf_reader.tqdm)
            gguf_reader.tqdm = partial(gguf_reader.tqdm, disable=None)
        yield


@_bars_on_terminals()
def _load_name(name: str, dtype: torch.dtype, device: Any, device_map: Any) -> Auxiliary:
    if dtype not in COMPUTED:
        raise LoadError(f"dtype={dtype} is not a floating-point type that torch computes in; use torch.float32")
    given = directory = find_model(name)
    if gguf := _gguf_file(directory):  # the first load makes a plain copy of it
        directory = plain_copy(gguf) or unpack_gguf(gguf)
    is_checked = directory != given  # when the copy was made
    model = _read_files(directory, dtype, device_map, is_checked=is_checked)
    if device is not None:
        model.to(device)
    # Finite in float32, which goes beyond float16.
    family = check_model(model, name, finite=is_checked and dtype.itemsize >= 4)
    return replace(describe(model, family, name), open_tokenizer=partial(find_tokenizer, name))


@_bars_on_terminals()
def unpack_gguf(file: Path, *, thorough: bool = False) -> Path:
    """The directory with the plain copy of a GGUF file, or the file's own where no copy can be kept.

    `thorough` compares every byte of a copy that is there with what was written, and makes a damaged one again.
    """
    if find_spec("gguf") is None:
        raise LoadError(f"{file.parent} holds a GGUF file; install the package gguf: pip install 'tintformer[eval]'")

    def read(directory: Path) -> Any:
        model = _read_files(directory, torch.float32)
        check_model(model, str(directory))
        return model

    return unpack(file, 4 * read_gguf_header(file).num_elements, read, thorough=thorough)


def _read_files(directory: Path, dtype: torch.dtype, device_map: Any = None, *, is_checked: bool = False) -> Any:
    """The model in evaluation mode, checked from the cheapest to the dearest: settings, headers of files, weights."""
    from transformers import AutoModelForCausalLM

    name, gguf = str(directory), _gguf_file(directory)
    # A model's own code may do anything, and compute something else than the family that is described here.
    options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    if gguf is not None:
        options["gguf_file"] = gguf.name
    try:
        config = None if is_checked else _checked_config(directory, gguf, options)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            name,
            config=config if gguf is not None else None,  # transformers takes long to find it in a GGUF file again
            dtype=dtype,
            device_map=device_map,
            use_safetensors=True,  # never pickles, which can run anything when they are opened
            output_loading_info=True,
            # Otherwise transformers raises an error that refers to a table in its log; this report is plainer.
            ignore_mismatched_sizes=True,
            **options,
        )
        model, report = loaded
        refuse_differences(model, report, name)
        refuse_untied(model, name)
    except TintError:
        raise
    except Exception as error:  # transformers raises whatever its file readers raise
        raise LoadError(
            f"cannot read {name}: {cause(error)}; if its files are damaged or incomplete, copy or download them again"
        ) from error
    return _unquantised(model).eval()


def _checked_config(directory: Path, gguf: Path | None, options: dict[str, Any]) -> Any:
    """The configuration of a model; refused before a tensor is read if it asks for too much, or for another model."""
    from transformers import AutoConfig, PreTrainedConfig

    name = str(directory)
    if gguf is None:
        header, where = None, f"{name}: its config.json"
        read_foreign_json(directory / "config.json")
    else:
        header, where = read_gguf_header(gguf), str(gguf)
    # As plain values first: a configuration's class may allocate what its numbers ask for when it is made.
    settings = PreTrainedConfig.get_config_dict(name, **options)[0]
    refuse_code_and_huge_sizes(settings, where)
    generation = directory / "generation_config.json"
    if generation.exists():
        refuse_huge_generation(read_foreign_json(generation), str(generation))
    config = AutoConfig.from_pretrained(name, **options) if header is None else AutoConfig.for_model(**settings)
    find_family(config, name)
    # transformers allocates what the configuration asks for, not what the files hold.
    if header is None:
        check_config_matches_weights(config, read_headers(directory), name)
    else:
        check_size(config, header, name)
    return config


def _unquantised(model: Any) -> Any:
    """A model that was dequantised as it was read, without the marks that keep transformers from saving it."""
    if quantizer := getattr(model, "hf_quantizer", None):
        quantizer.remove_quantization_config(model)
    return model


def _gguf_file(directory: Path) -> Path | None:
    """The GGUF file of a directory; None if it holds safetensors. A directory with neither is refused."""
    if not directory.is_dir():
        raise LoadError(f"{directory} is a file; give the directory that holds it")
    check_model_files(directory)
    if is_simulator(directory):
        raise LoadError(
            f"{directory} holds a simulator, not a model; open it with tintformer.Simulator.from_pretrained"
        )
    refuse_adapters(directory)
    files = sorted(path.name for path in directory.iterdir())
    quantised = [file for file in files if file.endswith(".gguf")]
    if any(file.endswith((".safetensors", INDEX)) for file in files):
        return None
    if len(quantised) == 1:
        return directory / quantised[0]
    if quantised:
        raise LoadError(f"{directory} holds {len(quantised)} GGUF files ({', '.join(quantised)}); keep one")
    raise LoadError(f"{directory} holds no safetensors and no GGUF file (pickled weights are not read)")


def is_simulator(directory: Path) -> bool:
    """Whether a directory holds a simulator, by its configuration alone."""
    try:
        config = read_foreign_json(directory / "config.json")
    except LoadError:
        return False
    return isinstance(config, dict) and config.get("format") == SIMULATOR_FORMAT
