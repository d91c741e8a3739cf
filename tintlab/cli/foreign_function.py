"""A function of the user's own, named `module:function` on the command line: the one thing that is imported by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tintformer.cli.rule_setup import quiet_libraries
from tintformer.errors import InputError, TintError, brief, cause


@contextmanager
def imported(name: str) -> Generator[Callable[..., Any]]:
    """The function that `module:function` names; the current directory can be imported from as long as it is used."""
    module, _, function = name.partition(":")
    is_path = module.endswith(".py")
    if is_path or not function.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise InputError(f"--score {brief(name)} must be module:function, such as my_scores:score for my_scores.py")
    quiet_libraries()
    here = str(Path.cwd())
    # Last, so that a file there never takes the place of an installed package.
    sys.path.append(here)
    try:
        found = getattr(_imported_module(module, here, name), function, None)
        if not callable(found):
            raise InputError(f"--score {brief(name)}: {module} has no function {function}")
        yield _in_one_line(found, name)
    finally:
        sys.path.remove(here)


def _imported_module(module: str, here: str, name: str) -> Any:
    import importlib
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    first = module.partition(".")[0]
    try:
        # The named module itself comes from the directory, even where an installed one has its name.
        spec = PathFinder.find_spec(first, [here])
        if spec is not None and spec.loader is not None and first not in sys.modules:
            sys.modules[first] = module_from_spec(spec)
            try:
                spec.loader.exec_module(sys.modules[first])
            except BaseException:
                del sys.modules[first]
                raise
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(f"--score {brief(name)} cannot be imported ({_said(error)})") from error


def _in_one_line(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function, with what goes wrong in it as one line."""

    def called(*given: Any) -> Any:
        try:
            return function(*given)
        except TintError:
            raise
        except (Exception, SystemExit) as error:
            raise InputError(f"--score {brief(name)} failed ({_said(error)})") from error

    return called


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {cause(error)}" if isinstance(error, Exception) else "it ends the program"
