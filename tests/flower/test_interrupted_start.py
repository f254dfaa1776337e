"""A federation that was stopped at any moment, or whose files are damaged, starts again."""

import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from focoop.errors import ConfigError, FederationError, RunError
from focoop.flower.deploy import keys as key_files
from focoop.flower.deploy import link_start, processes
from focoop.flower.deploy.join_bundle import settle
from focoop.flower.deploy.keys import (
    add_sites,
    check_server,
    complete_site_key,
    make_keys,
    make_site_key,
    renew_server,
)
from focoop.flower.deploy.link_start import DATABASE, LOG, LinkStart, last_words
from focoop.flower.deploy.serving import serving
from focoop.flower.deploy.study import Federation, create
from focoop.flower.identity import numbered, read_site
from focoop.flower.server.spares import secret_seed
from focoop.flower.site.dry_run import check_keys
from focoop.runs import start
from tests.flower.federations import toy_config
from tests.flower.processes import free_ports

# A program that lets Flower make its database and kills itself at the given table.
KILLED = """
import os, signal, sqlite3, sys
connect, left = sqlite3.connect, [int(sys.argv[2])]
def look(statement):
    if statement.lstrip().upper().startswith("CREATE TABLE"):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
def watched(*given, **named):
    connection = connect(*given, **named)
    connection.set_trace_callback(look)
    return connection
sqlite3.connect = sqlite3.dbapi2.connect = watched
from sqlalchemy import create_engine
from flwr.supercore.state.alembic.utils import run_migrations
run_migrations(create_engine(f"sqlite:///{sys.argv[1]}"))
"""


