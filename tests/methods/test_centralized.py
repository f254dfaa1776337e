"""Training on all images in one place: the same as one client that holds everything."""

import json
import math
from pathlib import Path

import pytest
import torch

from focoop.config import loading
from focoop.errors import ConfigError
from focoop.experiments.evaluation import open_state
from focoop.experiments.running import run_experiment
from focoop.methods import create
from focoop.methods.base import ClientUpdate, Server
from focoop.methods.centralized import Centralized
from focoop.runs import RunFolder, start
from focoop.runs.manifest import collect
from focoop.scenario.scenario import build_scenario
from focoop.seeds import torch_generator
from tests.methods.contract_toy import as_batch, federate, make_clients, make_task, same, spread
from tests.toy_setting import write_setting


def run(path: Path, setting: Path, *overrides: str) -> RunFolder:
    settings = loading.load(setting, list(overrides))
    with start(path, settings, collect(settings), resume=False) as folder:
        run_experiment(settings, folder)
        folder.finish("finished")
    return folder


@pytest.mark.parametrize("class_specific", [False, True])
def test_loss_is_cross_entropy_written_out(class_specific: bool) -> None:
    method = Centralized(Centralized.Config(context_tokens=2, class_specific=class_specific))
    task = make_task(method, dtype=torch.float64)
    params = {n: v.double() for n, v in method.init(task, torch_generator(0)).shared.items()}
    assert params["context"].shape == ((4, 2, 6) if class_specific else (2, 6))
    batch = as_batch(make_clients(method, task, spread([3, 4]))[0]())
    assert len(batch.labels) == 7
    features = task.encode(params["context"], task.id_names).tolist()
    slow = 0.0
    for image, label in zip(batch.pooled.tolist(), batch.labels.tolist(), strict=True):
        weights = [
            math.exp(task.logit_scale * sum(a * b for a, b in zip(image, row, strict=True)))
            for row in features
        ]
        slow -= math.log(weights[label] / sum(weights)) / 7
    loss = method.loss(params, method.encode(params, task), batch, task, {})
    assert float(loss) == pytest.approx(slow, rel=1e-12)


def test_the_server_takes_the_context_as_it_is() -> None:
    task = make_task(Centralized())
    shared = {"context": torch.randn(16, 6, generator=torch_generator(1))}
    update = ClientUpdate(0, shared, 5, torch.tensor([5, 0, 0, 0]), 0.0)
    server = Server({"context": torch.zeros(16, 6)})
    assert torch.equal(
        Centralized().aggregate(server, [update], task).shared["context"], shared["context"]
    )


def test_it_is_promptfl_with_one_client_that_holds_everything() -> None:
    task = make_task(Centralized())
    labels = [0, 1, 2, 3, 3, 2, 1, 0]
    pooled = federate(Centralized(), task, [labels])
    alone = federate(create("promptfl"), task, [labels])
    assert same(pooled.server.shared, alone.server.shared)


def test_all_clients_images_train_and_clients_are_tested_apart(tmp_path: Path) -> None:
    setting = write_setting(tmp_path / "setting", rounds=2)
    overrides = ["method.name=centralized", "federation.participation=0.5"]
    scenario = build_scenario(loading.load(setting, overrides))
    (party,) = scenario.training_clients()
    rows = sorted(party().pooled[:, 0].tolist())
    parts = [scenario.client(k).pooled[:, 0].tolist() for k in range(scenario.num_clients)]
    assert scenario.num_clients == 2 and rows == sorted(parts[0] + parts[1]) and len(rows) == 8
    folder = run(tmp_path / "run", setting, *overrides)
    line = folder.metrics()[-1]
    assert [row["client"] for row in line["clients"]] == [0, 1]
    assert len({row["accuracy_all"] for row in line["clients"]}) == 1  # one model
    assert [entry["participants"] for entry in folder.manifest["rounds"][1:]] == [[0], [0]]
    assert not (folder.path / "clients").exists()
    again = open_state(RunFolder.open(folder.path)).evaluate()
    assert json.loads(json.dumps(again.clients)) == line["clients"]


def test_how_images_are_divided_does_not_matter(tmp_path: Path) -> None:
    """All images of every class are used: the partition changes their order alone."""
    setting = write_setting(tmp_path / "setting", rounds=1)
    found = []
    for kind in ("pathological", "iid"):
        overrides = ["method.name=centralized", "partition.shots=0", f"partition.kind={kind}"]
        scenario = build_scenario(loading.load(setting, overrides))
        (party,) = scenario.training_clients()
        found.append(sorted(map(tuple, party().pooled[:, :3].tolist())))
    assert found[0] == found[1] and len(found[0]) == 32


@pytest.mark.parametrize(
    ("override", "told"),
    [("method.context_tokens=0", "least allowed is 1"), ("method.temperature=0", "more than 0")],
)
def test_settings_out_of_range_are_refused(override: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        loading.load(None, ["method.name=centralized", override])
