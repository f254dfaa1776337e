"""Find trackers by name: one of this folder, a registered one, a user's file, an entry point."""

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from focoop.errors import ConfigError, nearest
from focoop.plugins import class_of, plugged
from focoop.plugins import names as plugin_names
from focoop.tracking.event import RoundEvent, Tracker
from focoop.tracking.hooks import Listener

TRACKERS = ("mlflow", "tensorboard", "trackio", "wandb")  # files of this folder
SPELLINGS = {"tb": "tensorboard", "weightsandbiases": "wandb", "wb": "wandb"}

Hook = str | Callable[[RoundEvent], Any] | Tracker
OnRound = Hook | Sequence[Hook] | None


def as_hooks(given: OnRound) -> list[Listener]:
    """Make ready what a user gave as `on_round`, before a run begins.

    Args:
        given: A function, a tracker, the text of a tracker such as `tensorboard:folder`, or several
            of them; None: none.

    Returns:
        One listener each. Trackers named by text are new objects, for one run.

    Raises:
        ConfigError: A name is unknown, or something is none of these.
        MissingExtra: The package of a tracker is not installed.
    """
    return [_listener(hook) for hook in _several(given)]


def split_hooks(given: OnRound) -> tuple[tuple[str, ...], list[Listener]]:
    """Part the trackers that any process can make from the objects of this one.

    Args:
        given: As in `as_hooks`.

    Returns:
        The texts, all of which name a tracker that can be used here; and a listener per object.

    Raises:
        ConfigError: A name is unknown, or something is none of these.
        MissingExtra: The package of a tracker is not installed.
    """
    hooks = _several(given)
    listeners = [_listener(hook) for hook in hooks]
    texts = tuple(hook for hook in hooks if isinstance(hook, str))
    return texts, [one for one in listeners if not one.key]


def _several(given: OnRound) -> list[Hook]:
    if given is None:
        return []
    if isinstance(given, str | Tracker) or callable(given):
        return [given]
    return list(given)


def _listener(hook: Hook) -> Listener:
    if isinstance(hook, str):
        return Listener(_found(hook), key=hook)
    if isinstance(hook, Tracker):
        return Listener(hook)
    if callable(hook) and not inspect.isclass(hook):
        return Listener(_Function(hook))
    raise ConfigError(
        f"on_round takes functions, focoop.Tracker objects and texts such as 'tensorboard:folder', "
        f"not {hook!r}"
    )


class _Function(Tracker):
    """Calls a function after each round."""

    def __init__(self, function: Callable[[RoundEvent], Any]) -> None:
        super().__init__(getattr(function, "__name__", type(function).__name__))
        self.function = function

    def round(self, event: RoundEvent) -> None:
        """Call it.

        Args:
            event: The round.
        """
        self.function(event)


def _found(text: str) -> Tracker:
    """The tracker that a text such as `tensorboard:folder` names."""
    name, _, target = text.partition(":")
    if name in TRACKERS:
        return _class_of(import_module(f"focoop.tracking.{name}"), name)(target)
    thing = plugged("tracker", name)
    if thing is None:
        known = [*TRACKERS, *plugin_names("tracker")]
        raise ConfigError(
            f"no tracker is called {name!r}{nearest(name, known, spellings=SPELLINGS)}"
        )
    return _class_of(thing, name)(target)


def _class_of(thing: Any, name: str) -> type[Tracker]:
    tracker: type[Tracker] = class_of(thing, Tracker, name, ConfigError)
    return tracker
