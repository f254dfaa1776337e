"""The ten settings on which FOCoOp+'s ingredients were chosen: no test image is in their files.

    python tools/validation_settings.py FEATURES runs/chosen_on
    focoop compare runs/chosen_on/*.toml --seeds 1 --methods focoop_plus,focoop_plus:names=false

FEATURES is a folder of ready features; the second command needs that of tools/prepare_features.py
too, by `FOCOOP_FEATURES=FEATURES:OUT`.
Of data with classes the training rows alone are kept, some of each class to validate on. Of data
with domains one is taken out for good, and each of some others left out in turn; the settings of
`configs/settings` test on all of them, docs/results/method.md says what that means.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from focoop.config import loading
from focoop.data.registry import lookup
from focoop.features.storage import read_file, split_names, write_file

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = ROOT / "configs" / "settings"
# Validation images per class.
CLASSES = {"cifar100": 30, "tinyimagenet": 16, "oxford_pets": 16, "caltech101": 8, "dtd": 8}
# Setting -> its file, and the domains left out in turn beside the setting's own.
DOMAINS = {
    "pacs-photo": ("pacs", ("art_painting", "cartoon", "sketch")),
    "office-amazon": ("office_caltech10", ("caltech10", "webcam")),
}
OOD = ("caltech101_objects", "oxford_pets@train")


def without(source: Path, split: str, out: Path) -> Path:
    """A copy without patches and without the rows of one split or domain."""
    tensors, metadata = read_file(source, with_patches=False)
    rows = tensors["split"] != split_names(metadata).index(split)
    target = out / source.name
    write_file(target, {name: value[rows] for name, value in tensors.items()}, metadata)
    return target.resolve()


def write(out: Path, name: str, base: str, lines: dict[str, list[str]]) -> None:
    """One setting."""
    tables = [f"[{table}]\n" + "\n".join(said) for table, said in lines.items()]
    parts = [f'extends = "{(SETTINGS / base).as_posix()}.toml"', *tables]
    (out / f"{name}.toml").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def quoted(specs: tuple[str, ...]) -> str:
    """A TOML list of strings."""
    return "[" + ", ".join(f'"{spec}"' for spec in specs) + "]"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("features", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    features = given.features
    for name, count in CLASSES.items():
        file = without(features / f"{name}.safetensors", "test", given.out)
        ood = loading.load(SETTINGS / f"{name}.toml").data.validation_ood
        data = [f'id = "file:{file}"', "corrupted = []", f"validation = {count}"]
        data += [f"ood = {quoted(ood)}", "validation_ood = []"]
        data += [f"drop_classes = {quoted(lookup(name).no_classes)}"]
        write(given.out, name, name, {"data": data})
    for base, (name, left_out) in DOMAINS.items():
        kept = loading.load(SETTINGS / f"{base}.toml").partition.leave_out
        file = without(features / f"{name}.safetensors", kept, given.out)
        for domain in left_out:
            data = [f'id = "file:{file}"', f"ood = {quoted(OOD)}", "validation_ood = []"]
            partition = ["clients = 2", f'leave_out = "{domain}"']
            lines = {"data": data, "partition": partition}
            write(given.out, f"{base.split('-')[0]}-{domain}", base, lines)
    print(f"{len(list(given.out.glob('*.toml')))} settings in {given.out}")


if __name__ == "__main__":
    main()
