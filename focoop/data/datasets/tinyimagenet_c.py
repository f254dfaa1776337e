"""TinyImageNet-C (Hendrycks and Dietterich 2019): a folder per corruption type and severity."""

from pathlib import Path

from focoop.data.dataset import Dataset, Download
from focoop.data.datasets.tinyimagenet import DATASET as CLEAN
from focoop.data.datasets.tinyimagenet import names
from focoop.data.image_set import ImageSet
from focoop.data.listing import Listing, by_folder
from focoop.errors import DataError

NAMES = """
brightness contrast defocus_blur elastic_transform fog frost gaussian_noise glass_blur
impulse_noise jpeg_compression motion_blur pixelate shot_noise snow zoom_blur
"""
TYPES = tuple(NAMES.split())


def corrupt(base: Path, kind: str, severity: int) -> ImageSet:
    """Images of `<type>/<severity>/<wnid>/*`, named by the `words.txt` of TinyImageNet."""
    clean = CLEAN.find(base.parent)
    if clean is None:
        raise DataError(f"{base} has no class names: put TinyImageNet beside it ({CLEAN.layout})")
    paths = sorted((base / kind / str(severity)).glob("*/*.JPEG"))
    wnids, rows = by_folder(path.relative_to(base).as_posix() for path in paths)
    return Listing(base, names(clean, wnids), {"test": rows}).pick("test")


DATASET = Dataset(
    title="TinyImageNet-C",
    folder="Tiny-ImageNet-C",
    marks=("brightness",),
    layout="Tiny-ImageNet-C/<type>/<severity 1 to 5>/<wnid>/*.JPEG, beside tiny-imagenet-200",
    classes=200,
    counts={"test": 10_000},
    licence="CC BY 4.0",
    page="https://zenodo.org/records/8206060",
    role="corrupted",
    corrupt=corrupt,
    types=TYPES,
    downloads=(
        Download(
            "https://zenodo.org/records/8206060/files/Tiny-ImageNet-C.tar",
            "Tiny-ImageNet-C.tar",
            "md5:f9c9a9dbdc11469f0b850190f7ad8be1",
            1_794_775_040,
            unpack="",
        ),
    ),
)
