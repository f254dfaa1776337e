"""Compare a run's answers with those of its exported model and of its ONNX file, image by image.

    python tools/check_export.py runs/mine --client 3 --count 10000 IMAGES...

IMAGES are files or folders. Every image goes through the run's image tower and through that of the
ONNX file. Classes and verdicts must be the same, and scores agree to 5e-5 (relative beyond 1);
otherwise the tool ends with exit code 1.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import focoop
from focoop.data import read_rgb
from focoop.predict import ONNX, VERDICTS, Model, Predictions

CLOSE = 5e-5  # float32 of two libraries: the image tower rounds features by 1e-6
AT_ONCE = 25  # images


@dataclass
class Agreement:
    """How far two files of a model agree with the run.

    Attributes:
        images: Images that were asked about.
        others: Answers of another class or verdict, by file.
        score: Largest difference of scores, by file.
        verdicts: Verdicts that were given.
    """

    images: int = 0
    others: dict[str, int] = field(default_factory=dict)
    score: dict[str, float] = field(default_factory=dict)
    verdicts: set[str] = field(default_factory=set)

    def add(self, file: str, wanted: Predictions, found: Sequence[tuple[str, str, float]]) -> None:
        """Count answers of one file.

        Args:
            file: Which one.
            wanted: The run's answers.
            found: Class, verdict and score of each image.
        """
        told = [(answer.top[0].label, answer.verdict) for answer in wanted]
        self.verdicts |= {verdict for _, verdict in told}
        wrong = sum(one != other[:2] for one, other in zip(told, found, strict=True))
        self.others[file] = self.others.get(file, 0) + wrong
        apart = [
            abs(answer.score - score) / max(1.0, abs(answer.score))
            for answer, (_, _, score) in zip(wanted, found, strict=True)
        ]
        self.score[file] = max(self.score.get(file, 0.0), *apart)

    @property
    def whole(self) -> bool:
        """Return whether all answers agree."""
        return not any(self.others.values()) and max(self.score.values()) < CLOSE

    def __str__(self) -> str:
        parts = [
            f"{file}: {self.others[file]} other answers, scores differ by {self.score[file]:.2g}"
            for file in self.others
        ]
        return f"{self.images} images; {'; '.join(parts)}"


def compared(run: Path, folder: Path, files: Sequence[Path], client: Any) -> Iterator[Agreement]:
    """Export a run and compare it with the run.

    Args:
        run: The run folder.
        folder: Where to export it to.
        files: Images.
        client: The client that is asked.

    Yields:
        How far the files agree, after every few images.
    """
    import onnxruntime

    out = focoop.export(run, folder, client=client, onnx=True)
    own, saved = focoop.load_model(run, client=client), focoop.load_model(out)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(out / ONNX), options)
    names = [output.name for output in session.get_outputs()]
    total = Agreement()
    for first in range(0, len(files), AT_ONCE):
        some = files[first : first + AT_ONCE]
        encoded = own.encode(some)
        wanted = own.decide(encoded)
        total.add("export", wanted, _told(saved.decide(encoded)))
        pixels = torch.stack([own.backbone.prepare(read_rgb(file)) for file in some])
        answers = dict(zip(names, session.run(None, {"pixels": pixels.numpy()}), strict=True))
        total.add("ONNX file", wanted, _graph(own, answers))
        total.images += len(some)
        yield total


def _told(answers: Predictions) -> list[tuple[str, str, float]]:
    return [(answer.top[0].label, answer.verdict, answer.score) for answer in answers]


def _graph(model: Model, answers: dict[str, Any]) -> list[tuple[str, str, float]]:
    columns = [np.asarray(answers[name]).tolist() for name in ("label", "verdict", "score")]
    return [
        (model.classes[label], VERDICTS[verdict], score)
        for label, verdict, score in zip(*columns, strict=True)
    ]


def main() -> None:
    """Compare, and print how far it is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("images", type=Path, nargs="+")
    parser.add_argument("--client", default="global")
    parser.add_argument("--count", type=int, default=10_000)
    given = parser.parse_args()
    files = [
        file
        for place in given.images
        for file in ([place] if place.is_file() else sorted(place.rglob("*.*g")))
    ][: given.count]
    with tempfile.TemporaryDirectory() as folder:
        for found in compared(given.run, Path(folder) / "model", files, given.client):
            if found.images % 500 == 0 or found.images == len(files):
                print(found, flush=True)
    sys.exit(0 if found.whole else 1)


if __name__ == "__main__":
    main()
