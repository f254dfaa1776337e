"""Files that the campaign damages, and how each of them is read back."""

import json
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

import focoop
from focoop.assets import ASSETS, packaged
from focoop.caching import cached_tensor, sealed
from focoop.clip import load_backbone, mini
from focoop.config import NegativesConfig
from focoop.data import ImageSet, read_folder
from focoop.data.content_hash import file_hashes
from focoop.data.download import _read as read_record
from focoop.data.unreadable import examine
from focoop.experiments.answering import ANSWERS, answers_of, measure_answers, read_answers
from focoop.features import FeatureSet, load_split, save_splits
from focoop.features.encoding import encode
from focoop.predict import (
    CALIBRATION,
    CARD,
    FILE,
    ONNX,
    Model,
    calibration_of,
    check_sums,
    read_model,
)
from focoop.runs import RunFolder
from focoop.scenario.negatives_cache import remembered
from focoop.seeds import numpy_generator, torch_generator
from tools.results_cells import read_results

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
BIT, CUT, REMOVED, EXCHANGED = "bit", "cut", "removed", "exchanged"
ALL = (BIT, CUT, REMOVED, EXCHANGED)
Reading = tuple[Callable[[], Any], Any]  # a reader, and what it gives of whole files


@dataclass
class Kind:
    """Files of one kind, with what reads them back.

    Attributes:
        name: What the report calls them.
        cases: How often they are damaged in a whole campaign.
        files: The files.
        reads: What reads them in every case.
        others: Files that may take the place of one of them.
        now_and_then: What reads them in every twentieth case, as it takes long.
        ways: Kinds of damage that can be told.
    """

    name: str
    cases: int
    files: list[Path]
    reads: list[Reading]
    others: Callable[[Path], list[Path]] = lambda file: []  # noqa: E731
    now_and_then: list[Reading] = field(default_factory=list)
    ways: tuple[str, ...] = ALL


def reading(read: Callable[[], Any]) -> Reading:
    """A reader with what it gives now."""
    return read, read()


def among(files: list[Path]) -> Callable[[Path], list[Path]]:
    """The other ones of some files, to take the place of one."""
    return lambda file: [one for one in files if one != file]


def all_kinds(root: Path) -> Iterator[Kind]:
    """Every kind of file, made in an empty folder."""
    runs = make_runs(root)
    yield from run_kinds(*runs)
    yield from model_kinds(root, *runs)
    yield from feature_kinds(root)
    yield from word_kinds(root)
    yield from site_kinds(root)
    yield from package_kinds(root)


def images(name: str, each: int) -> FeatureSet:
    """Features of `each` images per class around random centres."""
    centres = torch.randn(len(CLASSES), 256, generator=torch_generator(0, "centres"))
    noise = torch.randn(len(CLASSES), each, 256, generator=torch_generator(0, name))
    pooled = F.normalize(centres[:, None] + 2 * noise, dim=-1).flatten(0, 1)
    return FeatureSet(pooled, None, torch.arange(len(CLASSES)).repeat_interleave(each), CLASSES)


def make_runs(root: Path) -> tuple[Path, Path]:
    """Two small runs of other seeds, with private tensors, calibrated and measured anew."""
    features = root / "id.safetensors"
    save_splits(features, {"train": images("train", 8), "test": images("test", 5)})
    save_splits(root / "far.safetensors", {"test": images("far", 4)})
    settings = {**SETTINGS, "data.id": f"file:{features}"}
    settings["data.ood"] = [f"file:{root / 'far.safetensors'}"]
    for seed in (0, 1):
        out = root / f"run{seed}"
        focoop.run(None, {**settings, "seed": seed}, out=out, use_tuned=False)
        focoop.calibrate(out, keep=0.6, from_test=True)
        answers(out)
    return root / "run0", root / "run1"


def answers(path: Path) -> Any:
    """Numbers of a run under other scores, as `focoop tune` keeps them or measures them again."""
    folder = RunFolder.open(path)
    points = answers_of(folder.config)[:3]
    return read_answers(folder, points) or measure_answers(folder, points)


def read_run(path: Path) -> Any:
    """All that readers see of a run: configuration, names, metrics and every client's tensors."""
    run = focoop.open_run(path)
    prompts = [run.prompts(client) for client in range(3)]
    folder = RunFolder.open(path)
    facts = [folder.manifest.get(key) for key in ("data_hashes", "backbone_fingerprint", "seeds")]
    return plain([run.config, run.class_names, run.client_names, run.metrics, prompts, facts])


