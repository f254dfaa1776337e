"""Evaluate a run's committed state again, after a check that its data is still the same.

A run is checked as `--resume` checks it: classes, clients, image counts, then the hashes of all
features. Training images are not needed for an evaluation. Where they are gone, or are not to be
opened, the test images alone are opened under the names that the run folder keeps.
"""

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from focoop.clip import LabelledFeatures
from focoop.config import RunConfig
from focoop.errors import ConfigError, DataError, RunError
from focoop.experiments.naming import checked, train_counts
from focoop.federation import Evaluation, PrivateStore, client_state, evaluate, start
from focoop.methods import Logits, Method, Params, Server, Text
from focoop.runs import NAMES, RunFolder, anchored, anchored_spec, used_plugins
from focoop.scenario import Scenario, build_scenario, make_split, tested_split, training_is_gone

Counts = Callable[[int], Tensor]
CHUNK = 4096  # images at a time
Fact = TypeVar("Fact")
HINT = "\nor leave the training images closed, which alone differ: focoop evaluate --test-only"


@dataclass(frozen=True)
class OpenedRun:
    """A run's committed state with the data it was checked against.

    Attributes:
        scenario: the method, its task and the sets to evaluate on.
        server: the committed shared tensors, on the scenario's device.
        store: the clients' private tensors.
        seed: the run's seed.
        counts: gives (C,) training images of each class at a client; None: counted.
        round_index: the committed round.
    """

    scenario: Scenario
    server: Server
    store: PrivateStore
    seed: int
    counts: "Counts | None" = None
    round_index: int = -1

    def params(self, client: int) -> Params:
        """Return all tensors of a client's model, shared and private.

        Args:
            client: The client's number.

        Returns:
            Tensors by name.
        """
        return _model(self.scenario, self.server, self.store, self.seed, self.counts)[0](client)

    def class_counts(self, client: int) -> Tensor:
        """Return how many training images of each class a client has, (C,).

        Args:
            client: The client's number.

        Returns:
            The counts.
        """
        return _counted(self.scenario, self.counts, client)

    @torch.no_grad()
    def text(self, client: int) -> Text:
        """Return the text side of a client's model.

        Args:
            client: The client's number.

        Returns:
            The text side.
        """
        return self.scenario.method.encode(self.params(client), self.scenario.task)

    @torch.no_grad()
    def answers(self, text: Text, images: LabelledFeatures) -> list[Logits]:
        """Compare images with a model, some at a time.

        Args:
            text: The text side of the model.
            images: The images.

        Returns:
            Logits, chunk by chunk.
        """
        method, device = self.scenario.method, self.scenario.task.device
        answers = []
        for first in range(0, max(1, len(images.labels)), CHUNK):
            rows = slice(first, first + CHUNK)
            patches = None if images.patches is None else images.patches[rows].to(device)
            answers.append(method.logits(text, images.pooled[rows].to(device), patches))
        return answers

    @property
    def same_for_all(self) -> bool:
        """Return whether all clients have the same model: the method keeps nothing private."""
        return not start(self.scenario.method, self.scenario.task, self.seed).private

    def evaluate(self, method: Method | None = None) -> Evaluation:
        """Evaluate every client's model.

        Args:
            method: answers in the place of the run's own method, such as one with another score.

        Returns:
            The summary, and a row per client.
        """
        scenario = self.scenario if method is None else replace(self.scenario, method=method)
        return evaluate_state(scenario, self.server, self.store, self.seed, self.counts)

    def evaluate_at(self, open_share: float, method: Method | None = None) -> Evaluation:
        """Evaluate every client's model as it answers at another open share.

        Args:
            open_share: share of images that a client expects from any class.
            method: answers in the place of the run's own method.

        Returns:
            The summary, and a row per client.

        Raises:
            ConfigError: the method has no open share, or it is out of range.
        """
        scenario, base = self.scenario, method or self.scenario.method
        if not 0 <= open_share <= 1:
            raise ConfigError(f"open_share = {open_share:g} is not allowed: 0 to 1")
        if not hasattr(base.config, "open_share"):
            raise ConfigError(f"{type(base).__name__} has no open_share: leave --open-share out")
        turned = copy.copy(base)
        turned.config = replace(base.config, open_share=open_share)
        device = scenario.task.device

        def params(client: int) -> Params:
            return {**self.params(client), "counts": self.class_counts(client).to(device)}

        return evaluate(turned, scenario.task, params, scenario.sets)


def open_state(
    folder: RunFolder, device: str | None = None, *, test_only: bool = False
) -> OpenedRun:
    """Open the last committed state of a run with the data its configuration names.

    Args:
        folder: the run.
        device: the torch device; by default the run's.
        test_only: do not open the training images, and do not check them.

    Returns:
        The state and the data.

    Raises:
        RunError: nothing is committed, or the data is not what the run was trained on; the message
            names the classes, clients or sets that differ.
        DataError: the test images or an OOD set cannot be opened.
    """
    committed, private = folder.snapshot()  # of one round, also while the run goes on
    if committed is None:
        raise RunError(f"{folder.path} has no committed round yet: run it first")
    scenario = _checked(folder, device, test_only)
    names = folder.names
    server = Server(on_device(committed.shared, scenario))
    counts = None if names is None or not names.counted else partial(train_counts, names)
    seed, last = folder.config.seed, committed.round_index
    return OpenedRun(scenario, server, private, seed, counts, last)


