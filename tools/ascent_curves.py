"""How much each step of FOCoOp's ascent raises its objective, before and after training.

    python tools/ascent_curves.py --rounds 1 --set method.tau_ood=0.1
    python tools/ascent_curves.py --rounds 3 --set method.ascent=alg2 --set method.tau_ood=10.0

Trains some rounds on the packaged features (`configs/settings/cifar100.toml` with FOCoOp's preset)
and prints, of one client's class and OOD rows, the gain of L - price after 0, 1, ... steps, R times
the length of a row's slope, and how far rows moved.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from focoop.experiments.presets import tuned
from focoop.federation import simulate
from focoop.federation.simulator import MemoryStore
from focoop.methods import Batch, Params
from focoop.methods._bos import Ascent, Separation, Side, row_norms
from focoop.scenario import build_scenario, schedule_of
from focoop.seeds import torch_generator

ROOT = Path(__file__).resolve().parents[1]
DATA = ("data.id=demo:cifar100", "data.corrupted=[]", "data.ood=[]", "data.validation_ood=[]")


def main() -> None:
    """Train, then climb."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--client", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], dest="changes")
    given = parser.parse_args()
    changes = [*DATA, f"federation.rounds={given.rounds}", "method.name=focoop", *given.changes]
    file = ROOT / "configs" / "settings" / "cifar100.toml"
    config = tuned(file, changes, ROOT / "configs" / "methods")[0]
    scenario = build_scenario(config)
    store, clients = MemoryStore(), scenario.training_clients()
    schedule = schedule_of(config, scenario)
    shared: Params = {}
    for result in simulate(
        scenario.method, scenario.task, clients, schedule, store, seed=config.seed
    ):
        shared = result.server.shared
        print(f"round {result.round_index}, loss {result.loss:.4f}", file=sys.stderr)
    params = {**shared, **(store.load(given.client) or {})}
    with torch.no_grad():
        text = scenario.method.encode(params, scenario.task)
    data, settings = clients[given.client](), config.method.settings
    separation = Separation(
        Batch(data.pooled.double(), None, data.labels),
        scenario.task.logit_scale,
        settings.detection_weight,
    )
    assert text.ood is not None
    for name, pair in (("id", (text.id, text.ood)), ("ood", (text.ood, text.id))):
        side = Side(separation, *(one.double() for one in pair), ids=name == "id")
        show(name, side, settings.ascent_of(name, scenario.task.spread), settings.sigma)


def show(name: str, side: Side, ascent: Ascent, sigma: float) -> None:
    """Print the curve of one kind of rows."""
    generator = torch_generator(0, name)
    start = sigma * torch.randn(side.rows.shape, generator=generator, dtype=torch.float64)
    slopes = len(side.rows) * row_norms(side.slope(torch.zeros_like(side.rows))).flatten()
    print(f"{name}: radius {ascent.radius}, tau {ascent.tau}, rule {ascent.rule}")
    told = [f"{float(slopes.quantile(q)):.3g}" for q in (0.0, 0.5, 1.0)]
    print(f"  R |dL/deps| least, median, largest: {', '.join(told)}")
    gains, first = [], 0.0
    for steps in (0, 1, 2, 3, 4, 40):
        noise = replace(ascent, steps=steps).climb(side.value, side.slope, start)
        value = float(side.value(noise) - ascent.price(noise))
        first = value if steps == 0 else first
        gains.append(f"{steps}: {value - first:+.4f}")
    print(f"  gain of L - price after steps {', '.join(gains)}")
    moved = row_norms(ascent.climb(side.value, side.slope, start)).flatten()
    print(f"  mean length {float(moved.mean()):.4f}, rows that moved {int((moved > 0).sum())}")


if __name__ == "__main__":
    main()
