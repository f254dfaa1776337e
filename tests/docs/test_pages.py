"""What pages say agrees with what is in the repository: drawings, charts, numbers, files."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from tests.test_imports import RANK

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
DRAWINGS = [DOCS / "images" / "rooms.svg", DOCS / "images" / "way-of-an-image.svg"]
CHART = DOCS / "results" / "chart.svg"
CONSISTENCY = DOCS / "results" / "focoop" / "consistency.svg"
SMALLEST = 11  # pixels of a letter on a screen of 360, where a drawing is about as wide as its box
CODE = ("focoop", "tests", "tools", "benchmarks", "examples")
OF_A_READER = {"NAME.py", "mine.py", "test_NAME.py"}


@pytest.fixture(scope="module")
def plot() -> ModuleType:
    path = ROOT / "tools" / "plot_results.py"
    spec = importlib.util.spec_from_file_location("plot_results", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["plot_results"] = module
    spec.loader.exec_module(module)
    return module


def test_the_chart_is_that_of_the_committed_numbers(plot: ModuleType) -> None:
    values = plot.means(DOCS / "results" / "cells.json")
    assert CHART.read_text(encoding="utf-8") == plot.chart(values)
    changed = {**values, "focoop": (50.0, 7.8)}
    assert CHART.read_text(encoding="utf-8") != plot.chart(changed)


def test_the_table_of_the_results_has_the_committed_numbers(plot: ModuleType) -> None:
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| \**([\d.]+)\** \| \**([\d.]+)\** \|", text, flags=re.M)
    cells = plot.read_rows(DOCS / "results" / "cells.json")
    ran = {cell["method"] for cell in cells if cell["setting"] == "cifar100"}
    names = {method: name for method, name in plot.METHODS.items() if method in ran}
    assert {row[0] for row in rows} == set(names.values())
    for method, name in names.items():
        runs = [c for c in cells if (c["setting"], c["method"]) == ("cifar100", method)]
        assert len(runs) == 3
        _, *shown = next(row for row in rows if row[0] == name)
        for column, value in zip(("own", "all"), shown, strict=True):
            assert float(value) == pytest.approx(sum(r[column] for r in runs) / 3, abs=0.0501)


def test_the_results_open_with_a_small_table_few_sentences_and_one_chart() -> None:
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    said, table, more, chart = text.split("\n\n")[1:5]
    assert len(re.findall(r"[a-z)`*]\.?(?:\*\*)?[.:](?=\s|$)", said + more)) <= 7
    assert table.startswith("| ") and table.count("\n") <= 6 and chart.startswith("![")
    widest = max(line.count("|") for line in text.splitlines())
    assert widest <= 8, "tables of more columns belong into results/tables.md"


@pytest.mark.parametrize("path", [*DRAWINGS, CHART, CONSISTENCY], ids=lambda path: path.stem)
def test_a_drawing_is_readable_on_a_phone_and_in_both_themes(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert text.startswith("<svg class="), "drawings with a class stand in the page itself"
    width = float(root.attrib["viewBox"].split()[2])
    assert width <= 360, "a wider drawing shrinks on a phone"
    sizes = [float(size) for size in re.findall(r"(?:font-size|font): ([\d.]+)px", text)]
    assert sizes and min(sizes) >= SMALLEST
    assert "var(--md-default-fg-color" in text and "prefers-color-scheme: dark" in text
    title = root.find("{http://www.w3.org/2000/svg}title")
    assert title is not None and title.text and len(title.text) > 60


def test_files_that_pages_name_exist() -> None:
    known = {path.relative_to(ROOT).as_posix() for top in CODE for path in (ROOT / top).rglob("*")}
    named = {
        (page.relative_to(ROOT).as_posix(), name)
        for page in PAGES
        if page.name != "authors_code.md"  # its files are those of another repository
        for line in page.read_text("utf-8").splitlines()
        if "at commit" not in line  # a program that the history keeps
        for name in re.findall(r"(?<![\w*{])((?:[\w.]+/)*\w+\.py)\b", line)
    }
    assert len(named) > 40
    wrong = {
        (page, name)
        for page, name in named
        if Path(name).name not in OF_A_READER
        and not name.startswith("./")  # a reader's own file
        and name not in known
        and not any(one.endswith(f"/{name}") for one in known)
    }
    assert wrong == set()


def test_the_drawing_of_the_rooms_is_that_of_the_imports() -> None:
    """Each room is drawn once; who may import another stands above it, equals side by side."""
    root = ElementTree.fromstring(DRAWINGS[0].read_text(encoding="utf-8"))
    groups = [one for one in root if "data-room" in one.attrib]
    height = {
        one.attrib["data-room"]: float(one.find("{http://www.w3.org/2000/svg}rect").attrib["y"])  # type: ignore[union-attr]
        for one in groups
    }
    assert len(height) == len(groups)
    assert set(height) == {path.parent.name for path in (ROOT / "focoop").glob("*/__init__.py")}
    for upper in height:
        for lower in height:
            assert (RANK[upper] > RANK[lower]) == (height[upper] < height[lower]), (upper, lower)


def test_the_way_of_an_image_passes_through_rooms_that_exist() -> None:
    rooms = set(re.findall(r'data-room="(\w+)"', DRAWINGS[1].read_text(encoding="utf-8")))
    assert len(rooms) >= 6
    assert all((ROOT / "focoop" / room / "__init__.py").is_file() for room in rooms)
