"""Compare methods over settings and seeds, and show the result as a table."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from focoop.api.frames import pandas
from focoop.api.settings import Overrides, on_device
from focoop.config import shipped
from focoop.errors import ConfigError, RunError, nearest
from focoop.experiments import (
    Cell,
    GridSettings,
    Outcome,
    comparison,
    long_rows,
    parse_sweep,
    plan,
    seeds_of,
    sweep_points,
    write_sweep,
)
from focoop.functional import paired
from focoop.plugins import origin
from focoop.runs import used_plugins
from focoop.scenario import leave_out_absent
from focoop.tracking import OnRound, split_hooks

if TYPE_CHECKING:
    from pandas import DataFrame

Settings = str | Path | Mapping[str, Any]
OnChange = Callable[[Outcome], None]
OUT = Path("runs/compare")


@dataclass(frozen=True)
class Table:
    """Results of a comparison: methods by settings, means and deviations over seeds.

    Attributes:
        outcomes: Every run of the grid, with its status, folder and last evaluation.
    """

    outcomes: Sequence[Outcome]

    def __repr__(self) -> str:
        done = sum(outcome.status == "finished" for outcome in self.outcomes)
        methods = dict.fromkeys(outcome.cell.label for outcome in self.outcomes)
        settings = dict.fromkeys(outcome.cell.setting for outcome in self.outcomes)
        return (
            f"Table({', '.join(methods)} on {', '.join(settings)}: {done} of "
            f"{len(self.outcomes)} runs finished; print(table.to_markdown()) shows it)"
        )

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return one row per setting and method.

        Means in percent, and `NAME_std` of several seeds.
        """
        records = []
        for setting, groups in comparison.grouped(self.outcomes).items():
            for label, outcomes in groups.items():
                stats, _ = comparison.row(outcomes)
                done = sum(outcome.status == "finished" for outcome in outcomes)
                row: dict[str, Any] = {"setting": setting, "method": label, "runs": done}
                for name, stat in stats.items():
                    row[name] = stat.mean
                    if stat.spread is not None:
                        row[f"{name}_std"] = stat.spread
                records.append(row)
        return records

    @property
    def runs(self) -> list[dict[str, Any]]:
        """Return one row per run.

        Setting, method, seed, folder, status, error and its last evaluation.
        """
        cells: list[dict[str, Any]] = comparison.document(self.outcomes)["cells"]
        return cells

    @property
    def sweep(self) -> list[dict[str, Any]]:
        """Return one row per setting, swept values, method and column: mean, deviation, runs."""
        return long_rows(self.outcomes)

    def differences(self, first: str, second: str) -> list[dict[str, Any]]:
        """Compare two methods by the differences of equal seeds (Student's paired t-test).

        Args:
            first: A method as it is called in `rows`.
            second: The other.

        Returns:
            One row per setting and column: `setting`, `column`, `difference` (first less second, in
            points), `half_width` of its 95% interval, `p` (two-sided) and the number of `seeds`.
            With one seed there is no interval and no p.

        Raises:
            ConfigError: There is no such method in the table.
        """
        known = list(dict.fromkeys(outcome.cell.label for outcome in self.outcomes))
        for label in (first, second):
            if label not in known:
                raise ConfigError(f"there is no method {label!r}{nearest(label, known)}")
        rows = []
        for setting, groups in comparison.grouped(self.outcomes).items():
            one, other = (comparison.by_seed(groups.get(label, [])) for label in (first, second))
            seeds = sorted(one.keys() & other.keys())
            names = dict.fromkeys(name for seed in seeds for name in one[seed])
            for name in names:
                both = [s for s in seeds if name in one[s] and name in other[s]]
                if not both:
                    continue
                pair = paired.difference(*([runs[s][name] for s in both] for runs in (one, other)))
                row = {"setting": setting, "column": name, "difference": pair.mean}
                row |= {"half_width": pair.half_width, "p": pair.p, "seeds": pair.pairs}
                rows.append(row)
        return rows

    @property
    def failures(self) -> dict[str, str]:
        """Return why runs failed, by their folder."""
        failed = [outcome for outcome in self.outcomes if outcome.status == "failed"]
        return {str(outcome.cell.folder): outcome.error for outcome in failed}

    def frame(self, of: str = "rows") -> "DataFrame":
        """Return the table as a pandas DataFrame.

        Args:
            of: `rows`, a row per setting and method; `runs`, a row per run, with nested values
                as columns such as `summary.accuracy_own`; or `sweep`, as the property.

        Returns:
            The DataFrame.

        Raises:
            MissingExtra: pandas is not installed.
            ConfigError: `of` is something else.
        """
        if of not in ("rows", "runs", "sweep"):
            raise ConfigError(f"there is no table {of!r}: write rows, runs or sweep")
        return pandas().json_normalize(getattr(self, of))

    def to_markdown(self) -> str:
        """Return the tables of every setting as markdown, the best of a column bold."""
        groups = comparison.grouped(self.outcomes)
        return "\n".join(comparison.markdown(name, rows) for name, rows in groups.items())

    def to_latex(self, columns: Sequence[str] = (), labels: Mapping[str, str] | None = None) -> str:
        """Return a LaTeX table (booktabs) per setting, the best of a column bold.

        Args:
            columns: The columns to show, in this order, by their names in `rows`; empty: all.
            labels: How methods, columns and settings are called in the paper, by their names here.

        Returns:
            One `table` environment per setting, with a caption and the label `tab:SETTING`; the
            document needs the package booktabs.

        Raises:
            ConfigError: There is no such column.

        Example:
            ```python
            table.to_latex(["own", "all"], {"mine": "Ours", "promptfl": "PromptFL"})
            ```
        """
        groups = comparison.grouped(self.outcomes)
        return "\n".join(comparison.latex(*one, columns, labels) for one in groups.items())

    def save(self, out: str | Path) -> list[Path]:
        """Write OUT/SETTING.md and OUT/SETTING.tex for every setting, and OUT/results.json.

        Of a sweep also OUT/sweep.csv, sweep.md, sweep.tex and, with matplotlib, its lines.

        Args:
            out: The folder.

        Returns:
            The files written.
        """
        files = comparison.write_results(Path(out), self.outcomes)
        return files + write_sweep(Path(out), self.outcomes)

    def _repr_markdown_(self) -> str:
        """What a notebook shows."""
        return self.to_markdown()


