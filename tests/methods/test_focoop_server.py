"""FOCoOp's server step against loops written from the specification."""

from typing import Literal

import pytest
import torch
from torch import Tensor

from focoop.methods.base import ClientUpdate, Server
from focoop.methods.focoop import FOCoOp, FOCoOpConfig
from focoop.seeds import torch_generator
from tests.methods.toy import C, U, make_params, make_task


def make_updates(count: int, seed: int = 0, counts: Tensor | None = None) -> list[ClientUpdate]:
    generator = torch_generator(seed, "updates")
    updates = []
    for client in range(count):
        params = make_params(seed=100 + client + seed)
        held = torch.randint(0, 4, (C,), generator=generator) if counts is None else counts[client]
        shared = {name: params[name] for name in ("global", "ood", "ood_words")}
        updates.append(ClientUpdate(client, shared, int(held.sum()) or 1, held, 0.0))
    return updates


def make_server() -> Server:
    params = make_params(seed=99)
    return Server({name: params[name] for name in ("global", "ood", "ood_words")})


def slow_class_mean(updates: list[ClientUpdate], previous: Tensor) -> Tensor:
    rows = []
    for c in range(C):
        total = sum(int(u.class_counts[c]) for u in updates)
        if total == 0:
            rows.append(previous[c])
            continue
        rows.append(sum(int(u.class_counts[c]) * u.shared["global"][c] for u in updates) / total)
    return torch.stack(rows)


def test_without_goc_global_prompts_average_by_class_and_ood_prompts_by_samples() -> None:
    updates, server, task = make_updates(3), make_server(), make_task()
    result = FOCoOp(FOCoOpConfig(goc=False)).aggregate(server, updates, task)
    expected = slow_class_mean(updates, server.shared["global"])
    assert torch.allclose(result.shared["global"], expected, rtol=1e-12)
    total = sum(u.num_examples for u in updates)
    mean = sum(u.num_examples * u.shared["ood"] for u in updates) / total
    assert torch.allclose(result.shared["ood"], mean, rtol=1e-12)


def test_a_class_nobody_holds_keeps_its_prompt() -> None:
    counts = torch.tensor([[2, 0, 1, 0], [3, 0, 0, 4]])
    updates, server = make_updates(2, counts=counts), make_server()
    result = FOCoOp(FOCoOpConfig(goc=False)).aggregate(server, updates, make_task())
    assert torch.equal(result.shared["global"][1], server.shared["global"][1])
    assert torch.equal(result.shared["global"][3], updates[1].shared["global"][3])


def slow_transport(cost: Tensor, tau: float, steps: int) -> Tensor:
    """Frank-Wolfe with 1/(i+2), loops and a dense vertex (spec 1.10e)."""
    rows, columns = cost.shape
    prior = torch.full((columns,), 1.0 / columns, dtype=cost.dtype)
    plan = torch.full((rows, columns), 1.0 / (rows * columns), dtype=cost.dtype)
    for i in range(steps):
        gradient = cost + tau * torch.log(plan.sum(0) / prior)
        vertex = torch.zeros_like(plan)
        for c in range(rows):
            vertex[c, gradient[c].argmin()] = 1.0 / rows
        beta = 1.0 / (i + 2)
        plan = (1 - beta) * plan + beta * vertex
    return plan


def test_goc_is_the_written_out_server_step() -> None:
    config = FOCoOpConfig(
        transport_steps=40,
        transport_rule="open_loop",
        cost_scale="max",
        alpha=0.7,
        seemly_count=6,
        calibration="barycentre",
        keep="slot",
    )
    updates, server, task = make_updates(3), make_server(), make_task()
    result = FOCoOp(config).aggregate(server, updates, task)

    prompts = slow_class_mean(updates, server.shared["global"]).flatten(1)
    ood = torch.cat([u.shared["ood"] for u in updates]).flatten(1)  # (KU, nd)
    cost = torch.stack([((prompts[c] - ood) ** 2).sum(1) for c in range(C)])
    plan = slow_transport(cost / cost.max(), config.transport_tau, 40)
    mass = plan.sum(0)
    # Columns that were never chosen tie up to rounding; ties go to the lower index.
    seemly = sorted(range(3 * U), key=lambda j: (-round(15 * float(mass[j]), 6), j))[:6]
    for c in range(C):
        weights = plan[c, seemly]
        target = (weights[:, None] * ood[seemly]).sum(0) / weights.sum()
        expected = 0.7 * prompts[c] + 0.3 * target
        assert torch.allclose(result.shared["global"][c].flatten(), expected, rtol=1e-9)
    for u in range(U):
        copies = [15 * float(mass[k * U + u]) for k in range(3)]
        least = [k for k in range(3) if copies[k] < min(copies) + 0.005]
        best = max(least, key=lambda k: float(cost[:, k * U + u].min()))
        assert torch.equal(result.shared["ood"][u].flatten(), ood[best * U + u])
    assert result.shared["ood_words"].tolist() == list(range(U))
    assert result.report["transport_steps"] == 40


def test_paper_literal_choice_carries_words_along() -> None:
    config = FOCoOpConfig(keep="paper", transport_steps=50)
    updates, server, task = make_updates(3), make_server(), make_task()
    result = FOCoOp(config).aggregate(server, updates, task)
    everything = torch.cat([u.shared["ood"] for u in updates])
    for row, word in zip(result.shared["ood"], result.shared["ood_words"].tolist(), strict=True):
        origin = [j for j in range(3 * U) if torch.equal(everything[j], row)]
        assert [j % U for j in origin] == [word]


