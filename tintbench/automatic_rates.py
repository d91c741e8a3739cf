"""How good the learning rate `auto` is, over many texts: how often it harms, and which share of the best gain it has.

Pieces of texts of several kinds and lengths are trained on, and the tokens that follow are scored: at every rate of a
grid, no learning among them, which shows the best rate in hindsight; at the rate that `auto` chooses from the training
part; and at the rate of the rule that it had before, which judged by the last fifth of the training part alone.

A text is kept in a file of its own as soon as it is done, and is not done again: the command may be stopped and given
again. Training parts longer than a model's context are packed as segments of the context's length.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import zlib
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

import tintformer as tint
from tintbench.results import markdown_table, run_as_script, save_json, save_markdown, versions
from tintformer.bundled import BUNDLED
from tintformer.console import print_table
from tintformer.execution.batch import Batch, LearningMasks
from tintformer.learning.rate_search import RatePoint, rate_curve
from tintformer.learning.rate_selection import choose_for
from tintformer.learning.rate_trials import Span, Trials, fold
from tintformer.learning.text import find_tokenizer, read_text
from tintformer.storage.whole_files import whole_file

STEPS = tuple(10 ** (exponent / 4) for exponent in range(-11, 5))
"""Rates times targets, four a decade: what is best in hindsight is looked for among them."""
HOPELESS = -0.3
"""A gain in nats below which larger rates are not tried."""
HARM = 0.01
"""Nats by which a loss must go up to count as harm."""
KINDS_OF_FILE = {".txt", ".md", ".py", ".jsonl"}

NOTE = """<!-- Written by `python -m tintbench.automatic_rates`; data/units/automatic-rates.csv has all numbers. -->

# The automatic learning rate

Pieces of texts of {num_kinds} kinds ({kinds}) and {num_lengths} lengths ({lengths} trained tokens) are learnt
from with the default rule in one pass, and the {evaluated} tokens that follow each are scored. *Harm* is a loss that
went up by more than {harm} nats. *Share* is the sum of the gains over the sum of the gains of the best rate in
hindsight, out of a grid of four a decade (every second one, then the neighbours of the best) and no learning.
*Before* is what `auto` was: the best of a grid on the last fifth of the training part, one step below. In brackets:
95% intervals, bootstrap over texts. Where the trained and the scored tokens are more than a model's context
({contexts}), they are packed as segments of that length. torch {torch}, float32, {threads} thread(s).

