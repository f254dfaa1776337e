"""The deploy guide is what happens: its commands exist, and followed to the letter they work."""

import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

import yaml
from typer.main import get_command

from focoop.caching import cache_folder
from focoop.cli import app
from focoop.cli.status_page import STATUS_PORT
from focoop.config.loading import load
from focoop.flower.journal import events
from focoop.runs import RunFolder
from tests.flower.processes import free_ports
from tests.flower.test_runners import ROOT

SPEC = importlib.util.spec_from_file_location("follow_deploy", ROOT / "tools" / "follow_deploy.py")
assert SPEC is not None and SPEC.loader is not None
follower = importlib.util.module_from_spec(SPEC)
sys.modules["follow_deploy"] = follower  # dataclasses look their module up
SPEC.loader.exec_module(follower)
IMAGES = ROOT.parent / "shared" / "images" / "office_caltech10"


def commands() -> list[list[str]]:
    """Every command of focoop in the guide, word by word."""
    lines = [
        line
        for block in follower.blocks()
        if block.told("at") is not None and block.told("file") is None
        for line in block.text.replace("\\\n", " ").splitlines()
    ]
    return [shlex.split(line) for line in lines if line.startswith("focoop ")]


def check_command(words: list[str]) -> None:
    """Whether focoop's command line reads these words; an unknown option raises."""
    command = get_command(app)
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    before = ["", *words]  # a file of classes must be there, and is not here
    given = [
        "a; b" if last == "--classes" else word for last, word in zip(before, words, strict=False)
    ]
    context = command.make_context("focoop", given)
    assert not context.args


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_of_the_guide_is_one(words: list[str]) -> None:
    check_command(words[1:])


def test_the_guides_settings_are_a_configuration(tmp_path: Path) -> None:
    texts = {block.told("file"): block.text for block in follower.blocks() if block.told("file")}
    (tmp_path / "run.toml").write_text(texts["run.toml"])
    config = load(tmp_path / "run.toml", [])
    assert (config.federation.rounds, config.method.name) == (5, "focoop")
    assert len(texts["classes.txt"].split()) == 10


def test_a_block_without_a_comment_is_noticed(tmp_path: Path) -> None:
    guide = tmp_path / "guide.md"
    guide.write_text("<!-- at: site -->\n```sh\nls\n```\n\n```sh\nrm x\n```\n")
    with pytest.raises(SystemExit, match="no comment"):
        follower.blocks(guide)


def test_a_federation_of_four_takes_ten_commands_and_four_copied_files() -> None:
    """From the installation to the first round; looking before joining is not needed."""
    count: Counter[str] = Counter()
    for block in follower.blocks():
        who, times = block.told("at"), 1
        if block.told("once round") is not None:
            break
        if who is None or block.told("file") is not None or who not in ("coordinator", "site"):
            continue
        if who == "site" or block.told("for each site") is not None:
            times = len(follower.SITES)
        for line in block.text.replace("\\\n", " ").splitlines():
            count[line.split()[0]] += times
    assert count == {"focoop": 6, "scp": 4}


UNITS = sorted((ROOT / "deploy").glob("*.service"))


