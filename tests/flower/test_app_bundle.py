"""Machines of a federation run the app of the installed focoop and open no other bundle."""

import importlib.util
import io
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Message, RecordDict
from flwr.common.config import get_fab_config
from flwr.common.constant import ACCESS_TOKEN_KEY, ErrorCode
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supernode.nodestate import NodeStateFactory

from focoop import __version__
from focoop.errors import FederationError
from focoop.flower import app_bundle
from focoop.flower.deploy import processes, superlink, supernode, worker
from focoop.flower.in_process import identify

PATCHED = (
    *("http_request_response", "_verify_fab", "FAB_VERIFICATION_ERROR", "time", "pull_objects"),
    "_push_messages",
)


@pytest.fixture
def guarded() -> Iterator[None]:
    """Flower's node as it is in the process of a site."""
    kept = {name: getattr(supernode.loop, name) for name in PATCHED}
    start, server = supernode.program.start_client_internal, supernode.program.uvicorn
    supernode.guard()
    yield
    for name, value in kept.items():
        setattr(supernode.loop, name, value)
    supernode.program.start_client_internal = start
    supernode.program.uvicorn = server


def other(**files: str) -> bytes:
    """A bundle that Flower would run: ours with one line more."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("pyproject.toml", app_bundle.APP)
        for name, data in files.items():
            archive.writestr(f"{name}.py", data)
    return file.getvalue()


def test_the_bundle_is_one_flower_takes_and_has_the_same_bytes_everywhere(tmp_path: Path) -> None:
    found = get_fab_config(app_bundle.app_bundle())
    assert found["project"]["version"] == __version__
    assert set(found["tool"]["flwr"]["app"]["components"].values()) == {
        "focoop.flower.server.server_app:app",
        "focoop.flower.site.client_app:app",
    }
    code = "from focoop.flower.app_bundle import fingerprint; print(fingerprint())"
    env = {**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-c", f"import os; os.umask(0o077)\n{code}"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == app_bundle.fingerprint(), done.stderr
    assert not app_bundle.is_ours(app_bundle.app_bundle() + b"\0")


def test_another_bundle_is_refused_before_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    assert app_bundle.install_ours(app_bundle.app_bundle(), skip_prompt=True).is_dir()
    monkeypatch.setattr(zipfile, "ZipFile", None)  # whoever opens one fails
    with pytest.raises(FederationError, match="and no other: install the same version"):
        app_bundle.install_ours(b"PK anything", skip_prompt=True)


def pulled(fab: Fab, named: str) -> tuple[Message | None, list[str]]:
    """A site's reply to an order of a run whose app is `fab`, and what it fetched."""
    factory = NodeStateFactory(objectstore_factory=ObjectStoreFactory())
    state, store = factory.state(), factory.objectstore_factory.store()
    state.set_node_id(5)
    identify()
    order = Message(RecordDict(), 5, "train", ttl=100.0)
    order.metadata.__dict__.update(_run_id=3, _src_node_id=1)
    order.metadata.__dict__["_message_id"] = order.object_id
    run = Run.create_empty(3)
    run.fab_hash = named
    fetched: list[str] = []

    def get_fab(fab_hash: str, run_id: int) -> Fab:
        fetched.append(fab_hash)
        return fab

    supernode.loop._pull_and_store_message(
        state=state,
        object_store=store,
        node_config={},
        receive=lambda: (order, get_object_tree(order)),
        get_run=lambda number: run,
        get_fab=supernode.only_ours(get_fab),
        pull_object=lambda number, name: order.deflate(),
        confirm_message_received=lambda number, name: None,
        trusted_entities={"focoop": app_bundle.fingerprint()},
    )
    replies = state.get_messages_legacy(is_reply=True)
    return (replies[0] if replies else None), fetched


@pytest.mark.usefixtures("guarded")
def test_a_site_answers_an_order_of_another_app_with_a_refusal() -> None:
    ours, evil = app_bundle.app_bundle(), other(evil="import os")
    reply, fetched = pulled(Fab(app_bundle.fingerprint(), ours, {}), app_bundle.fingerprint())
    assert reply is None and len(fetched) == 1  # it goes to the worker
    # By an honest name it is not even fetched; under our name its bytes betray it.
    for named, count in (("0" * 64, 0), (app_bundle.fingerprint(), 1)):
        told = {"valid_license": "yes", "focoop": "{}"}
        reply, fetched = pulled(Fab(named, evil, told), named)
        assert len(fetched) == count and reply is not None and reply.has_error()
        assert reply.error.code == ErrorCode.INVALID_FAB
        assert f"focoop {__version__}" in str(reply.error.reason)


def test_a_flower_that_has_moved_what_is_guarded_is_refused() -> None:
    with pytest.raises(FederationError, match="install 'focoop"):
        processes.replaced(supernode.loop, "no_such_name", None)


def test_the_workers_apps_are_installed_by_our_check_alone() -> None:
    for kind, name in worker.RUNNERS.items():
        worker.runner(kind, "127.0.0.1:1", None)
        assert sys.modules[name].install_from_fab is app_bundle.install_ours


