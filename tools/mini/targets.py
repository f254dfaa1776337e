"""Step 1: a direction in the joint space for every ImageNet name and WordNet noun or adjective.

`plain` is the recipe of the tower first shipped: a word's sentence embedding is regressed on the
classes. `senses` regresses each meaning, from its gloss and its place among the hypernyms, and
mixes the meanings of a word. Run with `--help`; the result is read by `train.py`.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from regression import ancestry, fit, hierarchy, rbf
from safetensors.torch import load_file, save_file
from sentences import embed, model_folder
from torch import Tensor
from wordnet import Synset, WordNet, read, vocabulary

from focoop.clip.tokenizer import Tokenizer
from focoop.seeds import torch_generator

LONGEST_WORD = 8  # tokens
NOISE = 0.1
LENGTH = 0.5
TREE_SHARE, TREE_SCALE = 0.25, 0.1
ABSTRACT_SHARE = 0.3
UNKNOWN_SHARE = {"plain": 0.5, "senses": 0.2}
# Lexicographer files of things one can photograph.
CONCRETE = {5, 6, 8, 9, 13, 17, 18, 19, 20, 27}
HELD_OUT = 200


@dataclass(frozen=True)
class ImageNet:
    """The classes: WordNet keys and common names in label order, and their directions (C, D)."""

    keys: list[str]
    names: list[str]
    directions: Tensor

    def without(self, held: Sequence[int]) -> "ImageNet":
        """The classes but those at `held`."""
        kept = [i for i in range(len(self.keys)) if i not in set(held)]
        return ImageNet([self.keys[i] for i in kept], [self.names[i] for i in kept],
                        self.directions[kept])  # fmt: skip


@dataclass(frozen=True)
class Words:
    """Texts with unit `targets` (N, D) and the `weights` (N,) with which they are drawn."""

    texts: list[str]
    targets: Tensor
    weights: Tensor


def imagenet_names() -> dict[str, list[str]]:
    """WordNet keys (from timm) and common names (from open_clip) in label order."""
    import timm
    from open_clip import IMAGENET_CLASSNAMES

    info = Path(timm.__file__).parent / "data" / "_info" / "imagenet_synsets.txt"
    return {"keys": info.read_text().split(), "names": list(IMAGENET_CLASSNAMES)}


def describe(synset: Synset) -> str:
    """Lemmas and definition, without the examples."""
    definition = synset.gloss.split('; "')[0]
    return f"{', '.join(synset.lemmas)}: {definition}"


def unit_with_unknown(mean: Tensor, sure: Tensor, embedding: Tensor, share: float) -> Tensor:
    """Add `share` x missing confidence x a fixed random projection, so that words stay apart."""
    generator = torch_generator(0, "mini", "unknown words")
    matrix = torch.randn(embedding.shape[1], mean.shape[1], generator=generator)
    random = F.normalize(embedding @ matrix.to(embedding), dim=1)
    return F.normalize(F.normalize(mean, dim=1) + share * (1 - sure)[:, None] * random, dim=1)


def plain_targets(
    net: WordNet, imagenet: ImageNet, words: Words, folder: Path, device: str
) -> Tensor:
    """Targets of `words` regressed from the embedding of the word alone."""
    firsts = [net.synsets[key].lemmas[0] for key in imagenet.keys]
    known = embed(firsts, folder, device=device).to(device)
    every = embed(words.texts, folder, device=device, progress=True).to(device)
    process = fit(rbf(known, known, LENGTH), imagenet.directions.to(device), NOISE)
    mean, sure = process.predict(rbf(every, known, LENGTH))
    return unit_with_unknown(mean, sure, every, UNKNOWN_SHARE["plain"]).cpu()


def observations(net: WordNet, imagenet: ImageNet) -> tuple[list[str], Tensor]:
    """Classes and everything above them: a hypernym is the mean of the classes below it."""
    index = {key: i for i, key in enumerate(imagenet.keys)}
    above = {k: v for k, v in net.descendants(imagenet.keys).items() if k not in index}
    means = [imagenet.directions[[index[key] for key in keys]].mean(0) for keys in above.values()]
    return [*imagenet.keys, *above], torch.cat([imagenet.directions, torch.stack(means)])


def sense_kernel(glosses: tuple[Tensor, Tensor], trees: tuple[Tensor, Tensor]) -> Tensor:
    """Kernel between meanings: of their glosses and of their places in the hierarchy."""
    tree = hierarchy(*trees, TREE_SCALE)
    return (1 - TREE_SHARE) * rbf(*glosses, LENGTH) + TREE_SHARE * tree


def sense_weights(net: WordNet, word: str) -> dict[str, float]:
    """Meanings of a word with their shares: 1 / rank, and less for what cannot be seen."""
    shares = {}
    for rank, key in enumerate(net.senses[word], start=1):
        shares[key] = (1.0 if net.synsets[key].topic in CONCRETE else ABSTRACT_SHARE) / rank
    return shares


def sense_targets(
    net: WordNet, imagenet: ImageNet, words: Words, folder: Path, device: str
) -> Tensor:
    """Targets of `words` as mixtures of their meanings' regressed directions."""
    known, values = observations(net, imagenet)
    keys = sorted({*known, *(key for word in words.texts for key in net.senses[word])})
    glosses = embed(
        [describe(net.synsets[key]) for key in keys],
        folder,
        device=device,
        longest=32,
        progress=True,
    ).to(device)
    row = {key: i for i, key in enumerate(keys)}
    index = torch.tensor([row[key] for key in known], device=device)
    tree = ancestry(net, keys, known).to(device)
    kernel = sense_kernel((glosses[index],) * 2, (tree[index],) * 2)
    process = fit(kernel, values.to(device), NOISE)
    parts = [
        process.predict(sense_kernel((gloss, glosses[index]), (place, tree[index])))
        for gloss, place in zip(glosses.split(8192), tree.split(8192), strict=True)
    ]
    mean, sure = (torch.cat(part) for part in zip(*parts, strict=True))
    classes = index[: len(imagenet.keys)]
    mean[classes], sure[classes] = imagenet.directions.to(device), 1.0
    table = torch.cat([mean, sure[:, None], glosses], dim=1)
    mixed = mixtures(net, words.texts, table.cpu(), row)
    split = mean.shape[1]
    sums = mixed[:, :split], mixed[:, split], mixed[:, split + 1 :]
    return unit_with_unknown(*sums, UNKNOWN_SHARE["senses"]).cpu()


