"""`tint demo`: see two trained models learn inside their own forward pass, offline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tintformer.cli.options import Device, Dtype, Json
from tintformer.cli.rule_setup import open_model, warnings_as_lines
from tintformer.console import doing, on_one_line, print_json, say
from tintformer.learning.split import Split

if TYPE_CHECKING:
    import torch

    from tintformer.auxiliary.description import Auxiliary
    from tintformer.execution.output import TintOutput
    from tintformer.rule.learning_rule import LearningRule

GAINS = 5
"""Tokens listed of those that gained most."""
REPORTS = Path("tint-demo")
WIDEST = len("inside the pass, constructed simulator")
"""Characters of the longest name of a way to score the rest of a text."""
Tell = Callable[[str], None]
"""Prints a line as soon as it is known."""


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Directory for the reports, one for each model.")
    ] = REPORTS,
    report: Annotated[bool, typer.Option(help="Write the reports.")] = True,
    dtype: Dtype = "float32",
    device: Device = None,
    json: Json = False,
) -> None:
    """Train the bundled models inside one forward pass on the first part of a text, and score the rest.

    The same text is scored by the model as it is, after explicit fine-tuning, by the fast engine and by the constructed
    simulator. Nothing is downloaded.
    """
    from tintformer.bundled import BUNDLED, TEXTS
    from tintformer.learning.text import find_tokenizer
    from tintlab.show.plot_style import WITHOUT_FIGURES, has_matplotlib

    places = {pair: output / "-".join(pair) for pair in zip(BUNDLED, TEXTS, strict=True)} if report else {}
    for place in places.values():
        check_place(place)
    results: list[dict[str, Any]] = []
    tell: Tell = (lambda _: None) if json else say
    with warnings_as_lines():
        for model in BUNDLED:
            auxiliary, tokenizer = open_model(model, dtype, device), find_tokenizer(model)
            for text in TEXTS:
                doing(f"{model} reads {text}")
                results.append(show(auxiliary, tokenizer, text, places.get((model, text)), tell))
                tell("")
    if json:
        print_json(results)
        return
    for result in results:
        say(_in_one_line(result))
    if places and not has_matplotlib():
        say(f"the reports are {WITHOUT_FIGURES}")


def check_place(directory: Path) -> None:
    """Refuse what a report could not be written into."""
    from tintlab.reports import check_directory

    check_directory(directory)


def show(auxiliary: Auxiliary, tokenizer: Any, name: str, output: Path | None, tell: Tell) -> dict[str, Any]:
    """One model on one text: losses four ways, how far they agree, and how large everything is; each told at once."""
    import torch

    from tintformer.bundled import read_text
    from tintformer.learning.rate_selection import choose_rate
    from tintformer.learning.text import encode
    from tintformer.learning.words import distinct_words
    from tintformer.rule.learning_rule import LearningRule
    from tintlab.checks.accounting.paper_formula import Formula

    text = read_text(name)
    encoded = encode(tokenizer, text)
    ids = torch.tensor([encoded.input_ids])
    num_tokens = ids.shape[1]
    num_train = Split().of(num_tokens)
    train = torch.arange(num_tokens)[None] < num_train
    choice = choose_rate(auxiliary, LearningRule(learning_rate=0.0), ids, train)
    rule = LearningRule(learning_rate=choice.rate)
    tell(f"{auxiliary.name} reads {name}: {num_train} of {num_tokens} tokens trained on, rate {choice.rate:.2g}")
    losses, fast, built, structural = score_four_ways(auxiliary, rule, ids, num_train, tell)
    assert fast.token_loss_before is not None and fast.logits is not None and built.logits is not None
    gains = (fast.token_loss_before - fast.token_loss)[0]
    best = distinct_words(encoded.tokens, gains.argsort(descending=True).tolist(), GAINS)
    result = {
        "model": auxiliary.name,
        "text": name,
        "tokens": num_tokens,
        "train_tokens": num_train,
        "learning_rate": rule.learning_rate,
        "losses": losses,
        "perplexities": {way: float(torch.tensor(loss).exp()) for way, loss in losses.items()},
        "engines_differ_by": float((fast.logits - built.logits).abs().max()),
        "cosine": cosine(auxiliary, ids, train),
        "auxiliary": auxiliary.model.num_parameters(),
        "simulator": structural,
        "paper": Formula.of(auxiliary.model.config).total,
        "gained_most": [{"token": context.word, "nats": float(gains[at])} for context, at in best],
        "report": None,
    }
    for line in _comparisons(result):
        tell(line)
    if output is not None:
        from tintlab.reports import collect, write

        doing(f"{auxiliary.name} reads {name}: drawing the report")
        found = collect(auxiliary, rule, text, encoded, tokenizer, train_tokens=num_train, choice=choice, name=name)
        result["report"] = str(write(found, output))
        tell(f"report: {result['report']}")
    return result


def score_four_ways(
    auxiliary: Auxiliary, rule: LearningRule, ids: torch.Tensor, num_train: int, tell: Tell
) -> tuple[dict[str, float], TintOutput, TintOutput, int]:
    """Losses of the rest of a text by way, what the engine and the simulator return, and the simulator's size."""
    import torch

    from tintformer.learning.tint import Tint
    from tintformer.simulator.simulator import build
    from tintlab.methods.fine_tuning import fine_tune

    losses: dict[str, float] = {}

    def found(way: str, loss: Any, then: str) -> None:
        losses[way] = float(loss)
        perplexity = float(torch.tensor(losses[way]).exp())
        tell(f"  {way:{WIDEST}}  {losses[way]:.4f} nats per token, perplexity {perplexity:.2f}")
        doing(f"{auxiliary.name}: {then}")

    train = torch.arange(ids.shape[1])[None] < num_train
    fast = Tint(auxiliary, rule)(ids, train_mask=train, before=True, logits="evaluation")
    found("the model as it is", fast.loss_before, "explicit fine-tuning")
    found("explicit fine-tuning", fine_tune(auxiliary, ids, num_train).loss, "the fast engine")
    found("inside the pass, fast engine", fast.loss, "building the simulator")
    simulator = build(auxiliary, rule)
    built = simulator(ids, train_mask=train, logits="evaluation")
    found("inside the pass, constructed simulator", built.loss, "comparing gradients")
    return losses, fast, built, simulator.num_structural


