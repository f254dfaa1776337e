"""What a Flower run is told: the run's configuration, and how the server deals with its clients."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from focoop.caching import parse_json
from focoop.config import RunConfig, from_flat, load
from focoop.errors import ConfigError
from focoop.fields import build, setting
from focoop.flower.app_bundle import SETTINGS
from focoop.plugins import only_installed

MOST_SITES = 100_000  # a site's memory grows with the number that it is told
# Environment variable of the server: trackers, as `tensorboard:folder; mlflow`. It is no setting of
# the run, because those go to every site, and where a tracker is may hold a password.
TRACK = "FOCOOP_TRACK"
Flat = Mapping[str, bool | int | float | str]
ONLY_INSTALLED = (
    "sites run installed code alone; put it into a package with the entry point focoop.methods, "
    "installed at the coordinator and at every site"
)


@dataclass(frozen=True)
class ServerSettings:
    """Keys of `[tool.flwr.app.config]` beside the run's own settings (underscores as dashes)."""

    config: str = setting("", "configuration: a file, or a name of configs; there on every machine")
    set: str = setting("", "settings over it, as `federation.rounds=3; method.name=promptfl`")
    classes: str = setting(
        "", "class names where sites bring their own images, as `cat; dog`; empty: the dataset's"
    )
    keys: str = setting(
        "", "folder of the federation's keys at the server; empty: nodes number themselves"
    )
    sites: int = setting(
        0, "number of sites; 0: as many as nodes say there are", low=0, high=MOST_SITES
    )
    out: str = setting("", "run folder at the server; empty: one of the run's name in runs/flower")
    resume: bool = setting(False, "continue the run in that folder")
    quorum: float = setting(
        0.5, "share of a round's clients whose updates it needs", above=0, high=1
    )
    spare: float = setting(
        0.0,
        "share of clients asked beyond those a round needs; the first that suffice end it",
        low=0,
    )
    deadline: float = setting(3600.0, "seconds a client has to answer", above=0)
    retries: int = setting(
        1,
        "times a client is asked again in a round after its node or process died",
        low=0,
        high=1000,
    )
    wait: float = setting(120.0, "seconds to wait for clients at the start, or for a quorum", low=0)
    rejoin: float = setting(60.0, "seconds a round waits for a client that has gone", low=0)
    journal: str = setting("", "file at the server that tells what happened; empty: none")
    norm_bound: float = setting(
        1000.0, "refuse updates this many times longer than the median; 0: none", low=0
    )
    count_bound: float = setting(
        20.0, "refuse clients with this many times the median of images; 0: none", low=0
    )


NAMES = {one.name.replace("_", "-"): one.name for one in fields(ServerSettings)}


def sent_settings(flat: Flat) -> Flat:
    """Return all settings of a run: those that a coordinator sent as one text, or else as they are.

    Args:
        flat: Flower's run configuration.

    Returns:
        Settings by name.

    Raises:
        ConfigError: The text cannot be read.
    """
    sent = flat.get(SETTINGS)
    if not isinstance(sent, str) or not sent:
        return {key: value for key, value in flat.items() if key != SETTINGS}
    try:
        settings = parse_json(sent)
    except ValueError as error:
        raise ConfigError(f"the settings of this run cannot be read ({error})") from error
    plain = bool, int, float, str
    if not isinstance(settings, dict) or not all(
        type(value) in plain for value in settings.values()
    ):
        raise ConfigError("the settings of this run are no table of numbers and texts")
    return settings


def server_settings(flat: Flat) -> ServerSettings:
    """Read how the server behaves from a Flower run configuration.

    Args:
        flat: Flower's run configuration.

    Returns:
        The server's settings.
    """
    flat = sent_settings(flat)
    own = {NAMES[key]: value for key, value in flat.items() if key in NAMES}
    return build(ServerSettings, own, "")


def run_config(flat: Flat) -> RunConfig:
    """Read the run's configuration: what `config` and `set` say, or else all settings one by one.

    Args:
        flat: Flower's run configuration.

    Returns:
        The configuration.
    """
    flat = sent_settings(flat)
    settings = server_settings(flat)
    given = {key: value for key, value in flat.items() if key not in NAMES}
    path = Path(settings.config) if settings.config else None
    with only_installed(ONLY_INSTALLED):
        if given:
            return from_flat(given)
        return load(path, listed(settings.set), own=bool(settings.classes))


def listed(text: str) -> list[str]:
    """Return the parts of `a; b`.

    Args:
        text: The text.

    Returns:
        The parts.

    >>> listed("cat; dog;")
    ['cat', 'dog']
    """
    return [part.strip() for part in text.split(";") if part.strip()]


def unprotected(config: RunConfig) -> str:
    """Say why a sketch of scores cannot leave a site under a run's privacy settings.

    Args:
        config: The run's settings.

    Returns:
        The reason; empty where it can.
    """
    privacy = config.privacy
    if privacy.noise > 0:
        return "privacy.noise is set, and sketches of scores have no noise"
    if privacy.secure_sum:
        return "privacy.secure_sum is set, and sketches of scores are not summed"
    if privacy.counts != "exact":
        return f"privacy.counts = {privacy.counts!r}, and a sketch tells how many images it is of"
    return ""
