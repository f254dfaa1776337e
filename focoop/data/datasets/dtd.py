"""Describable Textures (Cimpoi et al. 2014) with CoOp's split; `dtd/official` has partition 1."""

from pathlib import Path

from focoop.data.dataset import Dataset, Download, drive
from focoop.data.listing import Listing, Row, coop, read_lines, spaced

SPLIT = "split_zhou_DescribableTextures.json"
ARCHIVE = Download(
    "https://www.robots.ox.ac.uk/~vgg/data/dtd/download/dtd-r1.0.1.tar.gz",
    "dtd-r1.0.1.tar.gz",
    "md5:fff73e5086ae6bdbea199a49dfb8a4c1",
    625_239_812,
    unpack="",
)


def official(base: Path) -> Listing:
    """`labels/{train,val,test}1.txt`, lines of `class/file`."""
    lists = {s: read_lines(base / "labels" / f"{s}1.txt") for s in ("train", "val", "test")}
    classes = sorted({line.split("/")[0] for lines in lists.values() for line in lines})
    splits: dict[str, list[Row]] = {
        split: [(f"images/{line}", classes.index(line.split("/")[0])) for line in lines]
        for split, lines in lists.items()
    }
    return Listing(base, [spaced(name) for name in classes], splits)


DATASET = Dataset(
    title="DTD",
    folder="dtd",
    others=("dtd/dtd",),
    marks=("images",),
    layout=f"dtd/images/<class>/*.jpg, labels/*.txt and {SPLIT}",
    classes=47,
    counts={"train": 2_820, "val": 1_128, "test": 1_692},
    licence="research only",
    page="https://www.robots.ox.ac.uk/~vgg/data/dtd",
    read=lambda base: coop(base, "images", SPLIT),
    official=official,
    downloads=(
        ARCHIVE,
        Download(
            drive("1u3_QfB467jqHgNXC00UIzbLZRQCg2S7x"),
            SPLIT,
            "sha256:f26ebeccd2b58e68d70f07a0dc39fe49bf7b69024bac34396b954dfd87969c38",
            563_702,
        ),
    ),
)
