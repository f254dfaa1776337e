"""The attack on means and spread works where a site sends nothing, and there alone."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.means_attack import Images, Told, class_basis, draw, membership, paired, search
from focoop.methods.base import Batch
from focoop.methods.focoop_plus import FOCoOpPlus
from focoop.seeds import torch_generator
from tests.methods.contract_toy import CLASSES, DIM, make_task

WIDTH = 24


def client(classes: int, count: int, width: int = WIDTH) -> tuple[Tensor, Tensor]:
    """Unit features about class centres, and labels."""
    generator = torch_generator(3, "client", classes, count)
    centres = torch.randn(classes, 1, width, generator=generator, dtype=torch.float64)
    noise = torch.randn(classes, count, width, generator=generator, dtype=torch.float64)
    labels = torch.repeat_interleave(torch.arange(classes), count)
    return F.normalize((centres + noise).flatten(0, 1), dim=1), labels


def test_what_is_searched_for_has_the_means_the_scatter_and_the_lengths() -> None:
    features, labels = client(2, 3)
    basis = class_basis(labels)
    assert basis.shape == (4, 6)
    torch.testing.assert_close(basis @ basis.T, torch.eye(4, dtype=torch.float64))
    assert (basis @ F.one_hot(labels).double()).abs().max() < 1e-12
    told = Told.of(features, labels)
    turned = told.turned(draw(told, 0))
    guess, means = told.centres + (told.root @ turned).T, told.centres
    torch.testing.assert_close(
        torch.stack([guess[labels == c].mean(dim=0) for c in range(2)])[labels], means
    )
    off, true = guess - means, features - means
    torch.testing.assert_close(off.T @ off, true.T @ true)
    missed = (guess.square().sum(dim=1) - 1).square().sum()
    torch.testing.assert_close(told.off_length(turned), missed)
    swapped = features[torch.tensor([2, 0, 1, 3, 5, 4])]
    torch.testing.assert_close(paired(swapped, features, labels), torch.ones(6).double())


@pytest.mark.parametrize(("classes", "count"), [(1, 2), (1, 3)])
def test_few_images_are_found_exactly(classes: int, count: int) -> None:
    """Why a scatter of few images is not sent: mean and scatter are the images."""
    features, labels = client(classes, count)
    found = search(Told.of(features, labels), starts=3, steps=100, seed=0)
    assert paired(found, features, labels).min() > 0.99


def test_of_such_clients_nothing_is_sent() -> None:
    # What the policy of a site asks for, unless it says otherwise.
    method, count_all = FOCoOpPlus(FOCoOpPlus.Config(least_images=5)), len(CLASSES)
    task = make_task(method, dtype=torch.float64)
    params = method.init(task, torch_generator(0)).shared
    for classes, count in ((1, 2), (1, 3), (count_all, 2), (count_all, 4)):
        features, labels = client(classes, count, DIM)
        sent = method.measure(params, Batch(features, None, labels), task)
        assert not sent["mean_weight"].any() and not sent["spread_weight"].any()
        assert torch.equal(sent["means"], params["means"])
        assert torch.equal(sent["moment"], params["moment"])
    features, labels = client(count_all, 5, DIM)  # 16 images less classes
    sent = method.measure(params, Batch(features, None, labels), task)
    assert sent["mean_weight"].all() and sent["spread_weight"].all()


def test_many_images_are_not_found() -> None:
    """With as many images as a scatter is sent for, the search finds no more than the means."""
    features, labels = client(4, 5)
    found = search(Told.of(features, labels), starts=1, steps=80, seed=0)
    means = torch.stack([features[labels == c].mean(dim=0) for c in range(4)])[labels]
    alone = F.cosine_similarity(means, features, dim=1)
    assert paired(found, features, labels).mean() < alone.mean() + 0.05


def test_members_of_large_means_are_hard_to_tell() -> None:
    features, labels = client(10, 16)
    areas = [membership(Images(features, labels), count, 0)[2] for count in (1, 3, 12)]
    assert areas[0] == 1.0 and areas[0] > areas[1] > areas[2] > 0.5
