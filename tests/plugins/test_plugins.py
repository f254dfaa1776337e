"""A method, dataset or score of a user's own: in a file, registered, or in a package."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
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
from focoop.experiments import plan
from focoop.flower.settings import run_config
from focoop.methods import available, lookup
from focoop.methods.promptfl import PromptFL
from focoop.plugins import finding
from tests.toy_command import call
from tests.toy_setting import write_setting

METHOD = """
from dataclasses import dataclass

import torch

import focoop


class Mine(focoop.Method):
    \"\"\"One context, averaged plainly.\"\"\"

    @dataclass(frozen=True)
    class Config:
        tokens: int = focoop.setting(2, "length of the context", low=1)

    paper = "mine"
    shares = "context"

    def init(self, task, generator):
        return focoop.State({"context": focoop.first_context(task, generator, self.config.tokens)})

    def prompts(self, params, task):
        return {"id": focoop.Prompt(params["context"], task.id_names)}

    def logits(self, text, pooled, patches):
        return focoop.cosines(text, pooled)

    def loss(self, params, text, batch, task, noise):
        logits = self.logits(text, batch.pooled, batch.patches)
        return torch.nn.functional.cross_entropy(task.logit_scale * logits.id, batch.labels)

    def score(self, logits, task):
        return focoop.scores.mcm(logits.id)

    def aggregate(self, server, updates, task):
        return focoop.Server({"context": focoop.weighted_mean(updates, "context")})
