"""The paper's tables and figures on a toy scale: numbers, files, what is missing, resuming."""

import csv
import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import focoop
from focoop.errors import ConfigError, RunError
from focoop.paper import (
    Progress,
    collect_numbers,
    make_choices,
    markdown,
    plan_item,
    read_item,
    read_numbers,
)
from tests.paper.toy_items import write_items
from tests.toy_command import call

QUICK = ("fedncm",)
TIMEOUT = 240
ROUNDS: list[focoop.RoundEvent] = []  # what hooks are told of the runs of `made`


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_items(tmp_path_factory.mktemp("paper"), QUICK)


@pytest.fixture(scope="module")
def made(toy: Path) -> tuple[dict[str, focoop.Reproduction], list[Progress], Path]:
    out, told = toy.parent / "out", list[Progress]()
    found = focoop.reproduce(
        ["T1", "F5"],
        seeds=2,
        folder=toy,
        out=out,
        on_progress=told.append,
        on_round=ROUNDS.append,
    )
    return {one.item.name: one for one in found}, told, out


Made = tuple[dict[str, focoop.Reproduction], list[Progress], Path]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_the_numbers_are_the_run_folders(made: Made) -> None:
    _, _, out = made
    found = {(r["part"], r["column"]): r for r in rows(out / "T1.csv")}
    for part, runs in (("toy, K=2", "toy"), ("toy, K=3", "toy-k3")):
        folders = sorted((out / "runs" / runs / "toy" / "fedncm").glob("seed*"))
        values = [100 * focoop.open_run(folder).summary["accuracy_own"] for folder in folders]
        assert len(values) == 2
        assert float(found[part, "ACC"]["ours"]) == pytest.approx(statistics.mean(values))
        assert float(found[part, "ACC"]["std"]) == pytest.approx(statistics.stdev(values))
        assert found[part, "ACC"]["runs"] == "2"
    both = [float(found[part, "ACC"]["ours"]) for part in ("toy, K=2", "toy, K=3")]
    assert float(found["both", "ACC"]["ours"]) == pytest.approx(statistics.mean(both))
    assert found["not here", "ACC"]["ours"] == ""


def test_the_published_values_stand_beside_ours(made: Made) -> None:
    _, _, out = made
    found = {(r["part"], r["column"]): r["paper"] for r in rows(out / "T1.csv")}
    assert found["toy, K=2", "ACC"] == "61.25" and found["both", "ACC"] == "50.0"
    assert found["toy, K=2", "FPR95"] == "", "a value of another method is not taken"
    text = (out / "T1.md").read_text()
    assert re.search(r"\| fedncm \| [\d.]+ ± [\d.]+ \(61\.25\) \| [\d.]+ ± [\d.]+ \|", text)
    latex = (out / "T1.tex").read_text()
    assert r"\toprule" in latex and "(61.25)" in latex and "toy, K=2" in latex
    swept = {r["point"]: r for r in rows(out / "F5.csv")}
    assert swept["2"]["paper"] == "33.3" and swept["1"]["paper"] == ""
    assert swept["1"]["swept"] == "partition.shots"


def test_what_lacks_data_is_named_and_the_rest_runs(made: Made) -> None:
    found, _, out = made
    assert set(found["T1"].lacking) == {"not here"}
    lines = found["T1"].lacking["not here"].splitlines()
    assert [line.split(":")[0] for line in lines] == ["cifar100", "dtd", "sun"], "a line each"
    assert "cifar100: CIFAR-100, 169 MB: focoop data fetch cifar100" in lines
    assert "not here: missing: cifar100" in (out / "T1.md").read_text()
    assert found["T1"].left == 0 and not found["T1"].failures
    assert not found["F5"].lacking
    assert not (out / "runs" / "absent").exists()


