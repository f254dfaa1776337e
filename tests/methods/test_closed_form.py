"""Closed forms against scikit-learn and numpy on all images in one place."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.covariance import OAS
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge

from focoop.clip.base import LabelledFeatures
from focoop.federation.client import make_update
from focoop.federation.rounds import aggregate
from focoop.federation.updates.differential_privacy import Privacy
from focoop.federation.updates.screening import Screen
from focoop.federation.updates.secure_sum import summed
from focoop.methods._closed_form import ClosedForm, answerable
from focoop.methods._prior import NEVER, log_prior
from focoop.methods._sums import Totals, oas
from focoop.methods.base import Batch, ClientUpdate, Params, Server, Task
from focoop.methods.fed3r import RIDGES, Fed3R, ridge_regression
from focoop.methods.fedlda import FedLDA
from focoop.methods.fedncm import FedNCM
from focoop.methods.focoop_plus import FOCoOpPlus
from focoop.methods.gda_clip import GDACLIP
from focoop.methods.tofa import TOFA
from focoop.seeds import torch_generator
from tests.methods.contract_toy import CLASSES, DIM, federate, make_task, spread

C = len(CLASSES)
ALL: list[type[ClosedForm]] = [FedNCM, FedLDA, Fed3R, GDACLIP, TOFA, FOCoOpPlus]
every = pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)


def images_of(labels: Sequence[int], seed: int) -> Batch:
    """Unit features about class centres, the same class looking different at each seed."""
    generator = torch_generator(seed, "closed form")
    truth = torch.tensor(labels, dtype=torch.int64)
    centres = torch.randn(C, DIM, generator=torch_generator(0, "centres"), dtype=torch.float64)
    moved = 0.4 * torch.randn(C, DIM, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(truth), DIM, generator=generator, dtype=torch.float64)
    features = (centres + moved)[truth] + 0.8 * noise
    return Batch(torch.nn.functional.normalize(features, dim=-1), None, truth)


# Classes are shared between clients, and nobody holds all of them.
CLIENTS = [
    images_of([0] * 9 + [1] * 6, 1),
    images_of([0] * 3 + [2] * 8 + [3] * 5, 2),
    images_of([1] * 7 + [3] * 9, 3),
]


def made(kind: type[ClosedForm], **settings: object) -> ClosedForm:
    least = {"least_images": 1} | ({} if kind is FedNCM else {"least_freedom": 1})
    return kind(kind.Config(**{**least, **settings}))  # type: ignore[arg-type]


def task_for(method: ClosedForm) -> Task:
    return make_task(method, dtype=torch.float64)


def sent(
    method: ClosedForm, task: Task, received: Params, clients: Sequence[Batch]
) -> list[ClientUpdate]:
    found = []
    for k, batch in enumerate(clients):
        counts = torch.bincount(batch.labels, minlength=C)
        shared = {**received, **method.measure(received, batch, task)}
        found.append(ClientUpdate(k, shared, len(batch.labels), counts, 0.0))
    return found


def one_round(
    method: ClosedForm, clients: Sequence[Batch], screen: Screen | None = None
) -> tuple[Server, Task]:
    task = task_for(method)
    server = Server(method.init(task, torch_generator(0)).shared)
    updates = sent(method, task, server.shared, clients)
    return aggregate(method, server, updates, task, screen), task


def alone(method: ClosedForm, task: Task) -> Params:
    """Private tensors of a client that knows none of its images."""
    return method.init(task, torch_generator(0)).private


def pooled(clients: Sequence[Batch]) -> tuple[np.ndarray, np.ndarray]:
    features = torch.cat([one.pooled for one in clients]).numpy()
    return features, torch.cat([one.labels for one in clients]).numpy()


def totals_of(method: ClosedForm, clients: Sequence[Batch]) -> Totals:
    task = task_for(method)
    server = Server(method.init(task, torch_generator(0)).shared)
    return method.sums.add(server, sent(method, task, server.shared, clients))[2]


def within(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Scatter about class means, image by image."""
    total = np.zeros((features.shape[1],) * 2)
    for c in np.unique(labels):
        rows = features[labels == c]
        for row in rows:
            off = row - rows.mean(axis=0)
            total += np.outer(off, off)
    return total


