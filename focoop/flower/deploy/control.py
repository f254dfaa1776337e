"""The coordinator's own orders to its SuperLink: let sites in, start a run, ask how it goes.

Flower's Control interface starts any app for anybody who reaches it. Here it takes orders from who
holds the secret of `launch.new_secret` alone, a file that only the coordinator's user can read.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListRunsRequest,
    ListRunsResponse,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.interceptors.http.utils import add_headers
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext

from focoop.errors import FederationError
from focoop.flower.app_bundle import SETTINGS, app_bundle, fingerprint
from focoop.flower.deploy.processes import SECRET
from focoop.flower.settings import Flat

ENDED = "finished"
ATTEMPTS = 10  # to hear how a run goes
ALREADY = "already"  # in Flower's words for what was done before


@dataclass(frozen=True)
class Owner:
    """Adds the secret to every order."""

    secret: str

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Send the secret with a request, as a bearer token.

        Args:
            context: The request.
            call_next: Sends it.

        Returns:
            The answer.
        """
        add_headers(context.request, {"Authorization": f"Bearer {self.secret}"})
        return call_next(context)


class Control:
    """Orders to the SuperLink at `address`.

    Args:
        address: HOST:PORT of the SuperLink itself, on loopback.
        certificate: The authority that signed its certificate.
        home: Folder of the coordinator's Flower files, with the secret.
    """

    def __init__(self, address: str, certificate: Path, home: Path) -> None:
        secret = (home / SECRET).read_text(encoding="ascii")
        self.client = ControlHttpClient.from_server_address(
            address,
            insecure=False,
            root_certificates=certificate.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="focoop"), Owner(secret)],
        )

    def admit(self, public: bytes, name: str) -> None:
        """Let a node in, unless it is let in already.

        Args:
            public: The node's public key (OpenSSH).
            name: The site's name, for messages.

        Raises:
            FederationError: The SuperLink refuses.
        """
        key = serialization.load_ssh_public_key(public)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise FederationError(f"the public key of {name} is not of an elliptic curve")
        request = RegisterNodeRequest(public_key=public_key_to_bytes(key), name=name)
        try:
            with _told(f"letting {name} in"):
                self.client.RegisterNode(request)
        except FederationError as error:
            if ALREADY not in str(error).lower():
                raise

    def submit(self, settings: Flat) -> int:
        """Start a run.

        Args:
            settings: The run's settings (those of `focoop.flower.settings`).

        Returns:
            The run's number.

        Raises:
            FederationError: The SuperLink refuses.
        """
        overrides: dict[str, bool | float | int | str] = {SETTINGS: json.dumps(dict(settings))}
        request = StartRunRequest(
            fab=fab_to_proto(Fab(fingerprint(), app_bundle(), {})),
            override_config=user_config_to_proto(overrides),
        )
        with _told("starting the run"):
            answer = self.client.StartRun(request)
        if not answer.HasField("run_id"):
            raise FederationError("the SuperLink did not start the run: see its log")
        return int(answer.run_id)

    def runs(self) -> dict[int, tuple[str, str]]:
        """Return status and details of every run by its number.

        A SuperLink that is slow to answer, as on a machine with too much to do, is asked again.

        Returns:
            Status and details by number.

        Raises:
            FederationError: It refuses, or does not answer at all.
        """
        with _told("asking for the runs"):
            answer = self._asked_again(ListRunsRequest())
        runs: dict[int, tuple[str, str]] = {}
        for number, run in dict(answer.run_dict).items():
            status = run.status
            words = f"{status.status}:{status.sub_status}" if status.sub_status else status.status
            runs[int(number)] = (str(words), str(status.details))
        return runs

    def _asked_again(self, request: ListRunsRequest) -> ListRunsResponse:
        for _ in range(ATTEMPTS - 1):
            with suppress(httpx.TimeoutException):
                return self.client.ListRuns(request)
        return self.client.ListRuns(request)

    def status(self, run: int) -> tuple[str, str]:
        """Return status and details of a run.

        Args:
            run: The run's number.

        Returns:
            Status and details.
        """
        return self.runs()[run]

    def end_runs(self) -> None:
        """Stop runs that have not ended, such as those of a server that was killed."""
        for number, (status, _) in self.runs().items():
            if not status.startswith(ENDED):
                try:
                    with _told("stopping a run"):
                        self.client.StopRun(StopRunRequest(run_id=number))
                except FederationError as error:
                    if ALREADY not in str(error).lower():  # it ended between the two orders
                        raise

    def admit_all(self, publics: Mapping[str, bytes]) -> None:
        """Let sites in.

        Args:
            publics: Public keys by site.
        """
        for name, public in publics.items():
            self.admit(public, name)

    def close(self) -> None:
        """Close the connection."""
        self.client.close()


def check(run: int, state: str, details: str) -> None:
    """Refuse any end of a run but a complete one.

    Args:
        run: The run's number.
        state: Its status.
        details: What Flower says about it.

    Raises:
        FederationError: The run failed or was stopped.
    """
    if state != f"{ENDED}:completed":
        raise FederationError(f"run {run} ended as {state}: {details}")


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Errors of Flower's client in the words of this package."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        failure = FlowerError.from_json(error.response.text)
        said = failure.message if failure is not None else error.response.text[:300]
        status = error.response.status_code
        also = "; superlink.log in the folder of Flower's files says why" if status >= 500 else ""
        raise FederationError(f"{what} failed ({status}): {said}{also}") from error
    except httpx.HTTPError as error:
        raise FederationError(f"{what} failed: {error}") from error
