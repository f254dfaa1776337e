"""Tables and pictures: the right number in the right column, the right shade in the right cell."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from focoop.cli import display
from focoop.cli.display import Column, Sheet, partition, wrapped
from focoop.errors import DataError

SUMMARY: dict[str, Any] = {
    "accuracy_own": 0.5,
    "accuracy_all": 0.25,
    "accuracy_corrupted": None,
    "cross_alarm": float("nan"),
    "ood": {"dtd": {"fpr95": 0.123, "auroc": 0.987}},
}


def rendered(table: Any, width: int = 200) -> list[list[str]]:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(table)
    return [line.split() for line in captured.get().splitlines() if line.strip()]


def lines_of(sheet: Any, width: int) -> list[str]:
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        console.print(sheet, crop=False)
    return captured.get().splitlines()


WORD = st.text("abcdefgh0123456789._%é漢", min_size=1, max_size=14)
TEXT = st.lists(WORD, max_size=8).map(" ".join)


@st.composite
def sheets(draw: st.DrawFn) -> Sheet:
    """Tables of up to nine columns, some of them prose."""
    count = draw(st.integers(1, 9))
    prose = draw(st.lists(st.sampled_from([0, 0, 0, 16]), min_size=count, max_size=count))
    names = draw(st.lists(st.lists(WORD, max_size=2).map(" ".join), min_size=count, max_size=count))
    groups = draw(st.lists(st.sampled_from(["", "p", "q"]), min_size=count, max_size=count))
    columns = [
        Column(name, right=place % 2 == 1, prose=0 if place == 0 else least, group=group)
        for place, (name, least, group) in enumerate(zip(names, prose, groups, strict=True))
    ]
    cells = st.tuples(*(TEXT if column.prose else WORD for column in columns))
    return Sheet(columns, draw(st.lists(cells, min_size=1, max_size=3)), draw(TEXT))


@settings(max_examples=40)
@given(sheets(), st.sampled_from([60, 80, 120, 100_000]))
def test_no_cell_is_split_and_no_line_is_wider_than_the_screen(sheet: Sheet, width: int) -> None:
    shown = lines_of(sheet, width)
    assert all(cell_len(line) <= width and line == line.rstrip() for line in shown)
    words = " ".join(shown).split()
    for column, *cells in zip(sheet.columns, *sheet.rows, strict=True):
        for cell in cells:
            assert set(str(cell).split()) <= set(words)
            assert column.prose or any(str(cell) in line for line in shown)
        # A list has no name for what names its rows, and no line for an empty cell.
        if column is not sheet.columns[0] and any(cells):
            assert set(column.name.split()) <= {word.rstrip(":") for word in words}
    if width == 100_000:  # one line a row, as wide as the content and not padded to the screen
        body = shown[2 + bool(sheet.title) :]
        assert len(body) == len(sheet.rows)
        assert max(map(cell_len, shown)) <= max(sheet.width, cell_len(sheet.title))


@given(TEXT, st.integers(1, 40), st.integers(0, 4))
@example("a  b", 3, 0)
def test_texts_break_between_words_alone(text: str, width: int, hang: int) -> None:
    lines = wrapped(text, width, hang).split("\n")
    assert " ".join(lines).split() == text.split()
    for line in lines:
        assert cell_len(line) <= width or len(line.split()) == 1


def test_wide_results_continue_below_and_keep_a_datasets_columns_together() -> None:
    ood = {name: {"fpr95": 0.1, "auroc": 0.9} for name in ("dtd_32px", "sun_32px", "places365")}
    row = {**SUMMARY, "ood": ood, "client": 3, "num_classes": 10, "num_test": 200}
    for width, tables in ((60, 3), (80, 2), (140, 1)):
        shown = lines_of(display.clients_table([row]), width)
        assert sum("client" in line for line in shown) == tables
        for name in ood:  # both of its columns stand in one header
            assert [line.count(name) for line in shown if name in line] == [2]


def test_four_methods_fit_eighty_columns() -> None:
    labels = ("zero-shot", "PromptFL", "FOCoOp", "FOCoOp+")
    shown = lines_of(display.results_table([(label, SUMMARY) for label in labels]), 80)
    assert shown[0].split() == list(labels)
    assert "own classes" in shown[2] and shown[2].split()[2:] == ["50.0"] * 4


def test_brief_numbers_are_means_over_ood_sets() -> None:
    other = {"dtd": {"fpr95": 0.2, "auroc": 0.9}, "sun": {"fpr95": 0.4, "auroc": None}}
    found = display.brief({**SUMMARY, "ood": other})
    assert found == {"own": "50.0", "all": "25.0", "auroc": "90.0", "fpr95": "30.0"}


def test_headline_in_percent() -> None:
    assert display.headline(SUMMARY) == {
        "own classes": "50.0",
        "all classes": "25.0",
        "corrupted": "-",
        "fpr95 dtd": "12.3",
        "auroc dtd": "98.7",
        "cross-client alarm": "-",
    }


def test_results_table_aligns_methods_with_different_ood_sets() -> None:
    other = {**SUMMARY, "ood": {"sun": {"fpr95": 0.5, "auroc": 0.6}}}
    lines = rendered(display.results_table([("one", SUMMARY), ("two", other)]))
    assert ["one", "two"] in lines
    assert ["own", "classes", "50.0", "50.0"] in lines
    assert ["corrupted", "-", "-"] in lines
    assert ["fpr95", "dtd", "12.3", "-"] in lines
    assert ["auroc", "sun", "-", "60.0"] in lines


def test_clients_table_averages_corruptions() -> None:
    row = {
        **SUMMARY,
        "client": 3,
        "num_classes": 10,
        "num_test": 200,
        "corrupted": {"fog@1": {"accuracy": 0.2}, "fog@2": {"accuracy": 0.4}},
    }
    lines = rendered(display.clients_table([row]))
    assert lines[-1] == ["3", "10", "200", "50.0", "25.0", "30.0", "-", "12.3", "98.7"]


def test_partition_picture_shades_counts() -> None:
    counts = np.array([[8, 0, 4, 1], [0, 8, 0, 0]])
    table = display.partition_table(counts, width=80, unicode=False, held_out=[5, 6])
    console = Console(width=100)
    with console.capture() as captured:
        console.print(table)
    lines = captured.get().splitlines()
    first = next(line for line in lines if line.split()[:1] == ["0"])
    second = next(line for line in lines if line.split()[:1] == ["1"])
    assert first.split()[:4] == ["0", "13", "3", "5"] and "# :." in first
    assert second.split()[:4] == ["1", "8", "1", "6"] and second.endswith("6   #")


def test_many_classes_are_grouped_to_the_width() -> None:
    counts = np.ones((2, 1000), dtype=np.int64)
    pictures = list(partition._pictures(counts, 60))
    assert [len(row) for row in pictures] == [60, 60]
    assert all(level > 0 for row in pictures for level in row)


@pytest.mark.slow
def test_plot_writes_a_picture_and_refuses_bad_places(tmp_path: Path) -> None:
    counts = np.array([[3, 0], [0, 3]])
    display.plot_partition(counts, ["cat", "dog"], tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(DataError, match="cannot write the plot"):
        display.plot_partition(counts, ["cat", "dog"], tmp_path / "absent" / "p.png")
    with pytest.raises(DataError, match="cannot write the plot"):
        display.plot_partition(counts, ["cat", "dog"], tmp_path / "p.nonsense")


@pytest.mark.parametrize(("sites", "classes"), [(3, 4), (60, 100), (300, 400)])
def test_plot_names_sites_and_classes_and_is_dark_enough_for_white_paper(
    sites: int, classes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    counts = np.random.default_rng(0).integers(0, 30, (sites, classes))
    names = [f"site $x{number}" for number in range(sites)]
    display.plot_partition(counts, list(map(str, range(classes))), tmp_path / "p.png", names)
    axes = drawn[0].axes[0]
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert shown == names[:: -(-len(names) // len(shown))]
    assert len(shown) == sites or sites > 200
    below = [label.get_text() for label in axes.get_xticklabels()]
    assert below == list(map(str, range(classes)))[:: -(-classes // len(below))]
    dots = axes.collections[0]
    dots.update_scalarmappable()
    colours = dots.get_facecolor()[:, :3]
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]
    assert (1.05 / (luminance + 0.05)).min() >= 3.0  # WCAG's contrast of graphics
