"""The process that runs focoop's apps for a SuperLink or a SuperNode, and no other app.

It imports everything once and then forks a process for every task, so that a message does not wait
for Python to start. It stands in for Flower's `flower-superexec`, which runs any kind of task and
shows the task's token to all users of the machine (on a command line). It must prove to hold the
secret of whoever started it, so that no other user's program can take its tasks.

`python -m focoop.flower.deploy.worker client|server ADDRESS SECRET [CERTIFICATE]`
"""

import contextlib
import gc
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import (
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient

from focoop.flower.app_bundle import install_ours
from focoop.flower.deploy.processes import end_with_parent, plain_logs, replaced
from focoop.flower.parcel import Wrapping
from focoop.flower.patience import Pause, soon
from focoop.methods import available

POLL = 0.2  # seconds between two looks for a task, where nobody holds us
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
KINDS = {"client": TaskType.CLIENT_APP, "server": TaskType.SERVER_APP}
APPS = {"client": "focoop.flower.site.client_app", "server": "focoop.flower.server.server_app"}
RUNNERS = {
    "client": "flwr.supernode.runtime.run_clientapp",
    "server": "flwr.superlink.runtime.run_serverapp",
}


def work(kind: str, address: str, secret: Path, certificate: Path | None) -> None:
    """Take tasks and run each in a process of its own, until the parent is gone.

    Args:
        kind: `server` or `client`.
        address: Where the SuperLink or SuperNode listens.
        secret: File of the secret.
        certificate: Certificate of the SuperLink; None: no TLS.
    """
    run = runner(kind, address, certificate)
    prepare(kind)
    certificates = certificate.read_bytes() if certificate else None
    parent = os.getppid()
    with RuntimeHttpClient.from_server_address(
        address,
        insecure=certificates is None,
        root_certificates=certificates,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            SuperExecAuthHttpInterceptor(
                master_secret=secret.read_bytes(), protected_methods=frozenset({ACQUIRE})
            ),
        ],
    ) as client:
        wanted, pause = AcquireTaskRequest(supported_task_types=[KINDS[kind]]), Pause(POLL)
        while os.getppid() == parent:
            began = time.monotonic()
            try:
                answer = client.AcquireTask(wanted)
            except httpx.HTTPError:  # the node is starting, busy or on its way out
                answer, began = None, time.monotonic()
            if answer is not None and answer.HasField("task") and answer.token:
                fork(run, str(answer.token))
            else:
                time.sleep(pause.after(time.monotonic() - began))
            reap()


def prepare(kind: str) -> None:
    """Import the app and all methods, once and before the first fork.

    What is imported stays for good, and the collector of garbage need not look at it: in a forked
    process each object that it looks at is a page that both processes then have for themselves.

    Args:
        kind: `server` or `client`.
    """
    importlib.import_module(APPS[kind])
    available()
    gc.collect()
    gc.freeze()


def runner(kind: str, address: str, certificate: Path | None) -> Callable[[str], None]:
    """Return what runs a task with a token: Flower's own function, but for the app it installs.

    Args:
        kind: `server` or `client`.
        address: Where the SuperLink or SuperNode listens.
        certificate: Certificate of the SuperLink; None: no TLS.

    Returns:
        A function of the token.
    """
    module = importlib.import_module(RUNNERS[kind])
    replaced(module, "install_from_fab", install_ours)
    if kind == "client":
        name = "pull_and_inflate_object_from_tree"
        replaced(module, name, soon(getattr(module, name)))
        wrapping = Wrapping(module.pull_task_input, module.push_message)
        replaced(module, "pull_task_input", wrapping.pull)
        replaced(module, "push_message", wrapping.push)
    options: dict[str, Any] = {
        "runtime_api_address": address,
        "insecure": certificate is None,
        "certificates": certificate.read_bytes() if certificate else None,
        "runtime_dependency_install": False,  # nothing is ever installed for an app
    }

    def client(token: str) -> None:
        module.run_clientapp(token=token, parent_pid=os.getppid(), **options)

    def server(token: str) -> None:
        from flwr.supercore.logger import mirror_output_to_queue

        lines: Queue[str | None] = Queue()
        mirror_output_to_queue(lines)
        module.run_serverapp(token=token, parent_pid=os.getppid(), log_queue=lines, **options)

    return client if kind == "client" else server


def fork(run: Callable[[str], None], token: str) -> int:
    """Run a task in a new process, which ends there.

    Args:
        run: Runs the task.
        token: The task's token.

    Returns:
        The process's number.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    # Flower's own watch over the parent signals a thread that may wait for a lock without end; the
    # system's signal reaches the main thread.
    bound, parent = end_with_parent(), os.getpid()
    number = os.fork()
    if number:
        return number
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the runner sets its own
        if bound is not None:
            bound()
        if os.getppid() != parent:  # it ended before we were bound to it
            os._exit(code)
        run(token)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def reap() -> None:
    """Forget tasks that have ended."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


def main() -> None:
    """Work until the parent is gone or a signal comes."""
    plain_logs()
    kind, address, secret, *certificate = sys.argv[1:]
    with contextlib.suppress(KeyboardInterrupt):
        work(kind, address, Path(secret), Path(certificate[0]) if certificate else None)


if __name__ == "__main__":
    main()
