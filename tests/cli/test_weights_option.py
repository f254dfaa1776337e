"""`--weights` means the same in every command: where the backbone's weights are now."""

import json
from pathlib import Path

import click
import numpy as np
import pytest
import typer
from PIL import Image

from focoop.cli import app
from focoop.seeds import numpy_generator
from tests.toy_command import call


def commands(group: click.Command, name: str = "") -> dict[str, click.Command]:
    found = {}
    for key, one in getattr(group, "commands", {}).items():
        inner = commands(one, f"{name}{key} ")
        found |= inner or {f"{name}{key}": one}
    return found


def test_every_command_that_loads_a_backbone_takes_weights() -> None:
    found = commands(typer.main.get_command(app))
    options = {name: {o for p in one.params for o in p.opts} for name, one in found.items()}
    with_device = {name for name, given in options.items() if "--device" in given}
    changing = {"model add-class", "model drop-class", "model rename-class", "model add-client"}
    wanted = with_device | changing | {"export", "report", "coordinator", "federation create"}
    assert {"evaluate", "data show", "calibrate", "serve", "predict"} <= with_device
    lacking = {name for name in wanted if "--weights" not in options[name]}
    assert lacking == {"demo"} & with_device  # which has weights of its own


def images(folder: Path) -> Path:
    for split, count in (("train", 6), ("test", 4)):
        for name in ("ant", "bee"):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                draw = numpy_generator(number, f"{split} {name}")
                pixels = draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")
    return folder


@pytest.mark.slow
def test_a_run_whose_weights_have_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("open_clip")
    from open_clip.factory import _MODEL_CONFIGS
    from safetensors.torch import save_file

    from focoop.clip.openclip import build
    from tests.clip.test_openclip_run import shrunk

    monkeypatch.setitem(_MODEL_CONFIGS, "ViT-B-16", shrunk("ViT-B-16"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "cache"))
    tensors = build(_MODEL_CONFIGS["ViT-B-16"], quick_gelu=False).state_dict()
    save_file(tensors, "here.safetensors")
    moved = {"positional_embedding": tensors["positional_embedding"] + 1}
    save_file({**tensors, **moved}, "other.safetensors")
    data = images(tmp_path / "images")
    settings = {
        "backbone.name": "openclip:ViT-B-16:custom",
        "data.id": f"folder:{data}",
        "data.ood": "[]",
        "data.corrupted": "[]",
        "partition.clients": "2",
        "partition.shots": "2",
        "federation.rounds": "1",
        "method.name": "promptfl",
    }
    given = [f"--set={key}={value}" for key, value in settings.items()]
    made = call("run", *given, "--weights=here.safetensors", "--out=run", "--json")
    assert made.exit_code == 0, made.stderr
    shown = call("data", "show", *given, "--weights=here.safetensors", "--json")
    assert shown.exit_code == 0 and json.loads(shown.stdout)["classes"] == ["ant", "bee"]
    Path("here.safetensors").rename("there.safetensors")
    weights = "--weights=there.safetensors"
    assert call("evaluate", "run").exit_code != 0
    wrong = call("evaluate", "run", "--weights=other.safetensors")
    assert wrong.exit_code == 6 and "backbone_fingerprint" in wrong.stderr
    again = call("evaluate", "run", weights, "--json")
    assert again.exit_code == 0, again.stderr
    before = json.loads(made.stdout)["summary"]["accuracy_own"]
    assert json.loads(again.stdout)["summary"]["accuracy_own"] == before
    for command in (
        ["calibrate", "run", "--from-test", "--keep=0.5"],
        ["predict", "run", str(data / "test" / "ant")],
        ["export", "run", "--out=model"],
        ["model", "rename-class", "run", "ant", "emmet", "--out=renamed"],
        ["predict", "model", str(data / "test" / "bee" / "0.png")],
        ["report", "run", "--out=report.html"],
    ):
        done = call(*command, weights)
        assert done.exit_code == 0, (command, done.stderr)
    assert Path("report.html").stat().st_size > 10_000
