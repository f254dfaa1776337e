"""What the Tab key offers: settings and their values, methods, datasets, configurations, runs."""

import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, redirect_stdout
from itertools import islice
from pathlib import Path

import click
import click.shell_completion

from focoop.cli.settings_outline import PACKAGE, Outline, datasets, methods, settings

CONFIGS = (Path("configs"), PACKAGE / "configs", PACKAGE.parent / "configs")
# Kinds of data whose name goes on with a path, and how the files end that it leads to.
PATHS = {"folder:": (), "clients:": (), "csv:": (".csv",), "file:": (".safetensors", ".gz")}
MOST = 2000  # folders that are looked at for runs
RUN_FILE = "manifest.json"
VARIABLE = "_FOCOOP_COMPLETE"


def override(ctx: click.Context, incomplete: str) -> list[str]:
    """Offer what may follow `--set`: keys, then values.

    Args:
        ctx: The command.
        incomplete: What was typed.

    Returns:
        Words to offer.
    """
    known = settings(_method(ctx))
    key, equals, start = incomplete.partition("=")
    if equals:
        return offered((f"{key}={value}" for value in _values(key, known, start)), incomplete)
    matches = [name for name in known if name.startswith(incomplete)]
    if len(matches) != 1:
        return offered((f"{name}=" for name in matches), incomplete)
    # A shell ends a word that is the only one possible with a space: there are always two.
    values = _values(matches[0], known, "") or ['""']
    return offered([f"{matches[0]}=", *(f"{matches[0]}={value}" for value in values)], incomplete)


def method(incomplete: str) -> list[str]:
    """Offer names of methods, and files of one's own behind `./`.

    Args:
        incomplete: What is typed so far.

    Returns:
        Words to offer.
    """
    return offered([*methods(), *_own_files(incomplete)], incomplete)


def method_list(incomplete: str) -> list[str]:
    """Offer names for `--methods promptfl,focoop`.

    Args:
        incomplete: What was typed.

    Returns:
        Words to offer.
    """
    before, comma, last = incomplete.rpartition(",")
    names = [*methods(), *([] if comma else ["all"]), *_own_files(last)]
    return offered(
        (f"{before}{comma}{name}" for name in names if name.startswith(last)), incomplete
    )


def dataset(incomplete: str) -> list[str]:
    """Offer datasets as `data.id` takes them.

    Args:
        incomplete: What was typed.

    Returns:
        Words to offer.
    """
    return offered(_datasets(incomplete), incomplete)


def public_dataset(incomplete: str) -> list[str]:
    """Offer datasets that can be fetched.

    Args:
        incomplete: What was typed.

    Returns:
        Words to offer.
    """
    return offered(datasets(), incomplete)


def configuration(incomplete: str) -> list[str]:
    """Offer settings that come with focoop, and files of the current folder.

    Args:
        incomplete: What was typed.

    Returns:
        Words to offer.
    """
    beside = [path.name for path in Path().glob("*.toml")]
    return offered([*beside, *config_names()], incomplete)


def config_names() -> list[str]:
    """Return the names that stand for files of `configs`, as `focoop run` takes them."""
    names = [
        path.relative_to(folder).as_posix().removesuffix(".toml")
        for folder in CONFIGS
        for path in folder.rglob("*.toml")
    ]
    return sorted({name for name in names if not re.match(r"methods/|paper/[^/]+$", name)})


def run_folder(incomplete: str) -> list[str]:
    """Offer folders of runs.

    Args:
        incomplete: What was typed.

    Returns:
        Words to offer.
    """
    start = incomplete.rpartition("/")[0]
    # A folder inside a run is no run, and behind the last slash of a path there are few.
    roots = [start or "runs", *([] if start else ["."])]
    folders = (
        os.path.normpath(folder)
        for root in roots
        for folder, _, files in islice(os.walk(root), MOST)
        if RUN_FILE in files
    )
    return offered(folders, incomplete)


def device(incomplete: str) -> list[str]:
    """Offer usual torch devices.

    Args:
        incomplete: What was typed.

    Returns:
        Words to offer.
    """
    return offered(("cpu", "cuda"), incomplete)


def score(incomplete: str) -> list[str]:
    """Offer the scores that come with focoop, and files of one's own behind `./`.

    Args:
        incomplete: What is typed so far.

    Returns:
        Words to offer.
    """
    source = (PACKAGE / "functional" / "scores" / "named.py").read_text(encoding="utf-8")
    names = re.findall(r'"(\w+)": Score\(', source)
    return offered([*names, *_own_files(incomplete)], incomplete)


def tracker(incomplete: str) -> list[str]:
    """Offer the trackers that focoop writes to.

    Args:
        incomplete: What is typed so far.

    Returns:
        Words to offer.
    """
    return offered(("mlflow", "tensorboard", "trackio", "wandb"), incomplete)


def backbone(incomplete: str) -> list[str]:
    """Offer the backbones of the paper.

    Args:
        incomplete: What was typed.

    Returns:
        Words to offer.
    """
    names = ("mini", "openclip:RN50:openai", "openclip:ViT-B-16:openai")
    return offered(names, incomplete)


