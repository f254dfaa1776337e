"""CIFAR-100-C (Hendrycks and Dietterich 2019): laid out as CIFAR-10-C."""

from focoop.data.dataset import Dataset, Download
from focoop.data.datasets.cifar10_c import TYPES, corrupt
from focoop.data.datasets.cifar100 import CLASSES

DATASET = Dataset(
    title="CIFAR-100-C",
    folder="CIFAR-100-C",
    marks=("labels.npy",),
    layout="CIFAR-100-C/labels.npy and one TYPE.npy per corruption, (50000, 32, 32, 3) each",
    classes=100,
    counts={"test": 10_000},
    licence="CC BY 4.0",
    page="https://zenodo.org/records/3555552",
    role="corrupted",
    corrupt=lambda base, kind, severity: corrupt(base, kind, severity, CLASSES),
    types=TYPES,
    downloads=(
        Download(
            "https://zenodo.org/records/3555552/files/CIFAR-100-C.tar",
            "CIFAR-100-C.tar",
            "md5:11f0ed0f1191edbf9fa23466ae6021d3",
            2_918_473_216,
            unpack="",
        ),
    ),
)
