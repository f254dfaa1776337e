"""The page docs/results/paper.md: tables and figures of the paper from committed numbers.

    python tools/paper_results.py docs/results FILE ...

Reads docs/results/paper/numbers.json and takes over the items of FILEs: `paper.json` of
tools/device_paper.py, or `T1.json` of `focoop paper`. Writes numbers.json, the page, and figures
as SVG. Without FILE it makes page and figures again; `--no-figures` makes the page alone. Figure 6
is drawn from the similarities that `focoop paper F6` writes as CSV, copied into docs/results/paper.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from focoop.experiments import markdown_table, new_figure
from focoop.paper import (
    Item,
    Numbers,
    choose_items,
    draw_map,
    draw_numbers,
    lower_is_better,
    make_choices,
    markdown,
    read_items,
    read_numbers,
    read_similarity,
    seeds_span,
)
from tools.small_svg import small

FOLDER, PAGE, NUMBERS = "paper", "paper.md", "numbers.json"
INTRO = """# The paper's tables and figures

What `focoop paper all` makes with the packaged backbone `mini`, a small stand-in for CLIP, beside
the published numbers, which are of CLIP's ViT-B/16: compare the order of methods, not the height of
the numbers. [Make the paper's tables and figures](../guides/paper.md) says how to make them
yourself, and [what the results say](reading.md) what to think of them.

{verdict}

{made}

{overview}

Our datasets are subsets where nothing else was at hand: CIFAR-100 with 200 training images per
class, TinyImageNet with 32, Texture with 37 of DTD's 47 classes (1,480 test images). At full size
textures are sharper than CIFAR's 32 px, and a detector may see that alone: FPR95 is near 0 for many
methods here; [all tables](tables.md) have Texture at 32 px too. Patch features are of fewer images:
CIFAR-100 has 16 training and 20 test images per class, TinyImageNet 4 and 5, Caltech101 8 and 3,
Pets 16 and 6, DTD 10 and 8, Office 8 per domain; FedOTP, FedLoCoOp and FedGalLoP see these alone,
and train on what there is where 8 shots ask for more. Damaged images are made from our test images:
10 per class of CIFAR-100 and 4 of TinyImageNet for brightness, 5 and 2 for the other types.

This page and its figures are made by `python tools/paper_results.py docs/results` from
`docs/results/paper/numbers.json`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Merge and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--made", default="", help="a sentence on where and how long the runs ran")
    parser.add_argument("--no-figures", action="store_true")
    given = parser.parse_args(arguments)
    path = given.folder / FOLDER / NUMBERS
    tree: dict[str, Any] = read(path) if path.exists() else {"made": "", "items": {}}
    for file in given.files:
        found = read(file)
        tree["items"] |= {one["item"]: one for one in found.get("items", [found])}
    tree["made"] = given.made or tree["made"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dumped(tree), encoding="utf-8")
    if not given.no_figures:
        draw_all(tree, given.folder / FOLDER)
    (given.folder / PAGE).write_text(page(tree, given.folder / FOLDER), encoding="utf-8")
    print(f"{len(tree['items'])} items in {path}, {given.folder / PAGE}")
    return 0


def read(path: Path) -> dict[str, Any]:
    """A JSON file."""
    tree: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return tree


def dumped(tree: dict[str, Any]) -> str:
    """JSON with a line for each number, so that changes can be read."""
    items = []
    for name, one in sorted(tree["items"].items()):
        head = json.dumps({key: one[key] for key in one if key != "numbers"}, ensure_ascii=False)
        rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in one["numbers"])
        items.append(f'"{name}": {head[:-1]}, "numbers": [\n{rows}]}}')
    made = json.dumps(tree["made"], ensure_ascii=False)
    return f'{{"made": {made}, "items": {{\n' + ",\n".join(items) + "}}\n"


def numbers_of(tree: dict[str, Any]) -> list[Numbers]:
    """The numbers of all items that have some, in the order of the paper."""
    return [
        read_numbers(item, tree["items"][item.name])
        for item in choose_items(["all"], read_items())
        if item.name in tree["items"]
    ]


def draw_all(tree: dict[str, Any], folder: Path) -> None:
    """Figures of the chosen items; letters stay letters, which keeps the files small."""
    new_figure(1, 1)  # refuses where matplotlib is missing
    from matplotlib import rc_context, rcdefaults, rcParams

    for old in folder.glob("*.svg"):
        old.unlink()
    drawn: list[Path] = []
    choices = make_choices(
        backbone="mini",
        seeds=1,
        methods=(),
        overrides=None,
        out=folder,
        packaged=False,
        presets=None,
        device=None,
        formats="svg",
    )
    with rc_context():
        rcdefaults()  # the page's figures do not depend on what was drawn before
        rcParams.update({"svg.fonttype": "none", "font.family": "sans-serif"})
        for numbers in numbers_of(tree):
            drawn += draw_numbers(numbers, choices)
            drawn += draw_maps(numbers.item, folder)
    for path in drawn:
        text = small(path.read_text(encoding="utf-8"))
        path.unlink()
        plain = path.with_name(path.name.replace("=", ""))  # links need no escapes
        plain.write_text(text, encoding="utf-8")


