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
from typing import TYPE_CHECKING, Any

from tintformer.version import __version__

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

COMPUTES = (
    "auxiliary",
    "rule",
    "execution",
    "engines",
    "simulator",
    "network",
    "learning.tint",
    "learning.streams",
    "learning.tuned",
    "learning.streams",
    "learning.gradient_statistics",
    "experiments.tokenisation",
    "experiments.texts",
    "experiments.tasks",
    "experiments.templates",
    "experiments.prompts",
    "experiments.packing",
    "experiments.label_scoring",
    "experiments.adapters",
    "experiments.lora",
    "experiments.ia3",
    "experiments.lora_stream",
    "experiments.stream_methods",
    "experiments.counted_work",
    "experiments.document_streams",
    "experiments.methods",
    "experiments.shared_gradients",
    "experiments.experiment",
    "experiments.language_modelling",
    "experiments.text_sweep",
    "experiments.in_context_learning",
    "experiments.in_context_regression",
    "experiments.arrangements",
    "experiments.query_traces",
    "experiments.comparison_units",
    "experiments.comparison",
    "analysis.implicit_update",
    "experiments.context_probe",
)
"""Modules and folders, below `tintformer`, whose code decides the result of a unit."""
DECIDES_NOTHING = {
    "auxiliary.tokens": "turns texts into tokens, which are in a record's identity",
    "auxiliary.generation": "continues texts; no unit does",
    "bundled": "says where files lie; weights and texts are in a record's identity by their content",
    "errors": "says what went wrong; a result with an error is not kept",
    "console": "prints, and says what is being done",
    "threads": "says how threads wait for work",
    "typed_fields": "refuses settings of a wrong type; what is kept is a result",
    "version": "stands beside the hash",
    "storage": "brings weights and rows; both are in a record's identity by their content",
    "simulator.checkpoint": "saves and loads what is built again from the auxiliary model",
    "learning.text": "finds a tokenizer, which is in a record's identity by its content",
    "learning.engine_registry": "finds an engine by its name, which is in a record's identity",
    "learning.rate_selection": "chooses a rate where none was given; a record holds the number",
    "learning.rate_prior": "says what rates have gained, for that choice",
    "learning.rate_search": "says which rates are tried; a record is of one rate",
    "learning.rate_trials": "tries rates for that choice",
    "learning.peft_files": "writes an update that was made as an adapter of PEFT",
    "learning.update_files": "saves and loads an update that was made",
    "learning.stream_files": "saves and loads what a stream has left",
    "learning.update_view": "shows an update that was made, and what it did",
    "experiments.probe_inputs": "reads contexts and prompts; their tokens are in a record's identity",
    "experiments.sources": "reads descriptions and rows; prompts and texts are in a record's identity",
    "experiments.label_files": "reads rows; texts are in a record's identity",
    "experiments.open_models": "hashes a model into the identity itself",
    "experiments.record_store": "keeps results; how an identity is written is its key",
    "experiments.comparison_measures": "measures what records hold, after they were made",
    "analysis.intervals": "says how sure a measure is",
    "experiments.code_version": "is this hash",
}
"""What they import that no number depends on, each with the reason. The closest of all entries holds for a module."""


@cache
def code_version() -> str:
    """The package's version and a hash of the code that computes; another one makes every record another's work."""
    return f"{__version__}+{source_hash(files('tintformer'))[:16]}"


def source_hash(package: Traversable) -> str:
    """SHA-256 of the statements of all modules that compute."""
    sources = (source for module, source in _modules(package, "") if computes(module))
    return hashlib.sha256(
        "".join(sorted(digest for source in sources for digest in _statements(source))).encode()
    ).hexdigest()


def computes(module: str) -> bool:
    """Whether the code of a module, named below `tintformer`, decides a result."""
    # `simulator.checkpoint` lies below `simulator`: the longer entry is the closer one.
    entry = max(
        (entry for entry in (*COMPUTES, *DECIDES_NOTHING) if f"{module}.".startswith(f"{entry}.")), key=len, default=""
    )
    return entry in COMPUTES


def _modules(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
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
