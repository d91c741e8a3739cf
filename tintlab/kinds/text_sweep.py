"""One text by many rules: what a unit of a sweep is, and how it is run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from tintformer.errors import DivergenceError
from tintlab.data.models import OpenModel, open_model
from tintlab.methods.methods import Adaptation, learn_each, learn_once
from tintlab.study.store import UnitResult, canonical, sha256

if TYPE_CHECKING:
    from tintformer.auxiliary.description import Auxiliary


@dataclass(frozen=True, eq=False, kw_only=True)
class TextSweep:
    """One model on one text, trained on its first tokens and scored on the rest; a unit is a rule, or None for none."""

    kind: ClassVar[str] = "sweep"
    version: ClassVar[int] = 1
    """Raised by hand when a number of these units changes."""

    input_ids: tuple[int, ...]
    train_tokens: int
    model: str
    """The name by which other processes load it."""
    dtype: str
    engine: str = "fast"
    threads: int = 1
    """Of each process. Recorded, because the last digits of a sum depend on it."""
    opened: OpenModel | None = field(default=None, repr=False)
    """A model that is loaded already; it is not sent to other processes."""

    def __reduce__(self) -> Any:
        return _remade, (replace(self, opened=None).__dict__,)

    @property
    def device_type(self) -> str:
        """Recorded, because kinds of devices add up in orders of their own."""
        return self._opened().auxiliary.device.type

    def identity(self, unit: Adaptation | None) -> dict[str, Any]:
        return {
            "model": self._opened().identity,
            "rule": unit and asdict(unit),
            "engine": unit and self.engine,
            "tokens": sha256(canonical(self.input_ids)),
            "train_tokens": self.train_tokens,
        }

    def run(self, unit: Adaptation | None) -> UnitResult:
        """The loss of every evaluated token, in nats; null if the rule diverges, which is a result too."""
        import torch

        torch.set_num_threads(self.threads)
        try:
            return {"token_loss": self._losses(self._opened().auxiliary, unit)}
        except DivergenceError:
            return {"token_loss": None}

    def _losses(self, auxiliary: Auxiliary, unit: Adaptation | None) -> list[float]:
        import torch

        ids = torch.tensor([self.input_ids])
        train = torch.arange(ids.shape[1])[None] < self.train_tokens
        if unit is None:
            out = learn_once(auxiliary, None).score(ids, score_mask=~train)
        else:
            out = learn_each(auxiliary, unit, self.engine, input_ids=ids, train_mask=train)
        return out.token_loss[0, self.train_tokens :].double().tolist()

    def _opened(self) -> OpenModel:
        return self.opened or open_model(self.model, self.dtype)


def _remade(fields: dict[str, Any]) -> TextSweep:
    return TextSweep(**fields)
