"""Flower's SuperLink, whose Control interface obeys the coordinator alone.

Flower 1.41 serves three interfaces at one port: Fleet for the sites, Runtime for the processes of
apps, and Control, which starts and stops apps and asks nobody for credentials. Here Control wants
the secret of the coordinator and Runtime the same secret of the process that starts apps
(`worker.py`); Fleet wants a registered site's signature, as always. It listens on loopback: sites
come through `front.py`. Who asks for messages or tasks when there are none is answered when there
may be some (`held.py`).

`python -m focoop.flower.deploy.superlink SECRET OPTION...` takes the options of `flower-superlink`.
"""

import hmac
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import uvicorn
from flwr.common.constant import ACCESS_TOKEN_KEY, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.supercore.auth.typing import (
    AccountAuthCredentials,
    AccountAuthLoginDetails,
    AccountInfo,
)
from flwr.superlink.auth_plugin import ControlAuthnPlugin

from focoop.flower.deploy.processes import KEEP_ALIVE, plain_logs, replaced
from focoop.flower.held import Held, Hold

program = import_module("flwr.superlink.cli.flower_superlink")
Metadata = Sequence[tuple[str, str | bytes]]


# Sites wait long for orders. The coordinator's own processes look every second at least: some
# things change with time alone, such as which node is away.
HOLDS = {
    "/v1/fleet/pull-messages": Hold(
        10.0, until=("/v1/runtime/push-messages", "/v1/runtime/push-object")
    ),
    "/v1/runtime/pull-messages": Hold(
        1.0, until=("/v1/fleet/push-messages", "/v1/fleet/push-object"), asked=True
    ),
    "/v1/runtime/acquire-task": Hold(1.0, until=("/v1/control/start-run",)),
}


class Server:
    """uvicorn, as Flower's program calls it: connections stay open, and empty answers are held."""

    @staticmethod
    def run(*, app: Any, **options: Any) -> None:
        """Serve Flower's app; a line of log for every request is not kept.

        Args:
            app: The app.
            **options: Options of uvicorn.
        """
        ours = {"timeout_keep_alive": KEEP_ALIVE, "access_log": False}
        uvicorn.run(app=Held(app, HOLDS), **{**options, **ours})


class OwnerAlone(ControlAuthnPlugin):
    """Flower's account plugin for one account: whoever holds the secret."""

    def __init__(self, secret: str = "") -> None:
        self.secret = secret

    def get_login_details(self) -> AccountAuthLoginDetails | None:
        """Return None: nobody can log in."""
        return None

    def validate_tokens_in_metadata(self, metadata: Metadata) -> tuple[bool, AccountInfo | None]:
        """Say whether the caller sent the secret; an empty one is nobody's.

        Args:
            metadata: What the caller sent.

        Returns:
            Whether it did, and whose account it is.
        """
        token = dict(metadata).get(ACCESS_TOKEN_KEY, "")
        given = token.encode() if isinstance(token, str) else token
        if not self.secret or not hmac.compare_digest(given, self.secret.encode()):
            return False, None
        return True, AccountInfo(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME)

    def get_auth_tokens(self, device_code: str) -> AccountAuthCredentials | None:
        """Give no tokens out.

        Args:
            device_code: Not used.

        Returns:
            None.
        """
        return None

    def refresh_tokens(self, metadata: Metadata) -> tuple[Metadata | None, AccountInfo | None]:
        """Give no tokens out.

        Args:
            metadata: Not used.

        Returns:
            None twice.
        """
        return None, None


def main() -> None:
    """Serve until a signal."""
    plain_logs()
    secret, *options = sys.argv[1:]
    plugin = OwnerAlone(Path(secret).read_text(encoding="ascii"))
    replaced(program, "load_control_authn_plugin", lambda: plugin)
    replaced(program, "uvicorn", Server)
    own = ("--isolation", "process", "--superexec-auth-secret-file", secret)
    sys.argv = ["flower-superlink", *options, *own]
    program.flower_superlink()


if __name__ == "__main__":
    main()
