"""Fewer bytes and what they cost: accuracy and FPR95 under coded updates, bytes a round.

Ten clients learn twenty classes of the packaged CIFAR-100 features, two classes each. One row per
way the updates travel up (and the shared tensors down): means over the seeds, with the deviation
over seeds, and the largest difference of a seed's accuracy from its own uncoded run. `control` is
uncoded too, with a weight decay of 1e-6, which moves the last bits of float32 and nothing else: its
difference is what any such change does to a run this small. Bytes are those of one round, all
clients together, as the run folder counts them.

`python benchmarks/bytes.py --method promptfl focoop --seeds 3` (some minutes on one core)
"""

import argparse
import statistics
import time
from collections.abc import Sequence

from focoop.config.loading import load
from focoop.experiments import evaluate_state, seeds_of
from focoop.features.lookup import open_features
from focoop.federation.simulator import MemoryStore, simulate
from focoop.scenario.scenario import build_scenario
from focoop.scenario.schedule import schedule_of

CLASSES, CLIENTS = 20, 10
SETTINGS = (
    "partition.kind=pathological",
    f"partition.clients={CLIENTS}",
    "partition.shots=8",
    "federation.rounds=6",
    "federation.epochs=2",
    "federation.batch_size=16",
    "data.corrupted=[]",
    'data.ood=["demo:dtd_32px"]',
    "negatives.count=20",
    "backbone.logit_scale=10.0",
)
# Learning rates of configs/methods.
TUNED = {
    "promptfl": ("federation.lr=1.0",),
    "focoop": ("federation.lr=6.0", "method.score_scale=30.0"),
}
WAYS = (
    ("fp32", "fp32"),
    ("control", "fp32"),
    ("fp16", "fp32"),
    ("fp16", "fp16"),
    ("bf16", "bf16"),
    ("int8", "fp32"),
    ("int8", "fp16"),
)


def outcome(method: str, up: str, down: str, seed: int) -> tuple[float, float, int, int]:
    """Accuracy on own classes, FPR95, bytes up and bytes down of a round."""
    names = open_features("demo:cifar100", "test").classes
    dropped = "[" + ", ".join(f'"{name}"' for name in names[CLASSES:]) + "]"
    given = [*SETTINGS, f"data.drop_classes={dropped}", f"method.name={method}", f"seed={seed}"]
    payload = "fp32" if up == "control" else up
    given += [f"federation.payload={payload}", f"federation.payload_down={down}"]
    given += ["federation.weight_decay=1e-6"] if up == "control" else []
    config = load(None, [*given, *TUNED.get(method, ())])
    scenario, store = build_scenario(config), MemoryStore()
    clients, schedule = scenario.training_clients(), schedule_of(config, scenario)
    *_, last = simulate(scenario.method, scenario.task, clients, schedule, store, seed=seed)
    found = evaluate_state(scenario, last.server, store, seed).summary
    (ood,) = found["ood"].values()
    return found["accuracy_own"], ood["fpr95"], last.bytes_up, last.bytes_down


def spread(values: Sequence[float]) -> str:
    """Mean and deviation in percent."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{100 * statistics.fmean(values):.1f} +- {100 * deviation:.1f}"


def table(method: str, seeds: Sequence[int]) -> None:
    began = time.perf_counter()
    print(f"\n{method}, seeds {', '.join(map(str, seeds))}")
    heads = ("accuracy", "FPR95", "differs by", "KB up", "KB down")
    print(f"{'up/down':<14}" + "".join(f"{head:>14}" for head in heads))
    plain: list[float] = []
    for up, down in WAYS:
        found = [outcome(method, up, down, seed) for seed in seeds]
        accuracy = [one[0] for one in found]
        plain = plain or accuracy
        worst = max(abs(a - b) for a, b in zip(accuracy, plain, strict=True))
        print(
            f"{up + '/' + down:<14}{spread(accuracy):>14}{spread([one[1] for one in found]):>14}"
            f"{100 * worst:>14.1f}{found[0][2] / 1000:>14.1f}{found[0][3] / 1000:>14.1f}",
            flush=True,
        )
    print(f"({time.perf_counter() - began:.0f} s)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", nargs="+", default=["promptfl", "focoop"], choices=TUNED)
    parser.add_argument("--seeds", type=seeds_of, default="3", help="how many, or which: 0,4")
    given = parser.parse_args()
    for method in given.method:
        table(method, given.seeds)


if __name__ == "__main__":
    main()
