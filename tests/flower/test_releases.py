"""Releases under noise: a server that asks twice, or after a change of data, learns nothing."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import ArrayRecord, Context, Message, RecordDict

from focoop.config.schema import RunConfig
from focoop.config.writing import config_hash, to_flat
from focoop.errors import FederationError
from focoop.features.lookup import save_splits
from focoop.federation.updates.differential_privacy import Privacy, clip_change, composed
from focoop.flower import in_process
from focoop.flower.records import UPDATE, Order
from focoop.flower.server.spares import Draw, secret_seed
from focoop.flower.site import client_app
from focoop.flower.site.client import SiteClient
from focoop.flower.site.policy import Refusal
from focoop.flower.site.privacy_summary import privacy_facts, privacy_sentences
from focoop.flower.site.releases import LEDGER, Releases, spent
from focoop.methods.base import ClientUpdate, Params
from focoop.runs import RunFolder, dump, read, write
from focoop.scenario.assignment import make_split
from focoop.scenario.schedule import client_privacy
from focoop.seeds import torch_generator
from tests.flower.federations import CLIENTS, opened, toy_config
from tests.toy_setting import CLASSES

KEY = "0123456789abcdef"
NUMBERS = 4000


def noised(folder: Path, *overrides: str) -> RunConfig:
    return toy_config(folder, "privacy.clip=1.0", "method.name=promptfl", *overrides)


class Site:
    """A site that trains as it is told to, and releases what comes of it."""

    def __init__(self, state: Path, data: str = "folder:images", policy: str = "") -> None:
        self.state, self.data, self.policy = state, data, policy
        self.received = {"a": torch.randn(NUMBERS, generator=torch_generator(0, "received"))}

    def update(self, change: int = 0, counts: tuple[int, ...] = (11, 0, 12)) -> ClientUpdate:
        """What training gives; another `change` stands for other images."""
        moved = torch.randn(NUMBERS, generator=torch_generator(change, "change"))
        shared = {"a": self.received["a"] + moved}
        return ClientUpdate(0, shared, sum(counts), torch.tensor(counts), 0.7)

    def ask(
        self,
        config: RunConfig,
        update: ClientUpdate,
        round_index: int = 1,
        key: str = KEY,
        received: Params | None = None,
    ) -> ClientUpdate:
        node = {"partition-id": 0, "num-partitions": 1, "data": self.data, "state": str(self.state)}
        node["policy"] = self.policy or opened(self.state.parent)
        party = SiteClient.of(Context(1, 1, node, RecordDict(), to_flat(config)))
        privacy = client_privacy(config)
        assert privacy is not None
        order = Order(round_index, key, config_hash(config))
        return party.release(privacy, order, update, received or self.received)


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.cosine_similarity(one.double(), other.double(), dim=0))


# Unrelated vectors of NUMBERS entries have cosines of deviation 0.016.
NOTHING = 0.08


def test_two_noises_do_not_cancel(tmp_path: Path) -> None:
    """Once (8 x the release of noise 4 - 4 x that of noise 8) / 4 was the clipped change."""
    site, weak, strong = (
        Site(tmp_path / "a"),
        *(noised(tmp_path, f"privacy.noise={z}") for z in (4.0, 8.0)),
    )
    update = site.update()
    secret = clip_change(update.shared, site.received, 1.0)["a"] - site.received["a"]
    first = site.ask(weak, update)
    with pytest.raises(FederationError, match="under other settings"):
        site.ask(strong, update)
    # A new federation is a new release, with noise of its own.
    second = site.ask(strong, update, key="f" * 16)
    a, b = (one.shared["a"] - site.received["a"] for one in (first, second))
    assert abs(cosine((8 * a - 4 * b) / 4, secret)) < NOTHING
    assert abs(cosine(a - secret, b - secret)) < NOTHING
    seeded = [Site(tmp_path / "study", data="").ask(one, update) for one in (weak, strong)]
    a, b = (one.shared["a"] - site.received["a"] for one in seeded)  # the attack as it was
    assert cosine((8 * a - 4 * b) / 4, secret) > 0.999


def test_a_mended_image_and_a_resumed_round_tell_nothing(tmp_path: Path) -> None:
    site, config = Site(tmp_path / "a"), noised(tmp_path, "privacy.noise=2.0")
    before, after = site.update(0), site.update(1)
    first = site.ask(config, before)
    again = site.ask(config, after)  # the round is repeated, on other images
    assert torch.equal(first.shared["a"], again.shared["a"])
    assert torch.equal(first.class_counts, again.class_counts)
    assert math.isnan(again.loss)
    # Where the kept release is gone, the noise is another one.
    Releases(site.state, KEY, 0).path.unlink()
    third = site.ask(config, after)
    secret = clip_change(after.shared, site.received, 1.0)["a"]
    secret = secret - clip_change(before.shared, site.received, 1.0)["a"]
    assert abs(cosine(third.shared["a"] - first.shared["a"], secret)) < NOTHING


def test_a_round_is_answered_once(tmp_path: Path) -> None:
    site, config = Site(tmp_path / "a"), noised(tmp_path, "privacy.noise=2.0")
    site.ask(config, site.update(), 1)
    site.ask(config, site.update(), 2)
    other = {"a": site.received["a"] + 1}
    with pytest.raises(FederationError, match="answered round 2 for other prompts"):
        site.ask(config, site.update(), 2, received=other)
    with pytest.raises(FederationError, match="round 1 is over"):
        site.ask(config, site.update(), 1)
    assert len((site.state / LEDGER).read_text().splitlines()) == 2
    count, bound = spent(site.state, 1e-5)
    assert (count, bound) == (2, Privacy(clip=1, noise=2.0).spent(2, 2, 1.0)["epsilon"])
    facts = privacy_facts(site.state)
    assert (facts["released"], facts["epsilon"], facts["peers"]) == (2, bound, {})
    assert privacy_sentences(facts)[0].startswith("2 noised updates released in all runs")
    site.ask(config, site.update(), 1, key="f" * 16)  # other runs count too
    assert spent(site.state, 1e-5)[1] > bound
    Releases(site.state, KEY, 0).path.write_bytes(b"torn")
    with pytest.raises(FederationError, match="is damaged"):
        site.ask(config, site.update(), 3)


def test_releases_of_other_versions_of_focoop(tmp_path: Path) -> None:
    site, config = Site(tmp_path / "a"), noised(tmp_path, "privacy.noise=2.0")
    kept = site.ask(config, site.update(), 1)
    path = Releases(site.state, KEY, 0).path
    tensors, about = read(path)
    earlier = {key: value for key, value in about.items() if key not in ("format", "sum")}
    write(path, dump(tensors, earlier))
    again = site.ask(config, site.update(), 1)  # the answer that was given, not a second one
    assert torch.equal(again.shared["a"], kept.shared["a"])
    write(path, dump(tensors, {**earlier, "format": "2"}))
    with pytest.raises(FederationError, match="made by a newer focoop .format 2; .* up to 1"):
        site.ask(config, site.update(), 1)


def test_a_site_stops_at_its_own_epsilon(tmp_path: Path) -> None:
    """A server that asks in run after run gets as many releases as the site can afford."""
    file, config = tmp_path / "policy.toml", noised(tmp_path, "privacy.noise=8.0")
    file.write_text(f'folders = ["{tmp_path}"]\n[privacy]\nepsilon_at_most = 5.0\n')
    site = Site(tmp_path / "a", policy=str(file))
    given = 0
    with pytest.raises(Refusal, match="epsilon to .* and 5 is the most"):
        for run in range(100):
            site.ask(config, site.update(), key=f"{run:016x}")
            given += 1
    assert spent(site.state, 1e-5)[1] <= 5.0
    assert composed([8.0] * (given + 1), 1e-5) > 5.0
    site.ask(config, site.update(), key=f"{given - 1:016x}")  # the last answer again is free
    with pytest.raises(Refusal, match=r"privacy\.noise is off"):
        site.ask(noised(tmp_path, "privacy.counts=noised"), site.update())


def test_noised_counts_are_drawn_once_whatever_the_data_becomes(tmp_path: Path) -> None:
    site = Site(tmp_path / "a")
    config = noised(tmp_path, "privacy.counts=noised", "privacy.count_noise=30.0")
    first = site.ask(config, site.update(counts=(200, 0, 100)), 1)
    later = site.ask(config, site.update(counts=(201, 0, 99)), 2)
    assert first.class_counts.tolist() == later.class_counts.tolist() != [200, 0, 100]
    assert later.num_examples == int(later.class_counts.sum())
    # Without noise on the tensors nothing bounds what they tell.
    assert spent(site.state, 1e-5) == (2, math.inf)
    assert "no bound" in privacy_sentences(privacy_facts(site.state))[0]
    fresh = site.ask(config, site.update(counts=(200, 0, 100)), 1, key="f" * 16)
    assert fresh.class_counts.tolist() != first.class_counts.tolist()


def own_sites(folder: Path, wanted: RunConfig) -> list[dict[str, str]]:
    """Each client's images in a file of its own."""
    split, nodes = make_split(wanted), []
    for k in range(CLIENTS):
        parts = {
            "train": split.train.select(split.train_index[k]),
            "test": split.test.select(split.test_index[k]),
        }
        save_splits(folder / f"site{k}.safetensors", parts)
        nodes.append({"data": f"file:{folder}/site{k}.safetensors", "policy": opened(folder)})
    return nodes


