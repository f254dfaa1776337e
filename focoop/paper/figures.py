"""Figures of an item: bars, lines over a sweep, or a map of similarities, as SVG, PNG or PDF."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from focoop.errors import ConfigError
from focoop.experiments import (
    COLOURS,
    FORMATS,
    OpenedRun,
    draw_lines,
    new_figure,
    open_state,
    save_figure,
)
from focoop.paper.items import Item
from focoop.paper.numbers import Entry
from focoop.paper.writing import lower_is_better
from focoop.runs import RunFolder

Array = np.ndarray[Any, Any]
ACROSS, WIDTH = 2, 3.4  # panels side by side and inches of each: a page has room for no more
MANY, NARROW = 8, 2.3  # from so many panels on three stand side by side, so many inches each
SPAN = 5.0  # percent that an axis of lines spans at least: less would show noise as a trend
IMAGES = 100  # of a class, in a map of similarities
OURS, THEIRS = COLOURS[0], COLOURS[1]
NAMED = 30  # rows of a map whose names are readable


def draw(
    item: Item,
    title: str,
    found: Sequence[Entry],
    stem: Path,
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Draw one part of an item, where it has a number of ours.

    Args:
        item: The item; its `figure` says how.
        title: What stands above the figure.
        found: The part's numbers.
        stem: The files' path without the ending.
        formats: Kinds of files.

    Returns:
        The figures; none where there is nothing to draw.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    there = [one for one in found if one.ours is not None]
    if not there or item.figure not in ("bars", "lines"):
        return []
    columns = list(dict.fromkeys(one.column for one in there))
    bars, many = item.figure == "bars", len(columns) >= MANY
    across = ACROSS + 1 if many else min(ACROSS, len(columns))
    down = math.ceil(len(columns) / across)
    methods = len(dict.fromkeys(one.method for one in there))
    tall = 0.6 + 0.24 * methods if bars else 3.0
    figure = new_figure((NARROW if many else WIDTH) * across + 0.6, tall * down + 0.9)
    # Bars name the methods once a row, and the percents below the lowest panels.
    shared = {"sharex": bars, "sharey": bars}
    panels = np.ravel(np.asarray(figure.subplots(down, across, squeeze=False, **shared)))
    for axes, column in zip(panels, columns, strict=False):
        members = [one for one in there if one.column == column]
        if bars:
            _bars(axes, members, "↓" if lower_is_better(item, column) else "↑")
        else:
            _lines(axes, members)
    for at in range(len(columns), len(panels)):
        panels[at].set_axis_off()
        panels[at - across].tick_params(labelbottom=True)
    handles: dict[str, Any] = {}
    for axes in panels[: len(columns)]:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        if axes.get_legend() is not None:
            axes.get_legend().remove()  # one for all panels, where it hides nothing
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=8)
    figure.suptitle(title, fontsize=10)
    return save_figure(figure, stem, formats)


def _bars(axes: Any, members: Sequence[Entry], better: str) -> None:
    """A bar per method, the deviation as a whisker, the paper's value as a mark."""
    places = list(range(len(members)))
    means = [one.ours.mean for one in members if one.ours is not None]
    spreads = [(one.ours.spread or 0.0) for one in members if one.ours is not None]
    axes.barh(places, means, xerr=spreads, color=OURS, height=0.6, label="ours")
    theirs = [(one.published, at) for at, one in enumerate(members) if one.published is not None]
    if theirs:
        x, y = zip(*theirs, strict=True)
        axes.plot(x, y, "D", color=THEIRS, markersize=5, label="paper")
    axes.set_yticks(places, [one.method for one in members])
    axes.set_ylim(len(members) - 0.5, -0.5)
    axes.set_xlim(0, 105)
    axes.set_title(f"{members[0].column}, % {better}", fontsize=9)
    axes.set_axisbelow(True)
    axes.grid(axis="x", alpha=0.3)


def _lines(axes: Any, members: Sequence[Entry]) -> None:
    """A line per method over the swept setting; the paper's values are hollow marks."""
    key = members[0].key
    rows = [
        {key: one.point, "method": one.method, "mean": one.ours.mean, "std": one.ours.spread}
        for one in members
        if one.ours is not None
    ]
    places = draw_lines(axes, rows, key)
    order = list(dict.fromkeys(one.method for one in members))
    for one in members:
        if one.published is not None:
            colour = COLOURS[order.index(one.method) % len(COLOURS)]
            axes.plot(
                [places[one.point]],
                [one.published],
                "D",
                markerfacecolor="none",
                markeredgecolor=colour,
                label="paper (hollow)",
            )
    axes.set_ylabel(f"{members[0].column}, %")
    low, high = axes.get_ylim()
    if high - low < SPAN:
        middle = max((low + high) / 2, SPAN / 2 - 0.2)  # not below zero
        axes.set_ylim(middle - SPAN / 2, middle + SPAN / 2)