```bash
{command}
```
"""


def read_pieces(path: Path) -> list[str]:
    """The texts of a file or a directory; of *.jsonl the fields `text`, one a line."""
    files = sorted(each for each in path.rglob("*") if each.suffix in KINDS_OF_FILE) if path.is_dir() else [path]
    if not files:
        raise tint.InputError(f"{path} holds no texts")
    return [_read(file) for file in files]


def _read(file: Path) -> str:
    text = read_text(file=file)
    if file.suffix != ".jsonl":
        return text
    return "\n".join(" ".join(json.loads(line)["text"].split()) for line in text.splitlines())


def cut(tokenizer: Any, texts: Sequence[str], num_tokens: int, seed: str) -> list[int]:
    """So many tokens from the start of a line somewhere in the texts."""
    generator = torch.Generator().manual_seed(zlib.crc32(seed.encode()))

    def draw(below: int) -> int:
        return int(torch.randint(max(1, below), (), generator=generator))

    for _ in range(100):
        text = texts[draw(len(texts))]
        start = text.find("\n", draw(len(text))) + 1
        ids = tokenizer(text[start : start + 16 * num_tokens], verbose=False).input_ids
        if len(ids) >= num_tokens:
            return ids[:num_tokens]
    raise tint.InputError(f"the texts are too short for pieces of {num_tokens} tokens")


def make_batch(auxiliary: tint.Auxiliary, ids: list[int], num_train: int) -> Batch:
    """A piece as a batch of one, in segments where it is longer than the context."""
    position = torch.arange(len(ids))[None]
    longest, masks = auxiliary.max_positions, LearningMasks()
    if longest is not None and len(ids) > longest:
        masks["segment_ids"] = position // longest
    return Batch.of(auxiliary, torch.tensor([ids]), train_mask=position < num_train, **masks)


class Piece:
    """One text: what each rate gains on it."""

    def __init__(self, auxiliary: tint.Auxiliary, batch: Batch):
        self.auxiliary, self.batch = auxiliary, batch
        self.rule = tint.LearningRule(learning_rate=0.0)
        self.targets = batch.train_positions.sum(1).double()
        self.trials = Trials(auxiliary, self.rule, [batch], self.targets)
        self.untrained = self._mean(0.0)

    def _mean(self, rate: float, trials: Trials | None = None) -> float | None:
        losses = (trials or self.trials).losses(rate)
        return None if losses is None else float(losses.mean())

    def gain(self, rate: float) -> float | None:
        """Nats per token; None where learning diverges."""
        loss = self._mean(rate)
        return None if loss is None or self.untrained is None else self.untrained - loss

    def curve(self) -> dict[str, float]:
        """Gains by rate: every second one of the grid, up to where it is hopeless, then the neighbours of the best."""
        found: dict[int, float] = {}
        for number in range(0, len(STEPS), 2):
            gain = self.gain(STEPS[number] / float(self.targets))
            if gain is None or gain < HOPELESS:
                break
            found[number] = gain
        best = max(found, key=lambda number: found[number], default=None)
        for number in () if best is None else (best - 1, best + 1):
            if 0 <= number < len(STEPS) and (gain := self.gain(STEPS[number] / float(self.targets))) is not None:
                found[number] = gain
        return {f"{STEPS[number] / float(self.targets):.4g}": found[number] for number in sorted(found)}

    def last_fifth(self) -> dict[str, Any]:
        """The rate by the rule of before: the best on the last fifth of the training part, one step below."""
        span = Span(Fraction(4, 5), Fraction(1))
        trials = Trials(self.auxiliary, self.rule, [fold(self.batch, span)], self.targets)

        def attempt(rate: float) -> RatePoint:
            loss = self._mean(rate, trials)
            return RatePoint(rate=rate, loss=float("inf") if loss is None else loss)

        curve = rate_curve(attempt, self.rule.reduction, int(self.targets * 4 / 5))
        best = min(curve[1:], key=lambda point: point.loss)
        helps = best.loss < curve[0].loss - 1e-4
        below = curve[curve.index(best) - 1]
        chosen = below if below.loss < curve[0].loss - 1e-4 else best
        rate = chosen.rate if helps else curve[1].rate
        return {"rate": rate, "helps": helps, "gain": self.gain(rate)}

    def auto(self) -> dict[str, Any]:
        """The rate that is chosen now."""
        choice = choose_for(self.auxiliary, self.rule, self.batch)
        gain = self.gain(choice.rate)
        return {"rate": choice.rate, "helps": choice.helps, "reason": choice.reason, "gain": gain}


def measure(piece: Callable[[], Piece], path: Path, parts: Sequence[str], about: dict[str, Any]) -> dict[str, Any]:
    """The record of one text, of which what is missing is done and kept."""
    record = json.loads(path.read_text()) if path.is_file() else dict(about)
    if missing := [part for part in parts if part not in record]:
        ready = piece()
        for part in missing:
            record[part] = getattr(ready, part)()
        with whole_file(path, parents=True) as temporary:
            temporary.write_text(json.dumps(record) + "\n", encoding="utf-8")
    return record


def study(
    name: str, num_texts: int, kinds: dict[str, list[str]], options: argparse.Namespace, console: Console
) -> list[dict[str, Any]]:
    """All texts of one model, the kinds and lengths in turn, so that a part of the work is a sample of all of it."""
    tokenizer, auxiliary = find_tokenizer(name), tint.load(name)
    each = -(-num_texts // (len(kinds) * len(options.lengths)))
    jobs = [(number, length, kind) for number in range(each) for length in options.lengths for kind in kinds]
    found: list[dict[str, Any]] = []
    for number, length, kind in track(jobs, description=f"  {name}", console=console, transient=True):

        def piece(number: int = number, length: int = length, kind: str = kind) -> Piece:
            ids = cut(tokenizer, kinds[kind], length + options.evaluated, f"{kind} {length} {number}")
            return Piece(auxiliary, make_batch(auxiliary, ids, length))

        path = options.records / Path(name).name / f"{kind}-{length}-{number}.json"
        about = {"model": name, "kind": kind, "length": length, "number": number}
        found.append(measure(piece, path, options.parts, about))
    return found


def summarise(records: Sequence[dict[str, Any]], part: str) -> dict[str, str]:
    """How often a choice harms, and which share of the best gain it has."""
    from tintlab.show.intervals import bootstrap

    # A text that diverged has lost more than any that is in the table; its loss is taken as that of the grid's end.
    gains = [HOPELESS if each[part]["gain"] is None else each[part]["gain"] for each in records]
    best = [max(0.0, *each["curve"].values()) for each in records]
    harm = bootstrap([[float(gain < -HARM) for gain in gains]])
    share = bootstrap([gains, best], lambda gain, most: gain / most)
    return {
        "texts": str(len(records)),
        "harm": f"{harm:.1%}",
        "share of the best gain": f"{share:.0%}",
        "mean gain": f"{sum(gains) / len(gains):.4f}",
        "best in hindsight": f"{sum(best) / len(best):.4f}",
        "learns": f"{sum(each[part]['rate'] > 0 for each in records) / len(records):.0%}",
    }


def tables(records: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, str]]]:
    """Before and after: for a model, for its lengths and for its kinds."""
    parts = {"before": "last_fifth", "now": "auto"}

    def rows(key: str | None) -> list[dict[str, str]]:
        values = sorted({each[key] for each in records}) if key else ["all"]
        return [
            {key or "texts of": str(value), "auto": name, **summarise(chosen, part)}
            for value in values
            for chosen in [[each for each in records if key is None or each[key] == value]]
            for name, part in parts.items()
        ]

    return {"all": rows(None), "length": rows("length"), "kind": rows("kind")}


def markdown(record: dict[str, Any]) -> str:
    """The page."""
    parts = [NOTE.format_map(record)]
    for name in record["models"]:
        found = tables([each for each in record["texts"] if each["model"] == name])
        parts += [
            f"## {name}\n",
            *(
                markdown_table(rows, mark=f"automatic-rates.csv#{Path(name).name}-{table}")
                for table, rows in found.items()
            ),
        ]
    return "\n".join(parts)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("kinds", nargs="+", metavar="KIND=PATH", help="a kind of text and a file or directory of it, unread by a model")
    add("--model", action="append", help="directory, hub id or name; repeat for several; =N for N texts (the bundled)")
    add("--texts", type=int, default=200, help="pieces of text for each model (%(default)s)")
    add("--lengths", type=int, nargs="+", default=[32, 64, 256, 512, 1024], help="trained tokens (%(default)s)")
    add("--evaluated", type=int, default=256, help="tokens that are scored (%(default)s)")
    add(
        "--records", type=Path, default=Path("automatic-rates"), help="where texts that are done are kept (%(default)s)"
    )
    add("--parts", nargs="+", default=["curve", "last_fifth", "auto"], help=argparse.SUPPRESS)
    add("--output", type=Path, default=Path("docs/results"), help="where results go (%(default)s)")
    return parser.parse_args()


def _kinds(given: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in given:
        kind, _, path = each.partition("=")
        if not path:
            raise tint.InputError(f"{each!r} is not KIND=PATH, such as prose=novel.txt")
        found.setdefault(kind, []).extend(read_pieces(Path(path)))
    return found


def _models(given: Sequence[str], num_texts: int) -> dict[str, int]:
    """How many texts each model learns from: NAME, or NAME=TEXTS."""
    found: dict[str, int] = {}
    for each in given:
        name, _, count = each.rpartition("=")
        if name and count.isdecimal():
            found[name] = int(count)
        else:
            found[each] = num_texts
    return found


def _command(options: argparse.Namespace) -> str:
    """As it was given, of the texts' paths the last part alone."""
    words = [f"{kind}={Path(path).name}" for kind, _, path in (each.partition("=") for each in options.kinds)]
    # Where records and results went is of no interest to others.
    paths = {index for index, word in enumerate(sys.argv) if word in ("--records", "--output")}
    others = [
        word
        for index, word in enumerate(sys.argv[1:], start=1)
        if word not in options.kinds and not {index, index - 1} & paths
    ]
    return shlex.join(["python", "-m", f"{__package__}.automatic_rates", *words, *others])


def main() -> None:
    """Measure what is missing, then write and print the results."""
    options, console = parse(), Console(stderr=True)
    models, kinds = _models(options.model or BUNDLED, options.texts), _kinds(options.kinds)
    texts = [each for name, count in models.items() for each in study(name, count, kinds, options, console)]
    if "auto" not in options.parts:
        return
    contexts = ", ".join(f"{name}: {tint.load(name).max_positions}" for name in models)
    record: dict[str, Any] = {
        "num_kinds": len(kinds),
        "kinds": ", ".join(kinds),
        "num_lengths": len(options.lengths),
        "lengths": ", ".join(map(str, options.lengths)),
        "evaluated": options.evaluated,
        "harm": HARM,
        "contexts": contexts,
        **versions(),
        "command": _command(options),
        "models": list(models),
        "texts": texts,
    }
    save_json(record, options.output / "automatic-rates.json")
    save_markdown(markdown(record), options.output / "automatic-rates.md")
    for name in models:
        for rows in tables([each for each in texts if each["model"] == name]).values():
            print_table(rows, title=name)


if __name__ == "__main__":
    run_as_script("automatic_rates", main)
