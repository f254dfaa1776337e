"""What a site's app lets through: orders within its policy, and answers without names of files.

Every message passes here. What a site does with it is noted in its own journal; what goes wrong is
told to the coordinator as a kind of error, and in full to the site's own log alone, as an exception
may hold the name of a file and a file's name that of a patient.
"""

import re
import time
from collections.abc import Callable
from logging import ERROR
from pathlib import Path

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.common.logger import log

from focoop.errors import (
    BackboneError,
    ConfigError,
    DataError,
    FederationError,
    FocoopError,
    MethodError,
    RunError,
)
from focoop.flower import settings
from focoop.flower.journal import Journal, printable
from focoop.flower.records import CONFIG, RUN_FAILED, failed_by, outcome
from focoop.flower.site.policy import Policy, PolicyFileError, Refusal
from focoop.flower.sum_records import parties_of

REFUSED, FAILED = 901, 902  # our own error codes, beyond those of Flower
SUM = "sum"
# What the coordinator is told of errors whose text stays at the site.
KINDS: tuple[tuple[type[BaseException], str], ...] = (
    (PolicyFileError, "policy: its policy file cannot be used; its log says why"),
    (ConfigError, "settings: it cannot run with these settings; its log says why"),
    (DataError, "images: its images cannot be used; its log says why"),
    (BackboneError, "backbone: it cannot load the backbone; its log says why"),
    (MethodError, "method: the method cannot run there; its log says why"),
    (RunError, "storage: it cannot read or write its files; its log says why"),
    (FocoopError, "settings: it cannot run; its log says why"),
    (MemoryError, "memory: it has too little memory"),
    (OSError, "storage: it cannot read or write its files; its log says why"),
)
OTHER = "program: an error in its program; its log says which"
PATH = re.compile(r"\S*[/\\]\S*|\S+\.[A-Za-z][A-Za-z0-9]{1,11}\b")
Handler = Callable[[Message, Context], Message]


class SiteApp(ClientApp):
    """Flower's client app behind the guard, whichever of its functions a message is for."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message, or refuse it."""
        return guarded(super().__call__, message, context)


def guarded(handle: Handler, message: Message, context: Context) -> Message:
    """Answer a message within the site's policy and note it in the site's journal.

    A node without images of its own, as in simulations, has nothing to hide and no policy: its
    errors travel as Flower sends them.

    Args:
        handle: what answers the message.
        message: the coordinator's order.
        context: of Flower; its `node_config` names the site's images, policy and state folder.

    Returns:
        The answer, or an error reply whose text holds no name of a file.
    """
    node = context.node_config
    if not node.get("data") and not node.get("policy"):
        return handle(message, context)
    began, step, number = time.monotonic(), message.metadata.message_type, None
    journal = Journal(None)
    try:
        if "state" in node:
            journal = Journal(Path(str(node["state"])) / "journal.jsonl")
        if step == RUN_FAILED:
            journal.note("run failed", reason=failed_by(message.content))
            return handle(message, context)
        number = round_of(message.content)
        _note_outcome(journal, message.content)
        place = {} if number is None else {"round": number}
        rounds = settings.sent_settings(context.run_config).get("federation.rounds")
        journal.note("asked", **place, step=step, rounds=rounds)
        policy = Policy.read(str(node.get("policy", "")))
        policy.check_message(size(message.content))
        _check_sum(policy, message.content)
        reply = handle(message, context)
        sent = reply.content if reply.has_content() else RecordDict()
        policy.check_message(size(sent), "answer")
        seconds = round(time.monotonic() - began, 1)
        tensors = tensors_of(sent)
        facts = {"bytes": size(sent), "seconds": seconds, "tensors": tensors}
        journal.note("sent", **place, step=step, **facts)
        if step == MessageType.EVALUATE and number == rounds:
            journal.note("finished", round=number)
        return reply
    except Exception as error:
        return _refused(journal, number, error, message)


def _refused(journal: Journal, number: int | None, error: Exception, message: Message) -> Message:
    """The error reply; the whole error goes to the site's journal and log."""
    code, text = (REFUSED, f"policy: {error}") if isinstance(error, Refusal) else (FAILED, "")
    text = text or told_of(error)
    event = "refused" if code == REFUSED else "failed"
    place = {} if number is None else {"round": number}
    reason = text if code == REFUSED else f"{type(error).__name__}: {error}"
    trace = None if code == REFUSED else error
    log(ERROR, "the message was not answered: %s", text, exc_info=trace)
    try:
        journal.note(event, **place, step=message.metadata.message_type, reason=reason)
    except FocoopError as second:  # a full disk must not keep the coordinator from hearing of it
        log(ERROR, "the journal cannot be written", exc_info=second)
    return Message(Error(code, text), reply_to=message)


def told_of(error: BaseException) -> str:
    """Return what the coordinator hears of an error: a kind, and no names.

    Texts of `FederationError` are about messages and numbers; what looks like a path is removed.

    Args:
        error: The error.

    Returns:
        A sentence.

    >>> told_of(DataError("images/train/jane_doe.png cannot be read"))
    'images: its images cannot be used; its log says why'
    >>> told_of(FederationError("/srv/state/secret is damaged: remove it"))
    '(a file) is damaged: remove it'
    """
    if isinstance(error, FederationError):
        return printable(PATH.sub("(a file)", str(error)))
    if "OutOfMemory" in type(error).__name__:  # torch's, which is a RuntimeError
        return dict(KINDS)[MemoryError]
    return next((text for kind, text in KINDS if isinstance(error, kind)), OTHER)


def round_of(content: RecordDict) -> int | None:
    """Return the round that an order is about, if it is about one.

    Args:
        content: The message's content.

    Returns:
        The round's number, or None.
    """
    record = content.get(CONFIG)
    number = record.get("round") if isinstance(record, ConfigRecord) else None
    return number if type(number) is int else None


def size(content: RecordDict) -> int:
    """Count the bytes of all arrays and all byte strings of a message.

    Args:
        content: The message's content.

    Returns:
        Their number.
    """
    total = 0
    for record in content.values():
        values = record.values() if isinstance(record, ArrayRecord | ConfigRecord) else ()
        for value in values:
            raw = value.data if isinstance(value, Array) else value
            total += len(raw) if isinstance(raw, bytes | str) else 0
    return total


def tensors_of(content: RecordDict) -> list[str]:
    """List the arrays that leave the site, with their shapes: "context 16 x 192 float32".

    Args:
        content: The message's content.

    Returns:
        Words.
    """
    return [
        f"{name} {' x '.join(map(str, array.shape)) or '1'} {array.dtype}"
        for record in content.values()
        if isinstance(record, ArrayRecord)
        for name, array in record.items()
    ]


def _check_sum(policy: Policy, content: RecordDict) -> None:
    record = content.get(SUM)
    count = parties_of(record) if isinstance(record, ConfigRecord) else None
    if count is not None:
        policy.check_parties(count)


def _note_outcome(journal: Journal, content: RecordDict) -> None:
    """What the coordinator says became of this site's last update, in the site's journal."""
    last_outcome = outcome(content)
    if last_outcome is not None:
        number, reason = last_outcome
        if reason:
            journal.note("left out", round=number, reason=reason)
        else:
            journal.note("accepted", round=number)
