"""What users bring: registered methods and scores, dataset files, packages.

A method in a file is tested in `test_method_files.py`.
"""

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import focoop
from focoop import plugins
from focoop.data import Source, registry
from focoop.flower.settings import run_config
from focoop.methods import available, lookup
from focoop.methods.promptfl import PromptFL
from tests.plugins.own_method import METHOD, QUICK
from tests.toy_command import call

SCORE = "def score(inputs):\n    return -inputs.id_cos.max(dim=1).values\n"
DATASET = """
import focoop


def read(base):
    rows = [(f"{split}/{name}.png", i) for i, name in enumerate(("red", "blue"))
            for split in ("train",)]
    tests = [(f"test/{name}.png", i) for i, name in enumerate(("red", "blue"))]
    return focoop.Listing(base, ["red", "blue"], {"train": rows, "test": tests})


DATASET = focoop.Dataset(
    title="Colours", folder="colours", marks=("train", "test"), layout="colours/SPLIT/NAME.png",
    classes=2, counts={"train": 2, "test": 2}, licence="ours", page="", read=read,
)
"""


def test_what_is_registered_has_a_name(here: Path, setting: Path) -> None:
    class Doubled(PromptFL):
        """PromptFL under another name."""

    assert focoop.register(Doubled) is Doubled and lookup("doubled") is Doubled
    assert "doubled" in available()
    run = focoop.run(setting, {"method.name": "doubled", **QUICK}, out="a")
    assert json.loads((run.path / "manifest.json").read_text())["plugins"][0]["registered"]

    @focoop.register(name="widest")
    def score(inputs: focoop.scores.Inputs) -> torch.Tensor:
        return -inputs.id_cos.max(dim=1).values

    found = run.scores("far", client=0, score="widest")
    assert np.allclose(found, -run.logits("far", client=0)["id"].max(1))
    with pytest.raises(focoop.ConfigError, match="in this process"):
        focoop.compare(setting, "doubled", seeds=1, jobs=2, out="grid")
    with pytest.raises(focoop.ConfigError, match="the score 'widest' was registered in this"):
        focoop.compare(setting, "promptfl:score=widest", seeds=1, jobs=2, out="scored")
    table = focoop.compare(setting, "doubled", seeds=1, overrides=QUICK, out="grid")
    assert table.rows[0]["method"] == "doubled"


def test_names_of_focoop_are_not_taken(here: Path) -> None:
    with pytest.raises(focoop.ConfigError, match="focoop has a method 'promptfl' of its own"):
        focoop.register(PromptFL)
    with pytest.raises(focoop.ConfigError, match="a score 'energy' of its own"):
        focoop.register(lambda inputs: inputs, name="energy")
    with pytest.raises(focoop.ConfigError, match="is no name"):
        focoop.register(PromptFL, name="a b")
    with pytest.raises(focoop.ConfigError, match="no method"):
        focoop.register(3)


def test_a_dataset_in_a_file(here: Path, tmp_path: Path) -> None:
    (here / "colours.py").write_text(DATASET)
    for split in ("train", "test"):
        for name in ("red", "blue"):
            path = tmp_path / "root" / "colours" / split / f"{name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), name).save(path)
    source = Source.parse("./colours.py@32px")
    assert (source.name, source.stem, source.side) == ("./colours.py", "colours_32px", 32)
    images = registry.read("./colours.py", "test", tmp_path / "root")
    assert list(images.classes) == ["red", "blue"] and len(images) == 2
    features = focoop.encode("./colours.py", split="train", root=tmp_path / "root")
    assert features.pooled.shape == (2, 256)
    with pytest.raises(focoop.DataError, match="must declare DATASET"):
        (here / "none.py").write_text("")
        Source.parse("./none.py")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "return focoop.Listing",
            "focoop.Listing",
            r"must return focoop\.Listing\(.*None",
        ),
        ("rows = [", "rows = {}['x'] or [", r"failed in .*colours\.py, line 6: KeyError: 'x'"),
        (
            "train/",
            "trian/",
            r"incomplete 2 of 4 \(without trian/red\.png\): mend read",
        ),
        (
            '"train": rows',
            '"train": [("train/red.png", "red")]',
            "label 'red' of 2 classes: labels are",
        ),
        ("read=read,", "", r"\./colours\.py has no reader"),
    ],
)
def test_a_wrong_reader_is_named(here: Path, old: str, new: str, message: str) -> None:
    lines = DATASET.replace('f"{split}/', '"train/" + f"')
    (here / "colours.py").write_text(lines.replace(old, new, 1))
    for split in ("train", "test"):
        for name in ("red", "blue"):
            path = here / "root" / "colours" / split / f"{name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), name).save(path)
    settings = {"data": {"id": "./colours.py", "root": "root"}, "partition": {"clients": 2}}
    if "label" in message:  # counts are right without it
        settings["data"]["incomplete"] = True
    with pytest.raises(focoop.FocoopError, match=message):
        focoop.run(settings, {"method.name": "zeroshot"}, out="run")


