"""Write a run to MLflow: `mlflow:URI`, such as `mlflow:sqlite:///mlflow.db` or a server's address.

Without a URI the package's own variable `MLFLOW_TRACKING_URI` or its default is used; the
experiment is `focoop`, or what `MLFLOW_EXPERIMENT_NAME` says.
"""

import os

from focoop.tracking.event import RoundEvent, Tracker, missing_package

EXPERIMENT = "focoop"
TAG = "focoop.run"  # by which a resumed run is found again
STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
MOST_PARAMS, MOST_METRICS = 100, 1000  # that one request may hold
LONGEST = 500  # characters of a setting; older servers take no more


class MLflow(Tracker):
    """Logs settings as parameters and each round's numbers as metrics of its step.

    Args:
        target: Where runs are kept, a tracking URI; by default the package's own.

    Raises:
        MissingExtra: The package `mlflow` is not installed.
    """

    def __init__(self, target: str = "") -> None:
        super().__init__(target)
        try:
            from mlflow import MlflowClient, entities
        except ImportError as error:
            raise missing_package("mlflow") from error
        self.look = "mlflow ui" + (f" --backend-store-uri {target}" if target else "")
        if target.startswith(("http://", "https://")):
            self.look = target.rpartition("@")[2]  # without a password
        self._client_of, self._entities = MlflowClient, entities

    def begin(self, event: RoundEvent) -> None:
        """Create the run, or open the one with this run's id.

        Args:
            event: The run.
        """
        self._client = self._client_of(tracking_uri=self.target or None)
        experiment = self._experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT))
        there = self._client.search_runs([experiment], f"tags.`{TAG}` = '{event.id}'")
        if there:
            self._id = there[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {TAG: event.id, "focoop.path": str(event.path)}
        self._id = self._client.create_run(experiment, tags=tags, run_name=event.name).info.run_id
        param = self._entities.Param
        items = [param(key, str(value)[:LONGEST]) for key, value in event.settings.items()]
        for first in range(0, len(items), MOST_PARAMS):
            self._client.log_batch(self._id, params=items[first : first + MOST_PARAMS])

    def round(self, event: RoundEvent) -> None:
        """Log a round; the same round again is the same entry, since its time is the same.

        Args:
            event: The round.
        """
        when = int(1000 * event.time)
        metric = self._entities.Metric
        items = [metric(name, value, when, event.round) for name, value in event.metrics.items()]
        for first in range(0, len(items), MOST_METRICS):
            self._client.log_batch(self._id, metrics=items[first : first + MOST_METRICS])

    def end(self, event: RoundEvent) -> None:
        """Set the run's status: finished, killed or failed.

        Args:
            event: The run.
        """
        self._client.set_terminated(self._id, STATUS[event.status])

    def _experiment(self, name: str) -> str:
        """The id of an experiment, which is made where it is not there."""
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        try:
            return str(self._client.create_experiment(name))
        except Exception:  # another run of a grid was quicker
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            return str(found.experiment_id)
