"""Sweeps: points of a grid, the long table, LaTeX and lines, equal to the run folders' numbers."""

import csv
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

import focoop
from focoop.errors import ConfigError
from focoop.experiments import draw_lines, log_base, new_figure, parse_sweep, sweep_points
from tests.toy_command import call
from tests.toy_setting import write_setting

SWEEPS = ["partition.shots=1,2", "method.open_share=0.1,0.5"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[focoop.Table, Path]:
    folder = tmp_path_factory.mktemp("sweeps")
    setting = write_setting(folder / "data")
    out = folder / "out"
    return focoop.compare(setting, ["fedncm"], seeds=[0, 1], sweep=SWEEPS, out=out), out


def test_points_are_the_product() -> None:
    points = sweep_points([parse_sweep(text) for text in SWEEPS])
    assert [point.named("toy") for point in points] == [
        "toy shots=1 open_share=0.1",
        "toy shots=1 open_share=0.5",
        "toy shots=2 open_share=0.1",
        "toy shots=2 open_share=0.5",
    ]
    assert [point.named("toy") for point in sweep_points([])] == ["toy"]
    assert parse_sweep('data.ood=["a","b"],["c"]').values == ('["a","b"]', '["c"]')


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["shots=1,2"], "SECTION.NAME"),
        (["partition.shots"], "KEY=VALUE"),
        (["partition.shots="], "KEY=VALUE"),
        (["partition.shots=1,1"], "twice"),
        (["partition.shots=1", "partition.shots=2"], "same setting"),
        ([f"a.b={','.join(map(str, range(40)))}", f"a.c={','.join(map(str, range(40)))}"], "1600"),
    ],
)
def test_bad_sweeps_are_refused(texts: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        sweep_points([parse_sweep(text) for text in texts])


@pytest.mark.parametrize(
    ("values", "base"),
    [((1, 2, 16), 2), ((0.1, 1, 10), 10), ((1, 2, 4), 0), ((0, 1, 16), 0), ((), 0), ((-8, 8), 0)],
)
def test_an_axis_of_values_that_grow_manyfold_is_logarithmic(
    values: tuple[float, ...], base: int
) -> None:
    assert log_base(values) == base


@pytest.mark.slow
def test_the_long_table_holds_the_runs_numbers(table: tuple[focoop.Table, Path]) -> None:
    found, out = table
    with (out / "sweep.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    own = {(r["partition.shots"], r["method.open_share"]): r for r in rows if r["column"] == "own"}
    assert set(own) == {(shots, share) for shots in ("1", "2") for share in ("0.1", "0.5")}
    for (shots, share), entry in own.items():
        folders = (out / f"toy-shots={shots}-open_share={share}" / "fedncm").glob("seed*")
        runs = [focoop.open_run(folder) for folder in folders]
        assert {run.config.partition.shots for run in runs} == {int(shots)}
        values = [100 * run.summary["accuracy_own"] for run in runs]
        assert float(entry["mean"]) == pytest.approx(statistics.mean(values))
        assert float(entry["std"]) == pytest.approx(statistics.stdev(values))
    assert len(found.sweep) == len(rows) and len(found.frame("sweep")) == len(rows)
    assert {entry["setting"] for entry in found.sweep} == {"toy"}


@pytest.mark.slow
def test_files_of_a_sweep(table: tuple[focoop.Table, Path]) -> None:
    found, out = table
    latex = (out / "sweep.tex").read_text()
    assert latex.count(r"\\") == 1 + 4 and r"open\_share" in latex and r"\toprule" in latex
    assert "| toy | 1 | 0.1 | fedncm |" in (out / "sweep.md").read_text()
    figure = out / "sweep-toy-method.open_share=0.5.svg"
    first = figure.read_bytes()
    assert b"partition.shots" in first
    found.save(out)
    assert figure.read_bytes() == first, "equal results give equal files"
    assert all(math.isfinite(entry["mean"]) for entry in found.sweep)


@pytest.mark.slow
def test_lines_and_bands_are_the_numbers_of_the_run_folders(
    table: tuple[focoop.Table, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, out = table
    drawn: dict[str, Any] = {}

    def keep(figure: Any, stem: Path, formats: tuple[str, ...]) -> list[Path]:
        drawn[stem.name] = figure
        return []

    monkeypatch.setattr("focoop.experiments.sweeps.save_figure", keep)
    found.save(out)
    for share in ("0.1", "0.5"):
        axes = drawn[f"sweep-toy-method.open_share={share}"].axes[0]
        (line,) = axes.lines
        own = [
            [
                100 * focoop.open_run(folder).summary["accuracy_own"]
                for folder in out.glob(f"toy-shots={shots}-open_share={share}/fedncm/seed*")
            ]
            for shots in (1, 2)
        ]
        means, spreads = map(statistics.mean, own), list(map(statistics.stdev, own))
        assert list(line.get_xdata()) == [1, 2]
        assert list(line.get_ydata()) == pytest.approx(list(means))
        band = axes.collections[0].get_paths()[0].vertices
        for shots, spread in zip((1, 2), spreads, strict=True):
            heights = band[band[:, 0] == shots][:, 1]
            assert max(heights) - min(heights) == pytest.approx(2 * spread, abs=1e-9)


@pytest.mark.slow
def test_the_command_ends_with_one_table_of_all_points(tmp_path: Path) -> None:
    setting = write_setting(tmp_path / "data")
    arguments = ["compare", str(setting), "--methods", "fedncm,zeroshot", "--seeds", "0,1"]
    arguments += ["--sweep", "partition.shots=6,7", "--out", str(tmp_path / "out"), "--jobs", "0"]
    done = call(*arguments)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.strip() == (tmp_path / "out" / "sweep.md").read_text().strip()
    lines = [line for line in done.stdout.splitlines() if line.startswith("| toy |")]
    assert [line.split(" | ")[1:3] for line in lines] == [
        [shots, method] for shots in "67" for method in ("fedncm", "zeroshot")
    ]
    for of_point in (lines[:2], lines[2:]):
        own = [line.split(" | ")[3] for line in of_point]
        values = [float(cell.strip("*").split(" ")[0]) for cell in own]
        assert [cell.startswith("**") for cell in own] == [v == max(values) for v in values]
    pictures = sorted(path.name for path in (tmp_path / "out").glob("sweep-*"))
    assert pictures == ["sweep-toy.pdf", "sweep-toy.svg"], "one picture of all columns"
    assert "sweep-toy.svg" in done.stderr


def test_names_of_values_do_not_touch_on_a_logarithmic_axis() -> None:
    rows = [
        {"method": "a", "tau": tau, "mean": 1.0, "std": 0.0} for tau in (0.1, 1, 2, 4, 6, 8, 10)
    ]
    axes = new_figure(4, 3).subplots()
    draw_lines(axes, rows, "tau")
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        *("0.1", "1", "2", "4", "6", "", "10")
    ]
