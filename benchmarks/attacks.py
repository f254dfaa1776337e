"""Hostile clients with and without defence: accuracy and FPR95 of the honest clients.

Ten clients learn twenty classes of the packaged CIFAR-100 features; those of the lowest numbers are
hostile. What they do:
  label_flip  train on the label C - 1 - y        sign_flip  send the change with the other sign
  scaling     send 100 times the change           nan        send what is no number
  random      send prompts drawn from N(0, 1)     ood        OOD prompts far from every class, which
                                                             the server's transport likes to keep
Prints one table per method and share of hostile clients: accuracy / FPR95, in percent; `lost` where
training could not go on. `cap` is no rule, but method.ood_cap = 0.1. A cell takes some seconds.

`python benchmarks/attacks.py --method focoop --share 0.1 0.2 0.4 --rule none median krum`
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from focoop.clip.base import LabelledFeatures
from focoop.config.loading import load
from focoop.errors import FocoopError
from focoop.experiments.evaluation import evaluate_state
from focoop.features.lookup import open_features
from focoop.federation.simulator import MemoryStore, simulate
from focoop.federation.updates.screening import RULES, Defence, Screen
from focoop.methods.base import ClientUpdate, Method, Params, Server, Task
from focoop.scenario.scenario import Scenario, build_scenario
from focoop.scenario.schedule import schedule_of
from focoop.seeds import torch_generator

CLASSES, CLIENTS = 20, 10
SETTINGS = (
    "partition.kind=iid",
    f"partition.clients={CLIENTS}",
    "partition.shots=4",
    "federation.rounds=4",
    "federation.epochs=2",
    "federation.batch_size=80",
    "data.corrupted=[]",
    'data.ood=["demo:dtd_32px"]',
    "negatives.count=20",
)
# After configs/methods; the one shared context of promptfl is cheap and needs more steps.
TUNED = {
    "promptfl": (
        "backbone.logit_scale=10.0",
        "federation.lr=1.0",
        "federation.rounds=5",
        "federation.epochs=4",
    ),
    "focoop": ("backbone.logit_scale=10.0", "federation.lr=6.0", "method.score_scale=30.0"),
    "focoop_plus": ("method.least_images=4",),
}
Tamper = Callable[[ClientUpdate, Params], Params]


def moved(update: ClientUpdate, received: Params, factor: float) -> Params:
    """The change of every floating tensor, times `factor`."""
    return {
        name: received[name] + factor * (value - received[name])
        if value.is_floating_point()
        else value
        for name, value in update.shared.items()
    }


def filled(update: ClientUpdate, received: Params) -> Params:
    """Tensors that hold no number."""
    return {
        name: torch.full_like(value, torch.nan) if value.is_floating_point() else value
        for name, value in update.shared.items()
    }


def drawn(update: ClientUpdate, received: Params) -> Params:
    """Random prompts, another draw for each client."""
    generator = torch_generator(0, "attack", update.client)
    return {
        name: torch.randn(value.shape, generator=generator, dtype=value.dtype)
        if value.is_floating_point()
        else value
        for name, value in update.shared.items()
    }


def far_ood(update: ClientUpdate, received: Params) -> Params:
    """OOD prompts in one far direction, all hostile clients' in the same; the rest is honest."""
    if "ood" not in update.shared:
        return update.shared
    value = update.shared["ood"]
    away = torch.randn(value.shape[1:], generator=torch_generator(0, "attack"), dtype=value.dtype)
    return {**update.shared, "ood": value + away}


UPDATES: dict[str, Tamper] = {
    "sign_flip": partial(moved, factor=-1.0),
    "scaling": partial(moved, factor=100.0),
    "nan": filled,
    "random": drawn,
    "ood": far_ood,
}
ATTACKS = ("nobody", "label_flip", *UPDATES)


