# pyright: basic
"""Audits: every seeded leak is found and named, and procedures that do not leak pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import VOCABULARY, make_model, make_rule
from torch import Tensor
from torch.nn import functional

import tintformer as tint
import tintlab as lab
from tintformer.learning.streams import StreamSettings
from tintlab.checks.audit.stream_scorer import StreamScorer

TOKENS, CHUNK, WINDOW = 24, 8, 16
DOCUMENTS = torch.tensor([0] * 8 + [1] * 9 + [3] * 7)
FEW = 2
"""Places: enough for leaks that every token shows."""
RATE = 2e-3


def text(length: int = TOKENS, seed: int = 3) -> Tensor:
    return torch.randint(3, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed))


@cache
def sim(name: str = "gpt2", rate: float = RATE, dtype: torch.dtype = torch.float64) -> tint.Tint:
    return tint.Tint(tint.load(make_model(name, dtype)), make_rule("full", learning_rate=rate))


def stream(carry: Any = "cache", **knobs: Any) -> StreamScorer:
    return StreamScorer(sim=sim(**knobs), settings=StreamSettings(chunk=CHUNK, window=WINDOW, carry=carry))


def plain_hf(ids: Tensor) -> Tensor:
    """The Hugging Face model's own logits, each beside the token that it predicts."""
    with torch.no_grad():
        rows = sim().auxiliary.model(ids[None]).logits[0].log_softmax(-1)
    return torch.cat((torch.full_like(rows[:1], torch.nan), rows[:-1]))


def losses_of_stream(ids: Tensor) -> Tensor:
    pieces = list(sim().stream(ids[None], chunk=CHUNK, window=WINDOW))
    return torch.cat([piece.token_loss[0] for piece in pieces])


def tint_call(ids: Tensor) -> Tensor:
    """Train on the first half, score the second."""
    train = torch.arange(len(ids))[None] < len(ids) // 2
    out = sim()(ids[None], train_mask=train, logits="evaluation")
    assert out.logits is not None
    rows = torch.full((len(ids), VOCABULARY), torch.nan, dtype=torch.float64)
    rows[out.evaluation_mask[0]] = out.logits.log_softmax(-1)
    return rows


# Leaks, each a procedure that somebody has published numbers of.


def score_after_learning(ids: Tensor) -> Tensor:
    """Scores a chunk by the weights that have learnt from it."""
    found = []
    for start in range(0, len(ids), CHUNK):
        here = ids[None, max(0, start - 1) : start + CHUNK]
        logits = sim().adapt(here).score(here, logits="all").logits
        assert logits is not None
        rows = logits[0].log_softmax(-1)
        nothing = torch.full_like(rows[:1], torch.nan)
        found.append(rows[:-1] if start else torch.cat((nothing, rows[:-1])))
    return torch.cat(found)


def normaliser_with_the_target(ids: Tensor) -> Tensor:
    """Normalises over the likely tokens and the target, in place of all."""
    rows = plain_hf(ids)
    likely = torch.zeros_like(rows, dtype=torch.bool).scatter_(1, rows.topk(8).indices, True)
    likely[torch.arange(len(ids)), ids] = True
    return rows.masked_fill(~likely, -torch.inf).log_softmax(-1)


def normaliser_without_the_target(ids: Tensor) -> Tensor:
    """The target's logit is left out of the sum that it is divided by, as in a margin loss."""
    rows = plain_hf(ids)
    others = rows.clone()
    others[torch.arange(len(ids)), ids] = -torch.inf
    return rows - others.logsumexp(-1, keepdim=True)


def cache_that_survives(ids: Tensor, document_ids: Tensor) -> Tensor:
    """Goes on reading where a document ends."""
    return stream()(ids)


def rate_chosen_on_scores(ids: Tensor) -> Tensor:
    """Takes the rate whose scores are best."""

    def mean(rows: Tensor) -> float:
        return float(functional.nll_loss(rows[1:], ids[1:]))

    return min((stream(rate=rate)(ids) for rate in (0.0, 0.1)), key=mean)


def second_pass(ids: Tensor) -> Tensor:
    """Reads the text twice and reports what it says the second time."""
    twice = torch.cat((ids, ids))
    return stream("none")(twice)[len(ids) :]


class KeepsLearning:
    """Goes on from where the last call ended."""

    def __init__(self) -> None:
        self.state: Any = None

    def __call__(self, ids: Tensor) -> Tensor:
        pieces = list(sim(rate=0.02).stream(ids[None], chunk=CHUNK, window=WINDOW, carry="none", state=self.state))
        self.state = pieces[-1].state
        return torch.cat([piece.token_loss[0] for piece in pieces])


def reach(certificate: lab.Certificate) -> int:
    """How far ahead a score has seen."""
    return max((finding.token or 0) - finding.score for finding in certificate.findings)


