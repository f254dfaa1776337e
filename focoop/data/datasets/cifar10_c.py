"""CIFAR-10-C (Hendrycks and Dietterich 2019): one array of 50,000 images per corruption type."""

from pathlib import Path

from focoop.data.dataset import Dataset, Download
from focoop.data.datasets._arrays import read_npy
from focoop.data.datasets.cifar10 import CLASSES
from focoop.data.image_set import ImageSet, Pixels
from focoop.errors import DataError

NAMES = """
brightness contrast defocus_blur elastic_transform fog frost gaussian_blur gaussian_noise
glass_blur impulse_noise jpeg_compression motion_blur pixelate saturate shot_noise snow
spatter speckle_noise zoom_blur
"""
TYPES = tuple(NAMES.split())


def corrupt(base: Path, kind: str, severity: int, classes: list[str]) -> ImageSet:
    """Read the images of one severity.

    A file holds severities 1 to 5, each the test set in its order.

    Args:
        base: The dataset's folder.
        kind: The corruption's name.
        severity: 1 to 5.
        classes: Class names in label order.

    Returns:
        The images.

    Raises:
        DataError: A file is missing or has another length.
    """
    pixels, labels = read_npy(base / f"{kind}.npy"), read_npy(base / "labels.npy")
    if pixels.shape[1:] != (32, 32, 3) or len(pixels) != len(labels) or len(labels) % 5:
        raise DataError(
            f"{base / kind}.npy holds {pixels.shape} and labels.npy {labels.shape}: expected five "
            "times the test set of 32 x 32 x 3 images; get the dataset again"
        )
    count = len(labels) // 5
    first = (severity - 1) * count
    rows = [int(label) for label in labels[first : first + count]]
    return ImageSet(
        root=base,
        files=tuple(f"{kind}/{severity}/{i:05d}" for i in range(count)),
        labels=tuple(rows),
        classes=tuple(classes),
        split="test",
        store=Pixels(pixels[first : first + count]),
    )


DATASET = Dataset(
    title="CIFAR-10-C",
    folder="CIFAR-10-C",
    marks=("labels.npy",),
    layout="CIFAR-10-C/labels.npy and one TYPE.npy per corruption, (50000, 32, 32, 3) each",
    classes=10,
    counts={"test": 10_000},
    licence="CC BY 4.0",
    page="https://zenodo.org/records/2535967",
    role="corrupted",
    corrupt=lambda base, kind, severity: corrupt(base, kind, severity, CLASSES),
    types=TYPES,
    downloads=(
        Download(
            "https://zenodo.org/records/2535967/files/CIFAR-10-C.tar",
            "CIFAR-10-C.tar",
            "md5:56bf5dcef84df0e2308c6dcbcbbd8499",
            2_918_471_680,
            unpack="",
        ),
    ),
)
