"""Sums under privacy's noise: the server measures it, and believes them as far as it allows."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from focoop.federation.rounds import aggregate
from focoop.federation.updates.differential_privacy import Privacy
from focoop.federation.updates.secure_sum import summed
from focoop.methods._posterior import (
    LEAST_WORTH,
    TYPICAL,
    lost_to_noise,
    noise_of_scatter,
    noised_scatter,
    posterior,
    spread_within,
    worth,
)
from focoop.methods._sums import Totals
from focoop.methods.base import Batch, ClientUpdate, Params, Server, Task
from focoop.methods.fedlda import FedLDA
from focoop.methods.focoop_plus import FOCoOpPlus
from focoop.seeds import torch_generator
from tests.methods.closed_form_toy import CLIENTS, C, alone, images_of, made, sent, task_for
from tests.methods.contract_toy import DIM


def noised(
    updates: list[ClientUpdate], received: Params, deviation: float, draw: int
) -> list[ClientUpdate]:
    """Updates with noise on every number and a clip that shortens none."""
    clip = 100.0
    release, counts = Privacy(clip=clip, noise=deviation / clip).release, torch_generator(0, "c")
    return [
        release(update, received, torch_generator(draw, "noise", update.client), counts)
        for update in updates
    ]


def first_round() -> tuple[FedLDA, Task, Server, list[ClientUpdate]]:
    method = made(FedLDA)
    assert isinstance(method, FedLDA)
    task = task_for(method)
    server = Server(method.init(task, torch_generator(0)).shared)
    return method, task, server, sent(method, task, server.shared, CLIENTS)


def many_draws(deviation: float, draws: int, secure: bool = False) -> tuple[Totals, list[Totals]]:
    """Sums without noise, and with each of several draws of it."""
    method, task, server, updates = first_round()
    found = []
    for draw in range(draws):
        came = noised(updates, server.shared, deviation, draw)
        came = summed(method, server, came, task)[0] if secure else came
        found.append(method.sums.add(server, came)[2])
    return method.sums.add(server, updates)[2], found


def noise_in(totals: Totals) -> Tensor:
    assert totals.noise is not None
    return totals.noise


@pytest.mark.parametrize("secure", [False, True])
def test_the_server_measures_the_noise_of_means_and_moment(secure: bool) -> None:
    plain, found = many_draws(0.01, 200, secure)
    # Across the true mean: along it is how far the noise on weights has changed the mean's length.
    along = torch.nn.functional.normalize(plain.means, dim=1)
    off = torch.stack([one.means - plain.means for one in found])
    across = off - (off * along).sum(dim=2, keepdim=True) * along
    truth = across.square().sum(dim=2).mean(dim=0) / (DIM - 1)
    measured = torch.stack([noise_in(one) for one in found]).mean(dim=0)
    # Variances of 16 numbers, which classes have in common more or less.
    torch.testing.assert_close(measured, truth, rtol=0.25, atol=0)
    off = torch.stack([one.moment - plain.moment for one in found])
    torch.testing.assert_close(off, off.mT)  # noise and all, it is symmetric
    moment = float(off[:, *torch.triu_indices(DIM, DIM, 1)].square().mean())
    assert sum(one.moment_noise for one in found) / len(found) == pytest.approx(moment, rel=0.1)


def test_without_noise_there_is_none() -> None:
    plain, _ = many_draws(0.0, 0)
    assert plain.noise is None and plain.moment_noise == 0.0
    metric = torch.eye(DIM, dtype=torch.float64)
    assert worth(plain, metric) is plain


def test_noise_of_several_rounds_is_averaged() -> None:
    method, task, server, _ = first_round()
    noise, moment = [], []
    for draw in range(4):
        updates = noised(sent(method, task, server.shared, CLIENTS), server.shared, 0.01, draw)
        found = method.sums.add(server, updates)[2]
        noise.append(float(noise_in(found).mean()))
        moment.append(found.moment_noise)
        server = aggregate(method, server, updates, task)
    # Four rounds leave a quarter of the variance, each measured within a third.
    assert noise[3] < 0.4 * noise[0] and moment[3] < 0.4 * moment[0]


def drawn(plain: Totals, draws: int, much: float = 1.0) -> list[Totals]:
    """Sums with noise of known variances, another one for each class."""
    noise = torch.linspace(0.5, 2.0, C, dtype=torch.float64) * 1e-3 * much
    generator, shape = torch_generator(1, "sums"), plain.moment.shape

    def normal(size: torch.Size) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    def symmetric(matrix: Tensor) -> Tensor:
        return (matrix + matrix.T) / 2

    return [
        replace(
            plain,
            means=plain.means + noise.sqrt()[:, None] * normal(plain.means.shape),
            moment=plain.moment + symmetric((2e-4 * much) ** 0.5 * normal(shape)),
            noise=noise,
            moment_noise=1e-4 * much,
        )
        for _ in range(draws)
    ]


def test_noise_leaves_the_scatter_as_large_as_it_was() -> None:
    plain = many_draws(0.0, 0)[0]
    more = TYPICAL * plain.freedom - float(plain.scatter.trace())
    unit = torch.eye(DIM, dtype=torch.float64) / DIM / plain.images.sum()
    plain = replace(plain, moment=plain.moment + more * unit)  # of a size that pulls nowhere
    found = drawn(plain, 4_000)
    traces = torch.stack([noised_scatter(one, noise_in(one))[0].trace() for one in found])
    error = float(traces.std()) / len(traces) ** 0.5
    off = float(traces.mean() - plain.scatter.trace())
    taken = DIM * float((plain.images * noise_in(found[0])).sum())
    assert abs(off) < 4 * error
    assert taken > 8 * error  # without what is put back it would be too small


def test_the_size_of_a_scatter_that_noise_hides_is_a_typical_one() -> None:
    plain = many_draws(0.0, 0)[0]
    (found,) = drawn(plain, 1, 1e3)
    scatter, lost = noised_scatter(found, noise_in(found))
    assert float(scatter.trace()) == pytest.approx(TYPICAL * plain.freedom, rel=0.1)
    assert lost == pytest.approx(1.0, abs=0.3)


def test_noise_of_the_scatter_is_that_of_many_draws() -> None:
    plain = many_draws(0.0, 0)[0]
    found = drawn(plain, 2_000)
    off = torch.stack([one.scatter for one in found]) - plain.scatter
    entries, traces = zip(*(noise_of_scatter(one, noise_in(one)) for one in found), strict=True)
    traced = off.diagonal(dim1=1, dim2=2).sum(dim=1)
    shift = float(traced.mean()) / DIM  # squares of noised means, which is put back
    off -= shift * torch.eye(DIM, dtype=torch.float64)
    assert sum(entries) / len(found) == pytest.approx(float(off.square().mean()), rel=0.1)
    assert sum(traces) / len(found) == pytest.approx(float(traced.var()), rel=0.15)


def test_a_noised_matrix_is_shrunk_by_about_the_best_of_all_shrinkages() -> None:
    draw = torch_generator(3, "matrix")
    root = torch.randn(40, 40, generator=draw, dtype=torch.float64)
    truth = root @ root.T / 40
    unit = torch.eye(40, dtype=torch.float64)
    for deviation in (0.03, 0.3, 3.0):
        noise = deviation * torch.randn(40, 40, generator=draw, dtype=torch.float64)
        came = truth + (noise + noise.T) / 2
        found = lost_to_noise(came, deviation**2 / 2)
        errors = [
            float(((1 - k) * came + k * came.diagonal().mean() * unit - truth).norm())
            for k in (found, *torch.linspace(0, 1, 101).tolist())
        ]
        assert errors[0] < 1.02 * min(errors[1:])
    assert found > 0.9 and lost_to_noise(truth, 0.0) == 0.0


def test_a_noised_mean_is_worth_as_many_images_as_are_as_uncertain() -> None:
    """Images vary by 1: noise of 1/8 on the mean of 8 is that of 8 images more, so of 4 in all."""
    images = torch.tensor([8.0, 8.0, 8.0], dtype=torch.float64)
    noise = torch.tensor([0.0, 1 / 8, 1.0 / LEAST_WORTH], dtype=torch.float64)
    nothing = torch.zeros(3, DIM, dtype=torch.float64)
    totals = Totals(nothing, images, nothing.T @ nothing, 24.0, noise=noise)
    metric = torch.eye(DIM, dtype=torch.float64)
    assert worth(totals, metric).images.tolist() == [8.0, 4.0, 0.0]
    most = replace(totals, noise=noise.flip(0).roll(1) * 0 + noise[2])
    assert not worth(most, metric).images.any()


def test_names_get_the_weight_they_deserve_beside_means_of_less_than_an_image() -> None:
    """Means vary by 1/2 about what names say, so that a name is worth two images, noise or none."""
    classes, width, noise = 300, 32, 5.0
    generator = torch_generator(7, "weights")
    texts = torch.randn(classes, width, generator=generator, dtype=torch.float64)
    off = torch.randn(classes, width, generator=generator, dtype=torch.float64)
    truth = texts + 0.5**0.5 * off
    error = torch.randn(classes, width, generator=generator, dtype=torch.float64)
    images = torch.full((classes,), 8.0, dtype=torch.float64)
    means = truth + (noise + 1 / 8) ** 0.5 * error
    moment = torch.eye(width, dtype=torch.float64)
    totals = Totals(means, images, moment, 8.0 * classes, noise=torch.full_like(images, noise))
    metric = torch.eye(width, dtype=torch.float64)
    seen = worth(totals, metric)
    assert seen.images.tolist() == pytest.approx([1 / (noise + 1 / 8)] * classes)
    found = posterior(seen, texts, metric)
    assert found.kappa == pytest.approx(2.0, rel=0.3)
    believed = posterior(totals, texts, metric)  # as if nobody had noised anything
    errors = [float((one.means - truth).square().mean()) for one in (found, believed)]
    assert errors[0] < 0.6 and errors[0] < 0.2 * errors[1]


def test_under_noise_that_hides_everything_names_answer_alone() -> None:
    """FOCoOp+ then answers as before its first round, which is zero-shot."""
    method = made(FOCoOpPlus)
    task = task_for(method)
    start = method.init(task, torch_generator(0)).shared
    updates = noised(sent(method, task, start, CLIENTS), start, 3.0, 0)
    server = aggregate(method, Server(start), updates, task)
    images = torch.cat([one.pooled for one in CLIENTS])
    own = {**alone(method, task), "counts": torch.tensor([3, 0, 8, 5])}
    before, after = (
        method.logits(method.encode({**shared, **own}, task), images, None)
        for shared in (start, server.shared)
    )
    torch.testing.assert_close(after.id, before.id)
    assert torch.isfinite(method.score(after, task)).all()


def test_a_little_noise_changes_few_answers() -> None:
    """And what it changes is no jump: means count as a little fewer images."""
    method = made(FOCoOpPlus)
    task = task_for(method)
    start = method.init(task, torch_generator(0)).shared
    updates = sent(method, task, start, CLIENTS)
    plain = aggregate(method, Server(start), updates, task)
    little = aggregate(method, Server(start), noised(updates, start, 1e-4, 0), task)
    for name in ("centre", "classes", "answers"):
        torch.testing.assert_close(little.shared[name], plain.shared[name], atol=0.02, rtol=0.02)


def test_the_size_of_a_noised_covariance_is_one_that_images_have() -> None:
    """Noise may leave a trace below zero: a typical variance counts the more then."""
    found = many_draws(0.2, 40)[1]
    for one in found:
        spread, shrinkage = spread_within(one)
        assert 0.2 < float(spread.trace()) < 1.2
        assert 0.0 < shrinkage <= 1.0
    assert min(float((one.scatter / one.freedom).trace()) for one in found) < 0.2


def test_classes_of_other_clients_keep_their_images_where_one_client_is_noised() -> None:
    method = made(FOCoOpPlus)
    task = task_for(method)
    start = method.init(task, torch_generator(0)).shared
    clients: list[Batch] = [images_of([0] * 9 + [1] * 6, 1), images_of([2] * 8 + [3] * 5, 2)]
    updates = sent(method, task, start, clients)
    found = method.sums.add(Server(start), [updates[0], *noised(updates[1:], start, 0.05, 0)])[2]
    assert noise_in(found)[:2].tolist() == [0.0, 0.0] and bool((noise_in(found)[2:] > 0).all())
    assert found.images.tolist()[:2] == [9.0, 6.0] and len(found.images) == C
