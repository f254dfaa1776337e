"""Names of classes and datasets: how they are compared and suggested."""

from focoop.errors import nearest

__all__ = ["nearest", "plain"]


def plain(name: str) -> str:
    """A class name as compared between sources.

    >>> plain("Great_white_shark")
    'great white shark'
    """
    return name.replace("_", " ").strip().lower()
