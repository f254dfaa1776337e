"""Tuning: equal budgets, no test data, and a choice that follows from the evidence."""

import csv
import json
import math
import tomllib
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from focoop.caching import sealed
from focoop.cli import app
from focoop.config.loading import from_dict
from focoop.config.writing import to_dict
from focoop.errors import ConfigError
from focoop.experiments import tuning, tuning_report
from focoop.experiments.answering import ANSWERS, answers_of
from focoop.experiments.comparison import Outcome, run
from focoop.experiments.grid import Cell, plan
from focoop.fields import grids
from focoop.methods import Answering, available
from tests.toy_setting import write_setting

FEW = {"validation": 3}


def toy_studies(
    tmp_path: Path, methods: str, budget: int, **given: Any
) -> list[tuning_report.Study]:
    setting = write_setting(tmp_path / "data")
    return tuning.studies(setting, methods, budget, tmp_path / "out", **{**FEW, **given})


def points(study: tuning_report.Study) -> list[dict[str, Any]]:
    return [tuning_report.point_of(cell.config, study.keys) for cell in study.cells]


def outcome(study: tuning_report.Study, number: int, **values: float | None) -> Outcome:
    summary = {
        "accuracy_own": values.get("own", 0.5),
        "accuracy_own_alone": values.get("own", 0.5),
        "frontier": {"ausuc": 0.25},
        "accuracy_all": 0.25,
        "cross_alarm": values.get("alarm", 0.1),
        "ood": {
            "a": {"auroc": values.get("auroc", 0.5), "fpr95": 0.2, "fpr95_oodpos": 0.3},
            "b": {"auroc": 0.5, "fpr95": 0.4, "fpr95_oodpos": 0.5},
        },
    }
    return Outcome(study.cells[number], "finished", 2, summary)


def read_csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


# The sample


def test_every_method_gets_the_same_budget_and_its_default_first(tmp_path: Path) -> None:
    for study in toy_studies(tmp_path, "promptfl,focoop", 6):
        found = points(study)
        assert len(found) == 6 and len({json.dumps(point) for point in found}) == 6
        default = from_dict({"method": {"name": study.label}})
        assert found[0] == tuning_report.point_of(default, study.keys)
        space = tuning.space(default)
        assert all(point[key] in space[key] for point in found[1:] for key in space)
        assert study.size == len(list(product(*space.values())))
        # Nothing but the point differs between trials.
        first = to_dict(study.cells[0].config)
        assert first["backbone"]["logit_scale"] == tuning.RATE_SCALE  # rates are stated for it
        for cell, point in zip(study.cells, found, strict=True):
            assert from_dict(tuning.placed(first, point)) == cell.config


def test_a_small_space_is_tried_whole(tmp_path: Path) -> None:
    (study,) = toy_studies(tmp_path, "zeroshot", 50, overrides=["federation.rounds=1"])
    assert study.keys == () and len(study.trials) == study.size == 1  # nothing is trained
    (study,) = toy_studies(tmp_path, "fedpgp", 500, overrides=["federation.lr=1.0"])
    grid = {
        f"method.{name}": values for name, values in grids(available()["fedpgp"].Config).items()
    }
    expected = {json.dumps(tuning.decode(i, grid)) for i in range(study.size)}
    assert expected == {json.dumps(point) for point in points(study)}


def test_the_sample_is_seeded_and_grows_by_its_end(tmp_path: Path) -> None:
    (few,) = toy_studies(tmp_path, "promptfl", 4)
    (same,) = toy_studies(tmp_path, "promptfl", 4)
    (more,) = toy_studies(tmp_path, "promptfl", 9)
    (other,) = toy_studies(tmp_path, "promptfl", 9, seed=1)
    assert few == same
    assert more.cells[:4] == few.cells  # the same folders: nothing is run twice
    assert points(other)[1:] != points(more)[1:]


def test_what_is_set_does_not_vary(tmp_path: Path) -> None:
    (study,) = toy_studies(
        tmp_path, "promptfl:federation.lr=0.5", 3, overrides=["backbone.logit_scale=7"]
    )
    assert "federation.lr" not in study.keys
    assert {cell.config.federation.lr for cell in study.cells} == {0.5}
    assert {cell.config.backbone.logit_scale for cell in study.cells} == {7.0}


