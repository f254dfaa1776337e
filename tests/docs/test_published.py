"""What is published can be followed: settings load and name public data, commands in docs exist."""

import re
import shlex
import tomllib
from functools import cache
from pathlib import Path

import click
import pytest
import typer

from focoop.cli import app
from focoop.config import loading
from focoop.data import ready_features, registry
from focoop.data.dataset_spec import NAMED, Source, expand
from focoop.errors import DataError
from focoop.scenario.data_needed import datasets_of, require_data
from tests.toy_command import call

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "configs").rglob("*.toml"))
PARTS = ("methods", "clip", "paper")  # presets and items of the paper are no whole configurations
RUNS = [path for path in CONFIGS if path.parent.name not in PARTS]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SCRIPTS = [*sorted((ROOT / "tools").rglob("*.py")), *sorted((ROOT / "benchmarks").glob("*.py"))]
DEVELOPERS = "../" + "shared"  # a folder that no user has
# What stands for a word of the user's own in a command: NAME, DIR, ..., [--option].
OPEN = re.compile(r"^[A-Z_/.@:{},0-9-]*$|\.\.\.|[\[\]<>$*|]")


def commands(text: str) -> list[str]:
    """Lines of code that call focoop, with those they continue on, without comments."""
    joined = re.sub(r"\\\n\s*", "", text)
    quoted = re.findall(r"`([^`\n]*(?:\n[^`\n]+)?)`", re.sub(r"```.*?```", "", joined, flags=re.S))
    lines = [*joined.splitlines(), *(" ".join(one.split()) for one in quoted)]
    pattern = re.compile(r"^\s*(?:[A-Z_]+=\S+[ ;]+)*(?:\.venv/bin/)?focoop ([a-z].*)$")
    found = [match.group(1) for line in lines if (match := pattern.match(line))]
    return [re.split(r"\s+#|\s&&|\s\||\s>|;", one)[0].strip() for one in found]


def told() -> list[tuple[str, str]]:
    """(page, command) of everything the pages and the heads of scripts tell people to type."""
    pages = [(path, path.read_text("utf-8")) for path in PAGES]
    heads = [(path, path.read_text("utf-8").split('"""')[1]) for path in SCRIPTS]
    return [
        (path.relative_to(ROOT).as_posix(), command)
        for path, text in (*pages, *heads)
        for command in commands(text)
    ]


TOLD = told()


@cache
def whole() -> click.Command:
    return typer.main.get_command(app)


def resolve(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that words name, and the words behind it."""
    found = whole()
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        assert words[0] in found.commands, words
        found, words = found.commands[words[0]], words[1:]
    return found, words


def test_commands_are_found_in_the_pages() -> None:
    pages = {page for page, _ in TOLD}
    assert len(TOLD) > 60
    assert {"README.md", "docs/guides/compare-and-tune.md", "docs/results.md"} <= pages
    assert ("docs/guides/compare-and-tune.md", "data fetch cifar100 oxford_pets dtd sun") in TOLD
    assert any("--methods zeroshot,promptfl" in command for _, command in TOLD)  # continued lines


@pytest.mark.parametrize("page", sorted({page for page, _ in TOLD}))
def test_commands_in_the_docs_exist_with_their_options_and_files(page: str) -> None:
    for command in (one for its_page, one in TOLD if its_page == page):
        try:
            words = shlex.split(command)
        except ValueError:  # a sentence with an apostrophe is no whole command
            continue
        follow(words, f"{page}: focoop {command}")


def follow(words: list[str], command: str) -> None:
    """What the words name is there: the command, its options, its files and its datasets."""
    found, rest = resolve(words)
    if isinstance(found, click.Group):
        return  # such as `focoop data`, named as a whole
    known = {name for one in found.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}
    options = [word.partition("=")[0] for word in rest if word.startswith("--")]
    assert set(options) <= known, command
    for word in (word for word in rest if not OPEN.search(word)):
        if word.startswith("configs/"):
            assert (ROOT / word).exists(), f"{command}: no {word}"
        if found.name == "fetch" and not word.startswith("--"):
            registry.lookup(word)


def test_nothing_published_needs_the_developers_folder() -> None:
    offending = [
        path.relative_to(ROOT).as_posix()
        for path in (*CONFIGS, *PAGES, *SCRIPTS)
        if DEVELOPERS in path.read_text("utf-8")
    ]
    assert offending == []


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.relative_to(ROOT / "configs").as_posix())
def test_a_configuration_loads_and_names_no_file(path: Path) -> None:
    assert tomllib.loads(path.read_text("utf-8"))
    if path not in RUNS:
        return
    data = loading.load(path).data
    specs = (data.id, *data.corrupted, *data.ood, *data.validation_ood)
    kinds = {Source.parse(spec).kind for spec in expand(specs)}
    # Features of clipb32 are not ours to publish: tools/clip_folder.py lays them out.
    assert kinds <= ({"file"} if path.stem.startswith("clipb32-") else {NAMED, "demo"}), specs


@pytest.mark.parametrize("path", RUNS, ids=lambda p: p.stem)
def test_without_data_every_missing_set_is_named_with_its_size(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOCOOP_DATA", str(tmp_path))
    monkeypatch.delenv(ready_features.VARIABLE, raising=False)
    for overrides in ([], ["data.validation=2"]):  # a run, and a trial of focoop tune
        settings = loading.load(path, overrides)
        sources = [Source.parse(spec) for spec in expand(datasets_of(settings))]
        names = {source.name for source in sources if source.kind == NAMED}
        if not names:
            require_data(settings)  # packaged features alone
            continue
        with pytest.raises(DataError) as caught:
            require_data(settings)
        for name in names:
            dataset = registry.lookup(name)
            lines = [one for one in str(caught.value).splitlines() if one.startswith(f"  {name}: ")]
            assert len(lines) == 1
            if dataset.fetched:
                assert lines[0].endswith(f"focoop data fetch {name}")
                assert "MB" in lines[0] or "size not known" in lines[0]
            else:
                assert dataset.by_hand in lines[0]


def test_the_command_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOCOOP_DATA", str(tmp_path / "data"))
    monkeypatch.delenv(ready_features.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    for words in (
        ["run", "settings/cifar100"],
        ["compare", str(ROOT / "configs/settings/cifar100.toml"), "--methods", "zeroshot"],
        ["tune", str(ROOT / "configs/settings/cifar100.toml"), "--methods=zeroshot"],
    ):
        done = call(*words)
        assert done.exit_code == DataError.exit_code, done.output
        assert "CIFAR-100, 169 MB: focoop data fetch cifar100" in done.stderr
    assert not (tmp_path / "runs").exists()
