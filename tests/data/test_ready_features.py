"""Ready features in place of images: which file serves, what is refused, what a run notes."""

import json
import os
from pathlib import Path

import pytest
import torch

import focoop
from focoop.assets import asset
from focoop.config import loading
from focoop.data import ready_features, registry
from focoop.data.dataset_spec import Source
from focoop.errors import DataError
from focoop.features.lookup import FeatureSet, open_features, open_labels, save_splits
from focoop.features.storage import write_file
from focoop.scenario.assignment import make_split
from focoop.scenario.data_needed import require_data
from focoop.scenario.scenario import build_scenario
from focoop.seeds import torch_generator
from tests.data import trees
from tests.helpers import toy_backbone
from tests.toy_command import call

DTD = ("banded", "dotted", "woven")
PACS = tuple(json.loads(asset("class_names.json"))["pacs"])
DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
PARTS = ("train", "val", "test")
TOY = toy_backbone()


def rows(name: str, classes: tuple[str, ...], each: int = 4, dim: int = 256) -> FeatureSet:
    count = each * len(classes)
    pooled = torch.randn(count, dim, generator=torch_generator(0, name))
    pooled = torch.nn.functional.normalize(pooled, dim=-1)
    return FeatureSet(pooled, None, torch.arange(count) % len(classes), classes)