def test_a_missing_ood_set_is_left_out_and_the_others_are_measured(toy: Path) -> None:
    item = read_item(toy / "T1.toml")
    choices = make_choices(
        backbone="mini",
        seeds=1,
        methods=(),
        overrides=None,
        out=toy.parent / "fewer",
        packaged=False,
        presets=None,
        device=None,
    )
    part = item.parts[0]
    (far,) = plan_item(item, choices)[0].cells[0].config.data.ood
    wider = replace(part, set={"data.ood": [far, "isun", "places365"]})
    item = replace(item, parts=(wider,), averages=())
    (planned,) = plan_item(item, choices)
    assert planned.left_out == ("isun", "places365") and not planned.lacks
    (cell,) = planned.cells
    assert cell.config.data.ood == (far,)
    assert "toy-without-isun-places365" in cell.folder.parts, "all sets get a folder of their own"
    remarks = collect_numbers(item, [planned], {}, choices).remarks
    assert remarks.lacking == ["toy, K=2: run without OOD sets that are missing: isun, places365"]


def test_hooks_are_told_of_every_run(made: Made) -> None:
    assert len({event.id for event in ROUNDS}) == 8 and {event.round for event in ROUNDS} == {0, 1}
    assert all("own/accuracy" in event.metrics for event in ROUNDS if event.round == 1)


@pytest.mark.parametrize(
    "command", ["paper T1", "tune configs/settings/cifar100.toml --methods zeroshot"]
)
def test_a_tracker_that_is_not_known_is_refused_before_anything_runs(
    command: str, tmp_path: Path
) -> None:
    result = call(*command.split(), "--track", "tensorbord", "--out", str(tmp_path / "out"))
    assert result.exit_code == 2 and "tensorboard" in result.stderr
    assert not (tmp_path / "out").exists()


def test_progress_counts_all_items_and_estimates_the_rest(made: Made) -> None:
    _, told, _ = made
    ended = [one for one in told if one.outcome.status == "finished"]
    assert [one.done for one in ended] == list(range(1, 9)) and {one.total for one in told} == {8}
    assert [one.item for one in ended] == ["T1"] * 4 + ["F5"] * 4
    assert all(one.seconds_left is not None and one.seconds_left >= 0 for one in ended)
    assert ended[-1].seconds_left == 0


def test_figures_are_drawn_and_equal_when_made_again(made: Made, toy: Path) -> None:
    _, _, out = made
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    drawn = {"T1-toy-K=2", "T1-toy-K=3", "T1-both", "F5"}
    assert {f"{name}.{kind}" for name in drawn for kind in ("svg", "png", "pdf")} <= set(before)
    assert before["F5.png"].startswith(b"\x89PNG") and before["F5.pdf"].startswith(b"%PDF")
    assert b"partition.shots" in before["F5.svg"]
    changes: list[Progress] = []
    focoop.reproduce(["T1"], seeds=2, folder=toy, out=out, on_progress=changes.append)
    assert all(one.outcome.status == "finished" for one in changes), "nothing runs again"
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before


