"""docs/guides/own-images.md is what happens: its commands are run and print what it shows."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from focoop.caching import cache_folder
from focoop.cli import app

pytest.importorskip("pillow_heif", reason="the extra `formats` is not installed")
pytest.importorskip("pydicom", reason="the extra `formats` is not installed")

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guides" / "own-images.md"
BLOCK = re.compile(
    r"^(?:<!-- (?P<note>[^>]*) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S
)
TRIMMED = "..."
TIMED = ("encoding ", "checking ")  # lines that slow machines alone print
PATIENCE = 600  # seconds for one command, on a machine that others use too


@dataclass(frozen=True)
class Step:
    """One command of the page.

    Attributes:
        command: the command; a file's name where `content` is written to it.
        shown: the lines that the page shows below it.
        code: the exit code that the page tells.
        killed: what the command prints before it is killed; empty: it is not.
        content: what is written to a file; empty for a command.
    """

    command: str
    shown: tuple[str, ...] = ()
    code: int = 0
    killed: str = ""
    content: str = ""


def steps(text: str) -> Iterator[Step]:
    """Commands and files of a page in order; a note holds for the last command of its block."""
    for block in BLOCK.finditer(text):
        note, body = block["note"] or "", block["text"]
        if note.startswith("file: "):
            yield Step(note.removeprefix("file: "), content=body)
            continue
        assert block["kind"] == "console", block["kind"]
        parts = [part.splitlines() for part in re.split(r"^\$ ", body, flags=re.M)[1:]]
        for number, (command, *shown) in enumerate(parts, start=1):
            last = number == len(parts)
            code = re.search(r"exits (\d+)", note) if last else None
            killed = re.search(r"killed once it says: (.*)", note) if last else None
            yield Step(
                command, tuple(shown), int(code[1]) if code else 0, killed[1] if killed else ""
            )


def essential(lines: Sequence[str]) -> list[str]:
    """Lines as they are on any processor: measured numbers and the space before them masked."""
    kept = [line.rstrip() for line in lines if not line.startswith(TIMED)]
    return [re.sub(r" *(\d+\.\d+|(?<= )-(?= |$))", " #", line) for line in kept]


def agree(step: Step, printed: str) -> None:
    """Whether a command printed what the page shows, but for what the page leaves out."""
    wanted, found = essential(step.shown), essential(printed.splitlines())
    pattern = "".join(
        r"(?:.*\n)*" if line == TRIMMED else re.escape(line) + r"\n" for line in wanted
    )
    whole = "".join(f"{line}\n" for line in found)
    assert re.fullmatch(pattern, whole), f"$ {step.command}\n{printed}"


STEPS = list(steps(PAGE.read_text(encoding="utf-8")))


def test_the_page_is_read_whole_and_its_links_lead_somewhere() -> None:
    text = PAGE.read_text(encoding="utf-8")
    commands = re.findall(r"^\$ (.*)", text, flags=re.M)
    assert commands == [step.command for step in STEPS if not step.content]
    assert len(STEPS) > 15 and sum(bool(step.code) for step in STEPS) >= 6
    for link in re.findall(r"\]\(([^)#]+)", text):
        assert (PAGE.parent / link).exists(), link
    rules = ROOT / "docs" / "reference" / "datasets.md"
    assert "own-images.md" in rules.read_text(encoding="utf-8")
    widest = max(len(line) for step in STEPS for line in step.shown)
    assert widest <= 80


def test_a_changed_line_is_noticed() -> None:
    step = Step("x", ("a 1.5  b", TRIMMED, "end 3"))
    agree(step, "a 22.75  b\nencoding x\nmore\nend 3\n")
    for other in ("a 1.5  c\nend 3\n", "a 1.5  b\nend 4\n", "a 1.5  b\nend 3\nmore\n"):
        with pytest.raises(AssertionError):
            agree(step, other)


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sites of the page."""
    path = ROOT / "tools" / "messy_sites.py"
    spec = importlib.util.spec_from_file_location("messy_sites", path)
    assert spec is not None and spec.loader is not None
    messy = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "messy_sites", messy)
    spec.loader.exec_module(messy)
    messy.make(tmp_path / "study", messy.drawn())
    monkeypatch.chdir(tmp_path / "study")
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path / "study"


@pytest.mark.usefixtures("study")
def test_every_site_is_checked_as_the_page_shows() -> None:
    first = next(k for k, step in enumerate(STEPS) if step.command.startswith("echo "))
    looks = [step for step in STEPS[:first] if step.command.startswith("focoop data check ")]
    assert len(looks) == 5
    for step in looks:
        result = CliRunner().invoke(app, step.command.split()[1:])
        agree(step, result.output)
        assert result.exit_code == step.code


def run(step: Step, place: Path, env: dict[str, str]) -> None:
    """Run one command in a shell and compare."""
    process = subprocess.Popen(
        ["bash", "-c", step.command if not step.killed else f"exec {step.command}"],
        cwd=place,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            if not step.killed:
                printed = process.communicate(timeout=PATIENCE)[0]
                agree(step, printed)
                assert process.returncode == step.code, step.command
                return
            assert process.stdout is not None
            printed = ""
            for line in process.stdout:
                printed += line
                if step.killed in line:
                    break
            agree(step, printed)
        finally:
            process.kill()


@pytest.mark.slow
def test_the_page_followed_to_the_letter(tmp_path: Path) -> None:
    """From messy folders to a run that was killed, resumed, lengthened and evaluated."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, rest in (("python", ""), ("focoop", "-m focoop ")):
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {rest}"$@"\n')
        (commands / name).chmod(0o755)
    (tmp_path / "tools").symlink_to(ROOT / "tools")
    # Encoding WordNet's words takes longest: what this machine has of them is used.
    (tmp_path / "cache").mkdir()
    known = cache_folder(None, "negatives")
    known.mkdir(parents=True, exist_ok=True)
    (tmp_path / "cache" / "negatives").symlink_to(known.resolve())
    env = {
        **os.environ,
        "PATH": f"{commands}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": str(ROOT),
        "FOCOOP_CACHE": str(tmp_path / "cache"),
        "COLUMNS": "80",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    place = tmp_path
    for step in STEPS:
        if step.content:
            (place / step.command).write_text(step.content, encoding="utf-8")
        elif step.command.startswith("cd "):
            place = (place / step.command.removeprefix("cd ")).resolve()
        else:
            run(step, place, env)
