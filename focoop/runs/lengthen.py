"""Let a run go on to more rounds than it was started with."""

from focoop.config import RunConfig, config_hash
from focoop.errors import RunError
from focoop.methods import lookup
from focoop.runs.folder import RunFolder
from focoop.runs.manifest import now


def is_due(round_index: int, rounds: int, every: int) -> bool:
    """Say whether a round is evaluated: the last one is, and every so many.

    Args:
        round_index: The round's number, from 0.
        rounds: Rounds of the run.
        every: Rounds between evaluations; 0: the last round alone.

    Returns:
        Whether it is evaluated.
    """
    return round_index == rounds or (every > 0 and round_index % every == 0)


def lengthen(folder: RunFolder, config: RunConfig) -> str:
    """Let the run go on to more rounds than it was started with.

    The manifest keeps when and from where. The evaluation of what was the last round moves there
    too where a run of that many rounds would not have made it, so that all other files become those
    of an uninterrupted run.

    Args:
        folder: the run, open for writing.
        config: the configuration; it differs from the run's in federation.rounds alone.

    Returns:
        What a person should know of the result; empty where it is that of an uninterrupted run.

    Raises:
        RunError: The run ended with clients that join after training, or another revision of its
            method made it.
    """
    method, settings = lookup(config.method.name), config.federation
    folder.agree_revision(config.method.name, method.revision)
    if settings.late_clients:
        raise RunError(
            f"{folder.path} ends with the round in which federation.late_clients join: it cannot "
            "go on after that; start a run of its own with more rounds"
        )
    before, after, last = folder.config.federation.rounds, settings.rounds, folder.last_round()
    note = ""
    if settings.lr_schedule != "constant" and last > 0:
        note = (
            f"federation.lr_schedule = {settings.lr_schedule} now runs over {after} rounds: "
            f"{f'rounds 1 to {last} were' if last > 1 else 'round 1 was'} trained with rates for "
            f"{before} {'rounds' if before > 1 else 'round'}, so the result is not that of {after} "
            "rounds from the start"
        )
    entry = {"from": before, "to": after, "round": last, "time": now(), "note": note}
    surplus = not is_due(before, after, settings.evaluate_every)
    if method.trains and surplus:
        evaluations = [line for line in folder.metrics() if line["round"] == before]
        entry |= {"evaluation": evaluations[0]} if evaluations else {}
    earlier = list(folder.manifest.get("lengthened", []))
    # Stopped before the configuration is written, the same command does all this again.
    if "evaluation" in entry or not earlier or earlier[-1]["to"] != after:
        earlier.append(entry)
    folder.remember(lengthened=earlier, config_hash=config_hash(config))
    if "evaluation" in entry:
        folder.drop_metrics(before)
    folder.replace_config(config)
    return note
