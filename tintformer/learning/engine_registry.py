"""The engines by name: what makes each, which options it takes and what else than running a batch it can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from tintformer.errors import InputError, TintError
from tintformer.rule.learning_rule import LearningRule, require_built, require_rule
from tintformer.typed_fields import checked

if TYPE_CHECKING:
    from tintformer.auxiliary.description import Auxiliary
    from tintformer.execution.engine import Engine

Capability = Literal["adapts", "continues", "takes_rates"]


@dataclass(frozen=True, kw_only=True)
class EngineEntry:
    """One engine, imported when it is asked for."""

    factory: str
    """Module and name of what makes it from an auxiliary, a rule and its options."""
    title: str
    """What messages call it."""
    options: Callable[[], tuple[str, ...]] = tuple
    """The names of its options."""
    capabilities: frozenset[Capability] = frozenset()
    """Which protocols of `execution.engine` it implements, known before it is made; and whether each sequence may have
    a rate of its own, which needs an engine that does not hold the rate in its weights."""


def _construction_knobs() -> tuple[str, ...]:
    from tintformer.simulator.construction import Construction

    return tuple(Construction.__dataclass_fields__)


ENGINES: dict[str, EngineEntry] = {
    "fast": EngineEntry(
        factory="tintformer.engines.fast.FastEngine",
        title="fast engine",
        options=lambda: ("dual", "statistics"),
        capabilities=frozenset({"adapts", "continues", "takes_rates"}),
    ),
    "reference": EngineEntry(
        factory="tintformer.engines.reference.ReferenceEngine",
        title="reference engine",
        options=lambda: ("statistics",),
        capabilities=frozenset({"takes_rates"}),
    ),
    "oracle": EngineEntry(
        factory="tintformer.engines.oracle.make_oracle",
        title="model under autograd",
        options=lambda: ("statistics",),
        capabilities=frozenset({"takes_rates"}),
    ),
    "simulator": EngineEntry(
        factory="tintformer.simulator.simulator.build",
        title="simulator",
        options=_construction_knobs,
        capabilities=frozenset({"continues"}),
    ),
    "network": EngineEntry(
        factory="tintformer.network.network_engine.NetworkEngine",
        title="network",
        options=lambda: ("max_tokens", "dense", "loop", "stack", "attention", "softmax_form", "softmax_epsilon"),
    ),
}


def engines_that(capability: Capability) -> tuple[str, ...]:
    """The names of the engines with a capability."""
    return tuple(name for name, entry in ENGINES.items() if capability in entry.capabilities)


def make_engine(name: str, auxiliary: Auxiliary, rule: LearningRule, **options: Any) -> Engine:
    """The engine of that name; an unknown name, or an option that it does not take, is an error."""
    check_options(name, options)
    check_rule(name, rule)
    # By name and only now: the simulator and the oracle bring in much that most callers never need.
    module, _, factory = ENGINES[name].factory.rpartition(".")
    return getattr(import_module(module), factory)(auxiliary, require_rule(rule), **options)


def check_rule(name: str, rule: LearningRule) -> None:
    """Refuse a rule that an engine would hold in its weights and cannot: an automatic rate, a dense optimiser."""
    if "takes_rates" not in ENGINES[name].capabilities:
        require_built(rule, f"a {ENGINES[name].title}")


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuse an unknown engine, and options that belong to another one or to none."""
    if checked("engine", name, str, TintError) not in ENGINES:
        raise TintError(f"engine={name!r} is unknown; choose one of {', '.join(ENGINES)}")
    own = ENGINES[name].options()
    if not (foreign := [option for option in options if option not in own]):
        return
    # Whose option is it? "Unknown" would be a poor answer to an option that the user has read about.
    for entry in ENGINES.values():
        if theirs := [option for option in foreign if option in entry.options()]:
            raise TintError(f"{', '.join(theirs)}: knobs of the {entry.title}; leave them out with engine={name!r}")
    known = f"known are {', '.join(own)}" if own else "it has none"
    raise InputError(f"unknown knobs of a {ENGINES[name].title}: {', '.join(sorted(foreign))}; {known}")
