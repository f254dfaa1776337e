"""A run says which clients, classes and images it leaves out, wherever its numbers are shown."""

from pathlib import Path

import numpy as np
import pytest
import torch

import focoop
from focoop.config import RunConfig, loading
from focoop.experiments import comparison
from focoop.features import FeatureSet
from focoop.scenario import left_out
from focoop.scenario.split import Split
from tests.toy_setting import toy_plan

LABELS = [0] * 6 + [1] * 3 + [2] * 20
NAMES = ("Aachen", "Bonn", "Köln", "Hagen")


def divided(*rows: list[int], views: int = 0) -> Split:
    """Images with these labels, divided by their numbers."""
    labels = torch.tensor(LABELS * (1 + views))
    images = FeatureSet(torch.zeros(len(labels), 2), None, labels, ("ant", "bee", "cow"))
    index = [
        np.concatenate([np.array(own, dtype=np.int64) + v * len(LABELS) for v in range(1 + views)])
        for own in rows
    ]
    return Split(images, images, index, [np.zeros(0, np.int64)] * len(rows), 0, None, views=views)


def settings(*overrides: str) -> RunConfig:
    return loading.load(None, list(overrides))


SPLIT = divided([0, 1, 2, 3, 4, 6, 7], [5, 5, 5, 5, 5, 8], [], [*range(9, 29)])
EMPTY = "no training images at 1 of 4 clients (Köln): they take no part"


@pytest.mark.parametrize("views", [0, 2])
def test_classes_below_the_least_number_are_counted_and_silent_clients_named(views: int) -> None:
    split = divided([0, 1, 2, 3, 4, 6, 7], [5] * 5 + [8], [], [*range(9, 29)], views=views)
    notes = left_out(settings("method.name=fedlda", "method.least_images=5"), split, NAMES)
    # Bonn's five rows of class 0 are one image five times.
    assert notes == [
        EMPTY,
        "fedlda sends nothing of a class with fewer than 5 different images: 3 of 5 classes of "
        "clients, 4 of 29 images; nothing at all of 1 of 4 clients (Bonn). To send them: "
        "method.least_images=1",
        "fedlda does not send how images vary at 1 of 4 clients (Aachen): fewer than 16 images "
        "beyond one of each class (method.least_freedom)",
    ]


@pytest.mark.parametrize(
    ("method", "told"),
    [("fedlda", [EMPTY]), ("promptfl", [EMPTY]), ("centralized", []), ("zeroshot", [])],
)
def test_without_a_least_number_nothing_but_empty_clients_is_left_out(
    method: str, told: list[str]
) -> None:
    assert left_out(settings(f"method.name={method}"), SPLIT, NAMES) == told


def test_many_clients_are_not_all_named() -> None:
    (note,) = left_out(settings("method.name=promptfl"), divided(*[[]] * 9, [0]), [*"abcdefghij"])
    assert note.startswith("no training images at 9 of 10 clients (a, b, c, d, e and 4 more)")


def test_a_run_a_table_and_a_report_say_what_was_left_out(tmp_path: Path) -> None:
    cells = toy_plan(tmp_path, "fedlda,fedlda:least_images=5", (0, 1))
    cells = [cell for cell in cells if cell.label != "fedlda"]
    with pytest.warns(UserWarning, match="fedlda sends nothing of a class with fewer than 5"):
        outcomes = comparison.run(cells, jobs=0)
    folder = cells[0].folder
    (note,) = focoop.open_run(folder).notes
    assert "4 of 4 classes of clients, 8 of 8 images; nothing at all of 2 of 2" in note
    assert "fedlda sends nothing" in (folder / "log.txt").read_text()
    (rows,) = comparison.grouped(outcomes).values()
    lines = comparison.markdown("toy", rows).splitlines()
    assert f"- fedlda:least_images=5, seeds 0, 1: {note}" in lines
    page = focoop.write_report(tmp_path / "out", tmp_path / "r.html", details=False).read_text()
    assert f", seed 1: {note}</li>" in page


def test_closed_forms_learn_from_every_image_unless_told_otherwise(tmp_path: Path) -> None:
    """Two images of a class: nothing was learned from them by default, and nobody was told."""
    cells = toy_plan(tmp_path, "fedncm,fedlda,fed3r,focoop_plus,fedncm:least_images=3", (0,))
    with pytest.warns(UserWarning, match="fedncm sends nothing"):
        *given, none = (found.summary for found in comparison.run(cells, jobs=0))
    chance = none["accuracy_all"]  # no class has a mean: all answers are one of a client's own
    assert min(found["accuracy_all"] for found in given) > chance + 0.2
