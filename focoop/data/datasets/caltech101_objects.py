"""Objects for detection: Caltech-101 classes that TinyImageNet, Pets, Office and PACS lack."""

from pathlib import Path

from focoop.data.class_names import plain
from focoop.data.dataset import Dataset
from focoop.data.datasets.caltech101 import ARCHIVE
from focoop.data.listing import Listing, flat

NAMES = """
accordion, airplanes, anchor, bonsai, brontosaurus, buddha, ceiling fan, chandelier, dollar bill,
dolphin, euphonium, ewer, gramophone, grand piano, hawksbill, hedgehog, helicopter, inline skate,
joshua tree, kangaroo, lotus, menorah, metronome, nautilus, octopus, panda, platypus, revolver,
rhino, saxophone, scissors, sea horse, soccer ball, stapler, starfish, stegosaurus, stop sign,
strawberry, sunflower, water lilly, wheelchair, wrench, yin yang
"""
WANTED = frozenset(" ".join(name.split()) for name in NAMES.split(","))
FOLDER = "101_ObjectCategories"


def read(base: Path) -> Listing:
    """All images of those class folders, as one class of one split."""
    whole = flat(base, FOLDER, "caltech101_objects")
    rows = [row for row in whole.splits["test"] if plain(row[0].split("/")[-2]) in WANTED]
    return Listing(base, whole.classes, {"test": rows})


DATASET = Dataset(
    title="Caltech-101 objects",
    folder="caltech-101",
    others=("caltech101",),
    marks=(FOLDER,),
    layout=f"caltech-101/{FOLDER}/<class>/*.jpg",
    classes=0,
    counts={"test": 3403},  # of Caltech-101's 8,677 images in 101 classes
    licence="CC BY 4.0",
    page="https://data.caltech.edu/records/mzrjq-6wc02",
    read=read,
    role="ood",
    downloads=(ARCHIVE,),
)
