"""Run the commands of docs/guides/deploy.md on this machine; compare the result with the simulator.

At the end a site calibrates its model, asks it and serves it.

Every party is a folder; host names become 127.0.0.1, `scp` copies between folders. A comment before
a code block says who runs it:

  at: coordinator | at: site (each of them) | at: NAME | at: coordinator, for each site
  ..., in the background | ..., once round N is done | ..., once it has ended
  ..., stop (Ctrl-C to its command in the background first)
  file: NAME, at: coordinator     the block is that file's content
  not run: WHY

`python tools/follow_deploy.py --work deploy --images SHARED/images/office_caltech10`
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[1]
GUIDE = ROOT / "docs" / "guides" / "deploy.md"
SITES = ("ghent", "leuven", "lille", "utrecht")
BLOCK = re.compile(r"^<!-- (?P<note>[^>]*) -->\n```\w+\n(?P<text>.*?)^```$", re.M | re.S)
FENCE = re.compile(r"^```\w+$", re.M)
PATIENCE = 1800.0  # seconds: of a machine that others use too
TRAIN = 6  # of the eight images of a class


@dataclass(frozen=True)
class Block:
    """A code block and what the comment before it says."""

    text: str
    notes: tuple[str, ...]

    def told(self, word: str) -> str | None:
        """What follows `word` in a note; None where no note begins with it."""
        found = [
            note.removeprefix(word).strip(" :") for note in self.notes if note.startswith(word)
        ]
        return found[0] if found else None


def blocks(guide: Path = GUIDE) -> list[Block]:
    """All code blocks; one without a comment is an error, so that none is forgotten."""
    text = guide.read_text(encoding="utf-8")
    found = [
        Block(one["text"], tuple(part.strip() for part in one["note"].split(",")))
        for one in BLOCK.finditer(text)
    ]
    if len(found) != len(FENCE.findall(text)):
        raise SystemExit(f"{guide}: a code block has no comment that says who runs it")
    return found


@dataclass
class World:
    """The parties' folders and what runs in them."""

    root: Path
    port: int
    sites: tuple[str, ...] = SITES
    running: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)

    def adapt(self, text: str) -> str:
        """Host names and the port of this machine; nothing else of a command changes."""
        text = text.replace("fl.example.org:8000", f"127.0.0.1:{self.port}")
        return text.replace("--host fl.example.org", "--host 127.0.0.1")

    def environment(self, party: str) -> dict[str, str]:
        """A party finds focoop and the stand-in of scp first.

        The cache is everybody's: words are encoded once, which takes most of a check.
        """
        path = os.pathsep.join([str(self.root / "bin"), os.environ.get("PATH", os.defpath)])
        return {
            **os.environ,
            "PATH": path,
            "PYTHONPATH": str(ROOT),
            "HOME": str(self.root / party),
            "FOCOOP_CACHE": str(self.root / "cache"),
            "DEPLOY_ROOT": str(self.root),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }

    def run(self, party: str, text: str, *, background: bool = False) -> str:
        """Run a block in a party's folder; its output."""
        self.commands.append(text)
        place, command = self.root / party, self.adapt(text)
        print(f"[{party}] {text.strip()}", flush=True)
        if background:
            # The shell becomes the command, so that a signal reaches it.
            with open(place / "output.txt", "ab") as log:
                self.running[party] = subprocess.Popen(
                    ["bash", "-ec", f"exec {command}"],
                    cwd=place,
                    env=self.environment(party),
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            return ""
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=place,
            env=self.environment(party),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        print(done.stdout + done.stderr, flush=True)
        if done.returncode:
            raise SystemExit(f"[{party}] exit code {done.returncode}: {text}")
        return done.stdout

    def stop(self, party: str) -> None:
        """Ctrl-C; what does not end by it within a minute is killed, with all it has started."""
        process = self.running.pop(party)
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            print(f"[{party}] does not stop: killed", flush=True)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def output(self, party: str) -> str:
        """What a command in the background has said so far."""
        path = self.root / party / "output.txt"
        return path.read_text(errors="replace") if path.exists() else ""


def prepare(world: World) -> None:
    """Folders of all parties, and programs."""
    programs = world.root / "bin"
    programs.mkdir(parents=True)
    focoop = f'#!/bin/sh\nexec "{sys.executable}" -m focoop "$@"\n'
    (programs / "focoop").write_text(focoop)
    (programs / "scp").write_text(SCP)
    for path in programs.iterdir():
        path.chmod(0o755)
    for party in ("coordinator", *world.sites):
        (world.root / party).mkdir()


def give_images(world: World, images: Path | None) -> None:
    """Every site's images: a domain each, or painted ones."""
    sources = sorted(path for path in images.iterdir() if path.is_dir()) if images else []
    for k, site in enumerate(world.sites):
        place = world.root / site / "images"
        if sources:
            lay_out(sources[k % len(sources)], place)
        else:
            paint(place, k)


SCP = """#!/bin/sh
# Stands in for scp on one machine: HOST.example.org:PATH is PATH in the folder of that party.
for last; do :; done
host=${last%%.*}; path=${last#*:}
[ "$host" = fl ] && host=coordinator
while [ $# -gt 1 ]; do cp -r "$1" "$DEPLOY_ROOT/$host/$path" || exit 1; shift; done
"""


def lay_out(source: Path, place: Path) -> None:
    """A domain's classes as train and test folders."""
    for kind in sorted(path for path in source.iterdir() if path.is_dir()):
        for k, file in enumerate(sorted(kind.iterdir())):
            target = place / ("train" if k < TRAIN else "test") / kind.name
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)


