"""Make three sites with messy image folders, to try what docs/guides/own-images.md shows.

    python tools/messy_sites.py --out study    # pictures that are drawn
    python tools/messy_sites.py --out study --images PHOTOS --foreign OTHERS --classes mug,bike

Photos of your own are taken from `PHOTOS/.../mug/*` and so on, 30 of each class.

`study/sites` holds one folder per site, each in another layout:

  ghent  CLASS/* without train and test: photos of a phone (HEIC), folders by year, a pipe
  lille  a table `labels.csv` of numbered classes, `training` and `testing`: GIF, 12 bits in PNG
  bonn   train/CLASS and test/CLASS: DICOM, a file without a suffix, one that is cut off

`study/foreign` is a flat folder of images of other things. Needs `pip install 'focoop[formats]'`.
"""

import argparse
import csv
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

SITES = ("bonn", "ghent", "lille")
DRAWN = ("bicycle", "keyboard", "mug")
COLOURS = ((210, 60, 40), (50, 170, 80), (50, 80, 210))
SUFFIXES = (".jpg", ".jpeg", ".png")
EACH = 10  # images of a class at a site: eight train and two test where they are told apart


@dataclass(frozen=True)
class Photos:
    """Pictures to make the sites of.

    Attributes:
        classes: class name -> its images, as many for each site.
        foreign: images of other things.
    """

    classes: Mapping[str, Sequence[Image.Image]]
    foreign: Sequence[Image.Image]


def drawn(size: int = 48) -> Photos:
    """Simple pictures: stripes, tiles and rings of a colour per class, noise for other things."""
    draw = np.random.default_rng(7)
    down, across = np.mgrid[:size, :size] / size
    shapes: Sequence[Callable[[float], np.ndarray]] = (
        lambda phase: np.sin(20 * across + phase),
        lambda phase: np.sin(16 * across + phase) * np.sin(16 * down),
        lambda phase: np.sin(30 * np.hypot(down - 0.5, across - 0.5) + phase),
    )
    classes = {}
    for name, colour, shape in zip(DRAWN, COLOURS, shapes, strict=True):
        images = []
        for _ in range(EACH * len(SITES)):
            lit = 0.6 + 0.4 * shape(draw.uniform(0, 6))[..., None]
            pixels = lit * np.array(colour) + draw.normal(0, 12, (size, size, 3))
            images.append(Image.fromarray(pixels.clip(0, 255).astype(np.uint8)))
        classes[name] = images
    noise = draw.integers(0, 256, (EACH, size, size, 3), dtype=np.uint8)
    return Photos(classes, [Image.fromarray(pixels) for pixels in noise])