@pytest.mark.parametrize(
    ("carry", "dtype", "documents"),
    [
        ("none", torch.float64, DOCUMENTS),
        ("recompute", torch.float64, DOCUMENTS),
        ("cache", torch.float64, None),
        ("cache", torch.float32, DOCUMENTS),
    ],
)
def test_streams_pass_with_and_without_documents(carry: str, dtype: torch.dtype, documents: Tensor | None) -> None:
    certificate = lab.audit(stream(carry, dtype=dtype), text(), documents, places=FEW)
    assert certificate.passed and certificate.tolerance < 1e-5, certificate.findings
    verdicts = {check.kind: check.verdict for check in certificate.checks}
    other = verdicts.pop("another document")
    assert other == ("not checked" if documents is None else "passed")
    assert set(verdicts.values()) == {"passed"}


@pytest.mark.parametrize("score", [plain_hf, tint_call, losses_of_stream])
def test_other_right_procedures_pass(score: Callable[..., Tensor]) -> None:
    certificate = lab.audit(score, text(), places=FEW)
    assert certificate.passed, certificate.findings
    known = "passed" if score is not losses_of_stream else "not checked"
    assert certificate.check("own token").verdict == certificate.check("distribution").verdict == known


def test_documents_that_are_rows_of_a_batch_pass() -> None:
    score = replace(stream(), together=True)
    torch.testing.assert_close(score(text(), DOCUMENTS), stream()(text(), DOCUMENTS), equal_nan=True)
    certificate = lab.audit(score, text(), DOCUMENTS, places=3)
    assert certificate.passed and certificate.check("another document").tried == 12


def test_arrays_keep_their_precision() -> None:
    def score(ids: Tensor) -> Any:
        return plain_hf(ids).numpy() + 1e-12 * float(ids[-1] == text()[-1])

    certificate = lab.audit(score, text(), places=FEW)
    assert certificate.kinds == ("later tokens",) and 0 < certificate.findings[0].difference < 1e-11


def test_scoring_after_learning_is_named() -> None:
    certificate = lab.audit(score_after_learning, text(), places=FEW)
    assert set(certificate.kinds) == {"own token", "later tokens"}
    for finding in certificate.findings:
        assert finding.token is not None and finding.difference > certificate.tolerance
        assert finding.token // CHUNK == finding.score // CHUNK
        if finding.kind == "later tokens":
            # The leak is as wide as a chunk, and ends where the chunk does.
            assert finding.token % CHUNK == CHUNK - 1 and finding.score % CHUNK in (0, 1)


def test_scores_alone_show_what_later_tokens_move() -> None:
    def losses(ids: Tensor) -> Tensor:
        return -score_after_learning(ids)[torch.arange(len(ids)), ids]

    certificate = lab.audit(losses, text(), places=FEW)
    assert certificate.kinds == ("later tokens",)
    assert certificate.check("own token").verdict == "not checked"


def test_targets_in_the_normaliser_are_named() -> None:
    certificate = lab.audit(normaliser_with_the_target, text())
    assert certificate.kinds == ("own token",) and certificate.check("distribution").verdict == "passed"
    assert all(finding.token == finding.score for finding in certificate.findings)
    certificate = lab.audit(normaliser_without_the_target, text())
    assert set(certificate.kinds) == {"own token", "distribution"}
    assert certificate.check("distribution").leaked == TOKENS - 1


def test_a_cache_that_survives_is_named() -> None:
    certificate = lab.audit(cache_that_survives, text(), DOCUMENTS, places=FEW)
    assert certificate.kinds == ("another document",)
    for finding in certificate.findings:
        assert finding.token is not None and DOCUMENTS[finding.token] < DOCUMENTS[finding.score]
        assert "moves the score of token" in str(finding)
    assert lab.audit(lambda ids: cache_that_survives(ids, DOCUMENTS), text(), places=1).passed


def test_a_rate_chosen_on_scored_tokens_is_named() -> None:
    # Random tokens teach nothing; what repeats one token is best read at a high rate.
    certificate = lab.audit(rate_chosen_on_scores, text(), places=FEW)
    assert "later tokens" in certificate.kinds
    # It reaches further than any chunk: that is how it differs from learning before scoring.
    assert reach(certificate) > CHUNK


def test_a_second_pass_is_named() -> None:
    certificate = lab.audit(second_pass, text(), places=FEW)
    assert set(certificate.kinds) == {"own token", "later tokens"}
    assert reach(certificate) > CHUNK


def test_what_is_kept_between_calls_is_named() -> None:
    certificate = lab.audit(KeepsLearning(), text())
    assert certificate.kinds == ("not repeatable",) and certificate.name == "KeepsLearning"
    assert certificate.check("later tokens").verdict == "not checked"


def test_noise_is_measured_and_is_no_leak() -> None:
    generator = torch.Generator().manual_seed(1)

    def noisy(ids: Tensor) -> Tensor:
        return plain_hf(ids) + 1e-9 * torch.rand(len(ids), VOCABULARY, generator=generator, dtype=torch.float64)

    certificate = lab.audit(noisy, text())
    assert certificate.passed and 1e-9 < certificate.tolerance < 3e-9 and certificate.identical_runs == 8
    leak = lab.audit(lambda ids: (noisy(ids) * (1 + 1e-6 * float(ids[-1]))).log_softmax(-1), text())
    assert "later tokens" in leak.kinds and all(finding.token == TOKENS - 1 for finding in leak.findings)