@pytest.mark.parametrize("name", available())
def test_declared_grids_hold_allowed_values(name: str) -> None:
    default = from_dict({"method": {"name": name}})
    for key, values in tuning.space(default).items():
        assert len(set(values)) == len(values) > 1, key
        for value in values:
            tree = tuning.placed(to_dict(default), {key: value})
            try:
                kept = tuning_report.point_of(from_dict(tree), [key])[key]
                assert kept == (list(value) if isinstance(value, tuple) else value)
            except ConfigError as error:
                # One value may need another setting; the value itself must be allowed.
                assert f"{key} = " not in str(error), error


def test_decode_counts_through_the_product() -> None:
    grid = {"a.x": (1, 2, 3), "b.y": ("p", "q")}
    expected = [dict(zip(grid, point, strict=True)) for point in product(*grid.values())]
    assert [tuning.decode(i, grid) for i in range(6)] == expected


# No test data


def test_the_test_split_is_not_opened(tmp_path: Path) -> None:
    setting = write_setting(tmp_path / "data", data="train_only")  # there is no test split
    studies = tuning.studies(setting, "zeroshot", 1, tmp_path / "out", validation=3)
    (found,) = tuning.tune(studies, {"own": 1.0}, jobs=0, watch=lambda outcome: None)
    assert found.best is not None and found.best.status == "finished"
    (summary,) = found.best.summaries
    assert summary is not None and list(summary["ood"]) == ["held"]
    clients = json.loads(
        (found.best.outcomes[0].cell.folder / "metrics.jsonl").read_text().splitlines()[-1]
    )["clients"]
    assert sum(row["num_test"] for row in clients) == 3 * 4  # of four classes
    (cell,) = plan([setting], "zeroshot", (0,), tmp_path / "test")
    assert "no 'test' rows" in run([cell], jobs=0)[0].error  # the file indeed has none


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"validation": 0}, "data.validation must be > 0"),
        ({"overrides": ["data.validation=0"]}, "data.validation must be > 0"),
        ({"overrides": ['data.ood=["demo:dtd_32px"]']}, "not chosen on test sets"),
        ({"overrides": ['data.corrupted=["demo:cifar100#fog"]']}, "not chosen on test sets"),
    ],
)
def test_test_images_are_refused(tmp_path: Path, given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        toy_studies(tmp_path, "zeroshot", 2, **given)


def test_as_many_images_validate_as_fit(tmp_path: Path) -> None:
    for methods in ("fedncm", "fedncm,promptfl"):
        for study in toy_studies(tmp_path, methods, 1, validation=None):  # 30 of 8 images a class
            assert [cell.config.data.validation for cell in study.cells] == [4]
    assert toy_studies(tmp_path, "fedncm", 1, validation=7)[0].cells[0].config.data.validation == 7
    for asked in ({"validation": 8}, {"validation": None, "overrides": ["data.validation=8"]}):
        with pytest.raises(ConfigError, match="'apple' has 8 training images; the most.* is 7"):
            toy_studies(tmp_path, "fedncm", 1, **asked)


def test_test_ood_sets_are_refused(tmp_path: Path) -> None:
    setting = write_setting(tmp_path / "data")
    far = f"file:{tmp_path / 'data'}/far.safetensors"
    with pytest.raises(ConfigError, match="is a test OOD set"):
        toy_studies(tmp_path, "zeroshot", 2, ood=[far])
    lines = [line for line in setting.read_text().splitlines() if "validation_ood" not in line]
    setting.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="names no validation OOD sets"):
        tuning.studies(setting, "zeroshot", 2, tmp_path / "out")
    (study,) = tuning.studies(setting, "zeroshot", 2, tmp_path / "out", ood=["demo:sun_32px"])
    assert study.cells[0].config.data.validation_ood == ("demo:sun_32px",)
    # A file about validation images names validation sets.
    setting.write_text(setting.read_text().replace("[data]", "[data]\nvalidation = 2"))
    (study,) = tuning.studies(setting, "zeroshot", 2, tmp_path / "out")
    data = study.cells[0].config.data
    assert (data.validation, data.validation_ood, data.ood) == (2, (far,), ())


# The choice


