"""Tuning and the grid of results on a borrowed GPU machine that has torch alone and little disk.

Here, where the features are (tools/prepare_features.py makes runs/features):

    python tools/device_runs.py features SHARED runs/features runs/device   # a folder per group

There, in a copy of the tree with one folder of features beside it, once per group and again until
nothing is left; a call stops by itself after `--minutes`:

    python tools/device_runs.py tune --out $OUT
    python tools/device_runs.py grid-1 --out $OUT       # and grid-2 to grid-5

Here again, with what came back:

    python tools/device_runs.py unpack FILES/tune.json
    python tools/results_tables.py docs/results FILES/grid-*.json

`--done FILE` names results of earlier calls whose runs need not be made again.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from focoop.config import loading
from focoop.data import ready_features
from focoop.data.dataset_spec import Source, expand
from focoop.experiments import comparison, seeds_of
from focoop.experiments.grid import Cell, plan
from focoop.experiments.tuning import studies
from focoop.experiments.tuning_report import (
    OBJECTIVE,
    Study,
    choose,
    evidence,
    parse_objective,
)
from focoop.features.storage import read_file, split_names, write_file
from focoop.runs import RunFolder

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = ROOT / "configs" / "settings"
PRESETS = ROOT / "configs" / "methods"
PAGES = ROOT / "docs" / "results" / "tune"
ALL = [path.stem for path in sorted(SETTINGS.glob("*.toml"))]
NAMES = [name for name in ALL if not name.startswith("clipb32-")]  # those travel by clip_folder.py
PATCHED = [name for name in NAMES if name.endswith("-patches")]
CIFAR = [name for name in NAMES if name.startswith("cifar100") and name not in PATCHED]
CLIP = [name for name in ALL if name not in NAMES]
# Settings that read the same files are together: what a group needs must fit beside the tree.
GROUPS = {
    "grid-1": CIFAR,
    "grid-2": [name for name in NAMES if name not in (*CIFAR, *PATCHED)],
    "grid-3": ["cifar100-patches"],
    "grid-4": [name for name in PATCHED if name != "cifar100-patches"],
    "grid-5": CLIP,
}
SEEDS = (0, 1, 2)
TRIALS = 16
# What methods are tuned on together.
TUNED_ON = (
    "cifar100", "cifar100-dir0.5", "oxford_pets", "dtd",
    "clipb32-imagenet200", "clipb32-caltech101",
)  # fmt: skip
METHODS = "zeroshot,promptfl,promptfolio,fedpgp,fedlapt,local_only,centralized,focoop"
# Settings -> methods that are tuned on them, and validation images per class (None: what fits).
TUNED = {TUNED_ON: (METHODS, None), ("cifar100-patches",): ("fedotp,fedlocoop,fedgallop", 8)}
ALSO = {TUNED_ON: "focoop-paper"}  # presets that are no method's, by settings
# What the paper says of such a preset: its rate alone, which no paper gives, is chosen.
LITERAL = (
    "method.global_share=0.2",
    "method.ood_radius=0.0",
    "method.score=mcm",
    "method.open_share=1.0",
    "backbone.logit_scale=10.0",
)


# Features


def write_features(shared: Path, made: Path, out: Path) -> None:
    """A folder of feature files for every group, each without what the group does not read."""
    ready_features.use([shared / "features", made])
    for group in ("tune", *GROUPS):
        names = [name for on in TUNED for name in on] if group == "tune" else GROUPS[group]
        folder, total = out / group, 0
        folder.mkdir(parents=True, exist_ok=True)
        for target, source, patches, split in wanted(tuple(names), tuning=group == "tune"):
            total += slim(source, folder / target, patches, split)
        print(f"{folder}: {total / 2**20:.1f} MiB")


def wanted(
    names: Sequence[str], *, tuning: bool
) -> Iterator[tuple[str, Path, frozenset[bool], str]]:
    """(file name, file, whether settings read patches, the one split that is read or nothing)."""
    files: dict[str, tuple[Path, set[bool], str]] = {}
    for name in names:
        if name in CLIP:
            continue
        data = loading.load(SETTINGS / f"{name}.toml").data
        sets = data.validation_ood if tuning else (*data.corrupted, *data.ood)
        for spec in expand((data.id, *sets)):
            if found := ready_features.find(Source.parse(spec)):
                split = "train" if tuning and spec == data.id else ""
                entry = files.setdefault(found.path.name, (found.path, set(), split))
                entry[1].add(data.with_patches)
    for name, (path, patches, split) in sorted(files.items()):
        yield name, path, frozenset(patches), split


def slim(source: Path, target: Path, patches: frozenset[bool], split: str) -> int:
    """Copy a file; without patches where nobody reads them, one split alone where one is read.

    Where all settings read patches, images without them are left out.

    Args:
        source: The file.
        target: The copy.
        patches: Whether the settings that read it read patches.
        split: The split to keep; empty: all.

    Returns:
        Bytes of the copy.
    """
    tensors, metadata = read_file(source, with_patches=True in patches)
    if "patches_index" in tensors and False not in patches:
        rows, order = tensors["patches_index"].long().sort()
        tensors = {
            name: value[order if name.startswith("patches") else rows]
            for name, value in tensors.items()
        }
        tensors["patches_index"] = tensors["patches_index"].new_tensor(range(len(rows)))
    elif split:
        kept = tensors["split"] == split_names(metadata).index(split)
        tensors = {name: value[kept] for name, value in tensors.items()}
    write_file(target, tensors, metadata)
    return target.stat().st_size


# Runs


class OutOfTime(Exception):
    """The minutes of a call are over."""


@contextmanager
def limited(minutes: float) -> Iterator[None]:
    """Leave the block after some minutes; runs go on with the next call."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise OutOfTime

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(max(1, int(60 * minutes)))
    try:
        with suppress(OutOfTime):
            yield
    finally:
        signal.alarm(0)


