"""Which node is which client: asked once per node, checked, and the same for all of them."""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from focoop.errors import FederationError
from focoop.flower.identity import Registry, Site, proves
from focoop.flower.journal import Journal, printable
from focoop.flower.parcel import push_parcels
from focoop.flower.records import ABOUT, CONFIG, reading
from focoop.flower.server.error_words import why
from focoop.flower.server.facts import Facts, difference
from focoop.flower.server.pull import pull_each

POLICY = "policy: "  # how a site's refusal by its own policy begins
HELLO = f"{MessageType.QUERY}.hello"
MAX_CLIENTS = 1_000_000
LEAST_PATIENCE = 60.0  # seconds: a node starts a process and opens its images before it answers
ASK_AGAIN = 30.0  # seconds after which a node that gave no usable answer is asked once more
ASK_DECLINED = 120.0  # the same for one whose policy refuses the run
ASK_SILENT = 600.0  # the same for one that gave none


@dataclass(frozen=True)
class Hello:
    """A question under way: to whom, what it must sign, when it was sent and when it expires."""

    node: int
    challenge: str
    sent: float
    until: float


@dataclass(frozen=True)
class Member:
    """A node that has said who it is."""

    node: int
    client: int
    name: str
    facts: Facts
    images: int | None = None  # training images it declares, where counts are sent at all