class Point:
    """An entry point as packages declare them."""

    name, group = "theirs", "focoop.methods"
    dist = type("Package", (), {"name": "their-package", "version": "1.2"})()

    def load(self) -> Any:
        return type("Theirs", (PromptFL,), {"__doc__": "From a package."})


def test_a_package_brings_a_method(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def entry_points(*, group: str) -> list[Any]:
        return [Point()] if group == "focoop.methods" else []

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    assert "theirs" in available() and issubclass(lookup("theirs"), PromptFL)
    told = {"kind": "method", "name": "theirs", "package": "their-package", "version": "1.2"}
    assert plugins.origin("method", "theirs") == told

    def fails(self: Point) -> Any:
        raise ImportError("no module 'their_other'")

    monkeypatch.setattr(Point, "load", fails)
    with pytest.warns(UserWarning, match=r"theirs .* of their-package 1.2 cannot be loaded"):
        assert "theirs" not in available() and "promptfl" in available()
    with pytest.raises(focoop.ConfigError, match="cannot be loaded: no module 'their_other'"):
        lookup("theirs")


def test_a_broken_method_hides_no_other(here: Path) -> None:
    @focoop.register
    class Unfinished(focoop.Method):
        pass

    with pytest.warns(UserWarning, match="unfinished is left out: .* lacks the functions"):
        assert "unfinished" not in available() and "promptfl" in available()
    with pytest.raises(focoop.MethodError, match="lacks the functions"):
        lookup("unfinished")


def test_a_method_without_a_docstring_is_listed(here: Path) -> None:
    (here / "mine.py").write_text(METHOD.replace('"""One context, averaged plainly."""', ""))
    assert "no description" in call("methods", "./mine.py").stdout

    class Bare(PromptFL):
        pass

    focoop.register(Bare)
    assert "bare" in call("methods").stdout


def test_settings_from_a_network_choose_no_file(here: Path) -> None:
    (here / "mine.py").write_text("raise SystemExit('this must not run')\n")
    with pytest.raises(focoop.ConfigError, match="sites run installed code alone"):
        run_config({"method.name": "./mine.py"})
    with pytest.raises(focoop.ConfigError, match="the score ./mine.py is a file: sites run"):
        run_config({"method.name": "promptfl", "method.score": "./mine.py"})


@pytest.mark.slow
def test_a_score_is_chosen_on_the_command_line(here: Path, setting: Path) -> None:
    (here / "widest.py").write_text(SCORE)
    run = focoop.run(setting, {"method.name": "zeroshot", **QUICK}, out="run")
    script = [sys.executable, "-m", "focoop", "evaluate", "run", "--json", "--score"]
    done = subprocess.run(
        [*script, "./widest.py"], capture_output=True, text=True, timeout=120, cwd=here
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["summary"]
    wanted = run.evaluate(score=lambda x: -x.id_cos.max(dim=1).values).summary
    assert told["ood"]["far"]["auroc"] == pytest.approx(wanted["ood"]["far"]["auroc"])
    assert told["accuracy_own"] == run.summary["accuracy_own"]
