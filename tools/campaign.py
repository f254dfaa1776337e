"""Damage the files of a small run in many ways, read them back, and count what happens.

    python tools/campaign.py --cases 1700 --docs docs/reliability.md

A case changes one file: one bit at a random place, a cut, a removal, or an exchange with a file of
another client or of a run with another seed. The folder is then read as `open_run`, `evaluate` and
`--resume` read it. What happens is one of three: *named* (an error, or a note and a cache made
again, that names the file), *harmless* (the same values as before), *silent* (other values and not
a word). The last column must be zero; otherwise the tool ends with exit code 1.
"""

import argparse
import random
import re
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

import focoop
from focoop.assets import ASSETS, packaged
from focoop.clip import load_backbone, mini
from focoop.data import read_folder
from focoop.errors import FocoopError
from focoop.features import FeatureSet, load_split, save_splits
from focoop.features.encoding import encode
from focoop.runs import RunFolder
from focoop.seeds import numpy_generator, torch_generator

CLASSES = ("apple", "boat", "cat", "drum")
SETTINGS = {
    "method.name": "promptfolio",
    "data.corrupted": [],
    "partition.clients": 3,
    "partition.shots": 2,
    "federation.rounds": 3,
    "federation.epochs": 1,
    "federation.batch_size": 8,
}
MARKS = "<!-- campaign: begin -->", "<!-- campaign: end -->"
# Cases of each kind of file: at least as many as an outside campaign made, which found 282 silent.
KINDS = {
    "clients/*": 300,
    "state.safetensors": 200,
    "metrics.jsonl": 200,
    "rounds.jsonl": 200,
    "manifest.json": 150,
    "config.toml": 100,
    "names.json": 100,
    "feature file": 200,
    "feature cache": 80,
    "weights of mini": 150,
    "packaged lists": 50,
}
Reading = tuple[Callable[[], Any], Any]  # a reader, and what it gives of whole files


def images(name: str, each: int) -> FeatureSet:
    """Features of `each` images per class around random centres."""
    centres = torch.randn(len(CLASSES), 256, generator=torch_generator(0, "centres"))
    noise = torch.randn(len(CLASSES), each, 256, generator=torch_generator(0, name))
    pooled = F.normalize(centres[:, None] + 2 * noise, dim=-1).flatten(0, 1)
    return FeatureSet(pooled, None, torch.arange(len(CLASSES)).repeat_interleave(each), CLASSES)


def make_runs(root: Path) -> tuple[Path, Path]:
    """Two small runs of other seeds, with private tensors."""
    features = root / "id.safetensors"
    save_splits(features, {"train": images("train", 8), "test": images("test", 5)})
    save_splits(root / "far.safetensors", {"test": images("far", 4)})
    settings = {**SETTINGS, "data.id": f"file:{features}"}
    settings["data.ood"] = [f"file:{root / 'far.safetensors'}"]
    for seed in (0, 1):
        focoop.run(None, {**settings, "seed": seed}, out=root / f"run{seed}", use_tuned=False)
    return root / "run0", root / "run1"


def read_run(path: Path) -> Any:
    """All that readers see of a run: configuration, names, metrics and every client's tensors."""
    run = focoop.open_run(path)
    prompts = [run.prompts(client) for client in range(3)]
    folder = RunFolder.open(path)
    facts = [folder.manifest.get(key) for key in ("data_hashes", "backbone_fingerprint", "seeds")]
    return _plain([run.config, run.class_names, run.client_names, run.metrics, prompts, facts])


def resume_run(path: Path) -> Any:
    """All that a resumed run goes on from."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "run"
        shutil.copytree(path, copy)
        folder = RunFolder.open(copy, writable=True)
        point = folder.resume_point()
        private = [folder.private.load(client) for client in range(3)]
        found = _plain([folder.config, folder.names, folder.metrics(), point, private])
        folder.close()
    return found


def evaluate_run(path: Path) -> Any:
    """What `focoop evaluate` prints."""
    evaluation = focoop.open_run(path).evaluate()
    return _plain([evaluation.summary, evaluation.clients])


def _plain(value: Any) -> str:
    """Values as text, every bit of a tensor among them."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_plain(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return "[" + ",".join(_plain(item) for item in value) + "]"
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{value.tobytes().hex()}"
    if hasattr(value, "shared"):
        return _plain([value.round_index, value.shared, value.memory])
    return repr(value)


