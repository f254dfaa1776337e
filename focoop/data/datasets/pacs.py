"""PACS (Li et al. 2017): seven classes in four domains, no split used."""

from focoop.data.dataset import Dataset
from focoop.data.listing import domain_folders

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")

DATASET = Dataset(
    title="PACS",
    folder="PACS",
    others=("pacs", "kfold", "PACS/kfold", "pacs/images"),
    marks=DOMAINS,
    layout="PACS/{art_painting,cartoon,photo,sketch}/<class>/*",
    classes=7,
    counts={"art_painting": 2_048, "cartoon": 2_344, "photo": 1_670, "sketch": 3_929},
    licence="none stated; research",
    page="https://sketchx.eecs.qmul.ac.uk",
    read=lambda base: domain_folders(base, {domain: domain for domain in DOMAINS}),
    by_hand="its authors' links have changed hands: get the four folders from a copy you trust",
)