class Roster:
    """Members by client, those connected now, and what they agree on."""

    def __init__(
        self,
        wait: float,
        deadline: float,
        sites: Mapping[int, Site] | None = None,
        journal: Journal | None = None,
        rejoin: float = 0.0,
    ) -> None:
        self.wait, self.deadline, self.sites = wait, deadline, sites
        self.rejoin = min(rejoin, wait)
        self.journal = journal or Journal(None)
        self.members: dict[int, Member] = {}
        self.online: set[int] = set()
        self.labels: dict[int, str] = {}
        self.refused: dict[str, str] = {}
        self.facts: Facts | None = None
        self.hellos: dict[str, Hello] = {}
        self.later: dict[int, float] = {}
        self.given_up: set[int] = set()
        self.greeted: set[int] = set()  # nodes that were asked who they are
        self.declined: set[int] = set()  # nodes whose site's policy refuses this run
        self.missing: list[str] = []  # sites that were last told to be waited for

    def name(self, client: int) -> str:
        """Return a client's name: the one its key was made for, or else its own.

        Args:
            client: The client's number.

        Returns:
            The name.
        """
        if isinstance(self.sites, Registry):
            return self.sites.names[client]
        if self.sites is not None and client in self.sites:
            return self.sites[client].name
        return self.members[client].name if client in self.members else f"client {client}"

    def present(self) -> list[int]:
        """Return the clients connected at the last look, sorted."""
        return sorted(k for k, member in self.members.items() if member.node in self.online)

    def gather(self, grid: Grid, enough: Callable[[], bool]) -> None:
        """Look for nodes until there are enough, as long as the waiting time allows.

        A node that was just asked who it is has the time a process needs to start.

        Args:
            grid: Flower's way to the nodes.
            enough: Says whether there are enough.
        """
        began = time.monotonic()
        self.look(grid)
        while not enough():
            patience = max(self.wait, LEAST_PATIENCE) if self.hellos else self.wait
            if time.monotonic() >= began + patience:
                return
            time.sleep(min(1.0, patience))
            self.look(grid)

    def muster(self, grid: Grid, wanted: Iterable[int], needed: int) -> list[int]:
        """Return which of the wanted clients are connected.

        One that has gone is waited for once, `rejoin` seconds, and then not until it was back, nor
        is one whose first answer takes longer than that; without the needed number of them, all are
        waited for as long as at the start.

        Args:
            grid: Flower's way to the nodes.
            wanted: The clients.
            needed: How many must be there.

        Returns:
            Those that are, sorted.
        """
        wanted, began = set(wanted), time.monotonic()

        def enough() -> bool:
            here = wanted & set(self.present())
            missed = wanted - here
            late = time.monotonic() >= began + self.rejoin
            coming = any(began - hello.sent < self.rejoin for hello in self.hellos.values())
            known = missed <= self.given_up and not coming
            return not missed or (len(here) >= needed and (late or known))

        self.gather(grid, enough)
        here = wanted & set(self.present())
        for client in sorted(wanted - here - self.given_up):
            self.give_up(client)
        for client in sorted(here & self.given_up):
            self.journal.note("back", site=self.name(client))
        self.given_up -= set(self.present())
        return sorted(here)

    def give_up(self, client: int) -> None:
        """Wait no more for a client until it was back.

        Args:
            client: The client's number.
        """
        self.given_up.add(client)
        self.journal.note("away", site=self.name(client))

    def assemble(self, grid: Grid) -> Facts:
        """Wait for everybody, then settle what the federation is about.

        A site whose policy refuses the run is not waited for: it may still join a later round.

        Args:
            grid: Flower's way to the nodes.

        Returns:
            What all clients agree on.

        Raises:
            FederationError: Too few clients came, or they do not agree.
        """

        def complete() -> bool:
            answered = len(self.present()) + len(self.declined & self.online)
            whole = 0 < self._announced() <= answered
            if not whole:
                self._tell_missing()
            return whole

        self.gather(grid, complete)
        votes = Counter(member.facts for _, member in sorted(self.members.items()))
        if not votes:
            reasons = "; ".join(f"{name}: {why}" for name, why in self.refused.items())
            raise FederationError(
                f"no client answered within {self.wait:g} s"
                + (f" ({reasons})" if reasons else ": start the nodes, or give them more `wait`")
            )
        self.facts = votes.most_common(1)[0][0]
        for client, member in list(self.members.items()):
            if member.facts != self.facts:
                self.refuse(member.name, f"it differs in {difference(member.facts, self.facts)}")
                del self.members[client]
        self.given_up = set(range(self.facts.clients)) - set(self.present())
        counts = f"{len(self.members)} of {self.facts.clients} clients"
        self.journal.note("assembled", reason=counts)
        return self.facts

    def _tell_missing(self) -> None:
        """Note who is waited for, whenever that changes; nothing before the first site is here."""
        here, clients = self.present(), self._announced()
        declined = {self.labels.get(node) for node in self.declined}
        names = [self.name(k) for k in range(clients) if k not in here]
        missing = [name for name in names if name not in declined]
        if missing and missing != self.missing:
            self.missing = missing
            counts = f"{len(here)} of {clients} are here"
            self.journal.note("waiting", reason=f"for {', '.join(missing)} ({counts})")

    def look(self, grid: Grid) -> None:
        """Ask nodes that are new who they are, and hear those that have answered since.

        Nobody waits for a node that hangs: its answer is heard at a later look, or never.

        Args:
            grid: Flower's way to the nodes.
        """
        nodes = list(grid.get_nodes())
        self.notice({info.node_id for info in nodes})
        self.labels |= {info.node_id: info.name for info in nodes if info.name}
        known = {member.node for member in self.members.values()}
        now = time.monotonic()
        for key in [key for key, hello in self.hellos.items() if hello.until <= now]:
            self.later[self.hellos.pop(key).node] = now + ASK_SILENT
        pending = {hello.node for hello in self.hellos.values()}
        new = [n for n in self.online - known - pending if self.later.get(n, 0.0) <= now]
        self._greet(grid, sorted(new), now)
        for identifier, reply in pull_each(grid, list(self.hellos)):
            if isinstance(reply, Message):
                identifier = reply.metadata.reply_to_message_id
            asked = self.hellos.pop(identifier, None)
            if asked is None:
                continue
            try:
                if isinstance(reply, FederationError):
                    raise reply
                self.admit(identified(reply, self.sites, asked.challenge))
                self.declined.discard(asked.node)
            except FederationError as error:
                self.later[asked.node] = now + ASK_AGAIN
                if str(error).startswith(POLICY):
                    self.declined.add(asked.node)
                    self.later[asked.node] = now + ASK_DECLINED
                self.refuse(self.labels.get(asked.node, f"node {asked.node}"), str(error))

    def notice(self, online: set[int]) -> None:
        """Take in which nodes are connected; members that came or went are noted.

        Args:
            online: Numbers of the nodes.
        """
        for client, member in sorted(self.members.items()):
            if (member.node in online) != (member.node in self.online):
                event = "online" if member.node in online else "offline"
                self.journal.note(event, site=self.name(client))
        self.online = online

    def _greet(self, grid: Grid, nodes: list[int], now: float) -> None:
        if not nodes:
            return
        patience = min(self.deadline, max(self.wait, LEAST_PATIENCE))
        asked = [Hello(node, secrets.token_hex(16), now, now + patience) for node in nodes]
        messages = [
            Message(
                RecordDict({CONFIG: ConfigRecord({"challenge": hello.challenge})}),
                hello.node,
                HELLO,
                ttl=patience,
            )
            for hello in asked
        ]
        pushed = push_parcels(grid, messages)
        for hello, identifier in zip(asked, pushed, strict=True):
            if identifier is not None:
                self.hellos[identifier] = hello
                if hello.node in self.labels and hello.node not in self.greeted:
                    self.greeted.add(hello.node)
                    self.journal.note("connected", site=self.labels[hello.node])

    def admit(self, member: Member) -> None:
        """Take in a new member.

        Args:
            member: The member.

        Raises:
            FederationError: Its place is taken by a node that is still connected.
        """
        before = self.members.get(member.client)
        if before is not None and before.node in self.online:
            raise FederationError(f"{before.name} is client {member.client} already")
        if self.facts is not None and member.facts != self.facts:
            raise FederationError(f"it differs in {difference(member.facts, self.facts)}")
        self.members[member.client] = member
        self.journal.note("joined", site=member.name, client=member.client)

    def refuse(self, name: str, reason: str) -> None:
        """Note who takes no part.

        Args:
            name: The site's name.
            reason: Why it takes no part.
        """
        reason = printable(reason)
        if self.refused.get(name) != reason:
            self.journal.note("refused", site=name, reason=reason)
        self.refused[name] = reason

    def why_absent(
        self, wanted: Iterable[int], asked: Iterable[tuple[int, Message]]
    ) -> dict[str, str]:
        """Say why clients were not asked: what was refused, or that they are not connected.

        Args:
            wanted: The clients that were drawn.
            asked: Those that were asked, and what.

        Returns:
            Reasons by name.
        """
        here, known = {client for client, _ in asked}, {}
        for client in set(wanted) - here:
            refused = self.refused.get(self.name(client)) if client not in self.members else None
            known[self.name(client)] = refused or "it is not connected"
        return dict(sorted(known.items()))

    def _announced(self) -> int:
        return max((member.facts.clients for member in self.members.values()), default=0)