class Campaign:
    """Cases and what became of them, by kind of file and kind of damage."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self.silent: list[str] = []

    def case(self, kind: str, file: Path, reads: list[Reading], others: list[Path]) -> None:
        """Damage one file, read it back, restore it."""
        raw = file.read_bytes()
        ways = ["bit"] * 8 + ["cut", "removed"] + ["exchanged"] * (2 * bool(others))
        way = self.draw.choice(ways)
        self.damage(way, file, raw, others)
        try:
            if way != "removed" and file.read_bytes() == raw:
                outcome = "harmless"
            else:
                outcome = self.outcome(file, reads)
        finally:
            file.write_bytes(raw)
        self.counts[kind, way, outcome] += 1
        if outcome == "silent":
            self.silent.append(f"{kind}: {way} in {file}")

    def damage(self, way: str, file: Path, raw: bytes, others: list[Path]) -> None:
        """Change a file."""
        if way == "bit":
            content = bytearray(raw)
            content[self.draw.randrange(len(raw))] ^= 1 << self.draw.randrange(8)
            file.write_bytes(content)
        elif way == "cut":
            file.write_bytes(raw[: self.draw.randrange(len(raw))])
        elif way == "removed":
            file.unlink()
        else:
            shutil.copy(self.draw.choice(others), file)

    def outcome(self, file: Path, reads: list[Reading]) -> str:
        """What reading says; whoever is silent once is silent."""
        found = []
        for read, wanted in reads:
            with warnings.catch_warnings(record=True) as notes:
                warnings.simplefilter("always")
                try:
                    same = read() == wanted
                except FocoopError:
                    found.append("named")
                    continue
            told = any(file.name in str(note.message) for note in notes)
            found.append("named" if told and same else "harmless" if same else "silent")
        return next(name for name in ("silent", "named", "harmless") if name in found)

    def table(self) -> str:
        """The counts as Markdown."""
        lines = [
            "| what is damaged | how | cases | named | harmless | silent |",
            "|---|---|---:|---:|---:|---:|",
        ]
        for kind, way in sorted({key[:2] for key in self.counts}):
            found = [self.counts[kind, way, name] for name in ("named", "harmless", "silent")]
            numbers = " | ".join(map(str, [sum(found), *found]))
            lines.append(f"| {kind} | {way} | {numbers} |")
        found = [self.total(name) for name in ("named", "harmless", "silent")]
        lines.append(f"| **all** | | {sum(found)} | {' | '.join(map(str, found))} |")
        return "\n".join(lines)

    def total(self, outcome: str) -> int:
        """All cases that ended in one way."""
        return sum(count for key, count in self.counts.items() if key[2] == outcome)


@contextmanager
def packaged_in(folder: Path) -> Iterator[None]:
    """Take a copy of the packaged files for the installed ones."""
    kept = packaged.ASSETS, mini.ASSETS
    packaged.ASSETS = mini.ASSETS = folder
    try:
        yield
    finally:
        packaged.ASSETS, mini.ASSETS = kept


def run_cases(campaign: Campaign, root: Path, counts: dict[str, int]) -> None:
    """Damage the files of a run."""
    run, other = make_runs(root)
    reads: list[Reading] = [
        (lambda: read_run(run), read_run(run)),
        (lambda: resume_run(run), resume_run(run)),
    ]
    evaluated = (lambda: evaluate_run(run), evaluate_run(run))
    for kind in list(KINDS)[:7]:
        newest = [sorted(folder.iterdir())[-1] for folder in sorted((run / "clients").iterdir())]
        files = newest if kind == "clients/*" else [run / kind]
        for number in range(counts[kind]):
            file = campaign.draw.choice(files)
            others = [other / file.relative_to(run), *(one for one in newest if one != file)]
            others = others if kind == "clients/*" else others[:1]
            both = [*reads, evaluated] if number % 20 == 0 else reads
            campaign.case(kind, file, both, others)


def feature_cases(campaign: Campaign, root: Path, counts: dict[str, int]) -> None:
    """Damage a feature file and the cache of encoded images."""
    path, cache = root / "id.safetensors", root / "cache"
    whole = load_split(path, "all").sha256()
    for _ in range(counts["feature file"]):
        read = (lambda: load_split(path, "all").sha256(), whole)
        campaign.case("feature file", path, [read], [])
    for name in ("ant", "bee"):
        (root / "images" / "test" / name).mkdir(parents=True)
        pixels = numpy_generator(0, name).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "images" / "test" / name / "0.png")
    set_of_images, backbone = read_folder(root / "images", "test"), load_backbone("mini")
    wanted = encode(set_of_images, backbone, cache_dir=cache).sha256()
    (file,) = (cache / "features").iterdir()
    for _ in range(counts["feature cache"]):
        made = (lambda: encode(set_of_images, backbone, cache_dir=cache).sha256(), wanted)
        campaign.case("feature cache", file, [made], [])


def package_cases(campaign: Campaign, root: Path, counts: dict[str, int]) -> None:
    """Damage packaged weights and lists."""
    copy = (root / "assets").resolve()
    names = ["mini/text_tower", "mini/image_head", "mini/trunk"]
    names = [f"{name}.safetensors" for name in names]
    lists = ["wordnet/words.json", "class_names.json", "bpe_merges.npy", "demo/negatives.json"]
    for name in (*names, *lists, "mini/manifest.json"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ASSETS / name, copy / name)
    with packaged_in(copy):
        for kind, files in (("weights of mini", names), ("packaged lists", lists)):
            for _ in range(counts[kind]):
                name = campaign.draw.choice(files)
                campaign.case(kind, copy / name, [_reading(copy, name)], [])


def _reading(folder: Path, name: str) -> Reading:
    if name in mini_files():
        return lambda: sorted(mini.read(folder, name)), sorted(mini.read(folder, name))
    return lambda: packaged.asset(name, folder), packaged.asset(name, folder)


def mini_files() -> set[str]:
    """Names of the packaged weights."""
    return {name for name in packaged.SUMS if name.startswith("mini/") and "manifest" not in name}


def campaign_of(cases: int, seed: int = 0, root: Path | None = None) -> Campaign:
    """Run about so many cases, in the proportions of `KINDS`.

    Args:
        cases: How many.
        seed: Seed of the places that are damaged.
        root: An empty folder to work in; None: a temporary one.

    Returns:
        What became of them.
    """
    campaign, whole = Campaign(seed), sum(KINDS.values())
    counts = {kind: max(2, round(cases * count / whole)) for kind, count in KINDS.items()}
    with tempfile.TemporaryDirectory() as place:
        folder = root or Path(place)
        run_cases(campaign, folder, counts)
        feature_cases(campaign, folder, counts)
        package_cases(campaign, folder, counts)
    return campaign


def main() -> None:
    """Run the campaign and print its table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=sum(KINDS.values()))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--docs", type=Path, help="write the table between its marks in this page")
    given = parser.parse_args()
    found = campaign_of(given.cases, given.seed)
    print(found.table())
    print("\n".join(found.silent))
    if given.docs is not None:
        text = given.docs.read_text(encoding="utf-8")
        command = f"`python tools/campaign.py --cases {given.cases} --seed {given.seed}`"
        inside = f"{MARKS[0]}\n\n{command}:\n\n{found.table()}\n\n{MARKS[1]}"
        pattern = re.escape(MARKS[0]) + ".*" + re.escape(MARKS[1])
        given.docs.write_text(re.sub(pattern, lambda _: inside, text, flags=re.DOTALL), "utf-8")
    sys.exit(1 if found.silent else 0)


if __name__ == "__main__":
    main()
