"""Compare runs' answers with those of their exported models and ONNX files, image by image.

    python tools/check_export.py IMAGES... --run runs/mine --run runs/other --client 3

IMAGES are files or folders. Every image goes through the image tower in torch and in onnxruntime,
once for all runs, which must have one backbone. Each run is then asked four times:

    export         the exported model, on the features of torch
    ONNX decision  the ONNX file from features on, on the features of torch
    ONNX           the ONNX file from features on, on the features of onnxruntime
    ONNX file      the file itself, from pixels on, for the first `--whole` images

Classes and verdicts must be the run's. Scores of the first two must agree to 1e-7 (relative beyond
1), those of the others, whose image tower is float32 in two libraries, to 1e-5; how many do not is
told. Otherwise the exit code is 1. Then it is told how far the features of both towers are apart:
the packaged backbone adds in onnxruntime's order, and they should be equal. `--exact N` asks the
first run about the N images whose scores differ most once more, with the packaged tower in float64:
it says how far torch and onnxruntime are from that.
"""

import argparse
import copy
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import focoop
from focoop.clip import Backbone, ImageFeatures
from focoop.data import image_files, read_rgb
from focoop.features import patch_kind_of
from focoop.predict import ONNX, VERDICTS, Model, Predictions

ALIKE = 1e-7  # of the same features: float64 in two libraries, but a graph's factors are float32
CLOSE = 1e-5  # of the same pixels: float32 image towers of two libraries
DECISIONS = ("export", "ONNX decision")
AT_ONCE = 8  # images

Answer = tuple[str, str, float]  # class, verdict, score


@dataclass
class Agreement:
    """How far the files of a model agree with the run.

    Attributes:
        images: Answers that were compared, by file.
        others: Answers of another class or verdict, by file.
        score: Largest difference of scores, by file.
        beyond: Scores that differ by more than `CLOSE`, by file.
        verdicts: Verdicts that were given.
    """

    images: dict[str, int] = field(default_factory=dict)
    others: dict[str, int] = field(default_factory=dict)
    score: dict[str, float] = field(default_factory=dict)
    beyond: dict[str, int] = field(default_factory=dict)
    verdicts: set[str] = field(default_factory=set)

    def add(self, file: str, wanted: Sequence[Answer], found: Sequence[Answer]) -> list[float]:
        """Count answers of one file, and return how far their scores are apart.

        Args:
            file: Which one.
            wanted: The run's answers.
            found: Its answers.

        Returns:
            A difference per image.
        """
        pairs = list(zip(wanted, found, strict=True))
        apart = [abs(a[2] - b[2]) / max(1.0, abs(a[2])) for a, b in pairs]
        self.verdicts |= {answer[1] for answer in wanted}
        self.images[file] = self.images.get(file, 0) + len(pairs)
        self.others[file] = self.others.get(file, 0) + sum(a[:2] != b[:2] for a, b in pairs)
        self.score[file] = max(self.score.get(file, 0.0), *apart)
        self.beyond[file] = self.beyond.get(file, 0) + sum(one > CLOSE for one in apart)
        return apart

    @property
    def whole(self) -> bool:
        """Return whether all answers agree."""
        limits = {file: ALIKE if file in DECISIONS else CLOSE for file in self.score}
        close = all(score <= limits[file] for file, score in self.score.items())
        return close and not any(self.others.values())

    def __str__(self) -> str:
        return "; ".join(
            f"{file}: {self.images[file]} images, {self.others[file]} other answers, scores differ "
            f"by at most {self.score[file]:.2g}, {self.beyond[file]} by more than {CLOSE:g}"
            for file in self.images
        )


