"""What should be known of a run's data before the run begins."""

from pathlib import Path

from focoop.config import RunConfig
from focoop.data import Source, clients_of, ready_features, registry
from focoop.scenario import datasets_of, remarks

USE_CLIENTS = "--set partition.kind=given --set partition.clients=0"


def missing_datasets(config: RunConfig) -> list[str]:
    """Name the public datasets of a run that are not on this machine.

    Args:
        config: the run's settings.

    Returns:
        Names that `focoop data fetch` takes.

    Raises:
        DataError: one of them cannot be fetched; the message says how to get it by hand.
    """
    root = config.data.root or None
    lacking = ready_features.lacking(datasets_of(config), root)
    if any(not registry.lookup(name).fetched for name in lacking):
        raise ready_features.missing(lacking, root)
    return list(lacking)


def notes_on_clients(config: RunConfig) -> list[str]:
    """Say so where images come divided among clients and the run divides them anew.

    Args:
        config: the run's settings.

    Returns:
        One sentence, or nothing.
    """
    source = Source.parse(config.data.id)
    given = clients_of(source.kind, Path(source.target).expanduser())
    kind = config.partition.kind
    if not given or kind == "given":
        return []
    return [f"{config.data.id} names {len(given)} clients, which partition.kind = {kind} ignores"]


def notes_on_data(config: RunConfig, *, measured: bool = True) -> list[str]:
    """Say what a run does with its data that its settings do not spell out.

    Args:
        config: the run's settings.
        measured: whether to speak of sets to measure on too.

    Returns:
        One sentence each.
    """
    clients = [f"{note}; use them: {USE_CLIENTS}" for note in notes_on_clients(config)]
    return [*clients, *remarks(config, measured=measured)]
