"""Who holds which images: every row carries its number, so that each can be followed."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from focoop.clip.base import Backbone
from focoop.config import loading, writing
from focoop.config.schema import RunConfig
from focoop.errors import ConfigError, DataError
from focoop.features.feature_set import FeatureSet
from focoop.features.storage import read_file, write_file
from focoop.federation.evaluation.evaluate import evaluate
from focoop.federation.rounds import start
from focoop.scenario.assignment import make_split
from focoop.scenario.scenario import build_scenario
from focoop.scenario.split import Split

DOMAINS = ("clay", "ink", "oil")
CLASSES = ("junk", "ant", "bee")
WIDTH = 256  # of the packaged backbone


def labels_and_groups(groups: int, each: int) -> tuple[list[int], list[int]]:
    labels = [row % len(CLASSES) for row in range(groups * each)]
    return labels, [row // each for row in range(groups * each)]


def feature_file(path: Path, groups: list[int], labels: list[int], **metadata: object) -> str:
    """Row r is the r-th unit vector; every third row from row 1 on has patches."""
    count = len(labels)
    marked = list(range(1, count, 3))
    tensors = {
        "pooled": torch.eye(WIDTH)[:count].half(),
        "labels": torch.tensor(labels, dtype=torch.int32),
        "split": torch.tensor(groups, dtype=torch.int8),
        "patches_q": torch.ones(len(marked), 2, WIDTH, dtype=torch.int8),
        "patches_scale": torch.full((len(marked), 2), 0.01).half(),
        "patches_index": torch.tensor(marked, dtype=torch.int32),
    }
    text = {key: json.dumps(value) for key, value in metadata.items()}
    write_file(path, tensors, {"classes": json.dumps(CLASSES), **text})
    return f"file:{path}"


@pytest.fixture
def by_domain(tmp_path: Path) -> str:
    labels, groups = labels_and_groups(3, 30)
    return feature_file(tmp_path / "domains.safetensors", groups, labels, domains=DOMAINS)


@pytest.fixture
def by_split(tmp_path: Path) -> str:
    labels, groups = labels_and_groups(2, 36)
    return feature_file(tmp_path / "splits.safetensors", groups, labels)


def settings(spec: str, *overrides: str) -> RunConfig:
    common = [f"data.id={spec}", "data.corrupted=[]", "data.ood=[]", "partition.shots=0"]
    return loading.load(None, [*common, *overrides])


def left_out(spec: str, name: str, *overrides: str) -> RunConfig:
    given = ("partition.kind=domain", f"partition.leave_out={name}", "partition.clients=0")
    return settings(spec, *given, *overrides)


def rows(features: FeatureSet, index: np.ndarray | None = None) -> list[int]:
    """The numbers that the rows carry."""
    found = features.pooled.argmax(1).tolist()
    return found if index is None else [found[i] for i in index]


def held(split: Split) -> list[list[int]]:
    return [rows(split.train, index) for index in split.train_index]


@pytest.mark.parametrize("name", DOMAINS)
def test_clients_have_one_of_the_other_domains_and_are_tested_on_the_left_out_one(
    by_domain: str, name: str
) -> None:
    split = make_split(left_out(by_domain, name))
    whole = {domain: list(range(30 * i, 30 * i + 30)) for i, domain in enumerate(DOMAINS)}
    assert held(split) == [whole[domain] for domain in DOMAINS if domain != name]
    assert [rows(split.test, index) for index in split.test_index] == [whole[name]] * 2


def test_shots_hold_within_each_domain(by_domain: str) -> None:
    split = make_split(left_out(by_domain, "ink", "partition.shots=4"))
    assert split.counts().tolist() == [[4, 4, 4]] * 2
    assert split.counts(of_test=True).tolist() == [[10, 10, 10]] * 2


def test_tuning_leaves_the_left_out_domain_alone(by_domain: str) -> None:
    plain = make_split(left_out(by_domain, "ink"))
    tuned = make_split(left_out(by_domain, "ink", "data.validation=2"))
    trained = [row for part in held(tuned) for row in part]
    assert sorted(trained + rows(tuned.test)) == sorted(row for part in held(plain) for row in part)
    # Two images of three classes in each of two domains; every client is tested on all of them.
    assert len(tuned.test) == 2 * 3 * 2
    assert all(len(index) == len(tuned.test) for index in tuned.test_index)
    assert tuned.test.domains is not None and set(tuned.test.domains.tolist()) == {0, 2}


def test_tuning_by_domain_takes_training_images_only(by_domain: str) -> None:
    plain = make_split(settings(by_domain, "partition.kind=domain", "partition.clients=0"))
    tuned = make_split(
        settings(by_domain, "partition.kind=domain", "partition.clients=0", "data.validation=2")
    )
    assert len(plain.train_index) == len(DOMAINS)
    assert not set(rows(tuned.test)) & set(rows(plain.test))
    assert sorted(rows(tuned.train) + rows(tuned.test)) == sorted(rows(plain.train))


def test_impossible_domains_are_refused(by_domain: str, by_split: str) -> None:
    with pytest.raises(ConfigError, match="'inc' is no domain of .*nearest is 'ink'"):
        make_split(left_out(by_domain, "inc"))
    with pytest.raises(ConfigError, match="has 2 domains.*set partition.clients to 2, or 0"):
        make_split(left_out(by_domain, "ink", "partition.clients=3"))
    with pytest.raises(ConfigError, match="needs a dataset with domains"):
        make_split(left_out(by_split, "ink"))
    with pytest.raises(ConfigError, match="needs partition.kind = domain"):
        loading.load(None, ["partition.leave_out=ink"])
    with pytest.raises(ConfigError, match="clients = 0 means one client per domain"):
        loading.load(None, ["partition.clients=0"])
    with pytest.raises(ConfigError, match="data.validation = 10 is too many here"):
        make_split(left_out(by_domain, "ink", "data.validation=10"))


def test_dropped_classes_are_gone_and_the_others_renumbered(by_split: str) -> None:
    split = make_split(settings(by_split, 'data.drop_classes=["junk"]', "partition.clients=2"))
    assert split.classes == ("ant", "bee")
    for features, first in ((split.train, 0), (split.test, 36)):
        assert rows(features) == [row for row in range(first, first + 36) if row % 3]
        assert features.labels.tolist() == [row % 3 - 1 for row in rows(features)]
    with pytest.raises(DataError, match="nearest is 'junk'"):
        make_split(settings(by_split, 'data.drop_classes=["junc"]', "partition.clients=2"))


def test_with_patches_only_rows_that_have_them_are_used(by_split: str) -> None:
    plain = settings(by_split, "partition.kind=iid", "partition.clients=2")
    assert len(make_split(plain).train) == 36
    split = make_split(loading.load(None, [*_overrides(plain), "data.with_patches=true"]))
    assert rows(split.train) == list(range(1, 36, 3))
    assert rows(split.test) == list(range(37, 72, 3))
    assert split.train.patches is not None and split.train.patches.shape == (12, 2, WIDTH)


def _overrides(given: RunConfig) -> list[str]:
    tree = writing.to_dict(given)
    keep = {"data": ("id", "corrupted", "ood"), "partition": ("kind", "clients", "shots")}
    return [f"{s}.{key}={tree[s][key]}" for s, keys in keep.items() for key in keys]


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("dtd/test", "dtd"),
        ("dtd/train", "dtd_train"),
        ("far", "far"),
        ("dtd/test@32px", "dtd@32px"),
    ],
)
def test_an_ood_set_is_not_called_after_its_split(
    folder: str, name: str, tmp_path: Path, mini: Backbone
) -> None:
    place = tmp_path / folder.partition("@")[0] / "cat"
    place.mkdir(parents=True)
    Image.new("RGB", (40, 40), "red").save(place / "one.png")
    data = [f'data.ood=["folder:{tmp_path / folder}"]', "data.corrupted=[]"]
    settings = loading.load(None, ["method.name=zeroshot", "data.id=demo:cifar100", *data])
    assert list(build_scenario(settings).sets.ood) == [name]


def test_a_left_out_domain_is_evaluated_without_a_cross_client_alarm(
    by_domain: str, tmp_path: Path, mini: Backbone
) -> None:
    """And tuning opens `data.validation_ood` instead of the test OOD sets."""
    ood = feature_file(tmp_path / "seen.safetensors", [1] * 7, [0] * 7)
    given = [
        "method.name=zeroshot",
        'data.ood=["file:no/such/file.safetensors"]',
        f'data.validation_ood=["{ood}"]',
    ]
    scenario = build_scenario(left_out(by_domain, "oil", *given, "data.validation=3"))
    params = start(scenario.method, scenario.task, 0)
    found = evaluate(scenario.method, scenario.task, lambda k: params.shared, scenario.sets)
    assert found.summary["cross_alarm"] is None
    assert found.summary["accuracy_own"] == found.summary["accuracy_all"]
    assert list(found.summary["ood"]) == ["seen"] and found.summary["num_clients"] == 2
    with pytest.raises(DataError, match="no feature file"):
        build_scenario(left_out(by_domain, "oil", *given))


def test_corrupted_sets_lose_the_dropped_classes_too(tmp_path: Path, mini: Backbone) -> None:
    labels, groups = labels_and_groups(2, 36)
    spec = feature_file(tmp_path / "x.safetensors", groups, labels)
    feature_file(tmp_path / "x.brightness.2.safetensors", [1] * 12, labels[:12])
    given = (f'data.corrupted=["{spec}#brightness@2"]', "partition.clients=2")
    scenario = build_scenario(
        settings(spec, "method.name=zeroshot", 'data.drop_classes=["junk"]', *given)
    )
    owned = scenario.sets.corrupted["brightness@2"]
    assert owned.images.labels.tolist() == [row % 3 - 1 for row in range(12) if row % 3]
    assert sorted(np.concatenate(owned.index)) == list(range(8))


def test_features_of_classes_without_names_warn(tmp_path: Path) -> None:
    labels, groups = labels_and_groups(2, 36)
    path = tmp_path / "codes.safetensors"
    feature_file(path, groups, labels)
    tensors, metadata = read_file(path)
    write_file(path, tensors, {**metadata, "classes": json.dumps(["3", "4", "mug"])})
    with pytest.warns(
        UserWarning, match=r"2 of 3 classes .* \('3', '4'\).*then encode that folder"
    ):
        make_split(settings(f"file:{path}", "partition.clients=2"))
