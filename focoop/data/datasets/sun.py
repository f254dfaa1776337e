"""SUN for detection: the 10,000 images of MOS (Huang and Li 2021)."""

from focoop.data.dataset import Dataset, Download
from focoop.data.listing import flat

DATASET = Dataset(
    title="SUN",
    folder="SUN",
    marks=("images",),
    layout="SUN/images/*.jpg",
    classes=0,
    counts={"test": 10_000},
    licence="research (SUN database)",
    page="https://github.com/deeplearning-wisc/large_scale_ood",
    read=lambda base: flat(base, "images", "sun"),
    role="ood",
    downloads=(
        Download(
            "http://pages.cs.wisc.edu/~huangrui/imagenet_ood_dataset/SUN.tar.gz",
            "SUN.tar.gz",
            "md5:8469c3ada62211477954ec1be53b12d0",
            unpack="",
        ),
    ),
)
