"""Run, evaluate, compare and tune configurations.

May import: every room but api, flower and cli.
"""

from typing import TYPE_CHECKING

from focoop.lazy import lazy_names

if TYPE_CHECKING:
    from focoop.experiments import comparison, tables
    from focoop.experiments.comparison import Outcome, grouped, line, row
    from focoop.experiments.evaluation import OpenedRun, evaluate_state, open_state
    from focoop.experiments.figures import (
        COLOURS,
        FORMATS,
        draw_lines,
        log_base,
        new_figure,
        parse_formats,
        save_figure,
    )
    from focoop.experiments.grid import Cell, Point, describe_seeds, plan, seeds_of
    from focoop.experiments.naming import (
        PartitionView,
        describe_partition,
        names_of,
        refuse_other_data,
    )
    from focoop.experiments.presets import Settings as GridSettings
    from focoop.experiments.presets import tuned, without_preset
    from focoop.experiments.rescoring import ScoreFunction, with_score
    from focoop.experiments.running import run_experiment, run_to_end
    from focoop.experiments.sweeps import (
        Sweep,
        SweepTable,
        long_rows,
        parse_sweep,
        sweep_points,
        sweep_table,
        write_sweep,
    )
    from focoop.experiments.tables import DETECTION, Row, best
    from focoop.experiments.tuning import studies, tune
    from focoop.experiments.tuning_report import (
        OBJECTIVE,
        Choice,
        Study,
        choose,
        objective_text,
        parse_objective,
        write_choice,
    )
    from focoop.experiments.typeset import BOOKTABS, latex_table, markdown_table
    from focoop.experiments.variants import parse_methods
    from focoop.experiments.workers import default_jobs

__all__ = [
    "BOOKTABS",
    "COLOURS",
    "DETECTION",
    "FORMATS",
    "OBJECTIVE",
    "Cell",
    "Choice",
    "GridSettings",
    "OpenedRun",
    "Outcome",
    "PartitionView",
    "Point",
    "Row",
    "ScoreFunction",
    "Study",
    "Sweep",
    "SweepTable",
    "best",
    "choose",
    "comparison",
    "default_jobs",
    "describe_partition",
    "describe_seeds",
    "draw_lines",
    "evaluate_state",
    "grouped",
    "latex_table",
    "line",
    "log_base",
    "long_rows",
    "markdown_table",
    "names_of",
    "new_figure",
    "objective_text",
    "open_state",
    "parse_formats",
    "parse_methods",
    "parse_objective",
    "parse_sweep",
    "plan",
    "refuse_other_data",
    "row",
    "run_experiment",
    "run_to_end",
    "save_figure",
    "seeds_of",
    "studies",
    "sweep_points",
    "sweep_table",
    "tables",
    "tune",
    "tuned",
    "with_score",
    "without_preset",
    "write_choice",
    "write_sweep",
]

__getattr__ = lazy_names(__name__, __file__)