def test_what_is_drawn_are_the_numbers_of_the_run_folders(
    made: Made, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, out = made
    drawn: dict[str, Any] = {}

    def keep(figure: Any, stem: Path, formats: Sequence[str]) -> list[Path]:
        drawn[stem.name] = figure
        return []

    monkeypatch.setattr("focoop.paper.figures.save_figure", keep)
    focoop.reproduce(["T1", "F5"], seeds=2, folder=toy, out=out, run=False)

    def stats(*folders: str) -> tuple[list[float], list[float]]:
        """Mean and deviation over seeds of `own` in run folders."""
        values = [
            [100 * focoop.open_run(one).summary["accuracy_own"] for one in sorted(found)]
            for found in (out.glob(f"runs/{folder}/fedncm/seed*") for folder in folders)
        ]
        return [*map(statistics.mean, values)], [*map(statistics.stdev, values)]

    for name, folder, published in (("T1-toy-K=2", "toy", [61.25]), ("T1-toy-K=3", "toy-k3", [])):
        bars = drawn[name].axes[0]
        assert [one.get_title() for one in drawn[name].axes] == ["ACC, % ↑", "FPR95, % ↓"]
        means, spreads = stats(f"{folder}/toy")
        assert [patch.get_width() for patch in bars.patches] == pytest.approx(means)
        (whisker,) = bars.collections[0].get_segments()
        assert (whisker[1, 0] - whisker[0, 0]) / 2 == pytest.approx(spreads[0])
        marks = [line for line in bars.lines if line.get_label() == "paper"]
        assert [x for mark in marks for x in mark.get_xdata()] == published
    lines = drawn["F5"].axes[0]
    means, spreads = stats("toy-shots/toy-shots=1", "toy-shots/toy-shots=2")
    assert list(lines.lines[0].get_ydata()) == pytest.approx(means)
    band = lines.collections[0].get_paths()[0].vertices[:, 1]
    assert max(band) == pytest.approx(
        max(m + s for m, s in zip(means, spreads, strict=True)), abs=1e-6
    )
    assert lines.lines[1].get_ydata() == [33.3], "the paper's, at two shots"


def test_the_command_lists_and_makes(made: Made, toy: Path) -> None:
    _, _, out = made
    listed = call("paper", f"--items={toy}", f"--out={out}", "--seeds=2")
    assert listed.exit_code == 0
    assert re.search(r"T1, T7 +Toy table +4/6 +no: cifar100", listed.stdout)
    assert re.search(r"F5 +Toy sweep +4/4 +yes", listed.stdout)
    again = call("paper", "t7", f"--items={toy}", f"--out={out}", "--seeds=0,1", "--no-run")
    assert again.exit_code == 0 and str(out / "T1.md") in again.stdout
    assert "T1, not run: not here" in again.stderr
    other = call("paper", "F5", f"--items={toy}", f"--out={out}", "--set=federation.rounds=7")
    assert other.exit_code != 0 and "other settings" in other.stderr


def test_the_screen_counts_runs_and_says_how_long_is_left(toy: Path, tmp_path: Path) -> None:
    arguments = ("paper", "F5", f"--items={toy}", f"--out={tmp_path}", "--seeds=1", "--jobs=0")
    first, second, third, *_ = call(*arguments, "--formats=svg").stderr.splitlines()
    assert [first, second] == ["seed 0", "2 of 2 runs to make, a line for each:"]
    assert re.match(r"F5 \[1/2, about \d+ s left\] toy shots=1 fedncm seed 0: finished", third)
    again = call(*arguments, "--formats=svg")
    assert again.exit_code == 0 and "to make" not in again.stderr
    nothing = call(*arguments, "--packaged")
    assert nothing.exit_code == 3 and "the same command without --packaged" in nothing.stderr


def test_figures_are_of_the_kinds_asked_for(made: Made, toy: Path, tmp_path: Path) -> None:
    _, _, out = made
    shutil.copytree(out / "runs", tmp_path / "runs")
    arguments = ("paper", "F5", f"--items={toy}", f"--out={tmp_path}", "--seeds=2", "--no-run")
    assert call(*arguments, "--formats=PNG, png").exit_code == 0
    drawn = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert drawn == {"F5.md", "F5.tex", "F5.csv", "F5.json", "F5.png"}
    assert (tmp_path / "F5.png").read_bytes() == (out / "F5.png").read_bytes()
    for wrong, told in (("gif", "no format 'gif'"), (",", "names none")):
        refused = call(*arguments, f"--formats={wrong}")
        assert refused.exit_code == 2 and told in refused.stderr


def test_the_json_holds_the_numbers_and_remarks(made: Made, toy: Path) -> None:
    found, _, out = made
    item = found["T1"].item
    tree = json.loads((out / "T1.json").read_text())
    read = read_numbers(item, tree)
    assert read.document() == tree
    assert markdown(item, read.entries, read.remarks) == (out / "T1.md").read_text()
    with pytest.raises(ConfigError, match="not of T1"):
        read_numbers(item, {**tree, "item": "T2"})
    with pytest.raises(ConfigError, match="cannot be read"):
        read_numbers(item, {**tree, "numbers": [[1]]})


def test_bad_requests_are_refused(toy: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no item 'T2'"):
        focoop.reproduce("T2", folder=toy, out=tmp_path)
    with pytest.raises(ConfigError, match="asks for no run"):
        focoop.reproduce("T1", folder=toy, out=tmp_path, seeds=0)
    with pytest.raises(ConfigError, match="no folder"):
        focoop.reproduce("T1", folder=tmp_path / "none", out=tmp_path)
    with pytest.raises(ConfigError, match=r"F5, toy: .*focop"):
        focoop.reproduce("F5", folder=toy, out=tmp_path, methods=["focop"])
    nothing = call("paper", "F5", f"--items={toy}", f"--out={tmp_path}", "--no-run")
    assert nothing.exit_code != 0 and "no run is finished" in nothing.stderr
    assert list(tmp_path.iterdir()) == []


def command(items: Path, out: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "focoop", "paper", "all", f"--items={items}", f"--out={out}"),
        *("--seeds=2", "--jobs=0"),
    ]


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}


