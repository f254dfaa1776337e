"""Tell others how a run goes: hooks after each round, and writers for trackers of experiments.

`hooks.py` calls what a user gave as `on_round` and keeps a run from failing with it. `metrics.py`
names a round's numbers. `finding.py` finds trackers by name; each file named after a tracker
(`tensorboard.py`, `wandb.py`, `mlflow.py`, `trackio.py`) writes to it and is loaded, with its
package, only where a user asks for that tracker.

May import: errors, caching, plugins, methods, config, runs. The file of a tracker imports the
tracker's package.
"""

from typing import TYPE_CHECKING

from focoop.lazy import lazy_names

if TYPE_CHECKING:
    from focoop.tracking.event import RoundEvent, Tracker
    from focoop.tracking.finding import TRACKERS, Hook, OnRound, as_hooks, split_hooks
    from focoop.tracking.hooks import Hooks, Listener
    from focoop.tracking.metrics import flat_metrics

__all__ = [
    "TRACKERS",
    "Hook",
    "Hooks",
    "Listener",
    "OnRound",
    "RoundEvent",
    "Tracker",
    "as_hooks",
    "flat_metrics",
    "split_hooks",
]

__getattr__ = lazy_names(__name__, __file__)
