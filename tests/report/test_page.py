"""The report in a browser: two widths, both themes, no error, no overflow, readable by machines."""

import json
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


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a hundred runs: five methods, twenty seeds."""
    folder = tmp_path_factory.mktemp("big")
    setting, out = write_setting(folder / "data"), folder / "out"
    trained = ["focoop", "promptfl", "local_only"]
    for methods, settings in ((trained, QUICK), (["fedncm", "fedlda"], {})):
        focoop.compare(setting, methods, seeds=list(range(20)), overrides=settings, out=out, jobs=1)
    assert len(list(out.glob("toy/*/seed*"))) == 100
    return focoop.write_report(out, folder / "report.html")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_a_report_of_a_hundred_runs_is_small_and_quick(
    big: Path, browser: Any, width: int, theme: str
) -> None:
    assert big.stat().st_size < 5e6
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    meter = page.context.new_cdp_session(page)
    meter.send("Performance.enable")
    page.goto(big.as_uri())
    page.evaluate("dispatchEvent(new Event('beforeprint'))")  # draws all charts, seen or not
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    measured = {m["name"]: m["value"] for m in meter.send("Performance.getMetrics")["metrics"]}
    assert measured["ProcessTime"] < 2.0, "seconds of processor time of the page's process"
    check_page(page)
    page.close()


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of more settings than are shown open."""
    folder = tmp_path_factory.mktemp("folded")
    sweep = "partition.shots=5,6,7,8,9,10,11,12,13"
    setting, out = write_setting(folder / "data"), folder / "out"
    focoop.compare(setting, ["fedncm"], seeds=[0], sweep=sweep, out=out, jobs=0)
    return focoop.write_report(out, folder / "report.html", details=False)


def test_many_settings_are_folded_and_a_link_opens_one(folded: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
    page.goto(folded.as_uri())
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    opened = "[...document.querySelectorAll('main details[open]')].map(e => e.parentElement.id)"
    assert page.locator("main article article").count() == 9
    assert page.evaluate(opened) == []
    assert page.locator(".sweep > section .chart").count() > 0
    assert page.locator("#s3 .charts").count() > 0 and page.locator("#s3 .chart").count() == 0
    page.evaluate("location.hash = '#s3-0'")
    canvas = page.locator("#s3 .chart canvas").first
    assert canvas.bounding_box(timeout=5000)["width"] > 500
    assert page.evaluate(opened) == ["s3"]
    page.locator("#s3 summary").first.click()
    page.locator("#theme").click()
    assert page.locator("#s3 .chart").count() == 0, "a folded chart is drawn when it is seen again"
    page.locator("#s3 summary").first.click()
    assert canvas.bounding_box(timeout=5000)["width"] > 500
    page.goto(f"{folded.as_uri()}#s5")
    page.reload()
    assert page.evaluate(opened) == ["s5"]
    page.close()


def test_axes_of_percent_do_not_enlarge_rounding(folded: Path, browser: Any) -> None:
    text = folded.read_text(encoding="utf-8")
    start = text.index('id="charts">') + len('id="charts">')
    drawn = json.loads(text[start : text.index("</script>", start)])
    drawn["w0"]["sweep"] = [
        {"title": "AUROC, %", "x": "x", "lines": [{"name": "a", "x": [1, 2], "y": [99.99, 100.0]}]}
    ]
    flat = folded.with_name("flat.html")
    flat.write_text(text[:start] + json.dumps(drawn) + text[text.index("</script>", start) :])
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.add_init_script(
        "window.ranges = []; let made; Object.defineProperty(window, 'uPlot', {get: () => made,"
        "set: (plot) => { made = new Proxy(plot, {construct: (of, args) => {"
        "const one = new of(...args); queueMicrotask(() => queueMicrotask(() =>"
        " ranges.push([one.scales.y.min, one.scales.y.max]))); return one;}}); }});"
    )
    page.goto(flat.as_uri())
    page.locator("#w0 canvas").wait_for(timeout=5000)
    low, high = page.evaluate("ranges[0]")
    assert low <= 99 and 100 <= high < 101
    page.close()


def check_page(page: Any) -> None:
    """Every panel is drawn, none overlaps another, nothing overflows, axe-core is content."""
    assert page.evaluate("[...document.querySelectorAll('.charts')].every(c => c.children.length)")
    assert page.evaluate(
        "[...document.querySelectorAll('.chart')].every(c => c.querySelector('canvas').width > 100"
        " && c.querySelector('canvas').getBoundingClientRect().right <= innerWidth)"
    )
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    boxes = page.evaluate(
        "[...document.querySelectorAll('.card, .chart, .wide, h2, h3, p')]"
        ".filter(e => !e.parentElement.closest('.card, .chart, .wide, details:not([open])'))"
        ".map(e => e.getBoundingClientRect()).map(r => [r.left, r.top, r.right, r.bottom])"
    )
    overlapping = [
        (a, b)
        for at, a in enumerate(boxes)
        for b in boxes[at + 1 :]
        if min(a[2], b[2]) - max(a[0], b[0]) > 1 and min(a[3], b[3]) - max(a[1], b[1]) > 1
    ]
    assert overlapping == []
    heights = "[...document.querySelectorAll('{}')].map(e => e.getBoundingClientRect().height)"
    assert min(page.evaluate(heights.format(".strip text"))) >= 11, "letters too small to read"
    spans = (
        "[...document.querySelectorAll('.strip')].map(s => ['.name', 'circle'].map(of =>"
        " [...s.querySelectorAll(of)].map(e => e.getBoundingClientRect())"
        ".map(r => [r.top, r.bottom])))"
    )
    for names, circles in page.evaluate(spans):
        assert all(
            min(name[1], dot[1]) <= max(name[0], dot[0]) for name in names for dot in circles
        ), "a dot lies on a name"
    assert max(page.evaluate(heights.format(".runs tr"))) < 50, "a run takes one line"
    jumps = "[...document.querySelectorAll('nav a')].map(e => e.getAttribute('href'))"
    assert all(page.locator(one).count() == 1 for one in set(page.evaluate(jumps)))
    assert serious_findings(page) == []


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
    assert page.get_attribute("html", "data-theme") == "light", "dark paper costs ink"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.get_attribute("html", "data-theme") == theme
    assert page.locator(".charts").count() >= 4
    check_page(page)
    assert problems == []
    page.close()
