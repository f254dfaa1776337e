"""Office-Caltech10 (Gong et al. 2012): ten classes in four domains, no split."""

from pathlib import Path

from focoop.data.dataset import Dataset, Download
from focoop.data.listing import Listing, domain_folders, spaced

DOMAINS = {"amazon": "amazon", "caltech": "caltech", "dslr": "dslr", "webcam": "webcam"}
PLAIN = {"back pack": "backpack", "laptop computer": "laptop"}


def read(base: Path) -> Listing:
    """`<domain>/<class>/*`; the Caltech domain is also called caltech10."""
    folders = dict(DOMAINS)
    if not (base / "caltech").is_dir():
        folders = {folder.replace("caltech", "caltech10"): name for folder, name in DOMAINS.items()}
    return domain_folders(base, folders, lambda name: PLAIN.get(spaced(name), spaced(name)))


DATASET = Dataset(
    title="Office-Caltech10",
    folder="office_caltech_10",
    others=("office_caltech10", "office_caltech_10_dataset/office_caltech_10"),
    marks=("amazon", "dslr", "webcam"),
    layout="office_caltech_10/{amazon,caltech,dslr,webcam}/<class>/*.jpg",
    classes=10,
    counts={"amazon": 958, "caltech": 1_123, "dslr": 157, "webcam": 295},
    licence="none stated; research",
    page="https://github.com/med-air/FedBN",
    read=read,
    domains={"caltech10": "caltech"},
    downloads=(
        Download(  # the address of FedBN's README since it left Google Drive
            "https://huggingface.co/datasets/Jemary/FedBN_Dataset/resolve/main/"
            "office_caltech_10_dataset.zip",
            "office_caltech_10_dataset.zip",
            unpack="",
        ),
    ),
)
