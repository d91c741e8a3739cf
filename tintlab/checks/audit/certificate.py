"""Certificates: what an audit has tried on a scoring procedure, and every leak that it has found."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tintformer.typed_fields import explained
from tintformer.version import __version__

Kind = Literal["own token", "later tokens", "another document", "distribution", "not repeatable"]
"""What is wrong with a score: what it depends on, or that its distribution does not sum to 1, or that it is never the
same."""


@explained
@dataclass(frozen=True, kw_only=True)
class Finding:
    """A score that is not what it should be, and the token that shows it."""

    kind: Kind
    """What is wrong."""
    score: int
    """The position of the token whose score it is."""
    token: int | None
    """The position of the token that moved it: two texts that differ in this one alone have shown it. None where
    nothing was changed."""
    difference: float
    """The largest change, in nats; of a distribution, how far its sum is from 1."""

    def __str__(self) -> str:
        by = f"{self.difference:.3g}"
        if self.kind == "distribution":
            return f"distribution: the probabilities of token {self.score} sum to 1 only within {by}"
        if self.kind == "not repeatable":
            return f"not repeatable: the score of token {self.score} differs by {by} nats between two identical runs"
        if self.kind == "own token":
            return f"own token: token {self.score} moves the distribution that it is scored by, by {by} nats"
        assert self.token is not None
        far = f", {self.token - self.score} tokens later" if self.kind == "later tokens" else ""
        return f"{self.kind}: token {self.token}{far}, moves the score of token {self.score} by {by} nats"


@explained
@dataclass(frozen=True, kw_only=True)
class Check:
    """One question of an audit, and how often it was put."""

    kind: Kind
    """What was looked for."""
    tried: int = 0
    """Changed texts that could have shown it; of distributions, how many were added up."""
    leaked: int = 0
    """How many of them did."""
    reason: str = ""
    """Why it was not checked."""

    @property
    def verdict(self) -> str:
        """`passed`, `failed`, or `not checked`."""
        return "failed" if self.leaked else "passed" if self.tried else "not checked"


@explained
@dataclass(frozen=True, kw_only=True, repr=False)
class Certificate:
    """What an audit has tried, and what it has found."""

    name: str
    """What was audited."""
    tokens: int
    """Of the text."""
    scored: int
    """How many of them have a score."""
    documents: int
    """Of the text."""
    text: str
    """SHA-256 of the token ids and document ids, as JSON."""
    places: tuple[int, ...]
    """Where the rest of a document was replaced: by random tokens, and by one repeated token."""
    possible_places: int
    """How many there could have been. A leak that shows only between two places is not met."""
    seed: int
    """Draws the places and the tokens."""
    runs: int
    """How often the procedure was called."""
    identical_runs: int
    """How many of them had the text as it is."""
    tolerance: float
    """Differences up to this count as none: 0 if identical runs gave the same numbers, else twice what they differed by
    (or what the caller allows, if that is more)."""
    diverged: int
    """Changed texts on which learning diverged; they show nothing."""
    checks: tuple[Check, ...]
    """What was looked for."""
    findings: tuple[Finding, ...]
    """Leaks, named; of each kind the first few."""

    @property
    def passed(self) -> bool:
        """Whether nothing was found. What was not checked does not count: `checks` has it."""
        return not self.findings

    @property
    def extent(self) -> str:
        """How much was tried: `at 16 of 511 places`."""
        return f"at {len(self.places)} of {self.possible_places} places"

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of what was found."""
        return tuple(dict.fromkeys(finding.kind for finding in self.findings))

    def check(self, kind: Kind) -> Check:
        """One of the checks.

        Args:
            kind: What it looked for.
        """
        return next(check for check in self.checks if check.kind == kind)

    def __repr__(self) -> str:
        verdict = "passed" if self.passed else f"FAILED ({', '.join(self.kinds)})"
        unchecked = [check.kind for check in self.checks if check.verdict == "not checked"]
        left = f", not checked: {', '.join(unchecked)}" if unchecked else ""
        tried = f"{self.tokens} tokens, tolerance {self.tolerance:.3g}"
        return f"<Certificate of {self.name}: {verdict} {self.extent}; {tried}{left}>"

    def rows(self) -> list[dict[str, str]]:
        """The checks as a table."""
        return [
            {
                "looked for": _QUESTIONS[check.kind],
                "tried": str(check.tried),
                "found": str(check.leaked),
                "verdict": self._verdict(check),
            }
            for check in self.checks
        ]

    def _verdict(self, check: Check) -> str:
        if check.reason:
            return f"{check.verdict}: {check.reason}"
        # What places show says at how many it was looked for; the others have tried all that there is.
        return f"{check.verdict} {self.extent}" if check.kind in ("own token", "later tokens") else check.verdict

    def record(self) -> dict[str, Any]:
        """Everything, for programs."""
        findings = [
            {**asdict(each), "difference": _finite(each.difference), "text": str(each)} for each in self.findings
        ]
        checks = [{**asdict(each), "verdict": each.verdict} for each in self.checks]
        return {
            "passed": self.passed,
            **asdict(self),
            "tolerance": _finite(self.tolerance),
            "checks": checks,
            "findings": findings,
            "version": __version__,
        }

    def to_json(self) -> str:
        """The record as JSON."""
        return json.dumps(self.record(), indent=2) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON, whole or not at all.

        Args:
            path: Of the file.
        """
        from tintformer.storage.whole_files import whole_file

        with whole_file(Path(path)) as file:
            file.write_text(self.to_json(), encoding="utf-8")


_QUESTIONS: dict[Kind, str] = {
    "own token": "a score depends on its own token",
    "later tokens": "a score depends on later tokens of its document",
    "another document": "a score depends on another document",
    "distribution": "probabilities do not sum to 1",
    "not repeatable": "identical runs differ",
}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
