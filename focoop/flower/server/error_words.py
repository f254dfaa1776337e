"""Flower's errors in words that the people of a federation understand."""

from flwr.app import Error

EXPIRED = 3
REASONS = {
    EXPIRED: "it did not answer in time",
    4: "its answer was lost on the way",
    5: "its node is gone",
    8: "its process died",
}


def why(error: Error) -> str:
    """Describe an error reply: Flower's own codes, or what the client said.

    Args:
        error: The error.

    Returns:
        Words.
    """
    return REASONS.get(error.code) or error.reason or f"error {error.code}"