def draw_maps(item: Item, folder: Path) -> list[Path]:
    """Draw the similarities of an item's parts that are kept as CSV."""
    drawn: list[Path] = []
    for part in item.parts:
        path = folder / f"{item.name}-{re.sub(r'[^A-Za-z0-9=.]+', '-', part.name)}.csv"
        if path.is_file():
            title = f"{item.name}: {part.name} (mini)"
            drawn += draw_map(title, read_similarity(path), path.with_suffix(""), ["svg"])
    return drawn


def page(tree: dict[str, Any], folder: Path) -> str:
    """All items with their numbers, notes and figures.

    Args:
        tree: The committed numbers.
        folder: The folder of figures.

    Returns:
        Markdown.
    """
    found = numbers_of(tree)
    texts = [INTRO.format(made=tree["made"], verdict=verdict(found), overview=overview(found))]
    for numbers in found:
        texts.append(section(numbers) + figures(numbers.item, folder))
    return "\n\n".join(texts) + "\n"


def overview(found: Sequence[Numbers]) -> str:
    """A line for each item: over how many seeds its numbers are means, and what it lacks."""
    rows = []
    for numbers in found:
        lacking = [one for one in numbers.remarks.lacking if ": missing: " in one]
        names = dict.fromkeys(one.partition(": missing: ")[2] for one in lacking)
        without = dict.fromkeys(
            name
            for one in numbers.remarks.lacking
            if "OOD sets that are missing: " in one
            for name in one.partition("are missing: ")[2].split(", ")
        )
        told = [f"{len(lacking)} of {len(numbers.item.parts)} parts ({', '.join(names)})"]
        told = told if lacking else []
        told += [f"OOD sets {', '.join(without)}"] if without else []
        seeds = seeds_span(numbers.entries) or "-"
        rows.append([numbers.item.name, numbers.item.title, seeds, "; ".join(told) or "-"])
    return markdown_table(["item", "what", "made", "data that we lack"], rows, 4)


def verdict(found: Sequence[Numbers], name: str = "FOCoOp") -> str:
    """How often a method is the best of Table 1, ours and the paper's."""
    (table,) = [one for one in found if one.item.name == "T1"]
    places = dict.fromkeys((one.part, one.column) for one in table.entries)
    wins = {"ours": 0, "paper": 0}
    for place in places:
        lower = lower_is_better(table.item, place[1])
        members = [one for one in table.entries if (one.part, one.column) == place]
        sides = {
            "ours": {one.method: one.ours.mean for one in members if one.ours is not None},
            "paper": {one.method: one.published for one in members if one.published is not None},
        }
        for side, values in sides.items():
            best = (min if lower else max)(values.values(), default=None)
            wins[side] += name in values and values[name] == best
    return (
        f"**In {wins['paper']} of Table 1's {len(places)} columns {name} is the best in the paper, "
        f"in {wins['ours']} of them in ours.**"
    )


def section(numbers: Numbers) -> str:
    """An item's tables and notes, one level lower."""
    if not any(one.ours is not None for one in numbers.entries):
        lacking = "".join(f"\n- {one}" for one in numbers.remarks.lacking)
        return f"## {numbers.item.name}: {numbers.item.title}\n\nNot run:\n{lacking}"
    text = markdown(numbers.item, numbers.entries, numbers.remarks).strip()
    text = re.sub(r"(?:^\|.*\n?)+", compact, text, flags=re.MULTILINE)
    return "\n".join(f"#{line}" if line.startswith("#") else line for line in text.splitlines())


def compact(table: re.Match[str]) -> str:
    """A table in a box whose style fits a phone (docs/stylesheets/site.css)."""
    text = table[0].strip().replace(" ± ", "&nbsp;±&nbsp;")
    return f'<div class="compact" markdown>\n\n{text}\n\n</div>\n'


def figures(item: Item, folder: Path) -> str:
    """Links to an item's figures."""
    found = [*folder.glob(f"{item.name}.svg"), *sorted(folder.glob(f"{item.name}-*.svg"))]
    links = [
        f"[![{path.stem.replace('-', ' ')}]({FOLDER}/{path.name})]({FOLDER}/{path.name})"
        for path in found  # a drawing opens alone, where a phone can enlarge it
    ]
    return "".join(f"\n\n{link}" for link in links)


if __name__ == "__main__":
    sys.exit(main())
