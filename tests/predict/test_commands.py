"""Calibrate, export and ask a run: from Python, from the command line, and from image files."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

import focoop
from focoop.caching import sealed
from focoop.data import read_rgb
from focoop.errors import ConfigError, DataError, RunError
from focoop.runs import RunFolder
from tests.toy_command import call
from tests.toy_setting import CLASSES, images, write_setting

SETTINGS = {"method.name": "focoop_plus", "federation.rounds": 1, "partition.shots": 4}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated run of two clients with 8 calibration images each."""
    folder = tmp_path_factory.mktemp("predict")
    setting = write_setting(folder / "data")
    focoop.run(setting, SETTINGS, out=folder / "run")
    with pytest.warns(UserWarning, match="2 clients have fewer"):
        focoop.calibrate(folder / "run", keep=0.95)
    focoop.calibrate(folder / "run", keep=0.8)
    return folder / "run"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    (folder / "below").mkdir()
    for name, colour in (("a.png", "red"), ("below/c.png", "blue")):
        Image.new("RGB", (40, 30), colour).save(folder / name)
    (folder / "b.jpg").write_bytes(b"no image")
    return folder


def test_small_clients_use_the_pool_and_the_global_model_too(run: Path) -> None:
    model = focoop.load_model(run, client=0)
    calibration = model.calibration
    assert calibration is not None and calibration.keep == 0.8
    assert [calibration.sites[name].source for name in ("global", "0", "1")] == [
        "pool",
        "own",
        "own",
    ]
    assert calibration.sites["global"].images == 16 and calibration.sites["0"].images == 8
    assert calibration.sites["0"].measured["images"] == 10
    answers = model.decide(images("test", 5))
    measured = calibration.sites["0"].measured
    own = [a for a, label in zip(answers, images("test", 5).labels, strict=True)]
    assert len(own) == 20 and 0 <= measured["kept"] <= 1 and measured["set_size"] >= 1


