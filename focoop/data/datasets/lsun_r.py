"""LSUN for detection, resized to 32 px: the 10,000 images of ODIN (Liang et al. 2018)."""

from focoop.data.dataset import Dataset, Download
from focoop.data.listing import flat

DATASET = Dataset(
    title="LSUN-R",
    folder="LSUN_resize",
    marks=("LSUN_resize",),
    layout="LSUN_resize/LSUN_resize/*.jpg",
    classes=0,
    counts={"test": 10_000},
    licence="none stated; research",
    page="https://github.com/facebookresearch/odin",
    read=lambda base: flat(base, "LSUN_resize", "lsun_r"),
    role="ood",
    downloads=(
        Download(
            "https://www.dropbox.com/s/moqh2wh8696c3yl/LSUN_resize.tar.gz?dl=1",
            "LSUN_resize.tar.gz",
            "md5:278b7b31c8cb7e804a1465a8ce03a2dc",
            unpack="",
        ),
    ),
)