def resume_run(path: Path, *, before: bool = False) -> Any:
    """All that a resumed run goes on from, perhaps from the round before the last."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "run"
        shutil.copytree(path, copy)
        folder = RunFolder.open(copy, writable=True, from_round_before=before)
        point = folder.resume_point()
        private = [folder.private.load(client) for client in range(3)]
        found = plain([folder.config, folder.names, folder.metrics(), point, private])
        folder.close()
    return found


def evaluate_run(path: Path) -> Any:
    """What `focoop evaluate` prints."""
    evaluation = focoop.open_run(path).evaluate()
    return plain([evaluation.summary, evaluation.clients])


def plain(value: Any) -> str:
    """Values as text, every bit of a tensor among them."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{plain(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return "[" + ",".join(plain(item) for item in value) + "]"
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{value.tobytes().hex()}"
    if hasattr(value, "shared"):
        return plain([value.round_index, value.shared, value.memory])
    return repr(value)


def run_kinds(run: Path, other: Path) -> Iterator[Kind]:
    """The files of a run folder."""
    reads = [reading(partial(read_run, run)), reading(partial(resume_run, run))]
    evaluated = [reading(partial(evaluate_run, run))]
    newest = [sorted(folder.iterdir())[-1] for folder in sorted((run / "clients").iterdir())]

    def others(file: Path) -> list[Path]:
        own = [one for one in newest if one != file] if file in newest else []
        return [other / file.relative_to(run), *own]

    yield Kind("clients/*", 150, newest, reads, others, evaluated)
    for name, cases in (
        ("state.safetensors", 120),
        ("metrics.jsonl", 100),
        ("rounds.jsonl", 100),
        ("manifest.json", 100),
        ("config.toml", 80),
        ("names.json", 80),
    ):
        yield Kind(name, cases, [run / name], reads, others, evaluated)
    back = [reading(partial(resume_run, run, before=True))]
    yield Kind("state.before.safetensors", 30, [run / "state.before.safetensors"], back, others)
    kept = [reading(partial(answers, run))]
    yield Kind(ANSWERS, 20, [run / ANSWERS], kept, others)


def model_kinds(root: Path, run: Path, other: Path) -> Iterator[Kind]:
    """Calibrations, exported models and the results of a grid."""

    def thresholds() -> Any:
        found = calibration_of(RunFolder.open(run))
        assert found is not None, "no calibration"
        return found.to_json()

    def others(file: Path) -> list[Path]:
        return [other / file.name]

    ways = (BIT, CUT, EXCHANGED)  # without one a model is not calibrated, and says so
    yield Kind(CALIBRATION, 120, [run / CALIBRATION], [reading(thresholds)], others, ways=ways)
    folders = [root / "model0", root / "model1"]
    for made, folder in zip((run, other), folders, strict=True):
        focoop.export(made, folder, client="all", onnx=True)

    def model() -> Any:
        found: Model = read_model(folders[0])
        sides = [found.side(name) for name in found.sides]
        tensors = [[side.text.id, side.text.ood, side.text.parts, side.counts] for side in sides]
        told = found.calibration and found.calibration.to_json()
        return plain([vars(found.facts), tensors, told])

    def whole() -> list[str]:
        found = check_sums(folders[0])
        if CARD not in found:
            warnings.warn(f"{CARD} was edited", stacklevel=2)
            found.append(CARD)
        return sorted(found)

    def in_place(file: Path) -> list[Path]:
        return [folders[1] / file.name]

    file = folders[0] / FILE
    yield Kind(
        "exported model", 150, [file], [reading(model)], ways=(BIT, CUT, REMOVED)
    )  # another whole model is one
    rest = [folders[0] / name for name in (FILE, ONNX, CARD, "config.json", "SHA256SUMS")]
    yield Kind("exported folder", 100, rest, [reading(whole)], in_place)
    focoop.compare(run / "config.toml", "zeroshot", seeds=1, out=root / "grid").save(root / "grid")
    file = root / "grid" / "results.json"
    cells = reading(partial(read_results, file))
    yield Kind("results.json", 40, [file], [cells], ways=(BIT, CUT))