def compare(
    settings: Settings | Iterable[Settings],
    methods: str | Sequence[str] | None = None,
    *,
    seeds: int | str | Sequence[int] = 3,
    sweep: str | Sequence[str] = (),
    overrides: Overrides = None,
    out: str | Path = OUT,
    use_tuned: bool = True,
    presets: str | Path | None = None,
    jobs: int = 0,
    device: str | None = None,
    on_change: OnChange | None = None,
    on_round: OnRound = None,
) -> Table:
    """Run methods x settings x seeds as one grid, and return its table.

    Runs are kept below `out`; the same call again runs only what is not finished.

    Args:
        settings: Settings files, names of those that come with focoop, or mappings with a `name`.
        methods: Names, presets or variants such as `"focoop:bos=false"`; `"all"`; None: every
            settings file is a run of its own, a row of one table.
        seeds: How many seeds, 0 to n - 1, as in `3` or `"3"`; or which, as in `[0, 4]` or `"0,4"`.
        sweep: A setting at several values, `"partition.shots=1,2,4"`; several are a product.
        overrides: Settings that go above all others, as in `run`.
        out: The folder of the runs and tables.
        use_tuned: Whether methods have their tuned settings.
        presets: The folder of tuned settings; by default the one that comes with focoop.
        jobs: Runs at a time, each in a process of its own (a script then needs the usual
            `if __name__ == "__main__":`); 0: one after the other in this process.
        device: A torch device, such as `"cuda"`; by default the settings'.
        on_change: Called whenever a run starts, commits a round, finishes or fails.
        on_round: As in `run`, for every run that is not finished; `event.name` is
            `SETTING/LABEL/seedN`. Trackers named by text write where the run is made, functions
            and objects are called in this process.

    Returns:
        The table; runs that failed are in `failures`.

    Raises:
        ConfigError: A setting, method or seed cannot be read.
        DataError: Images or features are missing.
        RunError: A folder holds a run of other settings, or every run failed.
    """
    cells = plan_comparison(
        settings,
        methods,
        seeds=seeds,
        sweep=sweep,
        overrides=overrides,
        out=out,
        presets=presets,
        use_tuned=use_tuned,
        device=device,
    )
    table = run_comparison(cells, jobs=jobs, on_change=on_change, on_round=on_round)
    if len(table.failures) == len(cells):
        raise RunError(f"every run failed; the first: {next(iter(table.failures.values()))}")
    table.save(out)
    return table


