"""What FOCoOp+'s class means and scatter tell of single images, by the number of images.

The server knows a client's class means m_c, its counts and its scatter W, the sum of
(h - m_y)(h - m_y)^T.

`means`: of the images of a class, n make the mean; the server holds all of them, members and
others, and guesses by the cosine with the mean who is a member. Printed are the mean cosine of
members and of others with the mean and the area under the curve (0.5: nothing is learned).

`scatter`: the server looks for the images themselves. Residuals that sum to zero in each class and
have the scatter W are L R B, with L L^T = W, B a known basis and R an unknown rotation; it has as
many dimensions as there are images less classes. Features have length 1, which gives one equation
an image. The server searches R from many starts; what it finds is paired with the images as well as
it can be, in its favour. Printed are the mean cosine of found and true images, the same for a
random R (what the pairing gives), for m_c alone (what the means tell without a scatter), and the
share of images found nearly exactly (cosine above 0.99).

`python benchmarks/means_attack.py` takes three minutes on one core.
"""

import argparse
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from focoop.features.lookup import open_features
from focoop.functional.metrics import auroc
from focoop.seeds import torch_generator

MEMBERS = (1, 2, 3, 4, 5, 6, 8, 12)
# (classes, images of each): one class, several of few images, and what runs have.
CLIENTS = ((1, 2), (1, 3), (1, 4), (1, 5), (1, 8), (1, 16), (4, 2), (8, 2), (2, 5), (4, 5), (10, 8))


@dataclass(frozen=True)
class Images:
    """Unit features (N, D) and labels (N,), of which attacks draw."""

    pooled: Tensor
    labels: Tensor

    def of_class(self, label: int, generator: torch.Generator) -> Tensor:
        """A class's features in random order."""
        rows = self.pooled[self.labels == label]
        return rows[torch.randperm(len(rows), generator=generator)]


def packaged() -> Images:
    """The packaged training features of CIFAR-100, as the mini backbone gives them."""
    found = open_features("demo:cifar100", "train")
    return Images(F.normalize(found.pooled.double(), dim=1), found.labels)


def told_apart(mean: Tensor, members: Tensor, others: Tensor) -> tuple[float, bool]:
    """How well unit features of members (n, D) are told from others (m, D) by a mean (D,).

    Returns the area under the curve of their cosines with it, and whether the closest is a member.
    """
    inside, outside = members @ F.normalize(mean, dim=0), others @ F.normalize(mean, dim=0)
    return auroc(outside, inside), bool(inside.max() > outside.max())  # members score higher


def membership(images: Images, count: int, seed: int) -> tuple[float, float, float]:
    """(cosine of members, cosine of others, area under the curve) of means of `count` images."""
    generator = torch_generator(seed, "membership", count)
    classes = int(images.labels.max()) + 1
    inside, outside, areas = [], [], []
    for label in range(classes):
        rows = images.of_class(label, generator)
        mean = F.normalize(rows[:count].mean(dim=0), dim=0)
        member, other = rows[:count] @ mean, rows[count:] @ mean
        inside.append(member.mean())
        outside.append(other.mean())
        areas.append(told_apart(mean, rows[:count], rows[count:])[0])
    return (
        float(torch.stack(inside).mean()),
        float(torch.stack(outside).mean()),
        sum(areas) / len(areas),
    )


def class_basis(labels: Tensor) -> Tensor:
    """(r, N) orthonormal rows, each with sum zero over every class."""
    groups = F.one_hot(labels).double().T
    return torch.linalg.svd(groups, full_matrices=True).Vh[len(groups) :]


@dataclass(frozen=True)
class Told:
    """What the server has of a client: class means (N, D) by image, L (D, r), its squares, B."""

    centres: Tensor
    root: Tensor
    values: Tensor
    basis: Tensor

    @classmethod
    def of(cls, features: Tensor, labels: Tensor) -> "Told":
        """As means and scatter tell it."""
        classes = range(int(labels.max()) + 1)
        means = torch.stack([features[labels == c].mean(dim=0) for c in classes])
        off = features - means[labels]
        basis = class_basis(labels)
        values, vectors = torch.linalg.eigh(off.T @ off)  # W
        values = values[-len(basis) :].clamp(min=0)
        root = vectors[:, -len(basis) :] * values.sqrt()
        return cls(means[labels], root, values, basis)

    def turned(self, drawn: Tensor) -> Tensor:
        """R B (r, N), R a rotation made of any square matrix."""
        turned: Tensor = torch.linalg.qr(drawn).Q @ self.basis
        return turned

    def off_length(self, turned: Tensor) -> Tensor:
        """Sum of squares by which the images' squared lengths miss 1."""
        own = self.centres.square().sum(dim=1) + 2 * ((self.centres @ self.root).T * turned).sum(0)
        return (own + (self.values[:, None] * turned.square()).sum(dim=0) - 1).square().sum()

    def images(self, turned: Tensor) -> Tensor:
        """(N, D) unit features."""
        return F.normalize(self.centres + (self.root @ turned).T, dim=1)


