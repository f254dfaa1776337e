"""Long runs are judged: what grows is found, and short ones are flat."""

import json
from pathlib import Path
from typing import Any

import pytest

from tools import soak, soak_judge


def samples(grow: float, peak: float = 0.0) -> list[dict[str, Any]]:
    """A hundred rounds, `grow` bytes each, with a single peak."""
    return [
        {
            "seconds": float(index),
            "round": index,
            "folder": 1000 * index,
            "site": {
                "memory": 2**28 + int(grow * index) + (int(peak) if index == 60 else 0),
                "descriptors": 7,
                "threads": 2,
                "processes": 1,
                "written": 500 * index,
                "ticks": 10 * index,
            },
        }
        for index in range(100)
    ]


def test_what_grows_is_found_and_a_peak_is_not(tmp_path: Path) -> None:
    assert all(fit.flat for fit in soak_judge.fits(samples(0.0, peak=2**27)))
    assert not soak_judge.judge("b", "command", samples(160_000.0), tmp_path)
    told = json.loads((tmp_path / "soak-b.json").read_text())
    added = told["added_in_1000_rounds"]["site, MiB"]["added"]
    assert told["verdict"] == "growing" and added == pytest.approx(160_000 * 1000 / 2**20, rel=0.01)
    assert (tmp_path / "soak-b.svg").stat().st_size < 40_000
    with pytest.raises(ValueError, match="too few"):
        soak_judge.fits(samples(0.0)[:5])


def test_an_exponent_is_that_of_the_power() -> None:
    xs = [10.0, 30.0, 100.0]
    assert soak_judge.exponent(xs, [3 * x**1.5 for x in xs]) == pytest.approx(1.5)


@pytest.mark.slow
def test_a_short_soak_of_the_simulator_is_flat(tmp_path: Path) -> None:
    raw = soak.simulator(tmp_path, "promptfolio", clients=60, rounds=400, share=0.2, every=0.05)
    assert soak_judge.judge("simulator", "short", raw, tmp_path / "told")


@pytest.mark.slow
def test_a_short_soak_of_a_federation_is_flat(tmp_path: Path) -> None:
    raw = soak.flower(tmp_path, sites=1, seconds=600, every=0.5, rounds=40)
    late = [one for one in raw if one["round"] >= 15]
    for group in ("coordinator", "site-0"):
        handles = [one[group]["descriptors"] for one in late]
        assert max(handles) - min(handles) < 20, handles
        memory = [one[group]["memory"] for one in late]
        half = len(memory) // 2
        assert max(memory[half:]) < 1.05 * max(memory[:half])