def test_every_program_that_is_started_is_there() -> None:
    path = Path("keys")
    commands = [
        processes.superlink(path, 1, path / "db", path / "secret"),
        processes.supernode(path, "127.0.0.1:1", 2, {"name": "ghent"}, path / "secret"),
        *(processes.worker(kind, "127.0.0.1:1", path / "secret") for kind in worker.RUNNERS),
    ]
    for command in commands:
        module = command[command.index("-m") + 1]
        assert importlib.util.find_spec(module) is not None, module


def test_the_superlink_obeys_the_holder_of_the_secret_alone() -> None:
    plugin = superlink.OwnerAlone("right")
    assert plugin.validate_tokens_in_metadata([(ACCESS_TOKEN_KEY, "right")])[0]
    for wrong in ([], [(ACCESS_TOKEN_KEY, "wrong")], [("x", "right")], [(ACCESS_TOKEN_KEY, "")]):
        assert plugin.validate_tokens_in_metadata(wrong) == (False, None)
    assert not superlink.OwnerAlone("").validate_tokens_in_metadata([(ACCESS_TOKEN_KEY, "")])[0]


@pytest.mark.slow
def test_a_worker_has_touched_no_gpu_before_it_forks() -> None:
    """A process cannot use CUDA if its parent has."""
    code = """
import torch
def touched(*_, **__): raise SystemExit("a GPU was touched")
for name in ("_lazy_init", "is_available", "device_count", "get_device_name"):
    setattr(torch.cuda, name, touched)
from focoop.flower.deploy import worker
worker.prepare("client")
import threading
print(threading.active_count(), torch.cuda.is_initialized())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout.split() == ["1", "False"], done.stdout + done.stderr


@pytest.mark.slow
def test_a_task_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    """In a process without threads, as the worker is."""
    code = f"""
import os, sys
from pathlib import Path
from focoop.flower.deploy import worker
def run(token):
    if token == "raises": raise ValueError("told in the log")
    if token == "exits": sys.exit(3)
    Path({str(tmp_path)!r}, token).write_text(str(os.getpid()))
codes = [os.waitstatus_to_exitcode(os.waitpid(worker.fork(run, t), 0)[1])
         for t in ("fine", "raises", "exits")]
worker.reap()
print(codes, os.getpid())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout.startswith("[0, 1, 3]"), done.stderr
    assert "told in the log" in done.stderr
    assert (tmp_path / "fine").read_text() != done.stdout.split()[-1]


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Whether a process ends in time; one that nobody waits for counts as ended."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if ") Z" in Path(f"/proc/{pid}/stat").read_text():
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl and /proc")
def test_a_task_ends_with_its_worker_though_its_main_thread_waits_for_a_lock() -> None:
    """As Flower's client does while a SuperLink is away."""
    code = """
import os, signal, threading, time
from focoop.flower.deploy import worker
def run(token):
    signal.signal(signal.SIGTERM, lambda *_: os._exit(3))
    lock = threading.Lock()
    lock.acquire()
    print(os.getpid(), flush=True)
    lock.acquire()
worker.fork(run, "x")
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    assert gone(child)


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl and /proc")
def test_a_worker_that_dies_is_started_again_and_ends_with_its_node(tmp_path: Path) -> None:
    lives = tmp_path / "lives"
    work = f"import os, time; open({str(lives)!r}, 'a').write(f'{{os.getpid()}} '); time.sleep(60)"
    script = f"""
import sys, threading, time
from focoop.flower.deploy import supernode as node
node.PAUSE = 0.05
command = [sys.executable, "-c", {work!r}]
threading.Thread(target=node.attend, args=(command,), daemon=True).start()
time.sleep(60)
"""

    def born(count: int) -> list[int]:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            found = lives.read_text().split() if lives.exists() else []
            if len(found) >= count:
                return [int(one) for one in found]
            time.sleep(0.05)
        raise TimeoutError(str(lives))

    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL) as parent:
        os.kill(born(1)[0], signal.SIGKILL)
        second = born(2)[1]
        parent.kill()
    assert gone(second)


def test_a_reply_left_over_does_not_take_the_place_of_the_one_at_hand() -> None:
    def reply(to: str) -> Any:
        return SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=to))

    answers, sent = supernode.Answers(), []
    order = SimpleNamespace(metadata=SimpleNamespace(message_id="hello"))
    receive = answers.receiving(iter([None, (order, None)]).__next__)
    send = answers.sending(lambda message, *_: sent.append(message.metadata.reply_to_message_id))
    # The left over reply is there at once; that to the order at hand comes at a later look.
    waiting = [[reply("train of an ended run")], [reply("hello")], [reply("too many")]]

    def push(**_: Any) -> None:
        for message in waiting.pop(0):
            send(message, None, 0.0)

    assert receive() is None and receive() is not None
    answers.pushing(push)()
    assert sent == ["train of an ended run", "hello"]
