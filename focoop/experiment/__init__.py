"""Run, resume and re-evaluate a configuration in its run folder."""

from focoop.experiment.evaluate import evaluate_run, evaluate_state
from focoop.experiment.naming import (
    PartitionView,
    describe_partition,
    names_of,
    refuse_other_data,
)
from focoop.experiment.run import OnRound, run_experiment
from focoop.experiment.schedule import TOGETHER, client_privacy, schedule_of, server_screen

__all__ = [
    "TOGETHER",
    "OnRound",
    "PartitionView",
    "client_privacy",
    "describe_partition",
    "evaluate_run",
    "evaluate_state",
    "names_of",
    "refuse_other_data",
    "run_experiment",
    "schedule_of",
    "server_screen",
]
