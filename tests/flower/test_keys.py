"""Keys that others accept, commands that Flower's own parsers read, and `focoop site check`."""

import hashlib
import ipaddress
import json
import os
import stat
import sys
from pathlib import Path

import httpx
import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from flwr.common.config import get_fused_config_from_fab, parse_config_args
from flwr.common.serde import user_config_from_proto
from flwr.proto import run_pb2 as proto
from flwr.proto.control_pb2 import (
    ListRunsRequest,
    ListRunsResponse,
    StartRunRequest,
    StartRunResponse,
    StopRunRequest,
)
from flwr.supercore.run import Run
from typer.testing import CliRunner

from focoop.cli import app
from focoop.config.schema import RunConfig
from focoop.config.writing import to_flat, to_toml
from focoop.errors import ConfigError, FederationError
from focoop.flower.app_bundle import fingerprint
from focoop.flower.deploy import control, processes
from focoop.flower.deploy.keys import add_sites, make_keys
from focoop.flower.settings import run_config, server_settings
from tests.flower.federations import opened, toy_config
from tests.toy_setting import CLASSES


def test_the_authority_signs_the_server_and_nothing_secret_is_readable(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    make_keys(folder, ["fl.example.org", "10.0.0.7"], ["utrecht", "ghent"])
    ca = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    server = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    server.verify_directly_issued_by(ca)
    ca.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org"]
    addresses = [ipaddress.ip_address(one) for one in ("10.0.0.7", "127.0.0.1")]
    assert names.get_values_for_type(x509.IPAddress) == addresses
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    key = load_pem_private_key((folder / "server.key").read_bytes(), None)
    assert key.public_key() == server.public_key()
    for secret in ("ca.key", "server.key", "sites/utrecht/key", "sites/ghent/key"):
        assert stat.S_IMODE((folder / secret).stat().st_mode) == 0o600
    publics = set()
    for site in ("utrecht", "ghent"):
        place = folder / "sites" / site
        assert sorted(path.name for path in place.iterdir()) == [
            "ca.crt",
            "key",
            "key.pub",
            "site.toml",
        ]
        public = load_ssh_public_key((place / "key.pub").read_bytes())
        assert load_ssh_private_key((place / "key").read_bytes(), None).public_key() == public
        publics.add((place / "key.pub").read_bytes().split()[1])
    assert len(publics) == 2
    with pytest.raises(ConfigError, match="never overwritten"):
        make_keys(folder, ["a"], ["b"])
    with pytest.raises(ConfigError, match=r"'\.\./x'"):
        make_keys(tmp_path / "other", ["a"], ["../x"])


def test_flower_reads_a_sites_settings_as_they_were_meant(tmp_path: Path) -> None:
    node = {"partition-id": 3, "num-partitions": 9, "name": "St. Mary's ward 5", "report": True}
    node["data"] = "folder:/data/my images"
    command = processes.supernode(tmp_path, "server:8000", 9000, node, tmp_path / "secret")
    assert parse_config_args([command[command.index("--node-config") + 1]]) == node


def test_a_run_is_sent_with_our_bundle_and_all_its_settings(tmp_path: Path) -> None:
    wanted = toy_config(tmp_path, "method.name=focoop", 'data.template="a \\"b\\" of {}; x=1"')
    settings = {**to_flat(wanted), "classes": "a; b", "quorum": 0.75, "resume": False}
    link = FakeLink()
    assert controlled(link).submit(settings) == 7
    (request,) = link.started
    assert hashlib.sha256(request.fab.content).hexdigest() == fingerprint()
    told = get_fused_config_from_fab(request.fab.content, Run.create_empty(7))
    assert told == {"settings": ""}
    sent = user_config_from_proto(request.override_config)
    assert sent.keys() == told.keys()
    assert run_config(sent) == wanted != RunConfig()
    assert server_settings(sent).quorum == 0.75 and server_settings(sent).classes == "a; b"
    with pytest.raises(ConfigError, match="cannot be read"):
        server_settings({"settings": "{"})
    with pytest.raises(ConfigError, match="no table"):
        server_settings({"settings": '{"quorum": [1]}'})


def test_a_run_that_did_not_complete_is_an_error() -> None:
    control.check(7, "finished:completed", "")
    with pytest.raises(FederationError, match="run 7 ended as finished:failed: no quorum"):
        control.check(7, "finished:failed", "no quorum")


def test_a_site_checks_its_images_and_sends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = toy_config(tmp_path, "method.name=promptfl", "partition.shots=0")
    (tmp_path / "run.toml").write_text(to_toml(wanted))
    monkeypatch.setattr("socket.socket", None)  # whoever opens a connection fails
    arguments = ["site", "check", str(tmp_path / "run.toml"), "--json"]
    arguments += ["--data", f"file:{tmp_path}/setting/id.safetensors"]
    done = CliRunner().invoke(app, [*arguments, "--classes", "; ".join(reversed(CLASSES))])
    assert done.exit_code == 2 and "policy refuses this run: data.ood names files" in done.stderr
    arguments += ["--policy", opened(tmp_path)]
    done = CliRunner().invoke(app, [*arguments, "--classes", "; ".join(reversed(CLASSES))])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["train"], found["test"]) == (8 * 4, 5 * 4)
    assert found["classes"] == dict.fromkeys(reversed(CLASSES), 8)
    assert found["sent"] == {"context": "16 x 192 float32"} and not found["kept"]
    assert f"Reads this site's own images, and {tmp_path};" in " ".join(found["policy"])
    assert found["steps_a_round"] == 4 and found["seconds_a_step"] > 0  # 32 images, 8 a step
    names = tmp_path / "classes.txt"
    names.write_text("\n".join(reversed(CLASSES)) + "\n")
    make_keys(tmp_path / "keys", ["a"], ["x", "y"])
    places = ["--keys", str(tmp_path / "keys" / "sites" / "y"), "--state", str(tmp_path / "state")]
    arguments[arguments.index("--json")] = "--set=method.name=focoop"
    done = CliRunner().invoke(app, [*arguments, *places, "--classes", str(names)])
    assert done.exit_code == 0, done.output
    assert "32 training, 20 test and 0 calibration images" in done.stdout
    assert "never answers unknown" in done.stdout and "nothing was sent" in done.stdout
    assert "policy: Trains any method of focoop" in done.stdout
    assert "stays here: local" in done.stdout and "each round would send:" in done.stdout
    # The first site of three can try a round that is summed over three, as the last one can.
    for name in ("x", "y"):
        places[1] = str(tmp_path / "keys" / "sites" / name)
        sums = ["--set=privacy.secure_sum=true", "--set=method.goc_pool=mean"]
        done = CliRunner().invoke(app, [*arguments, *sums, *places, "--classes", str(names)])
        assert done.exit_code == 0, done.output
        assert "would send, under masks: the server sees the sum of all sites alone" in done.stdout
    done = CliRunner().invoke(app, [*arguments, "--classes", "apple; boat; drum"])
    assert done.exit_code == 3 and "'cat'" in done.stderr


