"""A join bundle: one file that has all a site needs to take part, and how a site uses it.

`NAME.focoop` is a zip of these files, none of them a private key:

join.toml     the server's address and the site's invitation, a secret until it is used
site.toml     the site's name and number
ca.crt        the authority that signs the server's certificate
run.toml      all settings of the study
classes.txt   its classes, one a line
policy.toml   a policy to begin with; the site's own from then on
"""

import hashlib
import http.client
import io
import json
import os
import ssl
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path

from focoop import __version__
from focoop.caching import parse_json, write_whole
from focoop.errors import ConfigError, FederationError, newer_format
from focoop.fields import parse_toml, toml_value
from focoop.flower.deploy.gate import ENROL
from focoop.flower.deploy.keys import complete_site_key
from focoop.flower.identity import SITE
from focoop.flower.site.policy import FILE as POLICY

SUFFIX = ".focoop"
JOIN, RUN, CLASSES, AUTHORITY = "join.toml", "run.toml", "classes.txt", "ca.crt"
NAMES = (JOIN, SITE, AUTHORITY, RUN, CLASSES, POLICY)
SENT = "sent.txt"  # hash of the invitation by which the site has sent its key
FORMAT = 1  # of bundles; those of an earlier focoop do not say theirs
LARGEST = 2**20  # bytes of a file in a bundle
SECONDS = 30.0  # to enrol


@dataclass(frozen=True)
class Invitation:
    """What `join.toml` says."""

    server: str
    token: str
    version: str

    @classmethod
    def read(cls, text: str) -> "Invitation":
        """Read an invitation.

        Args:
            text: The file's text.

        Returns:
            The invitation.

        Raises:
            ConfigError: It is no invitation, or that of a newer focoop.
        """
        try:
            table = parse_toml(text)
            form = table.get("format", FORMAT)
            if type(form) is int and form > FORMAT:
                raise ConfigError(newer_format("the bundle", form, FORMAT))
            return cls(str(table["server"]), str(table["token"]), str(table["focoop"]))
        except (ValueError, KeyError) as error:
            raise ConfigError(f"{JOIN} of the bundle cannot be read ({error})") from error

    def text(self) -> str:
        """Return the invitation as TOML."""
        lines = {"server": self.server, "token": self.token, "focoop": self.version}
        told = "".join(f"{key} = {toml_value(value)}\n" for key, value in lines.items())
        return f"format = {FORMAT}\n{told}"


def pack(path: Path, files: dict[str, bytes]) -> None:
    """Write a bundle that its owner alone can read; an older one of this name is replaced.

    Args:
        path: The bundle.
        files: Contents by file name.
    """
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in NAMES:
            archive.writestr(name, files[name])
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(file.getvalue())
    os.replace(draft, path)


def unpack(path: Path) -> dict[str, bytes]:
    """Read the files of a bundle.

    Args:
        path: The bundle.

    Returns:
        Contents by file name.

    Raises:
        ConfigError: It is no bundle, or lacks a file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            files: dict[str, bytes] = {}
            for name in NAMES:
                if archive.getinfo(name).file_size > LARGEST:
                    raise ConfigError(f"{name} in {path} is too large for a join bundle")
                with archive.open(name) as file:
                    files[name] = file.read(LARGEST + 1)[:LARGEST]
            return files
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        why = "there is no such file" if isinstance(error, FileNotFoundError) else error
        raise ConfigError(
            f"{path} is no join bundle ({why}): ask the coordinator for this site's .focoop file"
        ) from error


def settle(path: Path, state: Path) -> Path:
    """Put a bundle's files into a site's state folder, with a new key where it has none.

    A policy that is there already stays as it is: it is the site's own.

    Args:
        path: The bundle.
        state: The site's state folder.

    Returns:
        The site's folder of keys, `state`/keys.

    Raises:
        ConfigError: It is no bundle, or the state folder is of another site or federation.
    """
    files, keys = unpack(path), state / "keys"
    invitation = Invitation.read(files[JOIN].decode(errors="replace"))
    if invitation.version != __version__:
        warnings.warn(
            f"{path} was made by focoop {invitation.version} and this is {__version__}: all "
            "machines of a federation must have the same version",
            stacklevel=2,
        )
    for name, what in ((AUTHORITY, "another federation"), (SITE, "another site")):
        if (keys / name).is_file() and (keys / name).read_bytes() != files[name]:
            raise ConfigError(f"{state} is the folder of {what}: choose another --state")
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    keys.mkdir(exist_ok=True, mode=0o700)
    for name, content in files.items():
        if name == POLICY and (keys / name).exists():
            continue
        write_whole(keys / name, content)
    (keys / JOIN).chmod(0o600)
    complete_site_key(keys, str(parse_toml(files[SITE].decode())["name"]))
    return keys


def invitation_of(keys: Path) -> Invitation:
    """Return the invitation that a site's folder of keys was made with.

    Args:
        keys: The folder.

    Returns:
        The invitation.
    """
    return Invitation.read((keys / JOIN).read_text(encoding="utf-8"))


def send_key(keys: Path) -> bool:
    """Send the site's public key with its invitation, unless that was done.

    Args:
        keys: The site's folder of keys.

    Returns:
        Whether it was sent now.

    Raises:
        FederationError: The coordinator does not take it, or does not answer.
    """
    invitation = invitation_of(keys)
    mark = hashlib.sha256(invitation.token.encode()).hexdigest()
    if (keys / SENT).is_file() and (keys / SENT).read_text() == mark:
        return False
    name = str(parse_toml((keys / SITE).read_text(encoding="utf-8"))["name"])
    body = {"site": name, "token": invitation.token, "key": (keys / "key.pub").read_text().strip()}
    context = ssl.create_default_context(cafile=str(keys / AUTHORITY))
    link = http.client.HTTPSConnection(invitation.server, timeout=SECONDS, context=context)
    try:
        link.request("POST", ENROL[1].decode(), json.dumps(body).encode())
        answer = link.getresponse()
        said = answer.read(LARGEST)
    except (OSError, http.client.HTTPException) as error:
        raise FederationError(f"{invitation.server} does not take the key: {error}") from error
    finally:
        link.close()
    if answer.status != 200:
        try:
            why = str(parse_json(said)["detail"])
        except (ValueError, KeyError, TypeError):
            why = f"status {answer.status}"
        raise FederationError(f"the coordinator does not take this site's key: {why}")
    write_whole(keys / SENT, mark.encode())
    return True
