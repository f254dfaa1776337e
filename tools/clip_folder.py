"""Make the folder `build/clipb32` that the settings `clipb32-*` read: real CLIP ViT-B/32 features.

    python tools/clip_folder.py SHARED/clipb32

SHARED/clipb32 has image features of OpenAI's CLIP and a text tower of our own that was fitted to
CLIP's text features (its README; docs/reference/backbones.md says what it can show). OUT gets
- `open_clip_config.json` and `open_clip_model.safetensors`, so that it is a backbone `local-dir:`;
- `features/*.safetensors`: the same features with the backbone's fingerprint, two ImageNet classes
  of one name apart, and `imagenet200`, the images of 200 classes drawn from ImageNet's 1,000.

    python tools/clip_folder.py build/clipb32 build/clipb32-part --settings settings/clipb32-dtd

writes what these settings read, for a GPU machine where all of it has no room: training images and
`--test` images per class of ID sets, `--ood` images of OOD sets, the tower with a part of its
vocabulary (it refuses other texts), and `cache`, the rankings of negative words (encoding WordNet
takes a CPU some minutes). On that machine, from the root of the checkout:

    ln -sfn clipb32-part build/clipb32; export FOCOOP_CACHE=build/clipb32-part/cache
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from prepare_features import rows_per_class
from safetensors.torch import load_file, save_file

from focoop.caching import cache_folder
from focoop.clip import Backbone, load_backbone
from focoop.clip.local_folder import BYTES, ROWS
from focoop.clip.tokenizer import EOT, SOT
from focoop.config import RunConfig, loading
from focoop.data import Source
from focoop.features import open_features
from focoop.features.storage import Metadata, read_file, write_file
from focoop.methods import available, create
from focoop.scenario import task
from focoop.scenario.negatives import Query, rank
from focoop.seeds import numpy_generator

OUT = Path("build/clipb32")
NAME = "CLIP ViT-B/32"
CONFIG = {
    "model_cfg": {
        "embed_dim": 512,
        "quick_gelu": True,
        "text_cfg": {
            "context_length": 77,
            "vocab_size": 49408,
            "width": 256,
            "heads": 4,
            "layers": 6,
        },
    },
    "preprocess_cfg": {},
}
# The two ImageNet classes whose names CoOp's list has twice, by the other word of their synset.
RENAMED = {744: "projectile", 836: "sunglass"}
DRAWN = 200
WEIGHTS, RECORD = "open_clip_model.safetensors", "open_clip_config.json"
FARTHEST = 500  # words of each kind that a part can encode, so that other ones may be chosen
Tensors = dict[str, torch.Tensor]


def write_backbone(source: Path, out: Path) -> Backbone:
    """Write a text tower's configuration, and link to its weights."""
    out.mkdir(parents=True, exist_ok=True)
    (out / RECORD).write_text(json.dumps(CONFIG, indent=2) + "\n")
    link = out / WEIGHTS
    link.unlink(missing_ok=True)
    link.symlink_to((source / "text_tower.safetensors").resolve())
    return load_backbone(f"local-dir:{out}")


def read_features(path: Path, backbone: Backbone) -> tuple[Tensors, Metadata]:
    """Features with what made them, and with names that tell classes apart."""
    tensors, metadata = read_file(path)
    classes = json.loads(metadata["classes"])
    if path.stem == "imagenet":
        classes = [RENAMED.get(label, name) for label, name in enumerate(classes)]
    made = {"backbone": NAME, "fingerprint": backbone.image_fingerprint}
    return tensors, {**metadata, **made, "classes": json.dumps(classes)}


def some_classes(tensors: Tensors, metadata: Metadata, count: int) -> tuple[Tensors, Metadata]:
    """The images of `count` classes, always the same ones."""
    names = json.loads(metadata["classes"])
    drawn = sorted(numpy_generator(0, f"{count} classes").permutation(len(names))[:count].tolist())
    place = torch.full((len(names),), -1, dtype=torch.int32)
    place[drawn] = torch.arange(count, dtype=torch.int32)
    labels = place[tensors["labels"].long()]
    rows = labels >= 0
    kept = {name: value[rows] for name, value in {**tensors, "labels": labels}.items()}
    return kept, {**metadata, "classes": json.dumps([names[label] for label in drawn])}


