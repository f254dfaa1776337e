"""How a request is refused: a status, a short kind for programs, words for people."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

RETRY_SECONDS = 2


@dataclass
class Refusal(Exception):
    """A request that gets no answer.

    Attributes:
        status: HTTP status.
        kind: one word for programs.
        message: what is wrong and what to do.
        images: of which images it is said: position, name and reason.
        retry: whether the same request may succeed soon.
    """

    status: int
    kind: str
    message: str
    images: Sequence[dict[str, Any]] = ()
    retry: bool = False

    def body(self) -> dict[str, Any]:
        """Return the JSON document that is sent."""
        return {"error": {"kind": self.kind, "message": self.message, "images": list(self.images)}}

    def headers(self) -> dict[str, str]:
        """Return the HTTP headers that belong to it."""
        headers = {}
        if self.retry:
            headers["retry-after"] = str(RETRY_SECONDS)
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.status in (408, 411, 413):  # the rest of the body is not read
            headers["connection"] = "close"
        return headers


def busy(message: str = "the server is busy: try again soon") -> Refusal:
    """Return a refusal for want of room.

    Args:
        message: What to say.

    Returns:
        A refusal of status 503 with Retry-After.
    """
    return Refusal(503, "busy", message, retry=True)
