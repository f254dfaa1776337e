"""Open images by the name a configuration gives them: a public dataset, a folder, a CSV, a hub."""

import warnings
from collections.abc import Sequence
from pathlib import Path

from focoop.data import client_folders, hub, registry, tables
from focoop.data.class_names import NAMES
from focoop.data.dataset_spec import Source
from focoop.data.folder_tree import lost, walk
from focoop.data.folders import ALL, SPLITS, folder_splits, has_domains, read_folder
from focoop.data.image_set import ImageSet
from focoop.data.labels import label_warnings, refuse_classes
from focoop.data.splits import whole
from focoop.data.unreadable import sift
from focoop.errors import DataError

OWN = ("folder", "clients", "csv")
_warned: set[str] = set()  # what was said already: a run opens a set several times


def open_images(
    kind: str,
    target: str,
    split: str,
    *,
    root: str | Path | None = None,
    by: str = "domain",
    strict: bool = False,
    check: bool = True,
    cache_dir: Path | None = None,
) -> ImageSet:
    """Open one split of a source of images.

    Args:
        kind: The kind of source, such as `folder`; `name` for a public dataset.
        target: Its path or name.
        split: The split.
        root: The folder of public datasets; None: the default one.
        by: What the groups of rows are: `domain`, or `client` where clients were given.
        strict: Refuse files of a user's own that cannot be read, instead of leaving them out with a
            warning.
        check: Look whether files can be read.
        cache_dir: The folder of the cache; None: the default one.

    Returns:
        The images.
    """
    if kind == "name":
        return registry.read(target, split, root)
    if kind == "hf":
        return hub.read_hub(target, split)
    path = Path(target).expanduser()
    table = _table(kind, path, by)

    def pick(part: str) -> ImageSet:
        return read_folder(path, part) if table is None else table.pick(part)

    images = pick(split)
    if not check:
        return images
    if kind != "csv":
        _warn_of_lost(path, pick(ALL))
    return sift(images, strict, cache_dir, whole=lambda: pick(ALL))


def _warn_of_lost(path: Path, images: ImageSet) -> None:
    """Warn of files in a folder that their owner may take for images of the set."""
    files = walk(path)
    outside = len(set(files.images) - set(images.files))
    what = "image" if outside == 1 else "images"
    unused = [f"{outside} {what} in no class folder or table"] if outside else []
    unused += [lost(files.others)] if lost(files.others) else []
    text = (
        f"{path} holds files that are not used: {' and '.join(unused)}; "
        "focoop data check names them"
    )
    if unused and text not in _warned:
        _warned.add(text)
        warnings.warn(text, stacklevel=3)


def splits_of(kind: str, target: str, by: str = "domain") -> tuple[str, ...]:
    """Return the splits of a user's own images.

    Args:
        kind: The kind of source, such as `folder`.
        target: Its path.
        by: `domain`, or `client` where clients are given.

    Returns:
        Their names; empty where there are none, or where they are not known.
    """
    if kind not in OWN:
        return ()
    path = Path(target).expanduser()
    table = _table(kind, path, by)
    if table is not None:
        return table.splits
    return tuple(name for name in folder_splits(path) if name in SPLITS)


def is_divided(kind: str, target: str, by: str = "domain", *, need_test: bool = True) -> bool:
    """Say whether a source comes divided into training and test images.

    Args:
        kind: the kind of source, such as `folder`; other than a user's own, it is divided.
        target: its path.
        by: `domain`, or `client` where clients are given.
        need_test: whether test images are needed.

    Returns:
        False where the images, or those of some clients, are one set, of which a run holds some
        out.

    Raises:
        DataError: one of training and test images is there without the other.
    """
    if kind not in OWN:
        return True
    table = _table(kind, Path(target).expanduser(), by)
    if table is not None and table.undivided:
        return False
    splits = splits_of(kind, target, by) if table is None else table.splits
    return whole(f"{kind}:{target}", splits, need_test=need_test)


