"""Sketches of calibration scores that sites told, as the coordinator's run folder keeps them."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from flwr.app import Message

from focoop.config import RunConfig
from focoop.errors import FederationError
from focoop.flower.journal import printable
from focoop.flower.server.reply_checks import FEWEST_TO_COMPARE
from focoop.flower.settings import unprotected
from focoop.flower.sketch_records import read_sketches
from focoop.predict import FederationSketches, SiteSketches

EVERYBODY = "all sites"
NONE_ASIDE = "it has no calibration images (data.calibration)"


def no_sketches(round_index: int, config: RunConfig) -> FederationSketches | None:
    """Say that no site is asked, where privacy settings protect everything that leaves a site.

    Args:
        round_index: The last round.
        config: The run's settings.

    Returns:
        An empty collection with the reason; None where sites may be asked.
    """
    reason = unprotected(config)
    return FederationSketches(round_index, left_out={EVERYBODY: reason}) if reason else None


def collected(
    replies: Sequence[tuple[int, Message]],
    refused: Mapping[str, str],
    name: Callable[[int], str],
    round_index: int,
    classes: Sequence[str],
    count_bound: float,
) -> FederationSketches:
    """Check what sites told.

    Args:
        replies: Replies by client.
        refused: Why other sites told nothing, by name.
        name: Gives the name of a client.
        round_index: The last round.
        classes: Class names in label order.
        count_bound: How many times the median number of images is too many.

    Returns:
        What can be used, and why the rest cannot.
    """
    sites: dict[int, SiteSketches] = {}
    held: dict[int, dict[str, int]] = {}
    left_out = {site: printable(reason) for site, reason in refused.items()}
    for client, reply in replies:
        try:
            told, counts = read_sketches(reply.content, client, round_index, len(classes))
        except FederationError as error:
            left_out[name(client)] = printable(str(error))
            continue
        if counts is not None:
            held[client] = dict(zip(classes, counts.tolist(), strict=True))
        if told.images:
            sites[client] = told
        else:
            left_out[name(client)] = NONE_ASIDE
    for client, reason in outsized(sites, count_bound).items():
        del sites[client]
        left_out[name(client)] = reason
    return FederationSketches(round_index, sites, held, left_out)


def outsized(sites: Mapping[int, SiteSketches], count_bound: float) -> dict[int, str]:
    """Find sites that tell of far more images than the median, and so would be the pool.

    Args:
        sites: Sketches by client.
        count_bound: How many times the median is too many; 0: none is.

    Returns:
        Reasons by client.
    """
    if len(sites) < FEWEST_TO_COMPARE or not count_bound:
        return {}
    usual = median(site.images for site in sites.values())
    return {
        client: f"it tells of {site.images} calibration images, {site.images / usual:.0f} times "
        "the median"
        for client, site in sites.items()
        if site.images > count_bound * usual
    }
