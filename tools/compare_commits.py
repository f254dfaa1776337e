"""Show that two versions of focoop give the same results, bit for bit, on this machine.

    python tools/compare_commits.py v0.1.0 .
    python tools/compare_commits.py ../older HEAD --rename robust.rule=robust.kind

Each version is a folder with a checkout or a git revision, which is checked out into a temporary
worktree. Both use the packages of the Python that runs this script. Every method, and variants with
privacy, robust rules, compression, images and more (`toy_cases.py`), run through the command line
of both. Then the run folders are compared: tensors by their bytes, JSON and TOML value by value.
Files with times in them (manifest.json, log.txt, .lock) are left out.

The exit status is 0 where all runs agree, 1 where one differs, 2 where a run or a version fails.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from compare_folders import DROPPED, compare_folders  # noqa: E402 (beside this script)
from toy_cases import Case, all_cases, toy_setting, write_files  # noqa: E402 (beside this script)

SECONDS = 300  # of one command
# Runs `python -m focoop` with each list of arguments, in a child process that need not import again
# what the parent has imported: importing torch takes longer than a toy run.
# It prints "" or what went wrong, as a line of JSON.
DRIVER = """
import importlib, json, os, runpy, signal, sys
for name in sys.argv[3:]:
    importlib.import_module(name)

def run(arguments, log):
    child = os.fork()
    if child == 0:
        signal.alarm(int(sys.argv[2]))
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        sys.argv = ["focoop", *arguments]
        runpy.run_module("focoop", run_name="__main__", alter_sys=True)
        sys.exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == 0:
        return ""
    told = open(log, errors="replace").read().strip().splitlines()[-8:]
    return "\\n  ".join([f"exit {code}: focoop " + " ".join(arguments), *told])

for commands in json.loads(sys.argv[1]):
    failures = (run(arguments, "output.txt") for arguments in commands)
    print(json.dumps(next((failure for failure in failures if failure), "")), flush=True)
