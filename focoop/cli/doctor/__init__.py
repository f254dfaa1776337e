"""`focoop doctor`: what is installed, what can be reached, and what to do about the rest."""

from focoop.cli.doctor.check import FAIL, NOTE, OK, Check, guarded
from focoop.cli.doctor.findings import examine
from focoop.cli.doctor.run_checks import datasets_of, run_clients

__all__ = [
    "FAIL",
    "NOTE",
    "OK",
    "Check",
    "datasets_of",
    "examine",
    "guarded",
    "run_clients",
]
