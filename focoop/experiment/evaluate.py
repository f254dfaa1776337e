"""Evaluate a run's committed state again, after a check that its data is still the same.

A run is checked as `--resume` checks it: classes, clients, image counts, then the hashes of all
features. Training images are not needed for an evaluation. Where they are gone, or are not to be
opened, the test images alone are opened under the names that the run folder keeps.
"""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch import Tensor

from focoop.errors import ConfigError, DataError, FocoopError, RunError
from focoop.evaluation import Evaluation, evaluate
from focoop.experiment.naming import names_of, train_counts
from focoop.experiment.tested import tested_split, training_is_gone
from focoop.federation.simulator import PrivateStore, client_state, start
from focoop.methods._base import Params, Server
from focoop.runs import NAMES, Names, RunFolder, anchored, anchored_spec
from focoop.scenario import Scenario, build
from focoop.schema import RunConfig

Counts = Callable[[int], Tensor]


def evaluate_run(
    folder: RunFolder, device: str | None = None, *, test_only: bool = False
) -> Evaluation:
    """Evaluate the last committed state of a run on the data its configuration names.

    Args:
        folder: the run.
        device: the torch device; by default the run's.
        test_only: do not open the training images, and do not check them.

    Raises:
        RunError: nothing is committed, or the data is not what the run was trained on; the message
            names the classes, clients or sets that differ.
        DataError: the test images or an OOD set cannot be opened.
    """
    committed = folder.resume_point()
    if committed is None:
        raise RunError(f"{folder.path} has no committed round yet: run it first")
    scenario = _checked(folder, device, test_only)
    names = folder.names
    server = Server(on_device(committed.shared, scenario))
    counts = None if names is None or not _counted(names) else partial(train_counts, names)
    return evaluate_state(scenario, server, folder.private, folder.config.seed, counts)


def _checked(folder: RunFolder, device: str | None, test_only: bool) -> Scenario:
    """The run's scenario, its data known to be the run's as far as the folder tells."""
    names, config = folder.names, placed(folder.config, folder)
    if names is None:
        if test_only:
            raise RunError(f"--test-only needs the {NAMES} of a run, and {folder.path} has none")
        checked = "its data_hashes were" if "data_hashes" in folder.manifest else "nothing was"
        warnings.warn(
            f"{folder.path} has no {NAMES} (an earlier focoop made it): class and client names "
            f"were not checked, {checked}",
            stacklevel=2,
        )
        scenario = build(config, device=device)
        folder.agree("data_hashes", hashes_of(scenario, folder.config, folder))
        return scenario
    if not test_only:
        try:
            scenario = build(config, device=device, words=names.words)
            _agree(folder, scenario, ("train", "test"))
            return scenario
        except (ConfigError, DataError, RunError) as error:
            if names.tested != "test" or not training_is_gone(config):
                raise _advised(error, names) from error
    if names.tested != "test":
        raise RunError(
            f"{folder.path} was tested on images held out of its training images, so these are "
            "needed: evaluate it without --test-only"
        )
    divide = partial(tested_split, classes=names.classes, clients=folder.client_names)
    scenario = build(config, device=device, divide=divide, words=names.words)
    _agree(folder, scenario, ("test",))
    if not test_only:
        warnings.warn(
            f"the training images of {config.data.id} are gone: the test images alone were "
            "checked and evaluated",
            stacklevel=2,
        )
    return scenario


def _agree(folder: RunFolder, scenario: Scenario, of: tuple[str, ...]) -> None:
    """Refuse data that is not the run's; `of` are the images that were opened."""
    found = names_of(folder.config, scenario)
    folder.agree_names(found, of=of)
    folder.agree("backbone_fingerprint", scenario.backbone.fingerprint)
    if "data_hashes" not in folder.manifest:
        return
    hashes = hashes_of(scenario, folder.config, folder)
    if "train" not in of:
        hashes["train"] = folder.manifest["data_hashes"]["train"]
    folder.agree("data_hashes", hashes)


def _advised(error: FocoopError, names: Names) -> FocoopError:
    """The error, with the way around training images where there is one."""
    if names.tested != "test":
        return error
    hint = "if only training images differ: focoop evaluate --test-only"
    return type(error)(f"{error}\n{hint}")


def _counted(names: Names) -> bool:
    """Whether a run folder says who trained on what; a server of sites does not know."""
    return any(client.train for client in names.clients)


def placed(config: RunConfig, folder: RunFolder) -> RunConfig:
    """The configuration with paths that lead where they led when the run was started."""
    return config if folder.base == Path.cwd() else anchored(config, folder.base)


def hashes_of(scenario: Scenario, config: RunConfig, folder: RunFolder) -> dict[str, str]:
    """Hashes of all features of a scenario, under the names that the configuration gives them."""
    written = {anchored_spec(spec, folder.base): spec for spec in _specs(config)}
    found = {}
    for name, value in scenario.hashes.items():
        whole, mark, corruption = name.partition("#")
        found[f"{written.get(whole, whole)}{mark}{corruption}"] = value
    return found


def _specs(config: RunConfig) -> list[str]:
    data = config.data
    return [
        spec.partition("#")[0]
        for spec in (data.id, *data.corrupted, *data.ood, *data.validation_ood)
    ]


def evaluate_state(
    scenario: Scenario,
    server: Server,
    store: PrivateStore,
    seed: int,
    counts: Counts | None = None,
) -> Evaluation:
    """Evaluate every client's model as the server and its private tensors now make it.

    Args:
        scenario: the method, its task and the sets to evaluate on.
        server: the shared tensors.
        store: the clients' private tensors.
        seed: the run's seed.
        counts: gives (C,) training images of each class at a client; by default counted.
    """
    initial = start(scenario.method, scenario.task, seed)

    def counted(client: int) -> Tensor:
        if counts is not None:
            return counts(client)
        return scenario.client(client).counts(len(scenario.task.classes))

    def params(client: int) -> Params:
        # A client of pooled data has no model of its own, but its labels may shape the answer.
        kept = store.load(0 if scenario.method.pools_data else client) if initial.private else None
        state = client_state(
            scenario.method,
            scenario.task,
            initial,
            server,
            kept,
            lambda: counted(client),
        )
        return {**state.shared, **state.private}

    return evaluate(
        scenario.method, scenario.task, params, scenario.sets, same_for_all=not initial.private
    )


def on_device(params: Params, scenario: Scenario) -> Params:
    """The same tensors on the scenario's device."""
    return {name: value.to(scenario.task.device) for name, value in params.items()}
