"""Texture for detection: all 5,640 images of DTD, whatever their split."""

from focoop.data.dataset import Dataset
from focoop.data.datasets.dtd import ARCHIVE
from focoop.data.listing import flat

DATASET = Dataset(
    title="Texture",
    folder="dtd",
    others=("dtd/dtd",),
    marks=("images",),
    layout="dtd/images/<class>/*.jpg",
    classes=0,
    counts={"test": 5_640},
    licence="research only",
    page="https://www.robots.ox.ac.uk/~vgg/data/dtd",
    read=lambda base: flat(base, "images", "texture"),
    role="ood",
    downloads=(ARCHIVE,),
)
