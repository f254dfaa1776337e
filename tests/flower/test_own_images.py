"""Sites with images of their own, of some classes each, learn what one machine would."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Context, RecordDict

from focoop.config.schema import RunConfig
from focoop.config.writing import to_flat
from focoop.errors import ConfigError, DataError, FederationError
from focoop.features.lookup import save_splits
from focoop.flower import in_process
from focoop.flower.records import flatten
from focoop.flower.site.client import SiteClient, own_scenario
from focoop.runs import RunFolder
from focoop.scenario.assignment import make_split
from focoop.scenario.scenario import Scenario, build_scenario
from focoop.seeds import numpy_generator
from tests.flower.federations import CLIENTS, opened, simulated, state, toy_config
from tests.toy_setting import CLASSES


@pytest.mark.slow
def test_sites_with_their_own_files_give_the_simulators_bits(tmp_path: Path) -> None:
    wanted = toy_config(
        tmp_path, "method.name=focoop", "partition.kind=pathological", "partition.shots=0"
    )
    split = make_split(wanted)
    nodes = []
    for k in range(CLIENTS):
        own = {
            "train": split.train.select(split.train_index[k]),
            "test": split.test.select(split.test_index[k]),
        }
        held = sorted({CLASSES[label] for label in own["train"].labels.tolist()})
        assert len(held) < len(CLASSES)
        # A site numbers the classes it has, and knows of no others.
        own = {name: features.with_classes(held) for name, features in own.items()}
        save_splits(tmp_path / f"site{k}.safetensors", own)
        nodes.append({"data": f"file:{tmp_path}/site{k}.safetensors", "name": f"site {k}"})
        nodes[-1]["policy"] = opened(tmp_path)  # the OOD set is a file
    plain = simulated(wanted, tmp_path / "sim")
    said = "; ".join(CLASSES)
    # Nobody but the sites has images: the run's own dataset is gone.
    (tmp_path / "setting" / "id.safetensors").unlink()
    in_process.run(wanted, tmp_path / "run", CLIENTS, nodes=nodes, classes=said)
    run = RunFolder.open(tmp_path / "run")
    assert state(run) == state(plain)
    for ours, theirs in zip(run.metrics(), plain.metrics(), strict=True):
        assert ours.get("loss") == theirs.get("loss")
        same_answers(ours["clients"], theirs["clients"])
        # Other sites' images are not here.
        assert all(row["cross_alarm"] is None for row in ours["clients"])

    fewer = "; ".join(name for name in CLASSES if name != "cat")
    wanted = toy_config(tmp_path, "method.name=promptfl")
    # Which class it is may be known to the site alone.
    with pytest.raises(FederationError, match="images: its images cannot be used"):
        in_process.run(wanted, tmp_path / "no", CLIENTS, nodes=nodes, classes=fewer, quorum=1.0)


def same_answers(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """Evaluations agree up to rounding: a site scores its own images, the simulator all at once.

    Matrix products of other numbers of rows use other kernels on some processors.
    """
    for mine, row in zip(ours, theirs, strict=True):
        for name in ("client", "num_test", "accuracy_own", "threshold", "ood"):
            left, right = flatten({name: mine[name]}), flatten({name: row[name]})
            assert left == pytest.approx(right, rel=1e-4)


def test_a_site_says_where_things_are(tmp_path: Path) -> None:
    wanted = toy_config(tmp_path, "method.name=promptfl")
    node = {"partition-id": 0, "num-partitions": 3, "name": "Utrecht", "device": "cuda"}
    flat = {**to_flat(wanted), "classes": "a; b"}
    with pytest.raises(ConfigError, match="Utrecht must bring its own images"):
        SiteClient.of(Context(1, 1, node, RecordDict(), flat))
    node |= {"data": "folder:images", "state": str(tmp_path), "policy": opened(tmp_path)}
    party = SiteClient.of(Context(1, 1, node, RecordDict(), flat))
    assert party.classes == ("a", "b") and party.state == tmp_path
    assert party.config == wanted and party.places == {"device": "cuda"}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was encoded before must not hide how images are encoded now."""
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "cache"))


