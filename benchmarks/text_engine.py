"""The text engine against the usual way, as ratios of one run.

The naive path is written out below as prompt-learning code does it: sequences padded to all of the
tower's positions (77 for CLIP, 32 for mini), an additive mask, every state of the last block, one
client at a time. Frozen weights get no gradient there either. Steps of both paths take turns and
the best of each counts, so that other work on the machine disturbs little; with one thread,
processor time is counted, with more, wall time. Text alone is compared; for mini, the ratio with
the image encoder in the naive loop, as the field does it, is given too.

    python benchmarks/text_engine.py [threads] [mini|vit]
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from focoop.clip import load_backbone
from focoop.clip.base import Backbone
from focoop.clip.text.tower import Block, Names, TextShape, TextTower
from focoop.scenario.wordnet import candidates

TOKENS, IMAGES, SCALE = 16, 32, 30.0
# The classes of CIFAR-100.
CIFAR = """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab
crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout
tulip turtle wardrobe whale willow_tree wolf woman worm"""
CLASSES = CIFAR.split()

Encode = Callable[[Tensor, Names], Tensor]


def naive(tower: TextTower, contexts: Tensor, names: Names) -> Tensor:
    """(n, d_t) or (N, n, d_t) contexts of one client -> (N, D)."""
    count, length = len(names), tower.shape.context_length
    contexts = contexts.expand(count, -1, -1)
    x = torch.cat([tower.sot.expand(count, 1, -1), contexts, names.embeddings], dim=1)
    x = F.pad(x, (0, 0, 0, length - x.shape[1])) + tower.pos
    mask = torch.full((length, length), -torch.inf, dtype=x.dtype, device=x.device).triu(1)
    for block in tower.blocks:
        assert isinstance(block, Block)
        qkv = block.qkv(block.ln_1(x)).unflatten(-1, (3, block.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + block.o(mixed.transpose(1, 2).flatten(2))
        x = x + block.f2(block.activation(block.f1(block.ln_2(x))))
    ends = contexts.shape[1] + names.lengths
    return F.normalize(tower.proj(tower.lnf(x)[torch.arange(count), ends]), dim=-1)


@dataclass(frozen=True)
class Job:
    """A training step: contexts of each set of names for one client, its images and labels."""

    label: str
    names: list[Names]
    contexts: list[Tensor]  # (n, d_t) or (N, n, d_t) each
    images: Tensor
    labels: Tensor

    def step(self, encode: Encode, clients: int) -> list[Tensor]:
        """Gradients of `clients` clients' cross-entropies (K, ...), through the tower at once."""
        leaves = [c.expand(clients, *c.shape).clone().requires_grad_() for c in self.contexts]
        stacked = [leaf[:, None] if leaf.dim() == 3 else leaf for leaf in leaves]
        text = torch.cat([encode(c, n) for c, n in zip(stacked, self.names, strict=True)], dim=1)
        logits = SCALE * torch.einsum("bd,knd->kbn", self.images, text)
        loss = F.cross_entropy(logits.transpose(1, 2), self.labels.expand(clients, -1))
        return list(torch.autograd.grad(loss, leaves))


def job(label: str, tower: TextTower, names: list[Names], unified: bool) -> Job:
    """A step on random features."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(TOKENS, tower.width) if unified else (len(n), TOKENS, tower.width) for n in names]
    contexts = [0.02 * torch.randn(*shape, generator=generator) for shape in shapes]
    images = F.normalize(torch.randn(IMAGES, tower.dim, generator=generator), dim=-1)
    labels = torch.randint(len(names[0]), (IMAGES,), generator=generator)
    return Job(label, names, contexts, images, labels)


def fewer(tower: TextTower, work: Job) -> float:
    """Naive multiplications with weights over ours: the ratio were all else free."""
    layers, length = tower.shape.layers, tower.shape.context_length
    naive_count = ours = 0
    for contexts, names in zip(work.contexts, work.names, strict=True):
        arrange = tower.unified if contexts.dim() == 2 else tower.specific
        x, layout = arrange(contexts[None, None] if contexts.dim() == 2 else contexts[None], names)
        naive_count += 12 * layers * length * len(names)
        # The last block: keys and values of all tokens, the rest at the EOTs alone.
        ours += (12 * (layers - 1) + 2) * len(x) + 10 * sum(layout.sequences)
    return naive_count / ours


def seconds(step: Callable[[], object]) -> float:
    """Time of one step."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    began = clock()
    step()
    return clock() - began


