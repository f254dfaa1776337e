"""What a run with given settings lacks: its backbone's weights, patch features, datasets."""

from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING

from focoop.cli.doctor.check import FAIL, NOTE, OK, Check
from focoop.errors import DataError

if TYPE_CHECKING:
    from focoop.config import RunConfig


def run_backbone(config: "RunConfig") -> Check:
    """Say whether the weights of a run are here, or can be had.

    Args:
        config: The run's settings.

    Returns:
        The finding.
    """
    topic, name = "this run's backbone", config.backbone.name
    if name == "mini":
        return Check(topic, OK, "mini, packaged")
    given = Path(config.backbone.weights) if config.backbone.weights else None
    if name.startswith("local-dir:"):
        from focoop.clip import load_backbone

        backbone = load_backbone(name, weights=given)
        return Check(topic, OK, f"{name}, fingerprint {backbone.fingerprint[:12]}")
    if util.find_spec("open_clip") is None:
        return Check(topic, FAIL, f"{name} needs open_clip", "pip install 'focoop[openclip]'")
    from focoop.clip import config_of, resolve_tag, weights

    model, _, tag = name.partition(":")[2].replace("/", "-").partition(":")
    config_of(model)
    source = resolve_tag(model, tag, given)
    if given is not None:
        return Check(topic, OK, f"{name} in {weights.check_local(given, source)}")
    if path := weights.find_cached(source):
        return Check(topic, OK, f"{name} in {path}")
    weights.reach(source)
    return Check(topic, NOTE, f"{name} is not here, but on the hub", "focoop run fetches it")


def run_method(config: "RunConfig") -> Check:
    """Say whether a run loads the patch features its method reads.

    Args:
        config: The run's settings.

    Returns:
        The finding.
    """
    from focoop.methods import lookup

    topic, kind = "this run's method", lookup(config.method.name).patch_kind
    if kind and not config.data.with_patches:
        lacking = f"{config.method.name} reads patch features {kind}, which are not loaded"
        return Check(topic, FAIL, lacking, "set data.with_patches to true")
    return Check(topic, OK, f"{config.method.name}, patch features: {kind or 'none'}")


def run_clients(config: "RunConfig") -> Check:
    """Say whether a run uses the clients that its images come divided into.

    Args:
        config: The run's settings.

    Returns:
        The finding.
    """
    from focoop.api import notes_on_clients

    topic = "this run's clients"
    for note in notes_on_clients(config):
        return Check(topic, NOTE, note, "--set partition.kind=given --set partition.clients=0")
    return Check(topic, OK, f"partition.kind = {config.partition.kind}")


def run_dataset(spec: str, config: "RunConfig") -> Check:
    """Say whether a dataset of a run is here, or how it can be had.

    Args:
        spec: The dataset's name.
        config: The run's settings.

    Returns:
        The finding.
    """
    from focoop.data import NAMED, Source, on_disk, ready_features, refuse_incomplete, registry
    from focoop.features import demo

    topic = f"this run's {spec}"
    source = Source.parse(spec)
    if source.kind == "demo":
        return Check(topic, OK, f"packaged, {demo.demo_path(source.target).name}")
    if source.kind == "hf":
        if util.find_spec("datasets") is None:
            return Check(topic, FAIL, "needs the package datasets", "pip install datasets")
        return Check(topic, NOTE, "comes from the hub", "its own cache keeps it")
    if source.kind == NAMED:
        name, root = source.name, config.data.root or None
        if ready := ready_features.find(source):
            ready_features.require([spec], root, config.backbone.name)
            return Check(topic, OK, f"ready features in {ready.path}")
        dataset = registry.lookup(name)
        if base := dataset.find(registry.data_root(root)):
            found = on_disk(name, root)
            if found.state == "here":
                return Check(topic, OK, f"{dataset.title} in {base}")
            if not config.data.incomplete:
                refuse_incomplete(name, root)
            return Check(topic, NOTE, f"{dataset.title} in {base} is {found}", "data.incomplete")
        if not config.data.fetch or dataset.by_hand or not dataset.downloads:
            raise registry.missing(name, root)
        size = f", {dataset.size / 2**20:.0f} MiB" if dataset.size else ""
        return Check(topic, NOTE, f"{dataset.title} is not here{size}", "focoop run fetches it")
    path = Path(source.target).expanduser()
    if not path.exists():
        raise DataError(f"there is no {path}: check {spec!r}")
    return Check(topic, OK, f"{source.kind} {path}")


def datasets_of(config: "RunConfig") -> list[str]:
    """List all datasets a run opens, each once; corrupted ones by their clean images.

    Args:
        config: The run's settings.

    Returns:
        Names.
    """
    from focoop.scenario import datasets_of as datasets_named

    return list(dict.fromkeys(spec.partition("#")[0] for spec in datasets_named(config)))


def run_data(config: "RunConfig") -> Check:
    """Say whether all datasets of a run are here, corrupted ones among them.

    Args:
        config: The run's settings.

    Returns:
        The finding.
    """
    from focoop.api import missing_datasets
    from focoop.scenario import require_data

    topic = "this run's data"
    if config.data.fetch and (lacking := missing_datasets(config)):
        return Check(topic, NOTE, f"not here: {', '.join(lacking)}", "focoop run fetches them")
    require_data(config)
    return Check(topic, OK, "all is here")