def draw(told: Told, seed: int, start: int = 0) -> Tensor:
    """(r, r) a random matrix, for a random rotation."""
    freedom = len(told.basis)
    generator = torch_generator(seed, "start", start)
    return torch.randn(freedom, freedom, generator=generator, dtype=torch.float64)


def search(told: Told, starts: int, steps: int, seed: int) -> Tensor:
    """(N, D) unit features that fit means, scatter and lengths: the attack on the scatter.

    Adam by hand: the import of torch.optim takes seconds.
    """
    found: list[tuple[float, Tensor]] = []
    for start in range(starts):
        drawn = draw(told, seed, start)
        momentum, size = torch.zeros_like(drawn), torch.zeros_like(drawn)
        for step in range(1, steps + 1):
            drawn.requires_grad_(True)
            loss = told.off_length(told.turned(drawn))
            slope = torch.autograd.grad(loss, drawn)[0]
            momentum = 0.9 * momentum + 0.1 * slope
            size = 0.999 * size + 0.001 * slope.square()
            scale = (size / (1 - 0.999**step)).sqrt() + 1e-8
            drawn = drawn.detach() - 0.05 * momentum / (1 - 0.9**step) / scale
        turned = told.turned(drawn)
        found.append((told.off_length(turned).item(), told.images(turned)))
    return min(found, key=lambda one: one[0])[1]


def paired(found: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    """Cosines of found and true images, paired within each class so that their sum is largest."""
    from scipy.optimize import linear_sum_assignment

    cosines = []
    for label in labels.unique():
        own = labels == label
        table = found[own] @ features[own].T
        rows, columns = linear_sum_assignment(-table.numpy())
        cosines.append(table[rows, columns])
    return torch.cat(cosines)


def reconstruction(
    images: Images, classes: int, count: int, repeats: int, starts: int, steps: int
) -> tuple[float, float, float, float]:
    """(cosine of found images, of random ones, of means alone, share found) for such clients."""
    found, random, alone = [], [], []
    for repeat in range(repeats):
        generator = torch_generator(repeat, "client", classes, count)
        chosen = torch.randperm(int(images.labels.max()) + 1, generator=generator)[:classes]
        rows = [images.of_class(label, generator)[:count] for label in chosen.tolist()]
        features = torch.cat(rows)
        labels = torch.repeat_interleave(torch.arange(classes), count)
        told = Told.of(features, labels)
        found.append(paired(search(told, starts, steps, repeat), features, labels))
        guess = told.images(told.turned(draw(told, repeat)))
        random.append(paired(guess, features, labels))
        means = torch.stack([one.mean(dim=0) for one in rows])[labels]
        alone.append(F.cosine_similarity(means, features, dim=1))
    cosines = torch.cat(found)
    return (
        float(cosines.mean()),
        float(torch.cat(random).mean()),
        float(torch.cat(alone).mean()),
        float((cosines > 0.99).double().mean()),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeats", type=int, default=6, help="clients of each size")
    parser.add_argument("--starts", type=int, default=6, help="starts of each search")
    parser.add_argument("--steps", type=int, default=300, help="steps of each start")
    given = parser.parse_args()
    torch.set_num_threads(1)
    images = packaged()
    print("| images of a mean | cosine, members | cosine, others | area under the curve |")
    print("|---|---|---|---|")
    for count in MEMBERS:
        inside, outside, area = membership(images, count, 0)
        print(f"| {count} | {inside:.2f} | {outside:.2f} | {area:.2f} |", flush=True)
    print("\n| classes | images of each | less classes | scatter | random | means alone | found |")
    print("|---|---|---|---|---|---|---|")
    for classes, count in CLIENTS:
        few = classes * (count - 1) > 20
        tries = (2, 2) if few else (given.repeats, given.starts)
        *cosines, share = reconstruction(images, classes, count, *tries, given.steps)
        sizes = f"| {classes} | {count} | {classes * (count - 1)} "
        told = " | ".join(f"{one:.2f}" for one in cosines)
        print(f"{sizes}| {told} | {100 * share:.0f} % |", flush=True)


if __name__ == "__main__":
    main()