@pytest.mark.slow
def test_killed_in_the_middle_and_resumed_equals_unkilled(tmp_path: Path) -> None:
    items = write_items(tmp_path / "data", ("promptfl", "focoop"), rounds=3)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    subprocess.run(command(items, whole), check=True, capture_output=True, timeout=TIMEOUT)
    killed = 0
    for wanted in (1, 5):  # within the first runs of the table, and further on
        with subprocess.Popen(
            command(items, cut), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            end = time.monotonic() + TIMEOUT
            while process.poll() is None and time.monotonic() < end:
                if len(list(cut.glob("runs/*/*/*/seed*/metrics.jsonl"))) >= wanted:
                    process.kill()
                    break
                time.sleep(0.02)
            process.kill()
            killed += process.wait(timeout=30) != 0
    assert killed == 2 and contents(cut) != contents(whole)
    done = subprocess.run(command(items, cut), check=True, capture_output=True, timeout=TIMEOUT)
    assert b"F6-toy.svg" in done.stdout or (cut / "F6-toy.svg").exists()
    assert contents(cut) == contents(whole)
    assert {"T1.md", "T1.tex", "T1.csv", "F5.svg", "F6-toy.csv"} <= set(contents(whole))


@pytest.mark.slow
def test_a_map_has_the_cosines_of_images_and_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []

    def keep(figure: Any, stem: Path, formats: Sequence[str]) -> list[Path]:
        drawn.append(figure)
        return []

    monkeypatch.setattr("focoop.paper.figures.save_figure", keep)
    items = write_items(tmp_path, QUICK)
    focoop.reproduce("F6", seeds=1, folder=items, out=tmp_path / "out")
    run = focoop.open_run(tmp_path / "out" / "runs" / "toy-map" / "toy" / "focoop" / "seed0")
    images = run.images("test")
    with (tmp_path / "out" / "F6-toy.csv").open(newline="") as stream:
        head, *lines = list(csv.reader(stream))
    assert head[1:5] == list(run.class_names) and len(head) == 1 + 4 + 3
    for number, line in enumerate(lines):
        some = images.pooled[images.labels == number].numpy()
        for at, name in ((number, "id"), (5, "ood")):
            expected = 0.0
            for client in (0, 1):
                prompts = run.text_features(client)[name]
                row = prompts[at if name == "id" else at - 4]
                cosines = some @ row / (row @ row) ** 0.5
                expected += float((cosines / (some * some).sum(1) ** 0.5).mean()) / 2
            assert float(line[1 + at]) == pytest.approx(expected, abs=2e-5)
    (picture,) = drawn[0].axes[0].images
    written = [[float(value) for value in line[1:]] for line in lines]
    assert picture.get_array().tolist() == [pytest.approx(row, abs=1e-6) for row in written]
    with pytest.raises(RunError, match="other settings"):
        other = {"negatives.count": 4}
        focoop.reproduce("F6", overrides=other, seeds=1, folder=items, out=tmp_path / "out")
