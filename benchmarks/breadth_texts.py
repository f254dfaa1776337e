"""FOCoOp+ with trained prompts as the texts of its prior, in the place of the template.

FOCoOp+ predicts class means from text features of "a photo of a NAME.". Here the texts come from
prompts that were trained first, and all else stays as it is. A source is a method of `focoop
compare` with one context, or one per class; of `local_only` a class has the mean of its holders'
texts. Prints own and all classes, the area under own against other classes and what the report of
the solution says, in percent, and means over seeds.

    python tools/validation_settings.py FEATURES runs/chosen_on
    FOCOOP_FEATURES=FEATURES:OUT python benchmarks/breadth_texts.py \
        runs/chosen_on/cifar100.toml,runs/chosen_on/pacs-sketch.toml --shots 1,2,8

FEATURES and OUT are those of tools/prepare_features.py. The settings hold no test image.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from focoop.config import from_dict, merge, parse_override
from focoop.config.files import read_toml
from focoop.experiments import evaluate_state, seeds_of
from focoop.experiments.presets import configured
from focoop.experiments.variants import Variant, parse_methods
from focoop.federation import simulate, start
from focoop.federation.simulator import MemoryStore
from focoop.methods import Params, Server, Task, create
from focoop.scenario import Scenario, build_scenario, schedule_of

PRESETS = Path(__file__).resolve().parents[1] / "configs" / "methods"
# One context for all classes that starts from words; its rate was best of 3, 10, 30 and 100 on
# Pets' validation images. PromptFL's preset has a context for each class.
START = "class_specific=false,start=a photo of a,federation.lr=30"
SOURCES = f"promptfl:{START};promptfl;local_only:{START}"
PLUS = "focoop_plus"


def trained(
    setting: Path, variant: Variant, overrides: list[str], made: Scenario | None
) -> tuple[Any, Scenario, Server, MemoryStore]:
    """Run a method in memory; `made` gives the images of an earlier run of the same setting."""
    tree = configured(read_toml(setting), setting.stem, variant, PRESETS)
    for text in overrides:
        tree = merge(tree, parse_override(text))
    config = from_dict(tree)
    scenario = made or build_scenario(config)
    method = create(config.method.name, config.method.settings)
    scale = config.backbone.logit_scale or scenario.backbone.logit_scale
    task = replace(scenario.task, logit_scale=scale)
    scenario = replace(scenario, method=method, task=replace(task, frozen=method.prepare(task)))
    return config, scenario, *federated(config, scenario)


def federated(config: Any, scenario: Scenario) -> tuple[Server, MemoryStore]:
    """All rounds of a run."""
    store, schedule = MemoryStore(), schedule_of(config, scenario)
    server = Server(start(scenario.method, scenario.task, config.seed).shared)
    clients = scenario.training_clients()
    for result in simulate(
        scenario.method, scenario.task, clients, schedule, store, seed=config.seed
    ):
        server = result.server
    return server, store


@torch.no_grad()
def texts_of(scenario: Scenario, server: Server, store: MemoryStore) -> Tensor:
    """(C, D) text features of the classes under trained contexts, of each class by its holders."""
    task = scenario.task

    def encoded(params: Params, task: Task) -> Tensor:
        prompt = scenario.method.prompts(params, task)["id"]
        return task.encode(prompt.contexts, prompt.names)

    if "context" in server.shared:
        return encoded(server.shared, task)
    total = torch.zeros_like(task.anchors)
    for client in range(scenario.num_clients):
        private = store.load(client)
        labels = scenario.client(client).labels
        held = torch.bincount(labels, minlength=len(total)).to(total)
        total += held[:, None] * encoded(private or {}, task)
    return F.normalize(total, dim=-1)


def rows(
    setting: Path, sources: list[Variant], shots: int, seed: int, rounds: int
) -> Iterator[Any]:
    """FOCoOp+ with the template's texts, then with those of each source."""
    common = [
        "data.validation_ood=[]",
        "data.ood=[]",
        "federation.participation=1.0",
        f"seed={seed}",
    ]
    common += [f"partition.shots={shots}", f"partition.seed={21 + seed}"]
    (plus,) = parse_methods(PLUS) or []
    config, scenario, server, store = trained(setting, plus, [*common, "federation.rounds=1"], None)
    yield "template", summary(scenario, server, store, seed)
    for source in sources:
        _, other, server, store = trained(
            setting, source, [*common, f"federation.rounds={rounds}"], scenario
        )
        task = replace(scenario.task, anchors=texts_of(other, server, store))
        changed = replace(scenario, task=task)
        server, store = federated(config, changed)
        yield source.label, summary(changed, server, store, seed)


def summary(scenario: Scenario, server: Server, store: MemoryStore, seed: int) -> dict[str, float]:
    """Percent of own and all classes, the area, and what the solution says of itself."""
    found = evaluate_state(scenario, server, store, seed).summary
    frontier = found["frontier"] or {}
    row = {"own": found["accuracy_own"], "all": found["accuracy_all"]}
    row |= {"area": frontier["ausuc"]} if frontier else {}
    images = scenario.sets.test.images
    answers = (images.pooled.float() @ scenario.task.anchors.T).argmax(dim=1)
    row["texts"] = float((answers == images.labels).float().mean())
    return {name: 100 * value for name, value in row.items()} | dict(server.report)


def main() -> None:
    """Print a line per run and means over seeds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("settings", help="files of settings, with commas")
    parser.add_argument("--sources", default=SOURCES, help="methods, with semicolons")
    parser.add_argument("--shots", default="1,2,8")
    parser.add_argument("--seeds", default="3", help="how many, or which: 0,4")
    parser.add_argument("--rounds", type=int, default=5, help="of the methods that train prompts")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    sources = [one for text in given.sources.split(";") for one in parse_methods(text) or []]
    table: list[dict[str, Any]] = []
    for setting in map(Path, given.settings.split(",")):
        for shots in map(int, given.shots.split(",")):
            means: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
            for seed in seeds_of(given.seeds):
                for source, row in rows(setting, sources, shots, seed, given.rounds):
                    table.append(
                        {
                            "setting": setting.stem,
                            "shots": shots,
                            "seed": seed,
                            "source": source,
                            **row,
                        }
                    )
                    for name, value in row.items():
                        means[source][name].append(value)
            for source, columns in means.items():
                shown = "  ".join(f"{name} {np.mean(v):.2f}" for name, v in columns.items())
                print(f"{setting.stem} {shots} shots, {source}: {shown}", flush=True)
            if given.out:
                given.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
