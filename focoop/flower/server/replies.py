"""Replies to a round's orders: until all are here, enough of them are, or the deadline is."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from flwr.app import Error, Message
from flwr.serverapp import Grid

from focoop.errors import FederationError
from focoop.flower.journal import Journal
from focoop.flower.parcel import push_parcels
from focoop.flower.patience import Pause
from focoop.flower.server.error_words import why
from focoop.flower.server.pull import pull_each
from focoop.flower.server.roster import Roster
from focoop.flower.settings import ServerSettings

PASSING = (4, 5, 8)  # Flower's errors that may not come again: the order was lost, not refused
MALFORMED = 900  # our own, beyond those of Flower: a reply that Flower could not decode
Enough = Callable[[dict[int, Message]], bool]


@dataclass(frozen=True)
class Pauses:
    """Seconds that the server lets pass while it waits for replies.

    Attributes:
        first: after the first question without a reply; each later pause is longer.
        longest: between two questions, at most.
        look_every: between two looks at which nodes are there.
        hold: that the SuperLink may hold an answer without replies.
        least_time: left in a round, below which nobody is asked again.
    """

    first: float = 0.1
    longest: float = 2.0
    look_every: float = 3.0
    hold: float = 1.0
    least_time: float = 1.0


PAUSES = Pauses()


@dataclass
class PendingOrder:
    """A client's order: the message last sent, how often it was, and when it went away."""

    client: int
    message: Message
    tries: int = 1
    away: float | None = None
    reply: Message | None = None
    reason: str = ""


class Collection:
    """The orders of one step. `clients` are those asked, whatever message they were sent last."""

    def __init__(
        self,
        grid: Grid,
        roster: Roster,
        settings: ServerSettings,
        journal: Journal,
        round_: int,
        pauses: Pauses = PAUSES,
    ) -> None:
        self.pauses = pauses
        self.grid, self.roster, self.settings = grid, roster, settings
        self.journal, self.round = journal, round_
        self.until = time.monotonic() + settings.deadline
        self.asked: dict[int, PendingOrder] = {}
        self.waiting: dict[str, PendingOrder] = {}
        self.looked = time.monotonic()
        self.ids: dict[str, int] = {}
        self.closed = False

    def gather(
        self, orders: Sequence[tuple[int, Message]], enough: Enough | None = None
    ) -> "Collection":
        """Send the orders and wait for replies.

        Args:
            orders: Client and message of each order.
            enough: Says of the replies by client whether they are enough to end early.

        Returns:
            This collection.
        """
        self.asked = {client: PendingOrder(client, message) for client, message in orders}
        self._push(list(self.asked.values()))
        pause, held = self.pauses.first, Pause()
        while self.open:
            began, heard = time.monotonic(), False
            wait = min(self.pauses.hold, self.until - began)
            for identifier, reply in pull_each(self.grid, list(self.waiting), wait):
                heard = True
                self._receive(identifier, reply)
            took = time.monotonic() - began
            self._look()
            left = self.until - time.monotonic()
            if enough is not None and enough(self.replies):
                self.closed = True
            if not self.open or left <= 0 or self.closed:
                break
            if not heard:
                time.sleep(min(held.after(took, pause), left))
                # About a fifth of the time waited so far.
                pause = min(self.pauses.longest, 1.15 * pause)
        return self

    @property
    def open(self) -> list[PendingOrder]:
        """Return the clients that may still answer."""
        return [order for order in self.asked.values() if order.reply is None]

    @property
    def replies(self) -> dict[int, Message]:
        """Return the last replies by client: what they sent, or the error that stands for it."""
        replies = {
            k: order.reply for k, order in sorted(self.asked.items()) if order.reply is not None
        }
        return {k: reply for k, reply in replies.items() if reply is not None}

    @property
    def again(self) -> dict[int, str]:
        """Return why clients were asked more than once."""
        return {k: order.reason for k, order in self.asked.items() if order.tries > 1}

    def _push(self, those: Sequence[PendingOrder]) -> None:
        pushed = push_parcels(self.grid, [order.message for order in those])
        ids: Sequence[str | None] = list(pushed) or [None] * len(those)
        for order, identifier in zip(those, ids, strict=True):
            self.ids[order.message.metadata.message_id] = order.client
            if identifier is None:  # refused by the SuperLink, such as for a node just removed
                self._fail(order, Error(5))
            else:
                self.waiting[identifier] = order

    def _receive(self, identifier: str, reply: Message | FederationError) -> None:
        if isinstance(reply, FederationError):
            if (order := self.waiting.pop(identifier, None)) is not None and order.reply is None:
                self._fail(order, Error(MALFORMED, str(reply)))
            return
        order = self.waiting.pop(reply.metadata.reply_to_message_id, None)
        if order is None or order.reply is not None:
            self.journal.note("ignored", round=self.round, reason="a late or repeated reply")
        elif reply.has_error():
            if order not in self.waiting.values():  # an order sent since may still be answered
                self._fail(order, reply.error, reply)
        elif reply.metadata.src_node_id != self.roster.members[order.client].node:
            self.waiting[reply.metadata.reply_to_message_id] = order
            self.journal.note("ignored", round=self.round, reason="a reply of another node")
        else:
            order.reply = reply
            self.journal.note("answered", round=self.round, site=self.roster.name(order.client))

    def _fail(self, order: PendingOrder, error: Error, reply: Message | None = None) -> None:
        """Keep a lost order for another try, or let its error stand."""
        order.reason = why(error)
        if error.code in PASSING and order.tries <= self.settings.retries and self._time():
            order.away = time.monotonic()
        else:
            order.reply = reply or Message(Error(error.code, order.reason), reply_to=order.message)

    def _look(self) -> None:
        """Ask again who is back: after its order failed, or restarted with the order in hand."""
        now = time.monotonic()
        away = [order for order in self.open if order.away is not None]
        if not away and now < self.looked + self.pauses.look_every:
            return
        self.looked = now
        nodes = {info.node_id: info.last_activated_at for info in self.grid.get_nodes()}
        self.roster.notice(set(nodes))
        back = []
        for order in self.open:
            node = order.message.metadata.dst_node_id
            if order.away is not None:
                patience = min(self.settings.rejoin, self.settings.wait)
                if node in nodes:
                    back.append(order)
                elif now > order.away + patience:
                    order.reply = Message(Error(5, order.reason), reply_to=order.message)
                    self.roster.give_up(order.client)
            elif order.tries <= self.settings.retries and self._time():
                since = nodes.get(node, "")
                if since and stamp(since) > order.message.metadata.created_at:
                    order.reason = "its node was restarted"
                    back.append(order)
        for order in back:
            self._again(order)

    def _again(self, order: PendingOrder) -> None:
        before, order.away = order.message, None
        order.tries += 1
        order.message = Message(
            before.content,
            before.metadata.dst_node_id,
            before.metadata.message_type,
            ttl=self.until - time.monotonic(),
            group_id=before.metadata.group_id,
        )
        name = self.roster.name(order.client)
        self.journal.note("asked again", round=self.round, site=name, reason=order.reason)
        self._push([order])

    def _time(self) -> bool:
        return self.until - time.monotonic() > self.pauses.least_time


def stamp(text: str) -> float:
    """Read a time as the SuperLink writes it.

    Args:
        text: The time.

    Returns:
        Seconds since 1970; 0 where it cannot be read.
    """
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
