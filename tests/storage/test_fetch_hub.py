# pyright: basic
"""`tint fetch` of models and data of the hub, against a server here that answers as the hub does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import pytest
from serving import Site, put_hub_model, serving
from test_fetch import check_refusal
from tiny import save_model

import tintformer
from tintformer.errors import InputError
from tintformer.learning.text import find_tokenizer
from tintlab.data.data_fetching import DataToFetch, data_to_fetch, fetch_data
from tintlab.data.sources import Hub, read_hub
from tintlab.data.tasks import load_task

NAME = "ada/tiny"
MAIN, CONVERTED = "a" * 40, "b" * 40
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with all that must not be fetched."""
    directory = save_model(tmp_path_factory.mktemp("model"))
    for name in ("pytorch_model.bin", "flax_model.msgpack", "tf_model.h5", "modeling.py", "consolidated.safetensors"):
        (directory / name).write_bytes(b"not to be fetched")
    return directory


@pytest.fixture
def site() -> Generator[Site]:
    with serving(Site()) as running:
        yield running


@pytest.fixture
def run(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command with this hub and with caches of its own."""

    for name in [name for name in os.environ if name.startswith(("HF_", "TRANSFORMERS_"))]:
        monkeypatch.delenv(name)
    own = {"HF_ENDPOINT": site.address, "HF_HOME": str(tmp_path / "hf"), "TINTFORMER_CACHE": str(tmp_path / "own")}
    for name, value in {**own, "HF_HUB_DISABLE_XET": "1"}.items():
        monkeypatch.setenv(name, value)
    return lambda *words, **variables: forked.tint(*words, variables=variables)


def load_offline() -> str:
    """Load the model in a process that has no connection; returns its name."""

    def load() -> None:
        print(tintformer.load(NAME).name, len(find_tokenizer(NAME)))

    done = forked.Fork(load, variables={"HF_HUB_OFFLINE": "1"}).end()
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[0]


def offer_conversion(site: Site, author: str) -> None:
    offer = {
        "title": "Adding `safetensors` variant of this model",
        "num": 3,
        "author": {"name": author},
        "createdAt": "2024-01-01T00:00:00.000Z",
        "status": "open",
        "repo": {"name": NAME, "type": "model"},
        "isPullRequest": True,
    }
    answer = {"count": 1, "start": 0, "discussions": [offer]}
    site.files[f"/api/models/{NAME}/discussions"] = json.dumps(answer).encode()


def test_a_model_of_the_hub_is_fetched_without_pickles_and_loads_offline(run: Run, site: Site, model: Path) -> None:
    put_hub_model(site, NAME, "main", MAIN, model)
    done = run("fetch", NAME, "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["name"] == NAME and row["status"] == "fetched"
    place = Path(row["path"])
    found = {path.name for path in place.iterdir()}
    wanted = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert wanted <= found and not any(name.endswith((".bin", ".msgpack", ".h5", ".py")) for name in found)
    assert "consolidated.safetensors" not in found

    assert load_offline() == NAME

    asked = len(site.asked)
    again = run("fetch", NAME, HF_HUB_OFFLINE="1")
    assert again.stdout == f"{NAME} is there already: {place}\n" and len(site.asked) == asked

    weights = place / "model.safetensors"
    right = weights.read_bytes()
    weights.write_bytes(right[:-1] + b"?")  # the blob behind the link
    repaired = run("fetch", NAME)
    assert repaired.returncode == 0, repaired.stderr
    assert weights.read_bytes() == right


@pytest.mark.sweep
def test_safetensors_that_the_hub_has_converted(run: Run, site: Site, model: Path, tmp_path: Path) -> None:
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    for path in model.iterdir():
        if path.name != "model.safetensors":
            (pickled / path.name).write_bytes(path.read_bytes())
    put_hub_model(site, NAME, "main", MAIN, pickled)
    put_hub_model(site, NAME, "refs/pr/3", CONVERTED, model)
    offer_conversion(site, "somebody")
    check_refusal(run("fetch", NAME), f"{NAME} has no safetensors on the hub", "pickled weights are not")
    offer_conversion(site, "SFconvertbot")
    done = run("fetch", NAME)
    assert done.returncode == 0, done.stderr
    assert load_offline() == NAME
    assert "already" in run("fetch", NAME, HF_HUB_OFFLINE="1").stdout


def test_without_the_hub(run: Run, tmp_path: Path) -> None:
    remedy = f"check the name and the connection, then run `tint fetch {NAME}` again"
    check_refusal(run("fetch", NAME), f"cannot fetch '{NAME}' from the hub (", "404", remedy)
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    check_refusal(run("fetch", NAME, **nowhere), "Connection refused", remedy)
    check_refusal(run("fetch", NAME, HF_HUB_OFFLINE="1"), "HF_HUB_OFFLINE", remedy)
    assert not (tmp_path / "own").exists()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TINTFORMER_CACHE", str(tmp_path / "own"))
    return tmp_path / "own"


def test_data_without_the_package(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"stanfordnlp/sst2 needs the package datasets; install it"):
        fetch_data(data_to_fetch("sst2"))
    assert not cache.exists()


def test_rows_are_kept_and_read_without_the_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def load_dataset(name: str, config: str | None, *, split: str, revision: str | None, streaming: bool) -> Any:
        asked.append((name, split, streaming))
        return [{"idx": number, "sentence": f"{split} {number}\u2028", "label": number % 2} for number in range(8)]

    monkeypatch.setitem(
        sys.modules,
        "datasets",
        SimpleNamespace(load_dataset=load_dataset, config=SimpleNamespace(HF_HUB_OFFLINE=False)),
    )
    before = load_task("sst2")
    place, new = fetch_data(data_to_fetch("sst2"))
    assert new and place == cache / "data" and len(list(place.iterdir())) == 2
    assert asked[2:] == [("stanfordnlp/sst2", "train", False), ("stanfordnlp/sst2", "validation", False)]
    assert fetch_data(data_to_fetch("sst2")) == (place, False) and len(asked) == 4

    monkeypatch.setitem(sys.modules, "datasets", None)
    assert load_task("sst2").identity == before.identity
    with pytest.raises(InputError, match="needs the package datasets"):  # other rows of the same data
        read_hub(Hub(id="stanfordnlp/sst2"), "train", 5)

    damaged = data_to_fetch("sst2").files[0]
    damaged.write_bytes(damaged.read_bytes()[:-20])
    monkeypatch.setitem(
        sys.modules,
        "datasets",
        SimpleNamespace(load_dataset=load_dataset, config=SimpleNamespace(HF_HUB_OFFLINE=False)),
    )
    assert fetch_data(data_to_fetch("sst2")) == (place, True) and len(asked) == 5
    assert load_task("sst2").identity == before.identity


def test_real_data_sets_from_files(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets", reason="datasets is not here; pip install 'tintformer[eval]'")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    (tmp_path / "data").mkdir()
    for split in ("train", "test"):
        lines = [json.dumps({"text": f"{split} {number}", "label": number % 2}) for number in range(5)]
        (tmp_path / "data" / f"{split}.jsonl").write_text("\n".join(lines))
    hub = Hub(id=str(tmp_path / "data"))
    for limit in (None, 3):  # all of it through the cache of datasets, or a stream
        wanted = DataToFetch(title="local", hub=hub, splits=("train", "test"), limit=limit)
        assert fetch_data(wanted)[1] and not fetch_data(wanted)[1]
        rows = read_hub(hub, "test", limit)
        assert [row.values for row in rows] == [
            {"text": f"test {number}", "label": number % 2} for number in range(limit or 5)
        ]


def test_a_description_without_the_hub(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("kind: text\ntitle: Own\npath: own.txt\n")
    with pytest.raises(InputError, match="nothing to fetch"):
        data_to_fetch(str(tmp_path / "own.yaml"))