def undivided(kind: str, target: str, by: str = "domain") -> tuple[str, ...]:
    """Clients without training and test images apart, where other clients have them.

    Args:
        kind: the kind of source, such as `clients`.
        target: its path.
        by: `domain`, or `client` where clients are given.

    Returns:
        Names of the clients.
    """
    table = _table(kind, Path(target).expanduser(), by) if kind in OWN else None
    return () if table is None else table.undivided


def row_splits(
    spec: str, strict: bool, drop_classes: Sequence[str], cache_dir: Path | None
) -> tuple[str, ...]:
    """The split of every image where some clients have splits and others none; else nothing.

    Args:
        spec: the dataset's name, such as `clients:sites`.
        strict: refuse files that cannot be read.
        drop_classes: classes whose images do not count.
        cache_dir: where findings about files are remembered; None is the usual cache folder.

    Returns:
        One split, or the empty string, per image, as all of them are opened by client.
    """
    source = Source.parse(spec)
    if not undivided(source.kind, source.target, "client"):
        return ()
    images = open_images(
        source.kind, source.target, ALL, by="client", strict=strict, cache_dir=cache_dir
    )
    return images.without_classes(drop_classes).splits


def validated_note(kind: str, target: str, by: str = "domain") -> str:
    """Say which clients are tested on their validation images.

    Args:
        kind: the kind of source, such as `clients`.
        target: its path.
        by: `domain`, or `client` where clients are given.

    Returns:
        A sentence; empty where there are no such clients.
    """
    table = _table(kind, Path(target).expanduser(), by) if kind in OWN else None
    if table is None or not table.validated:
        return ""
    return f"{kind}:{target}: val images are the test images at {', '.join(table.validated)}"


def held_out_note(kind: str, target: str, share: float, by: str = "domain") -> str:
    """Say which share of a user's own images is held out as test; empty where none is.

    Args:
        kind: the kind of source, such as `folder`.
        target: its path.
        share: the setting `data.test_share`.
        by: `domain`, or `client` where clients are given.

    Returns:
        A sentence; empty where none is held out.
    """
    if is_divided(kind, target, by, need_test=False):
        return ""
    lacking = "no column split" if kind == "csv" else "no train/test folders"
    some = undivided(kind, target, by)
    where, there = (f" at {', '.join(some)}", " there") if some else ("", "")
    return (
        f"{kind}:{target}: {lacking}{where}: held out {share:.0%} of each class{there} as test "
        "(data.test_share)"
    )


def refuse_domains(target: str) -> None:
    """Refuse a folder whose first level is neither splits nor classes.

    Args:
        target: the folder's path.

    Raises:
        DataError: its first-level folders are taken as domains; the message says what to do.
    """
    path = Path(target).expanduser()
    if "all" not in folder_splits(path):
        read_folder(path, "train")


def advice(kind: str, target: str, by: str = "domain") -> list[str]:
    """Look at the classes of images that a run is to learn.

    Args:
        kind: the kind of source, such as `folder`; nothing is said of other than a user's own.
        target: its path.
        by: `domain`, or `client` where clients are given.

    Returns:
        What is doubtful, one sentence or two each: names that are no words, two spellings.

    Raises:
        DataError: the images have no classes, or a class is called as if it had no label.
    """
    if kind not in OWN:
        return []
    images, remarks = _classes_and_doubts(kind, target, by)
    refuse_classes(images, f"{kind}:{target}")
    return remarks


def _classes_and_doubts(kind: str, target: str, by: str) -> tuple[ImageSet, list[str]]:
    """Read which images have which classes, and say what is doubtful about these."""
    path, source = Path(target).expanduser(), f"{kind}:{target}"
    table = _table(kind, path, by)
    images = read_folder(path, "all") if table is None else table.pick("all")
    if table is None and not any("/" in file for file in images.files):
        raise DataError(
            f"{source} holds images and no class folders: fine as an OOD set (data.ood); to learn "
            f"from it, sort the images into CLASS/IMAGE{_tables_there(path)}"
        )
    remarks = [] if table is None else list(table.warnings)
    if kind == "folder" and table is None:
        remarks += _unread_table(source, path, images.classes) + tables.unread_tables(path)
    return images, [*remarks, *label_warnings(images, source)]