def test_a_resumed_run_gets_the_releases_it_had(tmp_path: Path) -> None:
    settings = ("privacy.noise=0.5", "federation.rounds=2", "federation.evaluate_every=0")
    wanted = noised(tmp_path, *settings)
    nodes = own_sites(tmp_path, wanted)
    sent: dict[tuple[int, int], list[bytes]] = {}
    broken = {2}

    def site(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        kind, content = message.metadata.message_type, message.content
        about = content["config"]["round"] if kind == "train" else 0  # type: ignore[index]
        if kind == "train" and about == 2 and client in broken:
            raise RuntimeError("power cut")
        reply = client_app.app(message, context)
        if kind == "train":
            record = reply.content[UPDATE]
            assert isinstance(record, ArrayRecord)
            sent.setdefault((client, int(about)), []).append(record["context"].data)  # type: ignore[call-overload]
        return reply

    given = {"nodes": nodes, "classes": "; ".join(CLASSES), "answers": [site] * CLIENTS}
    with pytest.raises(FederationError, match="round 2 has 2 updates of 3 needed"):
        in_process.run(wanted, tmp_path / "run", CLIENTS, quorum=1.0, **given)  # type: ignore[arg-type]
    broken.clear()
    in_process.run(wanted, tmp_path / "run", CLIENTS, resume=True, **given)  # type: ignore[arg-type]
    assert RunFolder.open(tmp_path / "run").last_round() == 2
    for (client, round_index), answers in sent.items():
        assert len(answers) == (2 if round_index == 2 and client != 2 else 1)
        assert len(set(answers)) == 1
    ledger = (tmp_path / "run-clients" / LEDGER).read_text().splitlines()
    told = Counter((one["client"], one["round"]) for one in map(json.loads, ledger))
    assert told == {(k, r): 1 for k in range(CLIENTS) for r in (1, 2)}


def test_a_secret_draw_is_the_runs_own_and_kept(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    seeds = [secret_seed(tmp_path / name) for name in ("a", "b", "a")]
    assert seeds[0] == seeds[2] != seeds[1]
    assert (tmp_path / "a" / "draw.secret").stat().st_mode & 0o077 == 0
    drawn = [[Draw(50, 0.1, 0.0, seed).clients(r)[0] for r in (1, 2, 3)] for seed in seeds]
    assert drawn[0] == drawn[2] != drawn[1]
    assert Draw(10, 0.05, 0.0, seeds[0]).turns(4)[2] == 0.1
    assert Draw(10, 0.1, 1.0, seeds[0]).turns(4)[2] == 0.2  # a spare's release reached the server
    (tmp_path / "b" / "draw.secret").write_text("")
    with pytest.raises(FederationError, match="is damaged"):
        secret_seed(tmp_path / "b")


def test_a_run_draws_its_clients_secretly_and_tells_epsilon_outside(tmp_path: Path) -> None:
    wanted = noised(
        tmp_path,
        "privacy.noise=8.0",
        "privacy.secret_draw=true",
        "federation.participation=0.4",
        "federation.rounds=4",
        "federation.evaluate_every=0",
    )
    in_process.run(wanted, tmp_path / "run", CLIENTS)
    run = RunFolder.open(tmp_path / "run")
    drawn = Draw(CLIENTS, 0.4, 0.0, secret_seed(tmp_path / "run"))
    entries = run.manifest["rounds"][1:]
    assert [one["participants"] for one in entries] == [drawn.clients(r)[0] for r in range(1, 5)]
    privacy = client_privacy(wanted)
    assert privacy is not None
    told = entries[-1]["server"]
    assert told == privacy.spent(*drawn.turns(4)) and told["epsilon_outside"] <= told["epsilon"]
    assert drawn.turns(4)[2] == 1 / CLIENTS  # one of three, not 0.4
