"""What a practitioner is told who runs on images of their own for the first time."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from focoop.cli import app
from focoop.cli.doctor import NOTE, OK, run_clients
from focoop.clip.mini import Mini
from focoop.config import loading
from tests.features.test_encoding import ROOT, plant_images


@pytest.fixture(autouse=True)
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "cache"))


def run(tmp_path: Path, *settings: str) -> Result:
    options = [word for setting in settings for word in ("--set", setting)]
    return CliRunner().invoke(app, ["run", "--out", str(tmp_path / "run"), *options])


def table(tmp_path: Path) -> Path:
    """Images of three classes, each class with its own client."""
    root = plant_images(tmp_path / "pets", per_class=1)
    rows = [[str(file), file.parent.name, file.parts[-3]] for file in sorted(root.rglob("*.png"))]
    with open(tmp_path / "t.csv", "w", encoding="utf-8", newline="") as file:
        lines = [["path", "label", "split", "client"], *([*row, f"of {row[1]}"] for row in rows)]
        csv.writer(file).writerows(lines)
    return tmp_path / "t.csv"


def test_corrupted_sets_of_other_classes_are_named_with_what_to_write(tmp_path: Path) -> None:
    root = plant_images(tmp_path / "pets", per_class=1)
    given = [f"data.id=folder:{root}", "partition.clients=3", "method.name=zeroshot"]
    done = run(tmp_path, *given, "data.corrupted=['demo:cifar100#brightness@1']")
    assert done.exit_code == 2
    assert "data.corrupted: demo:cifar100#brightness@1 does not hold the classes" in done.stderr
    assert f"write folder:{root}#brightness there, or set data.corrupted=[]" in done.stderr


def test_what_cannot_be_divided_is_refused_before_anything_is_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mini, "encode_images", None)
    ten = "partition.clients=10"
    done = run(tmp_path, f"data.id=csv:{table(tmp_path)}", "method.name=zeroshot", ten)
    assert done.exit_code == 2 and "set partition.clients to 3" in done.stderr
    assert "names 3 clients, which partition.kind = pathological ignores" in done.stderr
    assert "--set partition.kind=given --set partition.clients=0" in done.stderr


def test_clients_that_are_used_need_no_note(tmp_path: Path) -> None:
    file = table(tmp_path)
    for kind, state in (("given", OK), ("iid", NOTE)):
        chosen = loading.load(None, [f"data.id=csv:{file}", f"partition.kind={kind}"])
        assert run_clients(chosen).state == state
    plain = loading.load(None, [f"data.id=folder:{tmp_path / 'pets'}"])
    assert run_clients(plain).state == OK


def test_domains_without_splits_are_told_apart_from_a_mistake(tmp_path: Path) -> None:
    root = plant_images(tmp_path / "pets", per_class=1)
    (root / "train").rename(root / "photo")
    (root / "test").rename(root / "sketch")
    done = run(tmp_path, f"data.id=folder:{root}", "method.name=zeroshot")
    assert done.exit_code == 3 and "partition.kind=domain" in done.stderr


def test_a_missing_table_is_named_by_its_whole_path(tmp_path: Path) -> None:
    done = run(tmp_path, f"data.id=csv:{tmp_path / 'tabel.csv'}")
    assert done.exit_code == 3
    told = f"error: there is no file {tmp_path / 'tabel.csv'}: check the path\n"
    assert done.stderr.endswith(told) and "Traceback" not in done.stderr


@pytest.mark.slow
def test_warnings_come_without_code(tmp_path: Path) -> None:
    root = plant_images(tmp_path / "pets", per_class=2)
    (root / "train" / "ant" / "000.png").write_bytes(b"no image")
    words = ["data", "show", "--set", f"data.id=folder:{root}", "--set", "partition.clients=3"]
    command = [sys.executable, "-m", "focoop", *words]
    # Readline, which pytest loads, gives the process a width (COLUMNS) of which Python knows not.
    known = dict(os.environ)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=known, timeout=60)
    assert done.returncode == 0, done.stderr
    assert " ".join(done.stderr.split()) == (  # COLUMNS says where lines break
        f"warning: 1 of 6 images in {root} cannot be read: train/ant/000.png (not an image, or of "
        "an unknown format): left out"
    )
