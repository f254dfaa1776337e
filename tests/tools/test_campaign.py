"""The campaign finds nothing silent, and would find it."""

from pathlib import Path

import pytest

from tools import campaign as tool


def test_what_is_read_as_truth_is_counted_as_silent(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(range(64)))
    campaign = tool.Campaign(seed=1)
    for _ in range(6):  # a reader without checksums
        campaign.case("plain", file, [(file.read_bytes, file.read_bytes())], [])
    assert campaign.total("silent") >= 5 and file.read_bytes() == bytes(range(64))


@pytest.mark.slow
def test_no_damage_is_read_as_truth() -> None:
    found = tool.campaign_of(0.02, seed=3)
    assert found.silent == []
    assert found.total("named") > 60
