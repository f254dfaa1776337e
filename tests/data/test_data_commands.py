"""`focoop data show` of images that nobody encoded, and `focoop encode --patch-kind`."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import focoop.clip
from focoop.cli import app
from focoop.cli.data import PATCH_KINDS
from focoop.clip.mini import Mini
from focoop.config import loading
from focoop.experiments.naming import describe_partition
from focoop.features.lookup import open_features
from focoop.methods import available
from focoop.scenario.assignment import make_split
from tests.features.test_encoding import plant_images
from tests.helpers import ToyBackbone, toy_backbone


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def show(*settings: str) -> Any:
    options = [word for setting in settings for word in ("--set", setting)]
    done = call("data", "show", "--json", *options)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture(autouse=True)
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def nothing_encodes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("an image would be encoded")

    monkeypatch.setattr(Mini, "encode_images", refuse)
    monkeypatch.setattr(focoop.clip, "load_backbone", refuse)


@pytest.mark.usefixtures("nothing_encodes")
def test_a_folder_is_divided_without_a_backbone(tmp_path: Path) -> None:
    root = plant_images(tmp_path / "pets", per_class=6)
    found = show(f"data.id=folder:{root}", "partition.clients=3", "partition.shots=4")
    assert found["classes"] == ["ant", "bee", "cat"] and found["repeated"] == 0
    # Three clients without a class in common: one class each, 4 shots of it, its 6 test images.
    assert sorted(map(sorted, found["train"])) == [[0, 0, 4]] * 3
    assert sorted(map(sorted, found["test"])) == [[0, 0, 6]] * 3 and found["clients"] == []
    text = call("data", "show", "--set", f"data.id=folder:{root}", "--set", "partition.clients=3")
    assert (
        text.exit_code == 0 and f"folder:{root}, pathological, all training images" in text.stdout
    )


@pytest.mark.usefixtures("nothing_encodes")
def test_given_clients_of_a_table_are_counted(tmp_path: Path) -> None:
    root = plant_images(tmp_path / "pets", per_class=5)
    owner = {"ant": "north", "bee": "south", "cat": "south"}
    rows = [
        [file.relative_to(tmp_path).as_posix(), file.parent.name, file.parts[-3]]
        for file in sorted(root.rglob("*.png"))
    ]
    with open(tmp_path / "t.csv", "w", encoding="utf-8", newline="") as file:
        table = [[*row, owner[row[1]]] for row in rows]
        csv.writer(file).writerows([["path", "label", "split", "client"], *table])
    given = [f"data.id=csv:{tmp_path / 't.csv'}", "partition.kind=given", "partition.clients=0"]
    found = show(*given, "partition.shots=0")
    assert found["train"] == found["test"] == [[5, 0, 0], [0, 5, 5]]
    assert found["clients"] == ["north", "south"]
    options = [word for setting in given for word in ("--set", setting)]
    text = call("data", "show", *options).stdout
    assert "0 north" in text and "1 south" in text
    few = show(*given, "partition.shots=0", 'data.drop_classes=["bee"]', "data.views=2")
    assert few["classes"] == ["ant", "cat"] and few["train"] == [[5, 0], [0, 5]]


def test_what_is_shown_is_what_a_run_sees(tmp_path: Path) -> None:
    root = plant_images(tmp_path / "pets", per_class=7)
    for partition in ("kind=dirichlet", "kind=iid"):
        settings = [f"data.id=folder:{root}", f"partition.{partition}", "partition.clients=2"]
        for more in ([], ["data.validation=2"], ["data.views=1"]):
            chosen = loading.load(None, [*settings, *more])
            run = make_split(chosen, toy_backbone(), tmp_path / "c")
            view = describe_partition(chosen)
            assert view.train.tolist() == run.counts().tolist() and view.train.sum() > 0
            assert view.test.tolist() == run.counts(of_test=True).tolist()


class Tokens(ToyBackbone):
    """Offers two kinds of patches."""

    def __init__(self) -> None:
        super().__init__(seed=0, width=16, dim=12, layers=1)
        self.patch_kinds = ("lf_a", "lf_b")


def test_features_of_a_kind_of_patches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {kind.patch_kind for kind in available().values()} - {""} <= set(PATCH_KINDS)
    monkeypatch.setattr(focoop.clip, "load_backbone", lambda *_, **__: Tokens())
    root, saved = plant_images(tmp_path / "pets"), tmp_path / "x.safetensors"
    words = ["encode", f"folder:{root}", "--split", "test", "--save", str(saved)]
    done = call(*words, "--patch-kind", "lf_b")
    assert done.exit_code == 0 and "patches 4 of kind lf_b" in done.stdout
    kept = open_features(f"file:{saved}", "test", Tokens(), True, patch_kind="lf_b")
    assert kept.patches is not None and kept.provenance["patches"] == "lf_b"
    first = json.loads(call(*words, "--patches", "--json").stdout)[0]
    assert (first["patches"], first["patch_kind"]) == (4, "lf_a")
    none = json.loads(call(*words, "--json").stdout)[0]
    assert (none["patches"], none["patch_kind"]) == (None, None)
    absent = call(*words, "--patch-kind", "lf_c")
    assert absent.exit_code == 4 and "offers: lf_a, lf_b" in absent.stderr
    unknown = call(*words, "--patch-kind", "lf")
    assert unknown.exit_code == 2 and "lf_a, lf_b, lf_c, grid" in unknown.stderr