def run_grid(group: str, given: argparse.Namespace) -> int:
    """All methods on the settings of a group, as far as the minutes go."""
    cells = [
        cell
        for name in GROUPS[group]
        if not given.settings or name in given.settings.split(",")
        for methods in filter(
            None, (given.methods or "all", None if given.methods else ALSO.get(name))
        )
        for cell in plan(
            [SETTINGS / f"{name}.toml"],
            methods,
            given.seeds,
            given.runs / group,
            presets=PRESETS,
            overrides=overrides(given),
        )
    ]
    kept = earlier(given.done)
    left = [cell for cell in cells if key(cell) not in kept]
    left.sort(key=lambda cell: -weight(cell))  # what takes longest first: no straggler at the end
    say(f"{group}: {len(cells)} runs, {len(cells) - len(left)} of them in --done")
    with limited(given.minutes):
        comparison.run(left, Progress(len(left)), jobs=given.jobs)
    found = [comparison.outcome_of(cell) for cell in left]
    finished = [outcome for outcome in found if outcome.status == "finished"]
    document = comparison.document(finished)
    for entry, outcome in zip(document["cells"], finished, strict=True):
        entry |= server_reports(outcome.cell)
    document["cells"] += kept.values()
    write(given.out / f"{group}.json", json.dumps(document, allow_nan=False))
    say(f"{group}: {len(document['cells'])} of {len(cells)} runs are finished")
    return 0 if len(document["cells"]) == len(cells) else 3


def server_reports(cell: Cell) -> dict[str, Any]:
    """What the server of a FOCoOp run told of every round: number -> its values over the rounds."""
    if cell.config.method.name != "focoop":
        return {}
    told = RunFolder.open(cell.folder).manifest["rounds"]
    rounds = [entry["server"] for entry in told if "server" in entry]
    names = dict.fromkeys(name for report in rounds for name in report)
    return {"server": {name: [report.get(name) for report in rounds] for name in names}}


def weight(cell: Cell) -> float:
    """Roughly how long a run takes, in units of one of ten clients with one prompt per class."""
    name = cell.config.method.name
    slow = {"focoop": 4.0, "focoop_plus": 4.0, "fedotp": 4.0, "fedgallop": 3.0, "fedlapt": 2.0}
    rounds = (
        cell.rounds * cell.config.federation.participation * max(1, cell.config.partition.clients)
    )
    return rounds * slow.get(name, 1.0) * (20.0 if "paper" in cell.label else 1.0)