def test_objective_is_a_weighted_mean(tmp_path: Path) -> None:
    (study,) = toy_studies(tmp_path, "promptfl", 2)
    summary = outcome(study, 0, own=0.8, auroc=0.9, alarm=0.3).summary
    assert summary is not None
    weights = tuning_report.parse_objective("own=2, auroc=1,alarm=-1")
    by_hand = (2 * 0.8 + (0.9 + 0.5) / 2 - 0.3) / 4
    assert tuning_report.objective(summary, weights) == pytest.approx(by_hand)
    assert tuning_report.objective({**summary, "cross_alarm": None}, weights) is None
    assert set(tuning_report.parse_objective(tuning_report.OBJECTIVE)) == {
        "own_alone", "all", "area", "auroc"
    }  # fmt: skip
    for wrong in ("owm=1", "own=x", "own=0", "own=inf", ""):
        with pytest.raises(ConfigError, match="--objective"):
            tuning_report.parse_objective(wrong)


def test_the_choice_is_the_best_of_the_evidence(tmp_path: Path) -> None:
    (study,) = toy_studies(tmp_path, "promptfl", 5)
    outcomes = [
        outcome(study, 0, own=0.5),
        outcome(study, 1, own=0.9),
        outcome(study, 2, own=0.9),  # as good, but later
        Outcome(study.cells[3], "failed", error="Traceback\nRuntimeError: no"),
        outcome(study, 4, own=0.95, auroc=None),  # no AUROC: cannot be compared
    ]
    outcomes[4].summary["ood"] = {}  # type: ignore[index]
    weights = tuning_report.parse_objective(tuning_report.OBJECTIVE)
    found = tuning_report.choose(study, outcomes, weights)
    assert [trial.number for trial in found.trials] == [1, 2, 0, 3, 4]
    assert found.best is not None and found.best.number == 1
    tuning_report.write_choice(found, weights, tmp_path / "out", tmp_path / "presets", "@toy")
    rows = read_csv(tmp_path / "out" / "promptfl.csv")
    values = {int(row["trial"]): float(row["objective"]) for row in rows if row["objective"] != "-"}
    assert max(values, key=lambda number: values[number]) == found.best.number
    assert values[1] == pytest.approx(100 * (0.9 + 0.25 + 0.25 + 0.5) / 4)
    preset = tomllib.loads((tmp_path / "presets" / "promptfl@toy.toml").read_text())
    assert preset["federation"]["lr"] == points(study)[1]["federation.lr"]
    assert preset["backbone"]["logit_scale"] == tuning.LOGIT_SCALES["mini"]
    text = (tmp_path / "out" / "promptfl.md").read_text()
    assert "RuntimeError: no" in text and text.count("\n| ") == 5 + 2
    none = tuning_report.choose(study, [Outcome(cell, "failed") for cell in study.cells], weights)
    assert none.best is None and none.presets == {}


def test_the_command_writes_a_preset_that_compare_takes(tmp_path: Path) -> None:
    setting = write_setting(tmp_path / "data", rounds=1)
    presets = tmp_path / "presets"
    call = ["tune", str(setting), "--methods=zeroshot,promptfl", "--budget=3"]
    call += ["--validation=3", f"--out={tmp_path / 'out'}", f"--write={presets}", "--jobs=0"]
    call += ["--set", "federation.lr_schedule=cosine"]
    result = CliRunner().invoke(app, call)
    assert result.exit_code == 0, result.stderr
    assert "promptfl  3/3" in result.stdout and "[4/4]" in result.stderr
    rows = read_csv(tmp_path / "out" / "promptfl.csv")
    best = max(rows, key=lambda row: (float(row["objective"]), -int(row["trial"])))
    text = (presets / "promptfl.toml").read_text()
    size = math.prod(map(len, tuning.space(from_dict({"method": {"name": "promptfl"}})).values()))
    answers = len(answers_of(from_dict({"method": {"name": "promptfl"}}))) + 1
    assert text.startswith("# Chosen on 20") and text.splitlines()[1] == ""  # one line says it
    told = f"3 trials of {size} points, each under {answers} answers (score and prior); objective "
    assert f"{told}own_alone=1, all=1, area=1, auroc=1: {best['objective']} (first trial: " in text
    (cell,) = plan([setting], "promptfl", (0,), tmp_path / "runs", presets=presets)
    assert cell.config.federation.lr == float(best["federation.lr"])
    assert cell.config.backbone.logit_scale == tuning.LOGIT_SCALES["mini"]
    assert cell.config.federation.lr_schedule == "cosine"  # part of what was chosen
    for name in ("score", "temperature", "open_share"):
        assert str(getattr(cell.config.method.settings, name)) == best[f"method.{name}"]
    assert cell.config.data.validation == 0  # the comparison is made on the test images
    again = CliRunner().invoke(app, [*call, "--json"])  # all trials are found finished
    (_, found) = json.loads(again.stdout)
    assert [trial["trial"] for trial in found["trials"]] == [int(row["trial"]) for row in rows]
    assert math.isclose(100 * found["trials"][0]["value"], float(best["objective"]), abs_tol=0.01)
    assert (presets / "promptfl.toml").read_text() == text


