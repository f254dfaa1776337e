"""DomainNet (Peng et al. 2019), cleaned version: 345 classes in six domains, the authors' split."""

from pathlib import Path

from focoop.data.dataset import Dataset, Download
from focoop.data.listing import Listing, Row, read_lines, spaced

SITE = "http://csr.bu.edu/ftp/visda/2019/multi-source"
# Domain -> archive, its checksum, those of its training and test lists.
DOMAINS = {
    "clipart": (
        "groundtruth/clipart.zip",
        "cd0d8f2d77a4e181449b78ed62bccf1e",
        "b4349693a7f9c05c53955725c47ed6cb",
        "f5ddbcfd657a3acf9d0f7da10db22565",
    ),
    "infograph": (
        "infograph.zip",
        "720380b86f9e6ab4805bb38b6bd135f8",
        "379b50054f4ac2018dca4f89421b92d9",
        "779626b50869edffe8ea6941c3755c71",
    ),
    "painting": (
        "groundtruth/painting.zip",
        "1ae32cdb4f98fe7ab5eb0a351768abfd",
        "7db0e7ca73ad9982f6e1f7f3ef372c0a",
        "232b35dc53f26d414686ae579e38d9b5",
    ),
    "quickdraw": (
        "quickdraw.zip",
        "bdc1b6f09f277da1a263389efe0c7a66",
        "b732ced3939ac8efdd8c0a889dca56cc",
        "c1a828fdfe216fb109f1c0083a252c6f",
    ),
    "real": (
        "real.zip",
        "dcc47055e8935767784b7162e7c7cca6",
        "8ebf02c2075fadd564705f0dc7cd6291",
        "6098816791c3ebed543c71ffa11b9054",
    ),
    "sketch": (
        "sketch.zip",
        "658d8009644040ff7ce30bb2e820850f",
        "1233bd18aa9a8a200bf4cecf1c34ef3e",
        "d8a222e4672cfd585298aa14d02ea441",
    ),
}
FOLDERS = ("", "splits", "txt")


def read(base: Path, only: tuple[str, ...] = ()) -> Listing:
    """Read `<domain>_{train,test}.txt`, lines of `domain/class/file label`; classes by folder name.

    Args:
        base: The dataset's folder.
        only: The classes to read; empty: all.

    Returns:
        All splits, with domains.
    """
    where = next((f for f in FOLDERS if (base / f / "clipart_train.txt").is_file()), "")
    splits: dict[str, list[Row]] = {"train": [], "test": []}
    domains: dict[str, list[int]] = {"train": [], "test": []}
    entries: dict[str, list[tuple[str, str, int]]] = {"train": [], "test": []}
    for number, domain in enumerate(DOMAINS):
        for split, rows in entries.items():
            for line in read_lines(base / where / f"{domain}_{split}.txt"):
                file = line.rpartition(" ")[0]
                name = file.split("/")[-2]
                if not only or name in only:
                    rows.append((file, name, number))
    classes = sorted({name for rows in entries.values() for _, name, _ in rows})
    place = {name: label for label, name in enumerate(classes)}
    for split, rows in entries.items():
        splits[split] = [(file, place[name]) for file, name, _ in rows]
        domains[split] = [number for _, _, number in rows]
    return Listing(base, [spaced(name) for name in classes], splits, domains, list(DOMAINS))


def _downloads() -> tuple[Download, ...]:
    downloads = []
    for domain, (archive, checksum, train, test) in DOMAINS.items():
        url, file = f"{SITE}/{archive}", f"{domain}.zip"
        md5 = f"md5:{checksum}"
        downloads.append(Download(url, file, md5, unpack="domainnet", gives=domain))
        for split, of_list in (("train", train), ("test", test)):
            file = f"{domain}_{split}.txt"
            downloads.append(Download(f"{SITE}/domainnet/txt/{file}", file, f"md5:{of_list}"))
    return tuple(downloads)


DATASET = Dataset(
    title="DomainNet",
    folder="domainnet",
    others=("DomainNet", "domain_net"),
    marks=tuple(DOMAINS),
    layout="domainnet/{clipart,infograph,painting,quickdraw,real,sketch}/<class>/* and "
    "<domain>_train.txt, <domain>_test.txt",
    classes=345,
    counts={"train": 409_832, "test": 176_743},
    licence="fair use for research and education (see its page)",
    page="http://ai.bu.edu/M3SDA",
    read=read,
    downloads=_downloads(),
)
