"""The runs of an item of the paper, and what they lack to begin."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import util
from pathlib import Path

from focoop.config import Override, RunConfig, shipped
from focoop.data import Source, ready_features, registry
from focoop.errors import ConfigError, FocoopError
from focoop.experiments import FORMATS, Cell, parse_sweep, plan, sweep_points
from focoop.methods import lookup
from focoop.paper.items import Item, Part
from focoop.scenario import datasets_of, require_data

RUNS = "runs"  # the folder of all runs below the output folder
# Their code fills a client's shots of a class with repeats where it has fewer images.
PROTOCOL: Override = {"partition.repeats": True}
MINI = "mini"  # the backbone that the methods' tuned settings were chosen with
# CoOp's optimiser, for backbones that nothing was tuned with.
COOP: Mapping[str, float | str] = {
    "federation.lr": 0.002,
    "federation.lr_schedule": "cosine",
    "federation.momentum": 0.9,
    "federation.weight_decay": 0.0005,
}


@dataclass(frozen=True)
class Choices:
    """What the user decides for all items.

    Attributes:
        out: The folder of runs, tables and figures.
        backbone: Name of the backbone.
        seeds: The seeds.
        overrides: Settings above all others but those of a sweep.
        methods: Methods in place of the items' own; empty: the items' own.
        packaged: Whether packaged images stand in for the public datasets.
        presets: A folder of tuned settings; None: those that come with focoop, with `mini` alone.
        formats: Kinds of figures.
    """

    out: Path
    backbone: str = MINI
    seeds: tuple[int, ...] = (0, 1, 2)
    overrides: tuple[Override, ...] = ()
    methods: tuple[str, ...] = ()
    packaged: bool = False
    presets: Path | None = None
    formats: tuple[str, ...] = FORMATS


@dataclass(frozen=True)
class Planned:
    """The runs of one part of an item.

    Attributes:
        part: The part.
        cells: Its runs; none where `lacks` says why.
        lacks: What is missing and how to get it, a line each; empty: all is here.
        short: The same in a few words: names of datasets and weights.
        left_out: OOD sets that are missing, and which the runs do without.
    """

    part: Part
    cells: tuple[Cell, ...]
    lacks: str = ""
    short: str = ""
    left_out: tuple[str, ...] = ()


def plan_item(item: Item, choices: Choices, *, ask: bool = True) -> list[Planned]:
    """Plan the runs of an item, part by part.

    Args:
        item: The item.
        choices: What the user decided.
        ask: Whether to ask the hub for weights that are not here; else they are called missing.

    Returns:
        One plan per part.

    Raises:
        ConfigError: A setting, a method or a value cannot be used.
    """
    return [_planned(item, part, choices, ask) for part in item.parts]


def _planned(item: Item, part: Part, choices: Choices, ask: bool) -> Planned:
    if choices.packaged and not part.packaged:
        return Planned(part, (), "no packaged images stand in for it", "packaged images")
    cells = _of_methods(item, part, choices)
    lacks, short = _lacking([cell.config for cell in cells], ask)
    absent = _absent_ood(cells) if lacks else ()
    if absent:
        fewer = _without(part, cells[0].config, absent)
        others = _of_methods(item, fewer, choices)
        if not _lacking([cell.config for cell in others], ask)[0]:
            return Planned(part, tuple(others), left_out=absent)
    return Planned(part, tuple(cells), lacks, short)


def _of_methods(item: Item, part: Part, choices: Choices) -> list[Cell]:
    methods = choices.methods or item.methods
    try:
        return [cell for method in methods for cell in _cells(item, part, method, choices)]
    except ConfigError as error:
        raise ConfigError(f"{item.name}, {part.name}: {error}") from error


def _absent_ood(cells: Sequence[Cell]) -> tuple[str, ...]:
    """The OOD sets of runs that are neither images nor ready features here."""
    data = cells[0].config.data
    return tuple(one for one in data.ood if ready_features.lacking([one], data.root or None))


def _without(part: Part, config: RunConfig, absent: Sequence[str]) -> Part:
    """The part with the OOD sets that are here; its runs have a folder of their own."""
    kept = [one for one in config.data.ood if one not in absent]
    return replace(
        part,
        runs=f"{part.runs}-without-{'-'.join(absent)}",
        set={**part.set, "data.ood": kept},
        packaged={**part.packaged, "data.ood": kept} if part.packaged else part.packaged,
    )


def _cells(item: Item, part: Part, method: str, choices: Choices) -> list[Cell]:
    """The runs of one method; one that reads patch features gets them."""
    backbone = item.backbone or choices.backbone
    file = item.folder / f"{part.setting}.toml"
    suffix = "-packaged" if choices.packaged else ""
    stand_in = part.packaged if choices.packaged else {}
    settings = [PROTOCOL, dict(part.set), dict(stand_in), {"backbone.name": backbone}]
    presets = choices.presets or (shipped("methods") if backbone == MINI else None)
    if presets is None:
        settings.append(dict(COOP))

    def planned(*more: Override) -> list[Cell]:
        return plan(
            [file if file.is_file() else Path(part.setting)],
            method,
            choices.seeds,
            choices.out / RUNS / f"{part.runs}{suffix}",
            presets=presets,
            overrides=[*settings, *more, *choices.overrides],
            points=sweep_points([parse_sweep(part.sweep)] if part.sweep else []),
        )

    cells = planned()
    if any(lookup(cell.config.method.name).patch_kind for cell in cells):
        # Packaged corrupted images have no patch features.
        corrupted: Override = {"data.corrupted": []} if choices.packaged else {}
        cells = planned({"data.with_patches": True}, corrupted)
    return cells


def _lacking(configs: Sequence[RunConfig], ask: bool) -> tuple[str, str]:
    """What runs lack: a line for each dataset or weights with how to get it, and their names."""
    told: dict[str, str] = {}
    for config in {_of_data(config): config for config in configs}.values():
        told |= _lacks_weights(config, ask) | _lacks_data(config)
    return "\n".join(dict.fromkeys(told.values())), ", ".join(told)


def _of_data(config: RunConfig) -> tuple[object, ...]:
    return (*datasets_of(config), config.data.root, config.backbone.name, config.backbone.weights)


def _lacks_data(config: RunConfig) -> dict[str, str]:
    try:
        require_data(config)
    except FocoopError as error:
        root = config.data.root or None
        absent = ready_features.lacking(datasets_of(config), root)
        told = {
            name: _way_to_damaged(name) if all(one.corruption for one in sources) else way_to(name)
            for name, sources in absent.items()
        }
        if not absent or str(error) != str(ready_features.missing(absent, root)):
            told["data"] = str(error)  # such as ready features of another backbone
        return told
    return {}


def way_to(name: str) -> str:
    """Say in one line what a public dataset is and how to get it.

    Args:
        name: The dataset's name.

    Returns:
        The line, with the name before it.
    """
    return f"{name}: {registry.how_to_get(Source.parse(name).name)}"


def _way_to_damaged(name: str) -> str:
    """The line about a dataset whose images alone are missing, to be damaged."""
    return f"{way_to(name)} (its images, to make corrupted ones; or --set data.corrupted=[])"


def _lacks_weights(config: RunConfig, ask: bool) -> dict[str, str]:
    """The weights of an open_clip backbone that are neither here nor, if we ask it, on the hub."""
    name = config.backbone.name
    if not name.startswith("openclip:"):
        return {}
    if util.find_spec("open_clip") is None:
        return {name: f"{name}: weights of open_clip: pip install 'focoop[openclip]'"}
    model, _, tag = name.partition(":")[2].replace("/", "-").partition(":")
    given = Path(config.backbone.weights) if config.backbone.weights else None
    from focoop.clip import resolve_tag, weights  # they import open_clip

    try:
        source = resolve_tag(model, tag, given)
        if given is not None:
            weights.check_local(given, source)
        elif weights.find_cached(source) is None:
            if not ask:
                told = f"{name}: weights, fetched on first use; without a network --weights FILE"
                return {f"{name} (fetched on first use)": told}
            weights.reach(source)
    except FocoopError as error:
        return {name: _way_to_weights(name, str(error))}
    return {}


def _way_to_weights(name: str, problem: str) -> str:
    """One line about weights that cannot be had, with the address of the file where it is known."""
    address = re.search(r"https?://\S+", problem)
    if address is None:
        return f"{name}: {' '.join(problem.split())}"
    first = problem.splitlines()[0].removesuffix(".")
    return f"{name}: {first}: fetch {address[0]} elsewhere and name the file by --weights FILE"
