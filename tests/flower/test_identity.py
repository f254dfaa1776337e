"""A site's number is what its key says: other keys, other nodes and old proofs are refused."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Context, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from focoop.errors import ConfigError, FederationError
from focoop.flower import in_process
from focoop.flower.deploy.keys import add_sites, make_keys, make_site_key, renew_server
from focoop.flower.identity import Site, prove, proves, read_site, registered
from focoop.flower.records import ABOUT, Order
from focoop.flower.site import client_app
from focoop.flower.site.dry_run import check_keys, check_state
from focoop.runs import RunFolder
from tests.flower.federations import CLIENTS, Answer, Tampered, toy_config

NAMES = ("ghent", "lille", "utrecht")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys of three sites; tests that change them take a copy."""
    folder = tmp_path_factory.mktemp("federation") / "keys"
    make_keys(folder, ["127.0.0.1"], NAMES)
    return folder


def test_a_proof_is_of_one_challenge_run_node_and_number(keys: Path) -> None:
    sites = registered(keys)
    assert [sites[k].name for k in range(3)] == list(NAMES)
    asked = "0" * 32, 7, 12345

    @given(st.text("0123456789abcdef", min_size=32, max_size=32), st.integers(0), st.integers(0))
    @settings(max_examples=20, deadline=None)
    def only_this(challenge: str, run: int, node: int) -> None:
        same = (challenge, run, node) == asked
        assert proves(sites[1], proof, challenge, run, node) == same

    proof = prove(keys / "sites" / "lille", *asked, 1)
    assert proves(sites[1], proof, *asked)
    only_this()
    assert not proves(sites[0], proof, *asked)  # another key
    assert not proves(replace(sites[1], client=2), proof, *asked)  # another number
    assert not proves(sites[1], proof[:-1], *asked) and not proves(sites[1], b"", *asked)


def federate(
    tmp_path: Path, keys: Path, folders: Sequence[Path], answers: Sequence[Answer] | None = None
) -> RunFolder:
    """Three nodes, each with some site's folder of keys."""
    wanted = toy_config(tmp_path, "method.name=promptfl", "federation.rounds=1")
    nodes = [{"keys": str(folder), "name": "somebody"} for folder in folders]
    told = {"keys": str(keys), "sites": CLIENTS, "quorum": 0.3}
    in_process.run(wanted, tmp_path / "run", CLIENTS, nodes=nodes, answers=answers, **told)
    return RunFolder.open(tmp_path / "run")


def test_sites_are_known_by_their_keys_and_nobody_takes_anothers_place(
    tmp_path: Path, keys: Path
) -> None:
    """Node 1 has no right to number 1: it holds ghent's key. Node 2 holds no registered one."""
    own = [keys / "sites" / name for name in NAMES]
    stranger = tmp_path / "stranger"
    make_site_key(stranger, "utrecht")
    run = federate(tmp_path / "a", keys, [own[0], own[1], own[2]])
    assert run.manifest["rounds"][1]["accepted"] == [0, 1, 2]
    assert not run.manifest["federation_refused"]
    run = federate(tmp_path / "b", keys, [own[0], own[0], stranger])
    assert run.manifest["rounds"][1]["accepted"] == [0]
    refused = str(run.manifest["federation_refused"])
    assert "client 1 without the key of lille" in refused
    assert "client 2 without the key of utrecht" in refused


def test_an_old_proof_and_a_missing_one_are_refused(tmp_path: Path, keys: Path) -> None:
    kept: list[bytes] = []

    def repeat(message: Message, reply: Message) -> Message:
        about = reply.content[ABOUT]
        kept.append(about["proof"])  # type: ignore[arg-type, index]
        about["proof"] = kept[0]  # type: ignore[index]
        return reply

    def silent(message: Message, reply: Message) -> Message:
        del reply.content[ABOUT]["proof"]  # type: ignore[attr-defined]
        return reply

    own = [keys / "sites" / name for name in NAMES]
    hello = "query.hello"
    answers: list[Answer] = [client_app.app, Tampered(repeat, hello), client_app.app]
    assert federate(tmp_path / "a", keys, own, answers).manifest["rounds"][1]["accepted"] == [
        0,
        1,
        2,
    ]
    answers[2] = Tampered(silent, hello)
    run = federate(tmp_path / "b", keys, own, answers)
    assert run.manifest["rounds"][1]["accepted"] == [0]


