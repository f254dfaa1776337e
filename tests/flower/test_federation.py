"""One command makes a federation, one joins it: bundles, invitations and keys made at the sites."""

import json
import stat
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from typer.testing import CliRunner

from focoop.cli import app
from focoop.config import files
from focoop.config import loading as configuration
from focoop.config.schema import RunConfig
from focoop.config.writing import to_flat, to_toml
from focoop.errors import ConfigError, FederationError, RunError
from focoop.experiments.presets import tuned
from focoop.flower.deploy import join_bundle, study
from focoop.flower.deploy.enrolment import INVITATION, Enrolment, invite, key_print
from focoop.flower.deploy.keys import make_keys, make_site_key
from focoop.flower.deploy.tls_front import Front, open_front
from focoop.flower.identity import Registry, numbered, registered
from focoop.flower.site.dry_run import check_keys
from focoop.flower.site.policy import Policy
from focoop.runs import Client, Names, RunFolder
from tests.flower.federations import toy_config
from tests.toy_setting import CLASSES

SITES = ("ghent", "lille")


def made(folder: Path, host: str = "127.0.0.1", port: int = 8000) -> Path:
    wanted = configuration.load(None, ["method.name=promptfl"], own=True)
    federation = study.Federation((host,), port)
    study.create(folder, federation, SITES, wanted, "; ".join(CLASSES))
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_federation_is_made_whole_with_a_bundle_for_each_site(tmp_path: Path) -> None:
    folder = made(tmp_path / "study")
    assert study.read(folder) == study.Federation(("127.0.0.1",), 8000)
    assert numbered(folder / "keys") == {0: "ghent", 1: "lille"}
    assert not registered(folder / "keys")  # their keys are not made here
    assert mode(folder) == mode(folder / "bundles") == mode(folder / "keys") == 0o700
    tokens = set()
    for name in SITES:
        path = folder / "bundles" / f"{name}.focoop"
        assert mode(path) == 0o600
        files = join_bundle.unpack(path)
        assert not any(b"PRIVATE KEY" in content for content in files.values())
        assert files["ca.crt"] == (folder / "keys" / "ca.crt").read_bytes()
        assert files["classes.txt"].decode().split() == list(CLASSES)
        told = join_bundle.Invitation.read(files["join.toml"].decode())
        assert told.server == "127.0.0.1:8000"
        kept = (folder / "keys" / "sites" / name / INVITATION).read_text()
        assert told.token not in kept  # a hash of it
        tokens.add(told.token)
    assert len(tokens) == 2
    with pytest.raises(ConfigError, match="is there already"):
        made(folder)


def test_what_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    federation = study.Federation(("a",))
    with pytest.raises(ConfigError, match=r"'\.\./x'"):
        study.create(tmp_path / "study", federation, ["a", "../x"], RunConfig(), "a; b")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="is no federation"):
        study.read(tmp_path / "study")


@pytest.mark.parametrize("text", ["a:b", "a:0", "a:70000", ":80"])
def test_a_host_must_be_one(text: str) -> None:
    with pytest.raises(ConfigError, match="is no HOST:PORT"):
        study.host_port(text)


