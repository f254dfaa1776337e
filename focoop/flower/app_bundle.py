"""The one Flower app that a federation of focoop runs, and the check that it is no other.

Flower sends an app bundle with every run and would start whatever code it holds. The bundle made
here holds no code: it names the modules of the installed focoop. Its bytes depend on focoop's
version alone, so each machine knows their fingerprint beforehand and refuses all other bundles
before it opens them. The settings of a run travel beside the bundle, as Flower's run configuration.
"""

import hashlib
import io
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from focoop import __version__
from focoop.errors import FederationError

SETTINGS = "settings"  # the one key of the run configuration: all settings as JSON
NAME, PUBLISHER = "focoop", "focoop"
DATE = (1980, 1, 1, 0, 0, 0)  # of every file in the bundle
APP = f"""[project]
name = "{NAME}"
version = "{__version__}"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "{PUBLISHER}"

[tool.flwr.app.components]
serverapp = "focoop.flower.server.server_app:app"
clientapp = "focoop.flower.site.client_app:app"

[tool.flwr.app.config]
{SETTINGS} = ""
"""


@lru_cache(maxsize=1)
def app_bundle() -> bytes:
    """Return the bytes of the bundle: the same on every machine with this version of focoop."""
    # Not by Flower's own builder: its bytes change with the version of a TOML writer.
    content = APP.encode()
    digest = hashlib.sha256(content).hexdigest()
    listing = f"pyproject.toml,{digest},{8 * len(content)}".encode()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in (("pyproject.toml", content), (".info/CONTENT", listing)):
            entry = zipfile.ZipInfo(name, DATE)
            entry.create_system = 3  # whatever the machine is
            entry.external_attr = 0o600 << 16
            archive.writestr(entry, data)
    return file.getvalue()


@lru_cache(maxsize=1)
def fingerprint() -> str:
    """Return the SHA-256 of the bundle, which is also Flower's name for it."""
    return hashlib.sha256(app_bundle()).hexdigest()


def is_ours(content: bytes) -> bool:
    """Say whether some bytes are the bundle of the installed focoop.

    Args:
        content: The bytes.

    Returns:
        Whether they are.
    """
    return hashlib.sha256(content).hexdigest() == fingerprint()


def refusal() -> str:
    """Return why another bundle is not run, for the party that sent it."""
    return (
        f"this machine runs the app of focoop {__version__} (fingerprint {fingerprint()[:16]}) "
        "and no other: install the same version of focoop everywhere"
    )


def install_ours(fab_file: Path | bytes, *args: Any, **options: Any) -> Path:
    """Install our bundle as Flower's `install_from_fab` does.

    Others are refused before they are opened.

    Args:
        fab_file: The bundle.
        *args: Further arguments of Flower's function.
        **options: Its options.

    Returns:
        The folder it was installed in.

    Raises:
        FederationError: The bundle is not that of the installed focoop.
    """
    from flwr.cli.install import install_from_fab

    content = fab_file if isinstance(fab_file, bytes) else fab_file.read_bytes()
    if not is_ours(content):
        raise FederationError(refusal())
    return install_from_fab(content, *args, **options)
