"""Two things that were tried for FOCoOp+ and left out: random views, and a head on drawn features.

`views`: class means and covariance of every training image and four random views of it, in the
place of the image alone. `head`: the server draws 64 features of each class from its Gaussian model
and trains a linear classifier on them, which answers in the place of the class means. Prints the
accuracy on validation images, cut from the training images, with all classes to choose from (`all`)
and with those of one of ten clients (`own`), percent, means over seeds.

    python benchmarks/breadth_tries.py SHARED

SHARED is a folder with `features` and `images`; half of each class's training images validate.
"""

import argparse
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from focoop.clip import Backbone, load_backbone
from focoop.data import read_folder
from focoop.experiments import seeds_of
from focoop.features.encoding import encode
from focoop.features.storage import load_split
from focoop.methods._metric import whitening
from focoop.methods._posterior import posterior, spread_within
from focoop.methods._sums import Totals
from focoop.methods.focoop_plus import across
from focoop.seeds import torch_generator

SETS = ("cifar100", "dtd", "oxford_pets", "caltech101")
CLIENTS, VIEWS, DRAWN, STEPS, RATE, SCALE = 10, 4, 64, 200, 0.02, 20.0


class Model:
    """FOCoOp+'s answers from images of all clients.

    Attributes:
        rows: (C, D) class means as the metric sees them, of unit length.
    """

    def __init__(self, images: Tensor, labels: Tensor, texts: Tensor, weight: int = 1) -> None:
        """Solve for the model; each image counts as 1 / `weight` images."""
        count = len(texts)
        counts = torch.bincount(labels, minlength=count).double()
        sums = torch.zeros(count, images.shape[1], dtype=torch.float64)
        means = sums.index_add_(0, labels, images) / counts.clamp(min=1.0)[:, None]
        moment = images.T @ images / len(images)
        totals = Totals(means, counts / weight, moment, len(images) / weight)
        spread, shrinkage = spread_within(totals)
        self.metric = whitening(spread, shrinkage) * len(spread) ** 0.5
        self.centre = totals.centre
        self.along = F.normalize(self.centre @ self.metric, dim=0)
        self.means = posterior(totals, texts, self.metric).means
        self.rows = self.seen(self.means)

    def seen(self, features: Tensor) -> Tensor:
        """(N, D) features as the answer compares them."""
        return across((features - self.centre) @ self.metric, self.along)

    def draw_images(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Features and labels drawn from the Gaussians of the classes, of unit length."""
        shape = (len(self.means), DRAWN, self.means.shape[1])
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        drawn = self.means[:, None] + torch.linalg.solve(self.metric, noise.flatten(0, 1).T).T.view(
            shape
        )
        return F.normalize(drawn.flatten(0, 1), dim=-1), torch.arange(shape[0]).repeat_interleave(
            DRAWN
        )

    def train_head(self, generator: torch.Generator) -> Tensor:
        """(C, D) rows of a classifier that starts at the class means."""
        images, labels = self.draw_images(generator)
        seen, rows = self.seen(images), self.rows.clone().requires_grad_()
        optimiser = torch.optim.Adam([rows], lr=RATE)
        for _ in range(STEPS):
            loss = F.cross_entropy(SCALE * seen @ F.normalize(rows, dim=-1).T, labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return F.normalize(rows.detach(), dim=-1)


def accuracies(seen: Tensor, labels: Tensor, rows: Tensor, holder: Tensor) -> dict[str, float]:
    """Percent of all classes, and among the classes of the client that holds the right one."""
    cosines = seen @ rows.T
    others = holder[labels][:, None] != holder
    own = cosines.masked_fill(others, -torch.inf).argmax(dim=1)
    right = {"all": cosines.argmax(dim=1) == labels, "own": own == labels}
    return {name: 100 * float(hits.double().mean()) for name, hits in right.items()}


def halves(labels: Tensor, shots: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows to learn from, `shots` of each class, and rows to validate on: the other half."""
    learn, validate = [], []
    for label in labels.unique():
        rows = torch.nonzero(labels == label).flatten()
        rows = rows[torch.randperm(len(rows), generator=generator)]
        learn.append(rows[: min(shots, len(rows) // 2)])
        validate.append(rows[len(rows) // 2 :])
    return torch.cat(learn), torch.cat(validate)


def names_of(classes: tuple[str, ...], backbone: Backbone) -> Tensor:
    """(C, D) text features of the classes' names."""
    prompts = [f"a photo of a {name.replace('_', ' ')}." for name in classes]
    return backbone.encode_texts(prompts).double()


def try_head(shared: Path, name: str, shots: int, seed: int, backbone: Backbone) -> dict[str, dict]:
    """Class means against a head."""
    found = load_split(shared / "features" / f"{name}.safetensors", "train")
    images, labels = F.normalize(found.pooled.double(), dim=-1), found.labels
    generator = torch_generator(seed, "tries", 0, 0)
    learn, validate = halves(labels, shots, generator)
    texts = names_of(found.classes, backbone)
    holder = torch.randperm(len(texts), generator=generator) % CLIENTS
    model = Model(images[learn], labels[learn], texts)
    seen = model.seen(images[validate])
    ways = {"class means": model.rows, "head": model.train_head(generator)}
    return {way: accuracies(seen, labels[validate], rows, holder) for way, rows in ways.items()}


def try_views(shared: Path, name: str, seed: int, backbone: Backbone) -> dict[str, dict]:
    """Images alone against images with their views."""
    dropped = ("BACKGROUND_Google",) if name == "caltech101" else ()
    read = read_folder(shared / "images" / name, "train", dropped)
    found = encode(read, backbone, views=VIEWS)
    every = [F.normalize(one.pooled.double(), dim=-1) for one in (found, *found.views)]
    generator = torch_generator(seed, "tries", 0, 1)
    learn, validate = halves(found.labels, len(read), generator)
    texts = names_of(found.classes, backbone)
    holder = torch.randperm(len(texts), generator=generator) % CLIENTS
    labels = found.labels[learn]
    rows = {}
    for way, parts in (("images", every[:1]), ("images and views", every)):
        many = torch.cat([one[learn] for one in parts])
        model = Model(many, labels.repeat(len(parts)), texts, len(parts))
        seen = model.seen(every[0][validate])
        rows[way] = accuracies(seen, found.labels[validate], model.rows, holder)
    return rows


def main() -> None:
    """Print all rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shared", type=Path)
    parser.add_argument("--seeds", default="3", help="how many, or which: 0,4")
    given = parser.parse_args()
    backbone = load_backbone("mini")
    rows: dict[str, list[float]] = defaultdict(list)
    for name in SETS:
        for seed in seeds_of(given.seeds):
            found = {f"{name}, views": try_views(given.shared, name, seed, backbone)}
            for shots in (1, 2, 8):
                about = f"{name}, head, {shots} shots"
                found[about] = try_head(given.shared, name, shots, seed, backbone)
            for about, ways in found.items():
                for way, row in ways.items():
                    for column, value in row.items():
                        rows[f"{about}: {way}, {column}"].append(value)
    for about, values in rows.items():
        print(f"{about} {np.mean(values):.1f}")


if __name__ == "__main__":
    main()
