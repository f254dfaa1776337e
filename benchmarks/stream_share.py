"""FOCoOp+ whose share of other classes follows the images that a site sees, without their labels.

A client's prior pi_c = (1 - lambda) n_c / n + lambda / C has one number that no training image
tells: how many images are of other clients' classes. Unlabelled images do: the likelihood of a
stream, sum_x log((1 - lambda) A(x) + lambda B(x)), with A and B the evidence of own classes and of
all, has one maximum, found by expectation-maximisation (Saerens, Latinne & Decaestecker 2002). Held
against the fixed share on validation images cut from the training images: a stream of own classes
alone (`own`), one of everybody's images (`all`), and one of as many of each (`half`), in streams
of `--stream` images. `temperature` has the fixed share and log-odds times a number of the client's
own, fitted to the labels of half of its own validation images and measured on the other half.

    FOCOOP_FEATURES=DIR python benchmarks/stream_share.py cifar100,dtd,oxford_pets --seeds 3
"""

import argparse
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import focoop
from focoop.experiments import seeds_of
from focoop.predict.share import likely_share
from focoop.seeds import numpy_generator

Floats = NDArray[np.float64]
FIXED = 0.3  # FOCoOp+'s own share
SETTINGS = Path(__file__).resolve().parents[1] / "configs" / "settings"


def log_prior(own: Floats, share: float) -> Floats:
    """(C,) log of a client's prior, from its own classes (C,) as shares."""
    return np.log(np.maximum((1.0 - share) * own + share / len(own), 1e-300))


def log_sum(values: Floats) -> Floats:
    """(N,) log of the sum of exponentials over classes."""
    top = values.max(axis=1)
    found: Floats = top + np.log(np.exp(values - top[:, None]).sum(axis=1))
    return found


def estimated(odds: Floats, own: Floats) -> float:
    """The likeliest share of other classes' images among unlabelled ones, from log-odds (N, C)."""
    sums = [log_sum(odds + log_prior(own, share)) for share in (0.0, 1.0)]
    return likely_share(*map(torch.as_tensor, sums))


def fitted(odds: Floats, labels: NDArray[np.int64], own: Floats) -> float:
    """The number that log-odds are multiplied by for the likeliest labels of a client."""

    def loss(scale: float) -> float:
        shifted = scale * odds + log_prior(own, FIXED)
        return float(np.mean(log_sum(shifted) - shifted[np.arange(len(labels)), labels]))

    return float(min(np.geomspace(0.25, 4.0, 33), key=loss))


def measured(run: focoop.Run, scale: float, size: int, seed: int) -> Mapping[str, list[float]]:
    """Accuracies of every client by stream and way, in percent."""
    labels = np.asarray(run.images("test").labels)
    found: dict[str, list[float]] = defaultdict(list)
    for client in range(len(run.client_names)):
        odds = scale * np.asarray(run.logits("test", client)["id"], dtype=np.float64)
        rows = np.asarray(run.own_rows(client))
        own = np.zeros(odds.shape[1])
        own[np.unique(labels[rows])] = 1.0 / len(np.unique(labels[rows]))
        others = np.setdiff1d(np.arange(len(labels)), rows)
        draw = numpy_generator(seed, "stream", client)
        some = draw.permutation(rows)
        half = np.concatenate([draw.choice(rows, size // 2), draw.choice(others, size // 2)])
        streams = {
            "own": draw.choice(rows, size),
            "all": draw.choice(len(labels), size),
            "half": half,
        }
        number = fitted(odds[some[::2]], labels[some[::2]], own)
        for name, stream in streams.items():
            share = estimated(odds[stream], own)
            ways = {
                "fixed": (1.0, FIXED),
                "estimated": (1.0, share),
                "temperature": (number, FIXED),
            }
            left = np.setdiff1d(stream, some[::2]) if name == "own" else stream
            for way, (times, used) in ways.items():
                answers = (times * odds[left] + log_prior(own, used)).argmax(axis=1)
                found[f"{name} {way}"].append(100 * float(np.mean(answers == labels[left])))
            found[f"{name} share"].append(share)
        found["temperature"].append(number)
    return found


def main() -> None:
    """Print a line for each setting, stream and seed, and means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", help="names of configs/settings, with commas")
    parser.add_argument("--seeds", type=seeds_of, default="3", help="how many, or which: 0,4")
    parser.add_argument("--stream", type=int, default=200, help="images of a stream")
    parser.add_argument("--validation", type=int, default=4, help="validation images per class")
    options = parser.parse_args()
    print("setting stream: fixed estimated temperature; estimated share")
    for setting in options.settings.split(","):
        sums: dict[str, list[float]] = defaultdict(list)
        for seed in options.seeds:
            with tempfile.TemporaryDirectory() as folder:
                run = focoop.run(
                    str(SETTINGS / f"{setting}.toml"),
                    [
                        "method.name=focoop_plus",
                        "method.open_share=1",
                        "federation.rounds=1",
                        "data.ood=[]",
                        "data.validation_ood=[]",
                        "data.corrupted=[]",
                        f"data.validation={options.validation}",
                        f"seed={seed}",
                        f"partition.seed={21 + seed}",
                    ],
                    out=Path(folder) / "run",
                )
                found = measured(run, 20.0, options.stream, seed)
            for key, values in found.items():
                sums[key].append(float(np.mean(values)))
        for name in ("own", "all", "half"):
            cells = [
                np.mean(sums[f"{name} {way}"]) for way in ("fixed", "estimated", "temperature")
            ]
            shown = " ".join(f"{cell:.1f}" for cell in cells)
            print(f"{setting} {name}: {shown}; share {np.mean(sums[f'{name} share']):.2f}")
        print(f"{setting} temperature {np.mean(sums['temperature']):.2f}", flush=True)


if __name__ == "__main__":
    main()
