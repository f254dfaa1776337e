"""Choose negative words: WordNet words far from every ID class, which name the OOD prompts.

The distance of a word is d_u = -Quantile_q over ID classes of cos(word, class), q = 0.95, with
linear interpolation; the words of largest d_u are taken. Everything is deterministic: lists are
sorted and ties go to the alphabetically first word.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from focoop.assets import ASSETS, asset
from focoop.caching import cache_folder, cached_tensor
from focoop.clip import Backbone
from focoop.errors import ConfigError
from focoop.scenario.wordnet import Candidates, content_hash
from focoop.scenario.wordnet import candidates as wordnet

PACKAGED = ASSETS / "demo" / "negatives.json"
TEMPLATE_NOUN = "The nice {}."
TEMPLATE_ADJECTIVE = "This is a {} photo."
QUANTILE = 0.95
KINDS = ("adjectives", "nouns")


@dataclass(frozen=True)
class Ranked:
    """Words of one kind, farthest first, with distances (n,) float32, out of `total` candidates."""

    words: tuple[str, ...]
    distances: Tensor
    total: int


@dataclass(frozen=True)
class Negatives:
    """The mined words in slot order u: adjectives, then nouns, each farthest first.

    Attributes:
        words: (U,) words.
        distances: (U,) float32 d_u.
        kinds: (U,) `adjective` or `noun`.
    """

    words: tuple[str, ...]
    distances: Tensor
    kinds: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.words)


@dataclass(frozen=True)
class Ranking:
    """The candidates of both kinds, farthest first."""

    adjectives: Ranked
    nouns: Ranked

    def select(self, adjectives: list[int], nouns: list[int]) -> Negatives:
        """Take the words at given ranks.

        Args:
            adjectives: Ranks of adjectives.
            nouns: Ranks of nouns.

        Returns:
            The words with their distances.
        """
        words = [self.adjectives.words[i] for i in adjectives]
        words += [self.nouns.words[i] for i in nouns]
        distances = [self.adjectives.distances[adjectives], self.nouns.distances[nouns]]
        kinds = ("adjective",) * len(adjectives) + ("noun",) * len(nouns)
        return Negatives(tuple(words), torch.cat(distances), kinds)


def rank(
    backbone: Backbone,
    classes: Sequence[str],
    *,
    template_noun: str = TEMPLATE_NOUN,
    template_adjective: str = TEMPLATE_ADJECTIVE,
    quantile: float = QUANTILE,
    candidates: Candidates | None = None,
    cache_dir: Path | None = None,
) -> Ranking:
    """Rank every candidate by its distance from the ID classes.

    The encoded candidates (rounded to float16) and the distances are cached on disk apart: a new
    class list or quantile encodes only the class names.

    Args:
        backbone: The run's own backbone.
        classes: Names of the ID classes.
        template_noun: Text of ID names and nouns.
        template_adjective: Text of adjectives.
        quantile: q of the distance.
        candidates: Your own words instead of WordNet's.
        cache_dir: The folder of the cache; None: the default one.

    Returns:
        All candidates, farthest first.
    """
    query = Query.of(backbone, classes, template_noun, template_adjective, quantile, candidates)
    return query.rank(cache_folder(cache_dir, "negatives"))


def mine(
    backbone: Backbone,
    classes: Sequence[str],
    count: int,
    *,
    quantile: float = QUANTILE,
    band: tuple[float, float] = (0.0, 0.0),
    adjective_share: float | None = None,
    template_noun: str = TEMPLATE_NOUN,
    template_adjective: str = TEMPLATE_ADJECTIVE,
    candidates: Candidates | None = None,
    cache_dir: Path | None = None,
    rankings: Path | None = PACKAGED,
) -> Negatives:
    """Choose the negative words of an ID class list.

    Args:
        backbone: The run's own backbone.
        classes: Names of the ID classes.
        count: Number U of negatives; may be 0.
        quantile: q of the distance; 1 keeps only words far from every single class.
        band: The stretch of the ranking to take from, as fractions of all candidates of a kind, 0
            being the farthest. Words are evenly spaced in it; a band too narrow for the words asked
            is widened at its near end, so (0, 0) takes the farthest words, (0.05, 0.05) those after
            the extreme 5 %, and (0, 0.15) samples NegLabel's farthest 15 %.
        adjective_share: Share of adjectives; None for their share of the candidates, rounded down.
        template_noun: Text of ID names and nouns.
        template_adjective: Text of adjectives.
        candidates: Your own words instead of WordNet's.
        cache_dir: Where to keep encoded words; default `$FOCOOP_CACHE/negatives`, else
            `~/.cache/focoop/negatives`.
        rankings: The file of packaged rankings.

    Returns:
        The chosen words.

    Raises:
        ConfigError: There are fewer candidates than words asked for, or a setting is out of range.
    """
    if count < 0:
        raise ConfigError(f"the number of negatives is {count}: it must be 0 or more")
    if not 0 <= band[0] <= band[1] <= 1:
        raise ConfigError(f"the band {band} must be two fractions in order, such as (0.0, 0.15)")
    if count == 0:
        return Negatives((), torch.empty(0), ())
    query = Query.of(backbone, classes, template_noun, template_adjective, quantile, candidates)
    ranking = packaged(query.key, rankings) if rankings else None
    picks = _picks(ranking, count, adjective_share, band) if ranking else None
    if ranking is None or picks is None:
        ranking = query.rank(cache_folder(cache_dir, "negatives"))
        picks = _picks(ranking, count, adjective_share, band)
        assert picks is not None  # a full ranking is deep enough
    return ranking.select(*picks)


@dataclass(frozen=True)
class Query:
    """All that a ranking depends on: backbone, classes, templates, quantile and candidates."""

    backbone: Backbone
    classes: tuple[str, ...]
    templates: tuple[str, str]
    quantile: float
    words: Candidates

    @classmethod
    def of(
        cls,
        backbone: Backbone,
        classes: Sequence[str],
        noun: str = TEMPLATE_NOUN,
        adjective: str = TEMPLATE_ADJECTIVE,
        quantile: float = QUANTILE,
        words: Candidates | None = None,
    ) -> "Query":
        """Check the parts of a query; the order of the classes does not matter.

        Args:
            backbone: The run's own backbone.
            classes: Names of the ID classes.
            noun: Text of ID names and nouns.
            adjective: Text of adjectives.
            quantile: q of the distance.
            words: The candidates; None: WordNet's.

        Returns:
            The query.

        Raises:
            ConfigError: A template has no place for a word, or the quantile is out of range.
        """
        if not classes:
            raise ConfigError("no ID class names were given: negatives need at least one")
        if not 0 <= quantile <= 1:
            raise ConfigError(f"the quantile {quantile} is outside 0..1: the usual value is 0.95")
        for template in (noun, adjective):
            if template.count("{}") != 1:
                raise ConfigError(f"the template {template!r} must hold {{}} once, for the word")
        names = tuple(sorted(name.replace("_", " ") for name in classes))
        return cls(backbone, names, (noun, adjective), float(quantile), words or wordnet())

    @property
    def features_key(self) -> str:
        """Return a content hash of everything the encoded candidates depend on."""
        tower = [self.backbone.fingerprint, "None"]  # the place of a precision, now always float32
        return content_hash(["features 1", *tower, self.templates, self.words.version])

    @property
    def key(self) -> str:
        """Return a content hash of everything the ranking depends on."""
        return content_hash(["ranking 1", self.features_key, self.classes, self.quantile])

    def rank(self, folder: Path) -> Ranking:
        """Rank the candidates, from cached distances or features where there are some.

        Args:
            folder: The folder of the cache.

        Returns:
            The ranking.
        """
        candidates = self.words.without(self.classes)
        size = len(candidates.adjectives) + len(candidates.nouns)
        exact = content_hash([self.key, candidates.adjectives, candidates.nouns])
        path = folder / f"ranking-{exact}.safetensors"
        distances = cached_tensor(path, (size,), lambda: self.distances(candidates, folder))
        first = len(candidates.adjectives)
        return Ranking(
            _ranked(candidates.adjectives, distances[:first]),
            _ranked(candidates.nouns, distances[first:]),
        )

    def distances(self, candidates: Candidates, folder: Path) -> Tensor:
        """Compute the distances of candidates from the ID classes.

        Args:
            candidates: The candidates that are left after cleaning.
            folder: The folder of the cache.

        Returns:
            Distances (n,) float32 of adjectives, then nouns.
        """
        everything = [*self.words.adjectives, *self.words.nouns]
        shape = (len(everything), self.backbone.dim)
        path = folder / f"features-{self.features_key}.safetensors"
        features = cached_tensor(path, shape, self.encode)
        row = {word: i for i, word in enumerate(everything)}
        features = features[[row[word] for word in (*candidates.adjectives, *candidates.nouns)]]
        texts = [self.templates[0].format(name) for name in self.classes]
        classes = self.backbone.encode_texts(texts).float().cpu()  # (C, D)
        step = max(1, 2**22 // len(classes))  # torch.quantile takes at most 2^24 values
        out = torch.empty(len(features))
        for start in range(0, len(features), step):
            rows = F.normalize(features[start : start + step].float(), dim=1)
            out[start : start + step] = -torch.quantile(rows @ classes.T, self.quantile, dim=1)
        return out

    def encode(self) -> Tensor:
        """Return unit features (n, D) of all candidates in float16, adjectives first."""
        noun, adjective = self.templates
        texts = [adjective.format(word) for word in self.words.adjectives]
        texts += [noun.format(word) for word in self.words.nouns]
        return self.backbone.encode_texts(texts).cpu().half()


def packaged(key: str, file: Path = PACKAGED) -> Ranking | None:
    """Return the head of a ranking that ships with the package, for the demo.

    Args:
        key: The query's content hash.
        file: The packaged rankings.

    Returns:
        The ranking, or None where there is none of that key.
    """
    if not file.is_file():
        return None
    text = asset("demo/negatives.json") if file == PACKAGED else file.read_bytes()
    entry = json.loads(text)["rankings"].get(key)
    return None if entry is None else Ranking(**{kind: _unpack(entry[kind]) for kind in KINDS})


def _unpack(entry: dict[str, Any]) -> Ranked:
    distances = torch.tensor(entry["distances"], dtype=torch.float32)
    return Ranked(tuple(entry["words"]), distances, entry["total"])


def _ranked(words: Sequence[str], distances: Tensor) -> Ranked:
    """Sort by falling distance; `words` come sorted and the sort is stable, so ties do too."""
    order = distances.argsort(descending=True, stable=True)
    return Ranked(tuple(words[i] for i in order.tolist()), distances[order], len(words))


def adjective_count(count: int, adjectives: int, nouns: int, share: float | None = None) -> int:
    """Return how many of the words are adjectives: their share of the candidates, rounded down.

    Args:
        count: Number of words.
        adjectives: Number of candidate adjectives.
        nouns: Number of candidate nouns.
        share: Another share of adjectives.

    Returns:
        The number of adjectives.

    Raises:
        ConfigError: There are not enough candidates of a kind.

    >>> adjective_count(100, 11_454, 58_546)
    16
    >>> adjective_count(100, 11_454, 58_546, share=0.5)
    50
    """
    if share is None:
        return count * adjectives // max(1, adjectives + nouns)
    if not 0 <= share <= 1:
        raise ConfigError(f"the share of adjectives is {share}: it must lie in 0..1")
    return round(count * share)


def _picks(
    ranking: Ranking, count: int, share: float | None, band: tuple[float, float]
) -> tuple[list[int], list[int]] | None:
    """Ranks of the adjectives and of the nouns to take; None if the ranking is cut too early."""
    adjectives, nouns = ranking.adjectives, ranking.nouns
    first = adjective_count(count, adjectives.total, nouns.total, share)
    picks = (
        _spaced(adjectives, first, band, "adjectives"),
        _spaced(nouns, count - first, band, "nouns"),
    )
    for pick, kind in zip(picks, (adjectives, nouns), strict=True):
        if pick and pick[-1] >= len(kind.words):
            return None
    return picks


def _spaced(ranked: Ranked, count: int, band: tuple[float, float], kind: str) -> list[int]:
    """`count` ranks evenly spaced in the band, first and last rank of the band included."""
    start = int(band[0] * ranked.total)
    stop = max(int(band[1] * ranked.total), start + count)
    if stop > ranked.total:
        raise ConfigError(
            f"{count} {kind} were asked for, but only {max(0, ranked.total - start)} candidates "
            "are in the band: ask for fewer negatives, start the band earlier or give more words"
        )
    if count < 2:
        return [start] * count
    return [start + i * (stop - 1 - start) // (count - 1) for i in range(count)]
