"""Throw settings, files and command lines at focoop, as long as one likes.

    python tools/fuzz.py --seconds 600                # settings, files and command lines
    python tools/fuzz.py --kinds settings --cases 10000 --seed 0 --docs docs/reliability.md
    python tools/fuzz.py --train --seconds 3600       # also trains a round where a case is valid

Cases are drawn from the schema itself (`tools/fuzz_cases.py`). Each must end in a `FocoopError`, or
in a success, within `PATIENCE` seconds of a processor. Anything else is printed with what repeats
it; the exit code is then 1. `--docs` writes the counts into the table of that page.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from focoop import caching
from focoop.config import RunConfig, from_dict, parse_override, read_toml, to_dict, to_toml
from focoop.config import merge as merged
from focoop.errors import FocoopError
from focoop.scenario import cost
from tools.fuzz_cases import CLASSES, DIM, KINDS, STRATEGIES, Case, whole_files
from tools.fuzz_runs import read_run
from tools.promises import Promise, write_promise

PATIENCE = 20.0  # seconds of a processor that a case may take
SMALL_MEMORY = 10**9
WAIT = 120.0  # seconds by the clock, on a machine that others use too


@dataclass(frozen=True)
class Outcome:
    """What became of a case: `told`, `done`, or a `fault` with its report."""

    how: Literal["told", "done", "fault"]
    report: str = ""
    seconds: float = 0.0


class Ground:
    """A folder with a toy dataset, in which cases are tried."""

    def __init__(self, folder: Path, *, train: bool = False) -> None:
        import torch

        from focoop.features import FeatureSet, save_splits
        from focoop.seeds import torch_generator

        self.folder, self.train = folder, train
        count = {"train": 8, "test": 4, "far": 4}
        sets = {}
        for name, each in count.items():
            noise = torch.randn(len(CLASSES) * each, DIM, generator=torch_generator(0, name))
            labels = torch.arange(len(CLASSES)).repeat_interleave(each)
            unit = torch.nn.functional.normalize(noise, dim=-1)
            sets[name] = FeatureSet(unit, None, labels, CLASSES)
        save_splits(folder / "toy.safetensors", {key: sets[key] for key in ("train", "test")})
        save_splits(folder / "far.safetensors", {"test": sets["far"]})
        (folder / "words.txt").write_text("anvil\narrow\nbell\nbench\nbolt\nbrick\n")
        self.tree: dict[str, Any] = {
            "data": {
                "id": f"file:{folder}/toy.safetensors",
                "ood": [f"file:{folder}/far.safetensors"],
                "corrupted": [],
            },
            "partition": {"clients": 2, "shots": 1},
            "federation": {"rounds": 1, "epochs": 1},
            "negatives": {"count": 2, "words": str(folder / "words.txt"), "adjective_share": 0.0},
        }
        (folder / "toy.toml").write_text(to_toml(from_dict(self.tree)))

    def attempt(self, case: Case) -> Outcome:
        """Try a case.

        Args:
            case: The case.

        Returns:
            What became of it.
        """
        began = time.monotonic()
        how: Literal["told", "done", "fault"] = "done"
        report = ""
        try:
            # Settings that a small machine has no memory for are refused, not tried.
            small = mock.patch.object(cost, "free_memory", lambda: SMALL_MEMORY)
            with warnings.catch_warnings(), limited(PATIENCE), small:
                warnings.simplefilter("ignore")
                self._try(case)
        except FocoopError as error:
            how = "told" if str(error) and len(str(error)) < 5000 else "fault"
            report = f"a message of {len(str(error))} characters" if how == "fault" else ""
        except BaseException:
            how, report = "fault", traceback.format_exc(limit=-6)
        return Outcome(how, report, time.monotonic() - began)

    def _try(self, case: Case) -> None:
        if case.kind == "commands":
            return self._command(case.arguments)
        if case.kind == "files":
            return self._file(case)
        tree = dict(self.tree)
        tree = merged(tree, case.tree)
        for text in case.overrides:
            tree = merged(tree, parse_override(text))
        config = from_dict(tree)
        self._check(config)
        self._plan(config)
        return None

    def _file(self, case: Case) -> None:
        """Read a file as the command does that is given it."""
        from focoop.data import inspect
        from focoop.data.unpacking import unpack
        from focoop.features import load_split
        from focoop.flower import Policy
        from focoop.scenario.wordnet import read_words

        folder = self.folder / "files"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        if case.file == "run folder":
            return read_run(folder, case.name, case.text)
        path = folder / "case"
        if case.file not in ("image", "class names"):
            path.write_bytes(case.text)
        if case.file == "settings":
            self._check(from_dict(read_toml(path)))
        elif case.file == "policy":
            Policy.read(path)
        elif case.file == "words":
            read_words(path)
        elif case.file == "features":
            load_split(path, "test")
        elif case.file == "archive":
            unpack(path, folder / "unpacked")
        elif case.file == "table":
            self._images(folder)
            path.rename(folder / "list.csv")
            inspect("csv", str(folder / "list.csv"))
        else:
            self._images(folder / "images")
            odd = Path("ant", case.name) if case.file == "image" else Path("class_names.csv")
            with contextlib.suppress(OSError):  # a name that this file system does not allow
                (folder / "images" / odd).write_bytes(case.text)
            inspect("folder", str(folder / "images"))
        return None

    @staticmethod
    def _images(folder: Path) -> None:
        for name in ("ant", "bee"):
            (folder / name).mkdir(parents=True)
            (folder / name / "0.png").write_bytes(whole_files("image")[0])

    @staticmethod
    def _check(config: RunConfig) -> None:
        """What is accepted is written and read back as it is."""
        assert from_dict(to_dict(config)) == config
        assert config.title is not None

    def _plan(self, config: RunConfig) -> None:
        """Divide the images among clients and estimate the cost; where asked for, train."""
        from focoop.scenario import build_scenario, make_split, require_data

        require_data(config)
        make_split(config, None, self.folder / "cache")
        own_words = bool(config.negatives.words)  # mining WordNet's takes minutes, and is told
        if not self.train or not config.data.id.startswith("file:") or not own_words:
            return
        caching.BACKBONES.limit = 1
        scenario = build_scenario(config, self.folder / "cache")
        small = dataclasses.replace(config.federation, rounds=min(1, config.federation.rounds))
        self._train(dataclasses.replace(config, federation=small), scenario)

    @staticmethod
    def _train(config: RunConfig, scenario: Any) -> None:
        from focoop.federation import simulate
        from focoop.federation.simulator import MemoryStore
        from focoop.scenario import schedule_of

        schedule = schedule_of(config, scenario)
        clients = scenario.training_clients()
        for _ in simulate(
            scenario.method, scenario.task, clients, schedule, MemoryStore(), seed=config.seed
        ):
            pass

    def _command(self, arguments: Sequence[str]) -> None:
        from typer.testing import CliRunner

        from focoop.cli import app

        before, variables = Path.cwd(), dict(os.environ)  # options may set variables
        os.chdir(self.folder)
        try:
            result = CliRunner().invoke(app, list(arguments))
        finally:
            os.chdir(before)
            os.environ.clear()
            os.environ.update(variables)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        if "Traceback" in result.output:
            raise AssertionError(result.output)


class Hung(BaseException):
    """A case took longer than it may."""


@contextlib.contextmanager
def limited(seconds: float, wait: float = WAIT) -> Iterator[None]:
    """Raise `Hung` in what takes longer.

    Args:
        seconds: of a processor.
        wait: by the clock.

    Yields:
        Nothing.
    """

    def ring(number: int, _: Any) -> None:
        raise Hung(f"longer than {seconds if number == signal.SIGPROF else wait} s")

    timers = {signal.SIGPROF: signal.ITIMER_PROF, signal.SIGALRM: signal.ITIMER_REAL}
    before = {number: signal.signal(number, ring) for number in timers}
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, wait)
    try:
        yield
    finally:
        for number, timer in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


def drawn(kind: str, seed: int, number: int) -> Iterator[Case]:
    """Yield cases of one kind, the same for the same seed."""
    from hypothesis import HealthCheck, Phase, given
    from hypothesis import seed as seeded
    from hypothesis import settings as how

    found: list[Case] = []

    @seeded(seed)
    @how(
        max_examples=number,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(STRATEGIES[kind]())
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    yield from found


def attack(
    ground: Ground, kinds: Sequence[str], seed: int, *, seconds: float, cases: int
) -> tuple[Counter[str], Counter[str]]:
    """Try cases until there were enough of them.

    Args:
        ground: Where they are tried.
        kinds: Some of `KINDS`.
        seed: Seed of the first hundred.
        seconds: How long at most.
        cases: How many at most.

    Returns:
        Counts of `told`, `done`, `traceback` and `hang`, and of faults by place.
    """
    counts, faults = Counter[str](), Counter[str]()
    end = time.monotonic() + seconds
    while time.monotonic() < end and counts.total() < cases:
        for kind in kinds:
            for case in drawn(kind, seed, 100):
                outcome = ground.attempt(case)
                how: str = outcome.how
                if how == "fault":
                    how = "hang" if "Hung: " in outcome.report else "traceback"
                    _tell(case, outcome, seed, faults)
                counts[how] += 1
                if time.monotonic() > end or counts.total() >= cases:
                    break
        seed += 1
    return counts, faults


ROWS = {
    "settings": ("No setting ends in a traceback or hangs", "settings drawn from the schema"),
    "files": (
        "No file ends in a traceback or hangs",
        "damaged settings, policies, word lists, class names, tables, images with odd names, "
        "features, archives, files of run folders",
    ),
    "commands": ("No command line ends in a traceback or hangs", "options and values at random"),
    "train": (
        "No setting breaks a round of training",
        "settings drawn from the schema, a round trained of those that are accepted",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; 1 where a case ended in a traceback or did not end."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=None, help="how long (default: 60)")
    parser.add_argument("--cases", type=int, default=None, help="how many (default: any number)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--train", action="store_true", help="train a round of valid settings")
    parser.add_argument("--docs", type=Path, help="write the counts of one kind into this page")
    given = parser.parse_args(arguments)
    if given.docs and len(given.kinds) > 1:
        parser.error("--docs: give one of --kinds, which is one row of the table")
    seed = random.randrange(2**32) if given.seed is None else given.seed
    seconds = given.seconds or (60.0 if given.cases is None else float("inf"))
    with tempfile.TemporaryDirectory() as folder:
        ground = Ground(Path(folder), train=given.train)
        counts, faults = attack(
            ground, given.kinds, seed, seconds=seconds, cases=given.cases or sys.maxsize
        )
    print(json.dumps({"cases": counts.total(), **counts, "kinds of fault": len(faults)}))
    if given.docs:
        promise, how = ROWS["train" if given.train else given.kinds[0]]
        happened = f"{counts['told']:,} refused with a message, {counts['done']:,} accepted"
        if given.kinds == ["commands"]:  # their exit codes say which
            happened = f"{counts['done']:,} ended with a result or a message"
        command = f"python tools/fuzz.py --kinds {given.kinds[0]}{' --train' * given.train}"
        command += f" --cases {counts.total()} --seed {seed}"
        broken = counts["traceback"] + counts["hang"]
        row = Promise(promise, how, counts.total(), happened, broken, command)
        write_promise(given.docs, row)
    return 1 if faults else 0


def _tell(case: Case, outcome: Outcome, seed: int, faults: Counter[str]) -> None:
    """Print a fault once, with what repeats it."""
    last = outcome.report.strip().splitlines()
    place = next((line for line in reversed(last) if "File " in line), "")
    name = place + last[-1][:80]
    faults[name] += 1
    if faults[name] > 1:
        return
    print(f"\nfault (seed {seed}, {outcome.seconds:.1f} s):\n{outcome.report}")
    if case.kind == "commands":
        print(f"repeat: focoop.cli, arguments {list(case.arguments)!r:.2000}")
    elif case.kind == "files":
        print(f"repeat: a file of {case.file} named {case.name!r} with {case.text!r:.2000}")
    else:
        print(f"repeat: from_dict({case.tree!r:.1000}) with --set {case.overrides!r:.1000}")


if __name__ == "__main__":
    sys.exit(main())
