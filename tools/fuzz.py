"""Throw settings, files and command lines at focoop, as long as one likes.

    python tools/fuzz.py --seconds 600                # settings, files and command lines
    python tools/fuzz.py --kinds commands --seed 7
    python tools/fuzz.py --train --seconds 3600       # also trains a round where a case is valid

Cases are drawn from the schema itself (settings of runs and methods, options of commands): valid,
at the edge, absurd and of wrong types. Each must end in a `FocoopError`, or in a success, within
`PATIENCE` seconds. Anything else is printed with what repeats it; the exit code is then 1.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
import typing
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from hypothesis import strategies as st

from focoop import caching
from focoop.config import RunConfig, from_dict, parse_override, read_toml, to_dict, to_toml
from focoop.config import merge as merged
from focoop.errors import FocoopError
from focoop.fields import Bounds, bounds_of, fields_of, toml_value
from focoop.methods import available, lookup

PATIENCE = 20  # seconds a case may take
KINDS = ("settings", "files", "commands")
CLASSES = ("apple", "boat", "cat", "drum")
DIM = 256  # of the backbone mini
NASTY: tuple[str, ...] = (
    *("", " ", "{}", "{}}", "{0}", "{x}", "a {} b {}", "%s", "auto", "none", "true", "nan", "-1"),
    *("\0", "a\nb", "\udc80", "é" * 300, "a" * 20_000, "../..", "~", "~nobody/x", "/dev/null"),
    *("/dev/full", "meta", "cuda:99", "mps", "xla", "folder:", "hf:", "demo:", "csv:x.csv"),
    *("file:absent.safetensors", "file:/dev/null", "cifar100#fog@9", "dtd@999999999px", "dtd@32px"),
    *("openclip:x:y", "openclip:ViT-B-16", "mini:", "./absent.py", "[[[", "'", '"', "\\", "="),
)
NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 10**8, 2**31, 2**63, 2**64, 10**308, 10**400, 10**5000, -(10**400)),
    *(0.0, -0.0, 0.5, 1e-45, 5e-324, 1e38, 1e308, float("inf"), float("-inf"), float("nan")),
)
OTHERS: tuple[Any, ...] = (None, [], {}, [[]], {"a": 1}, [0] * 20_000, [None], [1, "a"], True)
# Commands that only look, or stop before they train; those that serve or mine are left out.
SAFE = ("config", "methods", "runs", "evaluate", "features", "data list", "data show", "data check")
COMMANDS = (*SAFE, "doctor", "compare", "run", "tune", "site status", "data fetch")


@dataclass(frozen=True)
class Case:
    """One thing to try.

    Attributes:
        kind: one of `KINDS`.
        tree: settings by section and name, where `kind` is settings.
        overrides: texts behind `--set`.
        text: content of a TOML file, where `kind` is files.
        arguments: the command line behind `focoop`, where `kind` is commands.
    """

    kind: str
    tree: dict[str, Any] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    text: bytes = b""
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What became of a case: `told`, `done`, or a `fault` with its report."""

    how: Literal["told", "done", "fault"]
    report: str = ""
    seconds: float = 0.0


def near(bounds: Bounds) -> list[Any]:
    """Return numbers at the edges of bounds and just outside."""
    ends = [end for end in (bounds.low, bounds.above, bounds.high) if end is not None]
    steps = (-1, 0, 1) if all(isinstance(end, int) for end in ends) else (-1.0, -1e-9, 0.0, 1e-9)
    return [end + step for end in ends for step in steps]


def plain(kind: Any, bounds: Bounds | None, default: Any) -> st.SearchStrategy[Any]:
    """Return values that a setting of this type allows, or nearly so."""
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is Literal:
        return st.sampled_from(arguments)
    if typing.get_origin(kind) is tuple:
        inner = plain(arguments[0], bounds, None)
        size = {} if arguments[-1] is Ellipsis else {"min_size": len(arguments)}
        return st.lists(inner, max_size=max(3, len(arguments)), **size)
    if kind is bool:
        return st.booleans()
    if bounds is not None:
        low, high = bounds.low if bounds.low is not None else bounds.above, bounds.high
        if kind is int:
            return st.integers(int(low or 0), min(int(high or 0), 50)) | st.sampled_from(
                near(bounds)
            )
        return st.floats(low, high) | st.sampled_from(near(bounds))
    return st.just(default) if default is not None else st.sampled_from(NASTY)


