"""TinyImageNet (Stanford CS231N): 200 classes at 64 px; its validation images are the test split.

A class is called by the first synonym of its WordNet entry; where two classes share it, by the
first that is its own.
"""

from collections import Counter
from pathlib import Path

from focoop.data.dataset import Dataset, Download
from focoop.data.listing import Listing, Row, read_lines
from focoop.errors import DataError


def names(base: Path, wnids: list[str]) -> list[str]:
    """Read the class names of WordNet ids from `words.txt`.

    Args:
        base: The dataset's folder.
        wnids: WordNet ids.

    Returns:
        The names.

    Raises:
        DataError: An id has no name.
    """
    words = dict(line.split("\t", 1) for line in read_lines(base / "words.txt") if "\t" in line)
    missing = [wnid for wnid in wnids if wnid not in words]
    if missing:
        raise DataError(f"{base / 'words.txt'} has no name for {missing[0]}: get the dataset again")
    synonyms = {wnid: [word.strip() for word in words[wnid].split(",")] for wnid in wnids}
    counts = Counter(word for terms in synonyms.values() for word in terms)
    firsts = Counter(terms[0] for terms in synonyms.values())
    unique = {word for word, count in counts.items() if count == 1}
    return [
        terms[0]
        if firsts[terms[0]] == 1
        else next((w for w in terms if w in unique), f"{terms[0]} {wnid}")
        for wnid, terms in synonyms.items()
    ]


def read(base: Path) -> Listing:
    """`train/<wnid>/images/*` and `val/images/*` with `val_annotations.txt`."""
    wnids = sorted(read_lines(base / "wnids.txt"))
    place = {wnid: label for label, wnid in enumerate(wnids)}
    train: list[Row] = []
    for wnid, label in place.items():
        paths = sorted((base / "train" / wnid / "images").glob("*.JPEG"))
        train += [(path.relative_to(base).as_posix(), label) for path in paths]
    test = []
    for line in read_lines(base / "val" / "val_annotations.txt"):
        file, wnid = line.split("\t")[:2]
        if wnid not in place:
            raise DataError(f"{base}/val/val_annotations.txt: {wnid} is not in wnids.txt")
        test.append((f"val/images/{file}", place[wnid]))
    return Listing(base, names(base, wnids), {"train": train, "test": test})


DATASET = Dataset(
    title="TinyImageNet",
    folder="tiny-imagenet-200",
    marks=("wnids.txt", "words.txt", "train", "val/val_annotations.txt"),
    layout="tiny-imagenet-200/wnids.txt, words.txt, train/<wnid>/images/*.JPEG, val/images/*.JPEG "
    "and val/val_annotations.txt",
    classes=200,
    counts={"train": 100_000, "test": 10_000},
    licence="that of ImageNet: non-commercial research and education",
    page="http://cs231n.stanford.edu",
    read=read,
    corrupted="tinyimagenet_c",
    downloads=(
        Download(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            "tiny-imagenet-200.zip",
            "md5:90528d7ca1a48142e341f4ef8d21d0de",
            248_100_043,
            unpack="",
        ),
    ),
)
