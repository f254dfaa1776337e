"""What a hook is told of a run, and the base class of trackers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from focoop.errors import MissingExtra

Value = bool | int | float | str


@dataclass(frozen=True)
class RoundEvent:
    """One moment of a run: its begin, a finished round, or its end.

    Attributes:
        moment: `begin`, `round` or `end`.
        name: The run's name for people: that of its folder; in a grid `SETTING/LABEL/seedN`.
        id: What the run is known by to trackers, 16 hexadecimal digits. A resumed run keeps it.
        path: The run folder.
        settings: Every setting by dotted key, such as `federation.lr`; lists as text.
        rounds: How many rounds the run is to have.
        round: The round that was committed; 0 is the state before training. At the begin: the last
            round that this hook was told when the run was tracked before, -1: none. At the end:
            the last committed round, -1: none.
        metrics: The round's numbers by name, such as `own/accuracy` and `ood/dtd/fpr95`. Rounds
            without evaluation have `train/` and `cost/` alone. Empty at begin and end.
        seconds: How long the round took.
        bytes_up: Bytes that all clients sent in it.
        bytes_down: Bytes that all clients received in it.
        time: When it was committed, in seconds since 1970.
        status: `running`; at the end `finished`, `stopped` (it can be resumed) or `failed`.
        evaluation: The round's line of `metrics.jsonl`, with a row per client under `clients`; None
            where it was not evaluated. In a grid it has no rows of clients.
    """

    moment: str
    name: str
    id: str
    path: Path
    settings: Mapping[str, Value]
    rounds: int
    round: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    time: float = 0.0
    status: str = "running"
    evaluation: Mapping[str, Any] | None = None


class Tracker:
    """Base class of trackers: three functions that a run calls; each does nothing by default.

    One tracker object sees one run. Where one of the functions raises, the user is warned and the
    run goes on.

    Args:
        target: What a user wrote behind the tracker's name, `folder` in `tensorboard:folder`.

    Attributes:
        look: How a person looks at what was written, a command or an address; empty: not said.

    Example:
        ```python
        class Printer(focoop.Tracker):
            def round(self, event):
                print(event.name, event.round, event.metrics.get("own/accuracy"))
        ```
    """

    def __init__(self, target: str = "") -> None:
        self.target = target
        self.look = ""

    def begin(self, event: RoundEvent) -> None:
        """Start to track a run, or go on with it.

        Args:
            event: The run; `event.round` is the last round that was told before, -1: none.
        """

    def round(self, event: RoundEvent) -> None:
        """Write a finished round.

        Args:
            event: The round.
        """

    def end(self, event: RoundEvent) -> None:
        """Close what is open.

        Args:
            event: The run; `event.status` is `finished`, `stopped` or `failed`.
        """


def missing_package(name: str) -> MissingExtra:
    """Return the error that names a tracker's package and how to install it.

    Args:
        name: The package, which is the name of focoop's extra too.

    Returns:
        The error, for the tracker to raise.
    """
    return MissingExtra(f"this tracker needs the package {name}: pip install 'focoop[{name}]'")
