"""FOCoOp+ that is told words for foreign images, on validation images: what words and weight do.

Holds FOCoOp+ with the words of `configs/foreign/cifar100-scenes.toml` against FOCoOp+ without:
`scenes` as the method weighs them, `weight 1` whatever the classes' names are worth, and `mined`,
the words of WordNet farthest from the classes. AUROC on the settings' OOD sets, on unknown classes
(a fifth) and on scenes: training images of TinyImageNet's places, at 32 px for CIFAR-100.

    python tools/validation_settings.py SHARED/features runs/chosen_on
    FOCOOP_FEATURES=SHARED/features:OUT python benchmarks/breadth_words.py SHARED \
        runs/chosen_on/cifar100.toml,runs/chosen_on/dtd.toml --shots 1,2,8

OUT is that of tools/prepare_features.py. The settings hold no test image.
"""

import argparse
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.breadth_texts import PLUS, PRESETS, federated
from focoop.clip import load_backbone
from focoop.config import from_dict, merge, parse_override
from focoop.config.files import read_toml
from focoop.experiments import evaluate_state, seeds_of
from focoop.experiments.presets import configured
from focoop.experiments.variants import parse_methods
from focoop.features.lookup import FeatureSet
from focoop.features.storage import load_split
from focoop.methods import create
from focoop.scenario import build_scenario
from focoop.scenario.negatives import mine
from tools.validation_ood import chosen, encode, read, small, write

WORDS = PRESETS.parent / "foreign" / "cifar100-scenes.toml"
PLACES = """altar, bannister, barbershop, barn, butcher shop, cliff, cliff dwelling, confectionery,
coral reef, dam, fountain, lakeside, thatch, triumphal arch, viaduct, water tower"""
NAMES = frozenset(" ".join(name.split()) for name in PLACES.split(","))
UNKNOWN = {"cifar100": 20, "dtd": 7, "oxford_pets": 7, "caltech101": 20, "tinyimagenet": 40}
WAYS = ("none", "scenes", "weight 1", "mined")


def write_scenes(shared: Path, out: Path) -> None:
    """Files of scenes: `scenes_32px`, encoded, and `scenes`, rows of ready features."""
    backbone = load_backbone("mini")
    files = chosen(shared / "images" / "tinyimagenet" / "train", NAMES)
    found = encode([small(path) for path in files], backbone)
    labels = torch.zeros(len(files), dtype=torch.int64)
    blurred = FeatureSet(found.pooled, None, labels, ("scene",))
    write(out / "scenes_32px.safetensors", blurred, backbone)
    whole = load_split(shared / "features" / "tinyimagenet.safetensors", "train")
    rows = [i for i, k in enumerate(whole.labels.tolist()) if read(whole.classes[k]) in NAMES]
    write(out / "scenes.safetensors", whole.select(rows), backbone)


def tree_of(setting: Path, shots: int, seed: int, scenes: Path) -> dict[str, Any]:
    """FOCoOp+ on a setting, with scenes and unknown classes among its OOD sets."""
    (plus,) = parse_methods(PLUS) or []
    tree = configured(read_toml(setting), setting.stem, plus, PRESETS)
    file = scenes / f"scenes{'_32px' if setting.stem == 'cifar100' else ''}.safetensors"
    data = {"ood": [*tree["data"]["ood"], f"file:{file}"]}
    if setting.stem in UNKNOWN:
        data["unknown_classes"] = UNKNOWN[setting.stem]
    said = [f"seed={seed}", f"partition.shots={shots}", f"partition.seed={21 + seed}"]
    for text in (*said, "federation.rounds=1", "federation.participation=1.0"):
        tree = merge(tree, parse_override(text))
    return merge(tree, {"data": data})


def measured(tree: dict[str, Any], ways: list[str]) -> dict[str, dict[str, float]]:
    """AUROC in percent by way and OOD set."""
    scenario = build_scenario(from_dict(tree))
    scenes = read_toml(WORDS)["method"]["foreign"]
    found = {}
    for way in ways:
        words = list(scenes)
        if way == "mined":
            words = list(mine(scenario.backbone, scenario.task.classes, 100).words)
        said = {"method": {"foreign": [] if way == "none" else words}}
        config = from_dict(merge(tree, said))
        method = create(config.method.name, config.method.settings)
        task = replace(scenario.task, frozen=method.prepare(scenario.task))
        told = replace(scenario, method=method, task=task)
        server, store = federated(config, told)
        if way == "weight 1":
            weight = torch.ones_like(server.shared["foreign_weight"])
            server = replace(server, shared={**server.shared, "foreign_weight": weight})
        ood = evaluate_state(told, server, store, config.seed).summary["ood"]
        found[way] = {
            "scenes" if "scenes" in name else name: 100 * scores["pooled"]["auroc"]
            for name, scores in ood.items()
        }
    return found


def parser_of(about: str, shots: str) -> argparse.ArgumentParser:
    """The options of a benchmark on validation settings: where data is, settings, shots, seeds."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("shared", type=Path, help="a folder with `features` and `images`")
    parser.add_argument("settings", help="files of settings, with commas")
    parser.add_argument("--shots", default=shots)
    parser.add_argument("--seeds", default="3", help="how many, or which: 0,4")
    return parser


def cells_of(given: argparse.Namespace) -> Iterator[tuple[Path, int, list[dict[str, Any]]]]:
    """Every setting with every number of shots, and FOCoOp+'s settings for each seed."""
    with tempfile.TemporaryDirectory() as folder:
        write_scenes(given.shared, Path(folder))
        for setting in map(Path, given.settings.split(",")):
            for shots in map(int, given.shots.split(",")):
                seeds = seeds_of(given.seeds)
                yield setting, shots, [tree_of(setting, shots, s, Path(folder)) for s in seeds]


def main() -> None:
    """Print AUROC without words and what each way adds to it, means over seeds."""
    parser = parser_of(__doc__ or "", shots="1,2,8")
    parser.add_argument("--ways", default=",".join(WAYS), help="none comes first")
    given = parser.parse_args()
    ways = given.ways.split(",")
    for setting, shots, trees in cells_of(given):
        cells: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for tree in trees:
            for way, row in measured(tree, ways).items():
                for name, value in row.items():
                    cells[name][way].append(value)
        for name, columns in cells.items():
            base = float(np.mean(columns["none"]))
            more = (f"{way} {np.mean(columns[way]) - base:+.2f}" for way in ways[1:])
            print(
                f"{setting.stem} {shots} shots, {name}: {base:.1f}; {'; '.join(more)}", flush=True
            )


if __name__ == "__main__":
    main()
