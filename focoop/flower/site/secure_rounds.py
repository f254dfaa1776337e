"""A site's part in a secure sum: its answers to the messages of a round.

Four messages a round, each a new process: `sum_keys`, `sum_shares`, the training itself, whose
answer goes under masks, and `sum_open`. Between them the site's secrets are in a file of its own
(`sum_secrets.py`).

A site with a key of its own signs the keys of the sum and checks the others' signatures
(`peers.py`). It takes part in no sum of fewer clients than it wants, and in each sum once.
"""

from collections.abc import Sequence

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from focoop.errors import FederationError
from focoop.federation import SHARE_BYTES, pack, threshold_of
from focoop.flower.identity import read_site, sign
from focoop.flower.masking import Masker
from focoop.flower.records import GLOBAL, METRICS, UPDATE, Order, to_arrays
from focoop.flower.site.client import SiteClient
from focoop.flower.site.peers import accept, peers_file
from focoop.flower.site.sum_secrets import SumSecrets, forget
from focoop.flower.sum_records import (
    MASKED,
    SUM,
    numbered,
    record_of,
    sum_context,
    sum_name,
    to_keys,
    to_record,
)
from focoop.methods import ClientUpdate


def keys(message: Message, context: Context) -> Message:
    """Begin a sum: two public keys and a hash, of secrets drawn now, signed by this site.

    Args:
        message: The order.
        context: Flower's context.

    Returns:
        The reply.
    """
    site, order = client_and_order(message, context)
    sum_state = SumSecrets.of(site, order, message.content)
    masker = sum_state.load()
    if masker is None:
        sum_state.begin()
        masker = Masker(site.client, 2, least_parties(site))
        sum_state.save(masker)  # the threshold follows with all the keys
    mine = masker.keys()
    if site.keys is not None:
        mine = mine.signed(
            sign(site.keys, mine.claim(sum_name(order, sum_state.attempt), site.client))
        )
    return answer(message, site, order, to_record({site.client: mine}))


def shares(message: Message, context: Context) -> Message:
    """Send shares of this site's secrets, sealed for each of the others.

    Args:
        message: The order.
        context: Flower's context.

    Returns:
        The reply.

    Raises:
        FederationError: There are too few sites, or a key is not signed by its site.
    """
    site, order = client_and_order(message, context)
    sum_state = SumSecrets.of(site, order, message.content)
    record = record_of(message.content)
    masker, everyone = sum_state.need(), to_keys(record)
    if not all(0 <= client < site.clients for client in everyone):
        raise FederationError("the sum names clients that this federation does not have")
    if site.keys is not None:
        identities, own = dict(numbered(record, "identity")), read_site(site.keys)
        file = peers_file(site.state, site.keys)
        accept(file, own, identities, everyone, sum_name(order, sum_state.attempt))
    masker.threshold = threshold_of(len(everyone), site.config.privacy.threshold)
    sealed = masker.share(everyone)
    sum_state.save(masker)
    return answer(message, site, order, {f"package/{k}": package for k, package in sealed.items()})


def least_parties(site: SiteClient) -> int:
    """Return the fewest clients in a sum: the most of what the run and this site's policy ask.

    Args:
        site: The site.

    Returns:
        Their number.
    """
    own = site.policy.privacy.parties_at_least if site.policy is not None else 0
    return max(site.config.privacy.parties, own)


def masked_content(
    site: SiteClient,
    order: Order,
    content: RecordDict,
    update: ClientUpdate,
    by_class: Sequence[str],
) -> RecordDict:
    """Make the answer to an order to train: an update under masks, its counts and its loss with it.

    Args:
        site: The site.
        order: The order.
        content: The message's content.
        update: The update.
        by_class: Names of tensors with one row per class.

    Returns:
        A message's content.

    Raises:
        FederationError: The sum has not begun, or there are too few sites.
    """
    sum_state = SumSecrets.of(site, order, content)
    masker, record = sum_state.need(), record_of(content)
    packages = dict(numbered(record, "package"))
    vector, arrays = pack(update, by_class, site.clients), content.get(GLOBAL)
    if not isinstance(arrays, ArrayRecord):
        raise FederationError("the message holds no arrays where it should")
    hidden = masker.mask(vector, packages, sum_context(order, sum_state.attempt, arrays))
    sum_state.save(masker)
    numbers = MetricRecord({"client": site.client, "round": order.round_index})
    words = torch.from_numpy(hidden.view(np.int64))
    return RecordDict({UPDATE: to_arrays({MASKED: words}), METRICS: numbers})


def open_shares(message: Message, context: Context) -> Message:
    """Open shares once it is known who answered; with that the site has forgotten the sum.

    Args:
        message: The order.
        context: Flower's context.

    Returns:
        The reply.

    Raises:
        FederationError: Too few have answered.
    """
    site, order = client_and_order(message, context)
    sum_state = SumSecrets.of(site, order, message.content)
    masker, alive = sum_state.need(), record_of(message.content).get("answered")
    if not isinstance(alive, list) or not all(type(client) is int for client in alive):
        raise FederationError("the message does not say who answered")
    revealed = masker.reveal([int(client) for client in alive])
    forget(site, order)
    values = {
        f"seed/{k}": share.to_bytes(SHARE_BYTES, "big") for k, share in revealed.seeds.items()
    }
    values |= {f"key/{k}": share.to_bytes(SHARE_BYTES, "big") for k, share in revealed.keys.items()}
    return answer(message, site, order, values)


def client_and_order(message: Message, context: Context) -> tuple[SiteClient, Order]:
    """Read who is asked what, by a server of the same settings.

    Args:
        message: The order.
        context: Flower's context.

    Returns:
        The client and the order.

    Raises:
        FederationError: The run has no secure sums.
    """
    site, order = SiteClient.of(context), Order.read(message.content)
    site.check(order)
    if not site.config.privacy.secure_sum:
        raise FederationError("this run has no secure sums")
    return site, order


def answer(message: Message, site: SiteClient, order: Order, values: dict[str, bytes]) -> Message:
    """Make a reply of named bytes.

    Args:
        message: The order.
        site: The site.
        order: What was asked.
        values: Bytes by name.

    Returns:
        The reply.
    """
    record = ConfigRecord({"client": site.client, "round": order.round_index})
    for name, raw in values.items():
        record[name] = raw
    return Message(RecordDict({SUM: record}), reply_to=message)
