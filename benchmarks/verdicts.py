"""What a calibrated client says of its own images, other clients' and foreign ones, dial by dial.

For every client of a run: test images of its own classes, of classes that other clients hold, and
of each OOD set, counted by verdict and averaged over clients. Images that were calibrated on are
left out: where a run set no calibration images aside, as in the demo, half of the test images
calibrate (`focoop calibrate --from-test`) and the other half is counted. `right` is the share of
images with the right class. `balanced`, the mean of own images told as own and others' told as
other, is of the calibration images: a dial is chosen there.

    python benchmarks/verdicts.py            # trains the demo's FOCoOp+ (some seconds)
    python benchmarks/verdicts.py RUN        # a run that is there, calibrated or not
"""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import focoop
from focoop.clip import LabelledFeatures
from focoop.config import shipped
from focoop.experiments import open_state
from focoop.federation import Owned
from focoop.predict import Model, halves
from focoop.runs import RunFolder

DIALS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
VERDICTS = ("own", "other", "unknown")


@dataclass(frozen=True)
class Asked:
    """A model and the images it is asked about."""

    model: Model
    test: Owned
    calibration: Owned
    foreign: dict[str, LabelledFeatures]

    def images(self, client: int, owned: Owned) -> dict[str, LabelledFeatures]:
        """The client's images, others' of classes it does not hold, and foreign ones."""
        mine = set(self.model.own_classes(client))
        rows = np.concatenate([owned.index[k] for k in range(len(owned.index)) if k != client])
        labels = owned.images.labels.numpy()[rows]
        held = np.array([name in mine for name in self.model.classes])
        return {
            "own": owned.images.rows(torch.from_numpy(owned.index[client])),
            "others'": owned.images.rows(torch.from_numpy(rows[~held[labels]])),
            **self.foreign,
        }

    def told(self, owned: Owned, dial: float) -> dict[str, np.ndarray]:
        """Shares of verdicts and of right classes for each kind of images, mean over clients."""
        found: dict[str, list[np.ndarray]] = {}
        for client in [key for key in self.model.keys if key is not None]:
            for kind, images in self.images(client, owned).items():
                answers = self.model.decide(images, client=client, open_share=dial, top=1)
                verdicts = np.array([answer.verdict for answer in answers])
                labels = images.labels.tolist() if kind in ("own", "others'") else []
                right = [
                    answer.label == self.model.classes[label]
                    for answer, label in zip(answers, labels, strict=False)
                ]
                shares = [np.mean(verdicts == one) for one in VERDICTS]
                found.setdefault(kind, []).append(
                    np.array([*shares, np.mean(right) if right else np.nan])
                )
        return {kind: np.mean(rows, axis=0) for kind, rows in found.items()}


@contextmanager
def trained(path: Path | None) -> Iterator[Path]:
    """The run that was named, or the demo's, trained here."""
    if path is not None:
        yield path
        return
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        settings = {"federation.evaluate_every": 0}
        focoop.run(shipped("demo") / "focoop_plus.toml", settings, out=run)
        yield run


def asked(path: Path) -> Asked:
    """Open a run and calibrate it as `focoop demo --serve` does, where it is not."""
    folder = RunFolder.open(path)
    sets = open_state(folder).scenario.sets
    aside, test = sets.calibration, sets.test
    if aside is None:
        aside, test = halves(sets.test, folder.config.seed)
    if focoop.load_model(path).calibration is None:
        focoop.calibrate(path, from_test=sets.calibration is None)
    return Asked(focoop.load_model(path), test, aside, dict(sets.ood))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, nargs="?", help="a run folder; default: the demo's")
    given = parser.parse_args()
    with trained(given.run) as path:
        found = asked(path)
        print(f"the method's own dial: {found.model.open_share:g}")
        print("| dial | images | own | other | unknown | right |")
        print("|---:|---|---:|---:|---:|---:|")
        for dial in DIALS:
            for kind, shares in found.told(found.test, dial).items():
                cells = ["" if np.isnan(x) else f"{100 * x:.1f}" for x in shares]
                print(f"| {dial:g} | {kind} | " + " | ".join(cells) + " |", flush=True)
        for dial in DIALS:
            told = found.told(found.calibration, dial)
            both = (told["own"][0] + told["others'"][1]) / 2
            print(f"balanced on calibration images, dial {dial:g}: {100 * both:.1f}")


if __name__ == "__main__":
    main()