def test_a_difference_now_and_then_is_no_leak() -> None:
    """As of kernels that add up in another order when the machine is busy."""
    runs = iter(range(10_000))

    def sometimes(ids: Tensor) -> Tensor:
        return plain_hf(ids) + 1e-12 * (next(runs) % 5 == 4)

    assert lab.audit(sometimes, text()).passed


def test_it_is_the_same_every_time() -> None:
    first, again = (lab.audit(normaliser_with_the_target, text(), seed=7) for _ in range(2))
    assert first == again and first.to_json() == again.to_json()
    assert lab.audit(plain_hf, text(), seed=8).places != first.places


def test_tokens_that_are_fixed_stay() -> None:
    seen: list[Tensor] = []

    def score(ids: Tensor, document_ids: Tensor) -> Tensor:
        seen.append(ids)
        return stream()(ids, document_ids)

    fixed = torch.arange(TOKENS) < 12
    assert lab.audit(score, text(), DOCUMENTS, fixed=fixed, vocabulary=VOCABULARY, places=4).passed
    assert all(torch.equal(ids[:12], text()[:12]) for ids in seen) and len({tuple(ids.tolist()) for ids in seen}) > 4


def test_divergence_on_a_changed_text_shows_nothing() -> None:
    def score(ids: Tensor) -> Tensor:
        if not torch.equal(ids, text()):
            raise tint.DivergenceError.at("a score", 1.0)
        return plain_hf(ids)

    certificate = lab.audit(score, text(), places=2)
    assert certificate.diverged == 4 and certificate.check("later tokens").verdict == "not checked"


def test_a_leak_that_reaches_over_two_parts_is_met_and_a_shorter_one_may_be_missed() -> None:
    def leaks_at(start: int, end: int) -> Callable[[Tensor], Tensor]:
        """All scores right but those from `start` on, which know what comes up to before `end`."""

        def score(ids: Tensor) -> Tensor:
            rows = torch.zeros(len(ids), VOCABULARY)
            rows[start:end, ids[end - 1]] += 1
            return rows.log_softmax(-1)

        return score

    found = {
        (width, places): [
            lab.audit(leaks_at(start, start + width), text(96), places=places, seed=start).passed
            for start in range(0, 97 - width, 5)
        ]
        for width, places in ((11, 16), (23, 8), (7, 8))
    }
    assert not any(found[11, 16]) and not any(found[23, 8])  # of parts of 6 and of 12 tokens
    assert any(found[7, 8])
    # Whoever reads that it has passed reads at how many places.
    assert "at 8 of 96 places" in repr(lab.audit(leaks_at(0, 1), text(96), places=8))


def test_a_certificate_is_short_and_complete(tmp_path: Path) -> None:
    certificate = lab.audit(normaliser_with_the_target, text(), places=2)
    assert repr(certificate) == (
        "<Certificate of normaliser_with_the_target: FAILED (own token) at 2 of 23 places; 24 tokens, "
        f"tolerance {certificate.tolerance:.3g}, not checked: another document>"
    )
    certificate.save(tmp_path / "it.json")
    record = json.loads((tmp_path / "it.json").read_text())
    assert record == json.loads(certificate.to_json()) and record["passed"] is False
    assert record["findings"][0]["text"].startswith("own token: token ")
    verdicts = [row["verdict"] for row in certificate.rows()]
    at = "at 2 of 23 places"
    assert record["possible_places"] == 23 and len(record["places"]) == 2
    assert verdicts == [f"failed {at}", f"passed {at}", "not checked: there is one document", "passed", "passed"]


def test_bad_input_is_one_line() -> None:
    def gives(value: Any) -> Callable[[Tensor], Any]:
        return lambda ids: value

    for score, message in (
        (gives(torch.zeros(3)), r"score gave torch.float32 of shape \(3,\) for 24 tokens"),
        (gives(torch.zeros(TOKENS, dtype=torch.long)), "score gave torch.int64"),
        (gives(None), "what score returned is None"),
        (gives(torch.full((TOKENS,), torch.nan)), "score gave NaN for every token"),
    ):
        with pytest.raises(tint.InputError, match=message):
            lab.audit(score, text())
    with pytest.raises(tint.InputError, match="document_ids has 3 entries but the text 24 tokens"):
        lab.audit(plain_hf, text(), [0, 0, 1])
    with pytest.raises(tint.InputError, match=r"ids has shape \(1, 24\)"):
        lab.audit(plain_hf, text()[None])
    with pytest.raises(tint.InputError, match="one token over and over"):
        lab.audit(plain_hf, [3] * 9)
    with pytest.raises(tint.InputError, match="outside of the vocabulary of 4"):
        lab.audit(plain_hf, text(), vocabulary=4)
    with pytest.raises(tint.InputError, match="places=0 must be a whole number of at least 1"):
        lab.audit(plain_hf, text(), places=0)
    with pytest.raises(tint.InputError, match="no token can be changed"):
        lab.audit(plain_hf, text(), fixed=torch.ones(TOKENS, dtype=torch.bool))
