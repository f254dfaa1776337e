r"""`focoop paper all` on a borrowed GPU machine that has torch alone, and what comes back of it.

Here, where the features and images are (about a minute; two folders that travel beside the tree):

    python tools/device_paper.py features SHARED runs/device

There, in a copy of the tree with both folders in runs/device. With 64 MiB a call two calls carry
them, while focoop/assets/demo/*.gz is moved away here (these runs do not read it):

    carry runs/device/paper-1:    true
    carry runs/device/paper-2:    python3 tools/device_paper.py run --out $OUT --minutes 8.5 \
        --runs /dev/shm/paper --done docs/results/paper/cells.json.xz

This makes the damaged images of Tables 1, 13 and 14 (43 s on an H200), then the runs that
`--done` lacks, what matters most first, and stops by itself after `--minutes`. Given again while
the machine is warm, it goes on. `--only runs/cifar100-texture/` makes some runs alone, by how the
names of their folders begin.
Without `--done` all 993 runs are made, by the same command given twice or three times: then the
packed runs and the reports are of all of them. It writes within 8 files of 16 MiB:

    paper.json          the numbers of all items
    cells.json.xz       the last evaluation of every finished run, those of `--done` too
    runs-1.tar.xz ...   finished runs of this machine without their models: 6 KB each with 10
                        clients, 30 KB with 100, about 10 MiB for all
    report-T1.html      the report of Table 1's runs with histograms and curves of their scores
    report.html         the report of all runs

Here again (FILES is where they came to):

    python tools/device_paper.py unpack FILES runs/paper-device
    python tools/paper_results.py docs/results FILES/paper.json --made "One H200, ..."
    cp FILES/cells.json.xz docs/results/paper/
    focoop report runs/paper-device/runs --no-details --out runs/paper-device/report.html
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from device_features import SENT, encode_damaged, write_features
from device_runs import limited, say, weight
from pack_runs import pack, unpack
from results_cells import read_packed, write_packed

from focoop.data import ready_features
from focoop.experiments import Cell, Outcome, comparison
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
from focoop.report import write_report
from focoop.runs import CONFIG

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "runs" / "device"
FIRST = ("T1", "F5", "F7", "ablation")  # items that get all their seeds before the others
WITH_SCORES = "T1"  # the item whose report asks the models again


def run(given: argparse.Namespace) -> int:
    """The runs of all items, what matters most first, as far as the minutes go."""
    begun = time.monotonic()
    shared_gpu()
    items = choose_items(given.items, read_items())
    encode_damaged(items, given, begun)
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
    plans = {item.name: plan_item(item, choices, ask=False) for item in items}
    cells = in_order(plans)
    kept = read_done(given.done)
    outcomes = earlier(cells, kept, given.runs)
    left = [cell for cell in cells if str(cell.folder) not in outcomes]
    say(f"{len(cells)} runs, {len(cells) - len(left)} of them in --done")
    left = [cell for cell in left if name_of(cell, given.runs).startswith(given.only)]
    watch = Watch(outcomes, len(left), begun)
    with limited(given.minutes - (time.monotonic() - begun) / 60):
        comparison.run(left, watch, jobs=given.jobs)
    write_results(items, plans, outcomes, choices, given.out)
    write_cells(kept, outcomes, given.runs, given.out)
    packed = [Path(name) for name in outcomes if (Path(name) / CONFIG).is_file()]
    files = pack(packed, given.runs, given.out)
    sizes = ", ".join(f"{path.stat().st_size / 2**20:.1f}" for path in files)
    say(f"{len(packed)} runs packed into files of {sizes or 0} MiB")
    write_reports(plans, packed, given)
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


def read_done(paths: Sequence[Path]) -> dict[str, Any]:
    """Runs that earlier calls finished, by folder; files that are not there have none."""
    kept: dict[str, Any] = {}
    for path in paths:
        kept |= read_cells(path) if path.is_file() else {}
    return kept


def earlier(cells: Sequence[Cell], kept: dict[str, Any], runs: Path) -> dict[str, Outcome]:
    """What earlier calls finished of these runs, by folder."""
    names = {name_of(cell, runs): cell for cell in cells}
    return {
        str(cell.folder): Outcome(cell, "finished", cell.rounds, kept[name])
        for name, cell in names.items()
        if name in kept
    }


def name_of(cell: Cell, runs: Path) -> str:
    """A run's folder below the folder of all runs."""
    return cell.folder.relative_to(runs).as_posix()


