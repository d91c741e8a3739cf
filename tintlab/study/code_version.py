"""The version of the code that computes: a record is valid as long as nothing has changed that decides its numbers.

What is hashed is the code and not its layout: the syntax trees of all top-level statements, in no order, without
imports, comments and docstrings. A file or a function may move, and words about it may change; a formula may not.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from tintformer.version import __version__

PACKAGES = ("tintformer", "tintlab")

COMPUTES = (
    "tintformer.auxiliary",
    "tintformer.rule",
    "tintformer.execution",
    "tintformer.engines",
    "tintformer.simulator",
    "tintformer.network",
    "tintformer.learning.tint",
    "tintformer.learning.streams",
    "tintformer.learning.tuned",
    "tintformer.learning.streams",
    "tintformer.learning.gradient_statistics",
    "tintlab.data.prompts",
    "tintlab.data.texts",
    "tintlab.data.tasks",
    "tintlab.data.templates",
    "tintlab.data.prompts",
    "tintlab.data.packing",
    "tintlab.data.scoring",
    "tintlab.methods.adapters",
    "tintlab.methods.lora",
    "tintlab.methods.ia3",
    "tintlab.methods.lora",
    "tintlab.methods.methods",
    "tintlab.kinds.counted_work",
    "tintlab.kinds.document_streams",
    "tintlab.methods.methods",
    "tintlab.methods.shared_gradients",
    "tintlab.study.experiment",
    "tintlab.kinds.lm",
    "tintlab.kinds.text_sweep",
    "tintlab.kinds.icl",
    "tintlab.kinds.regression",
    "tintlab.kinds.arrangements",
    "tintlab.kinds.compare_traces",
    "tintlab.kinds.compare_units",
    "tintlab.kinds.comparison",
    "tintlab.kinds.implicit_update",
    "tintlab.kinds.context_probe",
)
"""Modules and folders whose code decides the result of a unit."""
DECIDES_NOTHING = {
    "tintformer.auxiliary.text": "turns texts into tokens, which are in a record's identity, and continues texts",
    "tintformer.bundled": "says where files lie; weights and texts are in a record's identity by their content",
    "tintformer.errors": "says what went wrong; a result with an error is not kept",
    "tintformer.console": "prints, and says what is being done",
    "tintformer.threads": "says how threads wait for work",
    "tintformer.typed_fields": "refuses settings of a wrong type; what is kept is a result",
    "tintformer.version": "stands beside the hash",
    "tintformer.storage": "brings weights and rows; both are in a record's identity by their content",
    "tintformer.simulator.checkpoint": "saves and loads what is built again from the auxiliary model",
    "tintformer.learning.text": "finds a tokenizer, which is in a record's identity by its content",
    "tintformer.learning.engine_registry": "finds an engine by its name, which is in a record's identity",
    "tintformer.learning.rate_selection": "chooses a rate where none was given; a record holds the number",
    "tintformer.learning.rate_prior": "says what rates have gained, for that choice",
    "tintformer.learning.rate_search": "says which rates are tried; a record is of one rate",
    "tintformer.learning.rate_trials": "tries rates for that choice",
    "tintformer.learning.peft_files": "writes an update that was made as an adapter of PEFT",
    "tintformer.learning.update_files": "saves and loads an update that was made",
    "tintformer.learning.stream_files": "saves and loads what a stream has left",
    "tintformer.learning.update_view": "shows an update that was made, and what it did",
    "tintlab.kinds.probe_inputs": "reads contexts and prompts; their tokens are in a record's identity",
    "tintlab.data.sources": "reads descriptions and rows; prompts and texts are in a record's identity",
    "tintlab.data.label_files": "reads rows; texts are in a record's identity",
    "tintlab.data.models": "hashes a model into the identity itself",
    "tintlab.study.store": "keeps results; how an identity is written is its key",
    "tintlab.kinds.compare_measures": "measures what records hold, after they were made",
    "tintlab.show.intervals": "says how sure a measure is",
    "tintlab.study.code_version": "is this hash",
}
"""What they import that no number depends on, each with the reason. The closest of all entries holds for a module."""


@cache
def code_version() -> str:
    """The package's version and a hash of the code that computes; another one makes every record another's work."""
    return f"{__version__}+{source_hash(Path(str(files('tintformer'))).parent)[:16]}"


def source_hash(root: Path) -> str:
    """SHA-256 of the statements of all modules that compute."""
    modules = (each for package in PACKAGES for each in _modules(root / package, f"{package}."))
    sources = (source for module, source in modules if computes(module))
    return hashlib.sha256(
        "".join(sorted(digest for source in sources for digest in _statements(source))).encode()
    ).hexdigest()


def computes(module: str) -> bool:
    """Whether the code of a module decides a result."""
    # `tintformer.simulator.checkpoint` lies below `tintformer.simulator`: the longer entry is the closer one.
    entry = max(
        (entry for entry in (*COMPUTES, *DECIDES_NOTHING) if f"{module}.".startswith(f"{entry}.")), key=len, default=""
    )
    return entry in COMPUTES


def _modules(folder: Path, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _modules(entry, f"{prefix}{entry.name}.")
        elif entry.name.endswith(".py"):
            yield (prefix + entry.name).removesuffix(".py").removesuffix(".__init__"), entry.read_bytes()


@cache
def _statements(source: bytes) -> list[str]:
    """A digest of each top-level statement: functions may move between files, which decides nothing."""
    return [hashlib.sha256(repr(form).encode()).hexdigest() for form in _form(ast.parse(source).body)]


def _form(value: Any) -> Any:
    """A syntax tree as nested lists. Not `ast.dump`, which writes empty fields in some versions of Python only."""
    if isinstance(value, list):
        return [_form(item) for item in value if not _says_nothing(item)]
    if isinstance(value, ast.AST):
        fields = [(name, _form(item)) for name, item in ast.iter_fields(value) if item is not None]
        return [type(value).__name__, *(field for field in fields if field[1] != [])]
    return repr(value)


def _says_nothing(node: Any) -> bool:
    """Imports follow the layout, also those for types alone; a string that stands by itself documents."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    types_alone = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return types_alone or isinstance(node, ast.Import | ast.ImportFrom)