def test_a_run_s_answers_and_its_export_s_are_the_same(run: Path, tmp_path: Path) -> None:
    opened, model = focoop.open_run(run), focoop.load_model(run)
    out = focoop.export(run, tmp_path / "model", client=[1, "global"])
    saved = focoop.load_model(out)
    assert (
        saved.sides == ("1", "global") and "not calibrated" not in (out / "README.md").read_text()
    )
    assert str(run.parent) not in (out / "README.md").read_text()  # nobody's folders are told
    assert str(run.parent).encode() not in (out / "model.safetensors").read_bytes()
    asked = opened.images("test")
    ours, theirs = model.decide(asked, client=1), saved.decide(asked, client=1)
    predicted = [CLASSES[label] for label in opened.predictions("test", 1)]
    for answers in (ours, theirs):
        assert [answer.top[0].label for answer in answers] == predicted
        found = [answer.score for answer in answers]
        np.testing.assert_allclose(found, opened.scores("test", 1), atol=1e-5)
    assert [a.verdict for a in ours] == [a.verdict for a in theirs]
    with pytest.raises(RunError, match="it has 1, global"):
        saved.decide(asked, client=0)
    again = focoop.export(out, tmp_path / "again", client="all")
    assert (again / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()


def test_images_come_as_files_arrays_and_tensors(run: Path, files: Path) -> None:
    model = focoop.load_model(run, client=1)
    picture = Image.new("RGB", (40, 30), "red")
    pixels = np.asarray(picture)
    given = [
        files / "a.png",
        picture,
        pixels,
        pixels / np.float32(255),
        torch.from_numpy(pixels.copy()).permute(2, 0, 1),
    ]
    answers = model.predict(given, top=2)
    assert answers[0].source == str(files / "a.png") and answers[1].source == "image 1"
    scores = [answer.score for answer in [*answers, *model.predict(pixels[None])]]
    np.testing.assert_allclose(scores, scores[0], atol=1e-4)  # batches of other sizes round apart
    assert model.encode(picture).pooled.shape == (1, 256)
    heat = model.heat_map(picture, "boat")
    assert heat.shape == (4, 4)
    for bad, reason in (
        (pixels.astype(np.int32), "uint8"),
        (pixels[:, :, :2], r"\(H, W"),
        (np.zeros((0, 3, 3), np.uint8), "no pixel"),
        (3.5, "float"),
        (files / "b.jpg", "cannot be read"),
    ):
        with pytest.raises(DataError, match=reason):
            model.predict([bad])
    with pytest.raises(DataError, match="no image"):
        model.encode([])
    with pytest.raises(DataError, match="boat"):
        model.heat_map(picture, "baot")
    with pytest.raises(DataError, match="one image"):
        model.heat_map([picture, picture])


def test_the_commands_end_to_end(run: Path, files: Path, tmp_path: Path) -> None:
    given = [str(files / "below"), str(files / "*.*"), "--client=1", f"--explain={tmp_path}/maps"]
    done = call("predict", str(run), *given, "--json")
    assert done.exit_code == 3 and "b.jpg" in done.stderr and "not an image" in done.stderr
    document = json.loads(done.stdout)
    names = [Path(one["source"]).name for one in document["predictions"]]
    assert names == ["c.png", "a.png"] and document["client"] == "1"
    assert [Path(one["source"]).name for one in document["broken"]] == ["b.jpg"]
    assert {one["verdict"] for one in document["predictions"]} <= {"own", "other", "unknown"}
    maps = sorted(path.name for path in (tmp_path / "maps").iterdir())
    assert maps == ["0000-c.png", "0001-a.png"]
    with Image.open(tmp_path / "maps" / maps[0]) as drawn:
        assert drawn.size == (224, 224)
    exported = call("export", str(run), "--client=1", "--out", str(tmp_path / "model"))
    assert exported.exit_code == 0 and "answers for 1" in exported.stdout
    listed = call(
        "predict", str(tmp_path / "model"), str(files / "a.png"), "--csv", "--open-share=auto"
    )
    rows = list(csv.DictReader(io.StringIO(listed.stdout)))
    assert len(rows) == 1 and float(rows[0]["score"]) == pytest.approx(
        document["predictions"][1]["score"], abs=1e-5
    )


def test_folders_bytes_generators_and_columns_are_images_too(files: Path) -> None:
    from focoop.predict.images import dataset_of, pictures

    assert dataset_of(str(files)) == dataset_of(files) == f"folder:{files}"
    assert dataset_of("demo:cifar100") == "demo:cifar100" and dataset_of("./gone") == "./gone"
    red = Image.new("RGB", (40, 30), "red")
    clear = np.dstack([np.asarray(red), np.full((30, 40), 255, np.uint8)])
    below, name = files / "below", str(files / "a.png")
    same = [
        (files / "a.png").read_bytes(),
        clear,
        torch.from_numpy(np.asarray(red) / 255).permute(2, 0, 1).bfloat16(),
    ]
    assert {one.rgb().tobytes() for one in pictures(same)} == {red.tobytes()}
    assert [one.source for one in pictures(below)] == [str(below / "c.png")]
    for many in (iter([name]), pandas.Series([name]), np.array([name]), (name,)):
        assert [one.source for one in pictures(many)] == [name]
    with (files / "a.png").open("rb") as file, pytest.raises(DataError, match="BufferedReader"):
        pictures(file)[0].rgb()
    with pytest.raises(DataError, match=r"image 0 cannot be read \(not an image"):
        pictures(b"no image")[0].rgb()
    (files / "none").mkdir()
    with pytest.raises(DataError, match="no image was found in"):
        pictures(files / "none")


def test_the_calibration_s_table_and_document(run: Path) -> None:
    shown = call("calibrate", str(run), "--client=1", "--keep=0.8")
    assert shown.exit_code == 0 and "set size" in shown.stdout and "80% was asked" in shown.stdout
    with pytest.warns(UserWarning, match="1 client has fewer: 1 .*it never answers"):
        shown = call("calibrate", str(run), "--client=1", "--keep=0.995")
    assert "too few to keep 0.995" in shown.output
    card = focoop.export(run, run.parent / "sure") / "README.md"
    assert "Calibrated to keep 99.5% of" in card.read_text()
    document = json.loads(call("calibrate", str(run), "--keep=0.8", "--json").stdout)
    assert [one["name"] for one in document["clients"]] == ["global", "0", "1"]
    assert RunFolder.open(run).status == "finished"  # the run itself is as it was


def test_names_or_an_image_from_standard_input(files: Path, tmp_path: Path) -> None:
    from focoop.cli.predict import found_images

    lines = f"{files}/a.png\n\n{files}/below\n".encode()
    assert [Path(one.source).name for one in found_images(["-"], lambda: lines)] == [
        "a.png",
        "c.png",
    ]
    assert [one.source for one in found_images(["gone.png"])] == ["gone.png"]
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").touch()  # a pattern that matches two models
    with pytest.raises(DataError, match="is a model, not images: ask one model at a time"):
        found_images([str(tmp_path / "model"), "gone.png"])
    with pytest.raises(DataError, match="no image"):
        found_images([str(files / "*.gif")])
    name = str(files / "below" / "c.png")
    piped, after = found_images(["-", name], (files / "a.png").read_bytes)
    assert piped.source == "stdin" and after.source == name
    assert piped.rgb().tobytes() == read_rgb(files / "a.png").tobytes()


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["predict", "{run}/nowhere", "x.png"], 6, "does not exist"),
        (["predict", "{run}", "x.png", "--client=9"], 6, "does not answer for"),
        (["predict", "{run}", "x.png", "--json", "--csv"], 2, "choose one"),
        (["predict", "{run}", "x.png", "--open-share=much"], 2, "0 to 1, or 'auto'"),
        (["calibrate", "{run}", "--keep=1.5"], 2, "between 0 and 1"),
        (["calibrate", "{run}/clients"], 6, "neither a run folder nor an exported model"),
        (["model", "check", "{run}"], 6, "focoop export RUN --out MODEL"),
        (["calibrate", "{run}", "--images=folder:x"], 2, "--client"),
        (["export", "{run}", "--out={run}"], 6, "not empty"),
        (["export", "{run}", "--out={run}/m", "--client=west"], 6, "no client 'west'"),
    ],
)
def test_what_goes_wrong_says_what_to_do(
    run: Path, arguments: list[str], code: int, reason: str
) -> None:
    done = call(*[argument.format(run=run) for argument in arguments])
    assert done.exit_code == code and reason in done.stderr