def _tables_there(folder: Path) -> str:
    """What to do with the tables in a folder that holds images alone."""
    listed = tables.listing(folder)
    return (
        f", or name csv:{listed}"
        if listed
        else "".join(f". {doubt}" for doubt in tables.unread_tables(folder))
    )


def _unread_table(source: str, folder: Path, classes: Sequence[str]) -> list[str]:
    """Say so where a table in a folder knows other classes than its folders do."""
    try:
        listed = tables.listing(folder)
        names = {name for _, name, _, _ in tables.csv_table(listed).rows} if listed else set()
    except DataError:  # several tables, or one that is none: nobody asked for it
        return []
    if listed is None or names == set(classes):
        return []
    return [
        f"{source}: {listed.name} lists images and is not read: the classes are the folders. Name "
        f"csv:{listed} to use its labels"
    ]


def listed_note(kind: str, target: str, by: str = "domain") -> str:
    """Say which clients' images are those that a table in their folder lists; empty without any.

    Args:
        kind: the kind of source, such as `clients`.
        target: its path.
        by: `domain`, or `client` where clients are given.

    Returns:
        A sentence; empty without any such client.
    """
    if kind != "clients" and not (kind == "folder" and by == "client"):
        return ""
    listed = client_folders.listings(Path(target).expanduser())
    summary = ", ".join(f"{client} by {name}" for client, name in listed.items())
    return f"{kind}:{target}: tables list the images: {summary}" if summary else ""


def _table(kind: str, path: Path, by: str) -> tables.Table | None:
    """The table of a CSV or of client folders; None for a plain folder."""
    if kind == "csv":
        return tables.csv_table(path, by)
    if kind == "clients" or by == "client":
        return client_folders.clients_table(path)
    return None


def doubts(kind: str, target: str, by: str = "domain") -> list[str]:
    """Return what `advice` says or refuses, for a look at images that need not be learned from.

    Args:
        kind: the kind of source, such as `folder`.
        target: its path.
        by: `domain`, or `client` where clients are given.

    Returns:
        One sentence or two each.
    """
    if kind not in OWN:
        return []
    remarks: list[str] = []
    try:
        images, remarks = _classes_and_doubts(kind, target, by)
        refuse_classes(images, f"{kind}:{target}")
    except DataError as error:
        return [str(error), *remarks]
    note = domains_note(kind, target, by)
    return [note, *remarks] if note else remarks


def domains_note(kind: str, target: str, by: str = "domain") -> str:
    """Say which folders of folders are taken as domains: they may be classes, by patient or day.

    Args:
        kind: the kind of source, such as `folder`.
        target: its path.
        by: `domain`, or `client` where clients are given.

    Returns:
        A sentence; empty where there are no domains.
    """
    path = Path(target).expanduser()
    if kind != "folder" or by != "domain" or not has_domains(path):
        return ""
    images = read_folder(path, ALL)
    first = images.domain_names[0]
    return (
        f"{kind}:{target}: {brief_list(images.domain_names)} hold folders and no images: they are "
        f"taken as domains (cameras, places), and the folders in them, "
        f"{brief_list(images.classes)}, as the classes. If {first} is a class and its folders are "
        f"patients or days, list the classes in {path / NAMES}, in lines such as {first},{first}"
    )


def brief_list(names: Sequence[str], most: int = 3) -> str:
    """Write the first names of a list.

    Args:
        names: The names.
        most: How many are written.

    Returns:
        Text.

    >>> brief_list(["a", "b"]), brief_list(["a", "b", "c", "d"])
    ('a, b', 'a, b, c, ...')
    """
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
