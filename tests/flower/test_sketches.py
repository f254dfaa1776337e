"""Calibration over a federation: the simulator's thresholds, and no sketch that may not leave."""

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

import focoop
from focoop.config import RunConfig, config_hash
from focoop.errors import DataError, FederationError, RunError
from focoop.features.lookup import FeatureSet, save_splits
from focoop.flower import in_process
from focoop.flower.records import CONFIG, GLOBAL, METRICS, STATS, Order, to_arrays
from focoop.flower.server.sketches import outsized
from focoop.flower.site import client_app
from focoop.flower.site.policy import Refusal
from focoop.flower.sketch_records import (
    SCORES,
    SKETCH,
    pool_content,
    read_arrays,
    read_pool,
    read_sketches,
    sketch_content,
    weights_of,
)
from focoop.methods import available, lookup
from focoop.predict import VERDICTS, FederationSketches, SiteSketches, Sketch, pooled
from focoop.runs import RunFolder
from focoop.scenario.assignment import make_split
from tests.flower.federations import CLIENTS, Tampered, federated, simulated, toy_config
from tests.toy_setting import CLASSES, images


def told(path: Path) -> FederationSketches:
    found = FederationSketches.read(path / "sketches.json")
    assert found is not None
    return found


def check_equal(wanted: RunConfig, folder: Path, private: bool) -> None:
    """Sketches over Flower give the thresholds of the simulator, to the bit."""
    federated(wanted, folder / "fl"), simulated(wanted, folder / "sim")
    for keep in (0.5, 0.8, 0.9):  # at 0.9 every client is too small, and uses the pool
        ours = focoop.calibrate(folder / "fl", keep=keep)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of small clients, at 0.9
            theirs = focoop.calibrate(folder / "sim", keep=keep)
        names = {"global"} if private else {"global", "0", "1", "2"}
        assert set(ours.sites) == names <= set(theirs.sites)
        for name, site in ours.sites.items():
            assert replace(site, measured={}) == Same(theirs.sites[name])
            small = name == "global" or keep == 0.9
            assert site.source == ("pool" if small else "own")
    model, sim = focoop.load_model(folder / "fl"), focoop.load_model(folder / "sim")
    features = make_split(wanted).test
    for client in model.keys:
        name = "global" if client is None else client
        assert model.decide(features, client=name) == sim.decide(features, client=name)


class Same:
    """Equal to a calibration of the same numbers; arrays are compared one by one."""

    def __init__(self, site: Any) -> None:
        self.site = site

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, type(self.site))
        pairs = [(getattr(other, n), getattr(self.site, n)) for n in ("scores", "class_scores")]
        plain = ("images", "source", "threshold", "class_threshold")
        return all(a.to_dict() == b.to_dict() for a, b in pairs) and all(
            getattr(other, name) == getattr(self.site, name) for name in plain
        )


def setting(folder: Path, *more: str) -> RunConfig:
    return toy_config(folder, "partition.kind=pathological", "federation.evaluate_every=0", *more)


@pytest.mark.slow
def test_thresholds_are_the_simulators(tmp_path: Path) -> None:
    check_equal(setting(tmp_path, "method.name=promptfl"), tmp_path, private=False)
    model = focoop.load_model(tmp_path / "fl", client=0)
    assert model.own_classes() == ("boat", "cat")
    assert model.holders("apple") == ("1",)  # another site's class, and whose


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "private"), [("focoop", True), ("focoop_plus", False), ("fedpgp", True)]
)
def test_thresholds_are_the_simulators_whatever_the_method(
    tmp_path: Path, method: str, private: bool
) -> None:
    # Tensors that stay at sites are not in a coordinator's run: it answers for all together.
    check_equal(setting(tmp_path, f"method.name={method}"), tmp_path, private)


