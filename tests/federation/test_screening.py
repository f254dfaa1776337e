"""Robust rules against loops, SciPy and what a mean can be moved to."""

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from focoop.federation.rounds import aggregate
from focoop.federation.updates.screening import RULES, Defence, krum, median, refusal, trimmed_mean
from focoop.methods.base import ClientUpdate, Server
from focoop.methods.focoop import FOCoOp, FOCoOpConfig
from focoop.methods.promptfl import PromptFL
from focoop.seeds import torch_generator
from tests.methods.toy import C, U, make_task

TASK = make_task()
METHOD = FOCoOp()  # rows of `global` are classes


def draw(*shape: int, name: str = "votes") -> Tensor:
    return torch.randn(*shape, generator=torch_generator(0, name), dtype=torch.float64)


def make_updates(count: int, held: Tensor | None = None) -> tuple[Server, list[ClientUpdate]]:
    """Honest clients near a common truth; one tensor by class, one of OOD prompts, one context."""
    shapes = {"global": (C, 2, 3), "ood": (U, 2, 3), "context": (2, 3)}
    server = Server({n: draw(*s, name=n) for n, s in shapes.items()} | {"words": torch.arange(U)})
    updates = []
    for k in range(count):
        shared = {n: server.shared[n] + 0.1 * draw(*s, name=f"{n}{k}") for n, s in shapes.items()}
        counts = torch.full((C,), 3) if held is None else held[k]
        shared["words"] = server.shared["words"]
        updates.append(ClientUpdate(k, shared, int(counts.sum()), counts, 0.5))
    return server, updates


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 10])
def test_rules_of_a_row_agree_with_numpy_and_scipy(count: int) -> None:
    votes = draw(count, 5, 3)
    assert np.allclose(median(votes), np.median(votes.numpy(), axis=0), rtol=1e-12)
    cut = min(math.ceil(0.3 * count - 1e-9), (count - 1) // 2)
    expected = stats.trim_mean(votes.numpy(), (cut + 0.5) / count if cut else 0, axis=0)
    assert np.allclose(trimmed_mean(votes, 0.3), expected, rtol=1e-12)


def slow_krum(votes: Tensor, hostile: int) -> list[int]:
    """Scores with loops over pairs, as in Blanchard et al."""
    count = len(votes)
    apart = [[0.0] * count for _ in range(count)]
    for i, j in combinations(range(count), 2):
        apart[i][j] = apart[j][i] = float(((votes[i] - votes[j]) ** 2).sum())
    scores = []
    for i in range(count):
        others = sorted(apart[i][j] for j in range(count) if j != i)
        scores.append(sum(others[: max(1, count - hostile - 2)]))
    return sorted(sorted(range(count), key=lambda i: scores[i])[: count - hostile])


@pytest.mark.parametrize(("count", "hostile"), [(3, 1), (5, 1), (7, 2), (10, 2), (10, 4)])
def test_krum_is_the_written_out_choice_and_leaves_liars_out(count: int, hostile: int) -> None:
    votes = draw(count, 4, 2)
    assert krum(votes, hostile / count) == slow_krum(votes, hostile)
    if count >= 2 * hostile + 3:
        votes[:hostile] += 50.0
        assert krum(votes, hostile / count) == list(range(hostile, count))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(3, 9).flatmap(lambda h: st.tuples(st.just(h), st.integers(0, (h - 1) // 2))),
    st.floats(-1e6, 1e6),
)
def test_a_minority_cannot_carry_a_coordinate_past_the_honest(
    voters: tuple[int, int], lie: float
) -> None:
    count, hostile = voters
    votes = draw(count, 3, name=f"h{count}")
    honest = votes[hostile:].clone()
    votes[:hostile] = lie
    for found in (median(votes), trimmed_mean(votes, hostile / count)):
        assert (found >= honest.amin(0) - 1e-9).all()
        assert (found <= honest.amax(0) + 1e-9).all()


def test_classes_are_voted_on_by_their_holders() -> None:
    held = torch.tensor([[2, 0, 1, 0], [4, 0, 0, 1], [1, 3, 0, 2], [0, 0, 0, 5]])
    server, updates = make_updates(4, held)
    screened, _ = Defence("median", count_cap=0).screen(METHOD, server, updates, TASK)
    for c in range(C):
        holders = [u.shared["global"][c] for u in updates if u.class_counts[c] > 0]
        expected = np.median(torch.stack(holders).numpy(), axis=0)
        for update in screened:
            assert np.allclose(update.shared["global"][c], expected, rtol=1e-12)
    ood = np.median(torch.stack([u.shared["ood"] for u in updates]).numpy(), axis=0)
    assert np.allclose(screened[2].shared["ood"], ood, rtol=1e-12)
    assert torch.equal(screened[0].shared["words"], updates[0].shared["words"])


def test_a_class_nobody_holds_is_left_to_the_method() -> None:
    held = torch.zeros(3, C, dtype=torch.int64)
    held[:, 0] = 2
    server, updates = make_updates(3, held)
    screened, _ = Defence("trimmed").screen(METHOD, server, updates, TASK)
    assert torch.equal(screened[1].shared["global"][2], updates[1].shared["global"][2])


def test_krum_makes_a_mean_the_mean_of_the_kept() -> None:
    held = torch.tensor([[2, 1, 1, 5], [4, 1, 1, 1], [1, 3, 7, 2], [3, 2, 1, 4], [9, 1, 1, 1]])
    server, updates = make_updates(5, held)
    updates[4] = replace(
        updates[4],
        shared={n: v + 9 * (v.is_floating_point()) for n, v in updates[4].shared.items()},
    )
    screened, _ = Defence("krum", 0.2, count_cap=0).screen(METHOD, server, updates, TASK)
    for c in range(C):
        rows = torch.stack([u.shared["global"][c] for u in updates])
        kept = slow_krum(rows, 1)
        assert 4 not in kept
        weights = held[:, c].double()
        expected = (weights[kept, None, None] * rows[kept]).sum(0) / weights[kept].sum()
        after = torch.stack([u.shared["global"][c] for u in screened])
        mean = (weights[:, None, None] * after).sum(0) / weights.sum()
        assert torch.allclose(mean, expected, rtol=1e-10)
        assert torch.equal(after[kept], rows[kept])  # who was believed keeps what it sent


def test_clipping_shortens_what_is_longer_than_the_bound_alone() -> None:
    server, updates = make_updates(5)
    far = {
        n: server.shared[n] + 100 * (v - server.shared[n]) if v.is_floating_point() else v
        for n, v in updates[3].shared.items()
    }
    updates[3] = replace(updates[3], shared=far)
    screened, report = Defence("clip", clip=2.0).screen(METHOD, server, updates, TASK)
    assert report == {"refused": 0.0, "clipped": 1.0}
    for name in ("global", "ood", "context"):
        sent = [u.shared[name] - server.shared[name] for u in updates]
        bound = 2 * np.median([float(s.norm()) for s in sent])
        cut = screened[3].shared[name] - server.shared[name]
        assert float(cut.norm()) == pytest.approx(bound, rel=1e-9)
        assert torch.allclose(cut / cut.norm(), sent[3] / sent[3].norm(), rtol=1e-9)
        assert torch.equal(screened[0].shared[name], updates[0].shared[name])


def spoil(update: ClientUpdate, how: str) -> ClientUpdate:
    shared = dict(update.shared)
    if how == "nan":
        shared["ood"] = shared["ood"].clone().index_fill_(0, torch.tensor([1]), math.nan)
    elif how == "shape":
        shared["ood"] = shared["ood"][1:]
    elif how == "dtype":
        shared["ood"] = shared["ood"].float()
    elif how == "name":
        shared["odd"] = shared.pop("ood")
    elif how == "negative":
        return replace(update, class_counts=-update.class_counts)
    elif how == "counts":
        return replace(update, class_counts=update.class_counts[1:])
    return replace(update, shared=shared)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("nan", "not finite"),
        ("shape", r"ood is torch.float64 \(4, 2, 3\)"),
        ("dtype", "float32"),
        ("name", "odd, ood"),
        ("negative", "negative"),
        ("counts", "class counts"),
    ],
)
def test_what_cannot_be_used_is_refused_and_counted(how: str, words: str) -> None:
    import re

    server, updates = make_updates(4)
    updates[2] = spoil(updates[2], how)
    assert re.search(words, refusal(updates[2], server.shared, C) or "")
    screened, report = Defence("median").screen(METHOD, server, updates, TASK)
    assert [u.client for u in screened] == [0, 1, 3]
    assert report["refused"] == 1


def test_claims_of_many_images_are_cut() -> None:
    server, updates = make_updates(5)
    updates[0] = replace(updates[0], num_examples=10**9, class_counts=torch.full((C,), 10**8))
    screened, _ = Defence("clip", count_cap=10).screen(METHOD, server, updates, TASK)
    assert screened[0].class_counts.tolist() == [30] * C
    assert screened[0].num_examples == 10 * 12
    assert screened[1].num_examples == 12


@pytest.mark.parametrize("rule", [r for r in RULES if r != "none"])
def test_equal_updates_pass_every_rule(rule: str) -> None:
    server, updates = make_updates(1)
    same = [replace(updates[0], client=k) for k in range(5)]
    screened, _ = Defence(rule).screen(METHOD, server, same, TASK)
    for name, value in updates[0].shared.items():
        assert all(torch.allclose(u.shared[name], value, rtol=1e-12) for u in screened)


def test_off_is_the_plain_server_step_to_the_bit() -> None:
    server, updates = make_updates(4)
    server = Server({"context": server.shared["context"]})
    plain = [replace(u, shared={"context": u.shared["context"]}) for u in updates]
    a = aggregate(PromptFL(), server, plain, TASK)
    b = aggregate(PromptFL(), server, plain, TASK, Defence("none").screen)
    assert torch.equal(a.shared["context"], b.shared["context"])
    assert dict(b.report) == {}


def test_a_round_of_refused_updates_leaves_the_server_as_it_was() -> None:
    server, updates = make_updates(2)
    server = Server({"context": server.shared["context"]}, {"m": torch.ones(1)})
    bad = [replace(u, shared={"context": u.shared["context"] * math.nan}) for u in updates]
    result = aggregate(PromptFL(), server, bad, TASK, Defence("krum").screen)
    assert torch.equal(result.shared["context"], server.shared["context"])
    assert result.memory is server.memory
    assert result.report == {"refused": 2.0}


@pytest.mark.parametrize("rule", ["median", "trimmed", "krum"])
def test_any_method_withstands_scaled_updates(rule: str) -> None:
    server, updates = make_updates(7)
    names = ("global", "ood")
    start = {n: server.shared[n] for n in names} | {"ood_words": torch.arange(U)}
    sent = [replace(u, shared={**start, **{n: u.shared[n] for n in names}}) for u in updates]
    for k in (1, 5):
        moved = {n: start[n] + 100 * (sent[k].shared[n] - start[n]) for n in names}
        sent[k] = replace(sent[k], shared={**start, **moved})
    method = FOCoOp(FOCoOpConfig(alpha=1.0))

    def distance(screen: object) -> float:
        result = aggregate(method, Server(start), sent, TASK, screen)  # type: ignore[arg-type]
        return max(float((result.shared[n] - start[n]).abs().max()) for n in names)

    assert distance(None) > 5.0
    assert distance(Defence(rule, 0.3).screen) < 0.5