"""


class Failure(Exception):
    """A version or a run that does not work, with what to tell the user."""


@dataclass(frozen=True)
class Version:
    """One checkout of focoop and the folder that its runs go to.

    Attributes:
        label: what the user called it.
        checkout: folder that holds the package `focoop`.
        work: folder for its cache, its setting `toy.toml` and its run folders.
        names: names of settings in the other version to those in this one.
        preload: packages that are imported once for all runs.
    """

    label: str
    checkout: Path
    work: Path
    names: Mapping[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ("torch",)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of this version's processes."""
        return {
            **os.environ,
            "PYTHONPATH": str(self.checkout),
            "FOCOOP_CACHE": str(self.work / "cache"),
            "OMP_NUM_THREADS": "1",  # sums in one order; and a process with threads cannot fork
        }

    def python(self, *arguments: str) -> str:
        """Run this version's Python to its end and return what it prints."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.work,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        if done.returncode:
            raise Failure(f"{self.label}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def prepare(self, toy: Path) -> None:
        """Write this version's setting and check that Python imports this very checkout."""
        self.work.mkdir(parents=True)
        lines = [
            f"{name} = {value}"
            for key, value in toy_setting(toy).items()
            if (name := self.names.get(key, key)) != DROPPED
        ]
        (self.work / "toy.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
        found = self.python("-c", "import focoop; print(focoop.__file__)").strip()
        if not Path(found).resolve().is_relative_to(self.checkout.resolve()):
            raise Failure(f"{self.label}: no package focoop in {self.checkout}, but {found}")

    def methods(self) -> list[str]:
        """Names of this version's methods."""
        return [row["name"] for row in json.loads(self.python("-m", "focoop", "methods", "--json"))]

    def folder(self, case: Case) -> Path:
        """The run folder of a case."""
        return self.work / "runs" / case.name.replace(" ", "-").replace(",", "")

    def start(self, cases: Sequence[Case]) -> subprocess.Popen[str]:
        """Start running all cases; the process prints one line per case once it has ended."""
        commands = []
        for case in cases:
            fixed = ("run", "toy.toml", "--out", str(self.folder(case)))
            commands.append([[*fixed, *self._set(case.settings)]])
            if case.longer:
                settings = self._set((*case.settings, *case.longer))
                commands[-1].append([*fixed, *settings, "--resume"])
        return subprocess.Popen(
            [sys.executable, "-c", DRIVER, json.dumps(commands), str(SECONDS), *self.preload],
            cwd=self.work,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _set(self, settings: Sequence[str]) -> list[str]:
        """`--set` options under this version's names."""
        pairs = [setting.partition("=") for setting in settings]
        named = [(self.names.get(key, key), value) for key, _, value in pairs]
        return [f"--set={key}={value}" for key, value in named if key != DROPPED]


@dataclass(frozen=True)
class Outcome:
    """What comparing one case has shown.

    Attributes:
        case: the name of the case.
        files: how many files were compared.
        differences: one line per file that differs; empty where all agree.
        failed: whether a run failed, so that nothing could be compared.
    """

    case: str
    files: int
    differences: tuple[str, ...]
    failed: bool = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare two versions as the command line says, and return the exit status."""
    given = _parse(arguments)
    try:
        to_old, to_new = _names([_pair(text) for text in given.rename])
        with tempfile.TemporaryDirectory(prefix="compare-commits-") as made:
            work = (given.keep or Path(made)).resolve()
            with _checkout(given.old) as old_folder, _checkout(given.new) as new_folder:
                old = Version(given.old, old_folder, work / "old", to_old)
                new = Version(given.new, new_folder, work / "new", to_new)
                outcomes = compare_versions(old, new, work / "toy", given.only, given.new_metric)
    except Failure as failure:
        print(failure, file=sys.stderr)
        return 2
    return exit_status(outcomes)


def exit_status(outcomes: Sequence[Outcome]) -> int:
    """Return 2 where a run failed, 1 where one differs, else 0."""
    if any(outcome.failed for outcome in outcomes):
        return 2
    return int(any(outcome.differences for outcome in outcomes))


def compare_versions(
    old: Version,
    new: Version,
    toy: Path,
    only: Sequence[str] = (),
    measured: Sequence[str] = (),
) -> list[Outcome]:
    """Run every case with both versions, compare the run folders and print a table.

    Args:
        old: the version whose methods and names count.
        new: the version that is to agree with it.
        toy: folder for the toy files that both read.
        only: words; cases whose name holds none of them are left out. Empty: all cases.
        measured: metrics that only the new version has.

    Returns:
        One outcome per case, in the order of the table.

    Raises:
        Failure: if a version lacks the package or a method of the old one, or no case is left.
    """
    write_files(toy)
    for version in (old, new):
        version.prepare(toy)
    methods = old.methods()
    if missing := sorted(set(methods) - set(new.methods())):
        raise Failure(f"{new.label} has no method {', '.join(missing)}")
    cases = all_cases(methods, toy)
    cases = [case for case in cases if not only or any(word in case.name for word in only)]
    if not cases:
        raise Failure(f"no case is called {' or '.join(only)}")
    width = max(len(case.name) for case in cases)
    print(f"{'case':{width}}  files  result", flush=True)
    outcomes = []
    for outcome in _run_and_compare(old, new, cases, measured):
        result = "equal" if not outcome.differences else "differs"
        result = "failed" if outcome.failed else result
        print(f"{outcome.case:{width}}  {outcome.files:5}  {result}", flush=True)
        for line in outcome.differences:
            print(f"  {line}", flush=True)
        outcomes.append(outcome)
    equal = sum(not outcome.differences for outcome in outcomes)
    print(f"{equal} of {len(outcomes)} cases are equal: {old.label} and {new.label}")
    return outcomes


def _run_and_compare(
    old: Version, new: Version, cases: Sequence[Case], measured: Sequence[str]
) -> Iterator[Outcome]:
    """Both versions run at the same time; a case is compared once both have ended it."""
    running = [(version.label, version.start(cases)) for version in (old, new)]
    try:
        for case in cases:
            failures = []
            for label, process in running:
                assert process.stdout is not None
                line = process.stdout.readline()
                if failure := json.loads(line) if line else "the process has died":
                    failures.append(f"{label}: {failure}")
            if failures:
                yield Outcome(case.name, 0, tuple(failures), failed=True)
            else:
                folders = old.folder(case), new.folder(case)
                told = compare_folders(*folders, old.names, new.names, measured)
                yield Outcome(case.name, *told)
    finally:
        for _, process in running:
            process.kill()
            process.communicate()


def _names(renamed: Sequence[tuple[str, str]]) -> tuple[dict[str, str], dict[str, str]]:
    """New names to old ones, and old names to new ones."""
    to_old = {new: old for old, new in renamed if new != DROPPED}
    return to_old, {old: new for old, new in renamed if old != DROPPED}


def _pair(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not equals or not (old or new):
        raise Failure(f"cannot read --rename {text!r}: write OLD=NEW, OLD= or =NEW")
    return old, new


@contextmanager
def _checkout(given: str) -> Iterator[Path]:
    """Give the folder of a version; a git revision is checked out while it is needed."""
    folder = Path(given)
    if (folder / "focoop").is_dir():
        yield folder.resolve()
        return
    git = ["git", "-C", str(Path(__file__).resolve().parents[1])]
    with tempfile.TemporaryDirectory(prefix="compare-commits-tree-") as made:
        tree = Path(made) / "tree"
        added = subprocess.run(
            [*git, "worktree", "add", "--quiet", "--detach", str(tree), given],
            capture_output=True,
            text=True,
        )
        if added.returncode:
            raise Failure(
                f"{given} is neither a folder with a package focoop nor a git revision: "
                f"{added.stderr.strip()}"
            )
        try:
            yield tree
        finally:
            subprocess.run(
                [*git, "worktree", "remove", "--force", str(tree)], check=True, capture_output=True
            )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", help="folder of a checkout, or a git revision")
    parser.add_argument("new", help="the same, for the version to compare with it")
    parser.add_argument(
        "--rename",
        action="append",
        default=[],
        metavar="OLD=NEW",
        help="a setting has another name in the new version; OLD= was dropped, =NEW was added",
    )
    parser.add_argument(
        "--new-metric",
        action="append",
        default=[],
        metavar="NAME",
        help="a metric that only the new version measures",
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="WORD", help="cases with this in their name"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep all run folders here")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    # A command that is told to end removes its worktrees and ends its processes first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
