"""Views in a run: further training rows of the client that holds the image, and of nobody else."""

from pathlib import Path

import numpy as np
import pytest
import torch

from focoop.config import loading
from focoop.data import read_folder
from focoop.errors import ConfigError, DataError
from focoop.features.encoding import encode
from focoop.scenario.assignment import make_split
from focoop.scenario.split import Split
from tests.features.test_encoding import plant_images
from tests.helpers import toy_backbone


def split_of(root: Path, cache: Path, *settings: str) -> Split:
    chosen = ["data.corrupted=[]", "data.ood=[]", f"data.id=folder:{root}", *settings]
    return make_split(loading.load(None, chosen), toy_backbone(), cache)


def check_rows(split: Split, views: int, images: torch.Tensor, seen: list[torch.Tensor]) -> None:
    """Every client has its images, then the views of these very images, in the same order."""
    for rows in split.train_index:
        count = len(rows) // (views + 1)
        assert count and len(rows) == count * (views + 1)
        held = split.train.select(torch.from_numpy(rows))
        which = [int((images == one).all(1).nonzero()) for one in held.pooled[:count]]
        for number in range(views):
            part = slice(count * (number + 1), count * (number + 2))
            assert torch.equal(held.pooled[part], seen[number][which])
            assert torch.equal(held.labels[part], held.labels[:count])


@pytest.mark.parametrize("kind", ["pathological", "iid", "dirichlet"])
@pytest.mark.parametrize("validation", [0, 2])
def test_clients_train_on_views_of_their_own_images(
    kind: str, validation: int, tmp_path: Path
) -> None:
    root = plant_images(tmp_path / "images", per_class=6)
    settings = [f"partition.kind={kind}", "partition.clients=2", "partition.shots=2"]
    settings += [f"data.validation={validation}", "partition.alpha=5"]
    plain = split_of(root, tmp_path, *settings)
    split = split_of(root, tmp_path, *settings, "data.views=2")
    whole = encode(read_folder(root, "train"), toy_backbone(), views=2, cache_dir=tmp_path)
    check_rows(split, 2, whole.pooled, [view.pooled for view in whole.views])
    assert np.array_equal(split.counts(), plain.counts())
    assert np.array_equal(split.counts(of_test=True), plain.counts(of_test=True))
    assert torch.equal(split.test.pooled, plain.test.pooled) and split.test.views == ()
    if validation:  # no view of a held-out image may be trained on
        trained = split.train.pooled[torch.from_numpy(np.concatenate(split.train_index))]
        for one in split.test.pooled:
            row = int((whole.pooled == one).all(1).nonzero())
            for view in whole.views:
                assert not (trained == view.pooled[row]).all(1).any()


@pytest.mark.parametrize("left_out", ["", "photo"])
def test_domains_with_views(left_out: str, tmp_path: Path) -> None:
    root = plant_images(tmp_path / "images", per_class=6)
    (root / "train").rename(root / "photo")
    (root / "test").rename(root / "sketch")
    settings = ["partition.kind=domain", "partition.clients=0", "partition.shots=0"]
    settings += [f"partition.leave_out={left_out}", "data.views=1"]
    split = split_of(root, tmp_path, *settings)
    whole = encode(read_folder(root, "all"), toy_backbone(), views=1, cache_dir=tmp_path)
    check_rows(split, 1, whole.pooled, [whole.views[0].pooled])
    assert len(split.train_index) == (1 if left_out else 2)
    assert len(split.test) == int(split.counts(of_test=True).sum())


def test_hashes_tell_views(tmp_path: Path) -> None:
    root = plant_images(tmp_path / "images", per_class=4)
    found = [
        split_of(root, tmp_path, "partition.clients=2", f"data.views={views}").train.sha256()
        for views in (0, 1, 2)
    ]
    assert len(set(found)) == 3


def test_views_need_images() -> None:
    chosen = loading.load(None, ["data.views=1"])
    with pytest.raises(DataError, match=r"data.views = 1 needs images, and demo:cifar100"):
        make_split(chosen)
    with pytest.raises(ConfigError, match="data.views"):
        loading.load(None, ["data.views=-1"])