class FakeLink:
    """What a SuperLink answers to its coordinator."""

    def __init__(self) -> None:
        self.started: list[StartRunRequest] = []
        self.stopped: list[int] = []
        self.said = "Run is already finished."

    def StartRun(self, request: StartRunRequest) -> StartRunResponse:
        self.started.append(request)
        return StartRunResponse(run_id=7)

    def ListRuns(self, request: ListRunsRequest) -> ListRunsResponse:
        done = proto.Run(status=proto.RunStatus(status="finished", sub_status="completed"))
        running = proto.Run(status=proto.RunStatus(status="running"))
        return ListRunsResponse(run_dict={1: done, 2: running})

    def StopRun(self, request: StopRunRequest) -> None:
        self.stopped.append(request.run_id)
        asked = httpx.Request("POST", "https://x")
        answer = httpx.Response(412, json={"code": 18, "detail": self.said}, request=asked)
        raise httpx.HTTPStatusError("no", request=asked, response=answer)


def controlled(link: FakeLink) -> control.Control:
    found = object.__new__(control.Control)
    found.client = link  # type: ignore[assignment]
    return found


def test_a_run_that_ends_by_itself_need_not_be_stopped() -> None:
    link = FakeLink()
    controlled(link).end_runs()
    assert link.stopped == [2]
    link.said = "no connection"
    with pytest.raises(FederationError, match="no connection"):
        controlled(link).end_runs()


def test_a_failed_making_of_keys_can_be_repeated(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    (tmp_path / "bad.pub").write_text("no key")
    with pytest.raises(ConfigError, match="is not a public key"):
        make_keys(folder, ["a"], ["x", "y"], {"y": tmp_path / "bad.pub"})
    assert not folder.exists() and [path.name for path in tmp_path.iterdir()] == ["bad.pub"]
    folder.mkdir(mode=0o755)
    make_keys(folder, ["a"], ["x", "y"])
    assert sorted(path.name for path in (folder / "sites").iterdir()) == ["x", "y"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    # The same for a site that is added: it is there whole or not at all.
    with pytest.raises(ConfigError, match="is not a public key"):
        add_sites(folder, ["z"], {"z": tmp_path / "bad.pub"})
    assert sorted(path.name for path in (folder / "sites").iterdir()) == ["x", "y"]


def test_what_flower_writes_is_nobody_elses_to_read(tmp_path: Path) -> None:
    home = tmp_path / "run-flower"
    home.mkdir(mode=0o755)
    (home / "superlink.db").write_bytes(b"old")
    (home / "superlink.db").chmod(0o644)
    processes.own_folder(home)
    assert stat.S_IMODE((home / "superlink.db").stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    code = f"open({str(home / 'new.db')!r}, 'w')"
    process = processes.begin([sys.executable, "-c", code], os.environ, home / "log")
    assert process.wait(30) == 0
    assert stat.S_IMODE((home / "new.db").stat().st_mode) == 0o600
    secret = processes.new_secret(home)
    before = secret.read_text()
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600 and len(before) == 64
    assert processes.new_secret(home).read_text() != before
