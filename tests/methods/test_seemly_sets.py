"""The seemly OOD prompts of real rounds are those of a solver that converged on its own."""

from pathlib import Path

import pytest
from torch import Tensor

from focoop.experiments.presets import tuned
from focoop.federation import simulate
from focoop.federation.simulator import MemoryStore
from focoop.functional import transport
from focoop.methods import _goc
from focoop.methods.base import Server
from focoop.scenario import build_scenario, schedule_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGED = ("data.id=demo:cifar100", "data.corrupted=[]", "data.ood=[]", "data.validation_ood=[]")


def converged(cost: Tensor, tau: float) -> transport.DualPlan:
    """Newton's method alone, every smoothed problem on the way solved, to 1e-9 of the gain."""
    return transport.semi_unbalanced_dual(
        cost, tau=tau, tolerance=1e-13, relative=1e-9, max_steps=3000, misses=(1e-4, 1e-4)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["settings/cifar100.toml", "demo.toml"])
def test_five_rounds_choose_what_a_converged_solver_chooses(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    solved: list[tuple[Tensor, float, _goc.Plan]] = []
    solve = _goc.Consistency.solve

    def kept(self: _goc.Consistency, cost: Tensor, server: Server) -> _goc.Plan:
        plan = solve(self, cost, server)
        solved.append((cost.clone(), self.tau, plan))
        return plan

    monkeypatch.setattr(_goc.Consistency, "solve", kept)
    changes = [*PACKAGED, "method.name=focoop"]
    config = tuned(ROOT / "configs" / name, changes, ROOT / "configs" / "methods")[0]
    scenario = build_scenario(config)
    clients, schedule = scenario.training_clients(), schedule_of(config, scenario)
    rounds = simulate(
        scenario.method, scenario.task, clients, schedule, MemoryStore(), seed=config.seed
    )
    for _ in range(5):
        next(rounds)
    assert len(solved) == 5
    for cost, tau, plan in solved:
        columns = cost.shape[1]
        words = columns // len(clients)
        expected = converged(cost, tau)
        assert expected.gap <= 2e-9 * expected.gained  # rounding may end it just before 1e-9
        assert plan.gap < 1e-12
        assert plan.objective <= expected.objective + 1e-14
        ours, theirs = plan.mass * columns, expected.mass * columns
        # A gap of 1e-9 leaves errors of some 1e-3 of a prior in single masses: prompts as near the
        # cut as that are not told apart by it, all others must be.
        error = float((ours - theirs).abs().max())
        assert error < 0.01
        chosen = [set(transport.select_by_mass(mass, words).tolist()) for mass in (ours, theirs)]
        cut = float(ours.sort(descending=True).values[words - 1])
        odd = sorted(chosen[0] ^ chosen[1])
        assert all(abs(float(ours[j]) - cut) <= 2 * error for j in odd)
        assert len(odd) <= 4