def run_tuning(given: argparse.Namespace) -> int:
    """All trials of all trained methods in one pool, then the choices in one file."""
    weights = parse_objective(OBJECTIVE)
    planned: list[Study] = []
    for on, (methods, validation) in TUNED.items():
        asked = given.methods.split(",") if given.methods else methods.split(",")
        plain = ",".join(m for m in methods.split(",") if m in asked)
        literal = ALSO.get(on) if ALSO.get(on) in asked else None
        for chosen, also, presets in ((plain, (), None), (literal, LITERAL, PRESETS)):
            if chosen:
                planned += studies(
                    [SETTINGS / f"{name}.toml" for name in on],
                    chosen,
                    given.trials,
                    given.runs / "tune",
                    validation=validation,
                    overrides=[*overrides(given), *also],
                    presets=presets,
                )
    cells = [cell for study in planned for cell in study.cells]
    cells.sort(key=lambda cell: -weight(cell))
    say(f"tune: {len(cells)} trials")
    outcomes: list[comparison.Outcome] = []
    with limited(given.minutes):
        outcomes = comparison.run(cells, Progress(len(cells)), jobs=given.jobs)
    if not outcomes:
        outcomes = [comparison.outcome_of(cell) for cell in cells]
        left = sum(outcome.status != "finished" for outcome in outcomes)
        say(f"tune: {left} trials are left: the same call goes on (--anyway: choose now)")
        if not given.anyway:
            return 3
    by_folder = {outcome.cell.folder: outcome for outcome in outcomes}
    texts = {}
    for study in planned:
        found = choose(study, [by_folder[cell.folder] for cell in study.cells], weights)
        texts[study.label] = {"page": evidence(found, weights), "presets": found.presets}
        for preset in found.presets.values() or ["all trials failed"]:
            say(f"{study.label}: {preset.splitlines()[0]}")
    write(given.out / "tune.json", json.dumps(texts, indent=1))
    return 0


def unpack(path: Path, presets: Path, pages: Path) -> None:
    """Write what a tuning chose: presets and pages of all trials."""
    chosen: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    for name, texts in chosen.items():
        write(pages / f"{name}.md", texts["page"])
        for where, preset in texts["presets"].items():
            if name not in ALSO.values():  # that one is written by hand
                write(presets / f"{where}.toml", preset)
    print(f"{len(chosen)} methods: presets in {presets}, trials in {pages}")


class Progress:
    """Says after every tenth run how far a call is, and what failed at once."""

    def __init__(self, count: int) -> None:
        self.count, self.done, self.begun = count, 0, time.monotonic()

    def __call__(self, outcome: comparison.Outcome) -> None:
        """Take note of a run."""
        if outcome.status == "failed":
            say(comparison.line(outcome))
        if outcome.status in ("finished", "failed"):
            self.done += 1
            if self.done % 10 == 0 or self.done == self.count:
                say(f"{self.done} of {self.count} after {time.monotonic() - self.begun:.0f} s")


def earlier(files: Sequence[Path]) -> dict[tuple[str, str, int], Any]:
    """Finished cells of results that an earlier call wrote."""
    cells = [
        cell
        for path in files
        if path.is_file()
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
    ]
    return {(cell["setting"], cell["label"], cell["seed"]): cell for cell in cells}


def key(cell: Cell) -> tuple[str, str, int]:
    """What tells a cell of the grid from all others."""
    return cell.setting, cell.label, cell.config.seed


def overrides(given: argparse.Namespace) -> list[str]:
    """What the machine and the caller set."""
    return [f"backbone.device={given.device}", *given.set]


def write(path: Path, text: str) -> None:
    """A whole text file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def say(text: str) -> None:
    """A line of progress."""
    print(text, flush=True)


def parser() -> argparse.ArgumentParser:
    """The options of all commands."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    features = commands.add_parser("features", help="feature files for every group")
    for name in ("shared", "made", "folder"):
        features.add_argument(name, type=Path)
    opening = commands.add_parser("unpack", help="presets and pages of a tuning")
    opening.add_argument("file", type=Path)
    opening.add_argument("--presets", type=Path, default=PRESETS)
    opening.add_argument("--pages", type=Path, default=PAGES)
    for name in ("tune", *GROUPS):
        command = commands.add_parser(name, help="make the runs of a group")
        command.add_argument("--out", type=Path, required=True, help="where results are written")
        command.add_argument("--features", type=Path, default=ROOT / "runs" / "device" / name)
        command.add_argument("--runs", type=Path, default=ROOT / "runs" / "made")
        command.add_argument("--minutes", type=float, default=8.0)
        command.add_argument("--jobs", type=int, default=15)
        command.add_argument("--device", default="cuda")
        command.add_argument("--set", action="append", default=[])
        command.add_argument("--methods", default="", help="some methods alone, with commas")
        command.add_argument("--settings", default="", help="some settings alone, with commas")
        command.add_argument("--trials", type=int, default=TRIALS)
        command.add_argument("--anyway", action="store_true", help="choose among what is finished")
        command.add_argument("--done", type=Path, action="append", default=[])
        command.add_argument("--seeds", type=seeds_of, default=SEEDS, help="how many, or which")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command."""
    given = parser().parse_args(arguments)
    if given.command == "features":
        write_features(given.shared, given.made, given.folder)
        return 0
    if given.command == "unpack":
        unpack(given.file, given.presets, given.pages)
        return 0
    ready_features.use([given.features])
    return run_tuning(given) if given.command == "tune" else run_grid(given.command, given)


if __name__ == "__main__":
    sys.exit(main())
