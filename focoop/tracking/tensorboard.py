"""Write a run's curves for TensorBoard: `tensorboard:FOLDER`, shown by `tensorboard --logdir`."""

from pathlib import Path

from focoop.tracking.event import RoundEvent, Tracker, missing_package

FOLDER = "runs/tensorboard"
MARK = "focoop-run.txt"  # in a run's folder of events: the id of the run that they are of


class TensorBoard(Tracker):
    """Writes event files to FOLDER/NAME; another run of that name gets FOLDER/NAME-2.

    Args:
        target: The folder of all runs; by default `runs/tensorboard`.

    Raises:
        MissingExtra: The package `tensorboard` is not installed.
    """

    def __init__(self, target: str = "") -> None:
        super().__init__(target or FOLDER)
        try:
            from torch.utils.tensorboard import SummaryWriter
            from torch.utils.tensorboard.summary import hparams
        except ImportError as error:
            raise missing_package("tensorboard") from error
        self.look = f"tensorboard --logdir {self.target}"
        self._make, self._hparams = SummaryWriter, hparams

    def begin(self, event: RoundEvent) -> None:
        """Open an event file; what an earlier one holds of the rounds to come is void.

        Args:
            event: The run.
        """
        folder, new = _place(Path(self.target).expanduser(), event)
        purge = None if new else event.round + 1
        self._writer = self._make(str(folder), purge_step=purge)
        if event.round < 0:
            rows = [f"| {key} | `{value}` |" for key, value in event.settings.items()]
            table = "\n".join(["| setting | value |", "|---|---|", *rows])
            self._writer.add_text("settings", table, 0, walltime=event.time)
            shown = ("own/accuracy", "all/accuracy", "corrupted/accuracy", "train/loss")
            for summary in self._hparams(dict(event.settings), dict.fromkeys(shown, 0.0)):
                self._writer.file_writer.add_summary(summary)
        self._writer.flush()

    def round(self, event: RoundEvent) -> None:
        """Add a point to every curve.

        Args:
            event: The round.
        """
        for name, value in event.metrics.items():
            self._writer.add_scalar(name, value, event.round, walltime=event.time)
        self._writer.flush()

    def end(self, event: RoundEvent) -> None:
        """Close the event file.

        Args:
            event: The run.
        """
        self._writer.close()


def _place(root: Path, event: RoundEvent) -> tuple[Path, bool]:
    """The run's folder below `root`, and whether it was made now."""
    number = 1
    while True:
        folder = root / (event.name if number == 1 else f"{event.name}-{number}")
        mark = folder / MARK
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with mark.open("x", encoding="utf-8") as file:
                file.write(event.id)
            return folder, True
        except FileExistsError:
            if mark.read_text(encoding="utf-8") == event.id:
                return folder, False
        number += 1
