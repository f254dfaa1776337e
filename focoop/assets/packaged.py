"""Read packaged files, compared with their pinned checksums."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from focoop.caching import checksum
from focoop.errors import DataError

AGAIN = "install focoop again"
ASSETS = Path(__file__).resolve().parent
SUMS = {
    "bpe_merges.npy": "4f7695014d852f1cbd4d42ccd64e10ed",
    "class_names.json": "252b492b30d9217d39ef24eb28ba9374",
    "demo/cifar100.brightness.1.safetensors.gz": "25b961e6a4f92e49a86cbe234f76a89c",
    "demo/cifar100.brightness.2.safetensors.gz": "08ab90756752d4cea03655a477d662e2",
    "demo/cifar100.brightness.3.safetensors.gz": "eb84e90ea507f96cabfa45e0dd77e414",
    "demo/cifar100.brightness.4.safetensors.gz": "921ba519fa941aefc8a303258b68c631",
    "demo/cifar100.brightness.5.safetensors.gz": "b280056519ffe70e60ea04b4750055d6",
    "demo/cifar100.safetensors.gz": "e96da1e83b8ccb9467dc6c5b50b33db6",
    "demo/dtd.safetensors.gz": "7fbf3fb400602bd3aa6bc742dc0b5ca6",
    "demo/dtd_32px.safetensors.gz": "211c44401e59d1af55d492eea1382561",
    "demo/manifest.json": "562f5a7931a38f3862e82a74490bd6b8",
    "demo/negatives.json": "f8f7ea51248f4f5fc0b06fd76e2e77f4",
    "demo/sun.safetensors.gz": "08e612e94a039f2e4476f7baa100f3d2",
    "demo/sun_32px.safetensors.gz": "3dfe6e2b9852c6b5a2d9f1302e8b556d",
    "mini/image_head.safetensors": "fd1829bd61198247688057c339e22f90",
    "mini/manifest.json": "75ca5b97f18cc6f493d9d87f81b1c1f1",
    "mini/text_tower.safetensors": "3a64906e97fe3e982250f892e1c65b80",
    "mini/trunk.safetensors": "097dffeb95f547a564de0436ee8ddc26",
    "wordnet/words.json.gz": "218ef3d723018e8300db1bcb4e62b754",
}


def asset(name: str, folder: Path = ASSETS, *, sums: Mapping[str, str] | None = None) -> bytes:
    """Read a packaged file.

    Args:
        name: Its name below the folder, such as `class_names.json`.
        folder: The folder of packaged files.
        sums: Checksums of the folder's files; by default those of the packaged files, and none for
            another folder.

    Returns:
        Its bytes, as they were packaged.

    Raises:
        DataError: The file is missing or damaged.
    """
    try:
        raw = (folder / name).read_bytes()
    except OSError as error:
        raise DataError(
            f"packaged file {folder / name} cannot be read ({error}): {AGAIN}"
        ) from error
    known = SUMS if sums is None and folder.resolve() == ASSETS else sums
    if known is not None and checksum(raw) != known[name]:
        raise DataError(f"packaged file {folder / name} is damaged: its checksum differs; {AGAIN}")
    return raw


def asset_path(name: str) -> Path:
    """Return where a packaged file is, after it was compared with its checksum.

    Args:
        name: Its name below the folder.

    Returns:
        The file.
    """
    status = (ASSETS / name).stat() if (ASSETS / name).is_file() else None
    _compared(name, status and (status.st_mtime_ns, status.st_ctime_ns, status.st_size))
    return ASSETS / name


@cache
def _compared(name: str, version: tuple[int, int, int] | None) -> None:
    asset(name)
