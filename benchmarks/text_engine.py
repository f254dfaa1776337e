"""Text engine against the usual way: 77 padded positions and every state of the last block.

Prints ratios measured in one run; the two paths are checked to agree first.
"""

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from focoop.clip import load_backbone
from focoop.clip.base import Backbone
from focoop.clip.text import Names, TextShape, TextTower

REPEATS = 5
LENGTH = 77


def padded(tower: TextTower, contexts: Tensor, names: Names, length: int) -> Tensor:
    """The same features from sequences padded to `length`, as prompt-learning code does it."""
    sot = tower.sot.expand(len(names), 1, -1)
    x = torch.cat([sot, contexts, names.embeddings], dim=1)
    x = F.pad(x, (0, 0, 0, length - x.shape[1])) + tower.pos[:length]
    for block in tower.blocks:
        x = block(x)
    rows = torch.arange(len(names))
    out = tower.proj(tower.lnf(x[rows, contexts.shape[1] + names.lengths]))
    return F.normalize(out, dim=-1)


def seconds(step: Callable[[], None]) -> float:
    """Median time of a step after one to warm up."""
    step()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def long_tower(tower: TextTower) -> TextTower:
    """The tower with 77 positions, so that padded sequences fit."""
    shape = TextShape(**{**tower.shape.__dict__, "context_length": LENGTH})
    longer = TextTower(shape, tower.tok)
    weights = {k: v for k, v in tower.state_dict().items() if k != "pos"}
    weights["pos"] = F.pad(tower.pos, (0, 0, 0, LENGTH - len(tower.pos)))
    longer.load_state_dict(weights)
    return longer.freeze()


def compare(label: str, tower: TextTower, names: Names, tokens: int = 16) -> None:
    """Forward and backward of class-specific contexts, both ways."""
    generator = torch.Generator().manual_seed(0)
    contexts = 0.02 * torch.randn(len(names), tokens, tower.width, generator=generator)
    naive_tower = long_tower(tower)
    difference = (padded(naive_tower, contexts, names, LENGTH) - tower(contexts, names)).abs().max()
    assert difference < 1e-4, f"the two paths differ by {difference}"

    def step(encode: Callable[[Tensor], Tensor]) -> Callable[[], None]:
        def run() -> None:
            leaf = contexts.clone().requires_grad_(True)
            encode(leaf).sum().backward()

        return run

    ours = seconds(step(lambda leaf: tower(leaf, names)))
    naive = seconds(step(lambda leaf: padded(naive_tower, leaf, names, LENGTH)))
    print(
        f"{label}: {len(names)} prompts, forward and backward: {naive:.3f} s padded, "
        f"{ours:.3f} s cut at the EOT: {naive / ours:.1f}x (largest difference {difference:.1e})"
    )


def main() -> None:
    backbone: Backbone = load_backbone("mini")
    classes = [f"thing number {i}" for i in range(100)]
    compare("mini", backbone.text, backbone.names(classes))
    shape = TextShape(width=512, layers=12, heads=8, dim=512, context_length=LENGTH)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tower = TextTower(shape, nn.Embedding(49408, 512)).freeze()
        nn.init.normal_(tower.pos, std=0.01)
    names = tower.prepare(backbone.tokenize, classes[:20])
    compare("ViT-B/16 size, random weights", tower, names)


if __name__ == "__main__":
    main()