@pytest.mark.slow
def test_a_method_that_shares_nothing_is_asked_at_the_sites(tmp_path: Path) -> None:
    federated(setting(tmp_path, "method.name=local_only"), tmp_path / "fl")
    with pytest.raises(RunError, match="ask the model that each site keeps"):
        focoop.load_model(tmp_path / "fl")


def a_reply(count: int = 70) -> RecordDict:
    """An honest answer of client 1 in round 2."""
    scores = np.linspace(-3.0, 2.0, count)
    pair = Sketch.of(scores), Sketch.of((scores + 3) / 5)
    return sketch_content(SiteSketches(count, pair, pair), torch.tensor([1, 2, 0, 4]), 1, 2)


def changed(content: RecordDict, name: str, change: Callable[[torch.Tensor], Any]) -> RecordDict:
    record = content[SCORES]
    assert isinstance(record, ArrayRecord)
    value = torch.from_numpy(record[name].numpy().copy())
    record[name] = to_arrays({name: change(value)})[name]
    return content


def put(place: int, value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor[place] = value
        return tensor

    return change


LIES: Mapping[str, Callable[[], RecordDict]] = {
    "not a number": lambda: changed(a_reply(), "own/scores/values", put(3, float("nan"))),
    "infinite": lambda: changed(a_reply(), "own/scores/values", put(63, float("inf"))),
    "falling": lambda: changed(a_reply(), "own/scores/values", put(0, 9.0)),
    "no probability": lambda: changed(a_reply(), "global/class/values", put(63, 1.5)),
    "weight": lambda: changed(a_reply(), "own/scores/weights", put(63, 10**6)),
    "negative weight": lambda: changed(a_reply(), "own/scores/weights", put(0, -1)),
    "wraps around": lambda: changed(a_reply(), "own/scores/weights", put(0, 2**62)),
    "float32": lambda: changed(a_reply(), "own/scores/values", lambda t: t.float()),
    "too long": lambda: changed(a_reply(), "own/scores/values", lambda t: t.repeat(99)),
    "a table": lambda: changed(a_reply(), "own/scores/values", lambda t: t[None]),
    "empty": lambda: changed(a_reply(), "own/scores/values", lambda t: t[:0]),
    "another round": lambda: sketch_content(SiteSketches(0), None, 1, 1),
    "another client": lambda: sketch_content(SiteSketches(0), None, 0, 2),
    "images of nothing": lambda: sketch_content(SiteSketches(5), None, 1, 2),
    "no images": lambda: sketch_content(replace(read(a_reply()), images=0), None, 1, 2),
    "fewer images": lambda: sketch_content(replace(read(a_reply()), images=69), None, 1, 2),
    "huge": lambda: sketch_content(replace(read(a_reply()), images=10**12), None, 1, 2),
    "half": lambda: RecordDict({n: v for n, v in a_reply().items() if n != METRICS}),
    "more": lambda: RecordDict({**a_reply(), "also": MetricRecord({"a": 1})}),
    "no arrays": lambda: RecordDict({**a_reply(), SCORES: ConfigRecord({"own": "x"})}),
    "counts": lambda: RecordDict({**a_reply(), STATS: to_arrays({"a": torch.zeros(1)})}),
    "negative": lambda: RecordDict(
        {**a_reply(), STATS: to_arrays({"class-counts": -torch.ones(4).long()})}
    ),
}


def read(content: RecordDict) -> SiteSketches:
    return read_sketches(content, 1, 2, 4)[0]


@pytest.mark.parametrize("lie", sorted(LIES))
def test_malformed_sketches_are_refused(lie: str) -> None:
    with pytest.raises(FederationError) as refused:
        read(LIES[lie]())
    assert len(str(refused.value)) < 200
    assert read(a_reply()).to_dict() == read(a_reply()).to_dict()


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200))
def test_an_honest_sketch_travels_to_the_bit(scores: list[float]) -> None:
    pair = Sketch.of(scores), Sketch.of(np.linspace(0, 1, len(scores)))
    assert np.array_equal(pair[0].weights, weights_of(len(scores)))
    site = SiteSketches(len(scores), pair, None)
    found, held = read_sketches(sketch_content(site, None, 1, 2), 1, 2, 4)
    assert held is None and found.to_dict() == site.to_dict()
    pool = SiteSketches(2 * len(scores), (pooled([pair[0]] * 2), pooled([pair[1]] * 2)), None)
    content = RecordDict(pool_content(pool, {1: ("ghent", [0, 3]), 2: ("lille", [])}))
    sent, who = read_pool(content, 3, 4)
    assert sent.to_dict() == pool.to_dict() and who == {1: ("ghent", (0, 3))}
    with pytest.raises(FederationError, match="classes that there are not"):
        read_pool(content, 3, 3)


