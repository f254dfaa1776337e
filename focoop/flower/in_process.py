"""Both apps in this process: no network and no Ray, for tests and for one machine.

Flower's apps run inside tasks of its own; `identify` plays such a task and is the one place that
touches what flwr does not promise to keep (see tests/flower/test_in_process.py).
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from focoop.config import RunConfig, to_flat
from focoop.flower.server import server_app
from focoop.flower.site import client_app

Answer = Callable[[Message, Context], Message]
FIRST_NODE = 1000
CLIENT_RAISED = 2  # flwr's code for an exception in a ClientApp


def identify() -> None:
    """Let messages be made outside Flower's own processes."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


class InProcessGrid(Grid):
    """Nodes that answer at once, one after the other; `answers[k]` is client k's app."""

    def __init__(
        self, answers: Sequence[Answer], run_config: Mapping[str, bool | int | float | str]
    ) -> None:
        identify()
        self.answers = answers
        self.replies: dict[str, Message] = {}
        self.offline: set[int] = set()
        self.contexts = [
            Context(
                run_id=1,
                node_id=FIRST_NODE + k,
                node_config={"partition-id": k, "num-partitions": len(answers)},
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for k in range(len(answers))
        ]

    def set_run(self, run: Run) -> None:
        """Do nothing: there is one run.

        Args:
            run: Not used.
        """

    @property
    def run(self) -> Run:
        """Return an empty description."""
        return Run.create_empty(1)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Make a message, as `Message` does, which has replaced this.

        Args:
            content: Its content.
            message_type: Its type.
            dst_node_id: The node it is for.
            group_id: Its group.
            ttl: Seconds it is valid.

        Returns:
            The message.
        """
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes that are connected."""
        return [c.node_id for k, c in enumerate(self.contexts) if k not in self.offline]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Answer each message now; an exception becomes the error reply Flower makes of it.

        Args:
            messages: The messages.

        Returns:
            Their names.
        """
        ids = []
        for message in messages:
            identifier = uuid.uuid4().hex
            message.metadata.__dict__["_message_id"] = identifier
            client = message.metadata.dst_node_id - FIRST_NODE
            try:
                reply = self.answers[client](message, self.contexts[client])
            except Exception as error:  # whatever a client raises is the client's own affair
                reply = Message(Error(CLIENT_RAISED, f"{error}"), reply_to=message)
            self.replies[identifier] = reply
            ids.append(identifier)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to messages, each once.

        Args:
            message_ids: The messages' names.

        Returns:
            The replies.
        """
        return [
            self.replies.pop(message_id) for message_id in message_ids if message_id in self.replies
        ]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and return the replies; nobody is late here.

        Args:
            messages: The messages.
            timeout: Not used.

        Returns:
            The replies.
        """
        return self.pull_messages(self.push_messages(messages))


def run(
    config: RunConfig,
    out: Path,
    num_clients: int,
    *,
    answers: Sequence[Answer] | None = None,
    state: Path | None = None,
    nodes: Sequence[Mapping[str, str]] = (),
    **settings: bool | float | str,
) -> InProcessGrid:
    """Run a whole federation in this process.

    Args:
        config: The run's settings.
        out: The run folder.
        num_clients: Number of clients.
        answers: Client apps, one per client; None: ours.
        state: Folder of the clients' files.
        nodes: Each node's own configuration.
        **settings: The server's settings.

    Returns:
        The grid that the run used.
    """
    given = {name.replace("_", "-"): value for name, value in settings.items()}
    flat = {"wait": 0.0, **to_flat(config), **given, "out": str(out)}
    grid = InProcessGrid(answers or [client_app.app] * num_clients, flat)
    for context in grid.contexts:
        context.node_config["state"] = str(state or out.with_name(f"{out.name}-clients"))
    for context, node in zip(grid.contexts, nodes, strict=False):
        context.node_config.update(node)
    server_app.app(grid, Context(1, 1, {}, RecordDict(), dict(flat)))
    return grid
