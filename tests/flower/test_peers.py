"""A server that cheats in a secure sum: swapped keys, invented clients, sums of two, old keys."""

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from focoop.config.schema import RunConfig
from focoop.errors import ConfigError, FederationError
from focoop.flower import in_process
from focoop.flower.deploy.enrolment import key_print
from focoop.flower.deploy.keys import make_keys, make_site_key
from focoop.flower.identity import read_site, sign
from focoop.flower.masking import Masker
from focoop.flower.site import client_app
from focoop.flower.site.peers import accept, peers_file, read_peers
from focoop.flower.site.policy import Policy
from focoop.flower.site.privacy_summary import privacy_facts, privacy_sentences
from focoop.flower.sum_records import SUM, to_record
from focoop.runs import RunFolder
from tests.flower.federations import CLIENTS, Answer, simulated, state, toy_config

NAMES = ("ghent", "lille", "utrecht")
SECURE = (
    "method.name=promptfl",
    "federation.rounds=1",
    "federation.evaluate_every=0",
    "privacy.secure_sum=true",
)
Change = Callable[[dict[str, object], Message], None]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys of three sites."""
    folder = tmp_path_factory.mktemp("federation") / "keys"
    make_keys(folder, ["127.0.0.1"], NAMES)
    return folder


def site_of(keys: Path, client: int) -> Path:
    return keys / "sites" / NAMES[client]


def run(
    tmp_path: Path,
    keys: Path,
    victim: Answer = client_app.app,
    *,
    wanted: RunConfig | None = None,
    **node: object,
) -> RunFolder:
    """Three sites with keys, of which client 0 answers by `victim`."""
    nodes = [{"keys": str(site_of(keys, k))} for k in range(CLIENTS)]
    nodes[0] |= node  # type: ignore[operator]
    answers = [victim, *[client_app.app] * (CLIENTS - 1)]
    told = {"keys": str(keys), "sites": CLIENTS, "quorum": 1.0}
    wanted = wanted or toy_config(tmp_path, *SECURE)
    in_process.run(wanted, tmp_path / "run", CLIENTS, nodes=nodes, answers=answers, **told)  # type: ignore[arg-type]
    return RunFolder.open(tmp_path / "run")


def hostile_server(step: str, change: Change) -> Answer:
    """Client 0, whose messages of one step the server has changed."""

    def app(message: Message, context: Context) -> Message:
        if message.metadata.message_type != step:
            return client_app.app(message, context)
        record = message.content[SUM]
        assert isinstance(record, ConfigRecord)
        told: dict[str, object] = dict(record.items())
        change(told, message)
        content = RecordDict(dict(message.content.items()))
        content[SUM] = ConfigRecord(told)  # type: ignore[arg-type]
        asked = Message(content, message.metadata.dst_node_id, step)
        reply = client_app.app(asked, context)
        return Message(reply.content, reply_to=message)

    return app


def test_sites_that_sign_their_keys_give_the_simulators_bits(tmp_path: Path, keys: Path) -> None:
    wanted = toy_config(tmp_path, *SECURE)
    found = run(tmp_path, keys, wanted=wanted)
    assert state(found) == state(simulated(wanted, tmp_path / "sim"))
    known, closed = read_peers(peers_file(tmp_path / "run-clients", site_of(keys, 0)))
    assert not closed
    for client, public in known.items():
        assert key_print(public) == key_print(read_site(site_of(keys, client)).public)
    assert sorted(known) == [0, 1, 2]
    facts = privacy_facts(tmp_path / "run-clients")
    (marks,) = facts["peers"].values()
    assert marks["1"] == key_print(read_site(site_of(keys, 1)).public)
    (line,) = privacy_sentences(facts)
    assert f"client 1: {marks['1']}" in line


def without_utrecht(told: dict[str, object], _: Message) -> None:
    for name in [name for name in told if name.endswith("/2")]:
        del told[name]


def swapped_key(told: dict[str, object], _: Message) -> None:
    """The server puts a key of its own where lille's was."""
    told["mask/1"] = Masker(1, 3).keys().mask


def invented_site(told: dict[str, object], message: Message) -> None:
    """Everything of lille is the server's: identity, keys and signature."""
    folder = Path(str(told.pop("folder")))
    make_site_key(folder, "lille")
    order, mine = message.content["config"], Masker(1, 3).keys()
    assert isinstance(order, ConfigRecord)
    about = "/".join(str(order[name]) for name in ("key", "config-hash", "round"))
    signature = sign(folder, mine.claim(f"{about}/{told['attempt']}", 1))
    told |= {**to_record({1: mine.signed(signature)})}
    told["identity/1"] = (folder / "key.pub").read_bytes()


def same_site_twice(told: dict[str, object], _: Message) -> None:
    for name in ("mask", "channel", "commitment", "signature", "identity"):
        told[f"{name}/2"] = told[f"{name}/1"]


