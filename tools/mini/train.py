"""Step 2: train the text tower of `mini` to say the directions that `targets.py` wrote.

The loss is 1 - cos(text feature, target), plus, with `--contrast`, the divergence between the
similarities of the target and of the feature to all ImageNet classes and to the other texts of
the batch, so that what sets neighbouring words apart is learnt before what they share.
"""

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from evaluate import load_tower
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from focoop.clip.mini import SHAPE, TOKEN_RANK, VOCABULARY, FactorisedEmbedding
from focoop.clip.text.tower import TextTower
from focoop.clip.tokenizer import EOT, SOT, Tokenizer

TEMPLATES = (
    "{}",
    "{}.",
    "a {}.",
    "the {}.",
    "some {}.",
    "one {}.",
    "a photo of a {}.",
    "a photo of the {}.",
    "a photo of {}.",
    "a photo of one {}.",
    "a picture of a {}.",
    "an image of a {}.",
    "a small {}.",
    "a large {}.",
    "a blurry photo of a {}.",
    "a bright photo of a {}.",
    "a drawing of a {}.",
    "a sketch of a {}.",
    "a painting of a {}.",
    "a cartoon of a {}.",
)
# Learnt contexts take 16 positions: names must be read there too.
LONG_TEMPLATES = ("x " * 16 + "{}.", "x " * 12 + "a photo of a {}.")
WEIGHT_DECAY = 0.01
WARM_UP = 0.3
CONTRAST_SCALE = 20.0


@dataclass(frozen=True)
class Corpus:
    """Word tokens (N, T) with lengths (N,), unit targets (N, D), weights (N,), class directions."""

    tokens: Tensor
    lengths: Tensor
    targets: Tensor
    weights: Tensor
    classes: Tensor


