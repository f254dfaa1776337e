"""iSUN for detection: the 8,925 patches of ODIN (Liang et al. 2018)."""

from focoop.data.dataset import Dataset, Download
from focoop.data.listing import flat

DATASET = Dataset(
    title="iSUN",
    folder="iSUN",
    marks=("iSUN_patches",),
    layout="iSUN/iSUN_patches/*.jpeg",
    classes=0,
    counts={"test": 8_925},
    licence="none stated; research",
    page="https://github.com/facebookresearch/odin",
    read=lambda base: flat(base, "iSUN_patches", "isun"),
    role="ood",
    downloads=(
        Download(
            "https://www.dropbox.com/s/ssz7qxfqae0cca5/iSUN.tar.gz?dl=1",
            "iSUN.tar.gz",
            "md5:be77b0f2c26fda898afac5f99645ee70",
            unpack="",
        ),
    ),
)
