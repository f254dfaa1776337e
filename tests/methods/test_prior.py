"""The client's prior in methods that train without one: answers alone change, by log pi / s."""

from dataclasses import replace

import pytest
import torch

from focoop.methods import create
from focoop.methods.base import Method
from tests.methods.contract_toy import Outcome, federate, make_task, same

HELD = [[0, 0, 0, 1, 1, 1], [2, 2, 3, 3, 3]]
both = pytest.mark.parametrize("name", ["local_only", "focoop"])


def with_share(name: str, share: float) -> Method:
    return create(name, replace(create(name).config, open_share=share))


def run(name: str, share: float) -> Outcome:
    method = with_share(name, share)
    return federate(method, make_task(method), HELD, rounds=1)


@both
def test_training_knows_no_prior(name: str) -> None:
    plain, soft = run(name, 1.0), run(name, 0.3)
    assert same(plain.server.shared, soft.server.shared)
    for client, kept in plain.store.params.items():
        assert "counts" not in kept
        found = dict(soft.store.params[client])
        assert found.pop("counts").tolist() == plain.clients[client]().counts(4).tolist()
        assert same(kept, found)


@both
def test_answers_are_shifted_by_what_a_client_expects(name: str) -> None:
    plain, soft, own = run(name, 1.0), run(name, 0.4), run(name, 0.0)
    images = plain.images([0, 1, 2, 3] * 5, "prior")
    for client, counts in ((0, [3, 3, 0, 0]), (1, [0, 0, 2, 3])):
        before, _ = plain.answers(client, images)
        after, score = soft.answers(client, images)
        prior = torch.tensor([0.6 * n / sum(counts) + 0.1 for n in counts])
        expected = (prior / prior.max()).log() / plain.task.logit_scale
        torch.testing.assert_close(after - before, expected.expand_as(after), atol=1e-5, rtol=0)
        assert torch.isfinite(score).all()
        held = {c for c, n in enumerate(counts) if n}
        assert set(own.answers(client, images)[0].argmax(dim=1).tolist()) <= held
