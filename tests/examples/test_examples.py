"""The examples run as they stand and print what they say behind `# >`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def promised(text: str) -> list[str]:
    """The lines that an example says it prints."""
    return [line.removeprefix("# > ") for line in text.splitlines() if line.startswith("# > ")]


def tolerance(text: str) -> float:
    """How far an example says that its numbers may be off."""
    (found,) = re.findall(r"agree within (\d+(?:\.\d+)?)", text.replace("\n# ", " "))
    return float(found)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_a_notebook_that_says_what_it_prints(path: Path) -> None:
    text = path.read_text("utf-8")
    assert text.startswith("# %% [markdown]\n# # ") and text.count("\n# %%\n") >= 3
    assert len(promised(text)) >= 4 and 0 < tolerance(text) <= 5
    compile(text, str(path), "exec")


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_says(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        env={**os.environ, "FOCOOP_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    text = path.read_text("utf-8")
    told, wanted = done.stdout.splitlines(), promised(text)
    assert [NUMBER.sub("0", line) for line in told] == [NUMBER.sub("0", line) for line in wanted]
    for line, other in zip(told, wanted, strict=True):
        numbers = [float(one) for one in NUMBER.findall(line)]
        expected = [float(one) for one in NUMBER.findall(other)]
        assert numbers == pytest.approx(expected, abs=tolerance(text)), line
