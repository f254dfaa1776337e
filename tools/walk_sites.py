"""Three messy sites, from their folders to answers: FOCoOp+, then the same study with secure sums.

Every party is a folder of this machine and types what docs/guides/deploy.md says
(`follow_deploy.py`). The sites are those of `messy_sites.py`: one without splits, one a table, one
with `train` and `val`. After each run every site calibrates its model on new images, asks it and
serves it.

`python tools/walk_sites.py --work walk`
"""

import argparse
import json
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import messy_sites
from follow_deploy import World, ask, blocks, end, prepare

DATA = {"bonn": "folder:images", "ghent": "folder:images", "lille": "csv:images/labels.csv"}
NEW = 8  # images of a class that each site calibrates on


def lay_out(world: World) -> None:
    """Folders of all parties, the sites' images, new images of each class, and the study."""
    prepare(world)
    messy = world.root / "messy"
    messy_sites.make(messy, messy_sites.drawn())
    new = messy_sites.drawn(size=56).classes  # other pictures of the same things
    for site in world.sites:
        (messy / "sites" / site).rename(world.root / site / "images")
        for name, images in new.items():
            folder = world.root / site / "new" / name
            folder.mkdir(parents=True)
            for k, image in enumerate(images[:NEW]):
                image.save(folder / f"{k}.png")
    (world.root / "bonn/images/test").rename(world.root / "bonn/images/val")
    (world.root / "ghent/images/Mug").rename(world.root / "ghent/images/mug")
    study = next(block for block in blocks() if block.told("not run") == "another study")
    (world.root / "coordinator" / "run.toml").write_text(study.text)
    names = "\n".join(messy_sites.DRAWN)
    (world.root / "coordinator" / "classes.txt").write_text(f"{names}\n")


def federate(world: World) -> None:
    """Give every site its bundle, run the study to its end, and ask every site's model."""
    world.run("coordinator", "focoop federation start study --status-port 0\n", background=True)
    for site, data in DATA.items():
        world.run("coordinator", f"scp study/bundles/{site}.focoop {site}.example.org:\n")
        world.run(site, f"focoop site join {site}.focoop --data {data}\n", background=True)
    end(world)
    for site in world.sites:
        world.stop(site)
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda site: ask(world, site, "new", "new/*/*.png"), world.sites))
    for site, told in zip(world.sites, answers, strict=True):
        right = [one["label"] == Path(one["source"]).parent.name for one in told]
        print(f"{site}: {sum(right)} of {len(right)} new images are what they show")


def main() -> None:
    """Read the command line and walk."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="a new folder")
    parser.add_argument("--port", type=int, default=22000)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    world, began = World(given.work.resolve(), given.port, tuple(DATA)), time.monotonic()
    lay_out(world)
    sites = ",".join(world.sites)
    create = f"focoop federation create study --host fl.example.org:8000 --sites {sites}"
    world.run("coordinator", f"{create} --config run.toml --classes classes.txt --quorum 1.0\n")
    try:
        federate(world)
        run = world.root / "coordinator" / "study" / "run.toml"
        text = run.read_text()
        run.write_text(text.replace("secure_sum = false", "secure_sum = true"))
        world.run("coordinator", "mv study/run study/run-1\n")
        for site in world.sites:  # they have agreed to the settings before
            world.run("coordinator", f"focoop federation invite study {site}\n")
        federate(world)
    finally:
        for party in list(world.running):
            world.stop(party)
    entries = [
        json.loads((world.root / "coordinator/study" / name / "manifest.json").read_text())
        for name in ("run-1", "run")
    ]
    print(f"runs: {[entry['status'] for entry in entries]}; {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