def contrasts(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """N - C rows with the same scatter: orthonormal contrasts of each class's images."""
    rows = []
    for c in np.unique(labels):
        mine = features[labels == c]
        base = np.linalg.qr(np.column_stack([np.ones(len(mine)), np.eye(len(mine))[:, 1:]]))[0]
        rows.append(base[:, 1:].T @ mine)
    return np.concatenate(rows)


def test_federated_sums_are_those_of_all_images_in_one_place() -> None:
    features, labels = pooled(CLIENTS)
    found = totals_of(made(FedLDA), CLIENTS)
    counts = np.bincount(labels, minlength=C)
    assert found.images.tolist() == counts.tolist()
    for c in range(C):
        np.testing.assert_allclose(found.means[c], features[labels == c].mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(found.moment, features.T @ features / len(features), atol=1e-12)
    np.testing.assert_allclose(found.scatter, within(features, labels), atol=1e-10)
    np.testing.assert_allclose(found.centre, features.mean(axis=0), atol=1e-12)
    assert found.told == len(features) and found.freedom == len(features) - C


def test_how_images_are_divided_changes_nothing() -> None:
    features, labels = pooled(CLIENTS)
    order = np.random.default_rng(0).permutation(len(labels))
    parts = [
        Batch(torch.from_numpy(features[rows]), None, torch.from_numpy(labels[rows]))
        for rows in np.array_split(order, 5)
    ]
    a, b = totals_of(made(Fed3R), CLIENTS), totals_of(made(Fed3R), parts)
    torch.testing.assert_close(a.scatter, b.scatter, atol=1e-10, rtol=0)
    torch.testing.assert_close(a.means, b.means, atol=1e-12, rtol=0)


@every
def test_secure_sums_and_later_rounds_of_the_same_clients_change_nothing(
    kind: type[ClosedForm],
) -> None:
    method = made(kind)
    plain, task = one_round(method, CLIENTS)
    secure, _ = one_round(method, CLIENTS, summed)
    again = aggregate(method, plain, sent(method, task, plain.shared, CLIENTS), task)
    for name, value in plain.shared.items():
        torch.testing.assert_close(again.shared[name], value, atol=1e-9, rtol=1e-9)
        if kind is FOCoOpPlus and name in ("metric", "classes"):
            continue  # a sum hides how far clients differ, which FOCoOp+ shrinks by
        # Sums in 24 bits after the point; what is solved magnifies their rounding.
        torch.testing.assert_close(secure.shared[name], value, atol=1e-4, rtol=1e-4)


@every
def test_a_later_round_adds_what_a_new_client_brings(kind: type[ClosedForm]) -> None:
    method = made(kind)
    whole, _ = one_round(method, CLIENTS)
    server, task = one_round(method, CLIENTS[:2])
    late = aggregate(method, server, sent(method, task, server.shared, CLIENTS[2:]), task)
    torch.testing.assert_close(late.shared["means"], whole.shared["means"])
    if "moment" in whole.shared:
        torch.testing.assert_close(late.shared["moment"], whole.shared["moment"])


def test_a_client_that_joins_after_two_rounds_leaves_a_weighted_scatter() -> None:
    """Images of the first two clients are told twice, those of the third once: as weights 2 and 1.

    Its class looks unlike all others, so that a moment and means of unequal weights would show.
    """
    method = made(FedLDA)
    task = task_for(method)
    server = Server(method.init(task, torch_generator(0)).shared)
    for asked in (CLIENTS[:2], CLIENTS[:2], CLIENTS[2:]):
        updates = sent(method, task, server.shared, asked)
        totals = method.sums.add(server, updates)[2]
        server = aggregate(method, server, updates, task)
    features, labels = pooled([*CLIENTS[:2], *CLIENTS[:2], *CLIENTS[2:]])
    weighted = within(features, labels)
    expected = weighted / len(labels) * float(totals.images.sum())
    np.testing.assert_allclose(totals.scatter, expected, atol=1e-9)
    assert np.linalg.eigvalsh(totals.scatter.numpy()).min() > -1e-9
    assert float(totals.images.sum()) == pytest.approx(totals.told)


@every
def test_what_is_too_few_is_not_told_and_counts_for_nothing(kind: type[ClosedForm]) -> None:
    """Clients keep classes of fewer than five images: the rest is as if these were not there."""
    method = made(kind, least_images=5)
    rest = [
        Batch(one.pooled[keep], None, one.labels[keep])
        for one in CLIENTS
        for keep in [(torch.bincount(one.labels, minlength=C) >= 5)[one.labels]]
    ]
    assert sum(len(one.labels) for one in rest) == sum(len(one.labels) for one in CLIENTS) - 3
    a, b = totals_of(method, CLIENTS), totals_of(method, rest)
    for name in ("means", "images", "moment"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), atol=1e-12, rtol=1e-9)
    assert a.told == pytest.approx(b.told)
    task = task_for(method)
    server = method.init(task, torch_generator(0)).shared
    first = CLIENTS[1]
    other = replace(first, pooled=torch.where((first.labels == 0)[:, None], 0.5, first.pooled))
    for name, value in method.measure(server, first, task).items():
        assert torch.equal(value, method.measure(server, other, task)[name]), name


def test_copies_of_an_image_are_one_image() -> None:
    method, task = made(FedLDA, least_images=3), task_for(made(FedLDA))
    server = method.init(task, torch_generator(0)).shared
    one = images_of([1], 4)
    copies = Batch(one.pooled.repeat(6, 1), None, one.labels.repeat(6))
    found = method.measure(server, copies, task)
    assert not found["mean_weight"].any() and not found["means"].any()
    assert not found["moment"].any()


def test_a_spread_of_few_images_is_not_told_but_the_means_are() -> None:
    method, task = made(FedLDA, least_freedom=14), task_for(made(FedLDA))
    server = method.init(task, torch_generator(0)).shared
    found = method.measure(server, CLIENTS[0], task)  # 15 images of 2 classes: 13
    assert not found["spread_weight"].any() and found["mean_weight"].sum() > 0
    means, labels = found["means"], CLIENTS[0].labels
    expected = means[labels].T @ means[labels] / len(labels)
    torch.testing.assert_close(found["moment"], expected)
    assert made(FedLDA, least_freedom=13).measure(server, CLIENTS[0], task)["spread_weight"].any()


def test_shrinkage_is_that_of_scikit_learn() -> None:
    features, labels = pooled(CLIENTS)
    rows = contrasts(features, labels)
    np.testing.assert_allclose(rows.T @ rows, within(features, labels), atol=1e-10)
    expected = OAS(assume_centered=True).fit(rows)
    found = totals_of(made(FedLDA), CLIENTS)
    assert oas(found.scatter, found.freedom) == pytest.approx(expected.shrinkage_, rel=1e-9)
    metric = one_round(made(FedLDA), CLIENTS)[0].shared["metric"].numpy()
    np.testing.assert_allclose(metric @ expected.covariance_ @ metric, np.eye(DIM), atol=1e-7)
    assert oas(torch.zeros(3, 3), 0.0) == 1.0 == oas(torch.eye(3), 5.0)


def test_the_gaussian_rule_is_linear_discriminant_analysis() -> None:
    features, labels = pooled(CLIENTS)
    method = made(FedLDA, rule="gaussian", open_share=1.0)
    server, task = one_round(method, CLIENTS)
    rho = server.report["shrinkage"]
    oracle = LinearDiscriminantAnalysis("lsqr", shrinkage=rho).fit(features, labels)
    tested = images_of([0, 1, 2, 3] * 20, 9).pooled
    text = method.encode({**server.shared, "counts": torch.zeros(C)}, task)
    logits = method.logits(text, tested, None).id
    # scikit-learn divides the scatter by N, here it is by N - C.
    share = (len(labels) - C) / len(labels)
    evidence = oracle.decision_function(tested.numpy()) - np.log(oracle.priors_)
    gap = logits.numpy() - share * evidence
    np.testing.assert_allclose(gap - gap.mean(axis=1, keepdims=True), 0.0, atol=1e-6)
    assert logits.argmax(dim=1).tolist() == evidence.argmax(axis=1).tolist()


def test_the_cosine_rule_written_out() -> None:
    method = made(FedLDA, open_share=1.0)
    server, task = one_round(method, CLIENTS)
    features, labels = pooled(CLIENTS)
    cov = OAS(assume_centered=True).fit(contrasts(features, labels)).covariance_
    tested = images_of([0, 1, 2, 3], 8).pooled.numpy()
    text = method.encode({**server.shared, "counts": torch.zeros(C)}, task)
    logits = method.logits(text, torch.from_numpy(tested), None)
    inverse, middle = np.linalg.inv(cov), features.mean(axis=0)
    for i, image in enumerate(tested):
        for c in range(C):
            a, b = image - middle, features[labels == c].mean(axis=0) - middle
            cosine = a @ inverse @ b / np.sqrt((a @ inverse @ a) * (b @ inverse @ b))
            assert float(logits.id[i, c]) == pytest.approx(cosine, abs=1e-7)
            square = (a - b) @ inverse @ (a - b)
            assert float(logits.parts["distances"][i, c]) == pytest.approx(square, rel=1e-6)
    score = replace(method.config, score="mahalanobis")
    found = FedLDA(score).score(logits, task)
    torch.testing.assert_close(found, logits.parts["distances"].amin(dim=1))


@pytest.mark.parametrize("ridge", [0.01, 3.0])
def test_ridge_is_that_of_scikit_learn(ridge: float) -> None:
    features, labels = pooled(CLIENTS)
    oracle = Ridge(ridge, fit_intercept=False, solver="cholesky")
    oracle.fit(features, np.eye(C)[labels])
    weights = one_round(made(Fed3R, ridge=ridge), CLIENTS)[0].shared["weights"]
    np.testing.assert_allclose(weights, oracle.coef_, atol=1e-8)


def test_the_ridge_is_chosen_by_generalised_cross_validation() -> None:
    features, labels = pooled(CLIENTS)
    truth, errors = np.eye(C)[labels], []
    for ridge in RIDGES:
        hat = features @ np.linalg.solve(features.T @ features + ridge * np.eye(DIM), features.T)
        rest = ((truth - hat @ truth) ** 2).sum()
        errors.append(len(labels) * rest / (len(labels) - np.trace(hat)) ** 2)
    server, _ = one_round(made(Fed3R), CLIENTS)
    assert server.report["ridge"] == RIDGES[int(np.argmin(errors))]
    assert RIDGES[0] < server.report["ridge"] < RIDGES[-1]


def test_fewer_images_than_dimensions_leave_a_ridge() -> None:
    rows = torch.eye(5, dtype=torch.float64)[:3]
    weights, ridge = ridge_regression(rows.T @ rows, rows, 3.0)
    assert ridge > 0 and torch.isfinite(weights).all()


def test_gda_clip_is_the_papers_formula() -> None:
    features, labels = pooled(CLIENTS)
    method = made(GDACLIP, image_weight=0.7, open_share=1.0)
    server, task = one_round(method, CLIENTS)
    means = np.stack([features[labels == c].mean(axis=0) for c in range(C)])
    off = features - means[labels]
    cov = off.T @ off / (len(off) - 1)
    precision = DIM * np.linalg.inv((len(off) - 1) * cov + np.trace(cov) * np.eye(DIM))
    precision *= (len(off) - 1 + DIM) / DIM  # the paper's vanishes with the number of images
    tested = images_of([0, 1, 2, 3], 8).pooled
    text = method.encode({**server.shared, "counts": torch.zeros(C)}, task)
    logits = method.logits(text, tested, None)
    zero_shot = task.logit_scale * tested.numpy() @ task.anchors.numpy().T
    linear = tested.numpy() @ precision @ means.T
    expected = zero_shot + 0.7 * (linear - 0.5 * np.diag(means @ precision @ means.T))
    np.testing.assert_allclose(logits.id, expected, atol=1e-6)


def test_a_class_without_images_is_answered_by_its_text() -> None:
    method = made(GDACLIP, open_share=1.0)
    server, task = one_round(method, [images_of([0] * 9 + [1] * 6 + [2] * 5, 1)])
    text = method.encode({**server.shared, "counts": torch.zeros(C)}, task)
    logits = method.logits(text, task.anchors[3:], None)
    gauss = logits.id - task.logit_scale * task.anchors[3:] @ task.anchors.T
    assert float(gauss[0, 3]) == pytest.approx(float(gauss[0, :3].mean()))
    nothing = Server(method.init(task, torch_generator(0)).shared)  # before the first round
    text = method.encode({**nothing.shared, "counts": torch.zeros(C)}, task)
    logits = method.logits(text, task.anchors, None)
    assert logits.id.argmax(dim=1).tolist() == [0, 1, 2, 3]
    assert torch.isfinite(method.score(logits, task)).all()


@pytest.mark.parametrize("kind", [FedNCM, FedLDA, Fed3R], ids=lambda kind: kind.__name__)
def test_a_class_that_nobody_told_is_never_answered(kind: type[ClosedForm]) -> None:
    method = made(kind, open_share=1.0)
    server, task = one_round(method, [images_of([0] * 9 + [1] * 6 + [3] * 5, 1)])
    text = method.encode({**server.shared, "counts": torch.zeros(C)}, task)
    logits = method.logits(text, images_of([2] * 30, 5).pooled, None).id
    assert torch.isfinite(logits).all() and not (logits.argmax(dim=1) == 2).any()


@every
def test_own_classes_alone_at_an_open_share_of_nothing(kind: type[ClosedForm]) -> None:
    counts, tested = torch.tensor([5, 0, 5, 0]), images_of([0, 1, 2, 3] * 10, 7).pooled
    answers = {}
    for share in (0.0, 0.5, 1.0):
        method = made(kind, open_share=share)
        server, task = one_round(method, CLIENTS)
        text = method.encode({**server.shared, **alone(method, task), "counts": counts}, task)
        answers[share] = method.logits(text, tested, None).id
    own = torch.tensor([0, 2])
    assert set(answers[0.0].argmax(dim=1).tolist()) <= {0, 2}
    assert answers[0.0].argmax(dim=1).tolist() == own[answers[1.0][:, own].argmax(dim=1)].tolist()
    shift = (answers[0.5] - answers[1.0]) * method.scale
    gain = np.log((0.5 * 0.5 + 0.125) / 0.125)
    expected = torch.tensor([0.0, -gain, 0.0, -gain], dtype=torch.float64).expand_as(shift)
    torch.testing.assert_close(shift - shift[:, :1], expected, atol=1e-6, rtol=0)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6),
    st.floats(0, 1),
)
def test_a_prior_is_a_distribution(counts: list[int], share: float) -> None:
    found = log_prior(torch.tensor(counts), share, torch.float64)
    assert torch.isfinite(found).all() and float(found.max()) == 0.0
    total = sum(counts)
    slow = [(1 - share) * n / total + share / len(counts) if total else 1.0 for n in counts]
    for value, one in zip(found.tolist(), slow, strict=True):
        wanted = max(NEVER, np.log(one / max(slow))) if one > 0 else NEVER
        assert value == pytest.approx(wanted, abs=1e-9)


