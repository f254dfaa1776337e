"""What a process that makes many runs keeps open between them: feature files and the backbone."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any


class Kept:
    """Things by key, up to `limit` in size, least recently used out first; a limit of 0: nothing.

    >>> kept = Kept(limit=10)
    >>> [kept.get("a", lambda: "made", size=4), kept.get("a", lambda: "made again", size=4)]
    ['made', 'made']
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self._things: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Any], size: int | Callable[[Any], int]) -> Any:
        """The thing of that key, made where it is not kept."""
        if self.limit <= 0:
            return make()
        if key not in self._things:
            made = make()
            self._things[key] = made, size(made) if callable(size) else size
        self._things.move_to_end(key)
        found = self._things[key][0]
        while len(self._things) > 1 and sum(held for _, held in self._things.values()) > self.limit:
            self._things.popitem(last=False)
        return found

    def clear(self) -> None:
        """Let everything go."""
        self._things.clear()


FEATURES = Kept()  # in bytes
BACKBONES = Kept()  # in backbones
