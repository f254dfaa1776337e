"""iNaturalist for detection: the 10,000 images of MOS (Huang and Li 2021)."""

from focoop.data.dataset import Dataset, Download
from focoop.data.listing import flat

DATASET = Dataset(
    title="iNaturalist",
    folder="iNaturalist",
    marks=("images",),
    layout="iNaturalist/images/*.jpg",
    classes=0,
    counts={"test": 10_000},
    licence="non-commercial research (iNaturalist)",
    page="https://github.com/deeplearning-wisc/large_scale_ood",
    read=lambda base: flat(base, "images", "inaturalist"),
    role="ood",
    downloads=(
        Download(
            "http://pages.cs.wisc.edu/~huangrui/imagenet_ood_dataset/iNaturalist.tar.gz",
            "iNaturalist.tar.gz",
            "md5:5be6ea8aa027d7b631916427b32cb335",
            unpack="",
        ),
    ),
)
