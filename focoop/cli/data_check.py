"""How `focoop data check` shows what it found: counts by reason, and some files of each."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from focoop.cli.console import Screen

if TYPE_CHECKING:
    from focoop.data import Report, Row

SHOWN = 3  # files named per reason
CLASSES = 20  # classes that are listed


def as_document(report: "Report") -> dict[str, Any]:
    """Return a report as JSON can write it, with every file.

    Args:
        report: The report.

    Returns:
        Plain values.
    """
    return {
        "images": len(report.images),
        "classes": len(report.images.classes),
        "splits": dict(report.splits),
        "groups": dict(report.groups),
        "labels": dict(report.labels),
        "formats": dict(report.formats),
        "broken": report.reasons,
        "warnings": list(report.warnings),
        "notes": list(report.notes),
        "remarks": {text: list(files) for text, files in report.remarks.items()},
        "left_out": {text: list(files) for text, files in report.left_out.items()},
        "repeated": {
            text: [[row._asdict() for row in same] for same in groups]
            for text, groups in report.repeated.items()
        },
    }


def show_report(report: "Report", console: Screen) -> None:
    """Print a report: what is wrong first, and the counts as the last line.

    Args:
        report: The report.
        console: Where to print.
    """
    repeated = {
        text: [" = ".join(f"{row.file} ({_place(row)})" for row in same) for same in groups]
        for text, groups in report.repeated.items()
    }
    console.print(f"in {report.images.root}")
    for warning in report.warnings:
        console.print(f"warning: {warning}", hang=2)
    for note in report.notes:
        console.print(f"note: {note}", hang=2)
    parts: Sequence[tuple[str, Mapping[str, Sequence[str]]]] = (
        ("cannot be read", report.broken),
        ("repeated, byte for byte", repeated),
        ("read with a remark", report.remarks),
        ("files that are not among the images", report.left_out),
    )
    for title, reasons in parts:
        _show_part(console, title, reasons)
    if any(len(files) > SHOWN for _, reasons in parts for files in reasons.values()):
        console.print("(--json names every file)", style="dim")
    for title, counts in (
        ("formats", _by_count(report.formats)),
        ("splits", list(report.splits.items())),
        ("clients or domains", list(report.groups.items())),
        ("classes", sorted(report.labels.items())),
    ):
        if counts:
            listing = ", ".join(f"{count} {name}" for name, count in counts[:CLASSES])
            more = f", and {len(counts) - CLASSES} more" if len(counts) > CLASSES else ""
            console.print(f"{title}: {listing}{more}", hang=2)
    wrong = sum(map(len, report.broken.values()))
    count, classes = len(report.images), len(report.images.classes)
    plural = "class" if classes == 1 else "classes"
    console.print(f"{count} images, {classes} {plural}, {wrong} cannot be read")


def _place(row: "Row") -> str:
    """Where an image is, in words: its class, and its split and client where it has them."""
    return ", ".join(filter(None, (row.label, row.split, row.group)))


def _show_part(console: Screen, title: str, reasons: Mapping[str, Sequence[str]]) -> None:
    """A title, the number of files under each reason, and some of them."""
    if not reasons:
        return
    console.print(f"{title}: {sum(map(len, reasons.values()))}", style="bold")
    wide = max(len(str(len(files))) for files in reasons.values())
    inside = " " * (wide + 6)
    for reason, files in reasons.items():
        start = f"  {len(files):>{wide}}  "
        console.print(f"{start}{reason}", hang=len(start))
        for file in files[:SHOWN]:
            console.print(f"{inside}{file}", style="dim", hang=len(inside) + 2)
        if len(files) > SHOWN:
            console.print(f"{inside}and {len(files) - SHOWN} more", style="dim")


def _by_count(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