def test_what_is_not_known_lies_below_what_is() -> None:
    evidence = torch.tensor([[3.0, 9.0, 1.0], [0.0, 9.0, -2.0]])
    known = torch.tensor([True, False, True])
    assert answerable(evidence, known, 0.5).tolist() == [[3.0, 0.5, 1.0], [0.0, -2.5, -2.0]]
    assert not answerable(evidence, torch.zeros(3, dtype=torch.bool), 0.5).any()


@every
def test_noise_of_differential_privacy_leaves_numbers(kind: type[ClosedForm]) -> None:
    """Clipped and noised sums are not positive any more; answers stay finite."""
    method, privacy = made(kind), Privacy(clip=0.5, noise=1.0, counts="noised", count_noise=2.0)
    task = task_for(method)
    server = Server(method.init(task, torch_generator(0)).shared)
    released = [
        privacy.release(u, server.shared, torch_generator(u.client, "n"), torch_generator(1, "c"))
        for u in sent(method, task, server.shared, CLIENTS)
    ]
    server = aggregate(method, server, released, task)
    assert all(torch.isfinite(value).all() for value in server.shared.values())
    text = method.encode(
        {**server.shared, **alone(method, task), "counts": torch.tensor([1, 0, 2, 0])}, task
    )
    logits = method.logits(text, CLIENTS[0].pooled, None)
    assert torch.isfinite(logits.id).all() and torch.isfinite(method.score(logits, task)).all()


