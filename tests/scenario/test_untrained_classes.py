"""Classes that nobody trains on: an OOD set of unknown ones, and new ones known by name."""

from pathlib import Path

import numpy as np
import pytest
import torch

from focoop import scenario as room
from focoop.clip.base import Backbone
from focoop.config import loading
from focoop.config.schema import RunConfig
from focoop.errors import ConfigError
from focoop.features.feature_set import FeatureSet
from focoop.features.lookup import save_splits
from focoop.federation import evaluate, start
from focoop.scenario import build_scenario, make_split, schedule_of
from focoop.seeds import torch_generator

CLASSES = ("ant", "bee", "cat", "dog", "eel", "fox")


def toy(folder: Path, name: str, each: int) -> FeatureSet:
    pooled = torch.randn(len(CLASSES) * each, 256, generator=torch_generator(0, name))
    labels = torch.arange(len(CLASSES)).repeat(each)
    return FeatureSet(torch.nn.functional.normalize(pooled, dim=-1), None, labels, CLASSES)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("untrained")
    path = folder / "toy.safetensors"
    save_splits(path, {"train": toy(folder, "train", 8), "test": toy(folder, "test", 3)})
    save_splits(folder / "toy.brightness.2.safetensors", {"test": toy(folder, "bright", 3)})
    return f"file:{path}"


def settings(spec: str, *overrides: str) -> RunConfig:
    common = [f"data.id={spec}", "data.corrupted=[]", "data.ood=[]", "partition.clients=2"]
    return loading.load(None, [*common, "partition.shots=0", "method.name=zeroshot", *overrides])


def names_in(features: FeatureSet, rows: np.ndarray | None = None) -> set[str]:
    labels = features.labels if rows is None else features.labels[torch.from_numpy(rows)]
    return {features.classes[label] for label in labels.tolist()}


@pytest.mark.parametrize("kind", ["pathological", "dirichlet", "iid"])
def test_unknown_classes_are_an_ood_set_and_nothing_else(spec: str, kind: str) -> None:
    plain = make_split(settings(spec, f"partition.kind={kind}"))
    split = make_split(settings(spec, f"partition.kind={kind}", "data.unknown_classes=2"))
    assert plain.unknown is None and split.unknown is not None
    hidden = set(split.unknown.classes)
    assert len(hidden) == 2 and set(split.classes) == set(CLASSES) - hidden
    for features in (split.train, split.test):
        assert names_in(features) == set(split.classes)
    assert names_in(split.unknown) == hidden and len(split.unknown) == 6
    assert sorted(np.concatenate(split.test_index)) == list(range(12))


def test_another_partition_seed_hides_other_classes(spec: str) -> None:
    drawn = {
        make_split(settings(spec, "data.unknown_classes=2", f"partition.seed={seed}")).classes
        for seed in range(6)
    }
    assert len(drawn) > 2


def test_while_validating_unknown_images_are_training_images(spec: str, mini: Backbone) -> None:
    given = ("data.unknown_classes=2", "data.validation=3")
    scenario = build_scenario(settings(spec, *given))
    found = scenario.sets.ood["unknown_classes"].pooled
    test = build_scenario(settings(spec, "data.unknown_classes=2")).sets.ood["unknown_classes"]
    assert len(found) == len(test) == 6
    assert float((found @ test.pooled.T).max()) < 0.5  # unrelated vectors: no image is in both


def test_new_classes_are_tested_and_nobody_holds_them(spec: str, mini: Backbone) -> None:
    scenario = build_scenario(settings(spec, "data.new_classes=2", "data.unknown_classes=1"))
    split = scenario.split
    held = {name for rows in split.train_index for name in names_in(split.train, rows)}
    new = set(split.classes) - held
    assert len(split.classes) == 5 and len(new) == 2
    assert scenario.task.classes == split.classes
    owned = [names_in(split.test, rows) for rows in split.test_index]
    assert set.union(*owned) == held and all(len(own) in (1, 2) for own in owned)
    unowned = scenario.sets.unowned
    assert names_in(split.test, unowned) == new and len(unowned) == 6
    shared = start(scenario.method, scenario.task, 0).shared
    found = evaluate(scenario.method, scenario.task, lambda _: shared, scenario.sets)
    images = split.test.pooled @ scenario.task.anchors.T
    right = (images.argmax(dim=1) == split.test.labels)[torch.from_numpy(unowned)]
    assert found.summary["accuracy_new"] == pytest.approx(float(right.double().mean()))
    assert list(found.summary["ood"]) == ["unknown_classes"]


def test_without_new_classes_nothing_is_said_of_them(spec: str, mini: Backbone) -> None:
    scenario = build_scenario(settings(spec))
    shared = start(scenario.method, scenario.task, 0).shared
    found = evaluate(scenario.method, scenario.task, lambda _: shared, scenario.sets)
    assert "accuracy_new" not in found.summary and "accuracy_new" not in found.clients[0]


def test_corrupted_sets_lose_unknown_classes_and_new_ones_have_no_owner(
    spec: str, mini: Backbone
) -> None:
    given = ("data.unknown_classes=2", "data.new_classes=1")
    scenario = build_scenario(settings(spec, f'data.corrupted=["{spec}#brightness@2"]', *given))
    owned = scenario.sets.corrupted["brightness@2"]
    assert torch.equal(owned.images.labels, scenario.split.test.labels)
    for rows, wanted in zip(owned.index, scenario.split.test_index, strict=True):
        assert np.array_equal(rows, wanted)


def test_test_images_alone_are_divided_the_same_way(spec: str) -> None:
    config = settings(spec, "data.unknown_classes=2", "data.new_classes=1")
    whole = make_split(config)
    alone = room.tested_split(config, classes=whole.classes, clients=("0", "1"))
    assert torch.equal(alone.test.labels, whole.test.labels)
    assert alone.unknown is not None and whole.unknown is not None
    assert alone.unknown.classes == whole.unknown.classes
    for rows, wanted in zip(alone.test_index, whole.test_index, strict=True):
        assert np.array_equal(rows, wanted)


def test_what_cannot_be_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="leave none of the 6 classes"):
        make_split(settings(spec, "data.unknown_classes=4", "data.new_classes=2"))
    for name in ("unknown_classes", "new_classes"):
        with pytest.raises(ConfigError, match=f"data.{name} needs a partition that divides"):
            settings(spec, f"data.{name}=1", "partition.kind=domain")
    with pytest.raises(ConfigError, match="set federation.rounds to 2 or more"):
        settings(spec, "federation.late_clients=1", "federation.rounds=1")
    with pytest.raises(ConfigError, match="whose sum would tell them"):
        settings(spec, "federation.late_clients=1", "privacy.secure_sum=true")


def test_somebody_must_train_before_late_clients_join(spec: str, mini: Backbone) -> None:
    late = ("federation.late_clients=2", "federation.rounds=2")
    with pytest.raises(ConfigError, match="2 of 2 clients leave nobody to train"):
        config = settings(spec, "method.name=fedncm", *late)
        schedule_of(config, build_scenario(config))
    with pytest.raises(ConfigError, match="nobody can join late"):
        config = settings(spec, "method.name=centralized", *late)
        schedule_of(config, build_scenario(config))
    config = settings(spec, *late)  # zeroshot has no rounds in which anybody could be late
    assert schedule_of(config, build_scenario(config)).late == 0