def test_a_site_with_most_images_does_not_decide_alone() -> None:
    sites = {k: SiteSketches(10) for k in range(3)}
    assert outsized(sites, 20.0) == {}
    assert "21 times the median" in outsized({**sites, 3: SiteSketches(210)}, 20.0)[3]
    with pytest.raises(FederationError, match="not whole"):
        read_arrays(to_arrays({"own/scores/values": torch.zeros(2).double()}), 64)


@pytest.mark.slow
def test_a_dishonest_site_is_left_out_by_name(tmp_path: Path) -> None:
    def spoil(message: Message, reply: Message) -> Message:
        return Message(changed(reply.content, "own/scores/values", put(0, 1e9)), reply_to=message)

    wanted = setting(tmp_path, "method.name=promptfl")
    liar = Tampered(spoil, kind=SKETCH)
    federated(wanted, tmp_path / "fl", [client_app.app, liar, client_app.app])
    found = told(tmp_path / "fl")
    assert set(found.sites) == {0, 2} and list(found.left_out) == ["client 1"]
    assert "ascending" in found.left_out["client 1"]
    with pytest.warns(UserWarning, match="the pool is without client 1"):
        focoop.calibrate(tmp_path / "fl", keep=0.8)
    damaged = (tmp_path / "fl" / "sketches.json").read_text().replace('"round": 2', '"round": 1')
    (tmp_path / "fl" / "sketches.json").write_text(damaged)
    with pytest.raises(RunError, match="damaged"):
        focoop.calibrate(tmp_path / "fl")


def order_of(wanted: RunConfig, path: Path, shared: Mapping[str, torch.Tensor]) -> RecordDict:
    key = str(RunFolder.open(path).manifest["federation"])
    rounds = wanted.federation.rounds
    order = Order(rounds, key, config_hash(wanted))
    return RecordDict({GLOBAL: to_arrays(shared), CONFIG: order.record()})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "why"),
    [
        (("privacy.noise=0.5", "privacy.clip=1.0"), "have no noise"),
        (("privacy.secure_sum=true",), "are not summed"),
        (("privacy.counts=rounded",), "tells how many images"),
    ],
)
def test_nothing_leaves_that_the_runs_privacy_does_not_protect(
    tmp_path: Path, more: tuple[str, ...], why: str
) -> None:
    wanted = setting(tmp_path, "method.name=promptfl", *more)
    asked: list[str] = []

    def spy(message: Message, context: Context) -> Message:
        asked.append(message.metadata.message_type)
        return client_app.app(message, context)

    grid = in_process.run(wanted, tmp_path / "fl", CLIENTS, answers=[spy] * CLIENTS)
    found = told(tmp_path / "fl")
    assert not found.sites and not found.held and why in found.left_out["all sites"]
    assert SKETCH not in asked
    # A coordinator that asks all the same gets a refusal.
    shared = RunFolder.open(tmp_path / "fl").resume_point().shared  # type: ignore[union-attr]
    message = Message(order_of(wanted, tmp_path / "fl", shared), 1000, SKETCH)
    with pytest.raises(Refusal, match=why):
        client_app.app(message, grid.contexts[0])
    with pytest.raises(DataError, match=why):
        focoop.calibrate(tmp_path / "fl")
    assert focoop.load_model(tmp_path / "fl").holders("cat") == ()