def mixtures(net: WordNet, texts: Sequence[str], table: Tensor, row: dict[str, int]) -> Tensor:
    """Per text, the weighted mean over its meanings of the rows of `table`: (N, D)."""
    into, rows, weights = [], [], []
    for i, text in enumerate(texts):
        shares = sense_weights(net, text)
        total = sum(shares.values())
        into += [i] * len(shares)
        rows += [row[key] for key in shares]
        weights += [share / total for share in shares.values()]
    parts = torch.tensor(weights)[:, None] * table[rows]
    return torch.zeros(len(texts), table.shape[1]).index_add_(0, torch.tensor(into), parts)


def name_words(net: WordNet, imagenet: ImageNet) -> Words:
    """ImageNet names and synonyms; one shared by several classes gets their mean direction."""
    owners: dict[str, set[int]] = {}
    for i, (key, name) in enumerate(zip(imagenet.keys, imagenet.names, strict=True)):
        for text in {name.lower(), *(lemma.lower() for lemma in net.synsets[key].lemmas)}:
            owners.setdefault(text, set()).add(i)
    means = [imagenet.directions[sorted(rows)].mean(0) for rows in owners.values()]
    weights = torch.full((len(owners),), 20.0)
    return Words(list(owners), F.normalize(torch.stack(means), dim=1), weights)


def draw_weights(net: WordNet, imagenet: ImageNet, texts: Sequence[str]) -> Tensor:
    """How often `senses` draws a word: hypernyms of classes, things, common words more often."""
    above = set(net.descendants(imagenet.keys))
    weights = []
    for text in texts:
        keys = net.senses[text]
        lemmas = {lemma for key in keys for lemma in net.synsets[key].lemmas}
        weight = 3.0 if net.synsets[keys[0]].topic in CONCRETE else 1.0
        weight *= 2.0 if text in net.tagged else 1.0
        weight *= 1.0 if text in lemmas else 0.4  # capitalised: proper and Latin names
        weights.append(max(weight, 10.0) if above.intersection(keys[:2]) else weight)
    return torch.tensor(weights)