def killed(path: Path) -> None:
    """A database as a kill leaves it: Flower's own program dies before its fifth table."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), "4"], timeout=120)
    assert done.returncode == -signal.SIGKILL
    with sqlite3.connect(path) as database:
        tables = database.execute("select count(*) from sqlite_master where type = 'table'")
        assert 0 < tables.fetchone()[0] <= 5
    database.close()


def damaged(path: Path) -> None:
    """A file that is no database at all."""
    path.write_bytes(b"\x00flip" * 2000)


@pytest.mark.slow
@pytest.mark.parametrize("spoil", [killed, damaged])
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
        with (
            pytest.raises(RunError, match=r"\(id \d+\): a coordinator of this federation runs"),
            serving(tmp_path / "keys", "127.0.0.1", port + 1, home, said.append),
        ):
            pass
        served.check()
    assert said == []  # the new database is kept


@pytest.mark.slow
def test_a_port_that_is_taken_meanwhile_is_not_the_database_s_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_keys(tmp_path / "keys", ["127.0.0.1"], ["ghent"])
    home, said, (port, taken, free) = tmp_path / "home", list[str](), free_ports(3)
    home.mkdir()
    (home / DATABASE).touch()  # an empty file is an empty database
    inner = iter([taken, free])
    monkeypatch.setattr(processes, "free_port", lambda: next(inner))
    with (
        socket.create_server(("127.0.0.1", taken)),
        serving(tmp_path / "keys", "127.0.0.1", port, home, said.append) as served,
    ):
        served.check()
        assert served.front.link[0] == free
    assert said == [] and not (home / f"unreadable-{DATABASE}").exists()


class Program:
    """Stands in for the SuperLink's command: a program that says something and ends so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
        self.words, self.started = list(words), 0
        monkeypatch.setattr(processes, "superlink", self)

    def __call__(self, keys: Path, port: int, database: Path, secret: Path) -> list[str]:
        self.started += 1
        words = self.words.pop(0)
        ending = "os.kill(os.getpid(), 9)" if words == "killed" else "sys.exit(1)"
        return [sys.executable, "-c", f"import os, sys; print({words!r}, flush=True); {ending}"]


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("sqlite3.OperationalError: database or disk is full", "disk is full"),
        ("OSError: [Errno 28] No space left on device", "No space left on device"),
        ("killed", "killed by signal 9"),
    ],
)
def test_where_only_a_person_can_help_the_database_stays(
    said: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_keys(tmp_path / "keys", ["127.0.0.1"], ["ghent"])
    (tmp_path / DATABASE).write_bytes(b"kept")
    program, told = Program(monkeypatch, said), list[str]()
    start = LinkStart(tmp_path / "keys", tmp_path, tmp_path / "secret", {}, told.append)
    with pytest.raises(FederationError, match=problem) as refusal:
        start.start()
    assert "listening" not in str(refusal.value) and str(tmp_path / LOG) in str(refusal.value)
    assert (tmp_path / DATABASE).read_bytes() == b"kept" and told == [] and program.started == 1


def test_a_new_database_that_does_not_help_is_not_tried_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_keys(tmp_path / "keys", ["127.0.0.1"], ["ghent"])
    (tmp_path / DATABASE).write_bytes(b"bad")
    program, told = Program(monkeypatch, "first", "it said: why"), list[str]()
    start = LinkStart(tmp_path / "keys", tmp_path, tmp_path / "secret", {}, told.append)
    with pytest.raises(FederationError, match="it said: why"):
        start.start()
    assert program.started == 2 and len(told) == 1
    taken = "[Errno 98] error while attempting to bind: [errno 98] address already in use"
    program.words = [taken] * link_start.PORTS
    with pytest.raises(FederationError, match="no free port"):
        start.start()
    assert last_words("") == "nothing"


def interrupted(function: Callable[..., object], *given: object, at: str, times: int = 1) -> None:
    """Call a function of `keys.py` that is stopped when it is about to write a file, as by Ctrl-C.

    Args:
        function: The function.
        *given: Its arguments.
        at: End of the name of the file that is never written.
        times: The how-manieth such file.
    """
    left, usual = times, key_files.os.replace

    def replace(draft: Path, path: Path) -> None:
        nonlocal left
        left -= str(path).endswith(at)
        if left <= 0:
            raise KeyboardInterrupt
        usual(draft, path)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(key_files.os, "replace", replace)
        function(*given)


def test_a_site_whose_key_was_half_made_joins_all_the_same(tmp_path: Path) -> None:
    config = toy_config(tmp_path, "method.name=promptfl")
    (bundle,) = create(tmp_path / "study", Federation(("127.0.0.1",)), ["ghent"], config, "a; b")
    for at in ("/key", "/key.pub"):  # nothing there; the private half alone
        state = tmp_path / f"stopped-at{at.replace('/', '-')}"
        interrupted(settle, bundle, state, at=at)
        private = state / "keys" / "key"
        before = private.read_bytes() if private.exists() else None
        keys = settle(bundle, state)
        assert check_keys(keys) == "ghent"
        assert before in (None, private.read_bytes())  # a whole key is kept
    state = tmp_path / "cut-off"  # a power cut of an earlier focoop, which wrote it in place
    keys = settle(bundle, state)
    (keys / "key.pub").unlink()
    (keys / "key").write_bytes((keys / "key").read_bytes()[:100])
    assert check_keys(settle(bundle, state)) == "ghent"
    public = (keys / "key.pub").read_bytes()
    assert (keys / "key").stat().st_mode & 0o077 == 0
    settle(bundle, state)
    assert (keys / "key.pub").read_bytes() == public == read_site(keys).public


def test_a_key_that_was_sent_is_never_replaced(tmp_path: Path) -> None:
    make_site_key(tmp_path, "ghent")
    (tmp_path / "key").write_text("damaged")
    public = (tmp_path / "key.pub").read_bytes()
    complete_site_key(tmp_path, "ghent")
    assert (tmp_path / "key").read_text() == "damaged"
    (tmp_path / "key").unlink()
    complete_site_key(tmp_path, "ghent")
    assert not (tmp_path / "key").exists() and (tmp_path / "key.pub").read_bytes() == public


def test_a_site_whose_adding_was_interrupted_is_nobody(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    make_keys(keys, ["127.0.0.1"], ["ghent"])
    left = keys / "sites" / ".lille.x7"  # what a kill leaves: no handler has removed it
    left.mkdir()
    (left / "site.toml").write_text('name = "lille"\nclient = 1\n')
    assert numbered(keys) == {0: "ghent"}
    add_sites(keys, ["lille"])
    assert numbered(keys) == {0: "ghent", 1: "lille"}


def test_a_certificate_whose_renewal_was_interrupted_is_named(tmp_path: Path) -> None:
    keys, said = tmp_path / "keys", list[str]()
    make_keys(keys, ["127.0.0.1"], ["ghent"])
    check_server(keys, said.append)
    interrupted(renew_server, keys, ["127.0.0.1"], at="server.key")
    check_server(keys, said.append)  # the old pair is whole
    interrupted(renew_server, keys, ["127.0.0.1"], at="server.pem")
    with pytest.raises(FederationError, match="do not fit: make it anew with focoop keys .*renew"):
        check_server(keys, said.append)
    renew_server(keys, ["127.0.0.1"])
    check_server(keys, said.append)
    assert said == []
    (keys / "server.pem").unlink()
    with pytest.raises(FederationError, match=r"cannot be read .*--renew"):
        check_server(keys, said.append)


def test_a_certificate_says_when_it_ends(tmp_path: Path) -> None:
    keys, said, now = tmp_path / "keys", list[str](), datetime.now(UTC)
    make_keys(keys, ["fl.example.org", "10.0.0.7"], ["ghent"], days=100)
    check_server(keys, said.append, now + timedelta(days=60))
    assert said == []
    check_server(keys, said.append, now + timedelta(days=80))
    assert len(said) == 1 and "expires on" in said[0]
    renewal = r"expired on .* --renew --host fl.example.org --host 10.0.0.7; sites need nothing"
    with pytest.raises(FederationError, match=renewal):
        check_server(keys, said.append, now + timedelta(days=101))
    with pytest.raises(FederationError, match="not valid before .* set the clock right"):
        check_server(keys, said.append, now - timedelta(days=1))


def test_a_secret_draw_is_whole_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "draw.secret.draft").write_text("half")
    assert secret_seed(tmp_path) == secret_seed(tmp_path)
    assert not (tmp_path / "draw.secret.draft").exists()


def test_an_existing_key_is_never_overwritten(tmp_path: Path) -> None:
    make_site_key(tmp_path, "ghent")
    with pytest.raises(ConfigError, match="never overwritten"):
        make_site_key(tmp_path, "ghent")


def test_a_full_disk_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_keys(tmp_path / "keys", ["127.0.0.1"], ["ghent"])
    left = SimpleNamespace(free=300_000)
    monkeypatch.setattr(processes.shutil, "disk_usage", lambda path: left)
    with (
        pytest.raises(FederationError, match=r"has 0\.3 MB left, and 20 are the least: make room"),
        serving(tmp_path / "keys", "127.0.0.1", 0, tmp_path / "home", print),
    ):
        pass


def test_a_run_with_a_secret_draw_that_failed_before_its_first_round_starts_again(
    tmp_path: Path,
) -> None:
    config, path = toy_config(tmp_path, "method.name=promptfl"), tmp_path / "run"
    folder = start(path, config, {}, resume=False)
    first = secret_seed(path)
    folder.finish("failed")
    again = start(path, config, {}, resume=True)
    assert secret_seed(path) != first  # it is a new run
    again.close()
