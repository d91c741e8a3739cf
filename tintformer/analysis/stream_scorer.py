"""What `audit` calls for a stream of ours: the log-probabilities that its tokens are scored by."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tintformer.learning.streams import StreamSettings
from tintformer.learning.tint import Tint


@dataclass(frozen=True, eq=False)
class StreamScorer:
    """Reads a text by `Tint.stream` from the beginning, every time that it is called."""

    sim: Tint
    settings: StreamSettings = field(default_factory=StreamSettings)

    def __call__(self, ids: Int[Tensor, " T"], document_ids: Int[Tensor, " T"] | None = None) -> Float[Tensor, "T V"]:
        """The log-probabilities of every token; NaN for the first of a document, which nothing predicts."""
        how = self.settings
        pieces = self.sim.stream(
            ids[None],
            chunk=how.chunk,
            window=how.window,
            carry=how.carry,
            document_ids=None if document_ids is None else document_ids[None],
            logits=True,
        )
        found: list[Tensor] = []
        for piece in pieces:
            assert piece.logits is not None
            found.append(piece.logits[0].log_softmax(-1).masked_fill(~piece.scored[0, :, None], torch.nan))
        return torch.cat(found)  # of one row without padding, the pieces side by side are the text
