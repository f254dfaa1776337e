"""One folder of images per client: class folders, or a table that lists its images."""

from collections.abc import Mapping
from pathlib import Path

from focoop.data.class_names import name_of, named_classes
from focoop.data.folders import FLAT, NAMED_CLASSES, SPLITS, scan
from focoop.data.tables import Table, csv_table, listing, unread_tables
from focoop.errors import DataError


def clients_of(kind: str, path: Path) -> tuple[str, ...]:
    """Return the names of the clients that a user's images come divided into.

    Args:
        kind: The kind of source, such as `clients`.
        path: Its path.

    Returns:
        The names; empty where images are not divided.
    """
    if kind not in ("csv", "clients"):
        return ()
    table = csv_table(path, "client") if kind == "csv" else clients_table(path)
    return tuple(sorted({group for *_, group in table.rows if group}))


def clients_table(root: Path) -> Table:
    """Read one folder per client.

    A client's images are `root/<client>/<class>/*` or `root/<client>/<split>/<class>/*`, or those
    that a table in its folder lists, such as `root/<client>/labels.csv`.

    Args:
        root: The folder of the clients.

    Returns:
        The images of all clients.

    Raises:
        DataError: There is no such folder, or the layout of a client's folder is not clear.
    """
    if not root.is_dir():
        raise DataError(f"no folder {root}: check the path")
    shared = named_classes(root)
    of_client: dict[str, list[tuple[str, str, str, str]]] = {}
    doubts: list[str] = []
    for client in sorted(p.name for p in root.iterdir() if p.is_dir() and p.name[0] != "."):
        names = {**shared, **named_classes(root / client)}  # sites may number classes otherwise
        listed = listing(root / client)
        if listed is None:
            of_client[client] = _folder_rows(root, client, names)
            doubts += unread_tables(root / client)
        else:
            of_client[client] = _listed_rows(listed, client, shared)
    if not any(of_client.values()):
        raise DataError(f"no client folders with images in {root}: expected CLIENT/CLASS/IMAGE")
    rows = [row for rows in of_client.values() for row in rows]
    return Table(root, rows, str(root), doubts).tested_alone()


def _folder_rows(
    root: Path, client: str, names: Mapping[str, str]
) -> list[tuple[str, str, str, str]]:
    """The rows of a client's folder of class folders."""
    rows: list[tuple[str, str, str, str]] = []
    for split, classes in scan(root / client, names).items():
        if FLAT in classes:
            raise DataError(
                f"{root / client} holds images and no class folders: sort them into "
                f"{client}/CLASS, or list them in a table {client}/labels.csv (path,label)"
                f"{''.join(f'. {doubt}' for doubt in unread_tables(root / client))}"
            )
        if split and split not in SPLITS:
            raise DataError(
                f"{root / client / split}: expected <class> or train/<class> and test/<class> "
                f"in each client's folder. {NAMED_CLASSES}"
            )
        rows += [
            (f"{client}/{file}", name_of(name, names), split, client)
            for name, files in classes.items()
            for file in files
        ]
    return rows


def _listed_rows(
    listed: Path, client: str, names: Mapping[str, str]
) -> list[tuple[str, str, str, str]]:
    """The rows of a client's table; their paths begin with the client's folder."""
    return [
        (str(Path(client) / file), name_of(name, names), split, client)  # absolute paths stay so
        for file, name, split, _ in csv_table(listed).rows
    ]


def listings(root: Path) -> dict[str, str]:
    """Find the tables of the clients of `clients:` whose images a table lists.

    Args:
        root: The folder of the clients.

    Returns:
        Name of the table by client.
    """
    folders = root.iterdir() if root.is_dir() else ()
    paths = {p.name: listing(p) for p in folders if p.is_dir() and p.name[0] != "."}
    return {client: path.name for client, path in sorted(paths.items()) if path is not None}