# Several settings


def test_a_trial_on_several_settings_counts_by_their_mean(tmp_path: Path) -> None:
    """The same points everywhere; what is best on one setting may lose to what suits both."""
    setting = write_setting(tmp_path / "data")
    other = setting.with_name("other.toml")
    other.write_text(setting.read_text())
    (study,) = tuning.studies([setting, other], "promptfl", 3, tmp_path / "out", validation=3)
    assert study.settings == (setting.stem, "other") and len(study.cells) == 6
    for cells in study.trials:
        assert cells[0].config == cells[1].config  # settings of one content
    values = {0: (0.5, 0.5), 1: (0.9, 0.2), 2: (0.6, 0.7)}
    outcomes = [
        outcome(study, 2 * trial + place, own=own)
        for trial, pair in values.items()
        for place, own in enumerate(pair)
    ]
    found = tuning_report.choose(study, outcomes, {"own": 1.0})
    assert [trial.number for trial in found.trials] == [2, 1, 0]
    assert found.trials[0].values == (0.6, 0.7) and found.trials[0].value == pytest.approx(0.65)
    # Without a say of the first setting trial 2 is best, without one of the second trial 1.
    assert tuning_report.left_out(found) == pytest.approx({setting.stem: 0.3, "other": 0.5})
    text = tuning_report.evidence(found, {"own": 1.0})
    assert f"{setting.stem} 30.00, other 50.00; mean 40.00" in text
    outcomes[5] = Outcome(study.cells[5], "failed", error="RuntimeError: no")
    assert tuning_report.choose(study, outcomes, {"own": 1.0}).trials[0].number == 1
    with pytest.raises(ConfigError, match="each once"):
        tuning.studies([setting, setting], "promptfl", 3, tmp_path / "out", validation=3)


def test_a_rate_means_the_same_on_both_families(tmp_path: Path) -> None:
    """Ten times the logit scale: a hundredth of the rate, and a preset for each family."""
    setting = write_setting(tmp_path / "data")
    other = setting.with_name("clip.toml")
    other.write_text(f'{setting.read_text()}\n[backbone]\nname = "local-dir:somewhere"\n')
    (study,) = tuning.studies([setting, other], "promptfl", 4, tmp_path / "out", validation=3)
    for mini, clip in study.trials:
        assert mini.config.backbone.logit_scale == 10.0
        assert clip.config.backbone.logit_scale == 100.0
        assert clip.config.federation.lr == pytest.approx(mini.config.federation.lr / 100)
        assert mini.config.method == clip.config.method
    outcomes = [outcome(study, number) for number in range(8)]
    found = tuning_report.choose(study, outcomes, {"own": 1.0})
    assert set(found.presets) == {"promptfl", "clip/promptfl"}
    assert "logit_scale = 100.0" in found.presets["clip/promptfl"]
    written = tuning_report.write_choice(found, {"own": 1.0}, tmp_path / "o", tmp_path / "p")
    assert tmp_path / "p" / "clip" / "promptfl.toml" in written
    (cell,) = plan([other], "promptfl", (0,), tmp_path / "runs", presets=tmp_path / "p")
    assert cell.config.backbone.logit_scale == 100.0


# Answers after training


def measured(summary: Any) -> dict[str, Any]:
    """The numbers that an objective may weigh."""
    return {name: measure(summary) for name, measure in tuning_report.MEASURES.items()}


