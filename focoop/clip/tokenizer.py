"""CLIP's byte-pair encoding on integers: bytes and merges are token ids, no string vocabulary.

Ids 0..255 are bytes in CLIP's order, 256..511 the same at the end of a word, 512+r is merge r.
Against the released tokenizer: mis-decoded text is not repaired, and the special tokens cannot be
written in a text.
"""

import html
import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from io import BytesIO
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from focoop.assets import asset

SOT = 49406
EOT = 49407
MERGES = "bpe_merges.npy"

# Letters and digits come out together and are parted below, as `re` has no class of all numbers.
CHUNKS = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d|[^\W_]+|(?:[^\w\s]|_)+", re.IGNORECASE)
CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\u206a-\u206f\ufeff\ufff9-\ufffc]")
WIDE = re.compile("[\u3000\uff01-\uffef\ufb00-\ufb06\u0132\u0133\u01c4-\u01cc\u01f1-\u01f3]+")
PLAIN = {0x02BC: "'", 0x0149: "'n", 0xFB05: "\u017ft"}
PLAIN |= dict.fromkeys(range(0x2018, 0x201C), "'") | dict.fromkeys(range(0x201C, 0x2020), '"')


def clean(text: str) -> str:
    """Clean a text: plain quotes, no ligatures or HTML entities, single spaces, lower case.

    Args:
        text: The text.

    Returns:
        The cleaned text.
    """
    if not text.isascii():
        text = WIDE.sub(lambda part: unicodedata.normalize("NFKC", part[0]), text.translate(PLAIN))
        text = unicodedata.normalize("NFC", text)
    text = html.unescape(html.unescape(CONTROL.sub("", text)))
    return " ".join(text.split()).lower()


def split(text: str) -> list[str]:
    """Cut cleaned text into words.

    Runs of letters, single numbers, runs of other signs, contractions.

    Args:
        text: The cleaned text.

    Returns:
        The words.
    """
    words: list[str] = []
    for chunk in CHUNKS.findall(text):
        if chunk.isalpha() or not chunk[0].isalnum():
            words.append(chunk)
            continue
        start = 0
        for stop, char in enumerate(chunk):
            if not char.isalpha():
                words += [chunk[start:stop], char] if stop > start else [char]
                start = stop + 1
        words += [chunk[start:]] if start < len(chunk) else []
    return words


class Tokenizer:
    """Turn texts into (N, context_length) int64 tokens: SOT, words, EOT, zeros.

    Long texts are cut.
    """

    def __init__(self, context_length: int = 77) -> None:
        self.context_length = context_length
        self.merges = load_merges()
        self.byte_ids = byte_ids()
        self.words: dict[str, list[int]] = {}

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Tokenise texts; one that does not fit is cut and still ends with EOT."""
        out = np.zeros((len(texts), self.context_length), dtype=np.int64)
        for row, text in zip(out, texts, strict=True):
            tokens = [SOT, *self.encode(text)[: self.context_length - 2], EOT]
            row[: len(tokens)] = tokens
        return torch.from_numpy(out)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text without SOT and EOT.

        Args:
            text: The text.

        Returns:
            Token ids.
        """
        tokens: list[int] = []
        for word in split(clean(text)):
            merged = self.words.get(word)
            if merged is None:
                merged = self.words[word] = self.merge(word)
            tokens += merged
        return tokens

    def merge(self, word: str) -> list[int]:
        """Byte-pair encode one word: the pair merged earliest in training goes first.

        Args:
            word: The word.

        Returns:
            Token ids.
        """
        ids = [self.byte_ids[byte] for byte in word.encode(errors="replace")]
        ids[-1] += 256
        merges = self.merges
        while len(ids) > 1:
            pairs = [merges.get(a << 16 | b, EOT) for a, b in pairwise(ids)]
            best = min(pairs)
            if best == EOT:
                break
            merged: list[int] = []
            at = 0
            while at < len(ids):
                hit = at < len(pairs) and pairs[at] == best
                merged.append(best if hit else ids[at])
                at += 2 if hit else 1
            ids = merged
        return ids


@cache
def load_merges() -> dict[int, int]:
    """Return the merges: pair of ids (first << 16 | second) -> id of the merged token."""
    pairs = np.load(BytesIO(asset(MERGES))).astype(np.int64)  # (48894, 2)
    keys = pairs[:, 0] << 16 | pairs[:, 1]
    return dict(zip(keys.tolist(), range(512, 512 + len(keys)), strict=True))


@cache
def byte_ids() -> tuple[int, ...]:
    """Return the token id of each byte: CLIP lists the printable Latin-1 signs first."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order = printable + sorted(set(range(256)) - set(printable))
    ids = [0] * 256
    for position, byte in enumerate(order):
        ids[byte] = position
    return tuple(ids)