"""
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
QUICK = {"federation.rounds": 1, "federation.evaluate_every": 1}


@pytest.fixture
def setting(tmp_path: Path) -> Path:
    return write_setting(tmp_path / "data")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of one's own to work in, with nothing registered."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    finding.forget()
    yield folder
    finding.forget()


def test_a_method_in_a_file_runs_and_opens_again(
    here: Path, setting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "mine.py").write_text(METHOD)
    run = focoop.run(setting, {"method.name": "./mine.py", "method.tokens": 3, **QUICK})
    assert run.path.name == "id-pathological-mine-0"
    assert run.prompts()["context"].shape[0] == 3
    manifest = json.loads((run.path / "manifest.json").read_text())
    (told,) = manifest["plugins"]
    assert told["name"] == "./mine.py" and len(told["sha256"]) == 64
    path, before = run.path.resolve(), run.summary["accuracy_own"]
    monkeypatch.chdir(tmp_path)  # elsewhere the same file is found
    finding.forget()
    again = focoop.open_run(path)
    assert again.evaluate().summary["accuracy_own"] == before
    (here / "mine.py").write_text(METHOD + "\n# changed\n")
    with pytest.raises(focoop.RunError, match=r"plugins is not what .* was started with"):
        focoop.open_run(path).evaluate()
    (here / "mine.py").unlink()
    finding.forget()
    with pytest.raises(focoop.RunError, match=r"no file \./mine\.py") as error:
        focoop.open_run(path)
    assert f"put the file back, sha256 {told['sha256'][:16]}" in str(error.value)


def test_a_run_folder_that_moved_with_its_project_finds_its_method(
    here: Path, setting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "mine.py").write_text(METHOD)
    focoop.run(setting, {"method.name": "./mine.py", **QUICK}, out="runs/x")
    shutil.move(here, tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    finding.forget()
    assert focoop.open_run(tmp_path / "moved" / "runs" / "x").config.method.settings.tokens == 2


def test_a_file_goes_into_a_comparison(here: Path, setting: Path) -> None:
    (here / "mine.py").write_text(METHOD)
    cells = plan([setting], "./mine.py:tokens=1,zeroshot", (0,), here / "out")
    assert [cell.config.method.name for cell in cells] == ["./mine.py", "zeroshot"]
    assert cells[0].config.method.settings.tokens == 1
    assert cells[0].folder.relative_to(here / "out").as_posix() == "toy/mine.py-tokens=1/seed0"


def test_files_that_hold_no_method_are_refused(here: Path) -> None:
    (here / "empty.py").write_text("x = 1\n")
    with pytest.raises(focoop.MethodError, match=r"exactly one focoop\.Method, it defines 0"):
        lookup("./empty.py")
    (here / "broken.py").write_text("import os\n1 / 0\n")
    with pytest.raises(
        focoop.ConfigError, match=r"ZeroDivisionError: .*, in .*broken\.py, line 2$"
    ):
        lookup("./broken.py")
    with pytest.raises(focoop.ConfigError, match=r"there is no file \./none\.py for the method in"):
        lookup("./none.py")


def test_a_method_that_breaks_the_contract_is_refused_before_its_first_round(
    here: Path, setting: Path
) -> None:
    (here / "mine.py").write_text(
        METHOD.replace("batch.labels)", "batch.labels, reduction='none')")
    )
    with pytest.raises(focoop.MethodError, match=r"Mine\.loss returned a tensor of the shape"):
        focoop.run(setting, {"method.name": "./mine.py", **QUICK}, out="broken")
    assert focoop.open_run("broken").last_round == -1
    (here / "mine.py").write_text(METHOD.replace("def score", "def scores"))
    with pytest.raises(focoop.MethodError, match=r"\./mine\.py\) lacks the function score: help\("):
        focoop.run(setting, {"method.name": "./mine.py", **QUICK}, out="lacking")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    @dataclass(frozen=True)\n", "", "are no dataclass: write @dataclass"),
        ('focoop.setting(2, "length of the context", low=1)', "", "tokens of Mine has no default"),
        ("tokens: int", "name: int", "a setting called name"),
        ("low=1", "minimum=1", "TypeError: .* 'minimum', in .*mine.py, line 14"),
    ],
)
def test_settings_of_a_method_that_cannot_be_set_are_refused(
    here: Path, old: str, new: str, message: str
) -> None:
    lines = METHOD.replace(old, new).replace("int = \n", "int\n")
    (here / "mine.py").write_text(lines)
    with pytest.raises(focoop.FocoopError, match=message):
        lookup("./mine.py")


def test_a_method_is_checked_against_the_contract(here: Path, setting: Path) -> None:
    (here / "mine.py").write_text(METHOD)
    checks = focoop.check_method("./mine.py", setting, {"method.tokens": 1})
    assert len(checks) == 6 and all(check.kept for check in checks)

    class Centred(PromptFL):
        """Looks at the whole batch."""

        def logits(self, text: Any, pooled: torch.Tensor, patches: Any) -> focoop.Logits:
            return super().logits(text, pooled - pooled.mean(dim=0), patches)

    (broken,) = [check for check in focoop.check_method(Centred, setting) if not check.kept]
    assert "logits of an image changes" in broken.problem and lookup("centred") is Centred


def test_the_command_line_checks_a_method(here: Path) -> None:
    (here / "mine.py").write_text(METHOD)
    done = call("methods", "./mine.py", "--check")
    assert done.exit_code == 0 and done.stdout.count("  ok  ") == 6, done.stdout
    lines = METHOD.replace(
        'focoop.weighted_mean(updates, "context")', 'updates[0].shared["contxt"]'
    )
    (here / "mine.py").write_text(lines)
    done = call("methods", "./mine.py", "--check", "--json")
    (told,) = json.loads(done.stdout)
    assert done.exit_code == 1 and "mine.py, line 36: KeyError: 'contxt'" in told["problem"]
    assert "name the method to check" in call("methods", "--check").stderr


def test_a_method_of_ones_own_is_tuned_as_focoops_are(here: Path, setting: Path) -> None:
    answering = METHOD.replace("focoop.Method", "focoop.Answering")
    answering = answering.replace("class Config:", "class Config(focoop.AnswerConfig):")
    answering = answering.replace("tokens)})", "tokens)}, self.unknown_counts(task))")
    for name in ("logits", "score"):  # both are there
        start = answering.index(f"    def {name}(")
        answering = answering[:start] + answering[answering.index("    def ", start + 8) :]
    answering = answering.replace("self.logits(text, batch.pooled, batch.patches)", "cosines")
    answering = answering.replace("logits = cosines", "logits = focoop.cosines(text, batch.pooled)")
    (here / "mine.py").write_text(answering)
    (here / "plain.py").write_text(METHOD)
    assert all(check.kept for check in focoop.check_method("./mine.py", setting))
    call_ = ["tune", str(setting), "--methods=./mine.py,./plain.py,promptfl", "--budget=1"]
    done = call(*call_, "--validation=3", "--jobs=0", "--out=out", "--write=presets")
    told = " ".join(done.stderr.split())
    assert done.exit_code == 0, done.stderr
    assert "note: ./plain.py is tried with its own score alone" in told and told.count("note") == 1
    heads = {
        name: (here / "presets" / f"{name}.toml").read_text() for name in ("mine.py", "promptfl")
    }
    assert all("each under 55 answers" in text for text in heads.values())
    cells = plan([setting], "./mine.py", (0,), here / "o", presets=here / "presets")
    assert f"open_share = {cells[0].config.method.settings.open_share}" in heads["mine.py"]
    both = call("tune", str(setting), "--setting", str(setting), "--methods=promptfl")
    assert both.exit_code == 2 and "name one setting" in both.stderr


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
