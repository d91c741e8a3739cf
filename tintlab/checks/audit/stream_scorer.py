"""What `audit` calls for a stream of ours: the log-probabilities that its tokens are scored by."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tintformer.learning.streams import StreamSettings
from tintformer.learning.tint import Tint


@dataclass(frozen=True, eq=False, kw_only=True)
class StreamScorer:
    """Reads a text by `Tint.stream` from the beginning, every time that it is called."""

    sim: Tint
    settings: StreamSettings = field(default_factory=StreamSettings)
    together: bool = False
    """Whether documents are rows of one batch; else they are read one after the other."""

    def __call__(self, ids: Int[Tensor, " T"], document_ids: Int[Tensor, " T"] | None = None) -> Float[Tensor, "T V"]:
        """The log-probabilities of every token; NaN for the first of a document, which nothing predicts."""
        rows = torch.arange(len(ids))[None] if document_ids is None or not self.together else _rows(document_ids)
        here = rows >= 0
        places = rows.clamp(min=0)
        how = self.settings
        pieces = self.sim.stream(
            ids[places],
            chunk=how.chunk,
            window=how.window,
            carry=how.carry,
            document_ids=None if document_ids is None or self.together else document_ids[None],
            attention_mask=here,
            logits=True,
        )
        found: Tensor | None = None
        for piece in pieces:
            assert piece.logits is not None
            if found is None:
                found = piece.logits.new_full((len(ids), piece.logits.shape[-1]), torch.nan)
            at = places.to(found.device).gather(1, piece.columns.clamp(min=0))[piece.scored]
            found[at] = piece.logits[piece.scored].log_softmax(-1)
        assert found is not None
        return found


def _rows(document_ids: Int[Tensor, " T"]) -> Int[Tensor, "documents longest"]:
    """Where the tokens of each document stand, -1 after the last of them."""
    places = [(document_ids == number).nonzero().flatten() for number in document_ids.unique()]
    return torch.nn.utils.rnn.pad_sequence(places, batch_first=True, padding_value=-1)
