"""`tint demo`: see two trained models learn inside their own forward pass, offline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tintformer.cli.options import Device, Dtype, Json
from tintformer.cli.rule_setup import open_model, warnings_as_lines
from tintformer.console import print_json, print_table, progress_bar, say

if TYPE_CHECKING:
    from tintformer.auxiliary.description import Auxiliary

GAINS = 5
"""Tokens listed of those that gained most."""
REPORTS = Path("tint-demo")


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
    from tintformer.analysis.plot_style import WITHOUT_FIGURES, has_matplotlib
    from tintformer.bundled import BUNDLED, TEXTS
    from tintformer.learning.text import find_tokenizer

    places = {pair: output / "-".join(pair) for pair in zip(BUNDLED, TEXTS, strict=True)} if report else {}
    for place in places.values():
        check_place(place)
    results: list[dict[str, Any]] = []
    with warnings_as_lines(), progress_bar() as progress:
        for model in BUNDLED:
            auxiliary, tokenizer = open_model(model, dtype, device), find_tokenizer(model)
            for text in TEXTS:
                progress(f"{model} reads {text}", len(results) / (len(BUNDLED) * len(TEXTS)))
                results.append(show(auxiliary, tokenizer, text, places.get((model, text))))
    if json:
        print_json(results)
    else:
        for result in results:
            _print(result)
        for result in results:
            say(_in_one_line(result))
        if places and not has_matplotlib():
            say(f"the reports are {WITHOUT_FIGURES}")


def check_place(directory: Path) -> None:
    """Refuse what a report could not be written into."""
    from tintformer.report import check_directory

    check_directory(directory)


def show(auxiliary: Auxiliary, tokenizer: Any, name: str, output: Path | None) -> dict[str, Any]:
    """One model on one text: losses four ways, how far they agree, and how large everything is."""
    import torch

    from tintformer.analysis.paper_formula import Formula
    from tintformer.bundled import read_text
    from tintformer.learning.rate_selection import choose_rate
    from tintformer.learning.text import encode
    from tintformer.learning.tint import Tint
    from tintformer.rule.learning_rule import LearningRule
    from tintformer.simulator.simulator import build

    text = read_text(name)
    encoded = encode(tokenizer, text)
    ids = torch.tensor([encoded.input_ids])
    num_train = ids.shape[1] // 2
    train = torch.arange(ids.shape[1])[None] < num_train
    choice = choose_rate(auxiliary, LearningRule(learning_rate=0.0), ids, train)
    rule = LearningRule(learning_rate=choice.rate)
    fast = Tint(auxiliary, rule)(ids, train_mask=train, before=True, logits="evaluation")
    simulator = build(auxiliary, rule)
    built = simulator(ids, train_mask=train, logits="evaluation")
    assert fast.loss is not None and fast.loss_before is not None and built.loss is not None
    assert fast.token_loss_before is not None and fast.logits is not None and built.logits is not None
    losses = {
        "the model as it is": float(fast.loss_before),
        "explicit fine-tuning": explicit_loss(auxiliary, ids, num_train),
        "inside the pass, fast engine": float(fast.loss),
        "inside the pass, constructed simulator": float(built.loss),
    }
    gains = (fast.token_loss_before - fast.token_loss)[0]
    best = distinct_words(encoded.tokens, gains.argsort(descending=True).tolist())[:GAINS]
    result = {
        "model": auxiliary.name,
        "text": name,
        "tokens": ids.shape[1],
        "train_tokens": num_train,
        "learning_rate": rule.learning_rate,
        "losses": losses,
        "perplexities": {way: float(torch.tensor(loss).exp()) for way, loss in losses.items()},
        "engines_differ_by": float((fast.logits - built.logits).abs().max()),
        "cosine": cosine(auxiliary, ids, train),
        "auxiliary": auxiliary.model.num_parameters(),
        "simulator": simulator.num_structural,
        "paper": Formula.of(auxiliary.model.config).total,
        "gained_most": [{"token": shown, "nats": float(gains[at])} for shown, at in best],
        "report": None,
    }
    if output is not None:
        from tintformer.report import collect, write

        found = collect(auxiliary, rule, text, encoded, tokenizer, train_tokens=num_train, choice=choice)
        result["report"] = str(write(found, output))
    return result


def distinct_words(tokens: Sequence[str], order: Sequence[int]) -> list[tuple[str, int]]:
    """Tokens in this order as they stand in their words, `Verre[ll]`, each with its place; what comes again once."""
    found: dict[str, int] = {}
    for at in order:
        first, last = at, at + 1
        while first > 0 and tokens[first][:1].isalpha() and tokens[first - 1][-1:].isalpha():
            first -= 1
        while last < len(tokens) and tokens[last - 1][-1:].isalpha() and tokens[last][:1].isalpha():
            last += 1
        before, after = "".join(tokens[first:at]), "".join(tokens[at + 1 : last])
        space = tokens[at][: len(tokens[at]) - len(tokens[at].lstrip())]
        whole = f"{before}{space}[{tokens[at].removeprefix(space)}]{after}" if before or after else tokens[at]
        found.setdefault(whole.strip(), at)
    return list(found.items())


def explicit_loss(auxiliary: Auxiliary, ids: Any, num_train: int) -> float:
    """Fine-tuning of all block weights by autograd and SGD, at its own best rate inside the training part."""
    import torch

    from tintformer.analysis.baselines import Explicit, block_names
    from tintformer.learning.rate_selection import choose_rate
    from tintformer.rule.learning_rule import LearningRule

    train = torch.arange(ids.shape[1])[None] < num_train
    choice = choose_rate(auxiliary, LearningRule.full(learning_rate=0.0), ids, train)
    tuner = Explicit(auxiliary.model, block_names(auxiliary), choice.rate)
    return float(tuner.tune_each(ids, num_train).mean())


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


def _print(result: dict[str, Any]) -> None:
    title = (
        f"{result['model']} reads {result['text']}: {result['train_tokens']} of {result['tokens']} tokens trained on, "
        f"rate {result['learning_rate']:.2g}"
    )
    rows = [
        {"the rest of the text, scored by": way, "nats per token": f"{loss:.4f}", "perplexity": f"{perplexity:.2f}"}
        for (way, loss), perplexity in zip(result["losses"].items(), result["perplexities"].values(), strict=True)
    ]
    print_table(rows, title=title)
    say(f"fast engine and simulator: logits differ by {result['engines_differ_by']:.1e} at most")
    say(f"simulated and true gradient: cosine {result['cosine']:.3f} over all block parameters")
    say(
        f"sizes: model {result['auxiliary']:,}, simulator's structure {result['simulator']:,} "
        f"(the paper's construction: {result['paper']:,})"
    )
    gained = ", ".join(f"{each['token']} {each['nats']:.2f}" for each in result["gained_most"])
    say(f"gained most, in nats: {gained}")
    if result["report"]:
        say(f"report: {result['report']}")
    say()


def _in_one_line(result: dict[str, Any]) -> str:
    before, *_, after = result["perplexities"].values()
    return f"{result['model']} on {result['text']}: perplexity {before:.2f} -> {after:.2f}"