def write_folder(source: Path, out: Path) -> None:
    """Write the whole folder."""
    backbone = write_backbone(source, out)
    (out / "features").mkdir(exist_ok=True)
    for path in sorted((source / "features").glob("*.safetensors")):
        tensors, metadata = read_features(path, backbone)
        write_file(out / "features" / path.name, tensors, metadata)
        if path.stem == "imagenet":
            target = out / "features" / f"imagenet{DRAWN}.safetensors"
            write_file(target, *some_classes(tensors, metadata, DRAWN))


def rows_wanted(configs: list[RunConfig], test: int, ood: int) -> dict[Path, set[int]]:
    """The rows of each feature file that settings read."""
    wanted: dict[Path, set[int]] = {}
    for config in configs:
        data = config.data
        for spec in (data.id, *data.ood, *data.validation_ood):
            source = Source.parse(spec)
            path = Path(source.target)
            tensors, metadata = read_file(path)
            of_split = {
                split: torch.nonzero(tensors["split"] == place).flatten()
                for place, split in enumerate(("train", "test"))
            }
            rows = wanted.setdefault(path, set())
            some = of_split[source.split or "test"]
            own = spec == data.id
            count = test if own else max(1, ood // len(json.loads(metadata["classes"])))
            labels = tensors["labels"][some].tolist()
            rows.update(some[rows_per_class(labels, count)].tolist())
            rows.update(of_split["train"].tolist() if own else ())
    return wanted


class Recorder:
    """A tokeniser that remembers the tokens of all texts."""

    def __init__(self, backbone: Backbone) -> None:
        self.inner, self.tokens = backbone.tokenize, {SOT, EOT, *range(BYTES)}
        backbone.tokenize = self

    def __call__(self, texts: Sequence[str]) -> torch.Tensor:
        """Tokenise texts."""
        tokens = self.inner(texts)
        self.tokens.update(tokens.flatten().tolist())
        return tokens


def write_words(config: RunConfig, backbone: Backbone, cache: Path) -> None:
    """Write the ranking of a setting's negative words, and tokenise all that a run may ask for."""
    classes = open_features(config.data.id, "train", backbone).classes
    name = f"features-{Query.of(backbone, classes).features_key}.safetensors"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).symlink_to(cache_folder(None, "negatives").resolve() / name)
        words = task.task_words(config, backbone, classes, Path(folder))
        ranking = rank(backbone, classes, cache_dir=Path(folder))
        cache.mkdir(parents=True, exist_ok=True)
        for path in Path(folder).iterdir():
            if path.name != name:
                shutil.copy(path, cache)
    backbone.tokenize([*ranking.adjectives.words[:FARTHEST], *ranking.nouns.words[:FARTHEST]])
    told = task.make_task(config, backbone, classes, True, words=words)
    for method in available():
        create(method).prepare(told)


def write_part(source: Path, out: Path, settings: list[str], test: int, ood: int) -> None:
    """Write what some settings read of a whole folder."""
    shutil.rmtree(out, ignore_errors=True)
    (out / "features").mkdir(parents=True)
    configs = [loading.load(Path(name)) for name in settings]
    for path, rows in rows_wanted(configs, test, ood).items():
        tensors, metadata = read_file(path)
        kept = torch.tensor(sorted(rows))
        part = {name: value[kept] for name, value in tensors.items()}
        write_file(out / "features" / path.name, part, metadata)
    backbone = load_backbone(f"local-dir:{source}")
    rank(backbone, ["thing"])  # encodes WordNet once, into the usual cache
    recorder = Recorder(backbone)
    for config in configs:
        write_words(config, backbone, out / "cache" / "negatives")
    kept = torch.tensor(sorted(recorder.tokens), dtype=torch.int32)
    state = load_file(source / WEIGHTS)
    state["token_embedding.weight"] = state["token_embedding.weight"][kept.long()].clone()
    save_file({**state, ROWS: kept}, out / WEIGHTS)
    shutil.copy(source / RECORD, out)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{out}: {size / 2**20:.1f} MiB, {len(kept)} tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path, help="the folder of the reference data, or OUT")
    parser.add_argument("out", type=Path, nargs="?", default=OUT)
    parser.add_argument("--settings", nargs="+", help="settings that a part is for")
    parser.add_argument("--test", type=int, default=10, help="test images per class of a part")
    parser.add_argument("--ood", type=int, default=500, help="images of each of its OOD sets")
    given = parser.parse_args()
    if given.settings:
        return write_part(given.source, given.out, given.settings, given.test, given.ood)
    write_folder(given.source, given.out)
    print(f"{given.out}: focoop run settings/clipb32-caltech101 reads it from here")
    return None


if __name__ == "__main__":
    main()
