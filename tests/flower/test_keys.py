"""Keys that others accept, commands that Flower's own parsers read, and `focoop site check`."""

import ipaddress
import json
import stat
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from flwr.common.config import flatten_dict, get_project_config, parse_config_args
from typer.testing import CliRunner

from focoop.cli import app
from focoop.config import RunConfig, to_flat, to_toml
from focoop.errors import ConfigError, FederationError
from focoop.flower import launch
from focoop.flower.keys import make_keys
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
    command = launch.supernode(tmp_path, "server:8000", 9000, node)
    assert parse_config_args([command[command.index("--node-config") + 1]]) == node


def test_an_app_holds_all_settings_of_its_run(tmp_path: Path) -> None:
    wanted = toy_config(tmp_path, "method.name=focoop", 'data.template="a \\"b\\" of {}; x=1"')
    settings = {**to_flat(wanted), "classes": "a; b", "quorum": 0.75}
    launch.write_app(tmp_path / "app", settings)
    found = get_project_config(tmp_path / "app")["tool"]["flwr"]["app"]["config"]
    assert flatten_dict(found) == settings
    assert run_config(flatten_dict(found)) == wanted != RunConfig()
    assert server_settings(flatten_dict(found)).quorum == 0.75


def test_a_run_that_did_not_complete_is_an_error() -> None:
    launch.check("7", "finished:completed", "")
    with pytest.raises(FederationError, match="run 7 ended as finished:failed: no quorum"):
        launch.check("7", "finished:failed", "no quorum")


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
    assert "32 training and 20 test images" in done.stdout and "nothing was sent" in done.stdout
    assert "policy: Trains any method of focoop" in done.stdout
    assert "stays here" in done.stdout and "would be sent each round" in done.stdout
    done = CliRunner().invoke(app, [*arguments, "--classes", "apple; boat; drum"])
    assert done.exit_code == 3 and "'cat'" in done.stderr


def test_a_run_that_ends_by_itself_need_not_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []
    said = "[code: 18] Run is already finished."

    def answer(home: Path, *arguments: str) -> dict[str, object]:
        asked.append(arguments)
        if arguments[0] == "stop":
            raise FederationError(said)
        statuses = {"1": "finished:completed", "2": "running"}
        return {"runs": [{"run-id": k, "status": v} for k, v in statuses.items()]}

    monkeypatch.setattr(launch, "flwr", answer)
    launch.end_runs(tmp_path)
    assert [one[:2] for one in asked if one[0] == "stop"] == [("stop", "2")]
    said = "no connection"
    with pytest.raises(FederationError, match="no connection"):
        launch.end_runs(tmp_path)
