"""Makes transformers' auto classes know a Tint model, as soon as they are there and not before.

`import tintformer` must stay light, so it cannot import the auto classes to register with them. Where they have been
imported already they are told at once. Otherwise a finder waits for the two modules that define them: it lets the
usual import find them, and registers when they have run. Either way a user needs `import tintformer` and no more.

Our classes import transformers, and it may import the auto classes on the way: whichever of the two is there last does
it, at the end of its module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def register_config() -> None:
    """Tell AutoConfig of our configuration, once both are there."""
    auto = _there("transformers.models.auto.configuration_auto", "AutoConfig")
    if auto is not None:
        from tintformer.transformers import config

        if hasattr(config, "TintConfig"):
            auto.register(config.MODEL_TYPE, config.TintConfig, exist_ok=True)


def register_model() -> None:
    """Tell AutoModelForCausalLM of our model, once both are there."""
    auto = _there("transformers.models.auto.modeling_auto", "AutoModelForCausalLM")
    if auto is not None:
        from tintformer.transformers import model

        if hasattr(model, "TintForCausalLM"):
            auto.register(model.TintConfig, model.TintForCausalLM, exist_ok=True)


def _there(module: str, name: str) -> Any:
    """A class of a module that has been imported as far as the class; otherwise None."""
    return getattr(sys.modules.get(module), name, None)


_WAITING: dict[str, Callable[[], None]] = {
    "transformers.models.auto.configuration_auto": register_config,
    "transformers.models.auto.modeling_auto": register_model,
}
"""What to do once a module is there."""


class _Finder:  # no MetaPathFinder, which brings in more than all else that `tint` needs to say that it is there
    """Finds nothing of its own; it only adds a last step to the import of the modules that are waited for."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _WAITING:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        run = loader.exec_module

        def run_and_register(module: ModuleType) -> None:
            loader.exec_module = run
            run(module)
            _WAITING[fullname]()

        loader.exec_module = run_and_register
        return spec


def register_when_imported() -> None:
    """Register with what has been imported; wait for the rest."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    for name, register in _WAITING.items():
        if name in sys.modules:
            import_module(name)  # which waits for a thread that is still at it
            register()