def plural(text: str) -> str:
    """The regular English plural of a name's last word."""
    if text.endswith(("s", "x", "z", "ch", "sh")):
        return text + "es"
    if text.endswith("y") and text[-2:-1] not in "aeiou":
        return text[:-1] + "ies"
    return text + "s"


def with_plurals(words: Words) -> Words:
    """Add the plurals of the words drawn most, at a quarter of their weight."""
    taken = set(words.texts)
    rows = [i for i, w in enumerate(words.weights.tolist())
            if w >= 6 and plural(words.texts[i]) not in taken]  # fmt: skip
    return Words(
        words.texts + [plural(words.texts[i]) for i in rows],
        torch.cat([words.targets, words.targets[rows]]),
        torch.cat([words.weights, words.weights[rows] / 4]),
    )


def build(
    net: WordNet, imagenet: ImageNet, recipe: str, folder: Path, device: str, every: int = 1
) -> Words:
    """Words of a recipe with targets and weights: all names, each `every`-th other word."""
    names = name_words(net, imagenet)
    taken = set(names.texts)
    texts = [word for word in vocabulary(net)[::every] if word not in taken]
    words = Words(texts, torch.empty(0), torch.ones(len(texts)))
    if recipe == "plain":
        words = replace(words, targets=plain_targets(net, imagenet, words, folder, device))
    else:
        words = Words(texts, sense_targets(net, imagenet, words, folder, device),
                      draw_weights(net, imagenet, texts))  # fmt: skip
    together = Words(
        names.texts + words.texts,
        torch.cat([names.targets, words.targets]),
        torch.cat([names.weights, words.weights]),
    )
    return with_plurals(together) if recipe == "senses" else together


def save(words: Words, held: dict[str, int], classes: Tensor, path: Path) -> None:
    """Write tokens, targets, weights and the held-out names with their classes."""
    tokenizer = Tokenizer()
    ids = [tokenizer.encode(text) for text in words.texts]
    rows = [i for i, tokens in enumerate(ids) if 0 < len(tokens) <= LONGEST_WORD]
    tokens = torch.zeros(len(rows), LONGEST_WORD, dtype=torch.int32)
    for row, i in enumerate(rows):
        tokens[row, : len(ids[i])] = torch.tensor(ids[i])
    tensors = {
        "tokens": tokens,
        "lengths": torch.tensor([len(ids[i]) for i in rows]),
        "targets": words.targets[rows].half(),
        "weights": words.weights[rows],
        "classes": classes.half(),
    }
    save_file({k: v.contiguous() for k, v in tensors.items()}, path, {"held_out": json.dumps(held)})
    print(f"{path.name}: {len(rows)} texts, {len(held)} classes held out")


def main() -> None:
    """Build one targets file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--recipe", choices=("plain", "senses"), default="senses")
    parser.add_argument("--wordnet", type=Path, required=True, help="folder with data.noun, ...")
    parser.add_argument("--head", type=Path, help="image_head.safetensors (else from the packages)")
    parser.add_argument("--imagenet", type=Path, help="JSON of imagenet_names()")
    parser.add_argument("--minilm", type=Path, help="model folder (else the installed package)")
    parser.add_argument("--hold-out", action="store_true", help=f"hide {HELD_OUT} classes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--every", type=int, default=1, help="take each n-th word, for a trial")
    args = parser.parse_args()
    net = read(args.wordnet)
    named = json.loads(args.imagenet.read_text()) if args.imagenet else imagenet_names()
    if args.head:
        directions = load_file(args.head)["imagenet_class_targets"].float()
    else:
        from space import joint_space, lite0_state

        directions = joint_space(lite0_state()["_fc.weight"]).targets
    imagenet = ImageNet(named["keys"], named["names"], F.normalize(directions, dim=1))
    generator = torch_generator(0, "mini", "held-out classes")
    order = torch.randperm(len(named["keys"]), generator=generator).tolist()
    held = sorted(order[:HELD_OUT]) if args.hold_out else []
    names = {net.synsets[named["keys"][i]].lemmas[0].lower(): i for i in held}
    folder = args.minilm or model_folder()
    words = build(net, imagenet.without(held), args.recipe, folder, args.device, args.every)
    save(words, names, imagenet.directions, args.out)


if __name__ == "__main__":
    main()
