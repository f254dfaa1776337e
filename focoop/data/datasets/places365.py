"""Places365 for detection: the 10,000 images of MOS (Huang and Li 2021)."""

from focoop.data.dataset import Dataset, Download
from focoop.data.listing import flat

DATASET = Dataset(
    title="Places365",
    folder="Places",
    marks=("images",),
    layout="Places/images/*.jpg",
    classes=0,
    counts={"test": 10_000},
    licence="non-commercial research (Places)",
    page="https://github.com/deeplearning-wisc/large_scale_ood",
    read=lambda base: flat(base, "images", "places365"),
    role="ood",
    downloads=(
        Download(
            "http://pages.cs.wisc.edu/~huangrui/imagenet_ood_dataset/Places.tar.gz",
            "Places.tar.gz",
            "md5:b5cb5eba2754ae2a28beea8718db699a",
            unpack="",
        ),
    ),
)
