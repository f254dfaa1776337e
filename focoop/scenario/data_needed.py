"""What data a run needs: refuse it before anything is computed where some is not there."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from focoop.config import RunConfig
from focoop.data import NAMED, Source, expand, read_corrupted, ready_features, refuse_incomplete
from focoop.errors import DataError
from focoop.features import FeatureSet, open_labels
from focoop.scenario.corrupted_sets import expand_severities, with_id_classes, with_id_clients
from focoop.scenario.split import Split, Tested


def datasets_of(config: RunConfig) -> list[str]:
    """List the names of all datasets that a run opens, each once.

    Args:
        config: The run's settings.

    Returns:
        Names as settings write them.
    """
    corrupted = () if config.data.validation else config.data.corrupted
    return list(dict.fromkeys((config.data.id, *corrupted, *ood_of(config))))


def ood_of(config: RunConfig) -> tuple[str, ...]:
    """Return the OOD sets of a run: those of validation while it validates.

    Args:
        config: The run's settings.

    Returns:
        Names of the sets.
    """
    data = config.data
    return data.validation_ood if data.validation and data.validation_ood else data.ood


def require_data(*configs: RunConfig) -> None:
    """Refuse runs whose public datasets are not here, before anything is computed.

    Args:
        *configs: The runs' settings; what all of them lack is said at once.

    Raises:
        DataError: What to fetch and how large it is, or which ready features do not fit.
    """
    for config in configs:
        for spec in expand(() if config.data.validation else config.data.corrupted):
            _name_setting("data.corrupted", spec, Source.parse)
        for spec in ood_of(config):
            _name_setting("data.ood", spec, Source.parse)
    roots = dict.fromkeys((config.data.root, config.backbone.name) for config in configs)
    for root, backbone in roots:
        same = [c for c in configs if (c.data.root, c.backbone.name) == (root, backbone)]
        ready_features.require(
            [spec for config in same for spec in datasets_of(config)], root or None, backbone
        )
    whole = dict.fromkeys(
        (name, config.data.root)
        for config in configs
        if not config.data.incomplete
        for name in ready_features.from_images(datasets_of(config))
    )
    for name, root in whole:
        refuse_incomplete(name, root or None)


def leave_out_absent(config: RunConfig) -> tuple[RunConfig, str]:
    """Leave out sets to measure on that are not here, where ready features serve the run's images.

    A run that chooses settings keeps a set at least, and one that fetches datasets keeps all.

    Args:
        config: The run's settings.

    Returns:
        The settings, and a sentence that names what they left out; empty where that is nothing.
    """
    data = config.data
    if data.fetch or ready_features.find(Source.parse(data.id)) is None:
        return config, ""
    ood = "validation_ood" if data.validation and data.validation_ood else "ood"
    asked = {key: getattr(data, key) for key in ([] if data.validation else ["corrupted"]) + [ood]}
    root = data.root or None
    absent = [
        name
        for name in dict.fromkeys(chain.from_iterable(asked.values()))
        if all(ready_features.lacking([spec], root) for spec in expand([name]))
    ]
    kept: dict[str, Any] = {
        key: tuple(name for name in names if name not in absent) for key, names in asked.items()
    }
    if not absent or (data.validation and not kept[ood]):
        return config, ""
    note = (
        f"not measured, because neither ready features nor images of them are here: "
        f"{', '.join(absent)} (focoop data list says how to get them)"
    )
    return replace(config, data=replace(data, **kept)), note


def served_by(features: FeatureSet, images: int | None = None) -> dict[str, Any]:
    """Describe where features came from, for a run's manifest.

    Args:
        features: The features.
        images: Number of images, where it is not that of the rows.

    Returns:
        Facts by name.
    """
    provenance = features.provenance
    served = provenance.get("served", "")
    path = provenance.get("source" if served == "images" else "file", "")
    facts: dict[str, Any] = {"served by": served}
    facts["path"] = str(Path(path).absolute()) if path else ""
    facts |= {"images": images or len(features)}
    return {**facts, "classes": len(features.classes)}


def refuse_missing_sets(config: RunConfig, rows: Split | None, opened: partial[FeatureSet]) -> None:
    """Refuse a run whose OOD or corrupted sets are not there, before any image is encoded.

    Args:
        config: the run's settings.
        rows: who holds which ID images, without their features; None where `data.id` is features,
            so that other features are opened without delay too.
        opened: opens a set of features by its name.

    Raises:
        DataError: a set cannot be opened; the message names the setting.
        ConfigError: a corrupted set holds other images than the ID test set.
    """
    look = partial(_look, opened=partial(opened, with_patches=False))
    tested = Tested() if rows is None else rows.tested
    seen: set[str] = set()
    corrupted = () if config.data.validation else expand_severities(config.data.corrupted)
    for _, spec in corrupted:
        source = _name_setting("data.corrupted", spec, Source.parse)
        base, stored = spec.partition("#")[0], source.kind in ("demo", "file")
        if (rows is None and stored) or (base in seen and not stored):
            continue  # features are opened at once, or the set is made of the same images
        seen.add(base)
        features = _name_setting("data.corrupted", spec, look, split=tested.split, by=tested.by)
        if features is not None and rows is not None:
            with_id_clients(config, rows, with_id_classes(config, rows, features, spec), spec)
    for spec in ood_of(config):
        source = _name_setting("data.ood", spec, Source.parse)
        if rows is not None or source.kind not in ("demo", "file"):
            _name_setting("data.ood", spec, look)


def _name_setting(setting: str, spec: str, look: Callable[..., Any], **more: str) -> Any:
    """What `look` makes of a set's name; its refusal names the setting."""
    try:
        return look(spec, **more)
    except DataError as error:
        raise DataError(f"{setting}: {error}") from error


def _look(spec: str, *, opened: partial[FeatureSet], **more: str) -> FeatureSet | None:
    """The rows of a set without encoding images; None where official corrupted images are there."""
    source = Source.parse(spec)
    if source.kind in ("demo", "file"):
        return opened(spec, **more)
    settings = opened.keywords
    if source.kind == NAMED and source.corruption is not None:
        official = read_corrupted(
            source.target, source.corruption, source.severity, settings["root"]
        )
        if official is not None:
            return None
    options = {key: settings[key] for key in ("split", "cache_dir", "root", "strict")}
    return open_labels(spec, **{**options, **more})