@dataclass(frozen=True)
class Similarity:
    """How near images of each class are to every prompt of a run.

    Attributes:
        values: (C, C + U) mean cosines over up to `IMAGES` test images of a class and over the
            clients' models.
        classes: The classes.
        prompts: The prompts: the classes', then the OOD prompts.
    """

    values: Array
    classes: tuple[str, ...]
    prompts: tuple[str, ...]

    def to_csv(self) -> str:
        """Return a line per class, with a head; `read_similarity` reads it."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["images of", *self.prompts])
        for name, row in zip(self.classes, self.values.tolist(), strict=True):
            writer.writerow([name, *(f"{value:.6f}" for value in row)])
        return stream.getvalue()


def read_similarity(path: Path) -> Similarity:
    """Read what `Similarity.to_csv` wrote.

    Args:
        path: The file.

    Returns:
        The similarities.

    Raises:
        ConfigError: The file holds something else.
    """
    try:
        head, *rows = csv.reader(path.read_text(encoding="utf-8").splitlines())
        values = np.array([[float(value) for value in row[1:]] for row in rows])
        if values.shape != (len(rows), len(head) - 1):
            raise ValueError("lines of different lengths")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} holds no similarities: {error}") from error
    return Similarity(values, tuple(row[0] for row in rows), tuple(head[1:]))


def similarity(folder: Path) -> Similarity:
    """Return the mean cosine of images of each class with every prompt of a run.

    Args:
        folder: The run's folder.

    Returns:
        The similarities.
    """
    state = open_state(RunFolder.open(folder), test_only=False)
    images = state.scenario.sets.test.images
    labels = images.labels.cpu()
    classes = tuple(state.scenario.task.classes)
    chosen = [torch.nonzero(labels == number).flatten()[:IMAGES] for number in range(len(classes))]
    means = torch.stack(
        [F.normalize(images.pooled[rows].float(), dim=-1).mean(0) for rows in chosen]
    )
    clients = len(state.scenario.sets.test.index)
    total = torch.stack([_cosines(state, client, means) for client in range(clients)]).mean(0)
    ood = tuple(f"OOD {number + 1}" for number in range(total.shape[1] - len(classes)))
    return Similarity(total.numpy(), classes, (*classes, *ood))


def _cosines(state: OpenedRun, client: int, means: torch.Tensor) -> torch.Tensor:
    """Cosines (C, C + U) of mean image features with a client's class and OOD prompts."""
    with torch.no_grad():
        text = state.scenario.method.encode(state.params(client), state.scenario.task)
        prompts = text.id if text.ood is None else torch.cat([text.id, text.ood])
    return means @ F.normalize(prompts.float().cpu(), dim=-1).T


def draw_map(
    title: str, found: Similarity, stem: Path, formats: Sequence[str] = FORMATS
) -> list[Path]:
    """Draw the similarities of a finished run.

    Args:
        title: What stands above the figure.
        found: The similarities.
        stem: The files' path without the ending.
        formats: Kinds of files.

    Returns:
        The figures.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    classes, prompts = found.classes, found.prompts
    figure = new_figure(2.5 + 0.2 * min(len(prompts), NAMED), 1.8 + 0.2 * min(len(classes), NAMED))
    axes = figure.subplots()
    image = axes.imshow(found.values, cmap="cividis", aspect="auto")
    axes.axvline(len(classes) - 0.5, color="white", linewidth=2)
    if len(prompts) <= NAMED:
        axes.set_xticks(range(len(prompts)), prompts, rotation=90, fontsize=7)
    if len(classes) <= NAMED:
        axes.set_yticks(range(len(classes)), classes, fontsize=7)
    axes.set_xlabel("prompts: classes | OOD")
    axes.set_ylabel("images of a class")
    figure.colorbar(image, label="mean cosine")
    figure.suptitle(title, fontsize=10)
    return save_figure(figure, stem, formats)