def feature_kinds(root: Path) -> Iterator[Kind]:
    """A feature file, the cache of encoded images, what is remembered of images and fetches."""
    path, cache = root / "id.safetensors", root / "cache"
    alone = (BIT, CUT, REMOVED)
    yield Kind(
        "feature file",
        200,
        [path],
        [reading(lambda: load_split(path, "all").sha256())],
        ways=alone,
    )
    sets = [_pictures(root / name) for name in ("images", "more")]
    backbone = load_backbone("mini")

    def encoded() -> str:
        return encode(sets[0], backbone, cache_dir=cache).sha256()

    made = [reading(encoded)]
    (file,) = (cache / "features").iterdir()
    encode(sets[1], backbone, cache_dir=cache)
    second = [one for one in (cache / "features").iterdir() if one != file]
    yield Kind("feature cache", 80, [file], made, among([file, *second]))
    memory = [reading(lambda: [file_hashes(sets[0], cache), plain(list(_looked(sets[0], cache)))])]
    remembered_files = [one for name in ("hashes", "checked") for one in (cache / name).iterdir()]
    yield Kind("what is known of images", 60, remembered_files, memory, ways=alone)
    record = root / ".focoop" / "office_caltech10.json"
    record.parent.mkdir()
    known = {"dataset": "x", "files": [{"url": "u", "sha256": "ab" * 32, "bytes": 5}]}
    record.write_text(json.dumps(sealed(known), indent=1))
    fetched = reading(partial(read_record, record))
    yield Kind("record of fetches", 40, [record], [fetched], ways=(BIT, CUT))


def _looked(images: ImageSet, cache: Path) -> Iterator[str]:
    for file, finding in examine(images, cache).items():
        yield f"{file} {finding}"


def _pictures(folder: Path) -> ImageSet:
    for name in ("ant", "bee"):
        (folder / "test" / name).mkdir(parents=True)
        pixels = numpy_generator(0, f"{folder.name} {name}").integers(0, 256, (32, 32, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "test" / name / "0.png")
    return read_folder(folder, "test")


def word_kinds(root: Path) -> Iterator[Kind]:
    """Words that were chosen, and tensors that were computed from words."""
    folder, settings = root / "words", NegativesConfig(count=3)

    def chosen() -> Any:
        return [remembered(settings, "t", (t,), partial(_words, t), folder) for t in ("a", "b")]

    kept = [reading(chosen)]
    words = sorted(folder.iterdir())
    yield Kind("chosen words", 40, words, kept, among(words))
    paths = [root / "tensors" / f"{place}.safetensors" for place in range(2)]

    def tensors() -> Any:
        builds = [partial(torch.full, (4,), float(place)) for place in range(2)]
        return plain([cached_tensor(*one) for one in zip(paths, [(4,)] * 2, builds, strict=True)])

    yield Kind("tensors of words", 40, paths, [reading(tensors)], among(paths))


def _words(task: str) -> list[str]:
    return [f"word {task}"] * 3


def site_kinds(root: Path) -> Iterator[Kind]:
    """What sites and a coordinator on Flower keep; none without the extra `flower`."""
    try:
        from tools import campaign_sites
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("flwr"):
            raise
        return
    yield from campaign_sites.kinds(root)


@contextmanager
def packaged_in(folder: Path) -> Iterator[None]:
    """Take a copy of the packaged files for the installed ones."""
    kept = packaged.ASSETS, mini.ASSETS
    packaged.ASSETS = mini.ASSETS = folder
    try:
        yield
    finally:
        packaged.ASSETS, mini.ASSETS = kept


def package_kinds(root: Path) -> Iterator[Kind]:
    """Packaged weights and lists."""
    copy, ways = (root / "assets").resolve(), (BIT, CUT, REMOVED)
    names = [f"mini/{name}.safetensors" for name in ("text_tower", "image_head", "trunk")]
    lists = ["wordnet/words.json.gz", "class_names.json", "bpe_merges.npy", "demo/negatives.json"]
    for name in (*names, *lists, "mini/manifest.json"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ASSETS / name, copy / name)
    with packaged_in(copy):
        for kind, cases, files, read in (
            ("weights of mini", 50, names, lambda name: sorted(mini.read(copy, name))),
            ("packaged lists", 15, lists, lambda name: packaged.asset(name, copy)),
        ):
            for name in files:
                yield Kind(kind, cases, [copy / name], [reading(partial(read, name))], ways=ways)
