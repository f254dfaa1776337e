"""Sites with images of their own, of some classes each, learn what one machine would."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Context, RecordDict

from focoop.config import to_flat
from focoop.errors import ConfigError, FederationError
from focoop.features import save_splits
from focoop.flower import inprocess
from focoop.flower.party import Party
from focoop.flower.records import Order
from focoop.runs import RunFolder
from focoop.split import make_split
from tests.flower.federations import CLIENTS, simulated, state, toy_config
from tests.toy_setting import CLASSES


def test_sites_with_their_own_files_give_the_simulators_bits(tmp_path: Path) -> None:
    wanted = toy_config(
        tmp_path, "method.name=focoop", "partition.kind=pathological", "partition.shots=0"
    )
    split = make_split(wanted)
    nodes = []
    for k in range(CLIENTS):
        own = {
            "train": split.train.select(split.train_index[k]),
            "test": split.test.select(split.test_index[k]),
        }
        held = sorted({CLASSES[label] for label in own["train"].labels.tolist()})
        assert len(held) < len(CLASSES)
        # A site numbers the classes it has, and knows of no others.
        own = {name: features.with_classes(held) for name, features in own.items()}
        save_splits(tmp_path / f"site{k}.safetensors", own)
        nodes.append({"data": f"file:{tmp_path}/site{k}.safetensors", "name": f"site {k}"})
    plain = simulated(wanted, tmp_path / "sim")
    said = "; ".join(CLASSES)
    # Nobody but the sites has images: the run's own dataset is gone.
    (tmp_path / "setting" / "id.safetensors").unlink()
    inprocess.run(wanted, tmp_path / "run", CLIENTS, nodes=nodes, classes=said)
    run = RunFolder.open(tmp_path / "run")
    assert state(run) == state(plain)
    for ours, theirs in zip(run.metrics(), plain.metrics(), strict=True):
        assert ours.get("loss") == theirs.get("loss")
        for mine, row in zip(ours["clients"], theirs["clients"], strict=True):
            for name in ("client", "num_test", "accuracy_own", "threshold", "ood"):
                assert mine[name] == row[name]
            assert mine["cross_alarm"] is None  # other sites' images are not here

    fewer = "; ".join(name for name in CLASSES if name != "cat")
    wanted = toy_config(tmp_path, "method.name=promptfl")
    with pytest.raises(FederationError, match="'cat'"):
        inprocess.run(wanted, tmp_path / "no", CLIENTS, nodes=nodes, classes=fewer, quorum=1.0)


def test_a_site_says_where_things_are(tmp_path: Path) -> None:
    wanted = toy_config(tmp_path, "method.name=promptfl")
    node = {"partition-id": 0, "num-partitions": 3, "name": "Utrecht", "device": "cuda"}
    flat = {**to_flat(wanted), "classes": "a; b"}
    with pytest.raises(ConfigError, match="Utrecht must bring its own images"):
        Party.of(Context(1, 1, node, RecordDict(), flat))
    node |= {"data": "folder:images", "state": str(tmp_path)}
    party = Party.of(Context(1, 1, node, RecordDict(), flat))
    assert party.classes == ("a", "b") and party.state == tmp_path
    assert party.config == wanted and party.places == {"device": "cuda"}


def test_noise_of_a_site_is_its_own_secret(tmp_path: Path) -> None:
    wanted = toy_config(tmp_path, "privacy.clip=1.0", "privacy.noise=1.0", "privacy.counts=noised")
    node = {"partition-id": 0, "num-partitions": 1, "data": "folder:images"}

    def party(state: str) -> Party:
        own = {**node, "state": str(tmp_path / state)}
        return Party.of(Context(1, 1, own, RecordDict(), to_flat(wanted)))

    def draws(state: str, order: Order, received: float) -> list[float]:
        generators = party(state).noise(order, {"a": torch.full((2,), received)})
        return [float(torch.rand((), generator=one)) for one in generators]

    order, later = Order(1, "0" * 16, ""), Order(2, "0" * 16, "")
    first = draws("a", order, 0.0)
    assert draws("a", order, 0.0) == first  # a round that is repeated as it was
    assert draws("b", order, 0.0)[0] != first[0] and draws("b", order, 0.0)[1] != first[1]
    for other in (draws("a", order, 1.0), draws("a", later, 0.0)):
        assert other[0] != first[0] and other[1] == first[1]
    assert (tmp_path / "a" / "secret").stat().st_mode & 0o077 == 0
    assert not party("a").reports  # exact accuracies would undo it