def test_single_participant_skips_the_transport() -> None:
    updates, server, task = make_updates(1), make_server(), make_task()
    result = FOCoOp().aggregate(server, updates, task)
    assert torch.equal(result.shared["ood"], updates[0].shared["ood"])
    assert set(result.report) == {"spread", "distinct_words"}


def test_identical_updates_keep_ood_prompts_and_move_global_ones_only_towards_them() -> None:
    server, task = make_server(), make_task()
    counts = torch.ones(C, dtype=torch.int64)
    updates = [ClientUpdate(k, dict(server.shared), C, counts, 0.0) for k in range(3)]
    kept = FOCoOp(FOCoOpConfig(alpha=1.0)).aggregate(server, updates, task)
    assert torch.allclose(kept.shared["global"], server.shared["global"], rtol=1e-12)
    assert torch.equal(kept.shared["ood"], server.shared["ood"])
    moved = FOCoOp(FOCoOpConfig(alpha=0.5)).aggregate(server, updates, task)
    assert torch.equal(moved.shared["ood"], server.shared["ood"])


def test_equal_masses_keep_the_copy_farthest_from_every_class() -> None:
    """Without a step all masses are equal; client 1's copies lie farther out than client 0's."""
    counts = torch.ones(2, C, dtype=torch.int64)
    updates, server = make_updates(2, counts=counts), make_server()
    updates[1].shared["ood"] = 5.0 * updates[0].shared["ood"]
    config = FOCoOpConfig(plan="product")
    result = FOCoOp(config).aggregate(server, updates, make_task())
    assert result.report["transport_steps"] == 0
    assert torch.equal(result.shared["ood"], updates[1].shared["ood"])


def test_the_two_solvers_agree() -> None:
    task, updates, server = make_task(), make_updates(4), make_server()
    walked = FOCoOp(
        FOCoOpConfig(transport_rule="open_loop", transport_steps=20_000, seemly_count=3)
    )
    newton = FOCoOp(FOCoOpConfig(seemly_count=3))
    one, other = (m.aggregate(server, updates, task) for m in (walked, newton))
    assert one.report["transport_steps"] == 20_000
    assert other.report["transport_gap"] < one.report["transport_gap"] < 1e-2
    assert torch.equal(one.shared["ood"], other.shared["ood"])
    torch.testing.assert_close(other.shared["global"], one.shared["global"], rtol=0.05, atol=0.05)


def test_of_copies_that_differ_by_the_solver_s_error_the_farthest_is_kept() -> None:
    """Else a gap that is not quite the same would keep another copy."""
    server = FOCoOpConfig().consistency
    mass = torch.tensor([0.500, 0.2, 0.504, 0.21, 0.502, 0.3], dtype=torch.float64)  # 3 x 2
    cost = torch.tensor([[1.0, 1.0, 3.0, 9.0, 2.0, 9.0], [9.0] * 6])
    assert server.kept(mass, cost, 3, 2).tolist() == [2, 1]
    capped = FOCoOpConfig(ood_cap=0.999).consistency
    assert capped.kept(mass, cost, 3, 2).tolist() == [2, 1]


def supplied(result: Server, updates: list[ClientUpdate]) -> list[int]:
    """How many of the kept OOD prompts each client supplied."""
    return [
        sum(any(torch.equal(row, mine) for mine in u.shared["ood"]) for row in result.shared["ood"])
        for u in updates
    ]


@pytest.mark.parametrize("keep", ["slot", "paper"])
def test_a_cap_bounds_what_one_client_supplies(keep: Literal["slot", "paper"]) -> None:
    updates, server, task = make_updates(3), make_server(), make_task()
    # Prompts far from every class receive least mass: without a cap they are all kept.
    far = {**updates[1].shared, "ood": updates[1].shared["ood"] + 50.0}
    updates[1] = ClientUpdate(1, far, 3, updates[1].class_counts, 0.0)
    free = FOCoOp(FOCoOpConfig(keep=keep)).aggregate(server, updates, task)
    assert supplied(free, updates) == [0, U, 0]
    capped = FOCoOp(FOCoOpConfig(keep=keep, ood_cap=0.4)).aggregate(server, updates, task)
    assert supplied(capped, updates)[1] == 2  # 0.4 of 5
    assert max(supplied(capped, updates)) <= 2
    if keep == "slot":
        assert capped.shared["ood_words"].tolist() == list(range(U))


def test_a_cap_too_low_for_all_slots_is_raised_to_an_equal_share() -> None:
    updates, server, task = make_updates(2), make_server(), make_task()
    result = FOCoOp(FOCoOpConfig(ood_cap=0.01)).aggregate(server, updates, task)
    assert sorted(supplied(result, updates)) == [2, 3]


@pytest.mark.parametrize("keep", ["slot", "paper"])
def test_a_cap_that_never_binds_changes_nothing(keep: Literal["slot", "paper"]) -> None:
    updates, server, task = make_updates(3), make_server(), make_task()
    free = FOCoOp(FOCoOpConfig(keep=keep)).aggregate(server, updates, task)
    wide = FOCoOp(FOCoOpConfig(keep=keep, ood_cap=0.999)).aggregate(server, updates, task)
    for name in ("ood", "ood_words", "global"):
        assert torch.equal(free.shared[name], wide.shared[name])