def plan_comparison(
    settings: Settings | Iterable[Settings],
    methods: str | Sequence[str] | None = None,
    *,
    seeds: int | str | Sequence[int] = 3,
    sweep: str | Sequence[str] = (),
    overrides: Overrides = None,
    out: str | Path = OUT,
    use_tuned: bool = True,
    presets: str | Path | None = None,
    device: str | None = None,
) -> list[Cell]:
    """Say which runs `compare` would make; the arguments are its own.

    Args:
        settings: As in `compare`.
        methods: As in `compare`.
        seeds: As in `compare`.
        sweep: As in `compare`.
        overrides: As in `compare`.
        out: As in `compare`.
        use_tuned: As in `compare`.
        presets: As in `compare`.
        device: As in `compare`.

    Returns:
        One cell per run: its setting, label, configuration and folder.

    Raises:
        ConfigError: A setting, method or seed cannot be read.
    """
    several = [settings] if isinstance(settings, str | Path | Mapping) else list(settings)
    given = [as_settings(setting) for setting in several]
    swept = [sweep] if isinstance(sweep, str) else sweep
    folder = Path(presets) if presets is not None else shipped("methods")
    cells = plan(
        given,
        joined(methods),
        seeds_of(seeds),
        Path(out),
        presets=folder if use_tuned else None,
        overrides=on_device(overrides, device),
        points=sweep_points([parse_sweep(text) for text in swept]),
    )
    here = [_with_what_is_here(cell) for cell in cells]
    for text in dict.fromkeys(f"{cell.base}: {note}" for cell in here for note in cell.notes):
        warnings.warn(text, stacklevel=2)
    return here


def _with_what_is_here(cell: Cell) -> Cell:
    """A run without the sets that are not here."""
    config, left_out = leave_out_absent(cell.config)
    return replace(cell, config=config, notes=(left_out,)) if left_out else cell


def run_comparison(
    cells: Sequence[Cell],
    *,
    jobs: int = 0,
    on_change: OnChange | None = None,
    on_round: OnRound = None,
    run: bool = True,
) -> Table:
    """Make the runs of a plan that are not finished.

    Args:
        cells: What `plan_comparison` returned.
        jobs: As in `compare`.
        on_change: As in `compare`.
        on_round: As in `compare`.
        run: Whether to run anything; else the table holds what is finished.

    Returns:
        The table.

    Raises:
        DataError: Images or features are missing.
        RunError: A folder holds a run of other settings.
    """
    if not run:
        comparison.refuse_changed(cells)
        return Table([comparison.outcome_of(cell) for cell in cells])
    refuse_registered(cells, jobs)
    watch = on_change or (lambda outcome: None)
    refuse_registered_trackers(on_round, jobs)
    return Table(comparison.run(cells, watch, jobs=jobs, on_round=on_round))


def refuse_registered(cells: Sequence[Cell], jobs: int) -> None:
    """Refuse methods, scores and datasets that other processes would not know.

    Args:
        cells: The runs.
        jobs: Processes that make them; 0: this one.

    Raises:
        ConfigError: One was registered in this process alone.
    """
    for plugin in (one for cell in cells for one in used_plugins(cell.config)) if jobs else ():
        if "registered" in plugin:
            raise ConfigError(
                f"the {plugin['kind']} {plugin['name']!r} was registered in this process, and "
                f"jobs = {jobs} makes runs in others: use jobs = 0, or name a file, ./mine.py"
            )


def refuse_registered_trackers(on_round: OnRound, jobs: int) -> None:
    """Refuse trackers that other processes would not know.

    Args:
        on_round: The hooks.
        jobs: Processes that make runs; 0: this one.

    Raises:
        ConfigError: A tracker was registered in this process alone.
    """
    for text in split_hooks(on_round)[0] if jobs else ():
        name = text.partition(":")[0]
        if "registered" in (origin("tracker", name) or {}):
            raise ConfigError(
                f"the tracker {name!r} was registered in this process, and jobs = {jobs} makes "
                "runs in others: use jobs = 0, or put it into a file, ./mine.py"
            )


def as_settings(given: Settings) -> GridSettings:
    """Return a file's path, or the values themselves.

    Args:
        given: What a user gave.

    Returns:
        What a grid takes.
    """
    return Path(given) if isinstance(given, str) else given


def joined(methods: str | Sequence[str] | None) -> str | None:
    """Return names of methods as one text.

    Args:
        methods: The names, one text or many.

    Returns:
        The text.
    """
    return methods if methods is None or isinstance(methods, str) else ",".join(methods)
