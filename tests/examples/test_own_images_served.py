"""examples/own_images.py to its end: a browser asks its page, and sees three different answers."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("playwright", reason="playwright is not installed")

from tests.browsers import CHROMIUM, chromium, serious_findings

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "own_images.py"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM, reason="no chromium on this machine"),
]
SHOTS = os.environ.get("FOCOOP_SCREENSHOTS", "")
ASKED = (
    ("sites/oslo/red ball/0.png", "This is: red ball"),
    ("sites/pune/yellow ball/0.png", "Another site knows this: yellow ball"),
    ("foreign/0.png", "I do not know this"),
)


@contextmanager
def served(place: Path) -> Iterator[str]:
    """The address of the example's page, which ends with the context."""
    env = {**os.environ, "FOCOOP_CACHE": str(place / "cache")}
    command = [sys.executable, str(EXAMPLE), "--serve", "0"]
    process = subprocess.Popen(
        command, cwd=place, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        lines = iter(process.stdout.readline, "")
        found = next((line for line in lines if line.startswith("http://")), "")
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/?\n", found), found
        yield found.strip()
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_a_browser_sees_three_different_answers(tmp_path: Path) -> None:
    with served(tmp_path) as address, chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.set_default_timeout(60_000)
        page.goto(address)
        page.select_option("#client", "oslo")
        for name, answer in ASKED:
            page.set_input_files("#files", [tmp_path / name])
            page.wait_for_function(
                "text => document.getElementById('verdict-line').textContent.includes(text)",
                arg=answer,
            )
            if SHOTS:
                page.wait_for_timeout(400)
                page.screenshot(path=Path(SHOTS) / f"own-{name.split('/')[-2]}.png")
        assert serious_findings(page) == [] and said == []
