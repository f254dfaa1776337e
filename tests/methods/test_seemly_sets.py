"""The seemly OOD prompts of real rounds are those of a solver that converged on its own."""

from pathlib import Path

import pytest
from torch import Tensor

from focoop.experiments.presets import tuned
from focoop.federation import simulate
from focoop.federation.simulator import MemoryStore
from focoop.functional import transport
from focoop.methods import _goc
from focoop.scenario import build_scenario, schedule_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGED = ("data.id=demo:cifar100", "data.corrupted=[]", "data.ood=[]", "data.validation_ood=[]")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["settings/cifar100.toml", "demo.toml"])
def test_five_rounds_choose_what_a_converged_solver_chooses(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    solved: list[tuple[_goc.Consistency, Tensor, _goc.Plan]] = []
    solve = _goc.Consistency.solve

    def kept(self: _goc.Consistency, cost: Tensor) -> _goc.Plan:
        plan = solve(self, cost)
        solved.append((self, cost.clone(), plan))
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
    for server, cost, plan in solved:
        columns = cost.shape[1]
        words = columns // len(clients)
        expected = transport.semi_unbalanced_dual(
            cost, tau=server.tau, tolerance=1e-13, relative=1e-9, max_steps=300
        )
        gained = float(cost.mean()) - expected.objective
        assert expected.gap <= 1e-9 * gained and plan.gap <= _goc.GAP * gained
        masses = [found.drawn * columns for found in (plan, expected)]
        assert float((masses[0] - masses[1]).abs().max()) < 0.05  # of a prompt's prior
        for chosen in (
            [set(transport.select_by_mass(mass, words).tolist()) for mass in masses],
            [set(server.kept(mass, cost, len(clients), words).tolist()) for mass in masses],
        ):
            assert len(chosen[0] & chosen[1]) >= 98
