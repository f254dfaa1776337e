"""Datasets by name as a run opens them: encoded, corrupted, refused."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from focoop.cli import app
from focoop.config.loading import load
from focoop.data import registry
from focoop.data.corruptions.apply import corrupt
from focoop.errors import ConfigError, DataError
from focoop.features.lookup import open_features
from focoop.scenario.assignment import make_split
from focoop.scenario.scenario import build_scenario
from focoop.seeds import numpy_generator
from tests.data import trees
from tests.helpers import toy_backbone

BACKBONE = toy_backbone()


def features_of(pixels: np.ndarray) -> torch.Tensor:
    image = BACKBONE.preprocess(Image.fromarray(pixels))
    return BACKBONE.encode_images(image[None]).pooled[0]


def test_a_public_dataset_is_encoded_from_its_arrays(tmp_path: Path) -> None:
    planted = trees.cifar100(tmp_path, train=8, test=6)
    found = open_features("cifar100", "test", BACKBONE, cache_dir=tmp_path, root=tmp_path)
    assert found.labels.tolist() == [0, 7, 14, 21, 28, 35] and len(found.classes) == 100
    want = torch.stack([features_of(image) for image in planted["test"]])
    torch.testing.assert_close(found.pooled, want, atol=1e-3, rtol=0)
    every = open_features("cifar100", "all", BACKBONE, cache_dir=tmp_path, root=tmp_path)
    torch.testing.assert_close(every.pooled[8:], found.pooled)
    few = open_features(
        "cifar100", "test", BACKBONE, cache_dir=tmp_path, root=tmp_path, drop_classes=["apple"]
    )
    assert len(few) == 5 and few.classes[0] == "aquarium fish"
    torch.testing.assert_close(few.pooled, found.pooled[1:])


def test_corrupted_images_are_the_official_ones_where_present(tmp_path: Path) -> None:
    planted = trees.cifar10(tmp_path)
    spec = "cifar10#fog@2"
    made = open_features(spec, "test", BACKBONE, cache_dir=tmp_path / "c", root=tmp_path)
    first = corrupt(planted["test_batch"][0], "fog", 2, "test/00000")
    torch.testing.assert_close(made.pooled[0], features_of(first), atol=1e-3, rtol=0)
    trees.cifar_c(tmp_path, "CIFAR-10-C", 4, ("fog",))
    official = open_features(spec, "test", BACKBONE, cache_dir=tmp_path / "c", root=tmp_path)
    want = features_of(trees.pixels(20, "fog")[4])
    torch.testing.assert_close(official.pooled[0], want, atol=1e-3, rtol=0)
    same = open_features("cifar10_c#fog@2", "test", BACKBONE, cache_dir=tmp_path, root=tmp_path)
    torch.testing.assert_close(same.pooled, official.pooled)


def test_an_image_that_a_list_names_but_nobody_has_is_named(tmp_path: Path) -> None:
    trees.plant(tmp_path / "dtd" / "images", "banded/1.jpg")
    rows = [("banded/1.jpg", 0, "banded"), ("banded/2.jpg", 0, "banded")]
    split = {"train": rows, "val": rows, "test": rows}
    trees.coop(tmp_path / "dtd" / "split_zhou_DescribableTextures.json", split)
    with pytest.raises(DataError, match=r"banded/2.jpg cannot be read"):
        open_features("dtd", "test", BACKBONE, cache_dir=tmp_path, root=tmp_path)


def shapes(root: Path, clients: dict[str, int], splits: tuple[str, ...] = ()) -> Path:
    """Images of two classes, bright and dark, in one folder per client."""
    for client, count in clients.items():
        generator = numpy_generator(1, "shapes", client)
        for split in splits or ("",):
            for name, base in (("bright", 150), ("dark", 0)):
                folder = root / client / split / name
                folder.mkdir(parents=True)
                for i in range(count):
                    pixels = generator.integers(base, base + 100, (9, 9, 3), dtype=np.uint8)
                    Image.fromarray(pixels).save(folder / f"{i}.png")
    return root


GIVEN = ("partition.kind=given", "partition.clients=0", "partition.shots=0")


def test_given_clients_keep_their_own_images(tmp_path: Path) -> None:
    root = shapes(tmp_path / "i", {"b": 10, "a": 5}, ("train", "test"))
    settings = load(None, [f"data.id=clients:{root}", "data.corrupted=[]", *GIVEN])
    split = make_split(settings, BACKBONE, tmp_path / "c")
    assert split.counts().tolist() == [[5, 5], [10, 10]]  # clients in the order of their names
    assert split.counts(of_test=True).tolist() == [[5, 5], [10, 10]]
    assert split.train.domain_names == ("a", "b")
    whole = sorted(row for rows in split.train_index for row in rows.tolist())
    assert whole == list(range(30))
    same = load(None, [f"data.id=folder:{root}", "data.corrupted=[]", *GIVEN])
    again = make_split(same, BACKBONE, tmp_path / "c")
    assert torch.equal(again.train.pooled, split.train.pooled)
    with pytest.raises(ConfigError, match="has 2 clients: set partition.clients to 2, or 0"):
        wrong = load(None, [f"data.id=clients:{root}", *GIVEN, "partition.clients=10"])
        make_split(wrong, BACKBONE, tmp_path / "c")


def test_given_clients_without_splits_hold_a_fifth_out(tmp_path: Path) -> None:
    root = shapes(tmp_path / "i", {"a": 10, "b": 5})
    settings = load(None, [f"data.id=clients:{root}", "data.corrupted=[]", *GIVEN])
    split = make_split(settings, BACKBONE, tmp_path / "c")
    assert split.counts().tolist() == [[8, 8], [4, 4]]
    assert split.counts(of_test=True).tolist() == [[2, 2], [1, 1]]
    few = shapes(tmp_path / "few", {"a": 10, "b": 2})
    with pytest.raises(ConfigError, match="client 'b' .* has no test images"):
        make_split(load(None, [f"data.id=clients:{few}", *GIVEN]), BACKBONE, tmp_path / "c")
    plain = tmp_path / "few" / "a"
    (tmp_path / "t.csv").write_text(f"path,label\n{plain}/dark/0.png,x\n", "utf-8")
    with pytest.raises(ConfigError, match="not divided into clients"):
        make_split(load(None, [f"data.id=csv:{tmp_path}/t.csv", *GIVEN]), BACKBONE, tmp_path / "c")


@pytest.mark.parametrize("kind", ["given", "domain"])
def test_corrupted_copies_go_to_the_clients_of_their_images(kind: str, tmp_path: Path) -> None:
    root = shapes(tmp_path / "i", {"a": 10, "b": 15})
    settings = [
        f"data.id=folder:{root}",
        "data.ood=[]",
        f"partition.kind={kind}",
        "partition.clients=0",
        "method.name=zeroshot",
        f"backbone.weights={tmp_path}",  # a name of its own among the backbones that are kept
    ]
    made = partial(build_scenario, cache_dir=tmp_path / "c", load=lambda *_, **__: BACKBONE)
    right = load(None, [*settings, f"data.corrupted=['folder:{root}#brightness@1']"])
    scenario = made(right)
    corrupted, own = scenario.sets.corrupted["brightness@1"], scenario.sets.test
    assert [rows.tolist() for rows in corrupted.index] == [rows.tolist() for rows in own.index]
    assert [len(rows) for rows in own.index] == [4, 6]
    # The same images again, only brighter: each is encoded from the file of its clean copy.
    every = open_features(f"folder:{root}", "all", BACKBONE, cache_dir=tmp_path / "c")
    bright = open_features(f"folder:{root}#brightness@1", "all", BACKBONE, cache_dir=tmp_path / "c")
    for clean, damaged in zip(own.images.pooled, corrupted.images.pooled, strict=True):
        row = int((every.pooled @ clean).argmax())
        torch.testing.assert_close(bright.pooled[row], damaged)
    other = shapes(tmp_path / "other", {"a": 10, "b": 15})
    wrong = load(None, [*settings, f"data.corrupted=['folder:{other}#brightness@1']"])
    with pytest.raises(ConfigError, match="does not hold the test images of"):
        made(wrong)
    strange = load(None, [*settings, "data.corrupted=['demo:cifar100#brightness@1']"])
    with pytest.raises(DataError, match="another joint space"):
        made(strange)


def call(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.output


def test_the_commands_list_check_and_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "cache"))
    trees.cifar100(tmp_path / "data", 4, 4)
    code, text = call("data", "list", "--root", str(tmp_path / "data"), "--json")
    document = json.loads(text)
    rows = {row["dataset"]: row for row in document["public"]}
    assert code == 0 and set(rows) == set(registry.available())
    assert rows["cifar100"]["folder"] == str(tmp_path / "data" / "cifar-100-python")
    assert rows["cifar10"]["folder"] is None and rows["cifar10"]["bytes"] == 170498071
    code, text = call("data", "list", "--root", str(tmp_path / "data"))
    assert code == 0 and "clients:PATH" in text and "169" in text
    root = shapes(tmp_path / "i", {"a": 2})
    code, text = call("data", "check", f"clients:{root}")
    assert code == 0 and "4 images, 2 classes, 0 cannot be read" in text
    (root / "a" / "dark" / "0.png").write_bytes(b"x")
    code, text = call("data", "check", f"folder:{root}", "--json")
    assert code == 3 and list(json.loads(text)["broken"]) == ["a/dark/0.png"]
    code, text = call("data", "check", "demo:cifar100")
    assert code == 2 and "only images can be checked" in text
    code, text = call("data", "fetch", "cifar1000")
    assert code == 3 and "nearest is 'cifar100'" in text
    code, text = call("encode", "cifar10", "--root", str(tmp_path / "data"))
    assert code == 3 and "focoop data fetch cifar10" in text and "Traceback" not in text
    code, text = call("encode", f"folder:{root}", "--strict")
    assert code == 3 and "a/dark/0.png" in text


def test_a_path_without_its_kind_is_told_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scans").mkdir()
    (tmp_path / "labels.csv").touch()
    for given, meant in (("scans", "folder:scans"), ("labels.csv", "csv:labels.csv")):
        with pytest.raises(DataError, match=f"write {meant}"):
            registry.lookup(given)
    with pytest.raises(DataError, match="your own are folder:PATH"):
        registry.lookup("x" * 5000)
