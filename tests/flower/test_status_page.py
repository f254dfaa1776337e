"""The coordinator's page, JSON and metrics say what the journal of a run says."""

import http.client
import json
import math
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from rich.console import Console

from focoop.cli.live_table import Watch
from focoop.cli.status_page import shown_page
from focoop.errors import FederationError
from focoop.flower import in_process
from focoop.flower.journal import events, sentence
from focoop.flower.server.journal_summary import Board, LiveBoard
from focoop.flower.server.status_page import families, metrics, page_and_rules, status_page
from focoop.runs import RunFolder
from tests.flower.federations import CLIENTS, Tampered, toy_config
from tests.flower.processes import free_ports
from tests.flower.test_faults import number

NAMES = tuple(f"client {k}" for k in range(CLIENTS))


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a real run: two rounds with noise, client 2 lies about its round."""
    folder = tmp_path_factory.mktemp("board")
    settings = ("method.name=promptfl", "privacy.clip=1.0", "privacy.noise=1.0")
    wanted = toy_config(folder, *settings)
    liar = Tampered(number("round", 9))
    answers = [*[liar.app] * (CLIENTS - 1), liar]
    path = folder / "journal.jsonl"
    in_process.run(wanted, folder / "run", CLIENTS, answers=answers, journal=str(path))
    return path


def test_the_board_says_what_the_run_folder_says(journal: Path) -> None:
    found = LiveBoard(journal, 9, (*NAMES, "client 3")).snapshot()
    run = RunFolder.open(journal.parent / "run")
    line, rounds = run.metrics()[-1], run.manifest["rounds"][1:]
    assert (found["state"], found["reason"], found["committed"]) == ("finished", "", 2)
    assert (found["method"], found["rounds"], found["title"]) == ("promptfl", 2, run.config.title)
    assert found["accuracy"] == line["accuracy_own"] and found["loss"] is None  # hidden by noise
    assert found["epsilon"] == rounds[-1]["server"]["epsilon"]
    for way in ("up", "down"):
        assert found[f"bytes_{way}"] == sum(one[f"bytes_{way}"] for one in rounds) > 0
    sites = {one["name"]: one for one in found["sites"]}
    assert [sites[name]["updates"] for name in NAMES] == [2, 2, 0]
    assert (sites["client 2"]["left_out"], sites["client 0"]["left_out"]) == (2, 0)
    assert sites["client 0"]["connected"] and not sites["client 3"]["connected"]
    rows = {row["client"]: row["accuracy_own"] for row in line["clients"]}
    assert sites["client 1"]["accuracy"] == rows[1]
    assert [one["round"] for one in found["history"]] == [0, 1, 2]
    assert "client 2 left out: it is of round 9" in json.dumps(found["events"])


def test_a_resumed_run_keeps_its_history_and_a_new_one_does_not(journal: Path) -> None:
    board = Board()
    for event in events(journal):
        board.take(event)
    total = board.bytes_up
    board.take({"event": "began", "after": 1, "time": "t", "title": "x", "rounds": 5})
    assert [one["round"] for one in board.history] == [1] and board.bytes_up == total // 2
    assert board.state == "running" and not any(row.connected for row in board.sites.values())
    board.take({"event": "offline", "site": "client 1"})
    assert board.sites["client 1"].doing == "away"
    board.take({"event": "online", "site": "client 1"})
    assert board.sites["client 1"].connected
    board.take({"event": "ended", "reason": "too few updates"})
    assert (board.state, board.reason) == ("failed", "too few updates")
    board.take({"event": "began", "after": 0})
    assert not board.history and not board.bytes_up and board.reason == ""


def ask(address: str, path: str, host: str = "") -> tuple[int, dict[str, str], bytes]:
    place = address.removeprefix("http://").rstrip("/")
    connection = http.client.HTTPConnection(place, timeout=10)
    connection.request("GET", path, headers={"Host": host or place})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), content


def test_three_paths_for_this_machine_alone(journal: Path) -> None:
    board = LiveBoard(journal, 2, NAMES)
    with status_page(board.snapshot, 0) as address:
        code, headers, page = ask(address, "/")
        assert code == 200 and page == page_and_rules()[0]
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        code, _, content = ask(address, "/status.json?x=1")
        assert code == 200 and json.loads(content)["committed"] == 2
        code, headers, content = ask(address, "/metrics")
        assert code == 200 and "text/plain" in headers["Content-Type"]
        assert content.startswith(b"# HELP focoop")
        assert ask(address, "/../secret")[0] == 404
        # A page of another name that resolves to this machine (DNS rebinding) gets nothing.
        for host in ("evil.example:80", "evil.example", "127.0.0.1.evil.example:1"):
            code, _, content = ask(address, "/status.json", host)
            assert code == 403 and b"round" not in content
        port = int(address.rstrip("/").rpartition(":")[2])
        with socket.socket() as other, pytest.raises(ConnectionRefusedError):
            other.connect(("127.0.0.2", port))  # bound to one address, not to all
        with pytest.raises(FederationError, match="--status-port"), status_page(dict, port):
            pass


def test_the_page_has_no_outside_resource() -> None:
    page = page_and_rules()[0].decode()
    found = re.findall(r"(?:src|href|action)=\"([^\"]*)\"|url\(([^)]*)\)|@import", page)
    assert {one for pair in found for one in pair if one} == {"data:,", "/status.json", "/metrics"}
    assert "innerHTML" not in page and "http://www.w3.org/2000/svg" in page
    assert page.count("http") == 1  # the name of SVG, which nobody fetches


def test_metrics_are_prometheus_and_hold_every_site(journal: Path) -> None:
    board = LiveBoard(journal, 2, (*NAMES, 'odd "name"\\'))
    text = metrics(board.snapshot()).decode()
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["focoop_committed",] == 2 and found["focoop_state", "finished"] == 1
    assert found["focoop_site_updates_total", "client 0"] == 2
    assert found["focoop_site_left_out_total", "client 2"] == 2
    assert found["focoop_site_connected", 'odd "name"\\'] == 0
    assert found["focoop_bytes_total", "up"] == board.snapshot()["bytes_up"]
    assert found["focoop_epsilon",] > 0
    assert all(math.isfinite(value) for value in found.values())
    assert not any("loss" in one.name for one in families(board.snapshot()))


def test_a_port_in_use_is_a_warning_and_zero_is_no_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with shown_page(taken.getsockname()[1], tmp_path / "none.jsonl", 1, ()):
            pass
    assert "warning: no status page at port" in capsys.readouterr().err
    with shown_page(0, tmp_path / "none.jsonl", 1, ()):
        pass
    assert capsys.readouterr().err == ""
    (port,) = free_ports(1)
    with shown_page(port, tmp_path / "none.jsonl", 1, ("ghent",)):
        found: dict[str, Any] = json.loads(ask(f"http://127.0.0.1:{port}/", "/status.json")[2])
    assert f"status page: http://127.0.0.1:{port}/" in capsys.readouterr().err
    assert found["state"] == "waiting" and found["sites"][0]["name"] == "ghent"


def test_events_as_json_lines(journal: Path, tmp_path: Path) -> None:
    with (
        open(tmp_path / "out.txt", "w") as file,
        Watch(Console(file=file), 2, NAMES, log_json=True) as watch,
    ):
        watch.show(list(events(journal)))
    lines = [json.loads(line) for line in (tmp_path / "out.txt").read_text().splitlines()]
    assert lines == list(events(journal))
    assert all({"time", "event"} <= set(line) for line in lines)


def test_a_beginning_is_told_without_what_is_for_programs(journal: Path) -> None:
    (began,) = [event for event in events(journal) if event["event"] == "began"]
    assert began["private"] is True and sentence(began) == "began: after round 0"


def test_logs_of_flowers_programs_have_no_colours() -> None:
    script = "from focoop.flower.deploy.processes import plain_logs; plain_logs();"
    script += "from flwr.common.logger import log; log(30, 'a warning')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert b"WARNING" in done.stderr and b"\x1b" not in done.stderr