class Tower(torch.nn.Module):
    """The image tower of a backbone alone: pixels in, features out."""

    def __init__(self, backbone: Backbone, kind: str | None) -> None:
        super().__init__()
        self.backbone, self.kind = backbone, kind
        for name, part in vars(backbone).items():
            if isinstance(part, torch.nn.Module) and part is not backbone.text:
                self.add_module(f"tower_{name}", part)

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Encode pixels (N, 3, H, W) as pooled (N, D) and, where asked for, patches (N, P, D)."""
        found = self.backbone.encode_images(pixels, patches=self.kind)
        return (found.pooled,) if found.patches is None else (found.pooled, found.patches)


class OnnxTower:
    """An image tower in onnxruntime."""

    def __init__(self, backbone: Backbone, kind: str | None, folder: Path) -> None:
        tower, side = Tower(backbone, kind).eval(), backbone.image_size
        pixels = torch.zeros(7, 3, side, side, dtype=backbone.pixel_type)
        with torch.no_grad():
            tower(pixels)  # makes what is made once
            torch.onnx.export(
                tower, (pixels,), str(folder / "tower.onnx"), dynamo=True, verbose=False,
                input_names=["pixels"], dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
            )  # fmt: skip
        self.session = session_of(folder / "tower.onnx")

    def __call__(self, pixels: torch.Tensor) -> ImageFeatures:
        """Encode pixels."""
        found = [
            torch.from_numpy(part) for part in self.session.run(None, {"pixels": pixels.numpy()})
        ]
        return ImageFeatures(found[0], found[1] if len(found) > 1 else None)


class Asked:
    """A run, its export and its ONNX files, with how far they agree."""

    def __init__(self, run: Path, client: Any, folder: Path, whole: bool) -> None:
        self.own = focoop.load_model(run, client=client)
        out = focoop.export(run, folder / "model", client=client, onnx=whole)
        self.saved, self.found = focoop.load_model(out), Agreement()
        self.decision = session_of(self.saved.to_onnx(folder / "decision.onnx", pixels=False))
        self.file = session_of(out / ONNX) if whole else None
        self.apart: list[float] = []  # of each image, between run and ONNX
        self.features_apart = 0.0  # largest difference of a number, between both towers

    def compare(self, here: ImageFeatures, there: ImageFeatures, pixels: Any = None) -> None:
        """Ask everybody.

        Args:
            here: Features of torch.
            there: Features of onnxruntime.
            pixels: The pixels, where the file from pixels on is to be asked too.
        """
        apart = float((here.pooled - there.pooled).abs().max())
        self.features_apart = max(self.features_apart, apart)
        wanted = told(self.own.decide(here))
        self.found.add("export", wanted, told(self.saved.decide(here)))
        self.found.add("ONNX decision", wanted, self._decided(here))
        self.apart += self.found.add("ONNX", wanted, self._decided(there))
        if self.file is not None and pixels is not None:
            self.found.add("ONNX file", wanted, graph(self.file, self.own, pixels=pixels.numpy()))

    def _decided(self, features: ImageFeatures) -> list[Answer]:
        given = {"features": features.pooled.numpy()}
        if self.own.method.patch_kind:
            assert features.patches is not None
            given["patches"] = features.patches.numpy()
        return graph(self.decision, self.own, **given)


def session_of(path: Path) -> Any:
    """An onnxruntime session of a file, as it is by default."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(str(path), options)


def told(answers: Predictions) -> list[Answer]:
    """Class, verdict and score of answers."""
    return [(answer.top[0].label, answer.verdict, answer.score) for answer in answers]


def graph(session: Any, model: Model, **given: Any) -> list[Answer]:
    """Class, verdict and score that a graph gives."""
    names = [output.name for output in session.get_outputs()]
    answers = dict(zip(names, session.run(None, given), strict=True))
    columns = [np.asarray(answers[name]).tolist() for name in ("label", "verdict", "score")]
    return [
        (model.classes[label], VERDICTS[verdict], score)
        for label, verdict, score in zip(*columns, strict=True)
    ]


def compared(
    everybody: Sequence[Asked],
    folder: Path,
    files: Sequence[Path],
    whole: int = 0,
    keep: Path | None = None,
) -> Iterator[int]:
    """Compare runs with what was exported of them.

    Args:
        everybody: Runs of one backbone.
        folder: Where files may be written.
        files: Images.
        whole: For how many images the ONNX files are asked from pixels on.
        keep: Features of both towers are read from this file, or written to it.

    Yields:
        How many images have been compared, after every few.
    """
    first = everybody[0].own
    assert {asked.own.fingerprint for asked in everybody} == {first.fingerprint}
    reads = {asked.own.method.patch_kind for asked in everybody} - {None, ""}
    kind = patch_kind_of(first.backbone, reads.pop()) if reads else None
    kept = load_file(keep) if keep is not None and keep.is_file() else {}
    tower = None if kept else OnnxTower(first.backbone, kind, folder)
    made: list[dict[str, torch.Tensor]] = []
    for start in range(0, len(files), AT_ONCE):
        rows, pixels = slice(start, start + AT_ONCE), None
        if tower is not None or start < whole:
            pixels = torch.stack([first.backbone.prepare(read_rgb(file)) for file in files[rows]])
        if tower is None:
            here, there = (of_parts(kept, side, rows) for side in ("torch", "onnx"))
        else:
            with torch.no_grad():
                here = first.backbone.encode_images(pixels, patches=kind)
            assert pixels is not None
            there = tower(pixels)
            if keep is not None:
                made.append(parts_of(here, "torch") | parts_of(there, "onnx"))
        for asked in everybody:
            asked.compare(here, there, pixels if start < whole else None)
        yield start + len(here.pooled)
    if made and keep is not None:
        save_file({name: torch.cat([part[name] for part in made]) for name in made[0]}, keep)


