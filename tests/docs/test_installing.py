"""Until there is a release, pages that install focoop begin with a wheel made in a clone."""

import re
from pathlib import Path

import pytest

from focoop import __version__

ROOT = Path(__file__).resolve().parents[2]
WHEEL = f"focoop-{__version__}-py3-none-any.whl"
INSTALLED = "# adds to an installed focoop"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def installing(page: Path) -> list[str]:
    """Lines of a page's code that install focoop: in a block, or indented."""
    lines, fenced = [], False
    for line in page.read_text(encoding="utf-8").splitlines():
        fenced ^= line.startswith("```")
        if fenced or line.startswith("    "):
            lines.append(line)
    return [line for line in lines if re.search(r"pip install\b.*(focoop|\.whl|'?\.\[)", line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_page_looks_for_focoop_at_a_package_index(page: Path) -> None:
    for line in installing(page):
        assert WHEEL in line or line.endswith(INSTALLED), line


def test_guides_that_begin_with_an_installation_say_how_the_wheel_is_made() -> None:
    pages = [page for page in PAGES if any(WHEEL in line for line in installing(page))]
    names = {page.relative_to(ROOT).as_posix() for page in pages}
    guides = {"docs/guides/deploy.md", "docs/guides/serve.md", "docs/guides/track-runs.md"}
    assert names == guides | {"docs/index.md", "docs/reference/flower.md"}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert text.index("make wheel") < text.index(WHEEL)


def test_every_wheel_that_a_page_names_is_of_this_version() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert set(re.findall(r"focoop-[\w.]+-py3-none-any\.whl", text)) == {WHEEL}
