"""The attack of an outsider on a running federation, from a network namespace of its own.

Flower's own Control interface would start any app at the coordinator and all sites for whoever
reaches its port. Here the outsider tries that, with the federation's `ca.crt` and without it, and
gets nothing; a hostile coordinator tries it on the sites, and gets nothing either.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from focoop.flower.deploy import processes
from focoop.runs import RunFolder
from tests.flower.federations import simulated, state
from tools.flower_hosts import Federation, Network, cmdline, family, separable, small

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc"),
]
ROOT = Path(__file__).resolve().parents[2]
CLIENTS, ROUNDS, PORT = 2, 3, 8000
# An app whose import, at the coordinator or a site, leaves a trace and reads what it finds.
LOOT = """
import os, pathlib
place = pathlib.Path({loot!r})
place.mkdir(exist_ok=True)
(place / f"{{os.getpid()}}").write_text(os.environ["FLWR_HOME"])
"""
APPS = {
    "server_app": "from flwr.serverapp import ServerApp\napp = ServerApp()\n"
    "@app.main()\ndef main(grid, context):\n"
    "    from flwr.app import Message, MessageType, RecordDict\n"
    "    orders = [Message(RecordDict(), n, MessageType.TRAIN, ttl=60.0)\n"
    "              for n in grid.get_node_ids()]\n"
    "    replies = list(grid.send_and_receive(orders, timeout=60.0))\n"
    "    import pathlib\n"
    "    said = [r.error.reason if r.has_error() else 'obeyed' for r in replies]\n"
    "    pathlib.Path({said!r}).write_text(chr(10).join(map(str, said)))\n",
    "client_app": "from flwr.clientapp import ClientApp\napp = ClientApp()\n"
    "@app.train()\ndef train(message, context):\n"
    "    from flwr.app import Message, RecordDict\n"
    "    return Message(RecordDict(), reply_to=message)\n",
}
PROJECT = """[project]
name = "evilapp"
version = "1.0.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "evil"
[tool.flwr.app.components]
serverapp = "evilapp.server_app:app"
clientapp = "evilapp.client_app:app"
"""
# Every route of Flower's SuperLink, asked without a key, over TLS that is not checked.
KNOCK = """
import http.client, json, ssl, sys
context = ssl._create_unverified_context()
if sys.argv[3]: context = ssl.create_default_context(cafile=sys.argv[3])
found = {}
for method, path in json.loads(sys.stdin.read()):
    one = http.client.HTTPSConnection(sys.argv[1], int(sys.argv[2]), context=context, timeout=20)
    one.request(method, path, body=b"", headers={"content-type": "application/protobuf"})
    answer = one.getresponse()
    found[f"{method} {path}"] = [answer.status, answer.read().decode()]
    one.close()
print(json.dumps(found))
"""


def evil(folder: Path) -> Path:
    """The outsider's app."""
    app = folder / "evil"
    (app / "evilapp").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "evilapp" / "__init__.py").write_text(LOOT.format(loot=str(folder / "loot")))
    for name, code in APPS.items():
        text = code.replace("{said!r}", repr(str(folder / "said")))
        (app / "evilapp" / f"{name}.py").write_text(text)
    return app


def home_of(folder: Path, address: str, certificate: Path | None) -> Path:
    """A home of `flwr` that knows where the SuperLink is."""
    home = folder / f"home-{certificate is not None}"
    home.mkdir()
    trust = f'root-certificates = "{certificate}"' if certificate else "insecure = true"
    text = f'[superlink]\ndefault = "them"\n[superlink.them]\naddress = "{address}"\n{trust}\n'
    (home / "config.toml").write_text(text)
    return home


