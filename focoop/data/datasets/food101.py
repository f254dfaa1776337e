"""Food-101 (Bossard et al. 2014) with CoOp's split; `food101/official` has the authors'."""

from pathlib import Path

from focoop.data.dataset import Dataset, Download, drive
from focoop.data.listing import Listing, Row, coop, read_json, spaced

SPLIT = "split_zhou_Food101.json"


def official(base: Path) -> Listing:
    """`meta/train.json` and `meta/test.json`: class -> images."""
    listed = {split: read_json(base / "meta" / f"{split}.json") for split in ("train", "test")}
    classes = sorted(listed["train"])
    splits: dict[str, list[Row]] = {
        split: [
            (f"images/{image}.jpg", classes.index(name)) for name in rows for image in rows[name]
        ]
        for split, rows in listed.items()
    }
    return Listing(base, [spaced(name) for name in classes], splits)


DATASET = Dataset(
    title="Food-101",
    folder="food-101",
    marks=("images",),
    layout=f"food-101/images/<class>/*.jpg, meta/*.json and {SPLIT}",
    classes=101,
    counts={"train": 50_500, "val": 20_200, "test": 30_300},
    licence="research; the photographs belong to their authors (see its license_agreement.txt)",
    page="https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101",
    read=lambda base: coop(base, "images", SPLIT),
    official=official,
    downloads=(
        Download(
            "http://data.vision.ee.ethz.ch/cvl/food-101.tar.gz",
            "food-101.tar.gz",
            "md5:85eeb15f3717b99a5da872d97d918f87",
            4_996_278_331,
            unpack="",
        ),
        Download(
            drive("1QK0tGi096I0Ba6kggatX1ee6dJFIcEJl"),
            SPLIT,
            "sha256:7c3d456c4f348255e1a363e0ea5118318936488f3ec20d83758e0ee67cb9037c",
            10_203_303,
        ),
    ),
)
