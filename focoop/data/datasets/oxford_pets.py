"""Oxford-IIIT Pets (Parkhi et al. 2012) with CoOp's split; `oxford_pets/official`: the authors'."""

from pathlib import Path

from focoop.data.dataset import Dataset, Download, drive
from focoop.data.listing import Listing, Row, coop, in_order, read_lines, spaced

SPLIT = "split_zhou_OxfordPets.json"


def official(base: Path) -> Listing:
    """`annotations/{trainval,test}.txt`, lines of `Breed_12 label species id`."""
    splits: dict[str, list[Row]] = {}
    names: dict[int, str] = {}
    for split, file in (("train", "trainval.txt"), ("test", "test.txt")):
        rows = [line.split() for line in read_lines(base / "annotations" / file)]
        splits[split] = [(f"images/{row[0]}.jpg", int(row[1]) - 1) for row in rows]
        names |= {int(row[1]) - 1: spaced(row[0].rpartition("_")[0].lower()) for row in rows}
    return Listing(base, in_order(names, base / "annotations"), splits)


DATASET = Dataset(
    title="Oxford Pets",
    folder="oxford_pets",
    others=("oxford-iiit-pet",),
    marks=("images",),
    layout=f"oxford_pets/images/*.jpg, annotations/*.txt and {SPLIT}",
    classes=37,
    counts={"train": 2_944, "val": 736, "test": 3_669},
    licence="CC BY-SA 4.0",
    page="https://www.robots.ox.ac.uk/~vgg/data/pets",
    read=lambda base: coop(base, "images", SPLIT),
    official=official,
    downloads=(
        Download(
            "https://www.robots.ox.ac.uk/~vgg/data/pets/data/images.tar.gz",
            "images.tar.gz",
            "md5:5c4f3ee8e5d25df40f4fd59a7f44e54c",
            791_918_971,
            unpack="oxford_pets",
        ),
        Download(
            "https://www.robots.ox.ac.uk/~vgg/data/pets/data/annotations.tar.gz",
            "annotations.tar.gz",
            "md5:95a8c909bbe2e81eed6a22bccdf3f68f",
            19_173_078,
            unpack="oxford_pets",
            gives="annotations",
        ),
        Download(
            drive("1501r8Ber4nNKvmlFVQZ8SeUHTcdTTEqs"),
            SPLIT,
            "sha256:d7f3ffe65b3919f95132e51422894ae18686b83c331fd8c0adcdc3dc2de6301e",
            724_217,
        ),
    ),
)
