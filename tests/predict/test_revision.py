"""Runs and models of another revision of their method are refused, not scored otherwise."""

import json
from pathlib import Path

import pytest

import focoop
from focoop.caching import sealed
from focoop.errors import RunError
from focoop.methods import lookup
from focoop.predict import read_model
from tests.predict.test_model import model_of
from tests.toy_command import call

SMALL = {"partition.clients": 2, "partition.shots": 2, "data.ood": [], "data.corrupted": []}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("revision") / "run"
    focoop.run("demo/focoop_plus", {**SMALL, "federation.rounds": 1}, out=out)
    return out


def noted(folder: Path, revision: int | None) -> None:
    """Write another revision into a run's manifest, or none, as an earlier focoop did."""
    path = folder / "manifest.json"
    tree = json.loads(path.read_text(encoding="utf-8"))
    tree.pop("sum", None)
    tree.pop("method_revision", None)
    tree |= {} if revision is None else {"method_revision": revision}
    path.write_text(json.dumps(sealed(tree)), encoding="utf-8")


def test_a_run_notes_the_revision_of_its_method(made: Path) -> None:
    tree = json.loads((made / "manifest.json").read_text(encoding="utf-8"))
    assert tree["method_revision"] == lookup("focoop_plus").revision
    assert focoop.load_model(made).facts.revision == lookup("focoop_plus").revision


def test_a_run_of_another_revision_is_refused(made: Path) -> None:
    now = lookup("focoop_plus").revision
    kept = {name: (made / name).read_bytes() for name in ("metrics.jsonl", "config.toml")}
    for earlier in (None, now + 1):
        noted(made, earlier)
        with pytest.raises(RunError, match="of the method focoop_plus.*run it again"):
            focoop.load_model(made)
        with pytest.raises(RunError, match="of the method focoop_plus"):
            focoop.open_run(made).evaluate()
        with pytest.raises(RunError, match="of the method focoop_plus"):
            focoop.run("demo/focoop_plus", {**SMALL, "federation.rounds": 2}, out=made, resume=True)
        assert {name: (made / name).read_bytes() for name in kept} == kept  # nothing is lost
    noted(made, now)
    focoop.load_model(made)


def test_a_model_of_another_revision_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = lookup("focoop_plus").revision
    folder = model_of("focoop_plus").save(tmp_path / "model")
    read_model(folder)
    assert call("model", "check", str(folder)).exit_code == 0
    monkeypatch.setattr(lookup("focoop_plus"), "revision", 99)
    with pytest.raises(RunError, match=f"revision {now} of the method focoop_plus.*revision 99"):
        read_model(folder)
    checked = call("model", "check", str(folder))  # its files are whole, and `predict` refuses it
    assert (
        checked.exit_code == RunError.exit_code and "this focoop has revision 99" in checked.stderr
    )
