"""What a probe is made of: contexts in named sets, prompts that have nothing to do with them, and demonstrations.

What ships lies in `tintformer/bundled/probe`: a text file for each set, whose contexts are separated by empty lines,
and prompts and demonstrations as JSON lines. All of it was written for this.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tintformer.bundled import probe_directory
from tintformer.errors import InputError, brief
from tintformer.learning.text import given_text
from tintformer.storage.untrusted_files import check_characters, user_path
from tintlab.data.sources import DataRow, read_rows

CONTROL = "innocuous"
"""The set that every other one is compared with."""
SETS = (CONTROL, "biased", "contradictory", "instructions")
"""Those that ship."""
OWN_SET = "given"
"""What a user's contexts without a name are called."""
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of the demonstrations that have the first label; one half is balanced."""
COUNTS = (8, 4)
"""Demonstrations of a context: the first number that fits into the model."""
_KEYS = ("prompt", "labels")


@dataclass(frozen=True, kw_only=True)
class Context:
    """A text that is learnt from, or read, before the prompts."""

    text: str
    targets: tuple[tuple[int, int], ...] = ()
    """First character and the one after the last of what alone is learnt from; without any, all of it is."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A text whose loss is taken or, with labels, a question whose answers are compared."""

    text: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """A question with its label."""

    text: str
    label: str


Contexts = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Mapping[str, Any]
"""A text, a path, several of them, or sets of them by name."""
Prompts = str | os.PathLike[str] | Sequence[Any]
"""A path, or prompts: texts, and dicts with `prompt` and `labels`."""


def context_sets(given: Contexts | None) -> dict[str, tuple[Context, ...]]:
    """The sets to probe, the control first; it is the shipped one unless a set of its name is given."""
    if given is None:
        return {name: shipped_set(name) for name in SETS}
    named = given if isinstance(given, Mapping) else {OWN_SET: given}
    sets = {str(name): _contexts(texts) for name, texts in named.items()}
    if not sets.keys() - {CONTROL}:
        raise InputError(f"there is no context besides the set {CONTROL!r}, which is the control; give one at least")
    return {CONTROL: sets.get(CONTROL) or shipped_set(CONTROL), **sets}


def shipped_set(name: str) -> tuple[Context, ...]:
    """The contexts of a set that ships."""
    content = (probe_directory() / f"{name}.txt").read_text(encoding="utf-8")
    return tuple(Context(text=text) for text in content.strip().split("\n\n"))


def _contexts(given: Any) -> tuple[Context, ...]:
    texts = [given] if isinstance(given, str | os.PathLike) else list(given)
    if not texts:
        raise InputError("there are no contexts in a set; give one at least")
    return tuple(Context(text=given_text(text)) for text in texts)


def read_prompts(given: Prompts | None) -> tuple[Prompt, ...]:
    """The prompts that the model is probed with: the shipped ones, those of a file, or a caller's own."""
    if given is None:
        return read_prompts(probe_directory() / "probes.jsonl")
    if isinstance(given, str | os.PathLike):
        rows = read_rows(user_path(given))
    else:
        # One way for all: a caller's prompts are checked as those of a file are.
        values = [{"prompt": each} if isinstance(each, str) else each for each in given]
        if wrong := [each for each in values if not isinstance(each, Mapping)]:
            raise InputError(f"a probe is {brief(wrong[0])}; give a text, or a dict with prompt and labels")
        rows = [DataRow(f"probe {number}", value) for number, value in enumerate(values, 1)]
    if not rows:
        raise InputError("there are no probes; give one at least")
    return tuple(map(_prompt, rows))


def _prompt(row: DataRow) -> Prompt:
    if unknown := [key for key in row.values if key not in _KEYS]:
        raise InputError(f"{row.where}: {brief(unknown[0])} is unknown; a probe has a prompt and, if asked, labels")
    if "prompt" not in row.values:
        raise InputError(f"{row.where}: there is no prompt; a probe has a prompt and, if asked, labels")
    labels = row.values.get("labels")
    if labels is None:
        return Prompt(text=row.text("prompt"))
    if not isinstance(labels, list | tuple) or len(labels) < 2 or not all(isinstance(each, str) for each in labels):
        raise InputError(f'{row.where}: labels is {brief(labels)}; give two words at least, as in ["yes", "no"]')
    words = tuple(check_characters(each.strip(), f"{row.where}: a label", "repair it") for each in labels)
    if "" in words or len(set(words)) < len(words):
        raise InputError(f"{row.where}: labels is {brief(labels)}; every label is a word of its own")
    # A space comes before the label: one at the end of the prompt would become a token of its own.
    return Prompt(text=row.text("prompt").rstrip(), labels=words)


def shipped_demonstrations() -> tuple[Demonstration, ...]:
    """Questions with their labels, as many of one label as of the other."""
    rows = read_rows(probe_directory() / "demonstrations.jsonl")
    return tuple(Demonstration(text=row.text("prompt"), label=row.text("label")) for row in rows)


def demonstration_labels() -> tuple[str, ...]:
    """The labels of the demonstrations, that which sets are named after first."""
    return tuple(dict.fromkeys(each.label for each in shipped_demonstrations()))


def demonstration_sets(count: int, draws: int) -> dict[str, tuple[Context, ...]]:
    """Contexts of so many demonstrations, sets by how many of them have the first label; labels alone are learnt.

    A draw takes its demonstrations from one order of each label's, so that sets differ by as few of them as they can.
    """
    demonstrations, first = shipped_demonstrations(), demonstration_labels()[0]
    sets: dict[str, list[Context]] = {f"{round(share * count)} of {count} {first}": [] for share in SHARES}
    for draw in range(draws):
        chance = random.Random(draw)
        ours = [each for each in demonstrations if each.label == first]
        others = [each for each in demonstrations if each.label != first]
        chance.shuffle(ours)
        chance.shuffle(others)
        for share, contexts in zip(SHARES, sets.values(), strict=True):
            number = round(share * count)
            drawn = ours[:number] + others[: count - number]
            chance.shuffle(drawn)
            contexts.append(_joined(drawn))
    return {name: tuple(contexts) for name, contexts in sets.items()}


def balanced_set(count: int) -> str:
    """The name of the set with as many demonstrations of either label."""
    return f"{count // 2} of {count} {demonstration_labels()[0]}"


def _joined(demonstrations: Sequence[Demonstration]) -> Context:
    text, targets = "", list[tuple[int, int]]()
    for each in demonstrations:
        text += f"{each.text} "
        # The space belongs to the label's first token.
        targets.append((len(text) - 1, len(text) + len(each.label)))
        text += f"{each.label}\n"
    return Context(text=text, targets=tuple(targets))


def read_context_files(paths: Sequence[Path]) -> dict[str, tuple[Path, ...]] | None:
    """Files of contexts as one set, which a single file names; None where there are none."""
    if not paths:
        return None
    name = paths[0].stem if len(paths) == 1 else OWN_SET
    return {OWN_SET if name == CONTROL else name: tuple(paths)}
