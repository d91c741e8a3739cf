# pyright: basic
"""Records that were named after a hash of the code are found by version, and nothing is done again.

`golden/records_by_code` was made by the last code with a hash (commit ca92773): all cases of `golden_units` in float32,
and what came out of them.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Generator
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from golden_units import GOLDEN, Case, by_kind, cases, moved
from places import ROOT

from tintlab.data import models as open_models
from tintlab.kinds import regression as in_context_regression
from tintlab.study.rekey_records import LAST_CODE, main, rekey_records, versioned
from tintlab.study.runner import Runner
from tintlab.study.store import RecordStore, key_of, to_json

RESULTS: dict[str, Any] = json.loads((GOLDEN / "records_by_code" / "results.json").read_text())
"""By case, what its command reports."""
COUNT = 43
"""Records of the fixture."""


@pytest.fixture
def old(tmp_path: Path) -> RecordStore:
    shutil.copytree(GOLDEN / "records_by_code" / "records", tmp_path / "records")
    return RecordStore(tmp_path / "records")


@pytest.fixture
def known_models(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Let what depends on versions of libraries, and on a processor's last digit, be what it was in the fixture.

    Configurations and tokenizers are hashed as today's transformers and tokenizers write them. Weights are hashed here.
    """
    identities = [record.identity for record in RecordStore(GOLDEN / "records_by_code" / "records")]
    models = {each["model"]["weights"]: each["model"] for each in identities if "model" in each}
    (digest,) = {each["functions"] for each in identities if "functions" in each}
    draw = in_context_regression.draw
    monkeypatch.setattr(in_context_regression, "draw", lambda *part: replace(draw(*part), digest=digest))
    monkeypatch.setattr(open_models, "model_identity", lambda model, tokenizer: models[open_models.weights_hash(model)])
    open_models.open_model.cache_clear()
    yield
    open_models.open_model.cache_clear()


def test_no_unit_is_done_again(
    old: RecordStore, known_models: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rekey_records(old.directory).renamed == COUNT
    found = cases(tmp_path / "data", "float32")
    kinds = {record.identity["kind"] for record in old}
    assert len(kinds) == 7 and kinds <= set(by_kind(found))
    for name, expected in RESULTS.items():
        done = results(found[name], old, monkeypatch)
        assert not [*moved(done, expected)], name


def results(case: Case, store: RecordStore, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What comes out of a case whose units must all have records."""
    kind = type(case.experiment)
    monkeypatch.setattr(kind, "version", 1)  # that of the records, whatever it is today
    monkeypatch.setattr(kind, "run", lambda self, unit: pytest.fail(f"{unit} is done again"))
    with Runner(store) as runner:
        found = case.results(runner)
    return to_json([asdict(each) if is_dataclass(each) and not isinstance(each, type) else each for each in found])


def test_an_identity_holds_what_is_documented(old: RecordStore) -> None:
    """No hash of the code among it: a renamed variable or another message can invalidate nothing."""
    rekey_records(old.directory)
    page = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    table = page.partition("| an identity of | holds |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", table, re.MULTILINE)
    documented = {first.strip("`"): set(re.findall(r"`(\w+)`", holds)) for first, holds in rows}
    every = documented.pop("every kind")
    found = {record.identity["kind"]: set(record.identity) for record in old}
    assert found == {kind: every | own for kind, own in documented.items()}


def test_damaged_records_and_those_of_other_code_are_left(old: RecordStore) -> None:
    damaged, other = old.paths()[:2]
    damaged.write_bytes(damaged.read_bytes()[:-20])
    content = json.loads(other.read_text())
    other.unlink()
    identity = content["identity"] | {"code": "0.1.0+other"}
    old.save(identity, content["result"])
    found = rekey_records(old.directory)
    assert (found.renamed, found.current, found.other_code) == (COUNT - 2, 0, {"0.1.0+other": 1})
    assert found.unreadable == [f"{damaged} is no JSON: it is truncated or damaged"] and damaged.exists()
    assert old.find(identity) == content["result"] and old.find(versioned(identity)) is None
    again = rekey_records(old.directory, [LAST_CODE, "0.1.0+other"])
    assert (again.renamed, again.current, again.other_code) == (1, COUNT - 2, {})
    assert old.find(versioned(identity)) == content["result"] and old.find(identity) is None


def test_one_that_was_stopped_goes_on(old: RecordStore, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {key_of(versioned(record.identity)): to_json(record.result) for record in old}
    unlink, unlinked = Path.unlink, []

    def killed(path: Path, missing_ok: bool = False) -> None:
        if path.parent.parent == old.directory:
            if len(unlinked) == 3:
                raise KeyboardInterrupt
            unlinked.append(path)
        unlink(path, missing_ok)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "unlink", killed)
        rekey_records(old.directory)
    assert len(old.paths()) == COUNT + 1  # one is there under both names
    rekey_records(old.directory)
    assert {record.key: to_json(record.result) for record in old} == before


def test_the_command(old: RecordStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (path, *_) = old.paths()
    path.write_text("{")
    monkeypatch.setattr(sys, "argv", ["rekey_records", str(old.directory.parent)])
    assert main() == 1
    printed = capsys.readouterr()
    assert printed.out == f"{COUNT - 1} records renamed; 0 had a version already\n" and str(path) in printed.err
    path.unlink()
    assert main() == 0 and capsys.readouterr().out == f"0 records renamed; {COUNT - 1} had a version already\n"
    monkeypatch.setattr(sys, "argv", ["rekey_records", str(old.directory)])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "holds no records; give the directory that -o was given" in capsys.readouterr().err
