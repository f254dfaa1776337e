"""The model that a site keeps after the last round: a folder like those of `focoop export`.

It is at the site alone: the site's own private tensors, the global model, thresholds of the site's
calibration images or, where these are few, of the pool of all sites.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from focoop import __version__
from focoop.clip import LabelledFeatures
from focoop.federation import start
from focoop.fields import plain
from focoop.flower.records import Order
from focoop.flower.site.client import SiteClient
from focoop.methods import Params
from focoop.predict import (
    Calibration,
    Facts,
    FederationSketches,
    Model,
    Side,
    SiteSketches,
    folded,
    from_sketches,
    least_images,
    own_calibration,
    scored,
    words_of_prompts,
)
from focoop.scenario import Scenario

LATEST = "model"  # in the state folder: the model of the last run
KEEP = 0.95  # share of images of known classes that the thresholds of a kept model keep
Held = Mapping[int, tuple[str, Sequence[int]]]  # name of a site, and numbers of its classes


def model_folder(state: Path, key: str, client: int) -> Path:
    """Return the folder of a site's model of a run.

    Args:
        state: The site's state folder.
        key: The federation's key.
        client: The site's number.

    Returns:
        The folder.
    """
    return state / key / f"model-{client:04d}"


def name_latest(state: Path, folder: Path) -> None:
    """Let `model` in the state folder be the latest model, whatever run made it.

    Args:
        state: The site's state folder.
        folder: The model's folder in it.
    """
    draft = state / f".{LATEST}.draft"
    draft.unlink(missing_ok=True)
    draft.symlink_to(folder.relative_to(state), target_is_directory=True)
    draft.replace(state / LATEST)


def home_model(
    site: SiteClient, scenario: Scenario, order: Order, shared: Params, held: Held | None = None
) -> Model:
    """Make the model of this site: its own, and the global one where the method has it.

    Args:
        site: The site.
        scenario: The task and its images.
        order: The order, whose round the tensors are of.
        shared: The final shared tensors.
        held: Names and classes of the sites that let these be named.

    Returns:
        The model, without thresholds.
    """
    method, task = scenario.method, scenario.task
    initial = start(method, task, site.config.seed)
    counts = class_counts(scenario, site.client)
    private = None
    if initial.private:
        private = site.store(order, order.round_index).load(site.client)
    keys: list[int | None] = [site.client]
    if shared or not initial.private:
        keys.append(None)

    def side(client: int | None) -> Side:
        if client is None:
            return folded(method, task, initial, shared, None, None, torch.zeros_like(counts))
        return folded(method, task, initial, shared, client, private, counts)

    own = site.name, counts.nonzero().flatten().tolist()
    facts = _facts(site, scenario, order, shared, {**(held or {}), site.client: own})
    return Model(facts, method, task, side, keys, lambda: scenario.backbone, None, site.client)


def thresholds(
    model: Model, client: int, images: LabelledFeatures, pool: SiteSketches
) -> Calibration | None:
    """Find the thresholds that a site keeps.

    Args:
        model: The site's model.
        client: The site's number.
        images: Its calibration images.
        pool: Sketches of all sites together, which may be empty.

    Returns:
        Thresholds of the site, from its own images where these suffice, and of the global model;
        None where there are none.
    """
    told = FederationSketches(int(model.facts.origin["round"]), {-1: pool})
    found = from_sketches(told, KEEP, model.keys)
    sites = dict(found.sites)
    if len(images) >= least_images(KEEP):
        sites[str(client)] = own_calibration(scored(model, client, images), KEEP)
    elif str(client) in sites:
        sites[str(client)] = replace(sites[str(client)], images=len(images))
    return replace(found, sites=sites) if sites else None


def calibration_images(scenario: Scenario, client: int) -> LabelledFeatures:
    """Gather a site's calibration images.

    Args:
        scenario: The task and the site's images.
        client: The site's number.

    Returns:
        Images that no training and no test uses; perhaps none.
    """
    aside = scenario.sets.calibration
    if aside is None:
        return scenario.client(client).rows(torch.zeros(0, dtype=torch.int64))
    return aside.images.rows(torch.from_numpy(aside.index[client]))


def class_counts(scenario: Scenario, client: int) -> Tensor:
    """Count a site's training images by class.

    Args:
        scenario: The task and the site's images.
        client: The site's number.

    Returns:
        Counts (C,).
    """
    labels = scenario.client(client).labels.cpu()
    return torch.bincount(labels, minlength=len(scenario.task.classes))


def _facts(site: SiteClient, scenario: Scenario, order: Order, shared: Params, held: Held) -> Facts:
    config, task, backbone = site.config, scenario.task, scenario.backbone
    classes = tuple(task.classes)
    names = [held[k][0] if k in held else f"site {k}" for k in range(site.clients)]
    others = [k for k in held if k != site.client]
    holders = tuple(
        tuple(k for k in sorted(held) if place in held[k][1]) for place in range(len(classes))
    )
    origin = {
        "run": order.key,
        "round": order.round_index,
        "seed": config.seed,
        "data": "the sites' own images",
        "template": config.data.template,
        "data_hashes": dict(scenario.hashes),
        "metrics": {},
        "versions": {"focoop": __version__},
    }
    return Facts(
        method=config.method.name,
        settings=plain(config.method.settings),
        classes=classes,
        clients=tuple(names),
        holders=holders if others else (),
        ood_names=words_of_prompts(scenario.words, shared),
        backbone=backbone.name,
        weights=site.places.get("weights", config.backbone.weights),
        fingerprint=backbone.fingerprint,
        image_fingerprint=backbone.image_fingerprint,
        logit_scale=float(task.logit_scale),
        revision=scenario.method.revision,
        origin=origin,
    )
