"""The layouts that users have: class folders without splits, flat folders of foreign images."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

from focoop.cli import app
from focoop.clip.mini import Mini
from focoop.config.loading import load
from focoop.errors import ConfigError, DataError, FocoopError
from focoop.features.lookup import open_features
from focoop.scenario.assignment import make_split, remarks
from focoop.scenario.scenario import build_scenario
from focoop.scenario.split import Split
from focoop.seeds import numpy_generator
from tests.data.trees import plant
from tests.features.test_encoding import Counting
from tests.helpers import toy_backbone

BACKBONE = toy_backbone()


@pytest.fixture(autouse=True)
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "cache"))


def class_folders(root: Path, **counts: int) -> Path:
    """Images that all differ, in one folder per class and nothing else."""
    generator = numpy_generator(3, "layouts", root.name)
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            pixels = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number:02d}.png")
    return root


def divided(root: Path, kind: str, *more: str) -> Split:
    settings = [f"data.id=folder:{root}", f"partition.kind={kind}", "partition.clients=2", *more]
    return make_split(load(None, settings), BACKBONE, root.parent / "c")


def held(split: Split) -> tuple[set[bytes], set[bytes]]:
    """The training and the test images by content."""
    return (
        {row.numpy().tobytes() for row in split.train.pooled},
        {row.numpy().tobytes() for row in split.test.pooled},
    )


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "pathological", "overlap"])
def test_class_folders_without_splits_lose_a_share_to_testing(kind: str, tmp_path: Path) -> None:
    root = class_folders(tmp_path / "things", ant=20, bee=10, cat=5)
    more = ("partition.classes_per_client=2",)
    split = divided(root, kind, *more)
    # A fifth of each class is tested on; all others train, as this is no paper's protocol.
    assert split.test.labels.bincount().tolist() == [4, 2, 1]
    assert split.train.labels.bincount().tolist() == [16, 8, 4]
    assert split.repeated == 0 and split.counts().sum() == 28 == sum(map(len, split.train_index))
    trained, tested = held(split)
    assert not trained & tested and len(trained | tested) == 35
    assert held(divided(root, kind, *more)) == (trained, tested)
    assert held(divided(root, kind, *more, "partition.seed=5"))[1] != tested
    half = divided(root, kind, *more, "data.test_share=0.5")
    assert half.test.labels.bincount().tolist() == [10, 5, 2]


def test_shots_are_those_asked_for(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "things", ant=10, bee=10)
    assert divided(root, "iid", "partition.shots=2").counts().tolist() == [[2, 2], [2, 2]]


def test_tables_and_clients_without_splits_are_held_out_alike(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "things", ant=10, bee=10)
    rows = [f"{file},{file.parent.name}" for file in sorted(root.rglob("*.png"))]
    (tmp_path / "t.csv").write_text("\n".join(["path,label", *rows]), "utf-8")
    folder = divided(root, "iid")
    settings = ["partition.kind=iid", "partition.clients=2", f"data.id=csv:{tmp_path / 't.csv'}"]
    table = make_split(load(None, settings), BACKBONE, tmp_path / "c")
    assert held(table) == held(folder)
    (told, _) = remarks(load(None, settings))
    assert told.endswith("no column split: held out 20% of each class as test (data.test_share)")


def test_classes_of_few_images_are_pointed_out(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "things", ant=10, bee=4)
    with pytest.warns(UserWarning, match="1 of 2 classes .* hold one out as test .*: bee"):
        assert divided(root, "iid").test.labels.unique().tolist() == [0]
    few = class_folders(tmp_path / "few", ant=4, bee=4)
    with pytest.raises(
        ConfigError, match="Set a larger share .data.test_share=0.[0-9]+., or give test images"
    ):
        divided(few, "iid")
    assert len(divided(few, "iid", "data.test_share=0.5").test) == 4


def test_domains_are_not_mistaken_for_splits_nobody_knows(tmp_path: Path) -> None:
    root = plant(tmp_path / "x", "learn/ant/1.png", "exam/ant/1.png")
    with pytest.raises(DataError, match="exam, learn are taken as domains"):
        make_split(load(None, [f"data.id=folder:{root}", "partition.kind=iid"]))


def test_a_flat_folder_is_an_ood_set_and_nothing_to_learn(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "things", ant=10, bee=10)
    flat = class_folders(tmp_path, strange=6) / "strange"
    settings = [f"data.id=folder:{root}", "partition.kind=iid", "partition.clients=2"]
    settings += ["method.name=zeroshot", f"backbone.weights={tmp_path}"]
    backbone = Counting(seed=0, width=16, dim=12, layers=2)
    made = partial(build_scenario, cache_dir=tmp_path / "c", load=lambda *_, **__: backbone)
    corrupted = f'data.corrupted=["folder:{root}#brightness@2"]'
    scenario = made(load(None, [*settings, f'data.ood=["folder:{flat}"]', corrupted]))
    assert len(scenario.sets.ood["strange"].pooled) == 6
    assert backbone.seen == 20 + 4 + 6  # of the corrupted images, those that are tested on
    # Corrupted copies are those of the test images, at the clients that are tested on these.
    owned, own = scenario.sets.corrupted["brightness@2"], scenario.sets.test
    assert [rows.tolist() for rows in owned.index] == [rows.tolist() for rows in own.index]
    every, bright = (
        open_features(f"folder:{root}{end}", "all", BACKBONE, cache_dir=tmp_path / "c").pooled
        for end in ("", "#brightness@2")
    )
    for clean, damaged in zip(own.images.pooled, owned.images.pooled, strict=True):
        torch.testing.assert_close(bright[int((every @ clean).argmax())], damaged)
    with pytest.raises(DataError, match=r"no class folders: fine as an OOD set \(data.ood\)"):
        make_split(load(None, [f"data.id=folder:{flat}"]))
    with pytest.raises(DataError, match="north holds images and no class folders"):
        clients = plant(tmp_path / "clients", "north/1.png", "south/ant/1.png")
        make_split(load(None, [f"data.id=clients:{clients}", "partition.kind=given"]))


def test_images_of_few_classes_get_clients_that_fit_them(tmp_path: Path) -> None:
    for count, clients in ((1, 1), (2, 2), (3, 2), (5, 2), (9, 4), (24, 10)):
        root = tmp_path / "sets" / str(count)
        plant(root, *(f"kind {chr(97 + c)}/{k}.png" for c in range(count) for k in range(5)))
        held = make_split(load(None, [f"data.id=folder:{root}"])).counts() > 0
        assert len(held) == clients and (held.sum(0) == 1).all()
        assert held.sum(1).min() >= min(2, count // clients)
    few = f"data.id=folder:{tmp_path}/sets/5"
    with pytest.raises(ConfigError, match="5 classes are too few for 10 clients that share none"):
        make_split(load(None, [few, "partition.clients=10"]))
    given = load(None, [f"data.id=clients:{tmp_path}/sets", "partition.kind=given"])
    assert given.partition.clients == -1 and len(make_split(given).train_index) == 6
    assert load(None, []).partition.clients == load(None, ["data.id=dtd"]).partition.clients == 10


def run(tmp_path: Path, *settings: str) -> Result:
    options = [word for setting in settings for word in ("--set", setting)]
    return CliRunner().invoke(app, ["run", "--out", str(tmp_path / "run"), *options])


def test_own_data_is_measured_on_nothing_that_was_not_named(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "things", mug=10, bowl=10)
    done = run(tmp_path, f"data.id=folder:{root}", "partition.clients=2", "method.name=zeroshot")
    assert done.exit_code == 0, done.output
    told = f"note: folder:{root}: no train/test folders: held out 20% of each class as test"
    assert told in done.stderr
    assert (
        "no OOD sets and no corrupted sets given: not measured (data.ood, data.corr" in done.stderr
    )
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()[-1])
    assert line["ood"] == {} and line["accuracy_corrupted"] is None
    kept = load(tmp_path / "run" / "config.toml")
    assert (kept.data.ood, kept.data.corrupted, kept.partition.shots) == ((), (), 0)
    assert "shots = 0" in (tmp_path / "run" / "config.toml").read_text("utf-8")


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ('data.ood=["folder:ROOT/nowhere"]', "data.ood: no image folder"),
        ('data.ood=["file:ROOT/nowhere.safetensors"]', "data.ood: no feature file"),
        ('data.ood=["demo:dtdd"]', "data.ood: .*nearest is 'dtd'"),
        ('data.ood=["dtdd"]', "data.ood: no dataset is called 'dtdd'"),
        ('data.ood=["csv:ROOT/nowhere.csv"]', "data.ood: there is no file"),
        ('data.corrupted=["folder:ROOT/nowhere#fog@2"]', "data.corrupted: no image folder"),
        ('data.corrupted=["folder:ROOT/things#fogg@2"]', "data.corrupted: unknown corr.*'fog'"),
        ('data.corrupted=["folder:ROOT/things#fog@9"]', "data.corrupted: "),
        ('data.corrupted=["folder:ROOT/others#fog@2"]', "does not hold the classes of"),
        ('data.corrupted=["folder:ROOT/more#fog@2"]', "does not hold the test images of"),
        ('data.corrupted=["folder:ROOT/things"]', "names no corruption"),
        ("data.id=folder:ROOT/thing", "no image folder"),
    ],
)
def test_missing_sets_are_refused_before_an_image_is_encoded(
    setting: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mini, "encode_images", None)
    root = class_folders(tmp_path / "things", ant=10, bee=10)
    class_folders(tmp_path / "others", cow=10)
    class_folders(tmp_path / "more", ant=12, bee=12)
    given = [f"data.id=folder:{root}", "partition.clients=2", "method.name=zeroshot"]
    with pytest.raises(FocoopError, match=says):
        build_scenario(load(None, [*given, setting.replace("ROOT", str(tmp_path))]))