def compare(
    tower: TextTower, work: Job, repeats: int, clients: tuple[int, ...], images: float
) -> None:
    """Print the ratios of one job; `images` is the time to encode a batch of images, if known."""

    def slow(contexts: Tensor, names: Names) -> Tensor:
        return naive(tower, contexts[0, 0] if contexts.shape[1] == 1 else contexts[0], names)[None]

    expected = work.step(slow, 1)
    for one, other in zip(work.step(tower, 1), expected, strict=True):
        difference = float((one - other).abs().max() / other.abs().max())
        assert difference < 1e-4, f"gradients of the two paths differ by {difference:.1e}"
    best: dict[str, float] = {}

    def measure(label: str, step: Callable[[], object], share: int = 1) -> None:
        best[label] = min(best.get(label, float("inf")), seconds(step) / share)

    for _ in range(repeats):
        measure("naive", lambda: work.step(slow, 1))
        for dtype in (None, torch.bfloat16):
            tower.train_in(dtype)
            for count in clients:
                label = f"{count} client{'s' * (count > 1)}{' in bfloat16' * (dtype is not None)}"
                for _ in range(3):
                    measure(label, partial(work.step, tower, count), count)
        tower.train_in(None)
    base = best.pop("naive")
    print(f"{work.label}: naive {1e3 * base:.0f} ms per client and step")
    print(f"    multiplications with weights: {fewer(tower, work):.1f}x fewer")
    for label, found in best.items():
        whole = f"; {(base + images) / found:.1f}x with images" if images else ""
        print(f"    {label}: {1e3 * found:.1f} ms per client, {base / found:.1f}x{whole}")


def towers(backbone: Backbone) -> dict[str, tuple[TextTower, int, tuple[int, ...]]]:
    """Tower, repeats and numbers of clients."""
    shape = TextShape(512, 12, 8, 512, context_length=77, activation="quick_gelu")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tower = TextTower(shape, nn.Embedding(49408, 512)).freeze()
        nn.init.normal_(tower.pos, std=0.01)
    return {"mini": (backbone.text, 5, (1, 10)), "vit": (tower, 2, (1,))}


def image_seconds(backbone: Backbone, repeats: int) -> float:
    """Time to encode the images of one step."""
    batch = torch.randn(IMAGES, 3, backbone.image_size, backbone.image_size)
    found = min(seconds(lambda: backbone.encode_images(batch)) for _ in range(repeats))
    print(f"{IMAGES} images through the encoder: {1e3 * found:.0f} ms")
    return found


def main() -> None:
    if len(sys.argv) > 1:
        torch.set_num_threads(int(sys.argv[1]))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s)")
    backbone = load_backbone("mini")
    words = candidates().without(CLASSES).nouns
    words = words[:: len(words) // 100][:100]
    for label, (tower, repeats, clients) in towers(backbone).items():
        if label not in (sys.argv[2:] or [label]):
            continue
        ids, oods = (tower.prepare(backbone.tokenize, texts) for texts in (CLASSES, words))
        sizes = [f"{n.lengths.float().mean():.2f}" for n in (ids, oods)]
        print(f"{label}: {tower.shape}; tokens after the context: {', '.join(sizes)} on average")
        images = image_seconds(backbone, repeats) if label == "mini" else 0.0
        promptfl = job("PromptFL, C=100", tower, [ids], unified=True)
        compare(tower, promptfl, repeats, clients, images)
        focoop = job("FOCoOp, C=100, U=100", tower, [ids, oods], unified=False)
        compare(tower, focoop, repeats, clients[:1], images)


if __name__ == "__main__":
    main()