def taken(folder: Path, foreign: Path, names: Sequence[str]) -> Photos:
    """Photos of a user: `folder/.../CLASS/*`, and any images below `foreign`."""
    classes = {}
    for name in names:
        files = [file for file in _images(folder) if file.parent.name == name]
        if len(files) < EACH * len(SITES):
            raise SystemExit(f"{folder} has {len(files)} images of {name}: {EACH * 3} are needed")
        # Spread over what there is, so that a site has some of every folder.
        chosen = [files[len(files) * k // (EACH * 3)] for k in range(EACH * 3)]
        classes[name] = [Image.open(file).convert("RGB") for file in chosen]
    others = _images(foreign)
    some = [others[len(others) * k // (2 * EACH)] for k in range(min(2 * EACH, len(others)))]
    return Photos(classes, [Image.open(file).convert("RGB") for file in some])


def make(out: Path, photos: Photos) -> None:
    """Write `out/sites` and `out/foreign`.

    Args:
        out: a folder that is made; it must not have either yet.
        photos: at least three classes with 30 images each, and some of other things.
    """
    for k, write in enumerate((bonn, ghent, lille)):
        own = {name: images[k :: len(SITES)] for name, images in photos.classes.items()}
        write(out / "sites" / SITES[k], own)
    (out / "foreign").mkdir()
    for number, image in enumerate(photos.foreign):
        image.save(out / "foreign" / f"{number:02d}.jpg")
    (out / "foreign" / ".DS_Store").write_bytes(b"Bud1")


def ghent(site: Path, photos: Mapping[str, Sequence[Image.Image]]) -> None:
    """`CLASS/*`: phone photos, folders by year, one class with a capital letter, a pipe."""
    last = list(photos)[-1]
    for name, images in photos.items():
        folder = site / (name.capitalize() if name == last else name)
        (folder / "2024").mkdir(parents=True)
        for number, image in enumerate(images):
            if number < 3:
                _save_heic(image, folder / f"IMG_{number}.HEIC")
            else:
                image.save(folder / ("2024" if number > 7 else "") / f"IMG_{number}.jpg")
    first = site / next(iter(photos))
    os.mkfifo(first / "camera.jpg")
    (first / ".DS_Store").write_bytes(b"Bud1")
    (first / "._IMG_4.jpg").write_bytes(b"\0\5\x16\7")
    (first / "IMG_99.CR2").write_bytes(b"II*\0raw")
    (site / "readme.txt").write_text("photos of the depot\n")


def lille(site: Path, photos: Mapping[str, Sequence[Image.Image]]) -> None:
    """`labels.csv` with numbers for classes and words of its own for splits; `names.txt`."""
    (site / "scans").mkdir(parents=True)
    rows = [["path", "label", "split"]]
    for label, images in enumerate(photos.values()):
        for number, image in enumerate(images):
            file = f"scans/{label}-{number}.{'gif' if number < 2 else 'png'}"
            if number == 5:
                _save_12_bits(image, site / file)
            else:
                image.save(site / file)
            rows.append([file, str(label), "testing" if number in (1, 5, 7) else "training"])
    # Somebody labelled one photo twice, and one row names a file that was lost.
    shutil.copy(site / "scans" / "0-3.png", site / "scans" / "2-copy.png")
    rows += [["scans/2-copy.png", "2", "training"], ["scans/0-lost.png", "0", "training"]]
    with open(site / "labels.csv", "w", encoding="utf-8", newline="") as file_of_rows:
        csv.writer(file_of_rows).writerows(rows)
    lines = [f"{label} {name}\n" for label, name in enumerate(photos)]
    (site / "names.txt").write_text("".join(lines), encoding="utf-8")


def bonn(site: Path, photos: Mapping[str, Sequence[Image.Image]]) -> None:
    """`train/CLASS/*` and `test/CLASS/*`: DICOM files, a cut-off file, a test image trained on."""
    for name, images in photos.items():
        for number, image in enumerate(images):
            folder = site / ("test" if number < 2 else "train") / name
            folder.mkdir(parents=True, exist_ok=True)
            if number == 4:
                _save_dicom(image, folder / f"scan{number}.dcm")
            elif number == 5:
                image.save(folder / f"scan{number}", format="JPEG")
            else:
                image.save(folder / f"{number}.jpg")
    first = next(iter(photos))
    whole = (site / "train" / first / "6.jpg").read_bytes()
    (site / "train" / first / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    shutil.copy(site / "test" / first / "0.jpg", site / "train" / first / "again.jpg")


def _images(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES)


def _save_heic(image: Image.Image, path: Path) -> None:
    import pillow_heif

    pillow_heif.from_pillow(image).save(path)


def _save_12_bits(image: Image.Image, path: Path) -> None:
    """A grey PNG of 16 bits whose values need 12, as cameras of microscopes write them."""
    grey = np.asarray(image.convert("L"), dtype=np.uint16) * 16
    Image.fromarray(grey).save(path)


def _save_dicom(image: Image.Image, path: Path) -> None:
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    grey = np.asarray(image.convert("L"))
    found = Dataset()
    found.file_meta = FileMetaDataset()
    found.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    found.file_meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    found.SOPClassUID = SecondaryCaptureImageStorage
    number = generate_uid(entropy_srcs=[str(path.name), path.parent.name])  # the same every time
    found.SOPInstanceUID = found.file_meta.MediaStorageSOPInstanceUID = number
    found.Rows, found.Columns = grey.shape
    found.SamplesPerPixel, found.PhotometricInterpretation = 1, "MONOCHROME2"
    found.BitsAllocated, found.BitsStored, found.HighBit = 8, 8, 7
    found.PixelRepresentation = 0
    found.PixelData = grey.tobytes() + b"\0" * (grey.size % 2)
    found.save_as(path, enforce_file_format=True)


def main() -> None:
    """Read the command line and write the folders."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    parser.add_argument("--images", type=Path, help="photos: FOLDER/.../CLASS/*")
    parser.add_argument("--foreign", type=Path, help="photos of other things; needs --images")
    parser.add_argument("--classes", default=",".join(DRAWN), help="class folders of --images")
    asked = parser.parse_args()
    if (asked.images is None) != (asked.foreign is None):
        parser.error("--images and --foreign go together")
    if asked.out.exists() and any(asked.out.iterdir()):
        parser.error(f"{asked.out} is not empty: name a new folder")
    photos = drawn()
    if asked.images is not None:
        photos = taken(asked.images, asked.foreign, asked.classes.split(","))
    make(asked.out, photos)
    print(f"three sites in {asked.out / 'sites'}, other things in {asked.out / 'foreign'}")


if __name__ == "__main__":
    main()
