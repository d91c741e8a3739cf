# pyright: basic
"""A classification task that is written by the tests, in the bundled models' own language."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

GOOD = ("charming", "noble", "happy", "gentle", "agreeable")
BAD = ("wretched", "cruel", "miserable", "hateful", "odious")
PEOPLE = (
    "Mr. Elton",
    "the King",
    "my sister",
    "the captain",
    "Lady Anne",
    "the young duke",
    "her father",
    "the Congress",
)
VERBS = ("had been", "was", "seemed")


def save_task(directory: Path) -> Path:
    """A task in the models' own language: whether a person is praised or blamed, in words of two and more tokens."""
    rows = [
        {"text": f"I thought that {person} {verb} most {word}.", "label": label}
        for (person, verb), (label, words) in product(product(PEOPLE, VERBS), enumerate((BAD, GOOD)))
        for word in words
    ]
    directory.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", rows[::2]), ("test", rows[1::2])):
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    task = directory / "praise.yaml"
    task.write_text(
        "kind: classification\ntitle: Praise\npath: .\n"
        'labels: [blamed, praised]\nprompt: "{text} This was said in"\nwords: [blame, praise]\n'
    )
    return task
