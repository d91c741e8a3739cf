# pyright: basic
"""The auto classes know a Tint model after `import tintformer`, whenever that is; the import itself stays light."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CHECK = """
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
import tintformer
assert CONFIG_MAPPING["tint"] is tintformer.TintConfig
assert AutoModelForCausalLM._model_mapping[tintformer.TintConfig] is tintformer.TintForCausalLM
import inspect, transformers.models.auto.modeling_auto as module
assert inspect.getsource(module) and module.__spec__.loader is module.__loader__
"""

ORDERS = [
    "import transformers, tintformer",
    "import tintformer",
    "from transformers import AutoConfig; import tintformer",
    "from transformers import AutoModelForCausalLM; import tintformer",
    "import tintformer.transformers.model",
]


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.sweep
@pytest.mark.parametrize("first", ORDERS)
def test_whatever_is_imported_first(first: str) -> None:
    """In every run of the tests it is a process of test_save.py that does this check."""
    done = run(f"{first}\n{CHECK}")
    assert done.returncode == 0, done.stderr


def test_the_import_stays_light() -> None:
    done = run("import sys, tintformer\nprint({'torch', 'transformers', 'numpy'} & set(sys.modules))")
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr
