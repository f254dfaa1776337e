"""docs/deploy.md is what happens: its commands exist, and followed to the letter they work."""

import importlib.util
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from typer.main import get_command

from focoop.cli import app
from focoop.config import load
from focoop.tensorcache import cache_folder
from tests.flower.processes import free_ports
from tests.flower.test_runners import ROOT

SPEC = importlib.util.spec_from_file_location("follow_deploy", ROOT / "tools" / "follow_deploy.py")
assert SPEC is not None and SPEC.loader is not None
follower = importlib.util.module_from_spec(SPEC)
sys.modules["follow_deploy"] = follower  # dataclasses look their module up
SPEC.loader.exec_module(follower)
IMAGES = ROOT.parent / "shared" / "images" / "office_caltech10"


def commands() -> list[list[str]]:
    """Every command of focoop in the guide, word by word."""
    lines = [
        line
        for block in follower.blocks()
        if block.told("at") is not None and block.told("file") is None
        for line in block.text.replace("\\\n", " ").splitlines()
    ]
    return [shlex.split(line) for line in lines if line.startswith("focoop ")]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_of_the_guide_is_one(words: list[str]) -> None:
    command, words = get_command(app), words[1:]
    if words == ["--version"]:
        return
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    context = command.make_context("focoop", list(words))  # an unknown option raises
    assert not context.args


def test_the_guides_settings_are_a_configuration(tmp_path: Path) -> None:
    texts = {block.told("file"): block.text for block in follower.blocks() if block.told("file")}
    (tmp_path / "run.toml").write_text(texts["run.toml"])
    config = load(tmp_path / "run.toml", [])
    assert (config.federation.rounds, config.method.name) == (5, "focoop")
    assert len(texts["classes.txt"].split()) == 10


def test_a_block_without_a_comment_is_noticed(tmp_path: Path) -> None:
    guide = tmp_path / "guide.md"
    guide.write_text("<!-- at: site -->\n```sh\nls\n```\n\n```sh\nrm x\n```\n")
    with pytest.raises(SystemExit, match="no comment"):
        follower.blocks(guide)


def test_the_service_must_run_a_command_of_the_guide(tmp_path: Path) -> None:
    world = follower.World(tmp_path, 1, commands=["focoop site join a:1 --keys keys"])
    follower.check_unit(world, "[Service]\nExecStart=/x/focoop site join a:1 --keys keys\n")
    with pytest.raises(SystemExit, match="no command of the guide"):
        follower.check_unit(world, "[Service]\nExecStart=/x/focoop site join b:1 --keys keys\n")


@pytest.mark.slow
def test_the_guide_followed_to_the_letter_ends_with_the_simulators_bits(tmp_path: Path) -> None:
    """A coordinator and four sites, TLS and keys, five rounds, a restart in the middle."""
    work, (port,) = tmp_path / "work", free_ports(1)
    # Encoding WordNet's words takes longest: what this machine has of them is used.
    (work / "cache").mkdir(parents=True)
    known = cache_folder(None, "negatives")
    known.mkdir(parents=True, exist_ok=True)
    (work / "cache" / "negatives").symlink_to(known.resolve())
    images = ["--images", str(IMAGES)] if IMAGES.is_dir() else []
    command = [sys.executable, str(ROOT / "tools" / "follow_deploy.py"), "--work", str(work)]
    with open(tmp_path / "log.txt", "wb") as log:
        done = subprocess.run(
            [*command, "--port", str(port), *images],
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    said = (tmp_path / "log.txt").read_text(errors="replace")
    assert done.returncode == 0, said[-5000:]
    assert "largest difference from the simulator: 0;" in said
    run = work / "coordinator" / "runs" / "study"
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["status"] == "finished"
    assert [entry.get("accepted") for entry in manifest["rounds"][1:]] == [[0, 1, 2, 3]] * 5
    line = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert [row["client"] for row in line["clients"]] == [0, 1, 2, 3]
    for site in follower.SITES:
        private = list((work / site / "state").glob("*/*/*/round-0005.safetensors"))
        assert len(private) == 1 and (work / site / "state").stat().st_mode & 0o077 == 0
