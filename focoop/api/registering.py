"""Make a user's own method, dataset, score or tracker known by name."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from focoop.data import Dataset
from focoop.data import available as datasets
from focoop.errors import ConfigError
from focoop.functional import scores
from focoop.methods import Method
from focoop.methods import available as methods
from focoop.plugins import names as plugin_names
from focoop.plugins import put
from focoop.tracking import TRACKERS, Tracker

Thing = TypeVar("Thing")


def register(thing: Thing | None = None, name: str = "") -> Any:
    """Make a method, dataset, score or tracker of your own known by name in this process.

    It then goes wherever a name goes: `focoop.run(..., {"method.name": "mine"})`,
    `run.scores(..., score="mine")`. Calling it again with the same name replaces the earlier one,
    as notebooks do. For other processes, and for the command line, name a file
    (`method.name=./mine.py`) or install a package with an entry point (`focoop.methods`,
    `focoop.datasets`, `focoop.scores`, `focoop.trackers`).

    Args:
        thing: A class derived from `focoop.Method` or `focoop.Tracker`, a `focoop.Dataset`, or a
            function of `focoop.scores.Inputs` that returns (N,) scores, higher for what is more
            OOD. None: the call is a decorator, `@focoop.register(name="mine")`.
        name: Its name; by default the `name` of a method, that of the class in lower case, or of
            the function.

    Returns:
        The same thing, so that this may stand as a decorator.

    Raises:
        ConfigError: The name is taken by something of focoop's own, or the thing is none of these.

    Example:
        ```python
        @focoop.register
        def widest(inputs):
            return -inputs.id_cos.max(dim=1).values

        run.evaluate(score="widest")
        ```
    """
    if thing is None:
        return lambda given: register(given, name)
    kind, known, usual = _kind(thing)
    chosen = name or usual
    if chosen in known and chosen not in plugin_names(kind):
        raise ConfigError(f"focoop has a {kind} {chosen!r} of its own: choose another name")
    put(kind, chosen, thing)
    return thing


def _kind(thing: Any) -> tuple[str, Any, str]:
    """What something is, the names of its kind that exist, and what it is called by default."""
    if inspect.isclass(thing) and issubclass(thing, Method):
        return "method", methods(), thing.name or thing.__name__.lower()
    if inspect.isclass(thing) and issubclass(thing, Tracker):
        return "tracker", TRACKERS, thing.__name__.lower()
    if isinstance(thing, Dataset):
        return "dataset", datasets(), thing.title.lower().replace(" ", "_")
    if isinstance(thing, Callable) and not inspect.isclass(thing):  # type: ignore[arg-type]
        return "score", scores.SCORES, getattr(thing, "__name__", "")
    raise ConfigError(
        f"{thing!r} is no method (a class derived from focoop.Method), no focoop.Dataset, no "
        "score (a function of focoop.scores.Inputs) and no tracker (a class derived from "
        "focoop.Tracker)"
    )
