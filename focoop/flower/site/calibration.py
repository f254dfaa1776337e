"""What a site does after the last round: it tells sketches of its scores, and keeps its model.

A sketch leaves under the site's policy and the run's privacy settings. Scores under prompts that a
coordinator chooses would tell more with every question, so a site answers once for the last round
of a run: the same question gets the same answer again, another one gets none.
"""

import json
from pathlib import Path

from flwr.app import Context, Message, RecordDict

from focoop.caching import is_intact, parse_json, sealed
from focoop.errors import FederationError
from focoop.federation import start
from focoop.flower.journal import Journal
from focoop.flower.records import Order, received
from focoop.flower.site.client import SiteClient
from focoop.flower.site.home_model import (
    calibration_images,
    class_counts,
    home_model,
    model_folder,
    name_latest,
    thresholds,
)
from focoop.flower.site.policy import Refusal
from focoop.flower.site.releases import question
from focoop.flower.sketch_records import read_pool, sketch_content
from focoop.methods import Params, lookup
from focoop.predict import Model, SiteSketches, sketched
from focoop.runs import write
from focoop.scenario import Scenario


def sketch(message: Message, context: Context) -> Message:
    """Tell how this site's calibration images score, if its policy and the run's privacy let it.

    Args:
        message: The order.
        context: Flower's context.

    Returns:
        The reply.
    """
    site, order = _asked(message, context)
    site.check_sketches()
    scenario = site.scenario()
    shared = _shared(site, scenario, message)
    told = _answered(site, order, shared) if site.data else None
    if told is None:
        images = calibration_images(scenario, site.client)
        if 0 < len(images) < site.least_images:
            raise Refusal(
                f"it has {len(images)} calibration images, and tells nothing of fewer than "
                f"{site.least_images} (least_images)"
            )
        told = sketched(home_model(site, scenario, order, shared), site.client, images)
        if site.data:
            _keep_answer(site, order, shared, told)
    held = class_counts(scenario, site.client) if site.names_classes else None
    return Message(sketch_content(told, held, site.client, order.round_index), reply_to=message)


def keep(message: Message, context: Context) -> Message:
    """Keep this site's model with its thresholds; a node without images of its own keeps none.

    Args:
        message: The order, with the final tensors and the pool of all sites.
        context: Flower's context.

    Returns:
        An empty reply.
    """
    site, order = _asked(message, context)
    if site.data:
        scenario = site.scenario()
        pool, held = read_pool(message.content, site.clients, len(scenario.task.classes))
        model = home_model(site, scenario, order, _shared(site, scenario, message), held)
        images = calibration_images(scenario, site.client)
        model.calibration = thresholds(model, site.client, images, pool)
        folder = model.save(model_folder(site.state, order.key, site.client))
        name_latest(site.state, folder)
        journal = Journal(site.state / "journal.jsonl")
        reason = _never_unknown(model, site.client, len(images))
        journal.note("model kept", round=order.round_index, path=str(folder), reason=reason)
    return Message(RecordDict(), reply_to=message)


def _never_unknown(model: Model, client: int, images: int) -> str:
    """Why the model never answers unknown; empty where it can."""
    if model.calibration is None and images:
        return (
            f"{images} calibration images are too few and there is no pool of all sites' scores, "
            "so that no image is unknown: calibrate it on more (focoop calibrate)"
        )
    if model.calibration is None:
        return "no images were set aside to calibrate it, so that no image is unknown"
    return model.calibration.never_unknown(client)


def _asked(message: Message, context: Context) -> tuple[SiteClient, Order]:
    """Who is asked what; only about the last round of a run."""
    site, order = SiteClient.of(context), Order.read(message.content)
    site.check(order)
    trains = lookup(site.config.method.name).trains
    last = site.config.federation.rounds if trains else 0
    if order.round_index != last:
        raise FederationError(f"round {order.round_index} is not the last: {last} is")
    return site, order


def _shared(site: SiteClient, scenario: Scenario, message: Message) -> Params:
    """The final tensors that the coordinator sent."""
    like = start(scenario.method, scenario.task, site.config.seed).shared
    down = site.config.federation.payload_down
    return received(message.content, down, like, scenario.task.device)


def _file(site: SiteClient, order: Order) -> Path:
    return site.state / order.key / "sketches" / f"{site.client:04d}.json"


def _answered(site: SiteClient, order: Order, shared: Params) -> SiteSketches | None:
    """What this site told before; None where it was not asked yet, or of an earlier last round."""
    path = _file(site, order)
    try:
        saved = parse_json(path.read_text(encoding="utf-8"))
        if not is_intact(saved):
            raise ValueError("its checksum differs")
        if saved["round"] < order.round_index:  # the run was lengthened since
            return None
        asked, told = saved["asked"], SiteSketches.from_dict(saved["told"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise FederationError(
            f"{path} is damaged ({error}): this site cannot tell which sketches it has sent"
        ) from error
    if asked != question(order, shared):
        raise Refusal("this site has told its sketches of this run, of other tensors")
    return told


def _keep_answer(site: SiteClient, order: Order, shared: Params, told: SiteSketches) -> None:
    path = _file(site, order)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    asked = question(order, shared)
    saved = {"round": order.round_index, "asked": asked, "told": told.to_dict()}
    write(path, json.dumps(sealed(saved)).encode())
