"""Read from a configuration how its federation runs: rounds, privacy, what happens to updates."""

from focoop.config import RunConfig
from focoop.errors import ConfigError
from focoop.federation import (
    Defence,
    Edges,
    LocalSettings,
    Payload,
    Privacy,
    Schedule,
    Screen,
    num_sampled,
    summed,
)
from focoop.scenario.scenario import Scenario

# Clients trained as one batch on a GPU unless federation.together says otherwise: more gain nothing
# there and need memory.
TOGETHER = 50


def schedule_of(config: RunConfig, scenario: Scenario) -> Schedule:
    """Return how a configuration's federation runs.

    Args:
        config: The run's settings.
        scenario: The run's data.

    Returns:
        The schedule.
    """
    settings = config.federation
    check_parties(config, scenario.num_clients)
    check_late(config, scenario)
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
        late=settings.late_clients if scenario.method.trains else 0,
    )


def check_late(config: RunConfig, scenario: Scenario) -> None:
    """Refuse clients that join late where nobody would train before them.

    Args:
        config: The run's settings.
        scenario: The run's data.

    Raises:
        ConfigError: All clients are late, or one party holds all images.
    """
    late = config.federation.late_clients
    if not late or not scenario.method.trains:
        return
    if scenario.method.pools_data:
        raise ConfigError(
            f"{config.method.name} holds all images in one place: nobody can join late "
            "(federation.late_clients)"
        )
    if late >= scenario.num_clients:
        raise ConfigError(
            f"federation.late_clients = {late} of {scenario.num_clients} clients leave nobody to "
            "train before them: lower it"
        )


def check_parties(config: RunConfig, num_clients: int) -> None:
    """Refuse secure sums of fewer clients than `privacy.parties`.

    Args:
        config: The run's settings.
        num_clients: Number of clients.

    Raises:
        ConfigError: There are too few.
    """
    asked = num_sampled(num_clients, config.federation.participation)
    if config.privacy.secure_sum and asked < config.privacy.parties:
        raise ConfigError(
            f"{asked} of {num_clients} clients take part in a round, and a secure sum is of "
            f"privacy.parties = {config.privacy.parties} or more: raise partition.clients (in a "
            "federation: name more sites) or federation.participation"
        )


def client_privacy(config: RunConfig) -> Privacy | None:
    """Return what clients do to their updates before they leave.

    Args:
        config: The run's settings.

    Returns:
        Clipping and noise; None: nothing.
    """
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
    """Return what happens to updates before the method's server step.

    Args:
        config: The run's settings.

    Returns:
        A function of updates; None: nothing.
    """
    inner, edges = _screen(config), config.federation.edges
    return Edges(edges, inner).screen if edges else inner


def _screen(config: RunConfig) -> Screen | None:
    if config.privacy.secure_sum:
        return summed
    given = config.robust
    if given.rule == "none":
        return None
    return Defence(given.rule, given.hostile, given.clip, given.count_cap).screen
