"""Caltech-101 (Fei-Fei et al. 2004) with CoOp's split: 100 classes, no background, one of faces."""

from focoop.data.dataset import Dataset, Download, drive
from focoop.data.listing import coop, spaced

SPLIT = "split_zhou_Caltech101.json"
# CoOp leaves out BACKGROUND_Google and Faces_easy, and writes these in the singular.
SINGULAR = {
    "airplanes": "airplane",
    "Faces": "face",
    "Leopards": "leopard",
    "Motorbikes": "motorbike",
}
ARCHIVE = Download(
    "https://data.caltech.edu/records/mzrjq-6wc02/files/caltech-101.zip",
    "caltech-101.zip",
    "sha256:331234750fc7f77520e50d9565e8b6907b03565e30320da1401130db08c61f91",
    137_414_764,
    unpack="",
    inner="caltech-101/101_ObjectCategories.tar.gz",
)

DATASET = Dataset(
    title="Caltech-101",
    folder="caltech-101",
    others=("caltech101",),
    marks=("101_ObjectCategories",),
    layout=f"caltech-101/101_ObjectCategories/<class>/*.jpg and {SPLIT}",
    classes=100,
    counts={"train": 4_128, "val": 1_649, "test": 2_465},
    licence="CC BY 4.0",
    page="https://data.caltech.edu/records/mzrjq-6wc02",
    read=lambda base: coop(
        base, "101_ObjectCategories", SPLIT, lambda name: spaced(SINGULAR.get(name, name))
    ),
    no_classes=("BACKGROUND_Google",),
    downloads=(
        ARCHIVE,
        Download(
            drive("1hyarUivQE36mY6jSomru6Fjd-JzwcCzN"),
            SPLIT,
            "sha256:52ce83205ff8ff8a1a18119aad6376120ae35c36e783a984bc560cbf10e73fa5",
            809_184,
        ),
    ),
)