def value(one: Any, kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy of values of one setting: mostly allowed ones, and all that is wrong."""
    choices = one.metadata.get("choices")
    fine = st.sampled_from(choices) if choices else plain(kind, bounds_of(one, kind), one.default)
    wrong = st.sampled_from((*NASTY, *NUMBERS)) | st.sampled_from(OTHERS)
    odd = st.one_of(wrong, st.text(max_size=8), st.integers(), st.floats())
    return st.integers(0, 9).flatmap(lambda chance: odd if chance > 7 else fine)


@cache
def settings_of(method: str) -> dict[str, st.SearchStrategy[Any]]:
    """Return a strategy of values for every setting of a run, by dotted name."""
    found: dict[str, st.SearchStrategy[Any]] = {}
    for member, kind in fields_of(RunConfig):
        if member.metadata:
            found[member.name] = value(member, kind)
        elif member.name != "method":
            inner: Any = member.default_factory
            for one, its_kind in fields_of(inner):
                found[f"{member.name}.{one.name}"] = value(one, its_kind)
    for one, its_kind in fields_of(lookup(method).Config):
        found[f"method.{one.name}"] = value(one, its_kind)
    return found


@cache
def methods() -> list[str]:
    """Return the names of the methods."""
    return sorted(available())


@cache
def whole_file(method: str) -> bytes:
    """Return a file of all settings of a method's run."""
    return to_toml(from_dict({"method": {"name": method}})).encode()


@st.composite
def settings(draw: st.DrawFn) -> Case:
    """Draw a case of a few settings over the toy ones, as a tree and as texts behind --set."""
    method = draw(st.sampled_from(methods()))
    known = settings_of(method)
    tree: dict[str, Any] = {"method": {"name": method}}
    names = draw(st.lists(st.sampled_from(sorted(known)), max_size=4, unique=True))
    overrides = []
    for name in names:
        given = draw(known[name])
        if draw(st.booleans()):
            overrides.append(f"{name}={_typed(given)}")
            continue
        section, dot, inner = name.partition(".")
        if dot:
            tree.setdefault(section, {})[inner] = given
        else:
            tree[section] = given
    if draw(st.integers(0, 9)) == 0:
        tree[draw(st.text(max_size=6))] = draw(st.sampled_from(OTHERS))
    if draw(st.integers(0, 9)) == 0:
        overrides.append(draw(st.sampled_from((*NASTY, "a.b.c=1", "method={}", "data=1"))))
    return Case("settings", tree, tuple(overrides))


@st.composite
def files(draw: st.DrawFn) -> Case:
    """Draw a file of settings: a right one that is damaged, deep brackets, or anything."""
    raw = bytearray(whole_file(draw(st.sampled_from(methods()))))
    how = draw(st.integers(0, 3))
    if how == 0:
        for _ in range(draw(st.integers(1, 5))):
            raw[draw(st.integers(0, len(raw) - 1))] = draw(st.integers(0, 255))
    elif how == 1:
        start, end = sorted(draw(st.integers(0, len(raw))) for _ in range(2))
        del raw[start:end]
    elif how == 2:
        depth = draw(st.sampled_from((1, 50, 5000, 200_000)))
        opening = draw(st.sampled_from((b"[", b"{a=", b"a.", b"[[a]]\n", b"seed=1" + b"0" * 10)))
        raw[:0] = b"x = " * draw(st.integers(0, 1)) + opening * depth
    else:
        raw = bytearray(draw(st.binary(max_size=60)))
    return Case("files", text=bytes(raw))


@st.composite
def commands(draw: st.DrawFn) -> Case:
    """Draw a command line: a command, some of its options, odd values and odd arguments."""
    path = draw(st.sampled_from(COMMANDS))
    options, wanted = parameters()[path]
    texts = st.sampled_from([*NASTY, "toy.toml", "file:toy.safetensors", "1", "promptfl"])
    given = [_argument(draw(texts)) for _ in range(wanted + draw(st.integers(-1, 1)))]
    for name, is_flag in draw(st.lists(st.sampled_from(options), max_size=3)) if options else ():
        given += [name] if is_flag else [name, _argument(draw(texts))]
    case = draw(settings())
    if "--set" in dict(options):
        given += [f"--set={_argument(text)}" for text in case.overrides[:2]]
    if path in ("run", "compare", "tune"):  # right command lines would train
        given += ["--set=federation.rounds=0"] if path != "tune" else ["--set=nothing=1"]
    return Case("commands", arguments=(*path.split(" "), *given))


STRATEGIES: dict[str, Callable[[], st.SearchStrategy[Case]]] = {
    "settings": settings,
    "files": files,
    "commands": commands,
}


@cache
def parameters() -> dict[str, tuple[list[tuple[str, bool]], int]]:
    """Return of every command in `COMMANDS` its options (and which are flags) and arguments."""
    import typer

    from focoop.cli import app

    found = {}
    for path in COMMANDS:
        command: Any = typer.main.get_command(app)
        for name in path.split(" "):
            command = command.commands[name]
        options = [one for one in command.params if one.param_type_name == "option"]
        flags = [(one.opts[0], bool(getattr(one, "is_flag", False))) for one in options]
        found[path] = (flags, len(command.params) - len(options))
    return found


def _typed(given: Any) -> str:
    """A value as somebody types it behind --set."""
    try:
        return toml_value(given)
    except (TypeError, ValueError):
        return str(type(given)) if isinstance(given, int) else repr(given)


def _argument(text: str) -> str:
    """A text as a command line can hold it: no zero bytes."""
    return text.replace("\0", "0")


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
            with warnings.catch_warnings(), _limit(PATIENCE):
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
            path = self.folder / "case.toml"
            path.write_bytes(case.text)
            config = from_dict(read_toml(path))
            return self._check(config)
        tree = dict(self.tree)
        tree = merged(tree, case.tree)
        for text in case.overrides:
            tree = merged(tree, parse_override(text))
        config = from_dict(tree)
        self._check(config)
        self._plan(config)
        return None

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
        if not self.train or not config.data.id.startswith("file:"):
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
def _limit(seconds: float) -> Iterator[None]:
    """Raise `Hung` in what takes longer."""

    def ring(*_: Any) -> None:
        raise Hung(f"longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; 1 where a case ended in a traceback or did not end."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default: 60)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--train", action="store_true", help="train a round of valid settings")
    given = parser.parse_args(arguments)
    seed = random.randrange(2**32) if given.seed is None else given.seed
    faults: dict[str, int] = {}
    counts: dict[str, int] = {}
    end = time.monotonic() + given.seconds
    with tempfile.TemporaryDirectory() as folder:
        ground = Ground(Path(folder), train=given.train)
        while time.monotonic() < end:
            for kind in given.kinds:
                for case in drawn(kind, seed, 100):
                    outcome = ground.attempt(case)
                    counts[outcome.how] = counts.get(outcome.how, 0) + 1
                    if outcome.how == "fault":
                        _tell(case, outcome, seed, faults)
                    if time.monotonic() > end:
                        break
            seed += 1
    print(json.dumps({"cases": sum(counts.values()), **counts, "kinds of fault": len(faults)}))
    return 1 if faults else 0


def _tell(case: Case, outcome: Outcome, seed: int, faults: dict[str, int]) -> None:
    """Print a fault once, with what repeats it."""
    last = outcome.report.strip().splitlines()
    place = next((line for line in reversed(last) if "File " in line), "")
    name = place + last[-1][:80]
    faults[name] = faults.get(name, 0) + 1
    if faults[name] > 1:
        return
    print(f"\nfault (seed {seed}, {outcome.seconds:.1f} s):\n{outcome.report}")
    if case.kind == "commands":
        print(f"repeat: focoop.cli, arguments {list(case.arguments)!r:.2000}")
    elif case.kind == "files":
        print(f"repeat: focoop config FILE with {case.text!r:.2000}")
    else:
        print(f"repeat: from_dict({case.tree!r:.1000}) with --set {case.overrides!r:.1000}")


if __name__ == "__main__":
    sys.exit(main())
