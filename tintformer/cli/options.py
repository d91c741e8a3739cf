"""Options that commands share: the text, the learning rule and the simulator, whose knobs become options."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from tintformer.errors import RuleError, brief
from tintformer.rule.learning_rule import PRESETS, LearningRule
from tintformer.typed_fields import attribute_docstrings

AUTO = "auto"
MAX_RATE = 1e38
MAX_STEPS = 1_000_000
"""Gradient steps of one command."""
DTYPES = ("float32", "float64", "bfloat16")

BeyondContext = Annotated[
    bool,
    typer.Option("--beyond-context", help="Let the text be longer than the model was built for (rotary positions)."),
]
Model = Annotated[
    str,
    typer.Argument(
        help="A directory, nano-gpt2 or nano-llama (bundled), smollm2-135m (fetched), or a hub id such as gpt2.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
TokensOption = Annotated[
    int | None, typer.Option("--tokens", min=4, help="Use at most so many tokens of the text; all by default.")
]
Text = Annotated[str | None, typer.Argument(help="The text; - reads standard input.", show_default=False)]
Statistics = Annotated[
    Path | None,
    typer.Option(
        "--statistics",
        help="What --optimizer rms divides by: a file of `tint statistics`.",
        show_default=False,
        rich_help_panel="Learning rule",
    ),
]
SIMULATOR_PANEL = "Simulator"


def _knob(text: str, *flags: str) -> Any:
    return typer.Option(*flags, help=text, show_default=False, rich_help_panel=SIMULATOR_PANEL)


TranspositionOption = Annotated[
    str | None,
    _knob(
        "Backward attention: scores (transposed by the attention itself) or stored (kept in the tokens and read back, "
        "as in the paper); default: scores with lean, stored with paper where the training part fits."
    ),
]
# Spelt out and not derived, as `Construction` imports torch; a test compares the two.
StackOption = Annotated[int | None, _knob("Rows of a matrix in one prefix token (S in the paper); default 4.")]
CONSTRUCTION_OPTIONS: dict[str, Any] = {
    "layout": Annotated[str | None, _knob("lean (default), or paper (the sizes of the paper's table).")],
    "stack": StackOption,
    "tie_blocks": Annotated[
        bool | None, _knob("Modules of its own for every layer, not one block looped.", "--untied")
    ],
    "attention": Annotated[
        str | None, _knob("linear (default), or softmax: every linear attention by softmax attentions.")
    ],
    "softmax_form": Annotated[str | None, _knob("With softmax attention: pair (default) or printed.")],
    "softmax_epsilon": Annotated[
        float | None, _knob("With softmax attention: its step; default: the best measured for form and dtype.")
    ],
    "transposition": TranspositionOption,
}
"""An option for every knob of `Construction`."""
Dtype = Annotated[str, typer.Option(help=f"Dtype of the model: {', '.join(DTYPES)}.")]
Device = Annotated[
    str | None,
    typer.Option(
        help="Where to compute: cpu (default), cuda, cuda:1, ...; auto spreads a large model over all devices.",
        show_default=False,
    ),
]


class RuleOptions(dict[str, Any]):
    """The options of a learning rule that the user gave, by the names of its knobs, and `preset`."""

    @property
    def auto(self) -> bool:
        """Whether the learning rate is to be found."""
        return self.get("learning_rate", AUTO) == AUTO

    def build(self) -> LearningRule:
        """The preset with what was given on top; the rate is 0 as long as it is to be found."""
        knobs = dict(self)
        preset = knobs.pop("preset", "default")
        if preset not in PRESETS:
            raise RuleError(f"preset={brief(preset)} is unknown; choose one of {', '.join(PRESETS)}")
        knobs["learning_rate"] = 0.0 if self.auto else _number(knobs["learning_rate"])
        for name, read in LISTS.items():
            if name in knobs:
                knobs[name] = read(knobs[name])
        rule = PRESETS[preset](**knobs)
        if rule.steps > MAX_STEPS:
            raise RuleError(f"--steps {brief(rule.steps)} would never end; give at most {MAX_STEPS}")
        return rule


def _number(rate: str) -> float:
    try:
        return check_rate(float(rate))
    except RuleError:
        raise
    except ValueError:
        raise RuleError(f"learning_rate={brief(rate)} is neither a number nor {AUTO}") from None


def _schedule(text: str) -> tuple[float, ...]:
    return tuple(_factor("schedule", part) for part in text.split(","))


def _rates(text: str) -> tuple[tuple[str, float], ...]:
    pairs = [part.rpartition("=") for part in text.split(",")]
    if wrong := [factor for pattern, _, factor in pairs if not pattern]:
        raise RuleError(
            f"rates: {brief(wrong[0])} is no pair; write a pattern of op names and a factor, blocks.0.*=0.5"
        )
    return tuple((pattern.strip(), _factor("rates", factor)) for pattern, _, factor in pairs)


def _factor(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise RuleError(f"{name}: {brief(text)} is no number; separate factors by commas") from None


LISTS: dict[str, Callable[[str], tuple[Any, ...]]] = {"rates": _rates, "schedule": _schedule}
"""Knobs that are written as lists, and how they are read."""


def check_rate(rate: float) -> float:
    """Refuse a rate that no weight in float32 could be multiplied by; what else it must be, the rule says."""
    if MAX_RATE < rate < math.inf:
        raise RuleError(f"learning_rate={rate:g} is larger than float32 can hold; usual rates are from 1e-6 to 1e-2")
    return rate


Command = Callable[..., None]


def with_rule_options(command: Command) -> Command:
    """Give a command an option for every knob of the learning rule; it receives those given as `rule`."""
    return rule_options(f"{AUTO} is the default: see `tint rates`.", default=AUTO)(command)


def with_built_rule_options(command: Command) -> Command:
    """The same for a command that writes the rate into weights, and takes a text for nothing but to find it."""
    return rule_options(f"{AUTO} is the default with a text to find it on; without one give a number.")(command)


def rule_options(about_rate: str, *, default: str | None = None) -> Callable[[Command], Command]:
    """The same for a command whose learning rate has another default, or none; `about_rate` ends the option's help."""
    return lambda command: _with_options(command, "rule", _rule_parameters(about_rate, default), RuleOptions)


