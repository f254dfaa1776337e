"""The attack suite does what it says, so that its tables mean what they say."""

from dataclasses import replace

import pytest
import torch

from benchmarks.attacks import ATTACKS, UPDATES, attacked, flipped
from focoop.clip.base import LabelledFeatures
from focoop.federation.updates.screening import Defence
from focoop.methods.base import ClientUpdate, Server
from focoop.methods.focoop import FOCoOp
from tests.methods.test_focoop_server import make_server, make_updates
from tests.methods.toy import U, make_task

TASK = make_task()


def sent(attack: str, hostile: int = 2) -> tuple[Server, list[ClientUpdate], list[ClientUpdate]]:
    server, updates = make_server(), make_updates(5)
    found, report = attacked(attack, hostile, None)(FOCoOp(), server, updates, TASK)
    assert report == {}
    return server, updates, found


@pytest.mark.parametrize("attack", ATTACKS)
def test_honest_clients_are_left_alone_and_hostile_ones_are_not(attack: str) -> None:
    _, updates, found = sent(attack)
    for before, after in zip(updates, found, strict=True):
        same = all(torch.equal(before.shared[n], after.shared[n]) for n in before.shared)
        assert same == (after.client >= 2 or attack not in UPDATES)
        assert torch.equal(after.shared["ood_words"], before.shared["ood_words"])


def test_changes_are_flipped_and_scaled() -> None:
    for attack, factor in (("sign_flip", -1.0), ("scaling", 100.0)):
        server, updates, found = sent(attack)
        start = server.shared["global"]
        expected = factor * (updates[0].shared["global"] - start)
        assert torch.allclose(found[0].shared["global"] - start, expected, rtol=1e-9)


def test_far_prompts_win_the_slots_unless_there_is_a_cap() -> None:
    server, _, found = sent("ood", hostile=1)
    far = {**found[0].shared, "ood": found[0].shared["ood"] * 10}  # the toy's prompts are large
    found[0] = replace(found[0], shared=far)
    won = {}
    for cap in (1.0, 0.2):
        result = FOCoOp(FOCoOp.Config(ood_cap=cap)).aggregate(server, found, TASK)
        won[cap] = sum(any(torch.equal(r, p) for p in far["ood"]) for r in result.shared["ood"])
    assert won == {1.0: U, 0.2: 1}


def test_labels_are_mirrored() -> None:
    data = LabelledFeatures(torch.zeros(3, 2), None, torch.tensor([0, 1, 3]))
    assert flipped(lambda: data, 4).labels.tolist() == [3, 2, 0]


def test_the_defence_stands_behind_the_attack() -> None:
    server, updates = make_server(), make_updates(5)
    found, report = attacked("nan", 2, Defence("median").screen)(FOCoOp(), server, updates, TASK)
    assert [u.client for u in found] == [2, 3, 4]
    assert report["refused"] == 2
