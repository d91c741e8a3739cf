"""Audits: whether any score of a procedure depends on its own or later tokens, or on another document.

Nothing is assumed of the procedure. It is called with the text as it is and with texts whose rest was replaced, and
what may not depend on the rest must not move. T tokens, V vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any

import numpy
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tintformer.errors import DivergenceError, InputError
from tintformer.execution.inputs import Array, as_tensor
from tintformer.typed_fields import Range, checked
from tintlab.checks.audit.certificate import Certificate, Check, Finding, Kind

Score = Callable[..., Any]
"""Takes ids `[T]`, and document ids `[T]` if there are any; returns log-probabilities `[T, V]` or scores `[T]`."""
LARGEST_NOISE = 1e-2
"""Nats. What changes more from run to run than this hides most leaks, and nothing is said of it."""
MOST_REPEATS = 8
"""Identical runs of a procedure that is not repeatable: more would only measure its noise better."""
NAMED = 3
"""Findings of a kind whose token is looked for, which takes as many runs as the text can be halved."""
ROWS = 256
"""Distributions that are compared at once."""


def audit(
    score: Score,
    ids: Array,
    document_ids: Array | None = None,
    *,
    places: int = 16,
    seed: int = 0,
    vocabulary: int | None = None,
    tolerance: float = 0.0,
    fixed: Array | None = None,
    name: str | None = None,
) -> Certificate:
    """Whether a procedure that scores a text leaks: no score may depend on its own or later tokens or other documents.

    The procedure may be anything that can be called, and may learn as it likes. At several places the rest of the
    document is replaced, by random tokens and by one repeated token: every earlier score, and the distribution at the
    place itself, must not move. Then all other documents are replaced. What moves is traced to a single token.

    Args:
        score: Called with ids `[T]` (a tensor), and with `document_ids` as well if they are given. It returns the
            log-probabilities `[T, V]` of every token given what is before it, or the scores `[T]` of the tokens, in
            which case neither own tokens nor sums of probabilities are checked. NaN: this token has no score.
        ids: The tokens `[T]` of a text: a tensor, an array of numpy, or a list.
        document_ids: The document of each token, `[T]`. No score may depend on another document.
        places: How many places are tried, one in each of so many equal parts of the text, for two calls each. A leak
            within a part may lie between two places and be missed; one that reaches over two parts is met.
        seed: Draws places and tokens.
        vocabulary: Tokens to draw from are 0 to vocabulary - 1; None: those that occur in the text.
        tolerance: Differences in nats that count as none, also where identical runs do not differ.
        fixed: True for tokens `[T]` that are never changed, because all scores may depend on them.
        name: What the certificate calls the procedure; None: as Python does.
    """
    checked("places", places, Annotated[int, Range(at_least=1)], InputError)
    checked("seed", seed, Annotated[int, Range(at_least=0)], InputError)
    checked("tolerance", tolerance, Annotated[float, Range(at_least=0)], InputError)
    auditor = _Auditor(score, ids, document_ids, fixed=fixed, vocabulary=vocabulary, tolerance=tolerance, seed=seed)
    auditor.compare_identical_runs()
    chosen: list[int] = []
    if not auditor.findings:
        auditor.add_up()
        chosen = auditor.choose_places(places)
        for place in chosen:
            auditor.replace_rest(place)
        auditor.replace_others(places)
    contents = json.dumps([auditor.ids.tolist(), auditor.documents.tolist()]).encode()
    return Certificate(
        name=name or getattr(score, "__qualname__", type(score).__name__),
        tokens=len(auditor.ids),
        scored=int(auditor.scored.sum()),
        documents=len(auditor.documents.unique()),
        text=hashlib.sha256(contents).hexdigest(),
        places=tuple(chosen),
        possible_places=len(auditor.possible_places()),
        seed=seed,
        runs=auditor.runs,
        identical_runs=auditor.identical_runs,
        tolerance=auditor.tolerance,
        diverged=auditor.diverged,
        checks=auditor.checks(),
        findings=tuple(sorted(auditor.findings, key=lambda finding: KINDS.index(finding.kind))),
    )


class _Auditor:
    """Calls a procedure, compares what it says, and writes down what moved."""

    def __init__(
        self,
        score: Score,
        ids: Array,
        document_ids: Array | None,
        *,
        fixed: Array | None,
        vocabulary: int | None,
        tolerance: float,
        seed: int,
    ):
        self.score, self.tolerance = score, tolerance
        self.ids = _vector("ids", ids)
        self.document_ids = None if document_ids is None else _vector("document_ids", document_ids, self.ids)
        self.documents = torch.zeros_like(self.ids) if self.document_ids is None else self.document_ids
        no_token = torch.zeros_like(self.ids, dtype=torch.bool)
        self.free = ~no_token if fixed is None else ~_vector("fixed", fixed, self.ids).bool()
        self.alphabet = _alphabet(self.ids, vocabulary)
        self.generator = torch.Generator().manual_seed(seed)
        self.runs = self.identical_runs = self.diverged = 0
        self.noise, self.noisiest = 0.0, 0
        self.findings: list[Finding] = []
        self.named: set[tuple[Kind, int]] = set()
        self.tried, self.leaked = Counter[Kind](), Counter[Kind]()
        self.base = self.run(self.ids).clone()  # a procedure may give the same memory every time
        self.scored = _scored(self.base)
        if not bool(self.scored.any()):
            raise InputError("score gave NaN for every token; it must score some of them")

    @property
    def has_distributions(self) -> bool:
        return self.base.dim() == 2

    def run(self, ids: Tensor) -> Tensor:
        """What the procedure says of a text."""
        self.runs += 1
        self.identical_runs += torch.equal(ids, self.ids)
        # Copies: a procedure that works in place would change what it is compared with.
        given = (ids.clone(),) if self.document_ids is None else (ids.clone(), self.document_ids.clone())
        found = _result(self.score(*given))
        if found.dim() not in (1, 2) or len(found) != len(ids) or not found.is_floating_point():
            raise InputError(
                f"score gave {found.dtype} of shape {tuple(found.shape)} for {len(ids)} tokens; it must be "
                f"log-probabilities [{len(ids)}, vocabulary] or scores [{len(ids)}]"
            )
        if self.runs > 1 and found.shape != self.base.shape:
            raise InputError(
                f"score gave shape {tuple(self.base.shape)} first and {tuple(found.shape)} later, for as many tokens; "
                "it must always be the same"
            )
        return found.cpu()

    def differences(self, ids: Tensor) -> Float[Tensor, " T"] | None:
        """How far each score moves if this is the text; None if learning diverges on it."""
        try:
            return _differences(self.base, self.run(ids))
        except DivergenceError:
            self.diverged += 1
            return None

    def moved(self, ids: Tensor, still: Tensor) -> Bool[Tensor, " T"] | None:
        """Which of the scores that may not move do so if this is the text."""
        found = self.differences(ids)
        if found is None:
            return None
        if bool((found[still] > self.tolerance).any()):
            # A leak shows every time; what differs now and then, though the first identical runs did not, is none.
            again = self.differences(ids)
            found = found if again is None else torch.minimum(found, again)
            if self.identical_runs < MOST_REPEATS:
                self.repeat()
        return (found > self.tolerance) & still

    def compare_identical_runs(self) -> None:
        """What they differ by is the tolerance, unless it is so much that nothing could be seen."""
        self.repeat()
        while 0 < self.noise <= LARGEST_NOISE and self.identical_runs < MOST_REPEATS:
            self.repeat()
        self.tried["not repeatable"] = self.identical_runs - 1
        if self.noise > LARGEST_NOISE:
            self.leaked["not repeatable"] = 1
            finding = Finding(kind="not repeatable", score=self.noisiest, token=None, difference=self.noise)
            self.findings.append(finding)

    def repeat(self) -> None:
        found = _differences(self.base, self.run(self.ids))
        if float(found.max()) > self.noise:
            self.noise, self.noisiest = float(found.max()), int(found.argmax())
            # Twice: a few runs show only a part of how far two of them may be apart.
            self.tolerance = max(self.tolerance, 2 * self.noise)

    def add_up(self) -> None:
        """Every distribution must sum to 1."""
        if not self.has_distributions:
            return
        self.tried["distribution"] = int(self.scored.sum())
        sums = torch.cat([part.double().exp().sum(-1) for part in self.base.split(ROWS)])
        wrong = (sums - 1).abs().nan_to_num(nan=math.inf, posinf=math.inf).masked_fill(~self.scored, 0)
        # As exact as logarithms of this dtype are, with room for a large vocabulary.
        outside = wrong > math.sqrt(torch.finfo(self.base.dtype).eps)
        self.leaked["distribution"] = int(outside.sum())
        for row in wrong.argsort(descending=True, stable=True)[: min(NAMED, self.leaked["distribution"])].tolist():
            self.findings.append(Finding(kind="distribution", score=row, token=None, difference=float(wrong[row])))

    def possible_places(self) -> list[int]:
        """Wherever the rest can be replaced, and a score stands that must not move with it."""
        shown = self.scored
        if not self.has_distributions:
            # A token's own score moves with it; that of the token before it must not.
            shown = torch.zeros_like(shown)
            shown[1:] = self.scored[:-1] & (self.documents[1:] == self.documents[:-1])
        return (shown & self.free).nonzero().flatten().tolist()

    def choose_places(self, number: int) -> list[int]:
        """One in each of so many parts of the text."""
        candidates = self.possible_places()
        if not candidates:
            raise InputError("no token can be changed after one that is scored; give a longer text")
        number = min(number, len(candidates))
        bounds = [round(part * len(candidates) / number) for part in range(number + 1)]
        return [candidates[start + self.draw(end - start)] for start, end in pairwise(bounds)]

    def replace_rest(self, place: int) -> None:
        """Change a document from a place on: what is before it, the place itself and other documents must not move."""
        at, here = torch.arange(len(self.ids)), self.documents == self.documents[place]
        rest, own = here & (at >= place) & self.free, self.has_distributions
        still = ~here | ((at <= place) if own else (at < place))
        for changed in self.replacements(rest, place):
            moved = self.moved(changed, still)
            if moved is None:
                continue
            self.tried["own token"] += own
            self.tried["later tokens"] += 1
            self.tried["another document"] += not bool(here.all())
            if own and bool(moved[place]):
                self.blame_own(place, changed)
            if bool((before := moved & here & (at < place)).any()):
                self.blame("later tokens", place, before, rest, changed)
            elif own and bool(moved[place]):
                self.blame_after(place, rest & (at > place), changed)
            if bool((elsewhere := moved & ~here).any()):
                self.blame("another document", place, elsewhere, rest, changed)

    def replace_others(self, number: int) -> None:
        """Change all documents but one, whose scores must not move."""
        numbers = self.documents[self.scored].unique().tolist()
        number = min(number, len(numbers))
        for part in range(number):
            here = self.documents == numbers[part * len(numbers) // number]
            others = ~here & self.free
            if not bool(others.any()):
                continue
            first = int(others.nonzero()[0])
            for changed in self.replacements(others, first):
                moved = self.moved(changed, here)
                self.tried["another document"] += moved is not None
                if moved is not None and bool(moved.any()):
                    self.blame("another document", first, moved, others, changed)

    def replacements(self, where: Tensor, place: int) -> list[Tensor]:
        """The text with other tokens there: random ones, and one repeated token that the place itself does not have."""
        texts = [self.ids.clone(), self.ids.clone()]
        texts[0][where] = self.others(self.ids[where])
        texts[1][where] = self.others(self.ids[place : place + 1])
        return texts

    def others(self, tokens: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        """Another token for each."""
        drawn = torch.randint(len(self.alphabet) - 1, tokens.shape, generator=self.generator)
        return self.alphabet[drawn + (self.alphabet[drawn] >= tokens)]

    def draw(self, number: int) -> int:
        return int(torch.randint(number, (), generator=self.generator))

    def blame_own(self, place: int, changed: Tensor) -> None:
        """Write down if the token at a place moves its own distribution, all others being as they are."""
        alone = self.ids.clone()
        alone[place] = changed[place]
        difference = self.difference_at(place, alone)
        if difference > self.tolerance:
            self.note("own token", place, lambda: (place, place, difference))

    def blame_after(self, place: int, after: Tensor, changed: Tensor) -> None:
        """Write down if what comes after a place moves its distribution, its own token being as it is."""
        without = changed.clone()
        without[place] = self.ids[place]
        if self.difference_at(place, without) > self.tolerance:
            only = torch.zeros_like(after)
            only[place] = True
            self.blame("later tokens", place, only, after, without)

    def blame(self, kind: Kind, place: int, moved: Tensor, where: Tensor, changed: Tensor) -> None:
        """Write down the first score that moved, and the token that moved it."""
        row = int(moved.nonzero()[0])

        def find() -> tuple[int, int, float]:
            # From the end, so that what is named is how far the leak reaches.
            order = where.nonzero().flatten().flip(0)
            token, difference = self.trace(row, order[changed[order] != self.ids[order]], changed)
            return row, token, difference

        self.note(kind, place, find)

    def note(self, kind: Kind, place: int, find: Callable[[], tuple[int, int, float]]) -> None:
        self.leaked[kind] += 1
        if (kind, place) in self.named or sum(named == kind for named, _ in self.named) >= NAMED:
            return
        self.named.add((kind, place))
        row, token, difference = find()
        if all((each.kind, each.score, each.token) != (kind, row, token) for each in self.findings):
            self.findings.append(Finding(kind=kind, score=row, token=token, difference=difference))

    def trace(self, row: int, order: Int[Tensor, " n"], changed: Tensor) -> tuple[int, float]:
        """The token whose change makes a score move, those before it in the order being changed already."""
        still, moving = 0, len(order)  # so many changes do not move it, or do
        difference = self.difference_at(row, changed)
        while moving - still > 1:
            middle = (still + moving) // 2
            mixed = self.ids.clone()
            mixed[order[:middle]] = changed[order[:middle]]
            if (found := self.difference_at(row, mixed)) > self.tolerance:
                moving, difference = middle, found
            else:
                still = middle
        return int(order[moving - 1]), difference

    def difference_at(self, row: int, ids: Tensor) -> float:
        found = self.differences(ids)
        return 0.0 if found is None else float(found[row])

    def checks(self) -> tuple[Check, ...]:
        """What was looked for, and why not where it was not."""
        reasons: dict[Kind, str] = dict.fromkeys(KINDS, "learning diverged on every changed text")
        if len(self.documents.unique()) == 1:
            reasons["another document"] = "there is one document"
        if not self.has_distributions:
            reasons["own token"] = reasons["distribution"] = "score gives no distributions [T, V]"
        if self.noise > LARGEST_NOISE:
            reasons = dict.fromkeys(KINDS, "identical runs differ")
        return tuple(
            Check(
                kind=kind,
                tried=self.tried[kind],
                leaked=self.leaked[kind],
                reason="" if self.tried[kind] else reasons[kind],
            )
            for kind in KINDS
        )


KINDS: tuple[Kind, ...] = ("own token", "later tokens", "another document", "distribution", "not repeatable")


def _vector(name: str, value: Array, like: Tensor | None = None) -> Tensor:
    found = as_tensor(name, value).cpu()
    if found.dim() != 1 or not len(found) or found.is_floating_point():
        raise InputError(f"{name} has shape {tuple(found.shape)} and dtype {found.dtype}; it must be whole numbers [T]")
    if like is not None and found.shape != like.shape:
        raise InputError(f"{name} has {len(found)} entries but the text {len(like)} tokens")
    return found.long()


def _result(value: Any) -> Tensor:
    """What a procedure returned, in the dtype that it has."""
    if not isinstance(value, Tensor) and hasattr(value, "__array__"):
        return torch.tensor(numpy.asarray(value))
    return as_tensor("what score returned", value).detach()


def _alphabet(ids: Tensor, vocabulary: int | None) -> Int[Tensor, " letters"]:
    checked("vocabulary", vocabulary, Annotated[int | None, Range(at_least=2)], InputError)
    if vocabulary is not None and int(ids.max()) >= vocabulary:
        raise InputError(f"token id {int(ids.max())} is outside of the vocabulary of {vocabulary}")
    found = ids.unique() if vocabulary is None else torch.arange(vocabulary)
    if len(found) < 2:
        raise InputError("the text is one token over and over; give vocabulary=, to draw others from")
    return found


def _scored(found: Tensor) -> Bool[Tensor, " T"]:
    return ~(found.isnan() if found.dim() == 1 else found.isnan().all(-1))


def _differences(first: Tensor, second: Tensor) -> Float[Tensor, " T"]:
    """The largest difference of each score; NaN equals NaN alone, and an infinity itself."""
    parts: list[Tensor] = []
    for a, b in zip(first.split(ROWS), second.split(ROWS), strict=True):
        gap = (a - b).abs().nan_to_num(nan=math.inf, posinf=math.inf).masked_fill((a == b) | (a.isnan() & b.isnan()), 0)
        parts.append(gap if gap.dim() == 1 else gap.amax(-1))
    return torch.cat(parts).double()
