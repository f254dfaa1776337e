"""What a site keeps between messages is compared with its checksum."""

from pathlib import Path

import pytest
import torch

from focoop.errors import FederationError, RunError
from focoop.flower.journal import Journal, events
from focoop.flower.site.releases import LEDGER, released
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
    raw = path.read_bytes().replace(b"ghent", b"gheot")
    path.write_bytes(raw)
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
    flip(kept, len(release) - 9)
    with pytest.raises(FederationError, match="0000.safetensors is damaged .its checksum differs"):
        site.ask(config, site.update(), 4)
