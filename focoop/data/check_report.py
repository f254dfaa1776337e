"""Look at every image file of a dataset for `focoop data check`, and sort what is found."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from focoop.data import client_folders
from focoop.data.class_names import FILES
from focoop.data.content_hash import file_hashes
from focoop.data.depth import bits, whites_of
from focoop.data.folder_tree import OUTSIDE, walk
from focoop.data.folders import ALL, folder_splits
from focoop.data.formats import ARCHIVE, BARE, HIDDEN, OTHER, SYSTEM, UNREAD
from focoop.data.image_set import ImageSet
from focoop.data.sources import (
    OWN,
    advice,
    doubts,
    held_out_note,
    open_images,
    splits_of,
    validated_note,
)
from focoop.data.unreadable import Finding, examine, nearly_black
from focoop.errors import DataError

NESTED = "in a folder below a class folder: read as that class"
UNLISTED = "images that the table of their client does not list"
NO_SPLIT = "without a split"
TWO_CLASSES = "the same image in several classes"
TWO_SPLITS = "the same image in several splits"
TWO_CLIENTS = "the same image at several clients or domains"
TWICE = "the same image several times in one class"
LEFT_OUT = (
    OUTSIDE,
    UNLISTED,
    UNREAD,
    ARCHIVE,
    BARE,
    OTHER,
    SYSTEM,
    HIDDEN,
)  # the likeliest losses first
REPETITIONS = (TWO_CLASSES, TWO_SPLITS, TWO_CLIENTS, TWICE)  # the worst first


class Row(NamedTuple):
    """One image of a dataset by where it is; empty where there are no splits or groups.

    Attributes:
        file: its path below the root of the set.
        label: name of its class.
        split: its split.
        group: its domain or client.
    """

    file: str
    label: str
    split: str
    group: str


@dataclass(frozen=True)
class Report:
    """What there is to tell about a dataset.

    Attributes:
        images: the images that were looked at.
        splits: split -> number of images; empty without splits.
        groups: domain or client -> number of images; empty without any.
        labels: class -> number of images.
        formats: format -> number of images that can be read.
        broken: reason -> files that cannot be read.
        remarks: what is done to files that their owner may want to know -> those files.
        left_out: reason -> files of the folder that are not among the images.
        repeated: how -> groups of images whose files are equal byte for byte.
        warnings: what is doubtful about labels and splits, a sentence or two each.
        notes: what clients are tested on where that is not plain, a sentence each.
    """

    images: ImageSet
    splits: Mapping[str, int]
    groups: Mapping[str, int]
    labels: Mapping[str, int]
    formats: Mapping[str, int]
    broken: Mapping[str, Sequence[str]]
    remarks: Mapping[str, Sequence[str]]
    left_out: Mapping[str, Sequence[str]]
    repeated: Mapping[str, Sequence[Sequence[Row]]]
    warnings: Sequence[str]
    notes: Sequence[str] = ()

    @property
    def reasons(self) -> dict[str, str]:
        """Return for each file that cannot be read why it cannot."""
        return {file: reason for reason, files in self.broken.items() for file in files}


def inspect(
    kind: str,
    target: str,
    split: str = ALL,
    root: str | Path | None = None,
    *,
    test_share: float = 0.2,
) -> Report:
    """Look at every image of a dataset, and at the files beside them.

    Args:
        kind: the kind of source, such as `folder`; `name` for a public dataset.
        target: its path or name.
        split: a split of it, or `all`.
        root: folder of public datasets; None is the usual one.
        test_share: the share that a run holds out as test where images have no splits.

    Returns:
        What there is to tell.

    Raises:
        DataError: the dataset is not there, or its layout is not understood.
    """
    clients = kind in OWN and client_folders.clients_of(kind, Path(target).expanduser())
    by = "client" if clients else "domain"
    images = open_images(kind, target, split, root=root, by=by, check=False)
    findings = examine(images)
    rows = _rows(kind, target, by, images)
    readable = [
        row for row, file in enumerate(images.files) if findings and not findings[file].reason
    ]
    return Report(
        images=images,
        splits=_split_counts(rows),
        groups=Counter(row.group for row in rows if row.group),
        labels=Counter(row.label for row in rows),
        formats=Counter(findings[images.files[row]].format for row in readable),
        broken=_grouped(
            (finding.reason, file) for file, finding in findings.items() if finding.reason
        ),
        remarks={
            **_deep(images, findings),
            **_grouped(
                (text, file) for file, finding in findings.items() for text in finding.remarks
            ),
            **_nested(kind, target, images),
        },
        left_out=_left_out(kind, target, by),
        repeated=_repeated(rows, images.take(readable)) if readable else {},
        warnings=doubts(kind, target, by),
        notes=_notes(kind, target, test_share) if by == "client" else (),
    )


def _notes(kind: str, target: str, test_share: float) -> list[str]:
    """What clients are tested on where that is not plain."""
    try:
        advice(kind, target, "client")
        notes = [
            held_out_note(kind, target, test_share, "client"),
            validated_note(kind, target, "client"),
        ]
    except DataError:  # nothing can be learned from these images, and the warnings say why
        return []
    return [note for note in notes if note]


def _rows(kind: str, target: str, by: str, images: ImageSet) -> list[Row]:
    """The rows of a set with their splits, where it has some and all are looked at."""
    names = splits_of(kind, target, by) if images.split == ALL else ()
    parts = [images]
    if names and not images.splits:
        parts = [open_images(kind, target, name, by=by, check=False) for name in names]
    rows = []
    for part in parts:
        splits = part.splits or [part.split] * len(part)
        groups = [part.domain_names[group] for group in part.domains] or [""] * len(part)
        for file, label, split, group in zip(part.files, part.labels, splits, groups, strict=True):
            rows.append(Row(file, part.classes[label], split if names else "", group))
    return rows


def _split_counts(rows: Sequence[Row]) -> dict[str, int]:
    """Split -> number of images, those of clients without splits last; empty without splits."""
    count = Counter(row.split for row in rows)
    free = count.pop("", 0)
    return {**dict(sorted(count.items())), **({NO_SPLIT: free} if count and free else {})}


def _deep(images: ImageSet, findings: Mapping[str, Finding]) -> dict[str, list[str]]:
    """How deep images are scaled -> those images, for each client or domain, or for the set."""
    remarks: dict[str, list[str]] = {}
    groups = images.domains or [0] * len(images)
    for number, name in enumerate(images.domain_names or ("",)):
        tops = {
            file: top
            for file, group in zip(images.files, groups, strict=True)
            if group == number and file in findings and (top := findings[file].top) is not None
        }
        where = f" of {name}" if name else ""
        whites = whites_of(tops.values())
        for kind, white in ((int, whites.integers), (float, whites.floats)):
            some = [file for file, top in tops.items() if isinstance(top, kind)]
            if not some:
                continue
            dark = nearly_black([tops[file] for file in some])
            also = f"; {dark} of them use far fewer and come out nearly black" if dark else ""
            top = max(tops[file] for file in some)
            text = (
                f"files{where} of more than 8 bits, values up to {top:.6g}: read as "
                f"{bits(white)}{also}"
            )
            remarks[text] = some
    return remarks


def _nested(kind: str, target: str, images: ImageSet) -> dict[str, list[str]]:
    """Images below the folders of their classes."""
    path = Path(target).expanduser()
    if kind == "folder":
        depth = 2 if folder_splits(path) == (ALL,) else 3
        deeper = [file for file in images.files if file.count("/") >= depth]
    elif kind == "clients":
        listed = client_folders.listings(path)
        splits = images.splits or [""] * len(images)
        deeper = [
            file
            for file, split in zip(images.files, splits, strict=True)
            if file.count("/") >= (4 if split else 3) and file.split("/")[0] not in listed
        ]
    else:
        return {}
    return {NESTED: deeper} if deeper else {}


def _left_out(kind: str, target: str, by: str) -> dict[str, tuple[str, ...]]:
    """Reason -> files of a folder that are no images of its set."""
    if kind not in ("folder", "clients"):
        return {}
    path = Path(target).expanduser()
    files = walk(path)
    listed = client_folders.listings(path) if by == "client" else {}
    known = set(open_images(kind, target, ALL, by=by, check=False).files)
    lost = [file for file in files.images if file not in known]
    unlisted = tuple(file for file in lost if file.split("/")[0] in listed)
    tables = {f"{client}/{name}" for client, name in listed.items()}
    if by == "client":  # a client may name its classes
        tables |= {f"{client.name}/{name}" for client in path.iterdir() for name in FILES}
    by_reason = {
        OUTSIDE: tuple(file for file in lost if file not in unlisted),
        UNLISTED: unlisted,
        **{
            reason: tuple(file for file in some if file not in tables)
            for reason, some in files.others.items()
        },
    }
    return {reason: by_reason[reason] for reason in LEFT_OUT if by_reason.get(reason)}


def _repeated(rows: Sequence[Row], readable: ImageSet) -> dict[str, list[list[Row]]]:
    """How images are repeated -> groups of images with the same content."""
    content = dict(zip(readable.files, file_hashes(readable), strict=True))
    same: dict[str, list[Row]] = {}
    for row in rows:
        if row.file in content:
            same.setdefault(content[row.file], []).append(row)
    repetitions: dict[str, list[list[Row]]] = {}
    for group in same.values():
        if len(group) < 2:
            continue
        several = {
            TWO_CLASSES: {row.label for row in group},
            TWO_SPLITS: {row.split for row in group},
            TWO_CLIENTS: {row.group for row in group},
        }
        for how in [how for how, values in several.items() if len(values) > 1] or [TWICE]:
            repetitions.setdefault(how, []).append(group)
    return {how: repetitions[how] for how in REPETITIONS if how in repetitions}


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Text -> files, the most frequent text first."""
    files_by_text: dict[str, list[str]] = {}
    for text, file in pairs:
        files_by_text.setdefault(text, []).append(file)
    return dict(sorted(files_by_text.items(), key=lambda item: -len(item[1])))
