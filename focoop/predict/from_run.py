"""Make a model of a run folder: no image and no feature of its data is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from focoop.clip import Backbone
from focoop.config import RunConfig
from focoop.errors import MethodError, RunError
from focoop.federation import client_state, start
from focoop.fields import plain
from focoop.methods import Method, Params, Server, State, Task, create, lookup
from focoop.predict.calibration import Calibration
from focoop.predict.facts import Client, Facts
from focoop.predict.model import Model
from focoop.predict.side import Side
from focoop.predict.sketches import SKETCHES, FederationSketches
from focoop.runs import Names, PrivateStore, RunFolder, anchored
from focoop.scenario import make_task, open_backbone

if TYPE_CHECKING:
    from torch import Tensor

CALIBRATION = "calibration.json"  # beside the run's other files
COORDINATED = "federation"  # noted in the manifest of a run whose images are at sites
LOCAL = ("folder", "clients", "csv", "file")  # kinds of data that are named by a path
COUNTS = "counts"  # private tensors that a site's class counts make


def model_of_run(
    folder: RunFolder,
    client: Client = None,
    device: str | None = None,
    backbone: Backbone | None = None,
    *,
    calibrated: bool = True,
) -> Model:
    """Make a model of the last committed round of a run.

    Args:
        folder: The run.
        client: The client that is asked where a call names none; None: the global model.
        device: A torch device; by default the run's.
        backbone: The run's backbone where it is loaded already.
        calibrated: Read its thresholds; False: they are about to be made.

    Returns:
        The model; clients' text features are made when they are first asked.

    Raises:
        RunError: Nothing is committed, or the folder lacks what is needed.
    """
    committed, store = folder.snapshot()  # of one round, also while the run goes on
    names = folder.names
    if committed is None:
        raise RunError(f"{folder.path} has no committed round yet: run it first")
    if names is None:
        raise RunError(
            f"{folder.path} has no names.json (an earlier focoop made it): run it again to ask it"
        )
    config = folder.config
    if folder.base != Path.cwd():
        config = anchored(config, folder.base)
    backbone = backbone or open_backbone(config, device)
    folder.agree("backbone_fingerprint", backbone.fingerprint)
    method = create(config.method.name, config.method.settings)
    folder.agree_revision(config.method.name, method.revision)
    task = make_task(config, backbone, names.classes, method.needs_ood, words=names.words)
    task = replace(task, frozen=method.prepare(task))
    shared = {name: value.to(task.device) for name, value in committed.shared.items()}
    initial = start(method, task, config.seed)
    keys: list[int | None] = list(range(len(names.clients)))
    if COORDINATED in folder.manifest:
        names = with_held(names, sketches_of(folder))
        keys = [k for k, client in enumerate(names.clients) if client.train]
        if set(initial.private) - {COUNTS}:  # they never leave their sites
            keys = []
    if shared or not initial.private:
        keys.insert(0, None)
    if not keys:
        raise RunError(
            f"{folder.path} is a coordinator's, and the method {config.method.name} keeps all it "
            "learns at the sites: ask the model that each site keeps (focoop site status)"
        )
    words = words_of_prompts(names.words, shared)
    facts = _facts(folder, config, backbone, names, words, task)
    sides = partial(_side, method, task, initial, shared, store, names)
    opened: Callable[[], Backbone] = lambda: backbone  # noqa: E731
    calibration = calibration_of(folder) if calibrated else None
    return Model(facts, method, task, sides, keys, opened, calibration, client)


def calibration_of(folder: RunFolder) -> Calibration | None:
    """Read the calibration of a run's last committed round.

    Args:
        folder: The run.

    Returns:
        The calibration; None where there is none, or where the run has gone on since.

    Raises:
        RunError: It is damaged, or of another run.
    """
    path = folder.path / CALIBRATION
    if not path.is_file():
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path} ({error}): run focoop calibrate again") from error
    found = Calibration.from_json(text, str(path))
    if found.round_index != folder.last_round():
        return None
    if found.models and found.models != folder.models_sum():
        raise RunError(f"{path} is of another run's models: run focoop calibrate again")
    return found


def sketches_of(folder: RunFolder) -> FederationSketches | None:
    """Read what sites told a coordinator after the last committed round.

    Args:
        folder: The coordinator's run.

    Returns:
        The sketches; None where there are none, or where the run has gone on since.
    """
    found = FederationSketches.read(folder.path / SKETCHES)
    return found if found is not None and found.round_index == folder.last_round() else None


def with_held(names: Names, told: FederationSketches | None) -> Names:
    """Return a run's names with the classes of the sites that let these be named.

    Args:
        names: The names of a coordinator's run, which knows no counts.
        told: What sites told.

    Returns:
        The names.
    """
    held = {} if told is None else told.held
    return replace(
        names,
        clients=tuple(
            replace(client, train=held.get(place, {})) for place, client in enumerate(names.clients)
        ),
    )


def words_of_prompts(words: tuple[str, ...], shared: Params) -> tuple[str, ...]:
    """Return the word of each OOD prompt; a server may have put prompts into another order.

    Args:
        words: The words that the prompts began with.
        shared: The server's shared tensors.

    Returns:
        A word per prompt.
    """
    if "ood_words" not in shared:
        return words
    return tuple(words[place] for place in shared["ood_words"].tolist())


def _facts(
    folder: RunFolder,
    config: RunConfig,
    backbone: Backbone,
    names: Names,
    words: tuple[str, ...],
    task: Task,
) -> Facts:
    place = backbone.name.partition("local-dir:")[2]
    told = not config.privacy.secure_sum and config.privacy.counts == "exact"
    holders = tuple(
        tuple(k for k, client in enumerate(names.clients) if client.train.get(name, 0))
        for name in names.classes
    )
    return Facts(
        method=config.method.name,
        settings=plain(config.method.settings),
        classes=names.classes,
        clients=folder.client_names,
        holders=holders if told else (),
        ood_names=words,
        backbone=without_folders(backbone.name),
        weights=config.backbone.weights or (place and str(Path(place).expanduser().absolute())),
        fingerprint=backbone.fingerprint,
        image_fingerprint=backbone.image_fingerprint,
        logit_scale=float(task.logit_scale),
        revision=lookup(config.method.name).revision,
        origin=_origin(folder, config),
    )


def _origin(folder: RunFolder, config: RunConfig) -> dict[str, Any]:
    metrics = folder.metrics()
    hashes: dict[str, str] = {}
    for name, found in folder.manifest.get("data_hashes", {}).items():
        short = without_folders(name)
        while short in hashes:  # another folder of the same name
            short += "'"
        hashes[short] = found
    return {
        "run": folder.path.resolve().name,
        "round": folder.last_round(),
        "seed": config.seed,
        "data": without_folders(config.data.id),
        "template": config.data.template,
        "data_hashes": hashes,
        "metrics": metrics[-1] if metrics else {},
        "versions": folder.manifest.get("versions", {}),
    }


def without_folders(data: str) -> str:
    """Return a dataset's name without the folders of this machine, for cards that others read.

    Args:
        data: The name, such as `folder:/home/me/images/birds`.

    Returns:
        The name with the last part of its path.

    >>> without_folders("folder:/home/me/images/birds"), without_folders("hf:me/birds")
    ('folder:birds', 'hf:me/birds')
    """
    kind, colon, path = data.rpartition(":")
    return f"{kind}{colon}{Path(path).name}" if kind in LOCAL or Path(path).is_absolute() else data


def _side(
    method: Method,
    task: Task,
    initial: State,
    shared: Params,
    store: PrivateStore,
    names: Names,
    client: int | None,
) -> Side:
    """The model of a client of a run, or the global one."""
    if client is None:
        nothing = torch.zeros(len(names.classes), dtype=torch.int64)
        return folded(method, task, initial, shared, None, None, nothing)
    held = names.clients[client].train
    counts = torch.tensor([int(held.get(name, 0)) for name in names.classes])
    private = None
    if initial.private:  # a client of pooled data has no tensors of its own
        private = store.load(0 if method.pools_data else client)
    return folded(method, task, initial, shared, client, private, counts)


def folded(
    method: Method,
    task: Task,
    initial: State,
    shared: Params,
    client: int | None,
    private: Params | None,
    counts: Tensor,
) -> Side:
    """Run a model's prompts through the text tower, for the last time.

    Args:
        method: The method.
        task: The task, with its text tower.
        initial: The state everybody began with.
        shared: The server's shared tensors.
        client: The client's number; None: the global model.
        private: The client's private tensors; None before its first round.
        counts: (C,) its own training images of each class.

    Returns:
        The model, which needs no text tower.

    Raises:
        MethodError: The method shares nothing, and the global model is asked for.
    """
    if client is None:
        if initial.private and not shared:
            raise MethodError("this method shares nothing, so that there is no global model")
        initial = State(initial.shared, method.of_nobody(shared, initial.private))
    state = client_state(
        method, task, initial, Server(shared), private, lambda: counts.to(task.device)
    )
    with torch.no_grad():
        text = method.encode({**state.shared, **state.private}, task)
    return Side(client, text, counts)
