# pyright: basic
"""Simulators on disk: every bit of them in another process, and every damaged or foreign file refused by name."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from cases import MODELS, assert_same, call, make_batch, make_model, make_rule, some
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import tintformer as tint
from tintformer.storage.checksums import write_tensors

CONFIG, WEIGHTS = "config.json", "model.safetensors"

SAVED: dict[str, dict[str, Any]] = {
    "gpt2-lean": {"model": "gpt2", "rule": "default"},
    "gpt2-paper-untied-full": {
        "model": "gpt2",
        "rule": "paper",
        "layout": "paper",
        "stack": 3,
        "tie_blocks": False,
        "full": True,
    },
    "gpt2-odd-lean-full": {"model": "gpt2-odd", "rule": "full", "stack": 2, "full": True},
    "qwen3-lean-untied": {"model": "qwen3", "rule": "central-relative", "tie_blocks": False},
    "llama-yarn-paper": {
        "model": "llama-yarn",
        "rule": "full",
        "layout": "paper",
        "stack": 1,
        "transposition": "scores",
    },
    "gemma-softmax": {"model": "gemma", "rule": "default", "attention": "softmax", "dtype": torch.float32},
    "bloom-stored": {"model": "bloom", "rule": "norm-scale", "transposition": "stored", "dtype": torch.float32},
}
"""Tied and untied heads and blocks, both layouts, with and without the constructed tensors, both dtypes."""


def digest(tensors: dict[str, Tensor]) -> str:
    result = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        result.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        result.update(tensor.detach().contiguous().numpy().tobytes())
    return result.hexdigest()


def identity(simulator: Any) -> dict[str, str]:
    """Every bit of a simulator."""
    return {
        "parameters": digest(dict(simulator.named_parameters())),
        "rule": str(simulator.rule),
        "construction": str(simulator.construction),
        "geometry": str(simulator.geometry),
    }


def computed(simulator: Any) -> dict[str, Tensor]:
    """What it makes of a batch; the last bits depend on where its weights lie in memory."""
    out = call(simulator, make_batch(lengths=(7, 6)))
    return {"logits": out.logits, **out.updates(1)}


def assert_computes(simulator: Any, expected: dict[str, Tensor]) -> None:
    found = computed(simulator)
    assert found.keys() == expected.keys()
    # An exact gradient of attention is a difference too, inside of the simulator.
    differs = simulator.rule.takes_differences() or simulator.rule.attention_gradient != "value"
    for name, value in expected.items():
        assert_same(found[name], value, times=1000 if differs else 1)


def make(name: str) -> tuple[Any, bool]:
    knobs = dict(SAVED[name])
    model = make_model(knobs.pop("model"), knobs.pop("dtype", torch.float64))
    full = knobs.pop("full", False)
    return tint.build(model, make_rule(knobs.pop("rule")), **knobs), full


def load_and_compute(place: Path) -> dict[str, dict[str, str]]:
    """The identities of all that are stored; what they compute goes into files beside them."""
    identities = {}
    for name in SAVED:
        simulator = tint.Simulator.from_pretrained(place / name)
        identities[name] = identity(simulator)
        save_file(computed(simulator), place / f"{name}.computed")
    return identities


def test_the_same_simulators_in_another_process(tmp_path: Path) -> None:
    expected, simulators = {}, {}
    for name in SAVED:
        simulators[name], full = make(name)
        simulators[name].save_pretrained(tmp_path / name, full=full)
        expected[name] = identity(simulators[name])
    assert forked.result_of(load_and_compute, tmp_path) == expected
    for name, simulator in simulators.items():
        assert_computes(simulator, load_file(tmp_path / f"{name}.computed"))
    assert len({bits["parameters"] for bits in expected.values()}) == len(SAVED)


@pytest.mark.parametrize("name", some(list(MODELS), keep=12))
def test_every_model_comes_back(name: str, tmp_path: Path) -> None:
    simulator = tint.build(make_model(name, torch.float32), make_rule("default"))
    simulator.save_pretrained(tmp_path)
    loaded = tint.Simulator.from_pretrained(tmp_path)
    assert identity(loaded) == identity(simulator)
    assert_computes(loaded, computed(simulator))


def test_half_precision_is_stored_as_it_is(tmp_path: Path) -> None:
    model = copy.deepcopy(make_model("llama", torch.float32)).to(torch.bfloat16)
    simulator = tint.build(model, make_rule("default"))
    simulator.save_pretrained(tmp_path)
    loaded = tint.Simulator.from_pretrained(tmp_path)
    assert loaded.auxiliary.dtype == torch.bfloat16 and loaded.dtype == torch.float32
    assert identity(loaded) == identity(simulator)
    assert_computes(loaded, computed(simulator))


def test_loading_draws_no_random_numbers(saved: Path) -> None:
    before = torch.random.get_rng_state()
    tint.Simulator.from_pretrained(saved)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_full_adds_every_constructed_tensor(tmp_path: Path) -> None:
    simulator, _ = make("gpt2-lean")
    for full in (False, True):
        simulator.save_pretrained(tmp_path, full=full)
        with safe_open(tmp_path / WEIGHTS, framework="pt") as file:
            names = set(file.keys())
        own = {name for name in names if name.startswith("simulator.")}
        assert {f"auxiliary.{name}" for name, _ in simulator.auxiliary.model.named_parameters()} <= names - own
        structure = {f"simulator.{name}" for name, _ in simulator.named_parameters() if name.startswith("structure.")}
        assert own >= structure if full else not own
    assert len(structure) > 50


def test_two_files_and_nothing_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulator, _ = make("gpt2-lean")
    expected = identity(simulator)

    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("a pickle")

    for home, name in [(pickle, "dump"), (pickle, "dumps"), (pickle, "load"), (pickle, "loads")]:
        monkeypatch.setattr(home, name, forbidden)
    for name in ("save", "load"):
        monkeypatch.setattr(torch, name, forbidden)
    simulator.save_pretrained(tmp_path / "deep" / "er", full=True)
    assert identity(tint.Simulator.from_pretrained(tmp_path / "deep" / "er")) == expected
    files = {path.name: path.read_bytes() for path in (tmp_path / "deep" / "er").iterdir()}
    assert files.keys() == {CONFIG, WEIGHTS}
    header = json.loads(files[WEIGHTS][8 : 8 + int.from_bytes(files[WEIGHTS][:8], "little")])
    assert header["__metadata__"]["format"] == "tintformer simulator"
    assert json.loads(files[CONFIG])["model_type"] == "tint"


# What is refused.


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("intact")
    make("gpt2-lean")[0].save_pretrained(place)
    return place


@pytest.fixture
def saved(tmp_path: Path, intact: Path) -> Path:
    return shutil.copytree(intact, tmp_path / "saved")


def cut(name: str, keep: Callable[[int], int]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = (path / name).read_bytes()
        (path / name).write_bytes(content[: keep(len(content))])

    return damage


def edit_config(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        config = json.loads((path / CONFIG).read_text())
        replaced = change(config)
        (path / CONFIG).write_text(json.dumps(config if replaced is None else replaced))

    return damage


def edit_tensors(change: Callable[[dict[str, Tensor]], Any]) -> Callable[[Path], None]:
    """A change of the tensors under metadata that are right."""

    def damage(path: Path) -> None:
        with safe_open(path / WEIGHTS, framework="pt") as file:
            metadata = file.metadata()
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
        change(tensors)
        write_tensors(path / WEIGHTS, tensors, metadata)

    return damage


def foreign_model(path: Path) -> None:
    make_model("gpt2").save_pretrained(path)


def foreign_tensors(path: Path) -> None:
    save_file({"weight": torch.ones(2)}, path / WEIGHTS)


def weights_of_a_model(path: Path) -> None:
    make_model("gpt2").save_pretrained(path / "other")
    (path / "other" / WEIGHTS).replace(path / WEIGHTS)


def weights_of_another_simulator(path: Path) -> None:
    tint.build(make_model("gpt2"), make_rule("default", learning_rate=0.5)).save_pretrained(path / "other")
    (path / "other" / WEIGHTS).replace(path / WEIGHTS)


WTE = "auxiliary.transformer.wte.weight"
DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "half of the weights": (cut(WEIGHTS, lambda size: size // 2), f"cannot read .*{WEIGHTS}: "),
    "all but the last byte": (cut(WEIGHTS, lambda size: size - 1), f"cannot read .*{WEIGHTS}: "),
    "part of the header": (cut(WEIGHTS, lambda _: 100), f"cannot read .*{WEIGHTS}: "),
    "empty weights": (cut(WEIGHTS, lambda _: 0), f"cannot read .*{WEIGHTS}: "),
    "no weights": (lambda path: (path / WEIGHTS).unlink(), f"cannot read .*{WEIGHTS}: "),
    "half of the configuration": (cut(CONFIG, lambda size: size // 2), f"cannot read .*{CONFIG} as JSON: "),
    "empty configuration": (cut(CONFIG, lambda _: 0), f"cannot read .*{CONFIG} as JSON: "),
    "bytes for a configuration": (
        lambda path: (path / CONFIG).write_bytes(b"\xff\xfe{"),
        f"cannot read .*{CONFIG} as JSON: ",
    ),
    "no configuration": (lambda path: (path / CONFIG).unlink(), f"saved holds no {CONFIG}; `tint build"),
    "nested deeply": (lambda path: (path / CONFIG).write_text("[" * 100_000), "nested too deeply"),
    "a long integer": (lambda path: (path / CONFIG).write_text("9" * 5000), "integer of 5000 digits"),
    "a dtype that is none": (edit_config(lambda config: {**config, "dtype": "load"}), "do not belong together"),
    "a dtype that is a list": (edit_config(lambda config: {**config, "dtype": ["float32"]}), "do not belong together"),
    "an integer dtype": (edit_config(lambda config: {**config, "dtype": "int8"}), "do not belong together"),
    "a name that is a number": (edit_config(lambda config: {**config, "name": 3}), "has name=3, which must be a str"),
    "a list": (edit_config(lambda _: [1]), rf"{CONFIG} describes no simulator \(model_type 'list'\)"),
    "a plain model": (foreign_model, rf"{CONFIG} describes no simulator \(model_type 'gpt2'\)"),
    "foreign tensors": (foreign_tensors, rf"{WEIGHTS} holds no simulator \(format None\)"),
    "the weights of a model": (weights_of_a_model, rf"{WEIGHTS} holds no simulator \(format 'pt'\)"),
    "the weights of another": (weights_of_another_simulator, f"{WEIGHTS} was written with another {CONFIG}"),
    "an edited rate": (
        edit_config(lambda config: config["learning_rule"].update(learning_rate=1.0)),
        f"{WEIGHTS} was written with another {CONFIG}: the two files do not belong together",
    ),
    "an edited stack": (
        edit_config(lambda config: config["construction"].update(stack=2)),
        f"{WEIGHTS} was written with another {CONFIG}",
    ),
    "a rule taken away": (
        edit_config(lambda config: {key: value for key, value in config.items() if key != "learning_rule"}),
        f"{CONFIG} lacks learning_rule",
    ),
    "a tensor taken away": (edit_tensors(lambda tensors: tensors.pop(WTE)), f"{WEIGHTS} does not hold .*wte.weight"),
    "a tensor cut": (
        edit_tensors(lambda tensors: tensors.update({WTE: tensors[WTE][:5].clone()})),
        rf"{WEIGHTS} holds transformer.wte.weight as \(5, 12\) instead of \(29, 12\)",
    ),
    "a tensor too many": (
        edit_tensors(lambda tensors: tensors.update({"auxiliary.more": torch.ones(1)})),
        f"{WEIGHTS} does not hold the parameters .* more",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_refused_with_file_and_reason(damage: str, saved: Path) -> None:
    change, reason = DAMAGE[damage]
    change(saved)
    with pytest.raises(tint.LoadError, match=reason) as refused:
        tint.Simulator.from_pretrained(saved)
    assert str(saved) in str(refused.value) and "\n" not in str(refused.value)


def test_what_is_no_directory_is_refused(tmp_path: Path, saved: Path) -> None:
    for path in (tmp_path / "nowhere", saved / CONFIG):
        with pytest.raises(tint.LoadError, match=f"no directory .*{path.name}; `tint build"):
            tint.Simulator.from_pretrained(path)


def test_a_full_checkpoint_with_an_altered_structure_is_refused(tmp_path: Path) -> None:
    simulator, full = make("gpt2-odd-lean-full")
    simulator.save_pretrained(tmp_path, full=full)
    altered = next(f"simulator.{name}" for name, _ in simulator.named_parameters() if name.startswith("structure."))
    edit_tensors(lambda tensors: tensors[altered].add_(1e-9))(tmp_path)
    with pytest.raises(tint.LoadError, match=f"{WEIGHTS} holds other values of structure"):
        tint.Simulator.from_pretrained(tmp_path)
    edit_tensors(lambda tensors: tensors.pop(altered))(tmp_path)
    with pytest.raises(tint.LoadError, match=f"{WEIGHTS} holds another structure .* first odd tensor is structure"):
        tint.Simulator.from_pretrained(tmp_path)


def rewrite_config(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """A change of the configuration to which the weights have agreed, as another version might write it."""
    edit_config(change)(path)
    config = json.loads((path / CONFIG).read_text())
    with safe_open(path / WEIGHTS, framework="pt") as file:
        metadata = file.metadata()
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    agreed = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    write_tensors(path / WEIGHTS, tensors, {**metadata, "config": agreed})


VERSIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a new knob of the rule": lambda config: config["learning_rule"].update(patience=0.9),
    "a new choice of the rule": lambda config: config["learning_rule"].update(loss="hinge"),
    "a new knob of the construction": lambda config: config["construction"].update(width="narrow"),
    "a new layout": lambda config: config["construction"].update(layout="origami"),
    "a stack that does not fit": lambda config: config["construction"].update(stack=99),
    "an unknown dtype": lambda config: config.update(dtype="float31"),
    "a dtype of integers": lambda config: config.update(dtype="int8"),
    "a dtype that nothing computes in": lambda config: config.update(dtype="float8_e4m3fn"),
    "a module for a dtype": lambda config: config.update(dtype="nn"),
    "a number for a dtype": lambda config: config.update(dtype=7),
    "no dtype": lambda config: config.update(dtype=None),
    "a list for a dtype": lambda config: config.update(dtype=["float32"]),
    "a dtype of the auxiliary": lambda config: config["auxiliary"].update(dtype="float31"),
    "a number for a name": lambda config: config.update(name=7),
    "a text for a switch": lambda config: config.update(full="no"),
    "a rule that is nothing": lambda config: config.update(learning_rule=None),
    "a rate in words": lambda config: config["learning_rule"].update(learning_rate="0.1"),
    "an auxiliary that is a text": lambda config: config.update(auxiliary="gpt2"),
    "an unknown family": lambda config: config["auxiliary"].update(model_type="gpt99"),
    "heads that do not fit": lambda config: config["auxiliary"].update(n_head=5),
    "a billion layers": lambda config: config["auxiliary"].update(n_layer=10**9),
    "a vocabulary of millions": lambda config: config["auxiliary"].update(vocab_size=2**24),
    "code": lambda config: config["auxiliary"].update(auto_map={"AutoConfig": "evil.C"}),
    "a width in words": lambda config: config["auxiliary"].update(n_embd="twelve"),
    "a rule that is a list": lambda config: config.update(learning_rule=[1]),
}


@pytest.mark.parametrize("version", VERSIONS)
def test_what_another_version_may_have_written_is_refused(version: str, saved: Path) -> None:
    rewrite_config(saved, VERSIONS[version])
    with pytest.raises(tint.LoadError) as refused:
        tint.Simulator.from_pretrained(saved)
    assert str(saved) in str(refused.value) and "\n" not in str(refused.value)


def test_a_flipped_bit_is_noticed(saved: Path) -> None:
    """In any place: every change is refused in one line, or changes nothing that is loaded."""
    whole, expected = (saved / WEIGHTS).read_bytes(), identity(tint.Simulator.from_pretrained(saved))
    randomly = random.Random(0)
    places = [*range(0, 60), *(randomly.randrange(len(whole)) for _ in range(60))]
    for place in places:
        content = bytearray(whole)
        content[place] ^= 1 << randomly.randrange(8)
        (saved / WEIGHTS).write_bytes(content)
        try:
            assert identity(tint.Simulator.from_pretrained(saved)) == expected, place
        except tint.LoadError as refused:
            assert "\n" not in str(refused), place


def test_weights_without_a_checksum_are_refused(saved: Path) -> None:
    with safe_open(saved / WEIGHTS, framework="pt") as file:
        metadata = {key: value for key, value in file.metadata().items() if key != "checksum"}
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    save_file(tensors, saved / WEIGHTS, metadata=metadata)
    with pytest.raises(tint.LoadError, match="has no checksum"):
        tint.Simulator.from_pretrained(saved)


TENSORS: dict[str, tuple[Callable[[dict[str, Tensor]], Any], str]] = {
    "a weight that is not finite": (lambda tensors: tensors[WTE].fill_(float("nan")), "contains NaN or infinity"),
    "integers": (lambda tensors: tensors.update({WTE: tensors[WTE].to(torch.int8)}), "is not a floating-point type"),
    "a tensor of nobody": (lambda tensors: tensors.update(more=torch.ones(1)), "holds 'more', which is no part"),
    "a structure": (
        lambda tensors: tensors.update({"simulator.x": torch.ones(1)}),
        "holds constructed tensors, of which",
    ),
}


@pytest.mark.parametrize("change", TENSORS)
def test_tensors_that_no_simulator_has(change: str, saved: Path) -> None:
    edit, reason = TENSORS[change]
    edit_tensors(edit)(saved)
    with pytest.raises(tint.LoadError, match=reason) as refused:
        tint.Simulator.from_pretrained(saved)
    assert "\n" not in str(refused.value)


def test_a_consistent_change_is_read(saved: Path) -> None:
    """The refusals above are of what they name: a configuration that makes sense is followed."""
    rewrite_config(saved, lambda config: config["learning_rule"].update(steps=3))
    assert tint.Simulator.from_pretrained(saved).rule == make_rule("default", steps=3)


# A write that fails.


def save_half_a_file(tensors: Any, path: Path, **_: Any) -> None:
    Path(path).write_bytes(b"half of ")
    raise OSError(28, "No space left on device")


def no_space(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("place", ["weights", "configuration", "first rename"])
def test_a_failed_write_leaves_the_old_checkpoint(place: str, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    other = tint.build(make_model("gpt2-odd"), make_rule("full"))
    with monkeypatch.context() as patched:
        if place == "weights":
            patched.setattr("safetensors.torch.save_file", save_half_a_file)
        elif place == "configuration":
            patched.setattr(Path, "write_text", no_space)
        else:
            patched.setattr(os, "replace", no_space)
        with pytest.raises(tint.TintError, match=r"cannot write .*saved: .*No space left on device"):
            other.save_pretrained(saved)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    assert tint.Simulator.from_pretrained(saved).rule == make_rule("default")


def test_an_interruption_leaves_the_old_checkpoint(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path.name: path.read_bytes() for path in saved.iterdir()}

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("safetensors.torch.save_file", interrupt)
    with pytest.raises(KeyboardInterrupt):
        make("qwen3-lean-untied")[0].save_pretrained(saved)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before


def test_an_interruption_between_the_two_files_is_noticed(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two renames cannot be one; what an error between them leaves is undone, and the old simulator stands."""
    renamed: list[Path] = []
    rename = os.replace

    def second_fails(source: Any, target: Any) -> None:
        if renamed:
            raise OSError(5, "Input/output error")
        renamed.append(target)
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", second_fails)
        with pytest.raises(tint.TintError, match="cannot write"):
            tint.build(make_model("gpt2"), make_rule("full")).save_pretrained(saved)
    old = tint.Simulator.from_pretrained(saved).rule
    tint.build(make_model("gpt2"), make_rule("full")).save_pretrained(saved)
    assert tint.Simulator.from_pretrained(saved).rule == make_rule("full") != old


def test_a_file_where_the_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(tint.TintError, match=r"cannot write .*taken"):
        make("gpt2-lean")[0].save_pretrained(tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_new_checkpoint_takes_the_place_of_the_old_one(saved: Path) -> None:
    other, _ = make("gpt2-odd-lean-full")
    other.save_pretrained(saved)
    assert identity(tint.Simulator.from_pretrained(saved)) == identity(other)
