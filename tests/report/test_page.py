"""The report in a browser: two widths, both themes, no error, no overflow, readable by machines."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import focoop
from tests.browsers import CHROMIUM, chromium, serious_findings
from tests.toy_setting import write_setting

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]
QUICK = {"federation.evaluate_every": 1, "negatives.count": 4, "method.context_tokens": 2}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    setting = write_setting(folder / "data")
    focoop.compare(
        setting, ["focoop", "promptfl"], seeds=[0, 1], overrides=QUICK, out=folder / "out", jobs=1
    )
    return focoop.write_report(folder / "out", folder / "report.html")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_every_panel_is_drawn_and_nothing_overflows(
    report: Path, browser: Any, width: int, theme: str
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(report.as_uri())
    page.evaluate("dispatchEvent(new Event('beforeprint'))")  # draws all charts at once
    if theme == "dark":
        page.click("#theme")
        assert page.get_attribute("html", "data-theme") == "dark"
    assert page.locator(".charts").count() >= 4
    assert page.evaluate("[...document.querySelectorAll('.charts')].every(c => c.children.length)")
    assert page.evaluate(
        "[...document.querySelectorAll('.chart')].every(c => c.querySelector('canvas').width > 100"
        " && c.querySelector('canvas').getBoundingClientRect().right <= innerWidth)"
    )
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert problems == []
    assert serious_findings(page) == []
    page.close()