def _checked(folder: RunFolder, device: str | None, test_only: bool) -> Scenario:
    """The run's scenario, its data known to be the run's as far as the folder tells."""
    names, config = folder.names, placed(folder.config, folder)
    if names is None:
        return _as_far_as_known(folder, device, test_only)
    apart = names.tested == "test"
    if not test_only:
        try:
            divide = checked(folder, make_split, ("train", "test"), hint=HINT if apart else "")
            scenario = build_scenario(config, device=device, divide=divide, words=names.words)
            _agree(folder, scenario, hint=HINT if apart else "")
            return scenario
        except (ConfigError, DataError, RunError):
            if not apart or not training_is_gone(config):
                raise
    if not apart:
        raise RunError(
            f"{folder.path} was tested on images held out of its training images, so these are "
            "needed: evaluate it without --test-only"
        )
    alone = partial(tested_split, classes=names.classes, clients=folder.client_names)
    divide = checked(folder, alone, ("test",))
    scenario = build_scenario(config, device=device, divide=divide, words=names.words)
    _agree(folder, scenario, {"train": folder.manifest.get("data_hashes", {}).get("train")})
    if not test_only:
        warnings.warn(
            f"the training images of {config.data.id} cannot be opened: the test images alone were "
            "checked and evaluated",
            stacklevel=2,
        )
    return scenario


def _as_far_as_known(folder: RunFolder, device: str | None, test_only: bool) -> Scenario:
    """The scenario of a run folder without names; what is not checked is said."""
    if test_only:
        raise RunError(f"--test-only needs the {NAMES} of a run, and {folder.path} has none")
    known = "its data_hashes were" if "data_hashes" in folder.manifest else "nothing was"
    warnings.warn(
        f"{folder.path} has no {NAMES} (an earlier focoop made it): class and client names were "
        f"not checked, {known}",
        stacklevel=2,
    )
    scenario = build_scenario(placed(folder.config, folder), device=device)
    _agree(folder, scenario)
    return scenario


def _agree(
    folder: RunFolder,
    scenario: Scenario,
    unopened: Mapping[str, Any] | None = None,
    hint: str = "",
) -> None:
    """Refuse a backbone or features that are not the run's.

    Args:
        folder: the run.
        scenario: what was opened.
        unopened: hashes of what was not opened, as the run has them.
        hint: what else the user may do where nothing but training images differ.
    """
    if "plugins" in folder.manifest:
        folder.agree("plugins", used_plugins(folder.config))
    folder.agree("backbone_fingerprint", scenario.backbone.fingerprint)
    folder.agree_revision(folder.config.method.name, scenario.method.revision)
    hashes = {**as_written(scenario.hashes, folder.config, folder), **(unopened or {})}
    then = folder.manifest.get("data_hashes", hashes)
    differing = [name for name in {**then, **hashes} if then.get(name) != hashes.get(name)]
    advice = HINT if hint and differing == ["train"] else ""
    folder.agree("data_hashes", hashes, advice + _served(folder, scenario))


def _served(folder: RunFolder, scenario: Scenario) -> str:
    """Sets that come from elsewhere than then, such as from images instead of ready features."""
    then = folder.manifest.get("data_sources", {})
    now = as_written(scenario.sources, folder.config, folder)
    pairs = {
        name: [sources[name]["served by"] for sources in (then, now)]
        for name in now
        if name in then
    }
    lines = [f"\n{name}: then {a}, now {b}" for name, (a, b) in pairs.items() if a != b]
    return "".join(lines)


def placed(config: RunConfig, folder: RunFolder) -> RunConfig:
    """Return a configuration whose relative paths mean what they meant when the run was started.

    Args:
        config: The run's settings.
        folder: The run folder.

    Returns:
        The settings.
    """
    return config if folder.base == Path.cwd() else anchored(config, folder.base)


def as_written(facts: Mapping[str, Fact], config: RunConfig, folder: RunFolder) -> dict[str, Fact]:
    """Rename facts about datasets to the names that the configuration has for these datasets.

    Args:
        facts: Facts by the names that were opened.
        config: The run's settings.
        folder: The run folder.

    Returns:
        Facts by name.
    """
    written = {anchored_spec(spec, folder.base): spec for spec in _specs(config)}
    by_spec = {}
    for name, value in facts.items():
        whole, mark, corruption = name.partition("#")
        by_spec[f"{written.get(whole, whole)}{mark}{corruption}"] = value
    return by_spec


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

    Returns:
        The evaluation of all clients.
    """
    params, same_for_all = _model(scenario, server, store, seed, counts)
    return evaluate(
        scenario.method,
        scenario.task,
        params,
        scenario.sets,
        same_for_all=same_for_all,
    )


def _model(
    scenario: Scenario,
    server: Server,
    store: PrivateStore,
    seed: int,
    counts: Counts | None,
) -> tuple[Callable[[int], Params], bool]:
    """A function that gives a client's tensors, and whether all clients have the same."""
    initial = start(scenario.method, scenario.task, seed)

    def params(client: int) -> Params:
        pooled = scenario.method.pools_data
        private = store.load(0 if pooled else client) if initial.private else None
        if pooled and private is not None:
            # A client of pooled data has no model of its own, but its labels shape the answer.
            counted = _counted(scenario, counts, client)
            private = scenario.method.personalise(private, counted, scenario.task)
        state = client_state(
            scenario.method,
            scenario.task,
            initial,
            server,
            private,
            lambda: _counted(scenario, counts, client),
        )
        return {**state.shared, **state.private}

    return params, not initial.private


def _counted(scenario: Scenario, counts: Counts | None, client: int) -> Tensor:
    """A client's training images of each class (C,): as the run folder names them, or counted."""
    if counts is not None:
        return counts(client)
    return scenario.client(client).counts(len(scenario.task.classes))


def on_device(params: Params, scenario: Scenario) -> Params:
    """Move tensors to the scenario's device.

    Args:
        params: Tensors by name.
        scenario: The scenario.

    Returns:
        The tensors there.
    """
    return {name: value.to(scenario.task.device) for name, value in params.items()}
