"""`focoop paper all` on a borrowed GPU machine that has torch alone, in two calls of minutes.

Here, where the features and images are (about a minute; two folders that travel beside the tree):

    python tools/device_paper.py features SHARED runs/device

There, in a copy of the tree with these folders in runs/device. `encode` makes the corrupted
images of Tables 1, 13 and 14; `run` makes the runs, what matters most first, and stops by itself:

    python tools/device_paper.py encode
    python tools/device_paper.py run --out $OUT --minutes 8

`run` writes paper.json (the numbers of all items) and cells.json (every finished run); given again
with `--done cells.json` it goes on. Here again:

    python tools/paper_results.py FILES/paper.json docs/results/paper
"""

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
import validation_ood
from device_runs import limited, say, weight
from prepare_features import first_of_each_class, rows_per_class

from focoop.clip import load_backbone
from focoop.data import read_folder, ready_features
from focoop.experiments import Cell, Outcome, comparison
from focoop.features.encoding import encode
from focoop.features.storage import quantise, read_file, split_names, write_file
from focoop.paper import (
    Choices,
    Item,
    Planned,
    choose_items,
    collect_numbers,
    make_choices,
    plan_item,
    read_items,
)

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "runs" / "device"
FIRST = ("T1", "F5", "F7", "ablation")  # items that get all their seeds before the others
# Folder -> file -> test images per class whose patch features travel; training images keep all.
SENT = {
    "paper-1": {"cifar100": 20},
    "paper-2": {
        "tinyimagenet": 5,
        "caltech101": 3,
        "oxford_pets": 6,
        "dtd": 8,
        "office_caltech10": 8,
    },
}
# Dataset -> test images per class that are damaged, by brightness and by each other type.
DAMAGED = {"cifar100": (10, 5), "tinyimagenet": (4, 2)}


# Here: what travels


def write_features(shared: Path, out: Path) -> None:
    """Folders of feature files and of images that fit beside the tree, one for each call."""
    for group, files in SENT.items():
        folder = out / group
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "features").mkdir(parents=True)
        for name, kept in files.items():
            tensors, metadata = read_file(shared / "features" / f"{name}.safetensors")
            if name == "office_caltech10":
                tensors |= office_patches(shared, tensors, metadata)
            write_file(
                folder / "features" / f"{name}.safetensors",
                fewer_patches(tensors, metadata, kept),
                metadata,
            )
    for name, (count, _) in DAMAGED.items():
        for one in sorted((shared / "images" / name / "test").iterdir()):
            target = out / "paper-1" / "images" / name / "test" / one.name
            target.mkdir(parents=True)
            for path in sorted(one.iterdir())[:count]:
                shutil.copy(path, target / path.name)
    for group in SENT:
        total = sum(path.stat().st_size for path in (out / group).rglob("*") if path.is_file())
        print(f"{out / group}: {total / 2**20:.1f} MiB")


def fewer_patches(
    tensors: dict[str, torch.Tensor], metadata: dict[str, str], kept: int
) -> dict[str, torch.Tensor]:
    """The patch features of all training images and of `kept` test images of every class."""
    index = tensors["patches_index"].long()
    names = split_names(metadata)
    seen: dict[tuple[int, int], int] = {}
    chosen = []
    for place, row in enumerate(index.tolist()):
        split, label = int(tensors["split"][row]), int(tensors["labels"][row])
        seen[split, label] = seen.get((split, label), 0) + 1
        if names[split] == "train" or seen[split, label] <= kept:
            chosen.append(place)
    rows = torch.tensor(chosen)
    return {
        name: value[rows] if name.startswith("patches") else value
        for name, value in tensors.items()
    }


def office_patches(
    shared: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]
) -> dict[str, torch.Tensor]:
    """Patch features of the office images at hand, the first of every class and domain."""
    backbone = load_backbone("mini")
    domains, classes = json.loads(metadata["domains"]), json.loads(metadata["classes"])
    rows, parts = [], []
    for number, domain in enumerate(domains):
        images = read_folder(shared / "images" / "office_caltech10" / domain, "all")
        made = encode(images, backbone, patches=backbone.patch_kinds[0])
        assert made.patches is not None
        for label, name in enumerate(images.classes):
            ours = [at for at, other in enumerate(images.labels) if other == label]
            of_class = (tensors["split"] == number) & (tensors["labels"] == classes.index(name))
            rows += torch.nonzero(of_class).flatten()[: len(ours)].tolist()
            parts.append(made.patches[torch.tensor(ours)])
    quantised, scale = quantise(torch.cat(parts))
    index = torch.tensor(rows, dtype=torch.int32)
    return {"patches_q": quantised, "patches_scale": scale, "patches_index": index}