class Prompter:
    """Puts words into templates, on the device, in batches of one width."""

    def __init__(self, device: str, templates: Sequence[str] = TEMPLATES) -> None:
        tokenizer = Tokenizer()
        parts = [template.split("{}") for template in templates]
        heads = [[SOT, *tokenizer.encode(head)] for head, _ in parts]
        tails = [[*tokenizer.encode(tail), EOT] for _, tail in parts]
        self.heads, self.head_lengths = (x.to(device) for x in padded(heads))
        self.tails, self.tail_lengths = (x.to(device) for x in padded(tails))

    def __call__(self, tokens: Tensor, lengths: Tensor, template: Tensor) -> tuple[Tensor, Tensor]:
        """(N, T) words, (N,) template numbers -> (N, L) token ids, (N,) positions of the EOT."""
        before = self.head_lengths[template]
        middle = before + lengths
        stop = middle + self.tail_lengths[template]
        width = self.heads.shape[1] + tokens.shape[1] + self.tails.shape[1]
        at = torch.arange(width, device=tokens.device).expand(len(tokens), -1)
        head = pick(self.heads[template], at)
        word = pick(tokens, at - before[:, None])
        tail = pick(self.tails[template], at - middle[:, None])
        out = torch.where(at < before[:, None], head, torch.where(at < middle[:, None], word, tail))
        return out * (at < stop[:, None]), stop - 1


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Lists of ids -> (N, longest) with zeros, and lengths."""
    out = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for row, ids in zip(out, rows, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    return out, torch.tensor([len(ids) for ids in rows])


def pick(values: Tensor, at: Tensor) -> Tensor:
    """Gather along rows; positions outside give any value."""
    return values.gather(1, at.clamp(0, values.shape[1] - 1))


def new_tower(generator: torch.Generator) -> TextTower:
    """A randomly initialised tower, ready to train."""
    tower = TextTower(SHAPE, FactorisedEmbedding(VOCABULARY, TOKEN_RANK, SHAPE.width))
    tower.requires_grad_(True)
    depth = (2 * SHAPE.layers) ** -0.5
    for name, weight in tower.named_parameters():
        if name == "pos" or name == "tok.weight":
            nn.init.normal_(weight, std=0.02 if name == "pos" else 0.2, generator=generator)
        elif weight.dim() == 2:
            residual = name.endswith(("o.weight", "f2.weight"))
            std = weight.shape[1] ** -0.5 * (depth if residual else 1.0)
            nn.init.normal_(weight, std=std, generator=generator)
        elif name.endswith("bias"):
            nn.init.zeros_(weight)
    return tower


def one_cycle(progress: float, rate: float) -> float:
    """Rate at `progress` in (0, 1]: from rate / 25 up over 30%, then down to nearly nothing."""
    if progress < WARM_UP:
        low, high, part = rate / 25, rate, progress / WARM_UP
    else:
        low, high, part = rate, rate / 250_000, (progress - WARM_UP) / (1 - WARM_UP)
    return high + (low - high) * (1 + math.cos(math.pi * part)) / 2


def loss_of(features: Tensor, targets: Tensor, anchors: Tensor, contrast: float) -> Tensor:
    """Mean of 1 - cos, plus `contrast` x KL(target similarities || feature similarities)."""
    loss = (1 - (features * targets).sum(1)).mean()
    if contrast:
        wanted = F.log_softmax(CONTRAST_SCALE * targets @ anchors.T, dim=1)
        said = F.log_softmax(CONTRAST_SCALE * features @ anchors.T, dim=1)
        loss = loss + contrast * F.kl_div(said, wanted, reduction="batchmean", log_target=True)
    return loss


def train(
    tower: TextTower,
    corpus: Corpus,
    *,
    steps: int,
    batch_size: int,
    rate: float,
    contrast: float,
    seed: int,
    seconds: float = 0.0,
    log_every: int = 1000,
) -> list[float]:
    """AdamW with a one-cycle rate; returns the mean losses of each `log_every` steps.

    With `seconds` the cycle is cut to end at that time if the steps would take longer.
    """
    device = tower.device
    generator = torch.Generator(device).manual_seed(seed)
    prompters = [Prompter(str(device), texts) for texts in (TEMPLATES, LONG_TEMPLATES)]
    rare = (len(TEMPLATES) + len(LONG_TEMPLATES)) // len(LONG_TEMPLATES)
    optimiser = torch.optim.AdamW(
        tower.parameters(), rate, weight_decay=WEIGHT_DECAY, fused=device.type == "cuda"
    )
    cumulative = corpus.weights.double().cumsum(0)
    total, history, start = torch.zeros((), device=device), [], time.monotonic()
    step, progress = 0, 0.0
    while progress < 1:
        elapsed = time.monotonic() - start
        progress = max(progress, (step + 1) / steps, elapsed / seconds if seconds else 0.0)
        step += 1
        for group in optimiser.param_groups:
            group["lr"] = one_cycle(min(progress, 1.0), rate)
        draws = torch.rand(batch_size, generator=generator, device=device, dtype=torch.double)
        rows = torch.searchsorted(cumulative, draws * cumulative[-1]).clamp_max(len(cumulative) - 1)
        prompter = prompters[step % rare == 0]  # a batch has templates of like lengths
        template = torch.randint(
            len(prompter.heads), (batch_size,), generator=generator, device=device
        )
        tokens, ends = prompter(corpus.tokens[rows], corpus.lengths[rows], template)
        targets = corpus.targets[rows]
        features = tower.run(tower.tok(tokens), ends)
        loss = loss_of(features, targets, torch.cat([corpus.classes, targets]), contrast)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(tower.parameters(), 1.0, foreach=True)
        optimiser.step()
        total += loss.detach()
        if step % log_every == 0 or progress >= 1:
            history.append(float(total) / (step % log_every or log_every))
            total.zero_()
            spent = time.monotonic() - start
            print(f"step {step}: loss {history[-1]:.4f}, {spent:.0f} s", flush=True)
    return history


def load_corpus(path: Path, device: str) -> tuple[Corpus, dict[str, int]]:
    """Read a targets file; also the held-out names with their classes."""
    data = load_file(path, device=device)
    with safe_open(path, "pt") as file:
        held: dict[str, int] = json.loads(file.metadata()["held_out"])
    return Corpus(
        data["tokens"].long(), data["lengths"].long(), F.normalize(data["targets"].float(), dim=1),
        data["weights"], F.normalize(data["classes"].float(), dim=1),
    ), held  # fmt: skip


def held_out_scores(tower: TextTower, held: dict[str, int], classes: Tensor) -> dict[str, float]:
    """How well unseen classes are told apart: their directions against the texts of their names."""
    texts = [f"a photo of a {name}." for name in held]
    features = tower.encode_tokens(Tokenizer(SHAPE.context_length)(texts).to(tower.device))
    truth = classes[list(held.values())]
    similarity = truth @ features.T  # (classes, texts)
    right = torch.arange(len(held), device=truth.device)
    return {
        "direction_to_text": (similarity.argmax(1) == right).float().mean().item(),
        "text_to_direction": (similarity.argmax(0) == right).float().mean().item(),
        "cosine": similarity.diagonal().mean().item(),
    }


def save_tower(tower: TextTower, path: Path) -> None:
    """Write the weights in float16, in the layout of the packaged file."""
    weights = {name: value.half().cpu().contiguous() for name, value in tower.state_dict().items()}
    weights["up.weight"] = weights.pop("tok.up.weight")
    metadata = {
        "width": SHAPE.width, "layers": SHAPE.layers, "heads": SHAPE.heads, "joint": SHAPE.dim,
        "context_length": SHAPE.context_length, "token_rank": TOKEN_RANK,
        "activation": SHAPE.activation,
        "vocabulary": f"CLIP BPE, {VOCABULARY} tokens, SOT {SOT}, EOT {EOT}",
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(weights, path, {key: str(value) for key, value in metadata.items()})


def main() -> None:
    """Train one tower."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--contrast", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=0.0, help="end the cycle by then")
    parser.add_argument("--start", type=Path, help="tower file to start from")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    corpus, held = load_corpus(args.targets, args.device)
    tower = new_tower(torch.Generator().manual_seed(args.seed))
    if args.start:
        tower = load_tower(args.start).train().requires_grad_(True)
    tower = tower.to(args.device)
    if tower.device.type == "cuda":
        tower.autocast = torch.bfloat16
    history = train(tower, corpus, steps=args.steps, batch_size=args.batch_size, rate=args.rate,
                    contrast=args.contrast, seed=args.seed, seconds=args.seconds,)  # fmt: skip
    tower.freeze().autocast = None
    save_tower(tower, args.out)
    scores = held_out_scores(tower, held, corpus.classes) if held else {}
    print(json.dumps({"out": args.out.name, "loss": history[-1], "held_out": scores}))


if __name__ == "__main__":
    main()