def put(path: Path, classes: tuple[str, ...], dim: int = 256, **made: str) -> Path:
    """A file of ready features with training and test images."""
    splits = {part: rows(f"{path.stem} {part}", classes, dim=dim) for part in ("train", "test")}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_splits(path, splits, made)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of ready features that is in use; no public dataset is on disk."""
    made = tmp_path / "ready"
    made.mkdir()
    monkeypatch.setenv(ready_features.VARIABLE, str(made))
    monkeypatch.setenv("FOCOOP_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "cache"))
    return made


@pytest.mark.parametrize(
    ("spec", "file"),
    [
        ("dtd", "dtd"),
        ("dtd@32px", "dtd_32px"),
        ("dtd/official@train@64px@shuffled", "dtd_official_train_64px_shuffled"),
        ("dtd#fog@2", "dtd.fog.2"),
        ("intel_scenes", "places_like"),
    ],
)
def test_a_file_is_called_as_the_dataset_is(folder: Path, spec: str, file: str) -> None:
    source = Source.parse(spec)
    assert ready_features.find(source) is None
    path = put(folder / f"{file}.safetensors", DTD)
    found = ready_features.find(source)
    assert found is not None and (found.path, found.split) == (path, "test")
    opened = open_features(spec, "test")
    torch.testing.assert_close(opened.pooled, rows(f"{file} test", DTD).pooled, atol=1e-3, rtol=0)
    assert opened.provenance["served"] == "ready features"


def test_folders_are_looked_through_in_order_and_exact_names_come_first(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = put(folder / "dtd.safetensors", DTD)
    source = Source.parse("dtd@train")
    found = ready_features.find(source)
    assert found is not None and (found.path, found.split) == (whole, "train")
    other = put(tmp_path / "more" / "dtd_train.safetensors", DTD)
    put(tmp_path / "more" / "dtd.safetensors", DTD)
    monkeypatch.setenv(ready_features.VARIABLE, f"{folder}{os.pathsep}{other.parent}")
    found, clean = ready_features.find(source), ready_features.find(Source.parse("dtd"))
    assert found is not None and (found.path, found.split) == (other, "test")
    assert clean is not None and clean.path == whole
    monkeypatch.setenv(ready_features.VARIABLE, str(tmp_path / "gone"))
    with pytest.raises(DataError, match=r"no folder .*gone of ready features"):
        ready_features.find(source)


def test_all_that_is_missing_is_said_at_once_with_sizes(folder: Path, tmp_path: Path) -> None:
    put(folder / "dtd.safetensors", DTD)
    wanted = ["cifar100", "cifar100#fog", "dtd", "dtd@32px", "pacs", "demo:sun", "folder:x"]
    with pytest.raises(DataError) as caught:
        ready_features.require(wanted)
    told = str(caught.value)
    assert "3 datasets are not in" in told and str(tmp_path / "data") in told
    assert "CIFAR-100, 169 MB: focoop data fetch cifar100" in told
    assert "DTD, 626 MB: focoop data fetch dtd" in told
    assert "PACS, by hand" in told and registry.lookup("pacs").layout in told
    assert "fetch them all: focoop data fetch cifar100 dtd\n" in told
    files = "cifar100.safetensors, cifar100.fog.N.safetensors, dtd_32px.safetensors"
    assert files in told and str(folder) in told and "data.corrupted=[]" not in told
    with pytest.raises(DataError, match=r"measure no corrupted images: --set data.corrupted=\[\]"):
        ready_features.require(["cifar100#fog", "dtd"])
    trees.cifar100(tmp_path / "data", train=4, test=4)
    assert set(ready_features.lacking(wanted)) == {"dtd", "pacs"}
    assert ready_features.lacking(["dtd", "cifar100#fog"]) == {}


def test_features_of_another_dataset_or_backbone_are_refused(folder: Path) -> None:
    path = put(folder / "dtd.safetensors", PACS)
    with pytest.raises(DataError, match=r"classes that DTD has not, such as 'dog'"):
        ready_features.require(["dtd"])
    with pytest.raises(DataError, match=r"it is not of dtd"):
        open_features("dtd", "test")
    put(folder / "pacs.safetensors", (*PACS, "car"))
    with pytest.raises(DataError, match=r"8 classes, and PACS has 7"):
        ready_features.require(["pacs"])
    put(path, DTD)
    ready_features.require(["dtd"], backbone="mini")
    with pytest.raises(DataError, match=r"features of mini, and this run has backbone.name = open"):
        ready_features.require(["dtd"], backbone="openclip:RN50:openai")
    with pytest.raises(DataError, match="another joint space"):
        open_features("dtd", "test", TOY)
    # Nothing says what made them: they are taken for mini's, whatever their width.
    put(path, DTD, dim=TOY.dim)
    with pytest.raises(DataError, match="another joint space"):
        open_features("dtd", "test", TOY)
    put(path, DTD, dim=TOY.dim, backbone=TOY.name, fingerprint=TOY.image_fingerprint)
    assert open_features("dtd", "test", TOY).dim == TOY.dim
    with pytest.raises(DataError, match=rf"features of {TOY.name}, and this run"):
        ready_features.require(["dtd"], backbone="mini")
    path.write_bytes(b"nothing")
    with pytest.raises(DataError, match="is damaged"):
        ready_features.require(["dtd"])


def test_what_is_no_class_or_has_another_domain_name_is_put_right(folder: Path) -> None:
    put(folder / "caltech101.safetensors", ("BACKGROUND_Google", "ant", "Faces"))
    found = open_features("caltech101", "test")
    assert found.classes == ("ant", "Faces") and found.labels.tolist() == [0, 1] * 4
    tensors = {
        "pooled": rows("office", ("bike", "mug")).pooled.half(),
        "labels": (torch.arange(8) % 2).int(),
        "split": (torch.arange(8) // 2).to(torch.int8),
    }
    domains = json.dumps(["amazon", "caltech10", "dslr", "webcam"])
    told = {"classes": json.dumps(["bike", "mug"]), "domains": domains}
    write_file(folder / "office_caltech10.safetensors", tensors, told)
    office = open_features("office_caltech10", "all")
    assert office.domain_names == ("amazon", "caltech", "dslr", "webcam")


def test_a_run_is_served_and_says_by_what(folder: Path, tmp_path: Path) -> None:
    put(folder / "dtd.safetensors", DTD)
    put(folder / "sun_32px.safetensors", ("sun",))
    for severity in range(1, 6):
        put(folder / f"dtd.fog.{severity}.safetensors", DTD)
    told = loading.load(
        None,
        [
            "data.id=dtd",
            'data.corrupted=["dtd#fog"]',
            'data.ood=["sun@32px", "demo:dtd"]',
            "method.name=zeroshot",
            "partition.clients=3",
            "partition.shots=1",
        ],
    )
    scenario = build_scenario(told)
    assert set(scenario.sets.ood) == {"sun_32px", "dtd"}
    found = scenario.sources
    assert found["dtd"] == {
        "served by": "ready features",
        "path": str(folder / "dtd.safetensors"),
        "images": 24,
        "classes": 3,
    }
    assert found["demo:dtd"]["served by"] == "packaged features"
    assert found["dtd#fog@5"]["path"] == str(folder / "dtd.fog.5.safetensors")
    (folder / "dtd.fog.3.safetensors").unlink()
    with pytest.raises(DataError, match=r"focoop data fetch dtd[\s\S]*dtd.fog.N.safetensors"):
        require_data(told)


def test_images_serve_where_no_file_does(folder: Path, tmp_path: Path) -> None:
    trees.cifar100(tmp_path / "data", train=8, test=6)
    images = open_features("cifar100", "test", TOY)
    assert images.provenance["served"] == "images" and len(images) == 6
    with pytest.raises(DataError, match="asks for one split"):
        open_labels("cifar100@train", "train")
    classes = images.classes
    put(folder / "cifar100.safetensors", classes, backbone="mini")
    assert len(open_labels("cifar100", "train")) == 400
    with pytest.raises(DataError, match=r"data.views = 1 needs images.*cifar100.safetensors"):
        open_features("cifar100", "train", views=1)


def test_commands_take_the_folder_and_refuse_before_anything_is_made(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(ready_features.VARIABLE, "")
    settings = ["--set=data.id=dtd", "--set=data.corrupted=[]", '--set=data.ood=["sun"]']
    settings += [
        "--set=partition.clients=3",
        "--set=partition.shots=1",
        "--set=method.name=zeroshot",
    ]
    (tmp_path / "mine.toml").write_text('[data]\nid = "dtd"\nood = ["sun"]\ncorrupted = []\n')
    for words in (
        ["run", *settings],
        ["compare", "mine.toml", "--methods=zeroshot", "--seeds=1", "--jobs=0"],
    ):
        refused = call(*words)
        assert refused.exit_code == DataError.exit_code
        assert "focoop data fetch dtd sun" in refused.stderr and "626 MB" in refused.stderr
    assert not (tmp_path / "runs").exists()  # no run was begun
    put(folder / "dtd.safetensors", DTD)
    put(folder / "sun.safetensors", ("sun",))
    shown = call("data", "show", *settings, "--features", "ready", "--json")
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["classes"] == list(DTD)
    monkeypatch.setenv(ready_features.VARIABLE, "")
    done = call("run", *settings, "--features", "ready", "--out", "run", "--json")
    assert done.exit_code == 0, done.output
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text("utf-8"))
    assert manifest["data_sources"]["sun"]["path"] == str(folder / "sun.safetensors")
    monkeypatch.setenv(ready_features.VARIABLE, "")
    again = call("evaluate", "run")
    assert again.exit_code == DataError.exit_code and "--features" in again.stderr
    again = call("evaluate", "run", "--features", str(folder), "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["round"] == 0


def test_what_ready_features_lack_is_left_out_and_said(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    put(folder / "dtd.safetensors", DTD)
    put(folder / "sun.safetensors", ("sun",))
    text = """
    [data]
    id = "dtd"
    corrupted = ["dtd#fog"]
    ood = ["sun", "sun@32px"]
    validation_ood = ["pacs", "sun@64px"]
    [partition]
    clients = 3
    shots = 1
    """
    (tmp_path / "mine.toml").write_text(text)
    note = "not measured, because neither ready features nor images of them are here: "
    with pytest.warns(UserWarning, match=f"{note}dtd#fog, sun@32px "):
        run = focoop.run("mine.toml", {"method.name": "zeroshot"}, out="run", use_tuned=False)
    assert run.config.data.ood == ("sun",) and run.config.data.corrupted == ()
    assert f"note: {note}dtd#fog" in (tmp_path / "run" / "log.txt").read_text("utf-8")
    with pytest.warns(UserWarning, match=f"mine: {note}dtd#fog") as said:
        table = focoop.compare("mine.toml", "zeroshot,fedncm", seeds=1, out="grid")
    assert len(said) == 1 and not table.failures
    assert note in (tmp_path / "grid" / "mine" / "fedncm" / "seed0" / "log.txt").read_text("utf-8")
    with pytest.raises(DataError, match=r"(?s)pacs.*sun: its features are here.*to make sun_64px"):
        focoop.tune("mine.toml", "zeroshot", budget=1, out="tune", validation=1)
    put(folder / "sun_64px.safetensors", ("sun",))
    with pytest.warns(UserWarning, match=f"mine: {note}pacs "):
        tuned = focoop.tune("mine.toml", "zeroshot", budget=1, out="tune", validation=1)
    assert tuned.rows[0]["status"] == "finished"


def test_a_folder_of_ready_features_can_be_made_and_serves_as_the_images_do(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "data"
    trees.cifar100(root, train=8, test=6)
    trees.plant(root / "PACS", *(f"{d}/{c}/1.png" for d in DOMAINS for c in PACS[:2]))
    monkeypatch.setattr("focoop.clip.load_backbone", lambda *_, **__: TOY)

    def every(*specs: tuple[str, str]) -> list[FeatureSet]:
        return [open_features(spec, split, TOY) for spec, split in specs]

    wanted = [("cifar100", "train"), ("cifar100", "test"), ("cifar100#fog@2", "test")]
    wanted += [("pacs", "all"), ("cifar100@train@8px", "test")]
    images = every(*wanted)
    for words in (
        ["cifar100"],
        ["cifar100", "--corruption=fog@2"],
        ["pacs"],
        ["cifar100@train@8px"],
    ):
        done = call("encode", *words, "--incomplete", "--ready", str(folder), "--json")
        assert done.exit_code == 0, done.output
    files = {"cifar100", "cifar100.fog.2", "pacs", "cifar100_train_8px"}
    assert {path.name.removesuffix(".safetensors") for path in folder.iterdir()} == files
    served = every(*wanted)
    assert {one.provenance["served"] for one in served} == {"ready features"}
    assert [one.sha256() for one in served] == [one.sha256() for one in images]
    own = call("encode", f"folder:{root / 'PACS'}", "--ready", str(folder))
    assert own.exit_code == DataError.exit_code and "no public dataset" in own.stderr


def test_the_list_shows_what_is_known_of_a_size(folder: Path) -> None:
    lines = [line.split() for line in call("data", "list").stdout.splitlines()]
    sizes = {words[0]: words[-2] for words in lines if len(words) > 2}
    assert (sizes["cifar100"], sizes["dtd"], sizes["sun"]) == ("169", "626", "?")


def test_the_doctor_sees_ready_features(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from focoop.cli.doctor import run_checks

    told = loading.load(None, ["data.id=dtd", 'data.corrupted=["dtd#fog"]', 'data.ood=["dtd"]'])
    put(folder / "dtd.safetensors", DTD)
    check = run_checks.run_dataset("dtd", told)
    assert check.state == "ok" and str(folder / "dtd.safetensors") in check.found
    with pytest.raises(DataError, match="dtd.fog.N.safetensors"):
        run_checks.run_data(told)


@pytest.mark.shared
def test_the_developers_features_are_those_they_are_called_after(
    shared_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ready_features.VARIABLE, str(shared_dir / "features"))
    specs = ["caltech101", "cifar100", "dtd", "dtd@32px", "office_caltech10", "oxford_pets", "pacs"]
    specs += ["intel_scenes", "sun", "sun@32px", "tinyimagenet", "oxford_pets@train"]
    ready_features.require(specs, backbone="mini")
    assert len(open_features("caltech101", "test").classes) == 101
    by_domain = ["data.id=office_caltech10", "partition.kind=domain", "partition.clients=0"]
    office = make_split(loading.load(None, by_domain)).train
    assert office.domain_names == ("amazon", "caltech", "dslr", "webcam")


@pytest.mark.slow
def test_images_in_their_official_layouts_serve_a_published_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ready_features.VARIABLE, "")
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "data"
    monkeypatch.setenv("FOCOOP_DATA", str(root))
    trees.cifar100(root, train=100, test=100)
    trees.plant(root / "SUN", "images/a.jpg", "images/b.jpg")
    trees.plant(root / "dtd" / "images", "banded/1.jpg", "woven/2.jpg")
    split = {part: [("banded/1.jpg", 0, "banded"), ("woven/2.jpg", 1, "woven")] for part in PARTS}
    trees.coop(root / "dtd" / "split_zhou_DescribableTextures.json", split)
    out = ["--out", str(tmp_path / "run"), "--json"]
    few = [
        "--set=data.incomplete=true",
        "--set=partition.shots=1",
        '--set=data.corrupted=["cifar100#brightness@5"]',
    ]
    done = call("run", "settings/cifar100", "--set=method.name=zeroshot", *few, *out)
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "run" / "manifest.json").read_text("utf-8"))["data_sources"]
    assert {source["served by"] for source in found.values()} == {"images"}
    assert found["cifar100"]["images"] == 200 and found["cifar100#brightness@5"]["images"] == 100
    assert found["dtd@32px"]["path"] == str(root / "dtd") and found["sun@32px"]["images"] == 2