def paint(place: Path, site: int, each: int = 3) -> None:
    """A few coloured squares of every class, where there are no pictures."""
    import numpy as np
    from PIL import Image

    classes = next(b for b in blocks() if b.told("file") == "classes.txt").text.split()
    for label, name in enumerate(classes):
        for k in range(each + 1):
            colours = np.random.default_rng([site, label, k]).integers(0, 256, (4, 4, 3))
            target = place / ("train" if k < each else "test") / name
            target.mkdir(parents=True, exist_ok=True)
            square = Image.fromarray(colours.astype(np.uint8)).resize((64, 64))
            square.save(target / f"{k}.png")


def follow(world: World, guide: list[Block]) -> None:
    """Do what the guide says, block by block."""
    for block in guide:
        who = block.told("at") or ""
        if block.told("not run") is not None:
            continue
        if name := block.told("file"):
            (world.root / who / name).write_text(block.text)
            continue
        wait_for(world, block)
        parties = world.sites if who == "site" else (who,)
        if "site" in block.notes:
            parties = ("coordinator", *world.sites)
        for party in parties:
            each = world.sites if block.told("for each site") is not None else (None,)
            for site in each:
                name = site or (party if who == "site" else None)
                text = block.text.replace("utrecht", name) if name else block.text
                background = block.told("in the background") is not None
                world.run(party, text, background=background)


def wait_for(world: World, block: Block) -> None:
    """What must have happened before a block is run."""
    if (told := block.told("once round")) is not None:
        wanted = f"round {told.split()[0]}/"
        until = time.monotonic() + PATIENCE
        while wanted not in world.output("coordinator"):
            if world.running["coordinator"].poll() is not None or time.monotonic() > until:
                raise SystemExit(f"no {wanted} in:\n{world.output('coordinator')}")
            time.sleep(1)
    if block.told("stop") is not None:
        world.stop("coordinator")
    if block.told("once it has ended") is not None:
        end(world)


def end(world: World) -> None:
    """Wait for the coordinator's command, which must end well."""
    code = world.running.pop("coordinator").wait(PATIENCE)
    print(world.output("coordinator"))
    if code:
        raise SystemExit(f"the coordinator's exit code is {code}")


def ask(world: World, site: str, labelled: str, images: str) -> list[dict[str, Any]]:
    """Calibrate the model that a site has kept, ask it, and serve it: what the server answers.

    `labelled` are images by class, `images` a pattern of some; both as the site's folder has them.
    """
    model = "focoop-site/model"
    world.run(site, f"focoop model check {model}\n")
    world.run(site, f"focoop calibrate {model} --images folder:{labelled} --client {site}\n")
    told = json.loads(world.run(site, f"focoop predict {model} '{images}' --json\n"))["predictions"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world.run(site, f"focoop serve {model} --port {port}\n", background=True)
    try:
        files = [one["source"] for one in told[:3]]
        served = post(f"http://127.0.0.1:{port}/v1/predict", [world.root / site / f for f in files])
    finally:
        world.stop(site)
    for mine, theirs in zip(told, served, strict=False):
        if (mine["verdict"], mine["label"]) != (theirs["verdict"], theirs["label"]):
            raise SystemExit(f"{site}: predict says {mine}, the server {theirs}")
    return list(told)


def post(address: str, files: list[Path]) -> list[dict[str, Any]]:
    """The answers of a server that is starting, to some images."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            images = [("images", (file.name, file.read_bytes())) for file in files]
            answer = httpx.post(address, files=images, timeout=60.0)
            answer.raise_for_status()
            return list(answer.json()["predictions"])
        except httpx.TransportError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def simulate(world: World) -> Path:
    """The same study in one process, with all sites' images in one place."""
    place = world.root / "simulator"
    (place / "sites").mkdir(parents=True)
    for site in world.sites:
        (place / "sites" / site).symlink_to(world.root / site / "images")
    for name in ("run.toml",):
        shutil.copy(world.root / "coordinator" / name, place)
    settings = f"--set data.id=clients:sites --set partition.clients={len(world.sites)}"
    world.run("simulator", f"focoop run run.toml {settings} --out run\n")
    return place / "run"


def compare(ours: Path, simulated: Path) -> float:
    """The largest difference of any number in the committed state; 0.0: the same bits."""
    from safetensors.torch import load_file

    one, other = (load_file(path / "state.safetensors") for path in (ours, simulated))
    assert one.keys() == other.keys(), (sorted(one), sorted(other))
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="a new folder")
    parser.add_argument("--images", type=Path, help="a folder per site: FOLDER/CLASS/*")
    parser.add_argument("--port", type=int, default=22000)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    world, began = World(given.work.resolve(), given.port), time.monotonic()
    prepare(world)
    give_images(world, given.images)
    try:
        follow(world, blocks())
    finally:
        for process in world.running.values():
            process.send_signal(signal.SIGINT)
        for party in list(world.running):
            world.stop(party)
    took = time.monotonic() - began
    test = "images/test"
    for answer in ask(world, world.sites[-1], test, f"{test}/*/*")[:1]:
        print(f"{world.sites[-1]} says of {answer['source']}: {answer['verdict']}")
    run = world.root / "coordinator" / "study" / "run"
    difference = compare(run, simulate(world))
    rounds = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    seconds = [entry.get("seconds") for entry in rounds]
    print(f"largest difference from the simulator: {difference:g}; seconds of each round {seconds}")
    print(f"{took:.0f} s for the guide")
    if difference:
        raise SystemExit("the result is not the simulator's")


if __name__ == "__main__":
    main()
