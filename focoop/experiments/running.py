"""Run or resume a configuration in its run folder."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from focoop.config import RunConfig
from focoop.experiments.evaluation import as_written, evaluate_state, on_device, placed
from focoop.experiments.naming import checked, names_of
from focoop.federation import RoundResult, Schedule, require_rules, rounded, simulate, start
from focoop.methods import Server
from focoop.plugins import origin
from focoop.runs import RunFolder, answers_from_outside, is_due, run_log, used_plugins, versions
from focoop.scenario import Scenario, build_scenario, left_out, make_split, schedule_of
from focoop.tracking import Hooks, Listener


def run_experiment(
    config: RunConfig,
    folder: RunFolder,
    hooks: Hooks | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Train from the folder's last committed round to the end, and log it in the folder.

    Args:
        config: the run's settings, those of the folder.
        folder: the run folder, open for writing.
        hooks: told when the run begins, and of each committed round; round 0 is the state before
            training. Whoever made them tells them of the end.
        notes: what the user was told before the run began, for its log.

    Returns:
        The last evaluation.
    """
    with run_log(folder.path, folder.log):
        folder.log.info("%s", _opening(config, folder))
        for note in (*notes, *filter(None, [folder.note])):
            folder.log.info("note: %s", note)
        line = _rounds(config, folder, hooks or Hooks(folder))
        folder.log.info("all rounds are done")
    return line


def run_to_end(
    config: RunConfig,
    folder: RunFolder,
    listeners: Sequence[Listener] = (),
    name: str = "",
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Train to the end and close the folder; then hooks are told how the run ended.

    Args:
        config: The run's settings, those of the folder.
        folder: The run folder, open for writing.
        listeners: The run's hooks.
        name: The run's name for them; by default that of its folder.
        notes: As in `run_experiment`.

    Returns:
        The last evaluation.
    """
    with Hooks(folder, listeners, name) as hooks, folder:
        line = run_experiment(config, folder, hooks, notes)
        folder.finish("finished")
    return line


def _opening(config: RunConfig, folder: RunFolder) -> str:
    """The first line of a log: what runs, by which code, and from where it goes on."""
    done, installed = folder.last_round(), versions()
    point = "begins" if done < 0 else f"goes on after round {done}"
    return (
        f"{config.title} {point}, {config.federation.rounds} rounds; method {config.method.label}, "
        f"focoop {installed['focoop']}, torch {installed['torch']}, device {config.backbone.device}"
    )


def _rounds(config: RunConfig, folder: RunFolder, hooks: Hooks) -> dict[str, Any]:
    divide = checked(folder, make_split, ("train", "test"))
    scenario = build_scenario(placed(config, folder), divide=divide)
    names = names_of(config, scenario.split, scenario.words)
    folder.pin("backbone_fingerprint", scenario.backbone.fingerprint)
    folder.pin_revision(config.method.name, scenario.method.revision)
    if (used := used_plugins(config)) or "plugins" in folder.manifest:
        folder.pin("plugins", used)
    folder.pin("data_hashes", as_written(scenario.hashes, config, folder))
    folder.pin("repeated_shots", scenario.split.repeated)
    folder.remember(data_sources=as_written(scenario.sources, config, folder))
    folder.keep_names(names)
    hooks.begin()
    schedule = schedule_of(config, scenario)
    committed = folder.resume_point()
    first = start(scenario.method, scenario.task, config.seed).shared
    if committed is None:
        _tell(folder, _notes(config, scenario, [client.name for client in names.clients]))
        server = Server(rounded(first, schedule.down))
        _commit(folder, scenario, config, schedule, 0, server, None, hooks)
        done = 0
    else:
        folder.agree_tensors(committed.shared, first)
        done = committed.round_index
        server = Server(
            on_device(committed.shared, scenario), on_device(committed.memory, scenario)
        )
    rounds = simulate(
        scenario.method,
        scenario.task,
        scenario.training_clients(),
        schedule,
        folder.private,
        seed=config.seed,
        resume=(done, server),
    )
    for result in rounds:
        _commit(
            folder, scenario, config, schedule, result.round_index, result.server, result, hooks
        )
    return folder.metrics()[-1]


def _notes(config: RunConfig, scenario: Scenario, clients: Sequence[str]) -> list[str]:
    """What a person should know of a new run that only its method and its images tell."""
    notes: list[str] = []
    if answers_from_outside(config):  # what focoop has is tested
        doubts = require_rules(scenario.method, scenario.task, scenario.a_few_images())
        notes = [] if origin("method", config.method.name) is None else doubts
    return [*notes, *left_out(config, scenario.split, clients)]


def _tell(folder: RunFolder, notes: Sequence[str]) -> None:
    """Keep notes with the run, for tables and reports, and warn of them; its log has warnings."""
    if notes:
        folder.remember(notes=notes)
    for note in notes:
        warnings.warn(note, stacklevel=2)


def _commit(
    folder: RunFolder,
    scenario: Scenario,
    config: RunConfig,
    schedule: Schedule,
    round_index: int,
    server: Server,
    result: RoundResult | None,
    hooks: Hooks,
) -> None:
    """Evaluate where it is due, then commit the round."""
    line: dict[str, Any] | None = None
    if is_due(round_index, schedule.rounds, config.federation.evaluate_every):
        evaluation = evaluate_state(scenario, server, folder.private, config.seed)
        line = {**evaluation.summary, "clients": evaluation.clients}
        if result is not None:
            line |= {"loss": result.loss, "server": dict(server.report)}
    traffic: dict[str, Any] = {}
    if result is not None:
        traffic = {
            "participants": list(result.participants),
            "bytes_up": result.bytes_up,
            "bytes_down": result.bytes_down,
            "seconds": round(result.seconds, 3),
            "loss": result.loss,
        }
        if server.report:
            traffic["server"] = dict(server.report)  # of rounds without evaluation too
    folder.commit(round_index, server.shared, line, traffic, server.memory)
    folder.log.info("%s", _told(round_index, schedule.rounds, result, line))
    hooks.committed(round_index, traffic, line)


def _told(
    round_index: int, rounds: int, result: RoundResult | None, line: Mapping[str, Any] | None
) -> str:
    """A committed round as a line of the log."""
    parts = [f"round {round_index} of {rounds}"]
    if result is not None:
        parts.append(f"loss {result.loss:.4f}, {len(result.participants)} clients")
        parts.append(f"{result.seconds:.2f} s")
    if line is not None:
        parts.append(f"own classes {100 * line['accuracy_own']:.2f}")
        parts.append(f"all classes {100 * line['accuracy_all']:.2f}")
        parts += [
            f"auroc {name} {100 * metrics['auroc']:.2f}" for name, metrics in line["ood"].items()
        ]
    return ", ".join(parts)
