"""One self-contained HTML file about any number of runs: tables, tests, curves and pictures.

`records.py` reads run folders, `detection.py` asks models again for histograms and curves,
`swept.py` finds sweeps, and `sections.py` writes the parts of the page. `page/` holds its style,
its script and uPlot, the plot library (MIT licence, `page/uplot.LICENSE`), which are copied into
the file.

May import: errors, lazy, progress, functional, clip, methods, config, runs, experiments.
"""

from typing import TYPE_CHECKING

from focoop.lazy import lazy_names

if TYPE_CHECKING:
    from focoop.report.document import write_report
    from focoop.report.records import Collection, collect_runs

__all__ = ["Collection", "collect_runs", "write_report"]

__getattr__ = lazy_names(__name__, __file__)
