"""The Python that pages show runs, and prints what they say."""

import contextlib
import io
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


def run(page: Path) -> str:
    """Run a page's blocks in order, as one notebook; return what they print."""
    shown = io.StringIO()
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    assert blocks
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(shown):
        for block in blocks:
            exec(compile(block, str(page), "exec"), names)
    return shown.getvalue()


def test_scores_and_metrics() -> None:
    printed = run(DOCS / "reference" / "python-functional.md")
    assert float(printed) == pytest.approx(1.0)
