"""Whole runs on the packaged features: bits, threads, resume points and memory."""

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.memory import peak
from focoop.config import loading
from focoop.experiments.evaluation import open_state
from focoop.experiments.naming import describe_partition
from focoop.experiments.running import run_experiment
from focoop.runs import TIMED, RunFolder, start
from focoop.runs.manifest import collect
from tests.toy_setting import write_setting

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
# Two of ten clients with twenty images each: a round in a few seconds.
SMALL = (
    "partition.shots=2",
    "federation.participation=0.2",
    "federation.rounds=1",
    "federation.evaluate_every=0",
    "data.corrupted=[]",
    'data.ood=["demo:dtd_32px"]',
)


def run(path: Path, *overrides: str) -> RunFolder:
    settings = loading.load(None, [*SMALL, *overrides])
    with start(path, settings, collect(settings), resume=False) as folder:
        run_experiment(settings, folder)
        folder.finish("finished")
    return folder


def results(folder: RunFolder) -> dict[str, bytes]:
    """All files of a run but those that hold times."""
    paths = [path for path in folder.path.rglob("*") if path.is_file()]
    names = {str(path.relative_to(folder.path)): path.read_bytes() for path in paths}
    return {n: content for n, content in names.items() if n not in TIMED}


@pytest.mark.slow
def test_same_seed_same_bits_with_any_number_of_threads(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(results(run(tmp_path / str(threads), "method.name=focoop")))
    finally:
        torch.set_num_threads(before)
    # Configuration, names, metrics, state, the state of the round before, and two clients.
    assert len(found[0]) == 5 + 2
    assert found[0] == found[1]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tmp_path_factory.mktemp("finished") / "run", "method.name=promptfl")


def test_another_seed_gives_another_run(finished: RunFolder, tmp_path: Path) -> None:
    assert finished.config.seed == 0
    assert run(tmp_path / "1", "method.name=promptfl", "seed=1").metrics() != finished.metrics()


@pytest.mark.slow
def test_the_paper_to_the_letter_runs(tmp_path: Path) -> None:
    letter = loading.load(CONFIGS / "methods" / "focoop-paper.toml").method.settings
    settings = [f"method.{one.name}={getattr(letter, one.name)}" for one in fields(letter)]
    settings = [text.replace("True", "true").replace("False", "false") for text in settings]
    folder = run(
        tmp_path / "run",
        *settings,
        "federation.epochs=1",
        "method.id_steps=1",
        "method.ood_steps=1",
        "negatives.count=10",
    )
    line = folder.metrics()[-1]
    assert line["loss"] > 0 and line["server"]["transport_gap"] >= 0


def test_evaluating_again_gives_the_committed_line(finished: RunFolder) -> None:
    again = open_state(RunFolder.open(finished.path)).evaluate()
    line = finished.metrics()[-1]
    assert {name: line[name] for name in again.summary} == json.loads(json.dumps(again.summary))
    assert line["clients"] == json.loads(json.dumps(again.clients))


def test_zero_shot_has_no_rounds(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", "method.name=zeroshot", "federation.rounds=9")
    assert folder.last_round() == 0
    assert folder.metrics()[-1]["accuracy_own"] == pytest.approx(0.2765)  # of the packed images


def test_validation_images_come_from_training_and_are_not_trained_on() -> None:
    plain = describe_partition(loading.load(None, ["partition.shots=0"]))
    tuning = describe_partition(loading.load(None, ["partition.shots=0", "data.validation=5"]))
    assert tuning.test.sum() == 5 * 100
    assert tuning.train.sum() + tuning.test.sum() == plain.train.sum() == 16 * 100
    assert ((tuning.train > 0) == (tuning.test > 0)).all()  # a client is tested on its classes


def test_train_and_test_share_one_class_by_client_matrix() -> None:
    view = describe_partition(loading.load(None, ["partition.kind=pathological"]))
    assert ((view.train > 0) == (view.test > 0)).all()
    assert (view.train.sum(0) == 8).all() and (view.test.sum(0) == 20).all()


def test_shots_are_a_limit_and_repeats_are_asked_for() -> None:
    skewed = ("partition.kind=dirichlet", "partition.alpha=0.5")
    every = describe_partition(loading.load(None, [*skewed, "partition.shots=0"]))
    view = describe_partition(loading.load(None, [*skewed, "partition.shots=8"]))
    assert (view.train == every.train.clip(max=8)).all() and view.repeated == 0
    filled = describe_partition(
        loading.load(None, [*skewed, "partition.shots=8", "partition.repeats=true"])
    )
    assert (filled.train == np.where(every.train > 0, 8, 0)).all()
    assert filled.repeated == filled.train.sum() - view.train.sum() > 0


@pytest.mark.filterwarnings("ignore:no training images at 1 of 3 clients")
@pytest.mark.parametrize("method", ["promptfl", "focoop"])
def test_clients_of_all_sizes_train_as_one_batch(method: str, tmp_path: Path) -> None:
    # One round: FOCoOp's OOD prompts spread rounding fiftyfold in each further one.
    setting = write_setting(tmp_path, rounds=1, data="[negatives]\ncount = 4\n")
    skewed = ["partition.kind=dirichlet", "partition.clients=3", "partition.alpha=0.3"]
    shared, sizes = [], []
    for together in (1, 10):
        config = loading.load(
            setting,
            [
                *skewed,
                "partition.shots=5",
                f"method.name={method}",
                f"federation.together={together}",
            ],
        )
        with start(tmp_path / str(together), config, collect(config), resume=False) as folder:
            run_experiment(config, folder)
            point = folder.resume_point()
            assert point is not None
            shared.append(point.shared)
            assert folder.names is not None
            sizes.append([sum(client.train.values()) for client in folder.names.clients])
    assert sizes[0] == sizes[1] and len(set(sizes[0])) == 3
    for name, value in shared[0].items():
        torch.testing.assert_close(shared[1][name], value, rtol=0, atol=1e-3)


@pytest.mark.slow
def test_a_hundred_clients_cost_little_more_memory_than_ten() -> None:
    assert peak(100, 0.1) <= 1.3 * peak(10, 1.0)
