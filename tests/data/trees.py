"""Small trees in the official layout of each dataset, as its authors' archives unpack."""

import json
import struct
from pathlib import Path

import numpy as np
import scipy.io

from focoop.seeds import numpy_generator

GREY = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010800000000"
    "3a7e9b550000000a49444154789c63680000008200817767cd670000000049454e44ae426082"
)  # a PNG of one pixel


def plant(root: Path, *files: str) -> Path:
    for file in files:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(GREY)
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def pixels(count: int, *names: str) -> np.ndarray:
    generator = numpy_generator(5, "pixels", *names)
    return generator.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def python2_batch(images: np.ndarray, key: str, labels: list[int]) -> bytes:
    """A CIFAR batch as Python 2 pickled it in 2009: byte strings and `numpy.core`."""
    rows = images.transpose(0, 3, 1, 2).reshape(len(images), -1)

    def text(value: str) -> bytes:
        return b"U" + bytes([len(value)]) + value.encode()

    def whole(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    kind = b"cnumpy\ndtype\n" + text("u1") + b"K\0K\1\x87R(K\3" + text("|") + b"NNN"
    kind += whole(-1) + whole(-1) + b"K\0tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85" + text("b") + b"\x87R"
    array += b"(K\1" + whole(rows.shape[0]) + whole(rows.shape[1]) + b"\x86" + kind + b"\x89"
    array += b"T" + struct.pack("<i", rows.size) + rows.tobytes() + b"tb"
    numbers = b"](" + b"".join(whole(label) for label in labels) + b"e"
    return b"\x80\2}(" + text("data") + array + text(key) + numbers + b"u."


def cifar10(root: Path, per_batch: int = 4) -> dict[str, np.ndarray]:
    base = root / "cifar-10-batches-py"
    base.mkdir(parents=True)
    found = {}
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        found[name] = pixels(per_batch, name)
        labels = [(i + len(name)) % 10 for i in range(per_batch)]
        (base / name).write_bytes(python2_batch(found[name], "labels", labels))
    return found


def cifar100(root: Path, train: int = 200, test: int = 100) -> dict[str, np.ndarray]:
    base = root / "cifar-100-python"
    base.mkdir(parents=True)
    found = {}
    for name, count in (("train", train), ("test", test)):
        found[name] = pixels(count, name)
        labels = [(7 * i) % 100 for i in range(count)]
        (base / name).write_bytes(python2_batch(found[name], "fine_labels", labels))
    return found


def cifar_c(root: Path, folder: str, count: int, types: tuple[str, ...]) -> np.ndarray:
    base = root / folder
    base.mkdir(parents=True)
    labels = np.tile(np.arange(count) % 10, 5)
    np.save(base / "labels.npy", labels.astype(np.uint8))
    for kind in types:
        np.save(base / f"{kind}.npy", pixels(5 * count, kind))
    return labels


def tinyimagenet(root: Path, wnids: dict[str, str]) -> None:
    """`wnids`: id -> line of words.txt; two training images and one of validation per class."""
    base = root / "tiny-imagenet-200"
    write(base / "wnids.txt", "\n".join(reversed(list(wnids))) + "\n")
    others = ["n99999999\tcrane"]
    write(base / "words.txt", "\n".join([f"{k}\t{v}" for k, v in wnids.items()] + others))
    lines = []
    for i, wnid in enumerate(wnids):
        plant(base, f"train/{wnid}/images/{wnid}_0.JPEG", f"train/{wnid}/images/{wnid}_1.JPEG")
        plant(base, f"val/images/val_{i}.JPEG")
        lines.append(f"val_{i}.JPEG\t{wnid}\t0\t32\t44\t62")
    write(base / "val" / "val_annotations.txt", "\n".join(lines))


def coop(path: Path, rows: dict[str, list[tuple[str, int, str]]]) -> None:
    write(path, json.dumps(rows))


def stanford_cars(root: Path, names: list[str]) -> None:
    base = root / "stanford_cars"
    plant(base, "cars_train/00001.jpg", "cars_train/00002.jpg", "cars_test/00001.jpg")
    (base / "devkit").mkdir()
    cells = np.array(names, dtype=object).reshape(1, -1)
    scipy.io.savemat(base / "devkit" / "cars_meta.mat", {"class_names": cells})
    kinds = [("bbox_x1", object), ("class", object), ("fname", object)]
    train = np.array([(39, 2, "00001.jpg"), (36, 1, "00002.jpg")], dtype=kinds)
    test = np.array([(30, 3, "00001.jpg")], dtype=kinds)
    for path, rows in (("devkit/cars_train_annos", train), ("cars_test_annos_withlabels", test)):
        scipy.io.savemat(base / f"{path}.mat", {"annotations": rows.reshape(1, -1)})


def svhn(root: Path, count: int = 6) -> np.ndarray:
    (root / "SVHN").mkdir(parents=True)
    images = pixels(count, "svhn")
    digits = np.array([[10], [1], [2], [9], [10], [5]][:count], dtype=np.uint8)
    content = {"X": images.transpose(1, 2, 3, 0), "y": digits}
    scipy.io.savemat(root / "SVHN" / "test_32x32.mat", content, do_compression=True)
    return images


def domainnet(root: Path, classes: tuple[str, ...]) -> None:
    base = root / "domainnet"
    for domain in ("clipart", "infograph", "painting", "quickdraw", "real", "sketch"):
        lines: dict[str, list[str]] = {"train": [], "test": []}
        for label, name in enumerate(classes):
            for i, split in enumerate(("train", "train", "test")):
                file = f"{domain}/{name}/{domain}_{label:03d}_{i:06d}.jpg"
                plant(base, file)
                lines[split].append(f"{file} {label}")
        for split, rows in lines.items():
            write(base / f"{domain}_{split}.txt", "\n".join(rows) + "\n")
