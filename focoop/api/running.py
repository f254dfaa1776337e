"""Make a run, or go on with one that was stopped."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from focoop.api.run_data import missing_datasets, notes_on_data
from focoop.api.run_results import Run
from focoop.api.settings import Overrides, Settings, configure
from focoop.config import RunConfig
from focoop.data import fetch as fetch_dataset
from focoop.errors import ConfigError, RunError
from focoop.experiments import refuse_other_data, run_to_end, tables
from focoop.methods import lookup
from focoop.runs import RunFolder, anchored, answers_from_outside, collect, read_config, start
from focoop.scenario import leave_out_absent, require_data
from focoop.tracking import Listener, OnRound, as_hooks

Fetch = Callable[[str, RunConfig], None]  # gets a public dataset by its name


def run(
    config: Settings = None,
    overrides: Overrides = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    from_round_before: bool = False,
    use_tuned: bool = True,
    device: str | None = None,
    on_round: OnRound = None,
) -> Run:
    """Train and evaluate one federation; everything about it is kept in a run folder.

    Args:
        config: A settings file, the name of one that comes with focoop (`"demo"`), settings as a
            mapping, or a `RunConfig`. Settings that are not given have the method's tuned values,
            else their defaults.
        overrides: Settings that go above `config`: `{"method.name": "focoop_plus"}`, or texts as
            the command line takes them, `["federation.rounds=3"]`.
        out: The run folder; by default below `runs`, named after data, method and seed.
        resume: Continue a run that was stopped, or that is to have more rounds. A finished run is
            returned as it is.
        from_round_before: With `resume`: go on from the round before the last one, such as when a
            file of the last one is damaged.
        use_tuned: Whether settings that are not given have the method's tuned values; a `RunConfig`
            is always taken as it is.
        device: A torch device, such as `"cuda"`; by default the settings'.
        on_round: Called after each committed round with a `focoop.RoundEvent`: a function; a
            `focoop.Tracker`, which is told of begin and end too; a text that names a tracker,
            `"tensorboard:folder"`, `"wandb"`, `"mlflow"`, `"trackio"` or `"./mine.py"`; or several
            of them. What it raises is a warning, and the training goes on.

    Returns:
        The finished run.

    Raises:
        ConfigError: A setting is unknown or impossible.
        DataError: Images or features are missing or do not fit.
        RunError: The folder holds another run, or one that is not to be resumed.
        MissingExtra: The package of a tracker is not installed.

    Example:
        ```python
        run = focoop.run("demo", {"method.name": "promptfl", "federation.rounds": 2}, out="runs/x")
        run.summary["accuracy_own"]
        ```
    """
    hooks = as_hooks(on_round)
    whole, _ = configure(config, overrides, use_tuned=use_tuned, device=device)
    prepared = prepare_run(whole, out, resume=resume, from_round_before=from_round_before)
    return prepared.train(hooks)


@dataclass
class PreparedRun:
    """A run whose settings, folder and data were checked, ready to train.

    Attributes:
        config: The run's settings.
        folder: Its folder, open for writing unless the run is finished.
        notes: What a person should know before it begins.
    """

    config: RunConfig
    folder: RunFolder
    notes: list[str] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        """Return whether nothing is left to do."""
        return self.folder.status == "finished"

    @property
    def rounds(self) -> int:
        """Return how many rounds there are until it is finished."""
        return self.config.federation.rounds if lookup(self.config.method.name).trains else 0

    def train(self, hooks: Sequence[Listener] = ()) -> Run:
        """Train from the last committed round to the end.

        Args:
            hooks: What `focoop.tracking.as_hooks` made of `on_round`.

        Returns:
            The finished run.
        """
        if not self.finished:
            found = run_to_end(self.config, self.folder, hooks, notes=self.notes)
            doubt = tables.doubt_sign(found)
            if doubt and answers_from_outside(self.config):
                warnings.warn(doubt, stacklevel=2)
        return Run(RunFolder.open(self.folder.path))


def prepare_run(
    config: RunConfig,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    lengthen: bool = True,
    from_round_before: bool = False,
    notes: Sequence[str] = (),
    on_note: Callable[[str], None] = lambda note: None,
    fetch: Fetch | None = None,
) -> PreparedRun:
    """Check a run's settings, data and folder, and open the folder.

    Args:
        config: The whole configuration.
        out: The run folder; by default below `runs`, named after data, method and seed.
        resume: Continue what is there.
        lengthen: Whether a resumed run may go on to more rounds than it was started with.
        from_round_before: As in `run`.
        notes: What the user was told already, for the run's log.
        on_note: Told each further note as soon as it is known.
        fetch: Gets a missing public dataset where the setting `data.fetch` asks for it; by default
            it is downloaded without a word.

    Returns:
        The run, ready to train.

    Raises:
        DataError: Images or features are missing or do not fit.
        RunError: The folder holds another run, or one that is not to be resumed.
        ConfigError: `from_round_before` without `resume`.
    """
    if from_round_before and not resume:
        raise ConfigError("--round-before goes on with a run that is there: add --resume")
    path = Path(out) if out is not None else Path("runs") / config.title
    config, left_out = leave_out_absent(config)
    if left_out:
        warnings.warn(left_out, stacklevel=2)
    here = _as_started(config, path) if resume else config
    if here.data.fetch:
        for name in missing_datasets(here):
            (fetch or _fetch)(name, here)
    require_data(here)
    data_notes = notes_on_data(here, measured=not left_out)
    for note in data_notes:
        on_note(note)
    if resume and lengthen and not from_round_before:
        _check_before_lengthening(here, path)
    folder = start(
        path,
        config,
        collect(config),
        resume=resume,
        lengthen=lengthen,
        from_round_before=from_round_before,
    )
    return PreparedRun(config, folder, [*notes, *filter(None, [left_out]), *data_notes])


def refuse_without_tuned(path: Path, config: RunConfig) -> None:
    """Refuse a folder that holds the same run without its method's tuned settings.

    Args:
        path: The run folder.
        config: The settings without the tuned ones.

    Raises:
        RunError: The folder holds a run of these settings.
    """
    try:
        same = read_config(path) == config
    except RunError:
        return
    if same:
        raise RunError(
            f"{path} holds this run without the tuned settings: add --untuned to the command "
            "(use_tuned=False in Python), or choose another folder with --out"
        )


def _fetch(name: str, config: RunConfig) -> None:
    fetch_dataset(name, config.data.root or None)


def _as_started(config: RunConfig, path: Path) -> RunConfig:
    """The settings of a run that may be there already, with paths that lead where they led then."""
    try:
        base = RunFolder.open(path).base
    except RunError:  # told when the folder is opened to go on
        return config
    return config if base == Path.cwd() else anchored(config, base)


def _check_before_lengthening(config: RunConfig, path: Path) -> None:
    """Refuse more rounds on other data while the run is still as it was."""
    try:
        folder = RunFolder.open(path)
    except RunError:  # told when the folder is opened to go on
        return
    if folder.last_round() >= 0 and config.federation.rounds > folder.config.federation.rounds:
        refuse_other_data(folder, config)
