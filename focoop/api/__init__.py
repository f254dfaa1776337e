"""What `import focoop` offers: run, open, compare and tune from Python.

The functions here never print and never exit; they raise the errors of `focoop/errors.py`. The
command line reads arguments, calls these functions and prints what they return.

May import: every room but flower and cli.
"""

from typing import TYPE_CHECKING

from focoop.lazy import lazy_names

if TYPE_CHECKING:
    from focoop.api.checking import check_method
    from focoop.api.comparing import Table, compare, plan_comparison, run_comparison
    from focoop.api.encoding import encode, load_features, partition
    from focoop.api.predicting import calibrate, export, load_model
    from focoop.api.registering import register
    from focoop.api.run_data import missing_datasets, notes_on_clients, notes_on_data
    from focoop.api.run_results import Run, open_run
    from focoop.api.running import PreparedRun, prepare_run, refuse_without_tuned, run
    from focoop.api.settings import configure
    from focoop.api.tuning import Tuning, plan_tuning, run_tuning, tune
    from focoop.paper import Reproduction, reproduce
    from focoop.report import write_report

__all__ = [
    "PreparedRun",
    "Reproduction",
    "Run",
    "Table",
    "Tuning",
    "calibrate",
    "check_method",
    "compare",
    "configure",
    "encode",
    "export",
    "load_features",
    "load_model",
    "missing_datasets",
    "notes_on_clients",
    "notes_on_data",
    "open_run",
    "partition",
    "plan_comparison",
    "plan_tuning",
    "prepare_run",
    "refuse_without_tuned",
    "register",
    "reproduce",
    "run",
    "run_comparison",
    "run_tuning",
    "tune",
    "write_report",
]

__getattr__ = lazy_names(__name__, __file__)