def parts_of(features: ImageFeatures, side: str) -> dict[str, torch.Tensor]:
    """Features as tensors of a file."""
    found = {f"{side}/pooled": features.pooled}
    return found if features.patches is None else {**found, f"{side}/patches": features.patches}


def of_parts(kept: dict[str, torch.Tensor], side: str, rows: slice) -> ImageFeatures:
    """Some rows of the features in a file."""
    patches = kept.get(f"{side}/patches")
    return ImageFeatures(
        kept[f"{side}/pooled"][rows].contiguous(),
        None if patches is None else patches[rows].contiguous(),
    )


def exactly(asked: Asked, folder: Path, files: Sequence[Path], count: int) -> str:
    """Say how far both towers are from the packaged one in float64, where they differ most."""
    own, onnx = asked.own, OnnxTower(asked.own.backbone, None, folder)
    trunk = copy.deepcopy(own.backbone.trunk).double()  # type: ignore[attr-defined]
    mean, projection = own.backbone.mean.double(), own.backbone.projection.double()  # type: ignore[attr-defined]
    worst = np.argsort(asked.apart)[::-1][:count]
    rows = []
    for place in worst:
        pixels = own.backbone.prepare(read_rgb(files[place]))[None]
        with torch.no_grad():
            pooled = trunk(pixels.double()).mean((2, 3))
            true = torch.nn.functional.normalize((pooled - mean) @ projection, dim=-1)
            both = (own.backbone.encode_images(pixels).pooled, onnx(pixels).pooled)
        right = own.decide(true)[0].score
        scores = [abs(own.decide(one)[0].score - right) / max(1.0, abs(right)) for one in both]
        rows.append([*(float((one - true).norm()) for one in both), *scores])
    features, scores = np.array(rows).max(axis=0).reshape(2, 2)
    return (
        f"the {len(worst)} images that differ most, against a tower in float64: features of torch "
        f"are off by at most {features[0]:.2g}, of onnxruntime by {features[1]:.2g}; scores by "
        f"{scores[0]:.2g} and {scores[1]:.2g}"
    )


def main() -> None:
    """Compare, and print how far it is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("images", type=Path, nargs="+")
    parser.add_argument("--run", type=Path, action="append", required=True)
    parser.add_argument("--client", default="global")
    parser.add_argument("--count", type=int, default=10_000, help="images at most")
    parser.add_argument("--whole", type=int, default=0, help="images for the files from pixels on")
    parser.add_argument("--exact", type=int, default=0, help="images for the tower in float64")
    parser.add_argument("--keep", type=Path, help="file of both towers' features, made or read")
    given = parser.parse_args()
    places = [[place] if place.is_file() else image_files(place) for place in given.images]
    files = [file for place in places for file in place][: given.count]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        everybody = [
            Asked(run, given.client, folder / str(place), given.whole > 0)
            for place, run in enumerate(given.run)
        ]
        for done in compared(everybody, folder, files, given.whole, given.keep):
            if done % 1000 == 0 or done == len(files):
                for asked in everybody:
                    print(f"{asked.own.facts.method}: {asked.found}", flush=True)
        print(f"features of both towers differ by at most {everybody[0].features_apart:.2g}")
        if given.exact:
            print(exactly(everybody[0], folder, files, given.exact))
    sys.exit(0 if all(asked.found.whole for asked in everybody) else 1)


if __name__ == "__main__":
    main()
