"""Write the head of the demo's word ranking, so that the demo need not encode 70,000 words.

    python tools/make_demo_negatives.py --features SHARED/features/cifar100.safetensors

The entry is keyed like every cached ranking (backbone, class names, templates, words, quantile), so
it is used only where mining would give the same words. Run this again when `mini` or the word lists
change.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from safetensors import safe_open

from focoop.clip import load_backbone
from focoop.scenario import negatives

DEPTH = {"adjectives": 300, "nouns": 1200}


def main() -> None:
    """Rank with the packaged backbone and write the farthest words."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features", type=Path, required=True, help="a file that names classes")
    parser.add_argument("--backbone", default="mini")
    parser.add_argument("--out", type=Path, default=negatives.PACKAGED)
    arguments = parser.parse_args()
    with safe_open(arguments.features, framework="np") as file:
        classes = json.loads(file.metadata()["classes"])
    backbone = load_backbone(arguments.backbone)
    ranking = negatives.rank(backbone, classes)
    entry: dict[str, object] = {"backbone": backbone.name, "classes": classes}
    for kind, depth in DEPTH.items():
        ranked: negatives.Ranked = getattr(ranking, kind)
        entry[kind] = {
            "total": ranked.total,
            "words": ranked.words[:depth],
            # float32 in as few digits as give it back exactly
            "distances": [float(str(np.float32(d))) for d in ranked.distances[:depth].tolist()],
        }
    document = {"rankings": {negatives.Query.of(backbone, classes).key: entry}}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(document, indent=0) + "\n", encoding="ascii")
    print(f"{arguments.out.stat().st_size / 1e3:.0f} kB in {arguments.out}")


if __name__ == "__main__":
    main()