def nobodys_keys(told: dict[str, object], _: Message) -> None:
    for client in range(3):
        del told[f"identity/{client}"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without_utrecht, "2 clients sent keys, and this one takes part in secure sums of 3"),
        (swapped_key, "keys of client 1 are not signed by its site"),
        (same_site_twice, "two clients of the sum have the same key"),
        (nobodys_keys, "does not say whose keys these are"),
    ],
)
def test_a_server_that_cheats_gets_no_shares(
    tmp_path: Path, keys: Path, change: Change, reason: str
) -> None:
    with pytest.raises(FederationError, match=reason):
        run(tmp_path, keys, hostile_server("query.sum_shares", change))
    assert RunFolder.open(tmp_path / "run").last_round() == 0


def test_a_site_that_is_known_cannot_be_replaced(tmp_path: Path, keys: Path) -> None:
    run(tmp_path, keys)  # the sites meet
    (tmp_path / "later").mkdir()
    (tmp_path / "run-clients").rename(tmp_path / "later" / "run-clients")

    def invent(told: dict[str, object], message: Message) -> None:
        told["folder"] = str(tmp_path / "invented")
        invented_site(told, message)

    with pytest.raises(FederationError, match="client 1 has another key than before"):
        run(tmp_path / "later", keys, hostile_server("query.sum_shares", invent))


def test_a_closed_list_takes_nobody_else(tmp_path: Path, keys: Path) -> None:
    parties = {k: Masker(k, 3) for k in range(3)}
    signed = {
        k: one.keys().signed(sign(site_of(keys, k), one.keys().claim("sum 1", k)))
        for k, one in parties.items()
    }
    sites = {k: read_site(site_of(keys, k)) for k in range(3)}
    told = {k: site.public for k, site in sites.items()}
    file = tmp_path / "peers.toml"
    lille = " ".join(told[1].decode().split()[:2])
    file.write_text(f'closed = true\n[sites]\n1 = "{lille}"\n')
    with pytest.raises(FederationError, match="client 2 is not among the sites"):
        accept(file, sites[0], told, signed, "sum 1")
    two = {k: signed[k] for k in (0, 1)}
    accept(file, sites[0], {k: told[k] for k in two}, two, "sum 1")
    with pytest.raises(FederationError, match="not signed"):  # keys of another sum
        accept(file, sites[0], {k: told[k] for k in two}, two, "sum 2")
    file.write_text("[sites")
    with pytest.raises(FederationError, match="cannot be read"):
        accept(file, sites[0], told, signed, "sum 1")


def test_a_sum_that_is_over_is_not_begun_again(tmp_path: Path, keys: Path) -> None:
    """Keys whose secrets have been opened could be played back to a site that begins anew."""
    first: list[Message] = []
    refused: list[str] = []

    def site(message: Message, context: Context) -> Message:
        kind = message.metadata.message_type
        if kind == "query.sum_keys":
            first.append(message)
        reply = client_app.app(message, context)
        if kind == "query.sum_open":
            with pytest.raises(Exception, match="it is over") as error:
                client_app.app(first[0], context)
            refused.append(str(error.value))
        return reply

    run(tmp_path, keys, site)
    assert len(refused) == 1


def test_a_site_may_ask_for_more_parties_and_nobody_for_fewer(tmp_path: Path, keys: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(f'folders = ["{tmp_path}"]\n[privacy]\nparties_at_least = 4\n')
    with pytest.raises(FederationError, match="sum of 3 sites, and 4 are the least"):
        run(tmp_path, keys, policy=str(policy))
    policy.write_text("[privacy]\nparties_at_least = 2\n")
    with pytest.raises(ConfigError, match="the least allowed is 3"):
        Policy.read(str(policy))
    for setting in ("privacy.parties=2", "privacy.threshold=0.5"):
        with pytest.raises(ConfigError, match="least allowed|must be|at least"):
            toy_config(tmp_path, setting)


def test_a_site_that_is_given_other_tensors_is_not_found_in_the_sum(
    tmp_path: Path, keys: Path
) -> None:
    """The server marks client 0's tensors; its masks then fit nobody's and the sum is none."""

    def marked(message: Message, context: Context) -> Message:
        if message.metadata.message_type != "train":
            return client_app.app(message, context)
        arrays = message.content["global"]
        assert isinstance(arrays, ArrayRecord)
        other = ArrayRecord({"context": Array(arrays["context"].numpy() + np.float32(0.01))})
        content = RecordDict({**message.content, "global": other})
        reply = client_app.app(Message(content, message.metadata.dst_node_id, "train"), context)
        return Message(reply.content, reply_to=message)

    with pytest.raises(FederationError, match="the sum is none of updates"):
        run(tmp_path, keys, marked)