def offered(values: Iterable[str], incomplete: str) -> list[str]:
    """Return the values that go on from what was typed, each once.

    Args:
        values: The values.
        incomplete: What was typed.

    Returns:
        Words to offer.
    """
    return list(dict.fromkeys(value for value in values if value.startswith(incomplete)))


@contextmanager
def bash_words(environment: MutableMapping[str, str]) -> Iterator[None]:
    """Let bash complete words with `=` and `:` in them.

    Bash parts words at these signs, and replaces what stands behind the last of them. Inside, the
    words are whole; what is printed inside is given to bash without what it keeps.

    Args:
        environment: Variables of the process, changed where bash asks for completions.

    Yields:
        Nothing.
    """
    if environment.get(VARIABLE) != "complete_bash":
        yield
        return
    words = click.shell_completion.split_arg_string(environment.get("COMP_WORDS", ""))
    joined, place, before = _join(words, int(environment.get("COMP_CWORD", "0")))
    environment["COMP_WORDS"] = "\n".join(joined)
    environment["COMP_CWORD"] = str(place)
    prefix = re.sub(r"^--?[\w-]+=", "", before)  # `--set=` is no part of what is completed
    shown = io.StringIO()
    try:
        with redirect_stdout(shown):
            yield
    finally:
        for line in shown.getvalue().splitlines():
            print(line.removeprefix(prefix))


def _join(words: Sequence[str], current: int) -> tuple[list[str], int, str]:
    """Words up to the cursor, the last one's place, and what bash keeps of it.

    >>> _join(["focoop", "run", "--set", "data.id", "=", "demo", ":", "ci"], 7)
    (['focoop', 'run', '--set', 'data.id=demo:ci'], 3, 'data.id=demo:')
    """
    joined: list[str] = []
    before, glued = "", False
    for word in words[: current + 1]:
        parts = re.fullmatch(r"[=:]+", word) is not None
        if joined and (parts or glued):
            before = joined[-1] + (word if parts else "")
            joined[-1] += word
        else:
            before = ""
            joined.append(word)
        glued = parts
    if current >= len(words):  # the cursor stands behind a space
        return joined, len(joined), ""
    return joined, len(joined) - 1, before


def _method(ctx: click.Context) -> str:
    """The method that a command line chooses, by `--set` or by its configuration."""
    for word in reversed(ctx.params.get("overrides") or []):
        key, _, value = str(word).partition("=")
        if key == "method.name" and value:
            return value.strip("\"'")
    # Click leaves words unread where the last option still lacks its value.
    file = ctx.params.get("file") or next(iter(ctx.args), None)
    names = [Path(str(file)), *(folder / f"{file}.toml" for folder in CONFIGS)] if file else []
    for path in names:
        if path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            if match := re.search(r"^\[method\][^\[]*?^name *= *[\"'](\w+)", text, re.S | re.M):
                return match[1]
    return str(settings("")["method.name"].default)


def _values(key: str, known: Mapping[str, Outline], start: str) -> list[str]:
    """Values of a setting that can be counted."""
    if key == "method.name":
        return [*methods(), *_own_files(start)]
    if key == "data.id":
        return [*_datasets(start), *_own_files(start)]
    if key not in known:
        return []
    if key == "method.score" and not known[key].choices:
        return score(start)
    # Texts that are empty by default are mostly paths, for which the shell offers files.
    return list(known[key].choices) or ([] if known[key].default == "" else _default(known[key]))


def _datasets(start: str) -> list[str]:
    """Names of datasets; those that go on with a path, with that path."""
    kind = next((prefix for prefix in PATHS if start.startswith(prefix)), None)
    if kind is None:
        names = [*datasets(), *_demo(), *PATHS, "hf:"]
        ways = [name for name in names if name.startswith(start)]
        if len(ways) != 1 or ways[0] not in PATHS:
            return names
        kind, start = ways[0], ways[0]
    specs = [f"{kind}{path}" for path in _paths(start.removeprefix(kind), PATHS[kind])]
    return [kind, *specs] if start == kind else specs


def _own_files(start: str) -> list[str]:
    """Python files of a user's own, once a path is begun."""
    return _paths(start, (".py",)) if start.startswith((".", "/", "~")) or "/" in start else []


def _paths(start: str, suffixes: Sequence[str]) -> list[str]:
    """Folders, and files with one of these ends, in the folder that a path has reached."""
    lead = start[: start.rfind("/") + 1]
    try:
        entries = sorted(Path(lead or ".").expanduser().iterdir())
    except OSError:
        return []
    useful = [entry for entry in entries if entry.is_dir() or entry.suffix in suffixes]
    return [f"{lead}{entry.name}{'/' if entry.is_dir() else ''}" for entry in useful]


def _demo() -> list[str]:
    """Names of the packaged datasets."""
    files = (PACKAGE / "assets" / "demo").glob("*.safetensors.gz")
    names = [path.name.removesuffix(".safetensors.gz") for path in files]
    return sorted(f"demo:{name}" for name in names if "." not in name)  # corrupted ones have dots


def _default(outline: Outline) -> list[str]:
    """The default of a setting as it is written behind `=`; of lists the empty one."""
    if isinstance(outline.default, tuple):
        return ["[]"]
    if outline.default is None:  # computed: source text does not tell
        return []
    return [
        str(outline.default).lower() if isinstance(outline.default, bool) else str(outline.default)
    ]
