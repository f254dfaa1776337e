"""Make a run, or go on with one that was stopped."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from focoop.api.run_data import missing_datasets, notes_on_data
from focoop.api.run_results import Run
from focoop.api.settings import Overrides, Settings, configure
from focoop.config import RunConfig
from focoop.data import fetch as fetch_dataset
from focoop.errors import ConfigError, RunError
from focoop.experiments import OnRound, refuse_other_data, run_experiment
from focoop.methods import lookup
from focoop.runs import RunFolder, anchored, collect, read_config, start
from focoop.scenario import require_data

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
    on_round: OnRound | None = None,
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
        on_round: Called after each committed round with its number, its mean training loss (None
            before the first round) and its evaluation (None where it was not evaluated).

    Returns:
        The finished run.

    Raises:
        ConfigError: A setting is unknown or impossible.
        DataError: Images or features are missing or do not fit.
        RunError: The folder holds another run, or one that is not to be resumed.

    Example:
        ```python
        run = focoop.run("demo", {"method.name": "promptfl", "federation.rounds": 2}, out="runs/x")
        run.summary["accuracy_own"]
        ```
    """
    whole, _ = configure(config, overrides, use_tuned=use_tuned, device=device)
    prepared = prepare_run(whole, out, resume=resume, from_round_before=from_round_before)
    return prepared.train(on_round)


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

    def train(self, on_round: OnRound | None = None) -> Run:
        """Train from the last committed round to the end.

        Args:
            on_round: As in `run`.

        Returns:
            The finished run.
        """
        if not self.finished:
            with self.folder:
                run_experiment(self.config, self.folder, on_round, notes=self.notes)
                self.folder.finish("finished")
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
    here = _as_started(config, path) if resume else config
    if here.data.fetch:
        for name in missing_datasets(here):
            (fetch or _fetch)(name, here)
    require_data(here)
    data_notes = notes_on_data(here)
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
    return PreparedRun(config, folder, [*notes, *data_notes])


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