def test_a_site_without_a_challenge_signs_nothing(tmp_path: Path, keys: Path) -> None:
    """A server that asks for a signature of what it likes does not get it."""
    wanted = toy_config(tmp_path, "method.name=promptfl", "partition.clients=1")
    seen: list[str] = []

    def ask(message: Message, context: Context) -> Message:
        message.content["config"]["challenge"] = "focoop site"  # type: ignore[index]
        try:
            return client_app.app(message, context)
        except FederationError as error:
            seen.append(str(error))
            raise

    with pytest.raises(FederationError, match="without a challenge"):
        in_process.run(
            wanted,
            tmp_path / "run",
            1,
            nodes=[{"keys": str(keys / "sites" / "ghent")}],
            answers=[ask],
            keys=str(keys),
            sites=1,
        )
    assert seen


def test_orders_cannot_be_guessed() -> None:
    """Flower takes a reply from any node that knows the name of the order, a hash of it."""
    order = Order(1, "0" * 16, "hash")
    nonces = {str(order.record()["nonce"]) for _ in range(20)}
    assert len(nonces) == 20 and all(len(one) == 32 for one in nonces)


def test_sites_may_bring_their_keys_come_later_and_be_replaced(tmp_path: Path) -> None:
    folder, mine = tmp_path / "keys", tmp_path / "mine"
    make_site_key(mine, "ghent")
    make_keys(folder, ["a"], ["ghent", "lille"], {"ghent": mine / "key.pub"})
    assert not (folder / "sites" / "ghent" / "key").exists()
    for name in ("site.toml", "ca.crt"):
        shutil.copy(folder / "sites" / "ghent" / name, mine)
    assert check_keys(mine) == "ghent" and read_site(mine).client == 0
    add_sites(folder, ["utrecht"])
    assert registered(folder)[2].name == "utrecht"
    before = registered(folder)[1].public
    shutil.rmtree(folder / "sites" / "lille")
    with pytest.raises(ConfigError, match="not numbered from 0 without a gap"):
        registered(folder)
    add_sites(folder, ["lille"])
    assert registered(folder)[1].name == "lille" and registered(folder)[1].public != before
    authority, server = (folder / "ca.crt").read_bytes(), (folder / "server.pem").read_bytes()
    renew_server(folder, ["a"])
    assert (folder / "ca.crt").read_bytes() == authority
    assert (folder / "server.pem").read_bytes() != server
    for names, publics, said in (
        (["lille"], {}, "never overwritten"),
        (["x"], {"x": folder / "ca.crt"}, "not a public key"),
        (["x", "x"], {}, "same name"),
    ):
        with pytest.raises(ConfigError, match=said):
            add_sites(folder, names, publics)
    (folder / "sites" / "lille").rename(folder / "sites" / "other")
    with pytest.raises(ConfigError, match="holds the keys of lille"):
        registered(folder)


def test_a_sites_folders_are_checked_before_it_joins(tmp_path: Path, keys: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree(keys / "sites" / "ghent", own)
    (own / "key").chmod(0o600)
    assert check_keys(own) == "ghent"
    (own / "key").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        check_keys(own)
    (own / "key").chmod(0o600)
    shutil.copy(keys / "sites" / "lille" / "key.pub", own)
    with pytest.raises(ConfigError, match="do not belong together"):
        check_keys(own)
    (own / "ca.crt").unlink()
    with pytest.raises(ConfigError, match=r"ca\.crt is missing"):
        check_keys(own)
    with pytest.raises(ConfigError, match="is no folder of a site's keys"):
        check_keys(tmp_path / "nothing")
    (own / "site.toml").write_text("name = 3\n")
    with pytest.raises(ConfigError, match="must hold name"):
        read_site(own)
    check_state(tmp_path / "state")
    (tmp_path / "state").chmod(0o755)
    with pytest.raises(ConfigError, match="chmod 700"):
        check_state(tmp_path / "state")


def test_a_public_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    public = Ed25519PrivateKey.generate().public_key()
    line = public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    with pytest.raises(ConfigError, match="elliptic curve"):
        proves(Site("x", 0, line), b"", "0" * 32, 0, 0)
    (tmp_path / "x.pub").write_bytes(line)
    with pytest.raises(ConfigError, match="elliptic curve"):
        make_keys(tmp_path / "keys", ["a"], ["x"], {"x": tmp_path / "x.pub"})