def paint(folder: Path, sites: int, *, split: bool) -> list[str]:
    """Small pictures of `sites` sites, each with three of four classes; the classes."""
    names = ["apple", "boat", "cat", "drum"]
    for site, (label, name) in product(range(sites), enumerate(names)):
        for k in range(0 if label == site else 6):
            colours = numpy_generator(site, name, k).integers(0, 256, (4, 4, 3), dtype=np.uint8)
            place = folder / f"site-{site}" / (("test" if k == 5 else "train") if split else "")
            (place / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(colours).resize((32, 32)).save(place / name / f"{k}.png")
    return names


def image_config(tmp_path: Path, *overrides: str) -> RunConfig:
    settings = ("method.name=focoop", "partition.kind=given", "partition.clients=0")
    words = tmp_path / "words.txt"
    words.write_text("\n".join(f"chalk {k}" for k in range(9)))
    settings += (f"negatives.words={words}",)
    ood = f"data.ood=['file:{tmp_path}/setting/far.safetensors']"
    return toy_config(tmp_path, *settings, ood, "federation.evaluate_every=0", *overrides)


@pytest.mark.slow
@pytest.mark.usefixtures("cache")
def test_sites_with_folders_of_images_give_the_simulators_bits(tmp_path: Path) -> None:
    """Images are encoded apart and held out apart, as they would be where all are in one place."""
    names = paint(tmp_path / "sites", CLIENTS, split=False)
    source = f"data.id=clients:{tmp_path}/sites"
    plain = simulated(image_config(tmp_path, source, "partition.shots=2"), tmp_path / "sim")
    policy = opened(tmp_path)
    nodes = [{"data": f"folder:{tmp_path}/sites/site-{k}", "policy": policy} for k in range(3)]
    wanted = image_config(tmp_path, "partition.shots=2")  # whose own dataset no site has
    in_process.run(wanted, tmp_path / "run", CLIENTS, nodes=nodes, classes="; ".join(names))
    run = RunFolder.open(tmp_path / "run")
    assert state(run) == state(plain)
    same_answers(*(found.metrics()[-1]["clients"] for found in (run, plain)))


@pytest.mark.slow
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("split", "more"),
    [
        (True, ("partition.shots=0",)),
        (True, ("partition.shots=2", "data.views=1")),
        (False, ("partition.shots=3", "data.validation=1")),
        (False, ("partition.shots=0", "data.corrupted=['SOURCE#fog@2']")),
    ],
)
def test_a_site_divides_its_images_as_the_simulator_does(
    tmp_path: Path, split: bool, more: tuple[str, ...]
) -> None:
    names = paint(tmp_path / "sites", 2, split=split)
    source = f"clients:{tmp_path}/sites"
    more = tuple(one.replace("SOURCE", source) for one in more)
    whole = build_scenario(image_config(tmp_path, f"data.id={source}", *more))
    for k in range(2):
        data = f"folder:{tmp_path}/sites/site-{k}"
        own = own_scenario(image_config(tmp_path, *more), data, tuple(names), k, 2)
        ours, theirs = own.client(k), whole.client(k)
        # Random views are drawn by a file's name from the root, which differs; the rest agrees.
        count = len(ours) // (1 + own.split.views)
        assert len(ours) == len(theirs) and torch.equal(ours.labels, theirs.labels)
        assert torch.equal(ours.pooled[:count], theirs.pooled[:count])
        assert not len(own.client(1 - k)) and not len(own.split.test_index[1 - k])
        for mine, all_ in zip(held(own, k), held(whole, k), strict=True):
            assert torch.equal(mine, all_)
        for name, owned in whole.sets.corrupted.items():
            labels = owned.images.labels[owned.index[k]]
            found = own.sets.corrupted[name]
            assert (found.images.labels[found.index[k]] == labels).all() and len(labels)


def held(scenario: Scenario, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.from_numpy(scenario.split.test_index[client])
    return scenario.split.test.pooled[rows], scenario.split.test.labels[rows]


@pytest.mark.slow
@pytest.mark.usefixtures("cache")
def test_a_csv_and_broken_images_are_read_as_a_run_reads_them(
    tmp_path: Path,
) -> None:
    names = tuple(paint(tmp_path / "sites", 1, split=True))
    folder = tmp_path / "sites" / "site-0"
    wanted = image_config(tmp_path, "partition.shots=0")
    whole = own_scenario(wanted, f"folder:{folder}", names)
    # The same images in a list; that it names clients does not matter at a site.
    files = sorted(path for path in folder.rglob("*.png"))
    lines = [
        f"{p.relative_to(folder)},{p.parent.name},{p.parts[-3]},ward {i % 2}"
        for i, p in enumerate(files)
    ]
    table = folder / "list.csv"
    table.write_text("path,label,split,client\n" + "\n".join(lines) + "\n")
    listed = own_scenario(wanted, f"csv:{table}", names)
    assert torch.equal(listed.client(0).pooled, whole.client(0).pooled)
    assert torch.equal(listed.client(0).labels, whole.client(0).labels)

    bad = folder / "train" / "boat" / "0.png"
    bad.write_bytes(b"no picture")
    strict = image_config(tmp_path, "partition.shots=0", "data.strict=true")
    errors = []
    for open_ in (
        lambda config: own_scenario(config, f"folder:{folder}", names),
        lambda config: build_scenario(
            replace(
                config,
                data=replace(config.data, id=f"folder:{folder}"),
                partition=replace(config.partition, kind="iid", clients=1),
            )
        ),
    ):
        own_scenario.cache_clear()
        with pytest.warns(UserWarning, match=r"1 of 15 images .* cannot be read.*0\.png.*left out"):
            assert len(open_(wanted).split.train) == 14
        with pytest.raises(DataError, match="cannot be read") as error:
            open_(strict)
        errors.append(str(error.value))
    assert errors[0] == errors[1]
