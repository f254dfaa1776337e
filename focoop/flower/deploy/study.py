"""A federation's folder at the coordinator: keys, study, one join bundle a site, and the run.

federation.toml   where it listens, and how it deals with its sites
run.toml          all settings of the study
classes.txt       its classes, one a line
keys/             the federation's keys (`keys.py`)
bundles/          NAME.focoop for each site (`joinbundle.py`)
run, run-flower   the run folder, and Flower's files
"""

import shutil
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from focoop import __version__
from focoop.config import RunConfig, differences, to_toml
from focoop.errors import ConfigError, RunError
from focoop.fields import build, parse_toml, setting, toml_value
from focoop.flower.deploy.enrolment import invite
from focoop.flower.deploy.join_bundle import AUTHORITY, CLASSES, JOIN, RUN, SUFFIX, Invitation, pack
from focoop.flower.deploy.keys import add_sites, check_hosts, make_keys
from focoop.flower.identity import SITE, numbered
from focoop.flower.site.policy import FILE as POLICY
from focoop.flower.site.policy_words import default_policy_toml
from focoop.runs import CONFIG, RunFolder

FILE = "federation.toml"
DEFAULT_PORT = 8000


@dataclass(frozen=True)
class Federation:
    """What `federation.toml` says."""

    hosts: tuple[str, ...] = setting((), "names and addresses by which sites reach the server")
    port: int = setting(DEFAULT_PORT, "its port", low=1, high=65535)
    listen: str = setting("0.0.0.0", "address to listen on")
    quorum: float = setting(
        0.5, "share of a round's clients whose updates it needs", above=0, high=1
    )
    spare: float = setting(0.0, "share of clients asked beyond those a round needs", low=0)
    deadline: float = setting(3600.0, "seconds a site has to answer", above=0)
    wait: float = setting(86400.0, "seconds to wait for all sites at the start", low=0)
    rejoin: float = setting(60.0, "seconds a round waits for a site that has gone", low=0)

    @property
    def server(self) -> str:
        """Return HOST:PORT as sites call it."""
        host = self.hosts[0]
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def text(self) -> str:
        """Return the federation as TOML, each value with its meaning."""
        lines = [
            f"# {entry.metadata['doc']}\n"
            f"{entry.name} = {toml_value(_plain(getattr(self, entry.name)))}"
            for entry in fields(self)
        ]
        return "\n".join(lines) + "\n"


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def read(folder: Path) -> Federation:
    """Read the federation of a folder.

    Args:
        folder: The folder.

    Returns:
        The federation.

    Raises:
        ConfigError: There is none, or its file cannot be used.
    """
    try:
        table = parse_toml((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = f"there is no {FILE} in it" if isinstance(error, FileNotFoundError) else error
        raise ConfigError(
            f"{folder} is no federation ({why}): make one with focoop federation create"
        ) from error
    federation = build(Federation, table, "")
    if not federation.hosts:
        raise ConfigError(f"{folder / FILE} names no hosts")
    return federation


def host_port(text: str) -> tuple[str, int]:
    """Read HOST[:PORT].

    Args:
        text: The text.

    Returns:
        Host and port.

    Raises:
        ConfigError: The port is no number, or the host no name or address.

    >>> host_port("fl.example.org"), host_port("10.0.0.7:9000"), host_port("[::1]:9000")
    (('fl.example.org', 8000), ('10.0.0.7', 9000), ('::1', 9000))
    """
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        check_hosts([text.strip("[]")])
        return text.strip("[]"), DEFAULT_PORT
    if not port.isdigit() or not 1 <= int(port) <= 65535 or not host:
        raise ConfigError(f"{text!r} is no HOST:PORT")
    return host.strip("[]"), int(port)


def create(
    folder: Path, federation: Federation, sites: Sequence[str], config: RunConfig, classes: str
) -> list[Path]:
    """Make a federation's folder, whole or not at all; the sites' bundles.

    Args:
        folder: A new folder.
        federation: Where it listens, and how it deals with its sites.
        sites: Names of the sites, numbered in this order.
        config: The study's settings.
        classes: Its class names, as `cat; dog`.

    Returns:
        The bundles' paths, in the order of the sites.

    Raises:
        ConfigError: The folder is there already, or a name cannot be used.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already: choose another name")
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        make_keys(draft / "keys", federation.hosts, sites, keyed=False)
        (draft / FILE).write_text(federation.text(), encoding="utf-8")
        (draft / RUN).write_text(to_toml(config), encoding="utf-8")
        lines = [part.strip() for part in classes.split(";") if part.strip()]
        (draft / CLASSES).write_text("\n".join(lines) + "\n", encoding="utf-8")
        for name in sites:
            bundle(draft, name)
        draft.replace(folder)
    except BaseException:
        shutil.rmtree(draft)
        raise
    return [folder / "bundles" / f"{name}{SUFFIX}" for name in sites]


def bundle(folder: Path, name: str) -> Path:
    """Make a join bundle for a site, with a new invitation; an earlier one is not valid any more.

    Args:
        folder: The federation's folder.
        name: The site's name.

    Returns:
        The bundle.
    """
    place = folder / "keys" / "sites" / name
    token = invite(folder / "keys", name)
    path = folder / "bundles" / f"{name}{SUFFIX}"
    files = {
        JOIN: Invitation(read(folder).server, token, __version__).text().encode(),
        SITE: (place / SITE).read_bytes(),
        AUTHORITY: (folder / "keys" / AUTHORITY).read_bytes(),
        RUN: (folder / RUN).read_bytes(),
        CLASSES: (folder / CLASSES).read_bytes(),
        POLICY: default_policy_toml(run=RUN).encode(),
    }
    pack(path, files)
    return path


def invite_site(folder: Path, name: str) -> Path:
    """Make a bundle for a site that is new, or whose key is lost: then its old key is forgotten.

    Args:
        folder: The federation's folder.
        name: The site's name.

    Returns:
        The bundle.
    """
    read(folder)
    keys = folder / "keys"
    if name in numbered(keys).values():
        (keys / "sites" / name / "key.pub").unlink(missing_ok=True)
    else:
        add_sites(keys, [name], keyed=False)
    return bundle(folder, name)


def is_done(path: Path, config: RunConfig, classes: Sequence[str], sites: Collection[str]) -> bool:
    """Say whether a study's run is finished; refuse one of other sites, classes or settings.

    Args:
        path: The run folder.
        config: The study's settings now.
        classes: Its classes now.
        sites: Names of its sites now.

    Returns:
        Whether nothing is left to do.

    Raises:
        ConfigError: The run was begun with others.
        RunError: It is damaged.
    """
    if not (path / CONFIG).is_file():
        return False
    try:
        run = RunFolder.open(path, convert=False)
    except RunError as error:
        reason, _, advice = str(error).partition("; ")
        if "--" not in advice:
            raise
        # It names options of `focoop run`, which a federation's commands do not have.
        raise RunError(
            f"{reason}: restore it from a copy, or begin another run: {aside(path)}"
        ) from error
    if run.last_round() < 0:  # it holds nothing yet
        return False
    rounds = config.federation.rounds
    lengthened = replace(run.config, federation=replace(run.config.federation, rounds=rounds))
    changes = differences(lengthened, config)
    if run.names is not None and len(run.names.clients) != len(sites):
        changes.append(f"{len(run.names.clients)} -> {len(sites)} sites ({', '.join(sites)})")
    if run.names is not None and sorted(run.names.classes) != sorted(classes):
        odd = sorted(set(run.names.classes) ^ set(classes))
        changes.append(f"classes: {', '.join(odd)}")
    if changes:
        listing = "".join(f"\n  {change}" for change in changes)
        raise ConfigError(
            f"{path} was begun with another study (then -> now):{listing}\n"
            f"For a run of the new one: {aside(path)}"
        )
    return run.status == "finished" and rounds <= run.config.federation.rounds


def aside(path: Path) -> str:
    """Return the command that makes place for another run of a federation.

    Args:
        path: The run folder.

    Returns:
        The command, and what to do next.
    """
    number = 1
    while path.with_name(f"{path.name}-{number}").exists():
        number += 1
    return f"mv {path} {path}-{number}, and start again"