def test_a_small_clip_shortens_means_towards_nothing_and_changes_no_direction() -> None:
    method = made(FedNCM)
    task = task_for(method)
    server = Server(method.init(task, torch_generator(0)).shared)
    updates = sent(method, task, server.shared, CLIENTS[2:])
    cut = [
        Privacy(clip=0.01).release(u, server.shared, torch_generator(0), torch_generator(0))
        for u in updates
    ]
    plain, short = (aggregate(method, server, u, task).shared["means"] for u in (updates, cut))
    held = CLIENTS[2].labels.unique()
    cosines = torch.nn.functional.cosine_similarity(plain[held], short[held])
    torch.testing.assert_close(cosines, torch.ones_like(cosines))


def test_views_are_no_further_images() -> None:
    """Random crops of an image are rows of training data; sums count the images alone."""
    method = made(FedNCM)
    task = make_task(method)
    outcome = federate(method, task, spread([8]), rounds=1)
    data = outcome.clients[0]()
    doubled = LabelledFeatures(
        torch.cat([data.pooled, -data.pooled]),
        None,
        torch.cat([data.labels, data.labels]),
        num_views=1,
    )
    state = outcome.initial
    sums = make_update(method, 0, state, doubled, task, 0.0).shared["means"]
    assert torch.equal(sums, make_update(method, 0, state, data, task, 0.0).shared["means"])