def cosine(auxiliary: Auxiliary, ids: Any, train: Any) -> float:
    """Between the simulated gradient and the true one, over all parameters of the blocks and the final norm."""
    import torch

    from tintformer.learning.tint import Tint
    from tintformer.rule.learning_rule import LearningRule

    true, ours = (
        Tint(auxiliary, make(learning_rate=1e-3))(ids, train_mask=train, logits="none").updates()
        for make in (LearningRule.full, LearningRule)
    )
    flat = [(true[name].flatten(), ours.get(name, torch.zeros_like(true[name])).flatten()) for name in true]
    left, right = (torch.cat(side).double() for side in zip(*flat, strict=True))
    return float(torch.cosine_similarity(left, right, dim=0))


def _comparisons(result: dict[str, Any]) -> Iterator[str]:
    yield f"fast engine and simulator: logits differ by {result['engines_differ_by']:.1e} at most"
    yield f"simulated and true gradient: cosine {result['cosine']:.3f} over all block parameters"
    yield (
        f"sizes: model {result['auxiliary']:,}, simulator's structure {result['simulator']:,} "
        f"(the paper's construction: {result['paper']:,})"
    )
    gained = ", ".join(f"{on_one_line(each['token'])} {each['nats']:.2f}" for each in result["gained_most"])
    yield f"gained most, in nats: {gained}"


def _in_one_line(result: dict[str, Any]) -> str:
    before, *_, after = result["perplexities"].values()
    return f"{result['model']} on {result['text']}: perplexity {before:.2f} -> {after:.2f}"