def test_the_commands_make_it_and_a_site_checks_its_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ("partition.shots=0", "data.ood=[]", "data.corrupted=[]", "data.validation_ood=[]")
    wanted = toy_config(tmp_path, "method.name=promptfl", *more)
    (tmp_path / "toy.toml").write_text(to_toml(wanted))
    monkeypatch.chdir(tmp_path)
    words = "federation create study --host fl.example.org:9000 --host 10.0.0.7:9000"
    words += " --sites ghent,lille --config toy.toml --quorum 1.0 --classes"
    done = CliRunner().invoke(app, [*words.split(), "; ".join(CLASSES)])
    assert done.exit_code == 0, done.output
    assert "study/bundles/ghent.focoop" in done.stdout and "focoop federation start" in done.stdout
    found = study.read(Path("study"))
    assert (found.server, found.hosts[1], found.quorum) == ("fl.example.org:9000", "10.0.0.7", 1.0)
    run = configuration.load(Path("study/run.toml"), own=True)
    expected = to_flat(configuration.load(Path("toy.toml"), own=True))
    changed = {key for key, value in to_flat(run).items() if value != expected[key]}
    assert changed == {"data.id", "name", "partition.clients"} and run.partition.clients == 2
    assert run.title == "study"  # what its page and reports are called
    monkeypatch.setattr("socket.socket", None)  # whoever opens a connection fails
    arguments = ["site", "check", "study/bundles/lille.focoop", "--state", "lille"]
    arguments += ["--data", f"file:{tmp_path}/setting/id.safetensors"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert (
        "32 training, 20 test and 0 calibration images" in done.stdout
        and "nothing was sent" in done.stdout
    )
    assert "policy: Takes part in the run of run.toml alone" in done.stdout
    assert check_keys(Path("lille/keys")) == "lille"
    create = words.replace(" study", " third").replace("10.0.0.7", "https://10.0.0.7").split()
    done = CliRunner().invoke(app, [*create, "; ".join(CLASSES)])
    assert done.exit_code == 2 and not Path("third").exists()
    assert "'https://10.0.0.7:9000': give its name or address alone" in done.stderr
    assert "--host 10.0.0.7" in done.stderr
    # A study that the sites' first policy does not allow is pointed out when it is made.
    sets = ["--set", "federation.epochs=51", "--classes", "a; b"]
    done = CliRunner().invoke(app, [*words.replace(" study", " other").split()[:-1], *sets])
    assert done.exit_code == 0 and "policy.toml" in done.stderr and "50 is the most" in done.stderr
    sets = ["--set", "privacy.secure_sum=true", "--classes", "a; b"]
    done = CliRunner().invoke(app, [*words.replace(" study", " sums").split()[:-1], *sets])
    assert done.exit_code == 2 and "2 of 2 clients take part" in done.stderr
    assert "name more sites" in done.stderr and not Path("sums").exists()
    sets = ["--set", "method.name=fedlda", "--set", "method.least_images=1", "--classes", "a; b"]
    done = CliRunner().invoke(app, [*words.replace(" study", " lda").split()[:-1], *sets])
    assert done.exit_code == 0 and "fewer than 5 training images" in done.stderr
    # What the file leaves out is what `focoop run` would take.
    Path("short.toml").write_text('[method]\nname = "focoop"\n')
    short = [*words.replace(" study", " short").replace("toy.toml", "short.toml").split(), "a; b"]
    assert CliRunner().invoke(app, short).exit_code == 0
    given = ["data.id=folder:images", "partition.clients=2"]
    given.append("name=short")
    same, used = tuned(Path("short.toml"), given, files.shipped("methods"))
    assert configuration.load(Path("short/run.toml"), own=True) == same and used
    done = CliRunner().invoke(app, ["site", "join", "a:1", "--data", "folder:x"])
    assert done.exit_code == 2 and "join bundle" in done.stderr


def test_a_site_unpacks_its_bundle_once_and_keeps_its_own_policy(tmp_path: Path) -> None:
    folder, state = made(tmp_path / "study"), tmp_path / "site"
    bundle = folder / "bundles" / "ghent.focoop"
    keys = join_bundle.settle(bundle, state)
    assert check_keys(keys) == "ghent" and mode(keys / "key") == mode(keys / "join.toml") == 0o600
    assert mode(state) == mode(keys) == 0o700
    allowed = Policy.read(keys / "policy.toml")
    allowed.check(configuration.load(keys / "run.toml", own=True))
    with pytest.raises(FederationError, match="differs from the run agreed upon"):
        allowed.check(configuration.load(keys / "run.toml", ["federation.rounds=3"], own=True))
    before = (keys / "key").read_bytes()
    (keys / "policy.toml").write_text("epochs = 1\n")
    join_bundle.settle(bundle, state)
    assert (keys / "key").read_bytes() == before
    assert (keys / "policy.toml").read_text() == "epochs = 1\n"
    with pytest.raises(ConfigError, match="of another site: choose another --state"):
        join_bundle.settle(folder / "bundles" / "lille.focoop", state)
    other = made(tmp_path / "other") / "bundles" / "ghent.focoop"
    with pytest.raises(ConfigError, match="of another federation: choose another --state"):
        join_bundle.settle(other, state)


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.focoop"
    with pytest.raises(ConfigError, match="is no join bundle"):
        join_bundle.unpack(path)
    path.write_bytes(b"PK\x03\x04 no")
    with pytest.raises(ConfigError, match="is no join bundle"):
        join_bundle.unpack(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("join.toml", "a")
    with pytest.raises(ConfigError, match="is no join bundle"):
        join_bundle.unpack(path)
    files = join_bundle.unpack(made(tmp_path / "s") / "bundles" / "ghent.focoop")
    join_bundle.pack(path, {**files, "run.toml": b"\0" * (join_bundle.LARGEST + 1)})
    with pytest.raises(ConfigError, match="too large"):
        join_bundle.unpack(path)
    changed = files["join.toml"].replace(b'focoop = "', b'focoop = "9')
    join_bundle.pack(path, {**files, "join.toml": changed})
    with pytest.warns(UserWarning, match="must have the same version"):
        join_bundle.settle(path, tmp_path / "state")
    assert files["join.toml"].startswith(b"format = 1\n")
    newer = files["join.toml"].replace(b"format = 1", b"format = 2")
    join_bundle.pack(path, {**files, "join.toml": newer})
    with pytest.raises(ConfigError, match="the bundle was made by a newer focoop .format 2"):
        join_bundle.settle(path, tmp_path / "newer")
    assert not (tmp_path / "newer").exists()
    earlier = files["join.toml"].replace(b"format = 1\n", b"")
    join_bundle.pack(path, {**files, "join.toml": earlier})
    join_bundle.settle(path, tmp_path / "earlier")


@pytest.fixture(scope="module")
def enrolment(tmp_path_factory: pytest.TempPathFactory) -> tuple[Enrolment, Path, str, list[str]]:
    """What takes keys, its folder, the token of ghent, and what it said."""
    keys = tmp_path_factory.mktemp("enrol") / "keys"
    make_keys(keys, ["a"], SITES, keyed=False)
    said: list[str] = []
    return (
        Enrolment(keys, lambda public, name: None, said.append),
        keys,
        invite(keys, "ghent"),
        said,
    )


def asked(name: str, token: str, key: bytes) -> bytes:
    return json.dumps({"site": name, "token": token, "key": key.decode()}).encode()


def test_an_invitation_is_good_for_one_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    make_keys(keys, ["a"], SITES, keyed=False)
    admitted: list[str] = []
    said: list[str] = []
    found = Enrolment(keys, lambda public, name: admitted.append(name), said.append)
    registry = Registry(keys)
    assert 0 not in registry
    token = invite(keys, "ghent")
    own, other = make_site_key(tmp_path / "own", "x"), make_site_key(tmp_path / "other", "x")
    assert found(asked("ghent", token, own)) == (200, {"site": "ghent"})
    assert registry[0].public == own and admitted == ["ghent"]
    assert key_print(own) in said[0] and len(key_print(own)) == 19
    # The same again is the answer that was lost; another key is somebody else's.
    assert found(asked("ghent", token, own))[0] == 200
    code, told = found(asked("ghent", token, other))
    assert code == 409 and "new bundle" in told["detail"] and "second key" in said[-1]
    assert registered(keys)[0].public == own
    # A new invitation ends the old one, and what is too late is too late.
    again = invite(keys, "ghent")
    assert found(asked("ghent", token, own))[0] == 403
    assert found(asked("ghent", again, own))[0] == 200
    late = invite(keys, "lille", days=-1)
    assert found(asked("lille", late, other))[0] == 403 and 1 not in registry


def test_nobody_enrols_without_an_invitation(
    enrolment: tuple[Enrolment, Path, str, list[str]], tmp_path: Path
) -> None:
    found, keys, token, _ = enrolment
    public = make_site_key(tmp_path, "x")
    for name in ("lille", "nobody", "../ghent", ".", "", "ghent/"):
        assert found(asked(name, token, public))[0] == 403
    for wrong in ("", token[:-1], token + "x", "\0"):
        assert found(asked("ghent", wrong, public))[0] == 403
    for bad in (b"", b"ssh-rsa AAAA", b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + b"A" * 43):
        assert found(asked("ghent", token, bad))[0] == 400
    assert not list(keys.glob("sites/*/key.pub"))


@settings(max_examples=50, deadline=None)
@given(
    st.binary(max_size=100)
    | st.recursive(
        st.none() | st.integers() | st.text(max_size=20),
        lambda deeper: (
            st.lists(deeper) | st.dictionaries(st.sampled_from(("site", "token")), deeper)
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_request_gets_an_answer(
    enrolment: tuple[Enrolment, Path, str, list[str]], body: bytes
) -> None:
    found, keys, _, _ = enrolment
    assert found(body)[0] in (400, 403)
    assert not list(keys.glob("sites/*/key.pub"))


@pytest.fixture
def serve() -> Iterator[Callable[[Path, Enrolment], int]]:
    """A front of a federation's keys; its port."""
    fronts: list[Front] = []

    def begin(keys: Path, enrolment: Enrolment) -> int:
        files = tuple(str(keys / name) for name in ("ca.crt", "server.pem", "server.key"))
        front = open_front("127.0.0.1", 0, files, 1, enrolment.name, enrolment, print)  # type: ignore[arg-type]
        front.start()
        fronts.append(front)
        return int(front.listener.getsockname()[1])

    yield begin
    for front in fronts:
        front.stop()


def test_a_site_sends_its_key_through_the_front(
    tmp_path: Path, serve: Callable[[Path, Enrolment], int]
) -> None:
    folder = made(tmp_path / "study")
    said: list[str] = []
    enrolment = Enrolment(folder / "keys", lambda public, name: None, said.append)
    port = serve(folder / "keys", enrolment)
    text = (folder / "federation.toml").read_text().replace("port = 8000", f"port = {port}")
    (folder / "federation.toml").write_text(text)
    bundle = study.invite_site(folder, "ghent")
    keys = join_bundle.settle(bundle, tmp_path / "site")
    assert join_bundle.send_key(keys) is True
    assert registered(folder / "keys")[0].public == (keys / "key.pub").read_bytes()
    assert join_bundle.send_key(keys) is False  # it is known to be there
    # Who has copied the bundle comes too late, and the coordinator's people see it.
    thief = join_bundle.settle(bundle, tmp_path / "thief")
    with pytest.raises(FederationError, match="another key is known for ghent"):
        join_bundle.send_key(thief)
    assert "second key for ghent" in said[-1]
    # A key is lost: another bundle, and the old key is nobody's at once.
    (old,) = enrolment.known
    assert enrolment.name(old) == "ghent"
    bundle = study.invite_site(folder, "ghent")
    assert 0 not in Registry(folder / "keys") and enrolment.name(old) is None
    for path in (keys / "key", keys / "key.pub"):
        path.unlink()
    join_bundle.settle(bundle, tmp_path / "site")
    assert join_bundle.send_key(keys) and 0 in Registry(folder / "keys")
    assert [enrolment.name(pem) for pem in enrolment.known] == [None, "ghent"]
    assert study.invite_site(folder, "namur").is_file()
    assert numbered(folder / "keys")[2] == "namur"


def test_a_server_that_is_another_or_away_is_told(
    tmp_path: Path, serve: Callable[[Path, Enrolment], int]
) -> None:
    other = made(tmp_path / "other")
    port = serve(other / "keys", Enrolment(other / "keys", lambda public, name: None, print))
    folder = made(tmp_path / "study", port=port)
    keys = join_bundle.settle(folder / "bundles" / "ghent.focoop", tmp_path / "site")
    began = time.monotonic()
    with pytest.raises(FederationError, match="CERTIFICATE_VERIFY_FAILED"):
        join_bundle.send_key(keys)
    assert time.monotonic() - began < 10 and not registered(other / "keys")


def test_a_finished_run_and_one_of_another_study_are_told_with_what_to_do(tmp_path: Path) -> None:
    wanted = configuration.load(
        None, ["method.name=promptfl", "federation.rounds=1", "federation.lr=0.5"], own=True
    )
    path, classes = tmp_path / "run", ["a", "b"]
    assert not study.is_done(path, wanted, classes, SITES)
    with RunFolder.create(path, wanted, {}) as run:
        run.keep_names(Names(("a", "b"), (Client("ghent"), Client("1"))))
        assert not study.is_done(path, wanted, ["c"], SITES)  # nothing is committed yet
        run.commit(1, {"context": torch.zeros(2)})
        assert not study.is_done(path, wanted, classes, SITES)
        run.finish("finished")
    assert study.is_done(path, wanted, ["b", "a"], SITES)
    federation = wanted.federation
    assert not study.is_done(  # more rounds go on
        path, replace(wanted, federation=replace(federation, rounds=2)), classes, SITES
    )
    other = replace(wanted, federation=replace(federation, lr=0.1))
    for changed, named, sites, problem in (
        (other, classes, SITES, r"federation.lr: 0.5 -> 0.1"),
        (wanted, ["a", "c"], SITES, "classes: b, c"),
        (wanted, classes, [*SITES, "bonn"], r"2 -> 3 sites \(ghent, lille, bonn\)"),
    ):
        with pytest.raises(ConfigError, match=f"{problem}\nFor a run of the new one: mv .*run-1"):
            study.is_done(path, changed, named, sites)
    (path / "state.safetensors").write_bytes(b"damaged")
    with pytest.raises(
        RunError, match="is damaged .*: restore it .* or begin another run: mv"
    ) as told:
        study.is_done(path, wanted, classes, SITES)
    assert "--" not in str(told.value)
    (tmp_path / "run-1").mkdir()
    assert study.aside(path).endswith("run-2, and start again")
