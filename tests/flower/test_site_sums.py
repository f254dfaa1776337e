"""What a site keeps between messages is compared with its checksum."""

import json
from pathlib import Path

import pytest
import torch

from focoop.caching import sealed
from focoop.errors import FederationError, RunError
from focoop.flower.journal import Journal, events
from focoop.flower.server.spares import secret_seed
from focoop.flower.site.releases import LEDGER, Releases, released
from focoop.flower.site.status import read_status
from focoop.flower.site.sum_secrets import SumSecrets
from focoop.runs import PrivateStore
from tests.flower.test_releases import KEY, Site, noised


def flip(path: Path, place: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(raw)


def test_private_tensors_of_a_site(tmp_path: Path) -> None:
    def store(limit: int) -> PrivateStore:
        return PrivateStore(tmp_path, limit, with_book=True)

    for index in (1, 2):
        store(index - 1).settle(index - 1)
        store(index - 1).save(3, index, {"p": torch.full((4,), float(index))})
    own = store(2).load(3)
    assert own is not None and own["p"][0] == 2 and store(2).load(5) is None
    file = tmp_path / "0003" / "round-0002.safetensors"
    flip(file, -2)
    with pytest.raises(RunError, match="round-0002.safetensors is damaged"):
        store(2).load(3)
    file.unlink()
    with pytest.raises(RunError, match="is gone, and client 3 has trained"):
        store(2).load(3)
    flip(tmp_path / "0003" / "versions.json", 15)
    with pytest.raises(RunError, match="versions.json is damaged"):
        store(2).load(3)


def test_a_journal_names_damaged_lines(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.note("left out", site="ghent", round=2)
    assert [event["event"] for event in events(path)] == ["left out", "ended"]
    whole = path.read_bytes()
    for place in range(0, whole.index(b"\n"), 7):
        changed = [whole.replace(b"ghent", b"gheot"), whole[:place] + b"\x00" + whole[place + 1 :]]
        for content in changed:
            path.write_bytes(content)
            assert [event["event"] for event in events(path)] == ["damaged", "ended"]


def test_a_site_s_account_of_releases(tmp_path: Path) -> None:
    site, config = Site(tmp_path / "a"), noised(tmp_path, "privacy.noise=2.0")
    for index in (1, 2, 3):
        site.ask(config, site.update(), index)
    account, kept = site.state / LEDGER, site.state / KEY / "releases" / "0000.safetensors"
    lines, release = account.read_bytes().splitlines(keepends=True), kept.read_bytes()
    assert released(site.state) == [2.0] * 3
    for lost in (lines[1:], lines[:1] + lines[2:], [lines[0].replace(b"2.0", b"3.0"), *lines[1:]]):
        account.write_bytes(b"".join(lost))
        with pytest.raises(FederationError, match="releases.jsonl, line ., is damaged"):
            released(site.state)
    account.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(FederationError, match="has lost the line of its release"):
        site.ask(config, site.update(), 4)
    account.write_bytes(b"".join(lines))
    kept.unlink()
    with pytest.raises(FederationError, match="0000.safetensors is gone: .* Restore it"):
        site.ask(config, site.update(), 4)
    other = kept.with_name("0001.safetensors")
    other.write_bytes(release)
    with pytest.raises(FederationError, match="0001.safetensors is damaged .it is of another"):
        Releases(site.state, KEY, 1)._load()
    kept.write_bytes(release)
    flip(kept, len(release) - 9)
    with pytest.raises(FederationError, match="0000.safetensors is damaged .its checksum differs"):
        site.ask(config, site.update(), 4)


def test_sums_that_have_begun_stay_begun_whatever_happens_to_their_marks(tmp_path: Path) -> None:
    attempts = [f"{number:032x}" for number in range(1, 5)]
    parts = [SumSecrets(tmp_path / "0000.json", 1, attempt) for attempt in attempts]
    marks = tmp_path / "0000.begun"
    marks.write_text(f"{attempts[0]}\n")  # an earlier focoop's, without a checksum
    for part in parts[1:]:
        part.begin()
    marks.write_bytes(marks.read_bytes() + b"0000")  # cut short by a crash: it never began
    whole, lines = marks.read_bytes(), marks.read_bytes().splitlines(keepends=True)
    for part in parts:
        with pytest.raises(FederationError, match="it is over"):
            part.begin()
    late = SumSecrets(tmp_path / "0000.json", 1, "f" * 32)
    changed = [whole.replace(b"3 ", b"7 "), b"".join([*lines[:2], *lines[3:]]), lines[0], b""]
    for content in changed:
        marks.write_bytes(content)
        with pytest.raises(FederationError, match=r"0000\.begun is damaged.*restore the file"):
            late.begin()
    marks.write_bytes(whole)
    late.begin()
    assert len(marks.read_bytes().splitlines()) == 5
    with pytest.raises(FederationError, match="it is over"):
        late.begin()


def test_the_coordinator_s_secret_and_a_site_s_status(tmp_path: Path) -> None:
    drawn, file = secret_seed(tmp_path), tmp_path / "draw.secret"
    whole = file.read_text()
    flip(file, 5)
    with pytest.raises(FederationError, match=r"draw\.secret is damaged"):
        secret_seed(tmp_path)
    file.write_text(whole.split()[0])  # an earlier focoop's
    assert secret_seed(tmp_path) == drawn and file.read_text() == whole
    status = tmp_path / "status.json"
    status.write_text(json.dumps(sealed({"state": "connected", "reason": ""})))
    assert "sum" not in read_status(tmp_path)
    status.write_text(status.read_text().replace('"sum"', '"rum"'))
    with pytest.raises(RunError, match="status.json is damaged"):
        read_status(tmp_path)
    status.write_text(json.dumps(sealed({"state": "connected", "reason": ""})))
    flip(status, 15)
    with pytest.raises(RunError, match="status.json is damaged"):
        read_status(tmp_path)