@reading("its answer")
def identified(reply: Message, sites: Mapping[int, Site] | None, challenge: str) -> Member:
    """Read who has answered; where sites have keys, it must have signed its number with its own.

    Args:
        reply: The answer.
        sites: Sites by number; None: sites have no keys.
        challenge: What was to be signed.

    Returns:
        The member.

    Raises:
        FederationError: The answer cannot be used, or the signature is not the site's.
    """
    member = read_member(reply)
    if sites is None:
        return member
    site, proof = sites.get(member.client), reply.content[ABOUT].get("proof")
    if site is None:
        raise FederationError(f"no key is registered for client {member.client}")
    ids = reply.metadata.run_id, member.node
    if not isinstance(proof, bytes) or not proves(site, proof, challenge, *ids):
        raise FederationError(
            f"it calls itself client {member.client} without the key of {site.name}: start its "
            "node with the folder of keys made for it"
        )
    return replace(member, name=site.name)


def read_member(reply: Message) -> Member:
    """Read who has answered.

    Args:
        reply: The answer.

    Returns:
        The member.

    Raises:
        FederationError: The answer cannot be used.
    """
    if reply.has_error():
        raise FederationError(why(reply.error))
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
    facts = Facts(
        clients, str(backbone), tuple(str(class_name) for class_name in classes), str(version)
    )
    images = about.get("images")
    if images is not None and (type(images) is not int or images < 0):
        raise FederationError("its answer cannot be read")
    return Member(reply.metadata.src_node_id, client, str(name), facts, images)