def attacked(attack: str, hostile: int, defence: Screen | None) -> Screen:
    """The server's screen, behind what the first `hostile` clients do to their updates."""
    tamper = UPDATES.get(attack)

    def screen(
        method: Method, server: Server, updates: Sequence[ClientUpdate], task: Task
    ) -> tuple[list[ClientUpdate], dict[str, float]]:
        sent = [
            replace(u, shared=tamper(u, server.shared)) if tamper and u.client < hostile else u
            for u in updates
        ]
        return (sent, {}) if defence is None else defence(method, server, sent, task)

    return screen


def flipped(images: Callable[[], LabelledFeatures], classes: int) -> LabelledFeatures:
    """A client's images under the label C - 1 - y."""
    data = images()
    return replace(data, labels=classes - 1 - data.labels)


def scenario_of(method: str, extra: Sequence[str] = ()) -> tuple[Scenario, Callable[..., object]]:
    """What is learned, and a function that makes the schedule with another screen."""
    names = open_features("demo:cifar100", "test").classes
    dropped = "[" + ", ".join(f'"{name}"' for name in names[CLASSES:]) + "]"
    given = [*SETTINGS, f"data.drop_classes={dropped}", f"method.name={method}"]
    config = load(None, [*given, *TUNED.get(method, ()), *extra])
    scenario = build_scenario(config)
    return scenario, partial(replace, schedule_of(config, scenario))


def outcome(
    scenario: Scenario,
    schedule: Callable[..., object],
    attack: str,
    hostile: int,
    defence: Screen | None,
) -> tuple[float, float] | None:
    """Accuracy and FPR95, means over the honest clients; None where training broke off."""
    clients = list(scenario.training_clients())
    if attack == "label_flip":
        classes = len(scenario.task.classes)
        for k in range(hostile):
            clients[k] = partial(flipped, clients[k], classes)
    store = MemoryStore()
    settings = schedule(screen=attacked(attack, hostile, defence))
    try:
        *_, last = simulate(
            scenario.method,
            scenario.task,
            clients,
            settings,
            store,
            seed=0,  # type: ignore[arg-type]
        )
        if not all(bool(torch.isfinite(v).all()) for v in last.server.shared.values()):
            return None
        rows = evaluate_state(scenario, last.server, store, 0).clients[hostile:]
    except FocoopError:
        return None
    fpr = [ood["fpr95"] for row in rows for ood in row["ood"].values()]
    return sum(row["accuracy_own"] for row in rows) / len(rows), sum(fpr) / len(fpr)


def table(method: str, share: float, rules: Sequence[str], attacks: Sequence[str]) -> None:
    hostile = round(share * CLIENTS)
    began = time.perf_counter()
    plain = scenario_of(method)
    cap = scenario_of(method, ["method.ood_cap=0.1"]) if method.startswith("focoop") else None
    columns = [*rules, "cap"] if cap else list(rules)
    print(f"\n{method}, {hostile} of {CLIENTS} clients hostile: accuracy / FPR95")
    print(" " * 12 + "".join(f"{name:>14}" for name in columns))
    for attack in attacks:
        if attack == "ood" and not plain[0].method.needs_ood:
            continue
        cells = []
        for rule in columns:
            if rule == "cap" and attack not in ("nobody", "ood"):
                cells.append("-")
                continue
            scenario, schedule = cap if rule == "cap" and cap else plain
            screen = None if rule in ("none", "cap") else Defence(rule, hostile=share).screen
            found = outcome(scenario, schedule, attack, hostile, screen)
            cells.append(
                "lost" if found is None else f"{100 * found[0]:.1f} / {100 * found[1]:.1f}"
            )
        print(f"{attack:<12}" + "".join(f"{cell:>14}" for cell in cells), flush=True)
    print(f"({time.perf_counter() - began:.0f} s)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", nargs="+", default=["promptfl", "focoop"])
    parser.add_argument("--share", nargs="+", type=float, default=[0.3])
    parser.add_argument("--rule", nargs="+", default=["none", "krum"],
                        choices=RULES)  # fmt: skip
    parser.add_argument("--attack", nargs="+", default=list(ATTACKS), choices=ATTACKS)
    given = parser.parse_args()
    for method in given.method:
        for share in given.share:
            table(method, share, given.rule, given.attack)


if __name__ == "__main__":
    main()