def read_cells(path: Path) -> dict[str, Any]:
    """Finished runs of a file, by folder."""
    runs: dict[str, Any] = json.loads(read_packed(path))["runs"]
    return runs


def rounded(value: Any) -> Any:
    """Plain values with six digits behind the point, a ten-thousandth of a percent."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 6) if isinstance(value, float) else value


def write_results(
    items: Sequence[Item],
    plans: dict[str, list[Planned]],
    outcomes: dict[str, Outcome],
    choices: Choices,
    out: Path,
) -> None:
    """The numbers of all items."""
    documents = [
        collect_numbers(item, plans[item.name], outcomes, choices).document() for item in items
    ]
    out.mkdir(parents=True, exist_ok=True)
    (out / "paper.json").write_text(json.dumps({"items": documents}, allow_nan=False), "utf-8")


def write_cells(kept: dict[str, Any], outcomes: dict[str, Outcome], runs: Path, out: Path) -> None:
    """Every finished run: those of this call, and those of `--done`, asked for or not."""
    finished = {
        name_of(outcome.cell, runs): outcome.summary
        for outcome in outcomes.values()
        if outcome.status == "finished"
    }
    tree = {"runs": rounded(dict(sorted({**kept, **finished}.items())))}
    write_packed(out / "cells.json.xz", json.dumps(tree, allow_nan=False))


def write_reports(
    plans: dict[str, list[Planned]], finished: Sequence[Path], given: argparse.Namespace
) -> None:
    """The report of all runs, then that of one item with the scores of its models."""
    chosen = {cell.folder for one in plans.get(WITH_SCORES, []) for cell in one.cells}
    for name, folders, details in (
        ("report.html", finished, False),
        (f"report-{WITH_SCORES}.html", [one for one in finished if one in chosen], True),
    ):
        if not folders:
            continue
        begun = time.monotonic()
        made = write_report(folders, given.runs / name, details=details)  # links are relative to it
        shutil.copy(made, given.out / name)
        size = made.stat().st_size / 1e6
        say(f"{name}: {size:.1f} MB in {time.monotonic() - begun:.0f} s")


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
    back = commands.add_parser("unpack", help="what came back")
    back.add_argument("files", type=Path, help="folder of the files that came back")
    back.add_argument("folder", type=Path, help="folder that the runs are laid out in")
    runs = commands.add_parser("run", help="the runs")
    runs.add_argument("--folder", type=Path, default=FOLDER)
    runs.add_argument("--device", default="cuda")
    runs.add_argument("--jobs", type=int, default=15)
    runs.add_argument("--out", type=Path, required=True, help="where results are written")
    runs.add_argument(
        "--runs", type=Path, default=ROOT / "runs" / "made", help="best in memory: runs write a lot"
    )
    runs.add_argument("--minutes", type=float, default=8.0)
    runs.add_argument("--items", nargs="+", default=["all"])
    runs.add_argument("--methods", default="", help="in place of the items' own")
    runs.add_argument("--seeds", default="3", help="how many, or which: 0,4")
    runs.add_argument("--set", action="append", default=[])
    runs.add_argument("--only", default="", help="runs whose folder begins so, below --runs")
    runs.add_argument("--done", type=Path, action="append", default=[])
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command."""
    given = parser().parse_args(arguments)
    if given.command == "features":
        write_features(given.shared, given.folder)
        return 0
    if given.command == "unpack":
        count = unpack(given.files, given.folder)
        print(f"{count} runs in {given.folder}")
        return 0
    return run(given)


if __name__ == "__main__":
    sys.exit(main())