def with_construction_options(command: Command) -> Command:
    """Give a command an option for every knob of a simulator; it receives those given as `knobs`."""
    options = {
        name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in CONSTRUCTION_OPTIONS.items()
    }
    return _with_options(command, "knobs", options, _construction_knobs)


def _with_options(
    command: Command,
    receives: str,
    options: dict[str, inspect.Parameter],
    gather: Callable[[dict[str, Any]], Any],
) -> Command:
    """A command with further options; those that were given are gathered into one of its arguments."""
    own = dict(inspect.signature(command, eval_str=True).parameters)
    del own[receives]

    @wraps(command)
    def wrapped(**arguments: Any) -> None:
        given = {name: arguments.pop(name) for name in options}
        given = {name: value for name, value in given.items() if value is not None}
        command(**arguments, **{receives: gather(given)})

    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (own | options).values()]
    # typer reads the signature and the annotations.
    wrapped.__signature__ = inspect.Signature(parameters, return_annotation=None)  # pyright: ignore[reportAttributeAccessIssue]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapped


def _rule_parameters(about_rate: str, rate: str | None) -> dict[str, inspect.Parameter]:
    """A parameter for the preset and one for each knob, none of them set by default; `rate` is shown as that of one."""
    texts = dict(attribute_docstrings(LearningRule))  # which all commands share
    texts["learning_rate"] += f" {about_rate}"
    kinds: dict[str, Any] = {**get_type_hints(LearningRule), "learning_rate": str, "rates": str, "schedule": str}
    texts["rates"] = f"{texts['rates'].partition(';')[0]}: blocks.0.*=0.1,blocks.1.*=0.5."
    texts["schedule"] += " Separated by commas."
    preset = _parameter("preset", str, f"Where the options below start from: {', '.join(PRESETS)} (SGD).", "default")
    # Shown where it is the same whatever the preset.
    rules = [make(learning_rate=0.0) for make in PRESETS.values()]
    values = {name: {getattr(rule, name) for rule in rules} for name in kinds}
    defaults = {name: str(*found) for name, found in values.items() if len(found) == 1 and None not in found}
    defaults |= {"learning_rate": rate or "", "layers": "all", "rates": "", "schedule": ""}
    parameters = {name: _parameter(name, kind, texts[name], defaults.get(name)) for name, kind in kinds.items()}
    return {"preset": preset, **parameters}


def _parameter(name: str, hint: Any, text: str, default: str | None) -> inspect.Parameter:
    """An option that is None unless given. Names are checked by the rule, which says so in one clear line."""
    kind = get_args(hint)[0] if isinstance(hint, UnionType) else hint
    if get_origin(kind) is Literal:
        kind, text = str, f"{text} One of {', '.join(get_args(hint))}."
    # What `full` switches on needs no --no-form: it can be spelt out from the default.
    flag = f"--{name.replace('_', '-')}"
    option = typer.Option(flag, help=text, show_default=default or False, rich_help_panel="Learning rule")
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _construction_knobs(given: dict[str, Any]) -> dict[str, Any]:
    """Knobs as `Construction` takes them: the option says untied, the knob tied."""
    return {name: False if name == "tie_blocks" else value for name, value in given.items()}


def flag_of(name: str) -> str:
    """How a knob is written on the command line."""
    return "--untied" if name == "tie_blocks" else f"--{name.replace('_', '-')}"


def given_names(rule: Mapping[str, Any], **others: Any) -> list[str]:
    """The options that were given, as they are written on the command line."""
    return [flag_of(name) for name in (*(name for name, value in others.items() if value is not None), *rule)]


Chunk = Annotated[int, typer.Option(help="Tokens that are scored together, before any of them is learnt from.")]
Window = Annotated[
    int | None,
    typer.Option(help="Tokens of a chunk and its past together; default: the model's context, and at most 1,024."),
]
CarryOption = Annotated[
    str,
    typer.Option(
        "--carry",
        help="What a chunk sees of its past: none, recompute (read again with today's weights) or cache (keys and "
        "values as they were read).",
    ),
]
SpecialTokens = Annotated[
    bool,
    typer.Option(
        "--special-tokens/--no-special-tokens",
        help="Let the tokenizer put its own special tokens around each document, or leave the text as it is.",
    ),
]