class Sites:
    """Three sites with files of their own; the last has few calibration images."""

    def __init__(self, folder: Path, *policies: str, method: str = "focoop") -> None:
        self.folder = folder
        self.wanted = setting(folder, f"method.name={method}", "data.calibration=0.5")
        self.wanted = replace(
            self.wanted, partition=replace(self.wanted.partition, kind="given", shots=0)
        )
        self.nodes = []
        for k in range(CLIENTS):
            train = self.images(k, 40 if k < 2 else 12)
            save_splits(folder / f"{k}.safetensors", {"train": train, "test": self.images(k, 4)})
            policy = folder / f"{k}.toml"
            policy.write_text(f'folders = ["{folder}"]\n' + (policies or ("",) * CLIENTS)[k])
            node = {"data": f"file:{folder}/{k}.safetensors", "name": f"site {k}"}
            self.nodes.append({**node, "policy": str(policy), "state": str(folder / f"state-{k}")})

    def images(self, site: int, each: int) -> FeatureSet:
        """Of one class that no other site holds, and of one that all hold."""
        every = images(f"site {site} {each}", each)
        return every.drop_classes([n for n in CLASSES if n not in (CLASSES[site], CLASSES[3])])

    def run(self, name: str = "fl", **more: Any) -> in_process.InProcessGrid:
        said = "; ".join(CLASSES)
        nodes, out = self.nodes, self.folder / name
        return in_process.run(self.wanted, out, CLIENTS, nodes=nodes, classes=said, **more)

    def model(self, site: int) -> focoop.Model:
        return focoop.load_model(self.folder / f"state-{site}" / "model")


@pytest.mark.slow
def test_sites_keep_their_models_and_calibrate_with_own_images_and_the_pool(
    tmp_path: Path,
) -> None:
    sites = Sites(tmp_path, "holdings = true", "", "")
    sites.run()
    found = told(tmp_path / "fl")
    assert {k: site.images for k, site in found.sites.items()} == {0: 40, 1: 40, 2: 12}
    assert set(found.held) == {0}  # the others did not let it be told
    focoop.calibrate(tmp_path / "fl")
    run = focoop.load_model(tmp_path / "fl")
    assert run.sides == ("global",) and run.calibration is not None
    large, small = sites.model(0), sites.model(2)
    assert large.sides == ("site 0", "global") and large.client == 0
    for model, source in ((large, "own"), (small, "pool")):
        assert model.calibration is not None
        site = model.calibration.at(model.client)
        assert site is not None and site.source == source and site.threshold is not None
        both = model.calibration.at(None), run.calibration.at(None)
        assert both[0] is not None and both[0] == Same(both[1])  # the pool of the global model
    assert small.holders("apple") == ("site 0",) and small.holders("boat") == ()
    # The site's own model is the one that trained there: private tensors, its classes.
    assert small.own_classes() == ("cat", "drum")
    own = sites.images(2, 4)
    verdicts = [answer.verdict for answer in small.decide(own.with_classes(CLASSES))]
    assert set(verdicts) <= {"own", "other", "unknown"} and "own" in verdicts
    (path,) = (tmp_path / "state-2").glob("*/model-*")
    before = small.calibration.at(2)  # type: ignore[union-attr]
    with pytest.warns(UserWarning, match="it uses the threshold of all 100 images"):
        more = focoop.calibrate(path, images=sites.images(2, 4), client=2).at(2)
    assert before is not None and more is not None
    assert (before.scores.count, more.scores.count) == (92, 100)
    more = focoop.calibrate(path, images=sites.images(2, 30), client=2).at(2)
    assert more is not None and (more.source, more.images) == ("own", 60)


