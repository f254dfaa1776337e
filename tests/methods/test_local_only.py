"""Local training: its loss, what travels (nothing) and whole runs that share nothing."""

import json
import math
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from focoop.config import loading
from focoop.errors import ConfigError
from focoop.experiments.evaluation import open_state
from focoop.experiments.running import run_to_end
from focoop.federation.client import train
from focoop.federation.rounds import aggregate
from focoop.methods.base import ClientUpdate, Server, State
from focoop.methods.local_only import LocalOnly
from focoop.runs import RunFolder, start
from focoop.runs.manifest import collect
from focoop.seeds import torch_generator
from focoop.tracking import RoundEvent, as_hooks
from tests.methods.contract_toy import (
    LOCAL,
    SEED,
    as_batch,
    federate,
    make_clients,
    make_task,
    spread,
)
from tests.toy_setting import write_setting


def run(path: Path, setting: Path, *overrides: str, stop_after: int | None = None) -> RunFolder:
    """A run in `path`, continued where it is; `stop_after` kills it after that round's commit."""
    settings = loading.load(setting, ["method.name=local_only", *overrides])

    def on_round(event: RoundEvent) -> None:
        if event.round == stop_after:
            raise KeyboardInterrupt

    folder = start(path, settings, collect(settings), resume=path.exists())
    with suppress(KeyboardInterrupt):
        run_to_end(settings, folder, as_hooks(on_round))
    return RunFolder.open(path)


@pytest.mark.parametrize("class_specific", [False, True])
def test_loss_is_cross_entropy_written_out(class_specific: bool) -> None:
    method = LocalOnly(LocalOnly.Config(context_tokens=3, class_specific=class_specific))
    task = make_task(method, dtype=torch.float64)
    state = method.init(task, torch_generator(0))
    assert state.shared == {}
    assert state.private["context"].shape == ((4, 3, 6) if class_specific else (3, 6))
    params = {"context": state.private["context"].double()}
    batch = as_batch(make_clients(method, task, spread([7]))[0]())
    features = task.encode(params["context"], task.id_names).tolist()
    slow = []
    for image, label in zip(batch.pooled.tolist(), batch.labels.tolist(), strict=True):
        weights = [
            math.exp(task.logit_scale * sum(a * b for a, b in zip(image, row, strict=True)))
            for row in features
        ]
        slow.append(-math.log(weights[label] / sum(weights)))
    loss = method.loss(params, method.encode(params, task), batch, task, {})
    assert float(loss) == pytest.approx(sum(slow) / len(slow), rel=1e-12)


def test_clients_never_meet() -> None:
    """Each of three clients ends where it ends when it is trained by itself, bit by bit."""
    method = LocalOnly()
    task = make_task(method)
    outcome = federate(method, task, spread([6, 5, 4]), rounds=2)
    for client, data in enumerate(outcome.clients):
        state = State({}, outcome.initial.private)
        for round_index in (1, 2):
            generator = torch_generator(SEED, "train", round_index, client)
            state, _ = train(method, state, data(), task, LOCAL, generator)
        assert torch.equal(outcome.store.params[client]["context"], state.private["context"])
    assert outcome.rounds[-1].bytes_down == 0
    assert outcome.rounds[-1].bytes_up == 3 * 4 * 8  # class counts alone, four int64 each


def test_the_server_step_of_nothing_is_nothing() -> None:
    task = make_task(LocalOnly())
    updates = [ClientUpdate(k, {}, 3, torch.ones(4, dtype=torch.int64), 0.0) for k in (1, 0)]
    assert aggregate(LocalOnly(), Server({}), updates, task).shared == {}


def test_score_is_mcm() -> None:
    method = LocalOnly(LocalOnly.Config(temperature=0.5))
    outcome = federate(method, make_task(method), spread([4]), rounds=0)
    logits, score = outcome.answers(0, outcome.images([0, 1, -1], "mcm"))
    largest = [
        max(math.exp(x / 0.5) for x in row) / sum(math.exp(x / 0.5) for x in row)
        for row in logits.double().tolist()
    ]
    assert score.tolist() == pytest.approx([-math.log(p) for p in largest], rel=1e-6)


def test_a_killed_run_goes_on_to_the_same_files(tmp_path: Path) -> None:
    setting = write_setting(tmp_path / "setting", rounds=3)
    whole = run(tmp_path / "whole", setting)
    assert run(tmp_path / "stopped", setting, stop_after=2).last_round() == 2
    resumed = run(tmp_path / "stopped", setting)
    assert resumed.status == whole.status == "finished" and resumed.last_round() == 3
    committed = whole.resume_point()
    assert committed is not None and committed.shared == committed.memory == {}
    names = ["metrics.jsonl", "state.safetensors"]
    names += [f"clients/{k:04d}/round-0003.safetensors" for k in (0, 1)]
    for name in names:
        assert (whole.path / name).read_bytes() == (resumed.path / name).read_bytes(), name
    assert whole.manifest["rounds"][-1]["bytes_down"] == 0
    again = open_state(RunFolder.open(whole.path)).evaluate()
    assert json.loads(json.dumps(again.clients)) == whole.metrics()[-1]["clients"]


@pytest.mark.parametrize(
    ("override", "told"),
    [("method.context_tokens=0", "least allowed is 1"), ("method.temperature=0", "more than 0")],
)
def test_settings_out_of_range_are_refused(override: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        loading.load(None, ["method.name=local_only", override])
