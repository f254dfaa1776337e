"""Run, resume and re-evaluate a configuration in its run folder."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from focoop.errors import RunError
from focoop.evaluation import Evaluation, evaluate
from focoop.federation.client import LocalSettings
from focoop.federation.edges import Edges
from focoop.federation.round import Screen
from focoop.federation.simulator import (
    PrivateStore,
    RoundResult,
    Schedule,
    client_state,
    simulate,
    start,
)
from focoop.federation.together import Train
from focoop.methods._base import Params, Server
from focoop.payload import Payload, rounded
from focoop.privacy import Privacy
from focoop.robust import Defence
from focoop.runs import RunFolder
from focoop.scenario import Scenario, build, make_split
from focoop.schema import RunConfig
from focoop.secure_sum import summed

# Clients trained as one batch on a GPU unless federation.together says otherwise: more gain nothing
# there (docs/performance.md) and need memory.
TOGETHER = 50
OnRound = Callable[[int, float | None, dict[str, Any] | None], None]


@dataclass(frozen=True)
class PartitionView:
    """Class-by-client counts of a configuration: (K, C) train after shots, (K, C) test."""

    train: np.ndarray
    test: np.ndarray
    classes: tuple[str, ...]
    repeated: int
    names: tuple[str, ...] = ()  # of the clients, where each is a domain or was given


def describe_partition(config: RunConfig) -> PartitionView:
    """The label-by-client picture of a run with these settings."""
    split = make_split(config)
    train, names = split.counts(), split.train.domain_names
    named = config.partition.kind in ("domain", "given") and len(names) == len(train)
    return PartitionView(
        train,
        split.counts(of_test=True),
        split.classes,
        split.repeated,
        names if named else (),
    )


def run_experiment(
    config: RunConfig,
    folder: RunFolder,
    on_round: OnRound | None = None,
    train: Train | None = None,
) -> dict[str, Any]:
    """Train from the folder's last committed round to the end; returns the last evaluation.

    `on_round(round, loss, evaluation or None)` is called after each commit; round 0 is the state
    before training. `train` is a `Meeting`'s where other runs train beside this one.
    """
    scenario = build(config)
    folder.pin("backbone_fingerprint", scenario.backbone.fingerprint)
    folder.pin("data_hashes", scenario.hashes)
    folder.pin("repeated_shots", scenario.split.repeated)
    schedule = schedule_of(config, scenario)
    committed = folder.resume_point()
    if committed is None:
        first = start(scenario.method, scenario.task, config.seed).shared
        server = Server(rounded(first, schedule.down))
        _commit(folder, scenario, config, schedule, 0, server, None, on_round)
        done = 0
    else:
        done = committed.round_index
        server = Server(
            _on_device(committed.shared, scenario), _on_device(committed.memory, scenario)
        )
    rounds = simulate(
        scenario.method,
        scenario.task,
        scenario.training_clients(),
        schedule,
        folder.private,
        seed=config.seed,
        resume=(done, server),
        train=train,
    )
    for result in rounds:
        _commit(
            folder, scenario, config, schedule, result.round_index, result.server, result, on_round
        )
    return folder.metrics()[-1]


def evaluate_run(folder: RunFolder, device: str | None = None) -> Evaluation:
    """Evaluate the last committed state of a run on the data its configuration names."""
    committed = folder.resume_point()
    if committed is None:
        raise RunError(f"{folder.path} has no committed round yet: run it first")
    scenario = build(folder.config, device=device)
    server = Server(_on_device(committed.shared, scenario))
    return evaluate_state(scenario, server, folder.private, folder.config.seed)


def schedule_of(config: RunConfig, scenario: Scenario) -> Schedule:
    """How the configuration's federation runs."""
    settings = config.federation
    return Schedule(
        rounds=settings.rounds if scenario.method.trains else 0,
        participation=1.0 if scenario.method.pools_data else settings.participation,
        local=LocalSettings(
            settings.epochs,
            settings.batch_size,
            settings.lr,
            settings.momentum,
            settings.weight_decay,
            settings.prox,
        ),
        lr_schedule=settings.lr_schedule,
        together=settings.together or (1 if scenario.task.device.type == "cpu" else TOGETHER),
        privacy=client_privacy(config),
        screen=server_screen(config),
        payload=Payload(settings.payload),
        down=settings.payload_down,
        secure=config.privacy.secure_sum,
    )


def client_privacy(config: RunConfig) -> Privacy | None:
    """What clients do to their updates before they leave; None: nothing."""
    given = config.privacy
    if not given.clip and given.counts == "exact":
        return None
    return Privacy(
        given.clip,
        given.noise,
        given.delta,
        given.counts,
        given.count_step,
        given.count_noise,
        given.secret_draw,
    )


def server_screen(config: RunConfig) -> Screen | None:
    """What happens to updates before the method's server step; None: nothing."""
    inner, edges = _screen(config), config.federation.edges
    return Edges(edges, inner).screen if edges else inner


def _screen(config: RunConfig) -> Screen | None:
    if config.privacy.secure_sum:
        return summed
    given = config.robust
    if given.rule == "none":
        return None
    return Defence(given.rule, given.hostile, given.clip, given.count_cap).screen


def evaluate_state(
    scenario: Scenario, server: Server, store: PrivateStore, seed: int
) -> Evaluation:
    """Every client's model as the server and its private tensors now make it."""
    initial = start(scenario.method, scenario.task, seed)

    def params(client: int) -> Params:
        # A client of pooled data has no model of its own, but its labels may shape the answer.
        kept = store.load(0 if scenario.method.pools_data else client) if initial.private else None
        state = client_state(
            scenario.method,
            scenario.task,
            initial,
            server,
            kept,
            lambda: scenario.client(client).counts(len(scenario.task.classes)),
        )
        return {**state.shared, **state.private}

    return evaluate(
        scenario.method, scenario.task, params, scenario.sets, same_for_all=not initial.private
    )


def _commit(
    folder: RunFolder,
    scenario: Scenario,
    config: RunConfig,
    schedule: Schedule,
    round_index: int,
    server: Server,
    result: RoundResult | None,
    on_round: OnRound | None,
) -> None:
    """Evaluate where it is due, then commit the round."""
    every = config.federation.evaluate_every
    last = round_index == schedule.rounds
    due = last or (every > 0 and round_index % every == 0)
    line: dict[str, Any] | None = None
    if due:
        found = evaluate_state(scenario, server, folder.private, config.seed)
        line = {**found.summary, "clients": found.clients}
        if result is not None:
            line |= {"loss": result.loss, "server": dict(server.report)}
    traffic: dict[str, Any] = {}
    if result is not None:
        traffic = {
            "participants": list(result.participants),
            "bytes_up": result.bytes_up,
            "bytes_down": result.bytes_down,
            "seconds": round(result.seconds, 3),
        }
        if schedule.privacy is not None or schedule.screen is not None:
            traffic["server"] = dict(server.report)  # epsilon of rounds without evaluation too
    folder.commit(round_index, server.shared, line, traffic, server.memory)
    if on_round is not None:
        on_round(round_index, None if result is None else result.loss, line)


def _on_device(params: Params, scenario: Scenario) -> Params:
    return {name: value.to(scenario.task.device) for name, value in params.items()}
