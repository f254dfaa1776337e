"""What is written of an item: its numbers and remarks, as tables, JSON and figures."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from focoop.config import override_tree
from focoop.errors import MissingExtra
from focoop.experiments import Outcome
from focoop.paper.documents import Numbers
from focoop.paper.figures import draw, draw_map, similarity
from focoop.paper.items import Item, paper_name
from focoop.paper.numbers import Entry, blocks, entries, seeds_span
from focoop.paper.planning import Choices, Planned
from focoop.paper.writing import Remarks, csv_text, latex, markdown
from focoop.runs import plain, write

UNTOLD = ("device", "weights", "root")  # of a machine, not of a result


def collect_numbers(
    item: Item, plans: Sequence[Planned], outcomes: Mapping[str, Outcome], choices: Choices
) -> Numbers:
    """Put the numbers of an item together.

    Args:
        item: The item.
        plans: Its runs.
        outcomes: What became of them, by folder.
        choices: What the user decided.

    Returns:
        Its numbers and remarks.
    """
    found = entries(item, plans, outcomes, choices.methods or item.methods)
    known = [
        outcomes[str(cell.folder)]
        for one in plans
        for cell in one.cells
        if str(cell.folder) in outcomes
    ]
    lacking = [f"{one.part.name}: missing: {one.short}" for one in plans if one.lacks]
    lacking += [
        f"{one.part.name}: run without OOD sets that are missing: {', '.join(one.left_out)}"
        for one in plans
        if one.left_out
    ]
    remarks = Remarks(
        " ".join([_made_with(item, choices, known), *_patches(known, choices)]),
        [*item.notes, *_unfinished(plans, known)],
        lacking,
        [_failure(outcome, choices.out) for outcome in known if outcome.status == "failed"],
    )
    return Numbers(item, tuple(found), remarks)


def write_numbers(
    numbers: Numbers, choices: Choices, folders: Mapping[str, Path] | None = None
) -> list[Path]:
    """Write the tables and figures of an item, where it has a number.

    Args:
        numbers: The numbers.
        choices: What the user decided: the folder, kinds of figures, and what captions say.
        folders: A finished run of each part that has one, by the part's name, for maps.

    Returns:
        The files.
    """
    item, found = numbers.item, numbers.entries
    if not any(one.ours is not None for one in found):
        return []
    texts = {
        "md": markdown(item, found, numbers.remarks),
        "tex": latex(item, found, numbers.remarks),
        "csv": csv_text(item, found),
        "json": json.dumps(numbers.document(), indent=1) + "\n",
    }
    files = []
    for kind, text in texts.items():
        files.append(choices.out / f"{item.name}.{kind}")
        write(files[-1], text.encode())
    with suppress(MissingExtra):  # the tables are there; figures need the extra `plot`
        files += draw_numbers(numbers, choices)
        files += _maps(item, folders or {}, choices) if item.figure == "map" else ()
    return files


def draw_numbers(numbers: Numbers, choices: Choices) -> list[Path]:
    """Draw every part of an item.

    Args:
        numbers: The numbers.
        choices: What the user decided.

    Returns:
        The figures.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    item, files = numbers.item, []
    parts = blocks(item, numbers.entries)
    for part, members in parts.items():
        stem = choices.out / (item.name if len(parts) == 1 else f"{item.name}-{_slug(part)}")
        files += draw(item, _title(item, part, choices, members), members, stem, choices.formats)
    return files


def _maps(item: Item, folders: Mapping[str, Path], choices: Choices) -> Iterator[Path]:
    for part, folder in folders.items():
        stem = choices.out / f"{item.name}-{_slug(part)}"
        found = similarity(folder)
        yield from draw_map(_title(item, part, choices), found, stem, choices.formats)
        path = stem.with_name(f"{stem.name}.csv")
        write(path, found.to_csv().encode())
        yield path


def _title(item: Item, part: str, choices: Choices, members: Sequence[Entry] = ()) -> str:
    told = [item.backbone or choices.backbone, "packaged images" if choices.packaged else ""]
    told.append(seeds_span(members))
    return f"{item.name}: {part} ({', '.join(filter(None, told))})"


def _slug(name: str) -> str:
    return "-".join("".join(c if c.isalnum() or c in "=." else " " for c in name).split())


def _made_with(item: Item, choices: Choices, known: Sequence[Outcome]) -> str:
    """Backbone, finished seeds, data and what the user changed, in one or two sentences."""
    data = ", packaged images" if choices.packaged else ""
    done = {one.cell.config.seed for one in known if one.status == "finished"}
    seeds = [seed for seed in choices.seeds if seed in done] or choices.seeds
    told = f"Backbone {item.backbone or choices.backbone}, seed{'s'[: len(seeds) > 1]} "
    told += f"{', '.join(map(str, seeds))}{data}."
    changed = [text for over in choices.overrides for text in _told(override_tree(over))]
    return f"{told} Changed: {', '.join(changed)}." if changed else told


def _patches(found: Sequence[Outcome], choices: Choices) -> list[str]:
    """What captions say of methods that read patch features, which not all images have."""
    labels = [one.cell.label for one in found if one.cell.config.data.with_patches]
    if not labels:
        return []
    names = ", ".join(map(paper_name, dict.fromkeys(labels)))
    images = "the packaged images" if choices.packaged else "the images"
    told = f"{names}: only {images} that have patch features"
    corrupted = "; packaged corrupted images have none, so there is no number for them"
    return [f"{told}{corrupted if choices.packaged else ''}."]


def _unfinished(plans: Sequence[Planned], found: Sequence[Outcome]) -> list[str]:
    """A note on means over fewer runs than seeds."""
    done = {str(one.cell.folder) for one in found if one.status == "finished"}
    told = []
    for plan in plans:
        count = sum(str(cell.folder) in done for cell in plan.cells)
        if 0 < count < len(plan.cells):
            told.append(f"{plan.part.name}: {count} of {len(plan.cells)}")
    if not told:
        return []
    return [
        f"Not all runs are finished ({'; '.join(told)}); a mean without a deviation is of one run."
    ]


def _told(tree: Mapping[str, Any]) -> list[str]:
    texts = []
    for section, values in tree.items():
        pairs = values.items() if isinstance(values, Mapping) else [("", values)]
        for name, value in pairs:
            if name not in UNTOLD:
                shown = plain(getattr(value, "raw", value))
                texts.append(f"{section}.{name}".rstrip(".") + f"={shown}")
    return texts


def _failure(outcome: Outcome, out: Path) -> str:
    folder = outcome.cell.folder
    where = folder.relative_to(out) if folder.is_relative_to(out) else folder
    return f"{where}: {(outcome.error.strip() or 'unknown error').splitlines()[-1]}"
