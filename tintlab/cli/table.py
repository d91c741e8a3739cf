"""The commands of the laboratory, which `tint` finds by the entry point `tintformer.commands`."""

from __future__ import annotations

from tintformer.cli.table import Command

COMMANDS = (
    Command(
        "demo",
        10,
        "tintlab.cli.demo:demo",
        "Train the bundled models inside one forward pass on the first part of a text, and score the rest.",
    ),
    Command(
        "report",
        30,
        "tintlab.cli.report:report",
        "Do what `tint run` does, and write a page that shows what changed, token by token and inside of the model.",
    ),
    Command(
        "stream",
        50,
        "tintlab.cli.stream:stream",
        "Read texts chunk by chunk: each is scored, then learnt from. The model as it is reads the same beside it.",
    ),
    Command(
        "sweep",
        70,
        "tintlab.cli.sweep:sweep",
        "Train on the first part of a text by every combination of rates, rules, optimisers, layers and steps, and "
        "score the rest.",
    ),
    Command(
        "params",
        100,
        "tintlab.cli.params:params",
        "Count a model's simulator and its compiled network, from its configuration: no weights, nothing is fetched.",
    ),
    Command(
        "plan",
        110,
        "tintlab.cli.plan:plan",
        "Estimate memory and arithmetic of a run from the model's configuration; exit code 2 if it cannot fit.",
    ),
    Command(
        "inspect",
        120,
        "tintlab.cli.inspect:inspect",
        "Show how a model's simulator is laid out: modules, regions, heads, prefix tokens, parameters.",
    ),
    Command(
        "verify",
        130,
        "tintlab.cli.verify:verify",
        "Check the simulator of a model: each module, the whole pass, the gradients of each preset, and the theorems.",
    ),
    Command(
        "audit",
        140,
        "tintlab.cli.audit:audit",
        "Check that no score of a text depends on its own or later tokens, or on another document.",
    ),
    Command(
        "compare",
        150,
        "tintlab.cli.compare:compare",
        "Read demonstrations in the context, learn from the same ones, and compare what both do to the model.",
    ),
    Command(
        "probe",
        160,
        "tintlab.cli.probe:probe",
        "Learn from contexts, read them, or both, and see what that does to prompts that have nothing to do with them.",
    ),
    Command(
        "rates",
        170,
        "tintlab.cli.rates:rates",
        "Measure on TEXTS which learning rates suit MODEL and a rule, and keep it: `auto` starts from there.",
    ),
    Command(
        "fetch",
        190,
        "tintlab.cli.fetch:fetch",
        "Bring models and data sets into the local caches; what is there and whole is left alone.",
    ),
    Command(
        "bench",
        200,
        "tintlab.cli.bench:bench",
        "Time train-in-the-pass against a plain forward pass and against explicit fine-tuning.",
    ),
    Command(
        "lm-eval",
        210,
        "tintlab.cli.lm_eval:app",
        "Run the lm-evaluation-harness with the model `tint`, which learns from every context, and the paper's tasks.",
    ),
    Command("eval", 220, "tintlab.cli.evaluate:evaluate", "The paper's experiments on any model and data."),
)
