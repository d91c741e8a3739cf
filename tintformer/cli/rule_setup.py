"""What commands that train share: open a model, choose the learning rule, and report what was done."""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from tintformer.cli.options import (
    DTYPES,
    RuleOptions,
)
from tintformer.console import complain, doing, print_table, say
from tintformer.errors import LoadError, TintWarning, brief

if TYPE_CHECKING:
    import torch

    from tintformer.auxiliary.description import Auxiliary
    from tintformer.learning.rate_selection import RateChoice
    from tintformer.rule.learning_rule import LearningRule
    from tintformer.study.text_stream import Document


@contextmanager
def warnings_as_lines(gather: Callable[[list[str]], list[str]] = lambda messages: messages) -> Generator[None]:
    """Print each of the package's own warnings once, as one line; after an error, that line alone.

    `gather` maps the messages of this process to those that are printed: with several processes, one prints for all.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TintWarning)
        yield
    messages = [str(each.message) for each in caught if issubclass(each.category, TintWarning)]
    for message in dict.fromkeys(gather(messages)):
        complain(f"warning: {message}")


def open_model(name: str, dtype: str, device: str | None = None) -> Auxiliary:
    """Load a model without the chatter of the libraries, unless this machine could never run it."""
    from tintformer.storage.packages import require_model

    check_dtype(dtype)
    doing(f"loading {name}")
    require_model(name)  # a wrong one is told of before seconds of imports
    quiet_libraries()
    check_place(dtype, device)
    import torch

    from tintformer.storage.configs import refuse_the_impossible
    from tintformer.storage.loading import load

    if device in (None, "cpu"):  # of other devices' memory nothing is known here
        refuse_the_impossible(name, getattr(torch, dtype))
    return load(name, dtype=getattr(torch, dtype), device=device)


def check_dtype(dtype: str) -> None:
    """Refuse a dtype that models are not computed in."""
    if dtype not in DTYPES:
        raise LoadError(f"dtype={brief(dtype)} is unknown; choose one of {', '.join(DTYPES)}")


def check_place(dtype: str, device: str | None) -> None:
    """Refuse a dtype that models are not computed in, and a device that is not here."""
    check_dtype(dtype)
    if device is not None:
        from tintformer.storage.loading import check_device

        check_device(device)


def quiet_libraries() -> None:
    """Keep transformers from talking; it is imported here."""
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # read when tqdm is imported, so before transformers is
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def choose_rule(
    options: RuleOptions,
    auxiliary: Auxiliary,
    input_ids: torch.Tensor,
    train_mask: torch.Tensor,
    *,
    engine: str = "fast",
    together: bool = False,
    attention_mask: torch.Tensor | None = None,
) -> tuple[LearningRule, RateChoice | None]:
    """The rule to learn by; if its rate is to be found, also what it was chosen from."""
    rule = options.build()
    if not options.auto:
        return rule, None
    from tintformer.learning.rate_selection import RatePoint, choose_rate

    def show(point: RatePoint) -> None:
        doing(f"choosing a learning rate: {point.rate:.3g} gives {point.loss:.4f} nats")

    doing("choosing a learning rate")
    choice = choose_rate(
        auxiliary,
        rule,
        input_ids,
        train_mask,
        engine=engine,
        together=together,
        attention_mask=attention_mask,
        on_point=show,
    )
    doing(f"learning at rate {choice.rate:.3g}")
    return replace(rule, learning_rate=choice.rate), choice


def losses_record(before: float, after: float) -> dict[str, Any]:
    """Losses in nats per token and their perplexities."""
    return {
        "loss_before": finite(before),
        "loss": finite(after),
        "perplexity_before": _perplexity(before),
        "perplexity": _perplexity(after),
    }


def _perplexity(loss: float) -> float | None:
    return finite(math.exp(loss)) if loss < 700 else None


def finite(value: float) -> float | None:
    """JSON has no infinity: a non-finite value is null."""
    return value if math.isfinite(value) else None


def provenance(auxiliary: Auxiliary, rule: LearningRule, choice: RateChoice | None) -> dict[str, Any]:
    """The identity of what produced a result."""
    import torch
    import transformers

    from tintformer.version import __version__

    curve = [{"rate": point.rate, "loss": finite(point.loss)} for point in choice.curve] if choice else []
    return {
        "model": auxiliary.name,
        "dtype": str(auxiliary.dtype).removeprefix("torch."),
        "device": str(auxiliary.device),
        "rule": asdict(rule),
        "rate_choice": {**asdict(choice), "curve": curve} if choice else None,
        "versions": {
            "tintformer": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def print_losses(record: dict[str, Any], title: str) -> None:
    """Loss and perplexity before and after, for people."""
    rows = [
        {"": "before", "loss (nats per token)": record["loss_before"], "perplexity": record["perplexity_before"]},
        {"": "after", "loss (nats per token)": record["loss"], "perplexity": record["perplexity"]},
    ]
    say(title)
    print_table([{key: shown(value) for key, value in row.items()} for row in rows])


def print_rate(record: dict[str, Any]) -> None:
    """The rate, and the curve that it was chosen from."""
    rate, choice = record["rule"]["learning_rate"], record["rate_choice"]
    if choice is None:
        say(f"learning rate {rate:.3g}, as given")
        return
    say(f"learning rate {rate:.3g}: {choice['reason']}")
    if choice["evaluation_tokens"]:
        print_table(
            [
                {"rate": f"{point['rate']:.3g}", "held-out loss": shown(point["loss"]), "": _mark(point, rate)}
                for point in choice["curve"]
            ],
            title=f"inside the training part, {choice['evaluation_tokens']} of its {choice['train_tokens']} tokens",
        )


def _mark(point: dict[str, Any], rate: float) -> str:
    chosen = "chosen" if point["rate"] == rate else ""
    if point["rate"] == 0:
        return f"no training, {chosen}".removesuffix(", ")
    return chosen if point["loss"] is not None else "diverged"


def shown(value: Any) -> str:
    """A number for a table; a non-finite one, null in the record, is infinite."""
    return "inf" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


def encoded(auxiliary: Auxiliary, name: str, content: str, special: bool) -> Document:
    """A text as its tokens."""
    from tintformer.learning.text import encode
    from tintformer.study.text_stream import Document

    doing(f"tokenising {name}")
    ids = encode(auxiliary.tokenizer, content, at_least=2, special=special).input_ids
    return Document(name=name, input_ids=ids)
