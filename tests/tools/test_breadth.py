"""The scripts of breadth: settings that load, runs made once, tables."""

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import breadth
from benchmarks.breadth_tables import markdown, means, missing
from focoop.config import from_dict
from tests.toy_setting import write_setting


@pytest.mark.parametrize("text", [*breadth.SETS, *breadth.OTHERS])
def test_every_setting_of_the_table_loads(text: str) -> None:
    config = from_dict(breadth.setting_of(text, 4, 2))
    assert (config.partition.shots, config.partition.seed, config.data.corrupted) == (4, 23, ())
    said = from_dict(breadth.setting_of(text, breadth.AS_SAID, 0))
    assert said.partition.shots == (0 if text.startswith(("pacs", "office")) else 8)
    kept_out = said.data.unknown_classes, said.data.new_classes, said.federation.late_clients
    words = ("unknown", "new", "late")
    assert [bool(one) for one in kept_out] == [word in text for word in words]


@pytest.mark.slow
def test_a_run_is_made_once_and_its_numbers_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_setting(tmp_path / "settings")
    monkeypatch.setattr(breadth, "SETTINGS", tmp_path / "settings")
    late = "toy:federation.late_clients=1"
    command = ["breadth.py", "toy:data.new_classes=1", late, "--methods", "fedncm,tofa", "--seeds"]
    places = ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    for seeds, made in (("1", "4 of 4"), ("0,1", "4 of 8"), ("0,1", "0 of 8")):
        monkeypatch.setattr(sys, "argv", [*command, seeds, *places])
        assert breadth.main() == 0
        assert made in capsys.readouterr().out
    elsewhere = ["--add", str(tmp_path / "out" / breadth.CELLS), "--tables"]
    monkeypatch.setattr(sys, "argv", ["breadth.py", *elsewhere, "--out", str(tmp_path / "other")])
    assert breadth.main() == 0
    cells = breadth.read_cells(tmp_path / "other" / breadth.CELLS)
    assert len(cells) == 8
    joined = cells[late, breadth.AS_SAID, "tofa", 1]
    assert joined["rounds"] == 3 and 0 <= joined["late own"] <= 1 and "new" not in joined
    new = cells["toy:data.new_classes=1", breadth.AS_SAID, "fedncm", 0]
    assert new["rounds"] == 2 and new["new"] == 0  # no mean was told: it is never answered


def cell(method: str, seed: int, own: float, setting: str = "a", shots: int = 1) -> dict[str, Any]:
    key = {"setting": setting, "shots": shots, "seed": seed, "method": method}
    return {
        **key,
        "own": own,
        "all": own / 2,
        "ausuc": own / 4,
        "auroc far": 0.9,
        "auroc near": 0.5,
    }


def test_tables_have_means_of_seeds_the_best_bold_and_say_what_is_missing() -> None:
    cells = [cell("fedlda", 0, 0.4), cell("fedlda", 1, 0.6), cell("focoop_plus", 0, 0.8)]
    cells += [cell("fedncm", 0, 0.9, shots=8), cell("focoop_plus", 0, 0.7, shots=8)]
    assert means(cells, "own", shots=1)["fedlda"][0] == pytest.approx(50.0)
    page = markdown(cells, ("a",), (1, 8), ("b",))
    assert "| `fedlda` | 50.0 ± 14.1 | |" in page
    assert "| `focoop_plus` | **80.0 \\*** | 70.0 \\* |" in page
    assert "own: 1 of 2 cells not more than 0.3 below" in page
    mean = "| `fedncm` | **22.5** | **76.5** | **90.0** | **45.0** |"  # mix: 0.7 own + 0.3 all
    assert mean in page
    assert "mix in 1 of 2 cells" in page
    assert "worst -20.0 (a, 8 shots, against `fedncm`)" in page
    assert "| a, 8 | own | 70.0 | `fedncm` 90.0 |" in page and "| a, 1 | own |" not in page
    assert "own in 1 of 2 cells" in page and "AUROC in 0 of 4 cells" in page
    assert "in 1 of the cells alone" in page
    assert "| `fedncm` | **70.0 \\*** |" in page  # mean of both OOD sets
    assert "- `fedlda`: 7 of 9 runs" in missing(cells, ("a",), (1, 8), ("b",))


def test_methods_are_compared_at_both_ends_of_the_dial() -> None:
    cells = [cell("fedlda", 0, 0.4), cell("focoop_plus", 0, 0.8)]
    cells += [cell("fedlda:open_share=0", 0, 0.9), cell("focoop_plus:open_share=0", 0, 0.7)]
    cells += [cell("fedlda:open_share=1.0", 0, 0.5), cell("focoop_plus:open_share=1.0", 0, 0.6)]
    page = markdown(cells, ("a",), (1,), ())
    assert "own alone: 0 of 1 cells not more than 0.3 below" in page
    assert "all alone: 1 of 1 cells not more than 0.3 below" in page
    assert "| a, 1 | own alone | 70.0 | `fedlda` 90.0 |" in page
    assert "| `focoop_plus` | **70.0** | **70.0** | **70.0** |" in page  # AUROC, both sets
    assert "The dial" not in page  # these ends alone are no table of their own
    dialled = markdown([*cells, cell("focoop_plus:open_share=0.5", 0, 0.75)], ("a",), (1,), ())
    assert "|  | `open_share` 0.5 | 75.0 |" in dialled
    lonely = [one for one in cells if one["method"] != "fedlda:open_share=0"]
    assert "own alone: " not in markdown(lonely, ("a",), (1,), ())


def test_parts_that_are_left_out_are_told_in_words() -> None:
    parts = ["", ":global_share=1.0", ":bos=false,goc=false"]
    cells = [cell(f"focoop{one}", 0, 0.5) for one in parts] + [cell("promptfl", 0, 0.6)]
    page = markdown(cells, ("a",), (1,), ())
    rows = page[page.index("## FOCoOp without its private prompts") :].splitlines()
    names = [row.split("|")[2].strip() for row in rows if row.startswith("|")][2:6]
    assert names == ["`focoop`", "no BOS, no GOC", "no private prompts", "`promptfl`"]
