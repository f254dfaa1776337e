"""A report shows the numbers of its run folders, needs no network, and says what it leaves out."""

import base64
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn import metrics as oracle

import focoop
from focoop.errors import RunError
from focoop.experiments import tables
from focoop.features.lookup import save_splits
from focoop.report import collect_runs
from focoop.report.detection import GRID, bin_edges, precision_curve, roc_curve
from focoop.report.drawings import frontier, learning_curves, server_curves, steady_numbers
from focoop.report.sections import bars_table, partition, steady, transport_plan
from focoop.runs import RunFolder
from tests.toy_command import call
from tests.toy_setting import images, write_setting

QUICK = {"federation.evaluate_every": 1, "negatives.count": 4, "method.context_tokens": 2}


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two methods and two seeds, as `focoop compare` leaves them."""
    folder = tmp_path_factory.mktemp("report")
    setting = write_setting(folder / "data")
    focoop.compare(
        setting, ["focoop", "promptfl"], seeds=[0, 1], overrides=QUICK, out=folder / "out"
    )
    return folder / "out"


@pytest.fixture(scope="module")
def page(grid: Path) -> str:
    return focoop.write_report(grid, grid / "report.html").read_text("utf-8")


def charts(page: str) -> dict[str, Any]:
    found = re.search(r'id="charts">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    drawn: dict[str, Any] = json.loads(found.group(1))
    return drawn


def test_the_table_holds_the_numbers_of_the_run_folders(grid: Path, page: str) -> None:
    tables_of_page = [part.split("</table>")[0] for part in page.split('class="results"')[1:]]
    rows: dict[str, str] = {}
    for table in tables_of_page:
        for label, cells in re.findall(r'<tr><th scope="row">(\w+)</th>(<td.*?)</tr>', table):
            rows[label] = rows.get(label, "") + cells
    for label in ("focoop", "promptfl"):
        runs = [
            focoop.open_run(path.parent) for path in sorted(grid.glob(f"toy/{label}/*/config.toml"))
        ]
        assert len(runs) == 2
        stats = tables.over_seeds([run.summary for run in runs])
        shown = re.findall(r'title="([^"]*)">(-?[\d.]+)</a>.*?±(-?[\d.]+)', rows[label])
        assert [(f"{s.mean:.1f}", f"{s.spread:.1f}") for s in stats.values()] == [
            (mean, spread) for _, mean, spread in shown
        ]
        own = [f"seed {run.config.seed}: {100 * run.summary['accuracy_own']:.2f}" for run in runs]
        assert shown[0][0].startswith("; ".join(own))


def test_charts_hold_the_numbers_of_the_run_folders(grid: Path, page: str) -> None:
    drawn = charts(page)["s0"]
    run = focoop.open_run(grid / "toy/focoop/seed0")
    other = focoop.open_run(grid / "toy/focoop/seed1")
    own = next(c for c in drawn["curves"] if c["title"].startswith("own"))
    line = next(line for line in own["lines"] if line["name"] == "focoop")
    assert line["x"] == [entry["round"] for entry in run.metrics]
    means = [
        50 * (a["accuracy_own"] + b["accuracy_own"])
        for a, b in zip(run.metrics, other.metrics, strict=True)
    ]
    assert line["y"] == pytest.approx(means, rel=1e-3)
    scores = run.scores("far", client=0)
    histogram = next(c for c in drawn["histograms"] if c["title"].startswith("focoop: scores"))
    assert sum(histogram["lines"][1]["y"][:-1]) == pytest.approx(100, rel=1e-2)  # four digits each
    assert histogram["mark"] == pytest.approx(run.clients[0]["threshold"], rel=1e-4)
    assert len(scores) == 16
    changing = {c["title"] for c in drawn["server"]}
    assert changing and "distinct OOD words" not in changing
    assert "The same in every round: distinct OOD words: " in page
    assert {chart["title"] for chart in drawn["clients"]}


def test_bars_and_points_are_the_numbers_of_the_run_folders(grid: Path, page: str) -> None:
    table = page.split('class="bars"')[1].split("</table>")[0]
    bars = r'style="width:([\d.]+)%"></span><a[^>]*>([\d.]+)<'
    for label in ("focoop", "promptfl"):
        runs = [focoop.open_run(grid / f"toy/{label}/seed{seed}").summary for seed in (0, 1)]
        means = [
            50 * sum(run["ood"]["far"][metric] for run in runs) for metric in ("auroc", "fpr95")
        ]
        row = table.split(f'<th scope="row">{label}</th>')[1].split("</tr>")[0]
        assert re.findall(bars, row) == [(f"{mean:.1f}", f"{mean:.1f}") for mean in means]
    by_type = [{"fog": 0.25, "snow": 0.5}, {"fog": 0.5, "snow": 0.75}]
    records = [
        replace(record, metrics=[{**record.last, "corrupted_by_type": found}])
        for record, found in zip(collect_runs([grid]).records, by_type, strict=False)
    ]
    damaged = bars_table({"a": records}, "corrupted_by_type", "x")
    assert re.findall(bars, damaged) == [("37.5", "37.5"), ("62.5", "62.5")]
    drawing = page.split('class="strip"')[1].split("</svg>")[0]
    ticks = [float(x) for x in re.findall(r'class="tick" x="([\d.]+)"', drawing)]
    points = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', drawing)]
    order = re.findall(r'class="name"[^>]*>(\w+)<', drawing)
    expected = [
        row["accuracy_own"]
        for label in order
        for row in focoop.open_run(grid / f"toy/{label}/seed0").clients
    ]
    shares = [(x - ticks[0]) / (ticks[-1] - ticks[0]) for x in points]
    assert sorted(order) == ["focoop", "promptfl"]
    assert shares == pytest.approx(expected, abs=1e-3)


def test_the_area_under_a_roc_curve_is_the_runs_auroc(grid: Path, page: str) -> None:
    (drawn,) = [c for c in charts(page)["s0"]["detection"] if c["title"] == "far: ROC, %"]
    for line in drawn["lines"]:
        run = focoop.open_run(grid / f"toy/{line['name']}/seed0")
        area = np.trapezoid(np.array(line["y"]) / 100, np.array(line["x"]) / 100)
        # A curve drawn at 101 places leans by one of them where it jumps.
        assert area == pytest.approx(run.summary["ood"]["far"]["auroc"], abs=6e-3)


def test_the_transport_plan_has_the_seemly_words_before_a_line(grid: Path) -> None:
    (record,) = [
        one
        for one in collect_runs([grid]).records
        if (one.folder.config.method.name, one.seed) == ("focoop", 0)
    ]
    committed = record.folder.resume_point()
    assert committed is not None
    mass = committed.memory["plan_by_word"].double().sum(0).tolist()
    seemly = committed.memory["seemly"].bool().tolist()
    picked = sorted((at for at in range(len(mass)) if seemly[at]), key=lambda at: -mass[at])
    assert 0 < len(picked) < len(mass)
    html = transport_plan(record)
    names = ", ".join(record.folder.negative_words[at] for at in picked)
    assert f"the {len(picked)} words judged seemly (like a class): {names}." in html
    assert f'class="cut" style="left:{100 * len(picked) / len(mass):.2f}%"' in html
    encoded = re.findall(r"base64,([^\"]+)", html)
    pixels = np.array(Image.open(io.BytesIO(base64.b64decode(encoded[0]))).convert("RGB"))
    empty = (pixels == 236).all(axis=(0, 2)).tolist()
    rest = sorted((at for at in range(len(mass)) if not seemly[at]), key=lambda at: -mass[at])
    assert empty == [mass[at] <= 0 for at in [*picked, *rest]]


def test_rounding_errors_of_the_transport_are_no_curve(grid: Path) -> None:
    record = next(one for one in collect_runs([grid]).records if one.label == "focoop")
    rounds = [
        {"round": number, "server": {"transport_gap": gap, "spread": 1.0 + number}}
        for number, gap in ((1, 0.0), (2, 3e-17), (3, -1e-18))
    ]
    rows = {"focoop": [replace(record, rounds=rounds)]}
    assert [chart["title"] for chart in server_curves(rows)] == [
        "spread of the global class prompts"
    ]
    assert ("gap of the transport", "focoop", 0.0) in steady_numbers(rows)


def test_a_partition_where_all_hold_the_same_is_told_in_words(
    grid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = collect_runs([grid]).records[0]
    assert 'class="matrix"' in partition(record)
    names = record.folder.names
    assert names is not None
    clients = [replace(one, train=dict.fromkeys(names.classes, 8)) for one in names.clients]
    monkeypatch.setattr(
        type(record.folder), "names", property(lambda _: replace(names, clients=tuple(clients)))
    )
    html = partition(record)
    assert "matrix" not in html
    assert f"has 8 images of each of the {len(names.classes)} classes." in html


def test_what_the_server_saw_in_every_round_is_told_once_for_all_methods(grid: Path) -> None:
    record = next(one for one in collect_runs([grid]).records if one.label == "focoop")
    same = [{"round": number, "server": {"distinct_words": 100}} for number in (1, 2)]
    rows = {label: [replace(record, rounds=same)] for label in ("a", "b")}
    assert "distinct OOD words: 100 (a, b)." in steady(rows)


def test_it_needs_nothing_but_itself(page: str) -> None:
    assert not re.findall(r'(?:src|href)="(?!data:|#|\.\./|toy/)', page)
    assert "{{" not in page.split("<script>")[0]
    assert "default-src 'none'" in page and "MIT License" in page
    assert "transport" in page.lower() and 'class="matrix"' in page


def test_every_run_is_linked(grid: Path, page: str) -> None:
    for path in re.findall(r'<a href="(toy/[^"]+)"', page):
        assert (grid / path / "config.toml").is_file()
    for anchor in set(re.findall(r'href="#(s0[^"]*)"', page)):
        assert f'id="{anchor}"' in page


def test_every_number_of_a_table_leads_to_the_runs_of_its_method(page: str) -> None:
    body = page.split("<main>")[1].split("</main>")[0]
    index = body.split('class="runs"')[1]
    anchors = dict(re.findall(r'<tr id="(s0-runs-\d)"><th scope="row">(\w+)</th>', index))
    assert set(anchors.values()) == {"focoop", "promptfl"}
    tables_of_page = re.findall(r'class="(?:results|bars)">.*?</table>', body, re.DOTALL)
    assert len(tables_of_page) >= 4, "results, OOD sets, corrupted images, bytes"
    for table in tables_of_page:
        for label, cells in re.findall(r'<tr><th scope="row">(\w+)</th>(.*?)</tr>', table):
            numbers = [cell for cell in re.findall(r"<td.*?</td>", cells) if "–" not in cell]
            if 'class="results"' in table:
                numbers = numbers[:-1]  # the last column counts seeds
            targets = [re.findall(r'<a href="#([^"]+)"', cell) for cell in numbers]
            assert targets and all(anchors[target] == label for (target,) in targets)


def test_unfinished_runs_stand_apart_and_empty_ones_are_named(grid: Path, tmp_path: Path) -> None:
    shutil.copytree(grid / "toy", tmp_path / "toy")
    (tmp_path / "toy/promptfl/seed1/metrics.jsonl").unlink()
    RunFolder.open(tmp_path / "toy/focoop/seed1", writable=True).finish("interrupted")
    collection = collect_runs([tmp_path])
    labels = collection.by_setting()["toy"]
    assert {label: len(records) for label, records in labels.items()} == {
        "focoop": 1,
        "focoop (interrupted)": 1,
        "promptfl": 1,
    }
    assert [Path(path).name for path in collection.unused] == ["seed1"]


def test_loose_runs_are_named_by_what_differs(tmp_path: Path) -> None:
    setting = write_setting(tmp_path / "data")
    for share in (0.1, 0.9):
        settings = {"method.name": "fedncm", "method.open_share": share}
        focoop.run(setting, settings, out=tmp_path / f"runs/{share}")
    labels = sorted(record.label for record in collect_runs([tmp_path / "runs"]).records)
    assert labels == ["fedncm (open_share=0.1)", "fedncm (open_share=0.9)"]


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_no_run_is_an_error_that_says_so(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="no folder|no run"):
        focoop.write_report(tmp_path / name, tmp_path / "out.html")


def test_curves_are_those_of_scikit_learn() -> None:
    draw = np.random.default_rng(0)
    known, foreign = draw.normal(0, 1, 400).round(1), draw.normal(1, 1, 300).round(1)
    labels = np.r_[np.zeros(400), np.ones(300)]
    scores = np.r_[known, foreign]
    area = np.trapezoid(roc_curve(known, foreign), GRID)
    assert area == pytest.approx(oracle.roc_auc_score(labels, scores), abs=2e-3)
    precision, recall, _ = oracle.precision_recall_curve(labels, scores)
    expected = np.interp(GRID, recall[::-1], precision[::-1])
    assert precision_curve(known, foreign)[5:] == pytest.approx(expected[5:], abs=0.02)


def test_charts_without_numbers_are_left_out() -> None:
    assert learning_curves({}) == [] and frontier({}) == []


@pytest.mark.slow
def test_a_hundred_runs_stay_small(grid: Path, tmp_path: Path) -> None:
    for number in range(100):
        shutil.copytree(
            grid / "toy/focoop/seed0", tmp_path / f"setting{number % 5}/m{number // 5}/seed0"
        )
    path = focoop.write_report(tmp_path, tmp_path / "report.html", details=False)
    assert path.stat().st_size < 5e6


@pytest.mark.parametrize("scores", [[-1.0] * 9, [0.0, *[2.0] * 300], [1e8, 1e8 + 1, 3e8]])
def test_bins_hold_all_scores_however_they_lie(scores: list[float]) -> None:
    found = {"own": np.array(scores), "far": np.array(scores[:3])}
    edges = bin_edges(found)
    assert (np.diff(edges) >= 0).all()
    for values in found.values():
        assert np.histogram(values, edges)[0].sum() == len(values)


def test_settings_of_the_same_name_in_two_grids_stay_apart(grid: Path, tmp_path: Path) -> None:
    for name in ("toy-texture", "other"):
        shutil.copytree(grid / "toy" / "promptfl", tmp_path / name / "toy" / "promptfl")
    settings = collect_runs([tmp_path]).by_setting()
    assert set(settings) == {"toy-texture", "other/toy"}
    assert all(len(rows["promptfl"]) == 2 for rows in settings.values())


@pytest.mark.slow
def test_runs_of_ready_features_are_asked_again_with_the_same_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOCOOP_DATA", str(tmp_path / "no-images"))
    ready, out = tmp_path / "ready", tmp_path / "out"
    setting = write_setting(tmp_path / "data")
    ready.mkdir()
    textures = ("banded", "braided", "lined", "scaly")  # classes of DTD
    splits = {name: replace(images(name, 8), classes=textures) for name in ("train", "test")}
    save_splits(ready / "dtd.safetensors", splits)
    run = ["compare", str(setting), "--methods", "zeroshot", "--seeds", "1", "--jobs", "0"]
    run += ["--set", "data.id=dtd", "--out", str(out)]
    made = call(*run, "--features", str(ready))
    assert made.exit_code == 0, made.stderr
    told = []
    for name, more in (("without", ()), ("with", ("--features", str(ready)))):
        monkeypatch.setenv("FOCOOP_FEATURES", "")
        file = tmp_path / f"{name}.html"
        assert call("report", str(out), "--out", str(file), *more).exit_code == 0
        told.append("could not be asked again" in file.read_text("utf-8"))
    assert told == [True, False]
