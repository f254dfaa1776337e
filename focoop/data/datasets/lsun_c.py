"""LSUN for detection, cropped to 32 px: the 10,000 images of ODIN (Liang et al. 2018)."""

from focoop.data.dataset import Dataset, Download
from focoop.data.listing import flat

DATASET = Dataset(
    title="LSUN-C",
    folder="LSUN",
    marks=("test",),
    layout="LSUN/test/*.jpg",
    classes=0,
    counts={"test": 10_000},
    licence="none stated; research",
    page="https://github.com/facebookresearch/odin",
    read=lambda base: flat(base, "test", "lsun_c"),
    role="ood",
    downloads=(
        Download(
            "https://www.dropbox.com/s/fhtsw1m3qxlwj6h/LSUN.tar.gz?dl=1",
            "LSUN.tar.gz",
            "md5:458a0a0ab8e5f1cb4516d7400568e460",
            unpack="",
        ),
    ),
)
