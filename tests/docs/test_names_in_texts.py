"""Texts name what exists: settings, options and commands in helps, messages and docs."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

from focoop.cli import app
from focoop.config import loading, schema, writing
from focoop.config.schema import SECTIONS
from focoop.methods import available

ROOT = Path(__file__).resolve().parents[2]
SETTING = re.compile(
    rf"(?<![\w./])(?:{'|'.join(SECTIONS)})\.[a-z][a-z0-9_]*(?![\w(]|\.[a-z])(?<!\.py)(?<!\.json)(?<!\.toml)(?<!\.md)"
)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
COMMAND = re.compile(r"`focoop ([a-z]+)(?: ([a-z]+))?")
# Modules that call other programs, with those programs' options.
OTHERS = ("flower/", "runs/manifest.py", "tracking/")
# Docs that show a method which a reader writes, Python, or a misspelling that is refused.
OF_A_READER = {"method.radius", "method.aggregate", "federation.round"}


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands(inner, (*path, name))


def find(path: tuple[str, ...]) -> click.Command:
    found: click.Command = WHOLE
    for name in path:
        assert isinstance(found, click.Group)
        found = found.commands[name]
    return found


WHOLE = typer.main.get_command(app)
PATHS = list(commands(WHOLE))
CONFIG = schema.RunConfig()


@pytest.fixture(scope="module")
def settings() -> set[str]:
    """Every setting of every method."""
    return {
        key
        for name in available()
        for key, _, _ in writing.describe(loading.from_dict({"method": {"name": name}}))
    }


@cache
def strings() -> list[tuple[str, str]]:
    """(file, text) of every string in the package."""
    return [
        (path.relative_to(ROOT / "focoop").as_posix(), node.value)
        for path in sorted((ROOT / "focoop").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def test_the_pattern_finds_settings_and_wrong_ones(settings: set[str]) -> None:
    found = set(
        SETTING.findall("set data.id, or method.nonsense; not focoop.data.names, robust.py")
    )
    assert found == {"data.id", "method.nonsense"}
    assert found - settings == {"method.nonsense"}


def test_settings_in_helps_and_messages_exist(settings: set[str]) -> None:
    wrong = {
        (file, name)
        for file, text in strings()
        for name in SETTING.findall(text)
        if name not in settings
    }
    assert wrong == set()


def test_settings_in_docs_exist(settings: set[str]) -> None:
    files = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"]
    wrong = {
        (file.name, name)
        for file in files
        for name in SETTING.findall(file.read_text(encoding="utf-8"))
        if name not in settings | OF_A_READER
    }
    assert wrong == set()


def test_options_in_helps_and_messages_exist() -> None:
    known = {name for path in PATHS for one in find(path).params for name in one.opts} | {"--help"}
    wrong = {
        (file, name)
        for file, text in strings()
        if not file.startswith(OTHERS)
        for name in OPTION.findall(text)
        if name not in known
    }
    assert wrong == set()


def test_commands_in_docs_exist() -> None:
    files = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    for file in files:
        for first, second in COMMAND.findall(file.read_text(encoding="utf-8")):
            assert (first,) in PATHS, f"{file.name}: focoop {first}"
            if isinstance(find((first,)), click.Group) and second:
                assert (first, second) in PATHS, f"{file.name}: focoop {first} {second}"


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_every_command_and_option_has_help(path: tuple[str, ...]) -> None:
    command = find(path)
    assert command.help
    assert all("\n" not in part for part in command.help.split("\n\n")[1:]), (
        "typer breaks a help's further paragraphs where the docstring does: one line each"
    )
    for one in command.params:
        assert getattr(one, "help", None), f"focoop {' '.join(path)}: {one.name} has no help"


@pytest.mark.parametrize("width", [80, pytest.param(120, marks=pytest.mark.slow)])
def test_no_help_cuts_a_word(width: int) -> None:
    for path in PATHS:
        shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": str(width)}).stdout
        assert "…" not in shown, f"focoop {' '.join(path)} --help at {width} columns"
        assert all(len(line) <= width for line in shown.splitlines())


@pytest.mark.parametrize("command", ["run", "coordinator"])
def test_the_folder_of_a_run_is_said_to_be_named_by_a_setting(command: str) -> None:
    told = next(one.help for one in find((command,)).params if "--out" in one.opts)
    assert "setting name" in told and "name" in {key for key, _, _ in writing.describe(CONFIG)}
    assert schema.RunConfig(name="mine").title == "mine"
    assert CONFIG.title == "cifar100-pathological-focoop-0"
