"""Write a run to trackio: `trackio:PROJECT`, shown by `trackio show`.

It stays on this machine unless the package's own variables `TRACKIO_SPACE_ID` or
`TRACKIO_SERVER_URL` say otherwise; `TRACKIO_DIR` is the folder of its files.
"""

import contextlib
import io

from focoop.tracking.event import RoundEvent, Tracker, missing_package

PROJECT = "focoop"


class Trackio(Tracker):
    """Logs each round as a step of a run of this run's name.

    Args:
        target: The project; by default `focoop`.

    Raises:
        MissingExtra: The package `trackio` is not installed.
    """

    def __init__(self, target: str = "") -> None:
        super().__init__(target or PROJECT)
        try:
            import trackio
        except ImportError as error:
            raise missing_package("trackio") from error
        self.look = f"trackio show --project {self.target}"
        self._trackio = trackio

    def begin(self, event: RoundEvent) -> None:
        """Start the run, or go on with the one of this name and id.

        Args:
            event: The run.
        """
        with _silence():
            self._run = self._trackio.init(
                project=self.target,
                name=f"{event.name} {event.id[:4]}",  # it knows runs by name alone
                config=dict(event.settings),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def round(self, event: RoundEvent) -> None:
        """Log a round.

        Args:
            event: The round.
        """
        self._run.log(dict(event.metrics), step=event.round)

    def end(self, event: RoundEvent) -> None:
        """Finish the run.

        Args:
            event: The run.
        """
        with _silence():
            self._trackio.finish()


def _silence() -> contextlib.redirect_stdout[io.StringIO]:
    """Keep what the package prints from standard output, which is the caller's."""
    return contextlib.redirect_stdout(io.StringIO())
