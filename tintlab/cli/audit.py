"""`tint audit`: whether scores of a text leak, by a stream of ours or by somebody else's function.

Such a function is named `module:function` on the command line: the one thing that is imported by name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tintformer.cli.options import Device, Dtype, Json, RuleOptions, Statistics, given_names, rule_options
from tintformer.cli.rule_setup import open_model, provenance, quiet_libraries, warnings_as_lines
from tintformer.console import doing, print_json, print_table, say
from tintformer.errors import InputError, TintError, brief, cause

if TYPE_CHECKING:
    from tintlab.checks.audit.certificate import Certificate


TOKENS = 512
"""Of each document, unless another number is given: four chunks of the usual size. A leak shows in few."""
RATE = "1e-5"
"""Of a stream, unless another one is given: what leaks is seen at any rate, and no model diverges at this one."""


@dataclass(frozen=True, kw_only=True)
class Documents:
    """What is audited: tokens of documents, and what each token looks like."""

    ids: tuple[tuple[int, ...], ...]
    tokens: tuple[str, ...] | None = None

    @property
    def flat(self) -> list[int]:
        return [token for document in self.ids for token in document]

    @property
    def numbers(self) -> list[int] | None:
        """The document of each token; None for a single one."""
        if len(self.ids) == 1:
            return None
        return [number for number, document in enumerate(self.ids) for _ in document]


@rule_options("A stream needs a number; an audit asks nothing of it but that something is learnt.", default=RATE)
def audit(
    model: Annotated[
        str | None, typer.Argument(help="The model whose stream is audited; none with --score.", show_default=False)
    ] = None,
    *,
    rule: RuleOptions,
    statistics: Statistics = None,
    file: Annotated[
        list[Path] | None, typer.Option(help="Read a text from a file; repeat it for several documents.")
    ] = None,
    ids: Annotated[
        Path | None, typer.Option(help="Read token ids from a JSON file, a list, or a list of lists for documents.")
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(
            help="Audit module:function instead, called with ids [T], and document ids [T] if there are several. The "
            "module is imported from the current directory, or else as Python finds it, and runs as your own code."
        ),
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="With --score and --file: whose tokens the text has.")] = None,
    chunk: Annotated[int | None, typer.Option(help="Tokens that are scored together; default 128.")] = None,
    window: Annotated[int | None, typer.Option(help="Tokens of a chunk and its past; default: the context.")] = None,
    carry: Annotated[
        str | None, typer.Option(help="What a chunk sees of its past: none, recompute or cache (default).")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=4, help=f"Use at most so many tokens of each document; {TOKENS} by default.")
    ] = None,
    places: Annotated[int, typer.Option(min=1, max=10_000, help="Places at which the rest is replaced.")] = 16,
    seed: Annotated[int, typer.Option(min=0, max=2**62, help="Draws places and tokens.")] = 0,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the certificate here, as JSON.")] = None,
    dtype: Dtype = "float32",
    device: Device = None,
    json: Json = False,
) -> None:
    """Check that no score of a text depends on its own or later tokens, or on another document.

    At several places the rest of the text is replaced, and nothing before may move. The exit code is 1 if something
    leaks, with a table of what moved what. A stream of MODEL learns at rate 1e-5 unless another one is given.
    """
    from tintformer.storage.whole_files import check_file

    own = given_names(rule, statistics=statistics, chunk=chunk, window=window, carry=carry)
    _check_subject(model, score, file, ids, tokenizer, own)
    settings = {"chunk": chunk, "window": window, "carry": carry}
    settings = {name: value for name, value in settings.items() if value is not None}
    if output is not None:
        check_file(output)
    how = {"places": places, "seed": seed}
    with warnings_as_lines():
        if score is not None:
            documents = _documents(file, ids, tokenizer, tokens or TOKENS)
            with imported(score) as function:
                certificate, record = _audited(function, documents, name=score, **how), {}
        else:
            assert model is not None
            certificate, record, documents = _audit_stream(
                model, rule, statistics, settings, file, ids, tokens, dtype, device, how
            )
    if output is not None:
        _save(certificate, record, output)
    if json:
        print_json({**certificate.record(), **record})
    else:
        print_certificate(certificate, documents.tokens)
        if output is not None:
            say(f"wrote {output}")
    if not certificate.passed:
        raise typer.Exit(1)


def _check_subject(
    model: str | None, score: str | None, file: Any, ids: Path | None, tokenizer: str | None, own: list[str]
) -> None:
    """Refuse what does not belong together, before anything is loaded."""
    if (model is None) == (score is None):
        raise InputError("give a MODEL, whose stream is audited, or --score module:function, and not both")
    if bool(file) == (ids is not None):
        raise InputError("give a text with --file, or token ids with --ids")
    if score is None:
        if tokenizer is not None:
            raise InputError("--tokenizer goes with --score: a MODEL has its own; leave it out")
        return
    if own:
        raise InputError(f"--score is audited as it is, so leave out {', '.join(own)}")
    if file and tokenizer is None:
        raise InputError("--score and --file need --tokenizer MODEL, whose tokens the text has; or give --ids")
    if ids is not None and tokenizer is not None:
        raise InputError("--ids are tokens already; leave out --tokenizer")


def _audit_stream(
    model: str,
    rule: RuleOptions,
    statistics: Path | None,
    settings: dict[str, Any],
    file: Sequence[Path] | None,
    ids: Path | None,
    tokens: int | None,
    dtype: str,
    device: str | None,
    how: dict[str, int],
) -> tuple[Certificate, dict[str, Any], Documents]:
    """The certificate of a stream, and what else decides it."""
    built = RuleOptions({"learning_rate": RATE, **rule}).build()
    if rule.get("learning_rate") == "auto":
        built = replace(built, learning_rate="auto")  # which a stream refuses, and says why
    from tintformer.learning.streams import StreamSettings

    wanted = StreamSettings(**settings)
    auxiliary = open_model(model, dtype, device)
    from tintformer.learning.tint import Tint
    from tintlab.checks.audit.stream_scorer import StreamScorer

    limit, context = tokens or TOKENS, auxiliary.max_positions
    if tokens is None and wanted.carry == "cache" and auxiliary.learned_positions and context is not None:
        limit = min(limit, context)
    documents = _documents(file, ids, model, limit)
    scorer = StreamScorer(sim=Tint(auxiliary, built, statistics=statistics), settings=wanted)
    settled = wanted.of(auxiliary)
    shown = f"chunk {settled.chunk}, window {settled.window}, carry {settled.carry}"
    certificate = _audited(scorer, documents, name=f"stream of {auxiliary.name}, {shown}", **how)
    made = {"chunk": settled.chunk, "window": settled.window, "carry": settled.carry}
    return certificate, {**provenance(auxiliary, built, None), "stream": made}, documents


def _documents(file: Sequence[Path] | None, ids: Path | None, tokenizer: str | None, limit: int) -> Documents:
    """The first tokens of every document."""
    if ids is not None:
        return Documents(ids=tuple(document[:limit] for document in _read_ids(ids)))
    from tintformer.learning.text import encode, find_tokenizer, read_text

    assert tokenizer is not None
    contents = [read_text(None, each) for each in file or ()]
    doing(f"loading {tokenizer}")
    quiet_libraries()
    found = find_tokenizer(tokenizer)
    encoded = [encode(found, content).first(limit) for content in contents]
    return Documents(
        ids=tuple(each.input_ids for each in encoded), tokens=tuple(token for each in encoded for token in each.tokens)
    )


def _read_ids(path: Path) -> tuple[tuple[int, ...], ...]:
    from tintformer.storage.untrusted_files import read_foreign_json, user_path

    content: Any = read_foreign_json(user_path(path), error=InputError)
    documents: Any = content if isinstance(content, list) and content and isinstance(content[0], list) else [content]
    if not all(isinstance(document, list) and document and all(map(_is_id, document)) for document in documents):
        raise InputError(f"{path} holds no token ids: it must be a JSON list of whole numbers, or a list of such lists")
    return tuple(map(tuple, documents))


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _audited(score: Callable[..., Any], documents: Documents, *, name: str, **how: Any) -> Certificate:
    from tintlab.checks.audit.audit import audit

    runs = count(1)

    def counted(*given: Any) -> Any:
        doing(f"auditing {name}: run {next(runs)}")
        return score(*given)

    return audit(counted, documents.flat, documents.numbers, name=name, **how)


def _save(certificate: Certificate, record: dict[str, Any], output: Path) -> None:
    import json

    from tintformer.storage.whole_files import whole_file

    with whole_file(output) as file:
        file.write_text(json.dumps({**certificate.record(), **record}, indent=2) + "\n", encoding="utf-8")


def print_certificate(certificate: Certificate, tokens: Sequence[str] | None = None) -> None:
    """The certificate for people: what was looked for, what moved what, and the verdict."""
    documents = "" if certificate.documents == 1 else f" of {certificate.documents} documents"
    say(f"{certificate.name}: {certificate.scored} scores of {certificate.tokens} tokens{documents}")
    print_table(certificate.rows())

    def shown(position: int | None) -> str:
        if position is None:
            return ""
        return str(position) if tokens is None else f"{position} {tokens[position]!r}"

    if certificate.findings:
        rows = [
            {
                "leak": finding.kind,
                "changed token": shown(finding.token),
                "score of token": shown(finding.score),
                "by": f"{finding.difference:.3g}",
            }
            for finding in certificate.findings
        ]
        print_table(rows, title="what moves what (by: nats; of a distribution, its sum minus 1)")
    tried = f"{certificate.runs} runs, seed {certificate.seed}, tolerance {certificate.tolerance:.3g} nats"
    verdict = "nothing leaks" if certificate.passed else f"LEAKS: {', '.join(certificate.kinds)}"
    say(f"{verdict} {certificate.extent} ({tried})")


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
