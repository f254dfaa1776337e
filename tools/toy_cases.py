"""Small runs that touch every part of focoop, described by plain files and settings alone.

`compare_commits.py` runs them with two versions of focoop. So nothing here imports focoop: feature
files, images, words and the configuration are written with numpy, Pillow and text.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import save_file

CLASSES = ("apple", "boat", "cat", "drum", "elm", "fork")
DIM = 256  # of the joint space of the backbone mini
PATCHES = 4  # per image
WORDS = """anvil arrow ash badge bark basin beacon beam bell bench bishop bolt bone bottle brick
bridge broom bucket button cable candle canyon cape carpet castle chain chalk chapel chisel clay
clock cloud coal comet copper cork crane crater crown crystal dagger dam desk dune echo engine
feather fence fern flag flute forge fossil fountain gate glacier glove goblet granite grape hammer
harbour harp helmet hinge honey"""


@dataclass(frozen=True)
class Case:
    """One run of the command line.

    Attributes:
        name: what the table of results calls it, unique.
        settings: `key=value` pairs, given by `--set` on top of `toy_setting`.
        longer: settings of a second command with `--resume` in the same folder; empty: none.
    """

    name: str
    settings: tuple[str, ...]
    longer: tuple[str, ...] = ()


def all_cases(methods: Sequence[str], folder: Path) -> list[Case]:
    """List every method's plain run, then the variants of some methods.

    Args:
        methods: names of the methods to run.
        folder: where `write_files` has put the toy files.

    Returns:
        The cases. A variant whose method is not among `methods` is left out.
    """
    plain = [Case(name, (f"method.name={name}",)) for name in methods]
    varied = [
        Case(f"{method}, {what}", (f"method.name={method}", *settings))
        for method, what, settings in _variants(folder)
        if method in methods
    ]
    longer = Case("promptfl, made longer", ("method.name=promptfl",), ("federation.rounds=3",))
    return [*plain, *varied, *([longer] if "promptfl" in methods else [])]


def _variants(folder: Path) -> list[tuple[str, str, tuple[str, ...]]]:
    """Method, what is special, and the settings that make it so."""
    sgd = ("federation.momentum=0.9", "federation.weight_decay=0.001", "federation.prox=0.1")
    some = ("partition.clients=6", "federation.participation=0.5", "partition.kind=dirichlet")
    noise = ("privacy.clip=1.0", "privacy.noise=0.5", "privacy.counts=noised")
    images = f"folder:{folder}/images"
    own = (f"data.id={images}", f'data.ood=["{images}"]', "data.corrupted=[]")
    packed = ("data.id=demo:cifar100", "data.corrupted=[]", 'data.ood=["demo:dtd_32px"]')
    few = ("partition.clients=2", "partition.shots=1", "federation.batch_size=64")
    many = ("partition.clients=6", "partition.kind=iid", "partition.shots=6")
    robust = [
        ("promptfl", f"robust {rule}", (f"robust.rule={rule}", *many))
        for rule in ("clip", "median", "trimmed", "krum")
    ]
    return [
        ("focoop", "prompt space", ("method.space=prompt", "method.transport_rule=open_loop")),
        ("focoop", "without BOS and GOC", ("method.bos=false", "method.goc=false")),
        ("focoop", "clients in one batch", ("federation.together=3",)),
        ("focoop_plus", "some clients a round", (*some, *sgd)),
        ("focoop_plus", "edges, fp16", ("federation.edges=2", "federation.payload=fp16")),
        ("promptfl", "clients in one batch", ("federation.together=3",)),
        (
            "promptfl",
            "int8 up, bf16 down",
            ("federation.payload=int8", "federation.payload_down=bf16"),
        ),
        ("promptfl", "differential privacy", noise),
        ("promptfl", "secure sums", ("privacy.secure_sum=true", "privacy.counts=rounded")),
        *robust,
        ("promptfl", "overlap", ("partition.kind=overlap", "partition.classes_per_client=3")),
        ("promptfl", "validation", ("data.validation=2", "data.corrupted=[]")),
        ("promptfl", "packaged features", (*packed, *few)),
        ("promptfl", "images of a folder", own),
    ]


def toy_setting(folder: Path) -> dict[str, str]:
    """Return the settings of every case by dotted key, as TOML values.

    Args:
        folder: where `write_files` has put the toy files.
    """
    return {
        "data.id": f'"file:{folder}/id.safetensors"',
        "data.corrupted": f'["file:{folder}/id.safetensors#brightness@2"]',
        "data.ood": f'["file:{folder}/far.safetensors"]',
        "data.with_patches": "true",
        "partition.clients": "3",
        "partition.shots": "10",  # enough for every statistic that FOCoOp+ sends
        "federation.rounds": "2",
        "federation.epochs": "1",
        "federation.batch_size": "8",
        "negatives.words": f'"{folder}/words.txt"',
        "negatives.count": "12",
    }


def write_files(folder: Path) -> None:
    """Write features with patches, images and words into a folder.

    Args:
        folder: absolute path of the folder; it is made if it is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    centres = np.random.default_rng(0).normal(size=(len(CLASSES), DIM))
    rng = np.random.default_rng(1)
    _write_features(folder / "id.safetensors", {"train": 14, "test": 5}, centres, rng)
    _write_features(folder / "id.brightness.2.safetensors", {"test": 5}, centres, rng, noise=3.0)
    _write_features(folder / "far.safetensors", {"test": 4}, -centres, rng)
    for split, count in (("train", 10), ("test", 3)):
        for name in CLASSES[:3]:
            (folder / "images" / split / name).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / "images" / split / name / f"{i}.png")
    (folder / "words.txt").write_text("\n".join(WORDS.split()) + "\n", encoding="utf-8")


def _write_features(
    path: Path,
    splits: Mapping[str, int],
    centres: NDArray[np.float64],
    rng: np.random.Generator,
    noise: float = 2.0,
) -> None:
    """A feature file: `splits` names how many images of each class a split has."""
    per_class = np.repeat(list(splits.values()), len(CLASSES))
    labels = np.tile(np.arange(len(CLASSES)), len(splits)).repeat(per_class)
    around = centres[labels]  # (N, DIM)
    pooled = around + noise * rng.normal(size=around.shape)
    patches = around[:, None] + noise * rng.normal(size=(len(labels), PATCHES, DIM))
    patches /= np.linalg.norm(patches, axis=-1, keepdims=True)
    scale = np.abs(patches).max(axis=-1) / 127
    save_file(
        {
            "pooled": (pooled / np.linalg.norm(pooled, axis=-1, keepdims=True)).astype(np.float16),
            "labels": labels.astype(np.int32),
            "split": np.arange(len(splits))
            .repeat([count * len(CLASSES) for count in splits.values()])
            .astype(np.int8),
            "patches_q": np.round(patches / scale[..., None]).astype(np.int8),
            "patches_scale": scale.astype(np.float16),
            "patches_index": np.arange(len(labels), dtype=np.int32),
        },
        path,
        {"classes": json.dumps(CLASSES), "splits": json.dumps(list(splits))},
    )
