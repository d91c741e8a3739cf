"""Configurations by name or path: a model is described and counted without its weights and without the hub."""

from __future__ import annotations

import os
from copy import deepcopy
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tintformer.bundled import BUNDLED, bundled_directory
from tintformer.errors import LoadError, TintError, cause, nearest
from tintformer.storage.packages import PACKAGES, model_directory
from tintformer.storage.untrusted_files import user_path

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

    from tintformer.auxiliary.description import Auxiliary


def _read_known_models() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load((files("tintformer.storage") / "known_models.yaml").read_text(encoding="utf-8"))
    return {
        name: {
            "model_type": group["model_type"],
            **dict(zip(group["columns"], values, strict=True)),
            **group.get("shared", {}),
        }
        for group in groups
        for name, values in group["models"].items()
    }


KNOWN_MODELS = _read_known_models()
"""The settings of well-known checkpoints, `model_type` among them, by hub id."""

CGROUP = Path("/sys/fs/cgroup/memory.max")

_EXAMPLES = ("openai-community/gpt2", "facebook/opt-125m", "EleutherAI/pythia-70m", "meta-llama/Llama-3.2-1B")

_BY_NAME = {spelling.lower(): name for name in KNOWN_MODELS for spelling in (name, name.rpartition("/")[2])}
"""Hub ids by what a user may write: the id, or the part behind the owner, in any case."""


def near_model(name: str) -> str:
    """For a message about an unknown model: the bundled, fetched or well-known one that may have been meant."""
    return nearest(name, (*_BY_NAME, *KNOWN_MODELS, *BUNDLED, *PACKAGES))


def known_config(name: str) -> PretrainedConfig | None:
    """The configuration of a well-known checkpoint, by its hub id or the part behind the owner; None if unknown.

    It holds what shapes the computation. Token ids, dropout and the like are the family's defaults.
    """
    found = _BY_NAME.get(name.lower())
    if found is None:
        return None
    from transformers import AutoConfig  # which takes seconds, and no unknown name is worth them

    # A copy: configurations keep nested settings as they get them, and a user may change them.
    return AutoConfig.for_model(**deepcopy(KNOWN_MODELS[found]))


def read_config(name_or_path: str | os.PathLike[str]) -> PretrainedConfig:
    """The configuration of a supported model: a directory with config.json, a JSON file, a bundled or a known name.

    What exists on disk comes first, as for `load`. Nothing is fetched.
    """
    path, name = user_path(name_or_path, LoadError), os.fspath(name_or_path)
    if not path.exists():
        path = bundled_directory(name) or path
    config = _read_path(path) if path.exists() else known_config(name)
    if config is None:
        raise LoadError(
            f"no configuration for {name!r}: it is no directory, no file and none of the {len(KNOWN_MODELS)} names "
            f"known here (such as {', '.join(_similar(name))}); nothing is fetched, so give a directory with "
            "config.json or a JSON file"
        )
    from tintformer.auxiliary.validation import find_family  # as late as transformers

    find_family(config, name)
    return config


def meta_auxiliary(config: PretrainedConfig, name: str, dtype: torch.dtype | None = None) -> Auxiliary:
    """The description of a model without data: shapes and wiring as they would be, at any size, in a second.

    It is a float32 model unless `dtype` says otherwise.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from tintformer.auxiliary.describe import describe
    from tintformer.auxiliary.validation import find_family

    family = find_family(config, name)
    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype or torch.float32)
    except Exception as error:  # every family's code finds other faults in other ways
        raise LoadError(f"transformers cannot build {name} from its configuration: {cause(error)}") from error
    return describe(model.eval(), family, name)


def total_memory() -> int:
    """All that this process could ever have: the machine's, or what its container is allowed."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = CGROUP.read_text().strip() if CGROUP.exists() else "max"
    return min(machine, int(limit)) if limit.isdigit() else machine


def refuse_the_impossible(model: str, dtype: torch.dtype) -> None:
    """Refuse a model whose weights alone this machine could never hold, before they are read or fetched.

    What is in doubt may try: nobody else's memory counts, and a model whose configuration is not at hand passes.
    """
    path, memory = user_path(model), total_memory()
    directory = path if path.is_dir() else model_directory(model)
    if directory and sum(file.stat().st_size for file in directory.iterdir()) < memory / 16:
        return  # with room to spare: no need to spend a second on it
    try:
        weights = meta_auxiliary(read_config(model), model).model.num_parameters() * dtype.itemsize
    except TintError:
        return  # whoever does the work says what is wrong, and knows more
    if weights > memory:
        raise LoadError(
            f"the weights of {model} take {weights / 1e9:,.2f} GB in {str(dtype).removeprefix('torch.')}, but there "
            f"are {memory / 1e9:,.2f} GB; load them in bfloat16, or take a smaller model"
        )


def _read_path(path: Path) -> PretrainedConfig:
    from transformers import AutoConfig

    from tintformer.storage.untrusted import refuse_code_and_huge_sizes
    from tintformer.storage.untrusted_files import read_foreign_json

    file = path / "config.json" if path.is_dir() else path
    if not file.exists():
        raise LoadError(f"{path} holds no config.json; give a directory that has one, or a JSON file")
    settings = read_foreign_json(file)
    if not isinstance(settings, dict) or "model_type" not in settings:
        raise LoadError(f"{file} does not say its model_type; give the config.json of a Hugging Face model")
    refuse_code_and_huge_sizes(settings, str(file))
    try:
        return AutoConfig.from_pretrained(file, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # every family's configuration checks other things in other ways
        raise LoadError(f"{file} is no configuration that transformers can read: {cause(error)}") from error


def _similar(name: str, count: int = 4) -> list[str]:
    """A few known names, the ones that look like `name` first."""
    spellings = _BY_NAME | {bundled: bundled for bundled in BUNDLED}
    close = [spellings[spelling] for spelling in get_close_matches(name.lower(), spellings, n=count)]
    return list(dict.fromkeys((*close, *_EXAMPLES)))[:count]
