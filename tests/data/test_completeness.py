"""Official counts are compared with the disk: what lacks is shown, told and refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import focoop
from focoop.cli.doctor import run_checks
from focoop.config import load
from focoop.data import completeness, registry
from focoop.data.dataset import Dataset
from focoop.data.datasets import domainnet, domainnet10
from focoop.data.listing import flat
from focoop.errors import DataError
from focoop.scenario import require_data
from tests.toy_command import call
from tests.toy_setting import write_setting


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FOCOOP_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


def one_image(folder: Path, name: str = "a.jpg") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / name)


def listed(root: Path, name: str) -> dict[str, Any]:
    public = json.loads(call("data", "list", "--json").stdout)["public"]
    found: dict[str, Any] = next(row for row in public if row["dataset"] == name)
    return found


def test_one_image_is_not_ten_thousand(root: Path) -> None:
    assert listed(root, "inaturalist")["here"] == "missing"
    one_image(root / "iNaturalist" / "images")
    row = listed(root, "inaturalist")
    assert (row["here"], row["images_here"]) == ("incomplete 1 of 10,000", 1)
    assert "incomplete 1 of 10,000" in call("data", "list").stdout
    for arguments in (["run", "--set", 'data.ood=["inaturalist"]'], ["encode", "inaturalist"]):
        refused = call(*arguments)
        assert refused.exit_code == 3, refused.output
        told = " ".join(refused.stderr.split())
        assert "incomplete 1 of 10,000" in told
        assert "data.incomplete=true" in told and "--incomplete" in told
    with pytest.raises(DataError, match="incomplete 1 of 10,000"):  # the doctor says fail
        run_checks.run_dataset("inaturalist", load())
    noted = run_checks.run_dataset("inaturalist", load(None, ["data.incomplete=true"]))
    assert noted.state == "note" and "incomplete 1 of 10,000" in noted.found
    assert call("encode", "inaturalist", "--incomplete").exit_code == 0
    fetched = call("data", "fetch", "inaturalist")  # the folder is there: nothing is fetched
    assert fetched.exit_code == 3 and "incomplete 1 of 10,000" in " ".join(fetched.stderr.split())
    with pytest.raises(DataError, match="incomplete 1 of 10,000"):
        focoop.encode("inaturalist", split="test")
    assert len(focoop.encode("inaturalist", split="test", incomplete=True)) == 1


def test_a_run_may_ask_for_what_is_there(root: Path, tmp_path: Path) -> None:
    one_image(root / "iNaturalist" / "images")
    config = load(write_setting(tmp_path / "toy"), ['data.ood=["inaturalist"]'])
    with pytest.raises(DataError, match=r"data\.incomplete"):
        require_data(config)
    require_data(
        load(tmp_path / "toy" / "toy.toml", ['data.ood=["inaturalist"]', "data.incomplete=true"])
    )


def test_sets_that_are_parts_of_others_are_counted_too(root: Path) -> None:
    one_image(root / "caltech-101" / "101_ObjectCategories" / "accordion")
    assert str(completeness.on_disk("caltech101_objects", root)) == "incomplete 1 of 3,403"
    base = root / "domainnet"
    one_image(base / "real" / "zebra")
    for domain in domainnet.DOMAINS:
        (base / domain).mkdir(exist_ok=True)
        for split in ("train", "test"):
            lines = [f"{domain}/{name}/a.jpg 0" for name in domainnet10.CLASSES]
            (base / f"{domain}_{split}.txt").write_text("\n".join(lines))
    # The lists name ten images of each of six domains twice; one of these is there.
    found = str(completeness.on_disk("domainnet10", root))
    assert found == "incomplete 2 of 120 (without clipart/bird/a.jpg)"


def test_lists_that_name_absent_files_do_not_count(root: Path) -> None:
    split = root / "oxford_pets" / "split_zhou_OxfordPets.json"
    one_image(root / "oxford_pets" / "images")
    rows = [["a.jpg", 0, "cat"], ["b.jpg", 1, "dog"]]
    split.write_text(json.dumps({"train": rows, "val": rows[:1], "test": rows}))
    found = completeness.on_disk("oxford_pets", root)
    assert (found.state, found.images, found.official) == ("incomplete", 3, 7349)
    assert found.why == "2 of 37 classes"
    split.unlink()
    assert "split_zhou" in completeness.on_disk("oxford_pets", root).why


def declared(**official: Any) -> Dataset:
    return Dataset(
        title="Small",
        folder="small",
        marks=("images",),
        layout="small/images/*.jpg",
        licence="free",
        page="http://x",
        read=lambda base: flat(base, "images", "small"),
        **official,
    )


def test_numbers_that_agree_are_here_and_more_are_other(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(3):
        one_image(root / "small" / "images", f"{index}.jpg")
    for official, state in ((3, "here"), (2, "other 3 of 2"), (4, "incomplete 3 of 4")):
        dataset = declared(classes=0, counts={"test": official})
        monkeypatch.setattr(completeness, "lookup", lambda name, made=dataset: made)
        assert str(completeness.on_disk("small", root)) == state
    monkeypatch.setattr(completeness, "lookup", lambda name: declared(classes=2, counts={}))
    assert completeness.on_disk("small", root).why == "1 of 2 classes"
    monkeypatch.setattr(completeness, "lookup", lambda name: declared(classes=0, counts={}))
    assert completeness.on_disk("small", root).state == "here"


def test_every_dataset_that_is_not_there_is_missing(root: Path) -> None:
    assert {completeness.on_disk(name, root).state for name in registry.available()} == {"missing"}


def test_corrupted_images_need_every_type(root: Path) -> None:
    folder = root / "CIFAR-10-C"
    folder.mkdir(parents=True)
    np.save(folder / "labels.npy", np.zeros(10, np.int64))
    np.save(folder / "fog.npy", np.zeros((10, 32, 32, 3), np.uint8))
    found = completeness.on_disk("cifar10_c", root)
    assert found.state == "incomplete" and found.images == 2 and "without" in found.why