def flwr(on: list[str], home: Path, *words: str) -> tuple[bool, str]:
    """A `flwr` command on a host: whether it was obeyed, and all it said."""
    command = [*on, processes.program("flwr"), *words, "--format", "json"]
    env = {**processes.environment(home), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    said = done.stdout + done.stderr
    return done.returncode == 0 and '"success": true' in said, said


def routes() -> list[tuple[str, str]]:
    """All routes of the SuperLink of the installed Flower."""
    code = """
import json
from fastapi.routing import APIRoute, iter_route_contexts
from flwr.superlink.main import create_app
found = [(m, c.route.path) for c in iter_route_contexts(create_app().routes)
         if isinstance(c.route, APIRoute) for m in c.route.methods]
print(json.dumps(found))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    return [(method, path) for method, path in json.loads(done.stdout.splitlines()[-1])]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Federation]:
    """A coordinator, two sites and an outsider on one switch."""
    if not separable():
        pytest.skip("network namespaces need root and iproute2's `ip`")
    with Network(True) as network:
        made = Federation(tmp_path, small(tmp_path, CLIENTS, ROUNDS), network, PORT)
        try:
            made.prepare()
            network.add("outsider")
            yield made
        finally:
            made.close()


def listening(made: Federation) -> None:
    until = time.monotonic() + 200
    while "listening on" not in (made.folder / "coordinator.log").read_text():
        assert time.monotonic() < until, made.told()
        time.sleep(0.2)


def inner_port(process: "subprocess.Popen[bytes]") -> str:
    """Where the SuperLink itself listens."""
    (line,) = [
        cmdline(pid)
        for pid in family(process.pid)
        if "focoop.flower.deploy.superlink" in cmdline(pid)
    ]
    words = line.split()
    assert words[words.index("--host") + 1] == "127.0.0.1"
    return words[words.index("--port") + 1]


def test_an_outsider_gets_nothing_and_the_study_goes_on(tmp_path: Path, hosts: Federation) -> None:
    app, on = evil(tmp_path), hosts.network.on("outsider")
    server = hosts.coordinate("--deadline", "300", "--quorum", "1.0")
    listening(hosts)
    hosts.join(0)
    hosts.wait("joined", site="site-0")  # the run is under way, and waits for the other site
    # With the federation's certificate, and without it.
    for certificate in (tmp_path / "keys" / "ca.crt", None):
        home = home_of(tmp_path, hosts.address, certificate)
        for words in (
            ("run", str(app), "them"),
            ("list", "them"),
            ("stop", "1", "them"),
            ("supernode", "list", "them"),
            ("supernode", "register", str(tmp_path / "keys/sites/site-0/key.pub"), "them"),
        ):
            obeyed, said = flwr(on, home, *words)
            assert not obeyed, (words, said)
    asked = json.dumps(routes())
    for trusted in ("", str(tmp_path / "keys" / "ca.crt")):
        host = hosts.address.partition(":")[0]
        knock = [*on, sys.executable, "-c", KNOCK, host, str(PORT), trusted]
        done = subprocess.run(knock, input=asked, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert len(found) > 50
        assert found.pop("GET /health") == [200, "{}"]
        assert found.pop("HEAD /health") == [404, ""]
        assert all(answer == [404, "{}"] for answer in found.values()), found
    # The SuperLink's own port is on the coordinator's loopback, where other users are. It obeys
    # none of them either.
    inner = inner_port(server)
    reach = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"
    away = [*on, sys.executable, "-c", reach, hosts.address.partition(":")[0], inner]
    assert subprocess.run(away, capture_output=True, timeout=60).returncode != 0
    local = tmp_path / "local"
    local.mkdir()
    home = home_of(local, f"127.0.0.1:{inner}", tmp_path / "keys" / "ca.crt")
    for words in (("run", str(app), "them"), ("list", "them")):
        obeyed, said = flwr(hosts.network.on("coordinator"), home, *words)
        assert not obeyed and "uthenticat" in said, said
    task = [*hosts.network.on("coordinator"), sys.executable, "-c", KNOCK, "127.0.0.1", inner, ""]
    asked = json.dumps([("POST", "/v1/runtime/acquire-task"), ("POST", "/v1/fleet/pull-messages")])
    done = subprocess.run(task, input=asked, capture_output=True, text=True, timeout=60)
    assert all(answer[0] in (401, 403, 412) for answer in json.loads(done.stdout).values()), done
    hosts.join(1)
    # Nothing of it was run anywhere but at home, and the study ends with its bits.
    assert server.wait(400) == 0, hosts.told()
    homes = {path.read_text() for path in (tmp_path / "loot").iterdir()}
    assert homes <= {str(path) for path in (*tmp_path.glob("home-*"), home)}
    assert not (tmp_path / "said").exists()
    assert "refused 10.77.0.4" in (tmp_path / "coordinator.log").read_text()
    run = RunFolder.open(tmp_path / "run")
    assert state(run) == state(simulated(hosts.config, tmp_path / "plain"))


def test_sites_refuse_a_hostile_coordinators_app(tmp_path: Path, hosts: Federation) -> None:
    """A plain SuperLink with the federation's own keys, and an app of its own."""
    app, on, keys = evil(tmp_path), hosts.network.on("coordinator"), tmp_path / "keys"
    home = home_of(tmp_path, hosts.address, keys / "ca.crt")
    command = [
        *(*on, processes.program("flower-superlink"), "--enable-supernode-auth"),
        *("--host", hosts.address.partition(":")[0], "--port", str(PORT)),
        *("--ssl-ca-certfile", str(keys / "ca.crt"), "--ssl-certfile", str(keys / "server.pem")),
        *("--ssl-keyfile", str(keys / "server.key"), "--disable-runtime-dependency-installation"),
    ]
    hosts.started.append(
        processes.begin(command, processes.environment(home), tmp_path / "link.log")
    )
    until = time.monotonic() + 120
    while not flwr(on, home, "list", "them")[0]:
        assert time.monotonic() < until, (tmp_path / "link.log").read_text()
    for k in range(CLIENTS):
        public = tmp_path / "keys/sites" / f"site-{k}" / "key.pub"
        assert flwr(on, home, "supernode", "register", str(public), "them")[0]
        hosts.join(k)
    until = time.monotonic() + 120
    while flwr(on, home, "supernode", "list", "them")[1].count('"online"') < CLIENTS:
        assert time.monotonic() < until, (tmp_path / "site-0.log").read_text()
    assert flwr(on, home, "run", str(app), "them")[0]
    until = time.monotonic() + 120
    while not (tmp_path / "said").exists():
        assert time.monotonic() < until, (tmp_path / "link.log").read_text()
        time.sleep(0.5)
    said = (tmp_path / "said").read_text().splitlines()
    assert len(said) == CLIENTS and all("and no other" in one for one in said), said
    # It ran at the hostile coordinator, its own machine, and nowhere else.
    assert {path.read_text() for path in (tmp_path / "loot").iterdir()} == {str(home)}
    for k in range(CLIENTS):
        assert not list((tmp_path / "state" / f"site-{k}").glob("**/evilapp*"))
