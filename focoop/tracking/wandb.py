"""Write a run to Weights & Biases: `wandb:PROJECT`, or `wandb:ENTITY/PROJECT`.

The package's own variables hold here too: `WANDB_API_KEY`, `WANDB_BASE_URL`, `WANDB_DIR`, and
`WANDB_MODE=offline`, which keeps everything on this machine for a later `wandb sync`.
"""

from pathlib import Path

from focoop.tracking.event import RoundEvent, Tracker, missing_package

PROJECT = "focoop"


class WandB(Tracker):
    """Logs each round as a step of the run with this run's id.

    Args:
        target: The project, with or without its owner; by default `focoop`.

    Raises:
        MissingExtra: The package `wandb` is not installed.
    """

    def __init__(self, target: str = "") -> None:
        super().__init__(target or PROJECT)
        try:
            import wandb
        except ImportError as error:
            raise missing_package("wandb") from error
        self._wandb = wandb

    def begin(self, event: RoundEvent) -> None:
        """Start the run, or go on with the one of this id.

        Args:
            event: The run.
        """
        entity, _, project = self.target.rpartition("/")
        self._run = self._wandb.init(
            entity=entity or None,
            project=project,
            id=event.id,
            name=event.name,
            resume="allow",
            reinit="create_new",  # a grid makes run after run in one process
            config=dict(event.settings),
            # The run's own output is shown by whoever started it.
            settings=self._wandb.Settings(console="off", silent=True),
        )
        kept = f"wandb sync {Path(self._run.dir).parent}"
        self.look = kept if self._run.offline else str(self._run.url)

    def round(self, event: RoundEvent) -> None:
        """Log a round, unless the service has it already.

        Args:
            event: The round.
        """
        if event.round >= self._run.starting_step:
            self._run.log(dict(event.metrics), step=event.round, commit=True)

    def end(self, event: RoundEvent) -> None:
        """Finish the run; one that failed is marked so.

        Args:
            event: The run.
        """
        self._run.summary["status"] = event.status
        self._run.finish(exit_code=0 if event.status == "finished" else 1)
