"""Regenerate focoop/assets/wordnet/words.json.gz from the database files of WordNet 3.0.

    python tools/make_wordlists.py --wordnet /usr/share/wordnet

The Debian package `wordnet-base` (1:3.0) installs the files `data.noun` and `data.adj` it reads.
Each synset gives one candidate, its first word: that reading comes within 1 % of the published
NegLabel lists for every lexicographer file but adj.all (about 10 % more words here). The other
lower-case words of a synset are kept as its synonyms, so that mining can leave out synonyms of ID
names; capitalised ones (Latin plant names, full names of people) would cost 0.3 MB and name no
class of the usual datasets.
"""

import argparse
import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

# Lexicographer file numbers of WordNet 3.0 (its manual page lexnames); noun.animal (05) and
# noun.food (13) are left out: they are what ID classes of the usual datasets are made of.
FILES = {
    0: "adj.all",
    1: "adj.pert",
    44: "adj.ppl",
    3: "noun.Tops",
    4: "noun.act",
    6: "noun.artifact",
    7: "noun.attribute",
    8: "noun.body",
    9: "noun.cognition",
    10: "noun.communication",
    11: "noun.event",
    12: "noun.feeling",
    14: "noun.group",
    15: "noun.location",
    16: "noun.motive",
    17: "noun.object",
    18: "noun.person",
    19: "noun.phenomenon",
    20: "noun.plant",
    21: "noun.possession",
    22: "noun.process",
    23: "noun.quantity",
    24: "noun.relation",
    25: "noun.shape",
    26: "noun.state",
    27: "noun.substance",
    28: "noun.time",
}
ASSETS = Path(__file__).resolve().parents[1] / "focoop" / "assets" / "wordnet"
MARKER = re.compile(r"\((a|p|ip)\)$")  # syntactic markers of adjectives


def synsets(data: Path) -> Iterator[tuple[str, list[str]]]:
    """(lexicographer file, words as written) of each wanted synset of one data file."""
    for line in data.read_text(encoding="ascii").splitlines():
        if line.startswith(" "):  # the licence
            continue
        fields = line.split(" ")
        number, count = int(fields[1]), int(fields[3], 16)
        if number in FILES:
            words = fields[4 : 4 + 2 * count : 2]
            yield FILES[number], [MARKER.sub("", word).replace("_", " ") for word in words]


def entries(wordnet: Path) -> dict[str, list[str]]:
    """Lexicographer file -> sorted unique `word` or `word|synonym|...`, one per synset."""
    found: dict[str, set[str]] = {name: set() for name in FILES.values()}
    for data in ("data.noun", "data.adj"):
        for name, words in synsets(wordnet / data):
            first = words[0].lower()
            others = {word for word in words[1:] if word.islower() and word != first}
            found[name].add("|".join([first, *sorted(others)]))
    for name, lines in found.items():  # a bare word says nothing beside its entry with synonyms
        told = {line.split("|")[0] for line in lines if "|" in line}
        found[name] = {line for line in lines if "|" in line or line not in told}
    return {name: sorted(found[name]) for name in sorted(found)}


def document(files: dict[str, list[str]]) -> str:
    """The JSON text: per file one string, entries apart by `;` (a tenth smaller than arrays)."""
    joined = {name: ";".join(lines) for name, lines in files.items()}
    version = hashlib.sha256(json.dumps(joined, sort_keys=True).encode()).hexdigest()[:16]
    head = {"source": "WordNet 3.0", "license": "LICENSE.txt", "version": version}
    return json.dumps(head | {"files": joined}, indent=0) + "\n"


def licence(data: Path) -> str:
    """The licence that opens a data file, without its line numbers."""
    header = [line for line in data.read_text(encoding="ascii").splitlines() if line[:2] == "  "]
    return "\n".join(re.sub(r"^  \d+ ?", "", line).rstrip() for line in header).strip() + "\n"


def main() -> None:
    """Write the word lists and their licence."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wordnet", type=Path, required=True, help="folder of data.noun")
    parser.add_argument("--out", type=Path, default=ASSETS)
    arguments = parser.parse_args()
    files = entries(arguments.wordnet)
    arguments.out.mkdir(parents=True, exist_ok=True)
    text = document(files)
    packed = gzip.compress(text.encode("ascii"), 9, mtime=0)
    (arguments.out / "words.json.gz").write_bytes(packed)
    terms = licence(arguments.wordnet / "data.noun")
    (arguments.out / "LICENSE.txt").write_text(terms, encoding="ascii")
    for name, lines in files.items():
        print(f"{name:20s} {len({line.split('|')[0] for line in lines}):6d} words")
    print(f"{len(packed) / 1e6:.2f} MB in {arguments.out / 'words.json.gz'}")


if __name__ == "__main__":
    main()
