"""The README stays short and its commands run."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from focoop.cli import app
from focoop.methods import available

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line.split("#")[0])[1:]
    for line in TEXT.splitlines()
    if line.startswith(".venv/bin/focoop ")
]


def test_it_is_short_and_its_links_lead_somewhere() -> None:
    assert len(TEXT.splitlines()) <= 150
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_every_method_is_in_its_table() -> None:
    assert set(available()) <= set(re.findall(r"^\| `(\w+)` \|", TEXT, flags=re.MULTILINE))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
def test_its_commands_run(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    if command[0] == "run":  # the settings are read and the run starts; training is not awaited
        command = [*command, "--set", "federation.rounds=0"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output


def test_its_links_into_pages_lead_to_headings() -> None:
    links = re.findall(r"\]\(([^)#]+)#([^)]+)\)", " ".join(TEXT.split()))
    assert links
    for page, anchor in links:
        text = (ROOT / page).read_text(encoding="utf-8")
        heads = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
        slugs = {re.sub(r"[^\w]+", "-", head.lower()).strip("-") for head in heads}
        assert anchor in slugs, f"{page}#{anchor}"


def test_the_start_page_shows_the_same_demo() -> None:
    rows = re.findall(
        r"^([a-z][\w -]+?) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)$", TEXT, re.MULTILINE
    )
    start = (ROOT / "docs" / "index.md").read_text(encoding="utf-8").replace("*", "")
    assert len(rows) == 9
    for _, *values in rows:
        assert f"| {' | '.join(values)} |" in start