@pytest.mark.parametrize(
    "method",
    [
        "promptfl",
        "centralized",
        pytest.param("focoop", marks=pytest.mark.slow),
        pytest.param("local_only", marks=pytest.mark.slow),
        pytest.param("zeroshot", marks=pytest.mark.slow),
        pytest.param("promptfolio", marks=pytest.mark.slow),
        pytest.param("fedpgp", marks=pytest.mark.slow),
        pytest.param("fedlapt", marks=pytest.mark.slow),
    ],
)
def test_an_answer_is_what_a_run_with_its_settings_reaches(tmp_path: Path, method: str) -> None:
    """Training knows neither score nor prior: a run with them set gives the same numbers."""
    (study,) = toy_studies(tmp_path, method, 1, overrides=["federation.rounds=1"])
    (found,) = tuning.tune([study], {"own": 1.0}, jobs=0, watch=lambda outcome: None)
    summary = found.trials[0].outcomes[0].summary
    assert summary is not None and len(summary["answers"]) == len(study.answers) - 1 > 50
    places = {json.dumps(point, sort_keys=True): i for i, point in enumerate(study.answers)}
    own = {"score_scale": 30.0, "ood_weight": 0.3} if method == "focoop" else {"temperature": 0.03}
    for point in (
        {"score": "energy", "temperature": 0.1, "open_share": 0.6},
        {"score": "id_mass" if method == "focoop" else "mcm", "open_share": 0.0, **own},
    ):
        dotted = {f"method.{name}": value for name, value in point.items()}
        kept = summary["answers"][places[json.dumps(dotted, sort_keys=True)] - 1]
        config = from_dict(tuning.placed(to_dict(study.cells[0].config), dotted))
        (alone,) = run([Cell("toy", method, config, tmp_path / point["score"])], jobs=0)
        assert alone.status == "finished", alone.error
        assert measured(alone.summary) == pytest.approx(measured(kept), abs=1e-6)


def test_every_trained_method_has_the_same_scores_and_priors() -> None:
    common: list[str] | None = None
    for name, kind in available().items():
        if not issubclass(kind, Answering):
            assert kind.closed_form or name == "focoop_plus"
            continue
        config = from_dict({"method": {"name": name}})
        points = [
            json.dumps(point, sort_keys=True)
            for point in answers_of(config)
            if point["method.score"] in ("mcm", "energy", "max_cosine")
        ]
        common = common or points
        assert points == common and len(points) == 9 * 6
        own = {point["method.score"] for point in answers_of(config)}
        assert config.method.settings.score in own  # type: ignore[union-attr]
        assert not {"score", "temperature", "open_share", "score_scale"} & set(grids(kind.Config))


def test_what_is_set_does_not_vary_after_training_either(tmp_path: Path) -> None:
    fixed = ["method.score=energy", "method.open_share=0.3"]
    (study,) = toy_studies(tmp_path, "promptfl", 1, overrides=fixed)
    assert {point["method.temperature"] for point in study.answers[1:]} == {1.0, 0.1, 0.03, 0.01}
    assert {point["method.score"] for point in study.answers[1:]} == {"energy"}
    assert {point["method.open_share"] for point in study.answers[1:]} == {0.3}


def test_a_trial_counts_by_its_best_answer(tmp_path: Path) -> None:
    (study,) = toy_studies(tmp_path, "promptfl", 1)
    plain, better = outcome(study, 0, own=0.5), outcome(study, 0, own=0.9)
    assert plain.summary is not None and better.summary is not None
    answers = [dict(plain.summary) for _ in study.answers[1:]]
    answers[7] = better.summary
    plain.summary["answers"] = answers
    found = tuning_report.choose(study, [plain], {"own": 1.0})
    assert found.best is not None and found.best.value == 0.9
    for key, value in study.answers[8].items():
        assert found.best.point[key] == value
    preset = tomllib.loads(found.presets["promptfl"])["method"]
    assert preset["score"] == study.answers[8]["method.score"]
    assert preset["open_share"] == study.answers[8]["method.open_share"]


def test_answers_are_kept_and_made_where_they_are_missing(tmp_path: Path) -> None:
    (study,) = toy_studies(tmp_path, "zeroshot", 1)
    (first,) = run(study.cells, jobs=0)
    kept = study.cells[0].folder / ANSWERS
    kept.unlink()
    (again,) = run(study.cells, jobs=0)
    assert kept.is_file() and again.summary == first.summary
    (found,) = run(study.cells, jobs=0)
    assert found.summary == first.summary
    whole = kept.read_bytes()
    others = json.dumps(sealed({**json.loads(whole), "models": "0" * 32})).encode()
    damaged = whole.replace(b"0.", b"1.", 1)
    for content in (damaged, whole[:9], others):
        kept.write_bytes(content)
        with pytest.warns(UserWarning, match=r"answers\.json is (damaged|of other models).*again"):
            (again,) = run(study.cells, jobs=0)
        assert again.summary == first.summary and kept.read_bytes() == whole
