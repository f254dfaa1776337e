"""Runs from raw images with the packaged backbone, as a user with a folder or a CSV starts them."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from focoop.cli import app

SMALL = ("method.name=promptfl", "federation.rounds=1", "federation.lr=0.3", "partition.clients=0")


def run(folder: Path, *settings: str) -> dict[str, Any]:
    words = ["run", "--json", "--out", str(folder)]
    for setting in (*SMALL, *settings):
        words += ["--set", setting]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found["summary"]


@pytest.fixture
def images(shared_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "cache"))
    return shared_dir / "images"


@pytest.mark.shared
@pytest.mark.slow
def test_a_folder_of_domains_with_corrupted_test_and_ood_folder(
    images: Path, tmp_path: Path
) -> None:
    office = images / "office_caltech10"
    summary = run(
        tmp_path / "run",
        f"data.id=folder:{office}",
        f"data.corrupted=['folder:{office}#brightness@3', 'folder:{office}#fog@3']",
        f"data.ood=['folder:{images / 'places_like'}']",
        "partition.kind=domain",
    )
    # 320 images, 8 of each class in each of four domains: a fifth is held out, whole ones.
    assert [client["num_test"] for client in summary["clients"]] == [10, 10, 10, 10]
    for client in summary["clients"]:
        assert set(client["corrupted"]) == {"brightness@3", "fog@3"}
        assert all(one["count"] == 10 for one in client["corrupted"].values())
        assert 0 <= client["ood"]["places_like"]["auroc"] <= 1
    accuracies = [client["accuracy_all"] for client in summary["clients"]]
    assert min(accuracies) > 0.15  # ten classes


@pytest.mark.slow
@pytest.mark.shared
def test_a_csv_with_clients_with_corrupted_test_and_ood_folder(
    images: Path, tmp_path: Path
) -> None:
    rows = []
    for domain, client in (("dslr", "north"), ("webcam", "south")):
        for name in ("bike", "mug", "laptop"):
            files = sorted((images / "office_caltech10" / domain / name).iterdir())[:5]
            splits = ("train", "train", "train", "test", "test")
            rows += [[file, name, split, client] for file, split in zip(files, splits, strict=True)]
    ood = tmp_path / "ood" / "street"
    ood.mkdir(parents=True)
    for file in sorted((images / "places_like" / "test" / "street").iterdir())[:8]:
        (ood / file.name).symlink_to(file)
    (ood / "broken.jpg").write_bytes(b"no image")
    table = tmp_path / "office.csv"
    with open(table, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["path", "label", "split", "client"], *rows])
    with pytest.warns(UserWarning, match=r"1 of 9 images .*street/broken.jpg"):
        summary = run(
            tmp_path / "run",
            f"data.id=csv:{table}",
            f"data.corrupted=['csv:{table}#fog@2']",
            f"data.ood=['folder:{tmp_path / 'ood'}']",
            "partition.kind=given",
            "partition.shots=0",
        )
    assert [client["num_test"] for client in summary["clients"]] == [6, 6]
    for client in summary["clients"]:
        assert client["num_classes"] == 3 and client["corrupted"]["fog@2"]["count"] == 6
        assert 0 <= client["ood"]["ood"]["auroc"] <= 1
    assert min(client["accuracy_all"] for client in summary["clients"]) > 0.4  # three classes