# There: damaged images


def encode_damaged(given: argparse.Namespace) -> int:
    """Features of damaged images, a process for each dataset and type."""
    shared_gpu()
    begun = time.monotonic()
    out = given.folder / "made"
    out.mkdir(parents=True, exist_ok=True)
    jobs = [
        (name, kind, given.folder / "paper-1" / "images", out, given.device)
        for kind in types_of(read_items())
        for name in DAMAGED
        if (name, kind) in wanted_types(read_items())
    ]
    with multiprocessing.get_context("spawn").Pool(min(given.jobs, len(jobs))) as pool:
        for done, name in enumerate(pool.imap_unordered(damage, jobs), start=1):
            say(f"{done} of {len(jobs)}: {name} after {time.monotonic() - begun:.0f} s")
    return 0


def wanted_types(items: Iterable[Item]) -> set[tuple[str, str]]:
    """(dataset, corruption) of all parts, and brightness, which the settings ask for."""
    listed = [
        spec.partition("#")
        for item in items
        for part in item.parts
        for spec in part.set.get("data.corrupted", ())
    ]
    return {(name, kind) for name, _, kind in listed} | {(name, "brightness") for name in DAMAGED}


def types_of(items: Iterable[Item]) -> list[str]:
    """All corruptions, brightness first: most items need it."""
    return sorted({kind for _, kind in wanted_types(items)}, key=lambda kind: kind != "brightness")


def damage(job: tuple[str, str, Path, Path, str]) -> str:
    """One type of damage at five severities; all images with patch features."""
    name, kind, images, out, device = job
    torch.set_num_threads(1)
    backbone = load_backbone("mini", device=device)
    count = DAMAGED[name][0 if kind == "brightness" else 1]
    found = first_of_each_class(read_folder(images / name, "test"), count)
    for severity in (1, 2, 3, 4, 5):
        path = out / f"{name}.{kind}.{severity}.safetensors"
        if not path.exists():
            made = encode(
                found,
                backbone,
                patches=backbone.patch_kinds[0],
                corruption=kind,
                severity=severity,
            )
            validation_ood.write(path, made, backbone, rows_per_class(found.labels, count))
    return f"{name} {kind}"


# There: runs


def run(given: argparse.Namespace) -> int:
    """The runs of all items, what matters most first, as far as the minutes go."""
    begun = time.monotonic()
    shared_gpu()
    folders = [given.folder / "made", *(given.folder / group / "features" for group in SENT)]
    ready_features.use([one for one in folders if one.is_dir()])
    choices = make_choices(
        backbone="mini",
        seeds=given.seeds,
        methods=given.methods,
        overrides=given.set,
        out=given.runs,
        packaged=False,
        presets=None,
        device=given.device,
    )
    items = choose_items(given.items, read_items())
    plans = {item.name: plan_item(item, choices, ask=False) for item in items}
    cells = in_order(plans)
    outcomes = earlier(cells, given)
    left = [cell for cell in cells if str(cell.folder) not in outcomes]
    say(f"{len(cells)} runs, {len(cells) - len(left)} of them in --done")
    watch = Watch(outcomes, len(left), begun)
    with limited(given.minutes - (time.monotonic() - begun) / 60):
        comparison.run(left, watch, jobs=given.jobs)
    write_results(items, plans, outcomes, choices, given.out, time.monotonic() - begun)
    done = sum(outcome.status == "finished" for outcome in outcomes.values())
    say(f"{done} of {len(cells)} runs are finished after {time.monotonic() - begun:.0f} s")
    return 0 if done == len(cells) else 3


def in_order(plans: dict[str, list[Planned]]) -> list[Cell]:
    """Every run once: one seed of all items, then the seeds of the first ones, then the rest."""
    ranks: dict[str, tuple[tuple[int, float], Cell]] = {}
    for name, parts in plans.items():
        for cell in (cell for part in parts if not part.lacks for cell in part.cells):
            first, again = name in FIRST, cell.config.seed > 0
            place = 1 - first if not again else 2 if first else 2 + cell.config.seed
            rank = (place, -weight(cell))
            known = ranks.get(str(cell.folder), (rank, cell))[0]
            ranks[str(cell.folder)] = (min(rank, known), cell)
    return [cell for _, cell in sorted(ranks.values(), key=lambda pair: pair[0])]


