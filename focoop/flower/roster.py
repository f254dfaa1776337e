"""Which node is which client: asked once per node, checked, and the same for all of them."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from logging import INFO, WARNING

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from focoop import __version__
from focoop.errors import FederationError
from focoop.flower.records import ABOUT

HELLO = f"{MessageType.QUERY}.hello"
MAX_CLIENTS = 1_000_000
LEAST_PATIENCE = 60.0  # seconds: a node starts a process and opens its images before it answers


@dataclass(frozen=True)
class Facts:
    """What all parties must agree on."""

    clients: int
    backbone: str
    classes: tuple[str, ...]
    version: str


@dataclass(frozen=True)
class Member:
    """A node that has said who it is."""

    node: int
    client: int
    name: str
    facts: Facts


class Roster:
    """Members by client, those connected now, and what they agree on."""

    def __init__(self, wait: float, deadline: float) -> None:
        self.wait, self.deadline = wait, deadline
        self.members: dict[int, Member] = {}
        self.online: set[int] = set()
        self.refused: dict[str, str] = {}
        self.facts: Facts | None = None

    def name(self, client: int) -> str:
        """A client's own name."""
        return self.members[client].name if client in self.members else f"client {client}"

    def present(self) -> list[int]:
        """Clients connected at the last look, sorted."""
        return sorted(k for k, member in self.members.items() if member.node in self.online)

    def gather(self, grid: Grid, enough: Callable[[], bool]) -> None:
        """Look for nodes until there are `enough`, as long as the waiting time allows."""
        until = time.monotonic() + self.wait
        self.look(grid)
        while not enough() and time.monotonic() < until:
            time.sleep(min(1.0, self.wait))
            self.look(grid)

    def assemble(self, grid: Grid) -> Facts:
        """Wait for everybody, then settle what the federation is about."""
        self.gather(grid, lambda: 0 < self._announced() <= len(self.present()))
        told = Counter(member.facts for _, member in sorted(self.members.items()))
        if not told:
            reasons = "; ".join(f"{name}: {why}" for name, why in self.refused.items())
            raise FederationError(
                f"no client answered within {self.wait:g} s"
                + (f" ({reasons})" if reasons else ": start the nodes, or give them more `wait`")
            )
        self.facts = told.most_common(1)[0][0]
        for client, member in list(self.members.items()):
            if member.facts != self.facts:
                self.refuse(member.name, f"it differs in {difference(member.facts, self.facts)}")
                del self.members[client]
        log(INFO, "%d of %d clients are here", len(self.members), self.facts.clients)
        return self.facts

    def look(self, grid: Grid) -> None:
        """Ask nodes that are new who they are."""
        self.online = set(grid.get_node_ids())
        known = {member.node for member in self.members.values()}
        # One that hangs must not hold up the others; it is asked again at the next look.
        patience = min(self.deadline, max(self.wait, LEAST_PATIENCE))
        asked = [
            Message(RecordDict(), node, HELLO, ttl=patience) for node in sorted(self.online - known)
        ]
        if not asked:
            return
        for reply in grid.send_and_receive(asked, timeout=patience):
            node = reply.metadata.src_node_id
            try:
                self.admit(read_member(reply))
            except FederationError as error:
                self.refuse(f"node {node}", str(error))

    def admit(self, member: Member) -> None:
        """A new member, unless its place is taken by a node that is still connected."""
        before = self.members.get(member.client)
        if before is not None and before.node in self.online:
            raise FederationError(f"{before.name} is client {member.client} already")
        if self.facts is not None and member.facts != self.facts:
            raise FederationError(f"it differs in {difference(member.facts, self.facts)}")
        self.members[member.client] = member
        log(INFO, "%s is client %d", member.name, member.client)

    def refuse(self, name: str, reason: str) -> None:
        """Note who takes no part, and why."""
        self.refused[name] = reason
        log(WARNING, "%s takes no part: %s", name, reason)

    def _announced(self) -> int:
        return max((member.facts.clients for member in self.members.values()), default=0)


def read_member(reply: Message) -> Member:
    """Who has answered, or why the answer cannot be used."""
    if reply.has_error():
        raise FederationError(reply.error.reason or f"error {reply.error.code}")
    about = reply.content.get(ABOUT)
    if not isinstance(about, ConfigRecord):
        raise FederationError("its answer holds no description")
    client, clients = about.get("client"), about.get("clients")
    name, backbone, version = (about.get(key) for key in ("name", "backbone", "version"))
    classes = about.get("classes")
    if type(client) is not int or type(clients) is not int or not 0 <= client < clients:
        raise FederationError(f"it calls itself client {client!r} of {clients!r}")
    if clients > MAX_CLIENTS or not isinstance(classes, list) or not classes:
        raise FederationError("its answer cannot be read")
    texts = [name, backbone, version, *classes]
    if not all(isinstance(text, str) and text.isprintable() for text in texts):
        raise FederationError("its answer cannot be read")
    facts = Facts(clients, str(backbone), tuple(str(one) for one in classes), str(version))
    return Member(reply.metadata.src_node_id, client, str(name), facts)


def difference(facts: Facts, wanted: Facts) -> str:
    """The first thing two parties do not agree on."""
    if facts.version != wanted.version:
        return f"focoop's version ({facts.version}, not {wanted.version}; here {__version__})"
    if facts.backbone != wanted.backbone:
        return "the backbone's weights"
    if facts.classes != wanted.classes:
        odd = sorted(set(facts.classes) ^ set(wanted.classes))
        return f"its classes ({', '.join(odd[:3]) or 'their order'})"
    return f"the number of clients ({facts.clients}, not {wanted.clients})"