def test_a_calibration_is_of_one_round_and_own_images_can_be_given(
    tmp_path: Path, run: Path
) -> None:
    import shutil

    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    given = focoop.calibrate(copy, keep=0.9, client=1, images=images("more", 10))
    assert list(given.sites) == ["1"] and given.sites["1"].images == 40
    file = copy / "calibration.json"
    tree = json.loads(file.read_text())
    file.write_text(json.dumps(sealed({**tree, "round": 0})))
    assert focoop.load_model(copy).calibration is None  # of a round that is gone
    file.write_text(json.dumps(sealed({**tree, "models": "0" * 32})))
    with pytest.raises(RunError, match="another run's models: run focoop calibrate again"):
        focoop.load_model(copy)
    for damaged in (b"{", b"\xff", file.read_bytes().replace(b"0.9", b"0.8", 1)):
        file.write_bytes(damaged)
        with pytest.raises(RunError, match=r"calibration\.json.*calibrate again"):
            focoop.load_model(copy)
    with pytest.warns(UserWarning, match=r"calibration\.json is damaged .*it is made anew"):
        focoop.calibrate(copy, keep=0.9, client=1, images=images("more", 10))
    again = focoop.load_model(copy).calibration
    assert again is not None and again.to_json() == given.to_json()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(RunError, match="cannot read the model"):
        focoop.load_model(tmp_path / "damaged")
    with pytest.raises(ConfigError, match="whose images"):
        focoop.calibrate(copy, images=images("more", 10))