def unit_command(text: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    return shlex.split(line.partition("=")[2])


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_service_runs_a_command_of_the_guide_and_can_write_what_it_must(path: Path) -> None:
    text = path.read_text()
    command = unit_command(text)[1:]
    if path.stem == "focoop-serve":
        assert f"`focoop {' '.join(command)}`" in (ROOT / "docs/guides/serve.md").read_text("utf-8")
        check_command(command)
    else:
        assert ["focoop", *command] in commands()
    assert "WantedBy=multi-user.target" in text  # after a reboot, too
    # Flower unpacks apps in a temporary folder; all else is in the state and the cache.
    settings = dict(line.split("=", 1) for line in text.splitlines() if "=" in line[:40])
    assert settings["PrivateTmp"] == "true" and settings["ProtectSystem"] == "strict"
    assert settings["StateDirectory"] == settings["CacheDirectory"] == "focoop"
    assert settings["WorkingDirectory"] == "/var/lib/focoop"
    assert "FOCOOP_CACHE=/var/cache/focoop" in settings["Environment"]
    assert settings["SuccessExitStatus"] == "130 143" and settings["UMask"] == "0077"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_takes_the_service(path: Path, tmp_path: Path) -> None:
    text = path.read_text().replace("/opt/focoop/bin/focoop", "/bin/true")
    (tmp_path / path.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / path.name)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    told = [line for line in done.stderr.splitlines() if path.name in line]
    assert not told and done.returncode == 0, done.stderr


# The sandbox of the units: a temporary folder of their own, nothing else writable but two folders.
SANDBOX = """
mount --bind "$1" /mnt
mount --bind "$2" /media
mount -t tmpfs tmpfs /tmp
mount -o remount,bind,ro /
shift 2
cd /mnt
exec "$@"
"""


def sandboxed(state: Path, cache: Path, command: list[str]) -> list[str]:
    """A command with `state` as /mnt, `cache` as /media and a new /tmp; all else is read-only."""
    shell = ["unshare", "-m", "--propagation", "private", "sh", "-ec", SANDBOX, "sh"]
    return [*shell, str(state), str(cache), *command]


def sandboxable(folder: Path) -> bool:
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    try:  # in a clone below /tmp, which the sandbox hides, its Python is not found
        command = sandboxed(folder, folder, [sys.executable, "-c", "pass"])
        done = subprocess.run(command, capture_output=True, timeout=20)
    except OSError:
        return False
    return done.returncode == 0


@pytest.mark.slow
def test_services_need_to_write_nothing_but_state_cache_and_temporary_files(tmp_path: Path) -> None:
    if not sandboxable(tmp_path):
        pytest.skip("needs root, unshare and a clone outside /tmp")
    (port,) = free_ports(1)
    places = {name: tmp_path / name for name in ("coordinator", "site", "cache-c", "cache-s")}
    for place in places.values():
        place.mkdir(mode=0o700)
    focoop = [sys.executable, "-m", "focoop"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    env |= {"HOME": "/mnt", "FOCOOP_CACHE": "/media", "PYTHONDONTWRITEBYTECODE": "1"}
    share = [sys.executable, str(ROOT / "deploy" / "share_packaged.py"), str(tmp_path), "utrecht"]
    subprocess.run(share, env=env, check=True, timeout=100)
    words = f"federation create study --host 127.0.0.1:{port} --sites utrecht --quorum 1.0"
    words += " --set method.name=promptfl --set federation.rounds=1 --set federation.epochs=1"
    words += f" --set partition.shots=0 --classes {tmp_path / 'classes.txt'}"
    made = [*focoop, *words.split()]
    subprocess.run(made, env=env, check=True, timeout=100, cwd=places["coordinator"])
    shutil.copy(places["coordinator"] / "study/bundles/utrecht.focoop", places["site"])
    shutil.copy(tmp_path / "utrecht.safetensors", places["site"])
    units = {path.stem: unit_command(path.read_text())[1:] for path in UNITS}
    data = ["file:utrecht.safetensors" if "folder:" in w else w for w in units["focoop-site"]]
    begin = {
        "coordinator": sandboxed(
            places["coordinator"], places["cache-c"], [*focoop, *units["focoop-coordinator"]]
        ),
        "site": sandboxed(places["site"], places["cache-s"], [*focoop, *data]),
    }
    running = {}
    try:
        for name, command in begin.items():
            with open(tmp_path / f"{name}.log", "wb") as log:
                running[name] = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        code = running["coordinator"].wait(400)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait(60)
    said = "".join((tmp_path / f"{name}.log").read_text() for name in begin)
    assert code == 0 and "round 1/1, 1 updates" in said, said
    assert running["site"].returncode == 0 and "utrecht: stopped" in said


COMPOSE = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())


def test_the_compose_files_services_are_whole() -> None:
    services = COMPOSE["services"]
    sites = [name for name in services if name not in ("setup", "coordinator")]
    assert len(sites) == 3
    for name in sites:
        kind, *health = services[name]["healthcheck"]["test"]
        check_command(health[1:])
        state = [word for word in services[name]["command"] if word.startswith("--state=")]
        assert kind == "CMD" and health[0] == "focoop" and state == health[-1:]
    page = services["coordinator"]["healthcheck"]["test"][-1]
    assert f"http://127.0.0.1:{STATUS_PORT}/" in page
    for name, service in services.items():
        assert service["build"]["dockerfile"] == "deploy/Dockerfile"
        assert service.get("restart") == (None if name == "setup" else "unless-stopped")
        assert service["read_only"] and service["tmpfs"] == ["/tmp"] and "ports" not in service
        named = {text.split(":")[0] for text in service["volumes"]} - {"./share_packaged.py"}
        assert named <= set(COMPOSE["volumes"])
        if name != "setup":
            assert "setup" in service["depends_on"]
            check_command([str(word) for word in service["command"]])
    script = services["setup"]["command"][0].replace("\\\n", " ")
    (line,) = [line for line in script.splitlines() if line.startswith("focoop ")]
    words = shlex.split(line)[1:]
    check_command(words)
    assert words[words.index("--sites") + 1].split(",") == sites
    last = (ROOT / "deploy" / "Dockerfile").read_text().split("\nFROM ")[-1]  # made by default
    assert last.count("\nUSER 10001\n") == 1 and 'ENTRYPOINT ["focoop"]' in last
    assert last.startswith(f"${{BASE}} AS {services['setup']['build']['target']}\n")


@pytest.mark.slow
def test_the_compose_files_commands_are_a_federation(tmp_path: Path) -> None:
    """The containers' commands as processes of this machine: folders for volumes, loopback."""
    port, page = free_ports(2)
    services = COMPOSE["services"]

    def healthy(name: str) -> int:
        command = [here(word, name) for word in services[name]["healthcheck"]["test"][1:]]
        done = subprocess.run(command, env=env, capture_output=True, timeout=60)
        return done.returncode

    def here(text: str, name: str) -> str:
        text = text.replace(f":{STATUS_PORT}/", f":{page}/")
        text = text.replace("coordinator:8000", f"127.0.0.1:{port}")
        text = text.replace("/federation", str(tmp_path / "federation"))
        text = text.replace("/var/lib/focoop", str(tmp_path / name))
        return text.replace("/share_packaged.py", str(ROOT / "deploy" / "share_packaged.py"))

    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    env |= {"FOCOOP_CACHE": str(tmp_path / "cache"), "PYTHONUNBUFFERED": "1"}
    script = here(services["setup"]["command"][0], "setup")
    made = subprocess.run(
        ["/bin/sh", "-ec", script], env=env, capture_output=True, text=True, timeout=200
    )
    assert made.returncode == 0, made.stderr
    running = {}
    try:
        for name, service in services.items():
            if name == "setup":
                continue
            (tmp_path / name).mkdir()
            words = [here(str(word), name) for word in service["command"]]
            words += ["--status-port", str(page)] if name == "coordinator" else []
            with open(tmp_path / f"{name}.log", "wb") as log:
                command = [sys.executable, "-m", "focoop", *words]
                running[name] = subprocess.Popen(
                    command, env=env, stdout=log, stderr=log, cwd=tmp_path
                )
        while healthy("coordinator") and running["coordinator"].poll() is None:
            time.sleep(0.5)  # until its page answers
        assert running["coordinator"].poll() is None and healthy("coordinator") == 0
        code = running["coordinator"].wait(500)
        alive = [healthy(name) for name in running]
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait(60)
    assert (alive, [healthy(name) for name in running]) == ([1, 0, 0, 0], [1, 1, 1, 1])
    said = (tmp_path / "coordinator.log").read_text()
    assert code == 0 and "round 3/3, 3 updates" in said, said
    for name in ("north", "south", "west"):
        assert f"{name} has sent its key" in said
        assert "nothing was sent" in (tmp_path / f"{name}.log").read_text()


@pytest.mark.slow
def test_the_guide_followed_to_the_letter_ends_with_the_simulators_bits(tmp_path: Path) -> None:
    """A coordinator and four sites, TLS and keys, five rounds, a restart in the middle."""
    work, (port,) = tmp_path / "work", free_ports(1)
    # Encoding WordNet's words takes longest: what this machine has of them is used.
    (work / "cache").mkdir(parents=True)
    known = cache_folder(None, "negatives")
    known.mkdir(parents=True, exist_ok=True)
    (work / "cache" / "negatives").symlink_to(known.resolve())
    images = ["--images", str(IMAGES)] if IMAGES.is_dir() else []
    command = [sys.executable, str(ROOT / "tools" / "follow_deploy.py"), "--work", str(work)]
    with open(tmp_path / "log.txt", "wb") as log:
        done = subprocess.run(
            [*command, "--port", str(port), *images],
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    said = (tmp_path / "log.txt").read_text(errors="replace")
    assert done.returncode == 0, said[-5000:]
    assert "largest difference from the simulator: 0;" in said
    assert "utrecht says of images/test/" in said  # calibrated, asked and served
    run = work / "coordinator" / "study" / "run"
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["status"] == "finished"
    rounds = RunFolder.open(run).manifest["rounds"]
    assert [entry.get("accepted") for entry in rounds[1:]] == [[0, 1, 2, 3]] * 5
    told = events(run.parent / "run-flower" / "journal.jsonl")
    reasons = [one["reason"] for one in told if one["event"] == "began"]
    assert len(reasons) == 2 and reasons[1] in [f"after round {k}" for k in (1, 2, 3, 4)], reasons
    line = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert [row["client"] for row in line["clients"]] == [0, 1, 2, 3]
    for site in follower.SITES:
        state = work / site / "focoop-site"
        private = list(state.glob("*/*/*/round-0005.safetensors"))
        assert len(private) == 1 and state.stat().st_mode & 0o077 == 0
        shown = (work / site / "output.txt").read_text()
        assert "the coordinator has this site's key" in shown and "nothing was sent" in shown
