"""A coordinator whose first start was interrupted, or whose database is damaged, starts again."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from focoop.flower.deploy.keys import make_keys
from focoop.flower.deploy.serving import DATABASE, serving
from tests.flower.processes import free_ports


def half_made(path: Path) -> None:
    """A database as a kill leaves it: its first tables are there, its version is not."""
    with sqlite3.connect(path) as database:
        database.execute("create table alembic_version (version_num varchar(32) not null)")
        database.execute("create table node (node_id integer)")
    database.close()


def damaged(path: Path) -> None:
    """A file that is no database at all."""
    path.write_bytes(b"\x00flip" * 2000)


@pytest.mark.slow
@pytest.mark.parametrize("spoil", [half_made, damaged])
def test_a_database_that_flower_cannot_open_is_set_aside(
    spoil: Callable[[Path], None], tmp_path: Path
) -> None:
    make_keys(tmp_path / "keys", ["127.0.0.1"], ["ghent"])
    home, said = tmp_path / "run-flower", list[str]()
    home.mkdir()
    spoil(home / DATABASE)
    (port,) = free_ports(1)
    with serving(tmp_path / "keys", "127.0.0.1", port, home, said.append) as served:
        served.check()
    assert (home / f"unreadable-{DATABASE}").exists()
    assert [line for line in said if f"unreadable-{DATABASE}" in line]
    said.clear()
    with serving(tmp_path / "keys", "127.0.0.1", port, home, said.append) as served:
        served.check()
    assert said == []  # the new database is kept