@pytest.mark.slow
def test_a_site_decides_what_it_tells_and_tells_it_once(tmp_path: Path) -> None:
    policies = "", "sketches = false", "least_images = 13\naccuracies = true"
    sites = Sites(tmp_path, *policies)
    grid = sites.run()
    found = told(tmp_path / "fl")
    assert set(found.sites) == {0} and not found.held
    assert found.left_out["site 1"] == "policy: sketches of calibration scores stay at this site"
    assert found.left_out["site 2"] == (
        "policy: it has 12 calibration images, and tells nothing of fewer than 13 (least_images)"
    )
    assert sites.model(1).calibration is not None  # it has images enough of its own
    shared = RunFolder.open(tmp_path / "fl").resume_point().shared  # type: ignore[union-attr]
    again = ask(sites, grid, shared)
    assert read_sketches(again.content, 0, 2, 4)[0].to_dict() == found.sites[0].to_dict()
    other = {name: value + value.is_floating_point() for name, value in shared.items()}
    assert "of other tensors" in ask(sites, grid, other).error.reason
    early = order_of(sites.wanted, tmp_path / "fl", shared)
    record = early[CONFIG]
    assert isinstance(record, ConfigRecord)
    record["round"] = 1
    refused = client_app.app(Message(early, 1000, SKETCH), grid.contexts[0])
    assert "round 1 is not the last" in refused.error.reason
    (kept,) = (tmp_path / "state-0").glob("*/sketches/*.json")
    kept.write_text(kept.read_text().replace('"images": 40', '"images": 41'))
    assert "cannot tell which sketches" in ask(sites, grid, shared).error.reason
    kept.write_text(json.dumps([]))
    assert ask(sites, grid, shared).has_error()


def ask(
    sites: Sites, grid: in_process.InProcessGrid, shared: Mapping[str, torch.Tensor]
) -> Message:
    """What site 0 answers to a coordinator that asks for sketches once more."""
    content = order_of(sites.wanted, sites.folder / "fl", shared)
    return client_app.app(Message(content, 1000, SKETCH), grid.contexts[0])


@pytest.mark.slow
def test_a_site_refuses_a_pool_that_is_none(tmp_path: Path) -> None:
    sites, errors = Sites(tmp_path), []

    def hostile(message: Message, context: Context) -> Message:
        if message.metadata.message_type.endswith(".keep"):
            message.content["pool"] = to_arrays({"own/scores/values": torch.zeros(3)})
            reply = client_app.app(message, context)
            errors.append(reply.error.reason)
            return reply
        return client_app.app(message, context)

    sites.run(answers=[hostile, client_app.app, client_app.app])
    assert errors == ["the sketches are not whole"]
    assert not list((tmp_path / "state-0").glob("*/model-*")) and sites.model(1) is not None
    assert RunFolder.open(tmp_path / "fl").status == "finished"


@pytest.mark.parametrize("method", [name for name in available() if lookup(name).revision > 1])
def test_a_site_can_ask_the_model_it_kept_whatever_the_methods_revision(
    tmp_path: Path, method: str
) -> None:
    sites = Sites(tmp_path, method=method)
    sites.run()
    for k in range(CLIENTS):
        answers = sites.model(k).decide(sites.images(k, 4).with_classes(CLASSES))
        assert len(answers) == 8 and {answer.verdict for answer in answers} <= set(VERDICTS)


def test_a_sites_model_is_that_of_its_last_run(tmp_path: Path) -> None:
    sites = Sites(tmp_path, method="fedncm")
    for name in ("first", "second"):
        sites.run(name)
        run = RunFolder.open(tmp_path / name).manifest["federation"]
        assert [sites.model(k).facts.origin["run"] for k in range(CLIENTS)] == [run] * CLIENTS
    assert len(list((tmp_path / "state-0").glob("*/model-*"))) == 2  # the earlier one is kept