@pytest.mark.slow
def test_three_verdicts_on_the_demo(tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = {"method.name": "focoop_plus", "federation.rounds": 1, "data.corrupted": []}
    run = focoop.run("demo", {**settings, "partition.shots": 8}, out=out)
    focoop.calibrate(out)
    model, test = focoop.load_model(out, client=3), run.images("test")
    own = run.own_rows(3)
    others = np.setdiff1d(np.arange(len(test)), own)

    def share(features: torch.Tensor, verdict: str) -> float:
        return float(np.mean([a.verdict == verdict for a in model.decide(features)]))

    assert share(test.pooled[own], "own") > 0.8
    assert share(test.pooled[own], "unknown") < 0.15
    assert share(test.pooled[others], "other") > 0.35
    assert share(run.images("dtd_32px").pooled, "unknown") > 0.5
    with pytest.raises(DataError, match="from-test"):
        focoop.run("demo", {**settings, "partition.shots": 0}, out=tmp_path / "all")
        focoop.calibrate(tmp_path / "all")
    found = focoop.calibrate(tmp_path / "all", from_test=True)
    assert found.sites["3"].images == 100 and found.sites["3"].measured["images"] == 100


@pytest.mark.slow
@pytest.mark.shared
def test_a_run_made_of_features_answers_image_files(tmp_path: Path, shared_dir: Path) -> None:
    settings = {"method.name": "focoop_plus", "federation.rounds": 2, "data.corrupted": []}
    focoop.run("demo", {**settings, "partition.shots": 8}, out=tmp_path / "run")
    focoop.calibrate(tmp_path / "run")
    model = focoop.load_model(tmp_path / "run", client=3)
    pictures = shared_dir / "images"
    own = set(model.own_classes())
    mine = [pictures / "cifar100" / "test" / name / "000.png" for name in sorted(own)]
    theirs = [
        pictures / "cifar100" / "test" / name / "000.png"
        for name in model.classes
        if name not in own
    ][:20]
    textures = sorted((pictures / "dtd" / "test").glob("*/000.jpg"))[:20]

    def share(files: list[Path], verdict: str) -> float:
        answers = model.predict(files)
        assert [answer.source for answer in answers] == list(map(str, files))
        return sum(answer.verdict == verdict for answer in answers) / len(files)

    assert share(mine, "own") >= 0.7
    assert share(theirs, "other") >= 0.35
    assert share(textures, "unknown") >= 0.7


def test_models_are_changed_by_commands(run: Path, tmp_path: Path) -> None:
    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    done = call("model", "drop-class", str(run), CLASSES[0], "--out", first)
    assert done.exit_code == 0 and "not calibrated" in done.stderr, done.stderr
    done = call("model", "rename-class", first, CLASSES[1], "ferry", "--out", second)
    assert done.exit_code == 0 and "ferry" in focoop.load_model(second).classes
    assert "the old model was not calibrated" in " ".join(done.stderr.split())
    done = call("model", "add-client", second, "west", "--class", "ferry", "--out", third)
    assert done.exit_code == 0 and focoop.load_model(third).own_classes("west") == ("ferry",)
    assert "client west added" in (tmp_path / "third" / "README.md").read_text()
    again = call("model", "rename-class", first, "ferry", "x", "--out", second)
    assert again.exit_code == 6 and "nothing is overwritten" in again.stderr


def test_a_changed_model_is_calibrated_on_images_of_its_own(run: Path, tmp_path: Path) -> None:
    changed = focoop.load_model(run).without_class(CLASSES[0]).save(tmp_path / "model")
    with pytest.raises(DataError, match="--images"):
        focoop.calibrate(changed)
    kept = images("more", 10).drop_classes([CLASSES[0]])
    found = focoop.calibrate(changed, keep=0.9, client=1, images=kept)
    again = focoop.load_model(changed, client=1)
    assert again.calibration is not None and again.calibration.sites["1"] is not None
    assert again.decide(kept.pooled)[0].threshold == found.sites["1"].threshold