class Watch:
    """Keeps how every run ended, and says now and then how far the runs are."""

    def __init__(self, outcomes: dict[str, Outcome], count: int, begun: float) -> None:
        self.outcomes, self.count, self.begun, self.done = outcomes, count, begun, 0

    def __call__(self, outcome: Outcome) -> None:
        """Take note of a run."""
        if outcome.status not in ("finished", "failed"):
            return
        self.outcomes[str(outcome.cell.folder)] = outcome
        self.done += 1
        if outcome.status == "failed":
            say(comparison.line(outcome)[:600])
        if self.done % 20 == 0 or self.done == self.count:
            say(f"{self.done} of {self.count} after {time.monotonic() - self.begun:.0f} s")


def earlier(cells: Sequence[Cell], given: argparse.Namespace) -> dict[str, Outcome]:
    """What earlier calls finished, by folder."""
    kept: dict[str, Any] = {}
    for path in given.done:
        kept |= json.loads(path.read_text(encoding="utf-8"))["runs"] if path.is_file() else {}
    names = {cell.folder.relative_to(given.runs).as_posix(): cell for cell in cells}
    return {
        str(cell.folder): Outcome(cell, "finished", cell.rounds, kept[name])
        for name, cell in names.items()
        if name in kept
    }


def write_results(
    items: Sequence[Item],
    plans: dict[str, list[Planned]],
    outcomes: dict[str, Outcome],
    choices: Choices,
    out: Path,
    seconds: float,
) -> None:
    """The numbers of all items, and every finished run."""
    documents = [
        collect_numbers(item, plans[item.name], outcomes, choices).document() for item in items
    ]
    finished = {
        outcome.cell.folder.relative_to(choices.out).as_posix(): outcome.summary
        for outcome in outcomes.values()
        if outcome.status == "finished"
    }
    out.mkdir(parents=True, exist_ok=True)
    made = {"runs": len(finished), "seconds": round(seconds)}
    for name, tree in (
        ("paper", {"made": made, "items": documents}),
        ("cells", {"runs": finished}),
    ):
        (out / f"{name}.json").write_text(json.dumps(tree, allow_nan=False), encoding="utf-8")


def shared_gpu() -> None:
    """Let processes compute on the GPU side by side instead of in turns, where that works."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None or os.environ.get("NO_MPS"):
        say("processes take turns on the GPU")
        return
    subprocess.run([control, "-d"], check=False, capture_output=True, timeout=30)
    probe = "import torch; assert float(torch.ones(8, device='cuda').sum()) == 8"
    try:
        subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)
        say("processes share the GPU (MPS)")
    except (subprocess.SubprocessError, OSError) as error:
        say(f"no MPS: {error}")
        subprocess.run([control], input=b"quit\n", check=False, capture_output=True, timeout=30)


def parser() -> argparse.ArgumentParser:
    """The options of all commands."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    features = commands.add_parser("features", help="what travels")
    features.add_argument("shared", type=Path)
    features.add_argument("folder", type=Path)
    for name in ("encode", "run"):
        command = commands.add_parser(name)
        command.add_argument("--folder", type=Path, default=FOLDER)
        command.add_argument("--device", default="cuda")
        command.add_argument("--jobs", type=int, default=15)
    runs = commands.choices["run"]
    runs.add_argument("--out", type=Path, required=True, help="where results are written")
    runs.add_argument(
        "--runs", type=Path, default=ROOT / "runs" / "made", help="best in memory: runs write a lot"
    )
    runs.add_argument("--minutes", type=float, default=8.0)
    runs.add_argument("--items", nargs="+", default=["all"])
    runs.add_argument("--methods", default="", help="in place of the items' own")
    runs.add_argument("--seeds", default="3")
    runs.add_argument("--set", action="append", default=[])
    runs.add_argument("--done", type=Path, action="append", default=[])
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command."""
    given = parser().parse_args(arguments)
    if given.command == "features":
        write_features(given.shared, given.folder)
        return 0
    return encode_damaged(given) if given.command == "encode" else run(given)


if __name__ == "__main__":
    sys.exit(main())
