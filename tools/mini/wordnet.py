"""WordNet 3.0 from its database files: words, senses, glosses and the noun hierarchy."""

import gzip
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

HYPERNYMS = ("@", "@i")
# A word is longer than this only in names such as those of treaties and acts.
LONGEST_NAME = 5


@dataclass(frozen=True)
class Synset:
    """One meaning: its key (`n02084071`), lemmas, lexicographer file, gloss and hypernym keys."""

    key: str
    lemmas: tuple[str, ...]
    topic: int
    gloss: str
    hypernyms: tuple[str, ...]


@dataclass
class WordNet:
    """All synsets of the parts of speech read, and every word's senses, the commonest first."""

    synsets: dict[str, Synset] = field(default_factory=dict)
    senses: dict[str, tuple[str, ...]] = field(default_factory=dict)
    tagged: set[str] = field(default_factory=set)  # words met in the sense-tagged running texts

    @cached_property
    def ancestors(self) -> Mapping[str, frozenset[str]]:
        """Per synset, itself and everything above it."""
        found: dict[str, frozenset[str]] = {}

        def climb(key: str) -> frozenset[str]:
            if key not in found:
                above = [climb(parent) for parent in self.synsets[key].hypernyms]
                found[key] = frozenset({key}).union(*above)
            return found[key]

        for key in self.synsets:
            climb(key)
        return found

    def descendants(self, keys: Iterable[str]) -> dict[str, list[str]]:
        """Per synset with any of `keys` at or below it, those keys in the order given."""
        below: dict[str, list[str]] = {}
        for key in keys:
            for ancestor in self.ancestors[key]:
                below.setdefault(ancestor, []).append(key)
        return below


def read(folder: Path, parts: Iterable[str] = ("noun", "adj")) -> WordNet:
    """Read `data.<part>` and `index.<part>` of a WordNet database folder."""
    net = WordNet()
    for part in parts:
        for line in lines(folder / f"data.{part}"):
            synset = parse_synset(line, part[0])
            net.synsets[synset.key] = synset
        for line in lines(folder / f"index.{part}"):
            fields = line.split()
            keys = tuple(part[0] + offset for offset in fields[-int(fields[2]) :])
            word = fields[0].replace("_", " ")
            net.senses[word] = net.senses.get(word, ()) + keys
            if int(fields[-len(keys) - 1]) > 0:
                net.tagged.add(word)
    return net


def lines(path: Path) -> Iterable[str]:
    """The entries of a database file, without the licence at its top."""
    packed = path.with_name(path.name + ".gz")
    opened = path.open if path.exists() else partial(gzip.open, packed)
    with opened(mode="rt", encoding="ascii") as file:
        yield from (line for line in file if not line.startswith("  "))


def parse_synset(line: str, part: str) -> Synset:
    """Parse one line of a data file (layout: wndb(5WN))."""
    head, _, gloss = line.partition("|")
    fields = head.split()
    count = int(fields[3], 16)
    lemmas = [word.split("(")[0].replace("_", " ") for word in fields[4 : 4 + 2 * count : 2]]
    pointers = fields[5 + 2 * count :]
    hypernyms = [
        pointers[i + 2] + pointers[i + 1]
        for i in range(0, 4 * int(fields[4 + 2 * count]), 4)
        if pointers[i] in HYPERNYMS and pointers[i + 2] == part
    ]
    return Synset(part + fields[0], tuple(lemmas), int(fields[1]), gloss.strip(), tuple(hypernyms))


def vocabulary(net: WordNet) -> list[str]:
    """Every noun and adjective without digits and of at most five words, sorted."""
    words = (word for word in net.senses if not any(char.isdigit() for char in word))
    return sorted(word for word in words if len(word.split()) <= LONGEST_NAME)
