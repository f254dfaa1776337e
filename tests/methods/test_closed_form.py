"""Answers of closed forms, against scikit-learn and numpy on all images in one place."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.covariance import OAS
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge

from focoop.methods._closed_form import ClosedForm, answerable
from focoop.methods._prior import NEVER, log_prior
from focoop.methods._sums import oas
from focoop.methods.base import Server
from focoop.methods.fed3r import RIDGES, Fed3R, ridge_regression
from focoop.methods.fedlda import FedLDA
from focoop.methods.fedncm import FedNCM
from focoop.methods.gda_clip import GDACLIP
from focoop.seeds import torch_generator
from tests.methods.closed_form_toy import (
    CLIENTS,
    C,
    alone,
    contrasts,
    every,
    images_of,
    made,
    one_round,
    pooled,
    totals_of,
    within,
)
from tests.methods.contract_toy import DIM


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


@pytest.mark.parametrize("each", [2, 3])
def test_ridge_does_not_take_means_for_images_where_nobody_tells_the_spread(each: int) -> None:
    """Class means are right about new images of these clients; so is what is solved from them."""
    method = made(Fed3R, least_images=2, least_freedom=1000)
    clients = [images_of([*range(C)] * each, seed) for seed in (1, 2, 3)]
    server, task = one_round(method, clients)
    text = method.encode({**server.shared, **alone(method, task)}, task)
    new = images_of([*range(C)] * 100, 1)
    right = method.logits(text, new.pooled, None).id.argmax(dim=1) == new.labels
    assert float(right.double().mean()) > 0.97
