"""Seeds of a grid: how many, or which."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from focoop.cli import app
from focoop.errors import ConfigError
from focoop.experiments import seeds_of
from tests.toy_setting import write_setting


@pytest.mark.parametrize(
    ("given", "seeds"),
    [
        (3, (0, 1, 2)),
        ("3", (0, 1, 2)),
        (" 2 ", (0, 1)),
        ("1", (0,)),
        ("0,4", (0, 4)),
        ("0 4", (0, 4)),
        ("4,", (4,)),
        ([4], (4,)),
        (range(2, 4), (2, 3)),
    ],
)
def test_a_lone_number_says_how_many_seeds_and_a_list_says_which(
    given: int | str | list[int], seeds: tuple[int, ...]
) -> None:
    assert seeds_of(given) == seeds


@pytest.mark.parametrize("given", [0, "0", -1, "-1", "", ",", [], "1,1", [1, 1], "a", "1.5", "0-4"])
def test_no_seed_a_seed_twice_and_no_number_are_refused(given: int | str | list[int]) -> None:
    with pytest.raises(ConfigError, match="seeds"):
        seeds_of(given)


@pytest.mark.parametrize(
    ("given", "said"),
    [("2", "2 runs with seeds 0, 1"), ("4,", "1 run with seed 4"), ("1", "1 run with seed 0")],
)
def test_a_comparison_says_which_seeds_it_runs(tmp_path: Path, given: str, said: str) -> None:
    setting = write_setting(tmp_path / "data")
    call = ["compare", str(setting), "--methods=zeroshot", f"--seeds={given}", "--jobs=0"]
    result = CliRunner().invoke(app, [*call, f"--out={tmp_path / 'out'}"])
    assert result.exit_code == 0 and said in result.stderr.splitlines(), result.stderr
