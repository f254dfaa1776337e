"""Candidate words for negative labels: WordNet lists, and their cleaning by ID names."""

import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from focoop.assets import ASSETS, asset
from focoop.errors import ConfigError

WORDNET = ASSETS / "wordnet" / "words.json.gz"
IRREGULAR = {
    "children": "child",
    "dice": "die",
    "feet": "foot",
    "geese": "goose",
    "mice": "mouse",
    "oxen": "ox",
    "people": "person",
    "teeth": "tooth",
}


@dataclass(frozen=True)
class Candidates:
    """Words that may become negatives, each kind sorted, unique and disjoint from the other.

    Attributes:
        nouns: words put into the noun template.
        adjectives: words put into the adjective template.
        synsets: groups of synonyms, by which synonyms of ID names are left out.
    """

    nouns: tuple[str, ...]
    adjectives: tuple[str, ...]
    synsets: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def of(
        cls,
        nouns: Iterable[str],
        adjectives: Iterable[str] = (),
        synsets: Iterable[Sequence[str]] = (),
    ) -> "Candidates":
        """Sort words, drop repetitions, and drop adjectives that are also nouns.

        Args:
            nouns: Nouns.
            adjectives: Adjectives.
            synsets: Groups of synonyms.

        Returns:
            The candidates.
        """
        names = {word.replace("_", " ").strip() for word in nouns} - {""}
        others = {word.replace("_", " ").strip() for word in adjectives} - names - {""}
        return cls(tuple(sorted(names)), tuple(sorted(others)), tuple(map(tuple, synsets)))

    @cached_property
    def version(self) -> str:
        """Return a hash of the content."""
        return content_hash([self.nouns, self.adjectives, self.synsets])

    def without(self, classes: Sequence[str]) -> "Candidates":
        """Leave out ID names, words that share a synset with one, and plurals of either.

        Args:
            classes: Names of the ID classes.

        Returns:
            The candidates that are left.
        """
        parts = [part for name in classes for part in re.split(r"[,/]", name)]
        blocked = set().union(*map(forms, parts))
        related = [synset for synset in self.synsets if any(forms(w) & blocked for w in synset)]
        blocked = blocked.union(*(forms(word) for synset in related for word in synset))
        return Candidates(
            tuple(word for word in self.nouns if not forms(word) & blocked),
            tuple(word for word in self.adjectives if not forms(word) & blocked),
            self.synsets,
        )


@cache
def candidates() -> Candidates:
    """Return the packaged WordNet 3.0 lists.

    First word of each synset, without animals and food.
    """
    text = gzip.decompress(asset("wordnet/words.json.gz")).decode("ascii")
    entries: dict[str, list[list[str]]] = {"noun": [], "adj": []}
    for name, joined in json.loads(text)["files"].items():
        entries[name.split(".")[0]] += [entry.split("|") for entry in joined.split(";")]
    synsets = [words for kind in entries.values() for words in kind if len(words) > 1]
    return Candidates.of(
        (words[0] for words in entries["noun"]), (words[0] for words in entries["adj"]), synsets
    )


def read_words(path: Path) -> Candidates:
    """Read candidates of a user's own: a text file of one word or phrase per line.

    All are nouns until a line `[adjectives]`; `[nouns]` turns back. Empty lines and what follows a
    `#` are left out.

    Args:
        path: The file.

    Returns:
        The candidates.

    Raises:
        ConfigError: The file cannot be read or holds no word.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(
            f"cannot read the word list {path} ({reason}): negatives.words names a text file "
            "with one word per line"
        ) from error
    kinds: dict[str, list[str]] = {"[nouns]": [], "[adjectives]": []}
    kind = "[nouns]"
    for number, line in enumerate(text.splitlines(), 1):
        word = " ".join(line.partition("#")[0].split())
        if word.startswith("["):
            kind = word.lower()
            if kind not in kinds:
                raise ConfigError(
                    f"{path}, line {number}: {word} is no kind of word: write {' or '.join(kinds)}"
                )
        elif word:
            kinds[kind].append(word)
    if not any(kinds.values()):
        raise ConfigError(f"the word list {path} is empty: write one word per line")
    return Candidates.of(kinds["[nouns]"], kinds["[adjectives]"])


def forms(name: str) -> set[str]:
    """Return a name without case, spaces, hyphens and underscores, with its possible singulars.

    Args:
        name: The name.

    Returns:
        All forms.
    """
    word = re.sub(r"[\s_-]+", " ", name.casefold()).strip()
    head, last = word[: word.rfind(" ") + 1], word[word.rfind(" ") + 1 :]
    last_words = {last, IRREGULAR.get(last, last)}
    if last.endswith("men"):
        last_words.add(last[:-2] + "an")
    if len(last) > 3 and last.endswith("s") and not last.endswith("ss"):
        last_words.add(last[:-1])
        if last.endswith("ies"):
            last_words.add(last[:-3] + "y")
        elif last.endswith("ves"):
            last_words |= {last[:-3] + "f", last[:-3] + "fe"}
        elif last.endswith("es"):
            last_words.add(last[:-2])
    return {(head + form).replace(" ", "") for form in last_words}


def content_hash(content: object) -> str:
    """Return the first 128 bits of the SHA-256 of anything JSON can write.

    Args:
        content: The content.

    Returns:
        Hexadecimal digits.
    """
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
