"""The client's side: `train` and `evaluate` as the simulator does them, on Flower messages."""

from dataclasses import replace
from functools import partial

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict

from focoop import __version__
from focoop.experiments import evaluate_state
from focoop.federation import EvaluationSets, Owned, RoundSetup, client_round, start
from focoop.flower.identity import prove
from focoop.flower.journal import Journal
from focoop.flower.records import (
    ABOUT,
    FAILED_STEP,
    Order,
    challenge,
    received,
    row_content,
    update_content,
)
from focoop.flower.site import calibration, secure_rounds
from focoop.flower.site.client import SiteClient
from focoop.flower.site.guard import SiteApp
from focoop.flower.site.held_back import find_held_back
from focoop.flower.site.sum_secrets import forget
from focoop.flower.sketch_records import KEEP_STEP, SKETCH_STEP
from focoop.flower.sum_records import KEYS, OPEN, SHARES
from focoop.methods import Server
from focoop.scenario import schedule_of

app = SiteApp()
app.query(KEYS)(secure_rounds.keys)
app.query(SHARES)(secure_rounds.shares)
app.query(OPEN)(secure_rounds.open_shares)
app.query(SKETCH_STEP)(calibration.sketch)
app.query(KEEP_STEP)(calibration.keep)


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Say who this node is and what it takes the task to be.

    Args:
        message: The order.
        context: Flower's context.

    Returns:
        The reply.
    """
    site = SiteClient.of(context)
    scenario = site.scenario()
    about = ConfigRecord(
        {
            "client": site.client,
            "clients": site.clients,
            "name": site.name,
            "version": __version__,
            "backbone": scenario.backbone.fingerprint,
            "classes": list(scenario.task.classes),
        }
    )
    if site.config.privacy.counts == "exact" and not site.config.privacy.secure_sum:
        about["images"] = len(scenario.client(site.client))  # as every update tells
    if site.keys is not None:
        ids = context.run_id, context.node_id, site.client
        about["proof"] = prove(site.keys, challenge(message.content), *ids)
    return Message(RecordDict({ABOUT: about}), reply_to=message)


@app.query(FAILED_STEP)
def run_failed(message: Message, context: Context) -> Message:
    """Take note that the run has failed at the coordinator: the guard has written it down.

    Args:
        message: The order.
        context: Flower's context.

    Returns:
        An empty reply.
    """
    return Message(RecordDict(), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train one round; private tensors stay in this machine's files.

    Args:
        message: The order.
        context: Flower's context.

    Returns:
        The reply.
    """
    site, order = SiteClient.of(context), Order.read(message.content)
    site.check(order)
    scenario, client, round_index = site.scenario(), site.client, order.round_index
    schedule = replace(schedule_of(site.config, scenario), together=1)
    setup = RoundSetup(scenario.method, scenario.task, schedule, site.config.seed)
    # An order for this round says that the one before is committed, and nothing later.
    store = site.store(order, round_index - 1)
    store.settle(round_index - 1)
    store.sweep()
    given = received(message.content, schedule.down, setup.initial.shared, setup.task.device)
    release = None
    if schedule.privacy is not None:
        release = partial(site.release, schedule.privacy, order)
    data = [scenario.client(client)]
    (result,) = client_round(setup, round_index, given, [client], data, store, release)
    update = result.update
    if site.data and (reason := find_held_back(scenario, client).sentence()):
        journal = Journal(site.state / "journal.jsonl")
        journal.note("held back", round=round_index, reason=reason)
    if site.config.privacy.secure_sum:
        hidden = secure_rounds.masked_content(
            site, order, message.content, update, setup.method.by_class
        )
        return Message(hidden, reply_to=message)
    coded = schedule.payload.encode(update.shared, given, setup.coins(round_index, client))
    return Message(update_content(update, round_index, coded), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate this client's model; the row leaves unless it is to stay, as scores and images do.

    Args:
        message: The order.
        context: Flower's context.

    Returns:
        The reply.
    """
    site, order = SiteClient.of(context), Order.read(message.content)
    site.check(order)
    scenario, own = site.scenario(evaluation=True), site.client
    method, task, seed = scenario.method, scenario.task, site.config.seed
    like = start(method, task, seed).shared
    down = site.config.federation.payload_down
    server = Server(received(message.content, down, like, task.device))
    forget(site, order)  # this round's sum, if any, is open by now
    row = None
    if site.reports and len(scenario.sets.test.index[own]):
        alone = replace(scenario, sets=only(scenario.sets, own))
        store = site.store(order, order.round_index)
        row = evaluate_state(alone, server, store, seed).clients[0]
    return Message(row_content(row, site.client, order.round_index), reply_to=message)


def only(sets: EvaluationSets, client: int) -> EvaluationSets:
    """Return the same sets with the images of one client owned and all others nobody's.

    Args:
        sets: The sets.
        client: The client's number.

    Returns:
        The sets.
    """

    def alone(owned: Owned) -> Owned:
        nothing = np.zeros(0, dtype=np.int64)
        index = [rows if k == client else nothing for k, rows in enumerate(owned.index)]
        return Owned(owned.images, index)

    corrupted = {name: alone(owned) for name, owned in sets.corrupted.items()}
    aside = None if sets.calibration is None else alone(sets.calibration)
    return EvaluationSets(alone(sets.test), corrupted, sets.ood, aside, sets.unowned)
