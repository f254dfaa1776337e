"""Images by the name a configuration gives them: a registered dataset, a folder, a CSV, a hub."""

from pathlib import Path

from focoop.data import own, registry
from focoop.data._readers import ALL, folder_splits, read_folder
from focoop.data.imageset import ImageSet
from focoop.data.sound import sift

OWN = ("folder", "clients", "csv")


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
    """One split of a source of images.

    `by` says what the groups of rows are: `domain`, or `client` where clients were given. Files of
    a user's own that cannot be read are left out with a warning, or refused if `strict`; with
    `check` false they are not looked at.
    """
    if kind == "name":
        return registry.read(target, split, root)
    if kind == "hf":
        return own.read_hub(target, split)
    path = Path(target).expanduser()
    table = _table(kind, path, by)

    def pick(part: str) -> ImageSet:
        return read_folder(path, part) if table is None else table.pick(part)

    found = pick(split)
    return sift(found, strict, cache_dir, whole=lambda: pick(ALL)) if check else found


def splits_of(kind: str, target: str, by: str = "domain") -> tuple[str, ...]:
    """The splits of a user's own images; empty where there are none, or where not known."""
    if kind not in OWN:
        return ()
    path = Path(target).expanduser()
    table = _table(kind, path, by)
    if table is not None:
        return table.splits
    return tuple(name for name in folder_splits(path) if name in ("train", "test"))


def _table(kind: str, path: Path, by: str) -> own.Table | None:
    """The table of a CSV or of client folders; None for a plain folder."""
    if kind == "csv":
        return own.csv_table(path, by)
    if kind == "clients" or by == "client":
        return own.clients_table(path)
    return None
