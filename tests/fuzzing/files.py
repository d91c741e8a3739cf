# pyright: basic
"""Hostile files: one file of a directory is damaged, and the directory is opened as a user would.

It is refused with one line, or it opens; then what was not damaged must have its numbers.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from cases import FIRST, make_batch, make_model, make_rule
from safetensors.torch import load as parse_safetensors
from torch import Tensor

import tintformer as tint
from fuzzing.bases import EVALUATION, save_evaluation, save_gguf, save_task, save_texts
from fuzzing.kinds import Kind, draw, require
from fuzzing.mutate import (
    Mutation,
    any_bytes,
    any_gguf,
    any_json,
    any_json_lines,
    any_safetensors,
    any_yaml,
)

CONFIG, WEIGHTS, INDEX, GENERATION = (
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "generation_config.json",
)
FROZEN = tint.LearningRule(learning_rate=0.0)
RENAMED = {"embed_out.weight": "lm_head.weight"}
"""Names in files, and what transformers calls them in memory."""
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@cache
def _bases() -> Path:
    """Where the undamaged directories are, for as long as the process lives."""
    found = Path(tempfile.mkdtemp(prefix="tintformer-fuzz-"))
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(found, ignore_errors=True) if os.getpid() == owner else None)
    return found


def _base(name: str, make: Callable[[Path], Any]) -> Path:
    """A directory by name, made when it is first asked for."""
    place = _bases() / name
    if not place.exists():
        make(place)
    return place


# Damage.

_SPECIAL = 0.06
"""How often a file becomes something else than a file of some bytes."""


def damage(r: Random, file: Path, mutations: tuple[Mutation, ...]) -> None:
    """Change a file by one of the mutations, or make it a thing that is no file."""
    if r.random() < _SPECIAL:
        _become_special(r, file)
        return
    file.write_bytes(r.choice(mutations)(r, file.read_bytes()))


def _become_special(r: Random, file: Path) -> None:
    size = file.stat().st_size
    match r.randrange(6):
        case 0:
            file.unlink()
        case 1:
            file.unlink()
            file.mkdir()
        case 2:
            file.unlink()
            file.symlink_to(r.choice(("/dev/zero", "/dev/null", "/etc/passwd", "/proc/self/mem", "nowhere", file.name)))
        case 3:
            file.unlink()
            os.mkfifo(file)
        case 4:
            os.truncate(file, r.choice((2**34, 2**40)))  # takes no room on the disk
        case _:
            os.truncate(file, size // 2)


# Opening, as a user would, and what must hold if it opens.


def _ids() -> Tensor:
    return make_batch(lengths=(7,))["input_ids"]


def _frozen_logits(model: Any) -> Tensor:
    ids = _ids()
    logits = tint.Tint(model, FROZEN)(ids, train_mask=torch.ones_like(ids, dtype=torch.bool)).logits
    assert logits is not None
    return logits


def _near(found: Tensor, expected: Tensor, what: str) -> None:
    error = float((found.double() - expected.double()).abs().max())
    allowed = 1e-3 * max(1.0, float(expected.abs().max()))
    require(error <= allowed, f"{what}: differs by {error:.3g}")


def _stored(place: Path) -> dict[str, Tensor]:
    """What the weights on disk are, read by another way."""
    files = [place / WEIGHTS] if (place / WEIGHTS).is_file() else sorted(place.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in parse_safetensors(file.read_bytes()).items()}


def _check_weights(model: Any, stored: dict[str, Tensor], prefix: str = "") -> None:
    """All weights of the file and no others: nothing made up, nothing left out, nothing converted from codes."""
    parameters = {prefix + name: value for name, value in model.named_parameters(remove_duplicate=False)}
    stored = {RENAMED.get(name, name): tensor for name, tensor in stored.items() if not name.startswith("buffers.")}
    for name, tensor in stored.items():
        require(tensor.dtype in FLOATS, f"{name} is read from {tensor.dtype}")
        require(name in parameters, f"{name} of the file is left out")
        found = parameters[name].detach()
        require(torch.equal(found, tensor.to(found.dtype)), f"{name} has other values than in its file")
    held = {id(parameters[name]) for name in stored}
    made_up = [name for name, value in parameters.items() if id(value) not in held]
    require(not made_up, f"{made_up[:1]} of the model is in no file")


def open_model(place: Path, base: Path) -> str:
    found = tint.load(place)
    _check_weights(found.model, _stored(place))
    return _compare_with_its_own(found)


def _compare_with_its_own(found: Any) -> str:
    """What is computed here is what the Hugging Face model computes."""
    try:
        logits = _frozen_logits(found)
    except tint.TintError:
        return "refused when called"
    try:
        with torch.no_grad():
            expected = found.model(_ids(), use_cache=False).logits
    except Exception:  # a configuration that transformers itself cannot run
        return "opens, but not for transformers"
    if not bool(expected.isfinite().all()):
        return "opens without finite numbers"
    _near(logits, expected, "the logits of the opened model and of transformers")
    return "opens"


def open_gguf(place: Path, base: Path) -> str:
    return _compare_with_its_own(tint.load(place))


def open_learner(place: Path, base: Path) -> str:
    model: Any = tint.TintForCausalLM.from_pretrained(place)
    _check_weights(model.auxiliary, _stored(place), "auxiliary.")
    try:
        model.generate(_ids(), max_new_tokens=2)
    except tint.TintError:
        return "refused when called"
    except Exception:  # options of generation that transformers refuses when they are used
        return "opens, but does not generate"
    return "opens"


def open_simulator(place: Path, base: Path) -> str:
    found = tint.Simulator.from_pretrained(place)
    same = (place / WEIGHTS).read_bytes() == (base / WEIGHTS).read_bytes()
    ids = _ids()
    out: Any = found(ids, train_mask=torch.ones_like(ids, dtype=torch.bool))
    if same:
        _near(out.logits, _simulated(base), "a simulator whose weights are as they were")
    stored = {name: tensor for name, tensor in _stored(place).items() if name.startswith("auxiliary.")}
    parameters = dict(found.auxiliary.model.named_parameters())
    for name, tensor in stored.items():
        own = parameters.get(name.removeprefix("auxiliary."))
        require(own is None or torch.equal(own.detach(), tensor), f"{name} has other values than in its file")
    return "opens"


@cache
def _simulated(base: Path) -> Tensor:
    ids = _ids()
    logits = tint.Simulator.from_pretrained(base)(ids, train_mask=torch.ones_like(ids, dtype=torch.bool)).logits
    assert logits is not None
    return logits


UPDATE = "update.safetensors"


def open_update(place: Path, base: Path) -> str:
    """Nothing of an update may change: either it is refused or it gives the numbers that were saved."""
    model = _updated_model()
    found: Any = tint.Tuned.load(place / UPDATE, model).score(_ids(), logits="all").logits
    expected: Any = tint.Tuned.load(base / UPDATE, model).score(_ids(), logits="all").logits
    _near(found, expected, "the update from a damaged file and the one that was saved")
    return "opens"


STATE = "state.safetensors"
STATISTICS = "statistics.safetensors"


def open_state(place: Path, base: Path) -> str:
    """A state of `tint stream` is refused, or the text goes on from it as it would have."""
    found, expected = (_read_on(each) for each in (place, base))
    _near(found, expected, "a text that goes on from a damaged state and from the one that was saved")
    return "opens"


def _read_on(place: Path) -> Tensor:
    reading = _reading(place / STATE)
    reading.file = None  # the case may write nothing
    reading.read()
    return torch.tensor([loss for each in reading.scores() for loss in (*each.before, *each.after)])


def _reading(file: Path) -> Any:
    from tintformer.learning.streams import StreamSettings
    from tintformer.study.text_stream import Document, TextStream

    texts = [make_batch(lengths=(9,), seed=seed)["input_ids"][0] for seed in (1, 2)]
    documents = [Document(name="text", input_ids=tuple(text.tolist())) for text in texts]
    rule = make_rule("full", momentum=0.5)
    return TextStream(_updated_model(), rule, documents, StreamSettings(chunk=3, window=8), file=file, every=1)


def _save_state(place: Path) -> None:
    place.mkdir()
    with suppress(InterruptedError):
        _reading(place / STATE).read(_interrupt)


def _interrupt(reading: Any) -> None:
    if reading.tokens_read > 5:
        raise InterruptedError


def open_statistics(place: Path, base: Path) -> str:
    from tintformer.learning.gradient_statistics import GradientStatistics

    found, expected = (GradientStatistics.load(each / STATISTICS, _updated_model()) for each in (place, base))
    for name, values in expected.tensors.items():
        _near(found.tensors[name], values, f"the statistics of {name} from a damaged file")
    tint.Tint(_updated_model(), make_rule("full", optimizer="rms"), statistics=found)
    return "opens"


def _save_statistics(place: Path) -> None:
    place.mkdir()
    tint.collect_statistics(_updated_model(), make_rule("full"), _ids(), chunk=4).save(place / STATISTICS)


@cache
def _updated_model() -> Any:
    return tint.load(make_model("llama", torch.float32))


def open_tokenizer(place: Path, base: Path) -> str:
    from tiny import TEXT

    from tintformer.learning.text import decode, encode, find_tokenizer

    tokenizer = find_tokenizer(str(place))
    decode(tokenizer, list(encode(tokenizer, TEXT[:300]).input_ids))
    return "opens"


def open_task(place: Path, base: Path) -> str:
    from tintlab.data.tasks import demonstrations, load_task, test_examples

    description = place / "task.yaml"
    task = load_task(str(description), place / "data" if _may_name_the_hub(description) else None)
    demonstrations(task, 2, 0)
    test_examples(task, 2)
    assert task.identity
    return "opens"


def open_texts(place: Path, base: Path) -> str:
    from tintlab.data.texts import load_texts

    description = place / "text.yaml"
    assert load_texts(str(description), place / "data" if _may_name_the_hub(description) else None)
    return "opens"


def _may_name_the_hub(description: Path) -> bool:
    """Whether a description may name a data set of the hub, which would be asked; here nobody is to be asked."""
    content = _beginning(description)
    return content is None or b"hub" in content


def _beginning(file: Path) -> bytes | None:
    """What a file begins with, which may be larger than the memory; None where it cannot be read."""
    if not file.is_file():  # a FIFO would be waited for
        return None
    try:
        with file.open("rb") as opened:
            return opened.read(10**6)
    except (OSError, MemoryError):  # it may be a link to anything, such as the memory of a process
        return None


def _command(*arguments: str) -> int:
    """`tint` with these arguments; its exit code."""
    from tintformer.cli import main

    sys.argv = ["tint", *arguments]
    try:
        main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        require(code in (0, 2), f"exit code {code}")
        return code
    return 0


def open_evaluation(place: Path, base: Path) -> str:
    tables = EVALUATION + ".md"
    runs = {file.name: _beginning(file) for file in (place / "runs").glob("*.json")}
    (place / tables).unlink(missing_ok=True)
    if _command("eval", "table", str(place)):
        return "refused"
    if runs == {file.name: _beginning(file) for file in (base / "runs").glob("*.json")}:
        same = (place / tables).read_bytes() == (base / tables).read_bytes()
        require(same, "the table of damaged records differs from that of whole ones")
    return "opens"


def open_params(place: Path, base: Path) -> str:
    return "refused" if _command("params", str(place / CONFIG)) else "opens"


# The kinds: a directory, the files in it that are damaged and how, and who opens it.


@dataclass(frozen=True)
class Hostile:
    """A directory that is damaged and opened."""

    make: Callable[[Path], Any]
    files: dict[str, tuple[Mutation, ...]]
    """Patterns of files, and the mutations that know their format."""
    open: Callable[[Path, Path], str]
    variants: tuple[str, ...] = ("",)
    """Several directories of one kind, such as a model of each family."""


def _save_model(place: Path) -> None:
    make_model(place.name.partition("@")[2], torch.float32).save_pretrained(place)


def _save_shards(place: Path) -> None:
    make_model(place.name.partition("@")[2], torch.float32).save_pretrained(place, max_shard_size="4KB")


def _save_learner(place: Path) -> None:
    model = make_model(place.name.partition("@")[2], torch.float32)
    tint.TintForCausalLM.from_auxiliary(model, make_rule("default")).save_pretrained(place)


def _save_simulator(place: Path) -> None:
    name = place.name.partition("@")[2]
    tint.build(make_model(name, torch.float32), make_rule("default")).save_pretrained(place, full=name == "gpt2")


def _save_update(place: Path) -> None:
    place.mkdir()
    tokens = {"factors": 3, "formed": 30}[place.name.partition("@")[2]]
    sim = tint.Tint(_updated_model(), make_rule("full", steps=2))
    sim.adapt(make_batch(lengths=(tokens,))["input_ids"]).save(place / UPDATE)


def _save_tokenizer(place: Path) -> None:
    from tiny import make_tokenizer

    make_tokenizer().save_pretrained(place)


def _gguf(r: Random, data: bytes) -> bytes:
    return any_gguf(r, data, min(len(data), 900))


HOSTILE: dict[str, Hostile] = {
    "config": Hostile(_save_model, {CONFIG: (any_json,)}, open_model, tuple(FIRST)),
    "weights": Hostile(_save_model, {WEIGHTS: (any_safetensors,)}, open_model, ("gpt2", "llama", "opt")),
    "index": Hostile(_save_shards, {INDEX: (any_json,), "model-00001*": (any_safetensors,)}, open_model, ("llama",)),
    "gguf": Hostile(save_gguf, {"model.gguf": (_gguf,)}, open_gguf),
    "learner": Hostile(
        _save_learner,
        {CONFIG: (any_json,), GENERATION: (any_json,), WEIGHTS: (any_safetensors,)},
        open_learner,
        ("gpt2", "llama", "gptj"),
    ),
    "simulator": Hostile(
        _save_simulator, {CONFIG: (any_json,), WEIGHTS: (any_safetensors,)}, open_simulator, ("gpt2", "llama")
    ),
    "update": Hostile(_save_update, {UPDATE: (any_safetensors, any_bytes)}, open_update, ("factors", "formed")),
    "state": Hostile(_save_state, {STATE: (any_safetensors, any_bytes)}, open_state),
    "statistics": Hostile(_save_statistics, {STATISTICS: (any_safetensors, any_bytes)}, open_statistics),
    "tokenizer": Hostile(
        _save_tokenizer, {"tokenizer.json": (any_json,), "*_config.json": (any_json,)}, open_tokenizer
    ),
    "task": Hostile(save_task, {"task.yaml": (any_yaml,), "data/*.jsonl": (any_json_lines,)}, open_task),
    "texts": Hostile(
        save_texts,
        {"text.yaml": (any_yaml,), "data/*.jsonl": (any_json_lines,), "data/*.[ct]*": (any_bytes,)},
        open_texts,
    ),
    "evaluation": Hostile(
        save_evaluation, {"runs/*.json": (any_json,), "records/*/*.json": (any_json,)}, open_evaluation
    ),
    "params": Hostile(_save_model, {CONFIG: (any_json,)}, open_params, tuple(FIRST)),
}


def base_of(name: str, variant: str) -> Path:
    """The undamaged directory of a kind."""
    return _base(f"{name}@{variant}", HOSTILE[name].make)


def kind_of_base(name: str, *variants: str) -> Kind:
    """The cases of a kind of directory; of some of its variants, or of all."""
    hostile = HOSTILE[name]

    def bases() -> list[Path]:
        return [base_of(name, variant) for variant in variants or hostile.variants]

    def arrange(seed: int, place: Path) -> None:
        r = draw(name, seed)
        damaged_copy(r, hostile, r.choice(bases()), place)

    def run(seed: int, place: Path) -> str:
        return hostile.open(place, draw(name, seed).choice(bases()))

    def prepare() -> None:
        # Once without damage: what is imported and remembered now need not be for every case.
        for base in bases():
            with tempfile.TemporaryDirectory(dir=_bases()) as folder, _quiet():
                copy = Path(folder) / "case"
                shutil.copytree(base, copy)
                found = hostile.open(copy, base)
            assert found == "opens", f"{base} does not open as it is: {found}"

    return Kind(name, run, arrange=arrange, prepare=prepare, guarded=True)


def damaged_copy(r: Random, hostile: Hostile, base: Path, place: Path) -> None:
    shutil.copytree(base, place, dirs_exist_ok=True)
    for _ in range(r.choice((1, 1, 1, 2))):
        pattern = r.choice(list(hostile.files))
        # A file may have been removed by the damage before.
        if found := sorted(path for path in place.glob(pattern) if path.is_file() and not path.is_symlink()):
            file = r.choice(found)
            if file.stat().st_size < 2**24:
                damage(r, file, _still_readable(hostile.files[pattern], file, base / file.relative_to(place)))


def _still_readable(mutations: tuple[Mutation, ...], file: Path, original: Path) -> tuple[Mutation, ...]:
    """What has been damaged once has lost its structure, which the mutations that know of one need."""
    return mutations if file.read_bytes() == original.read_bytes() else (any_bytes,)


class _quiet:
    """Nothing on the standard streams meanwhile."""

    def __enter__(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.kept = os.dup(1), os.dup(2)
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, kept in enumerate(self.kept, 1):
            os.dup2(kept, number)
            os.close(kept)


FILES = [kind_of_base(name) for name in HOSTILE]
