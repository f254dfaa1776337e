"""A site's events and its status in words, for the people of the site."""

from typing import Any

from focoop.flower.site.connection import duration


def line_of(event: dict[str, Any]) -> str:
    """Describe an event of the site's journal for people.

    Args:
        event: The event.

    Returns:
        A line; empty for events they need not read.
    """
    place = f"round {event['round']}: " if "round" in event else ""
    kind, reason = event["event"], event.get("reason", "")
    if kind == "sent" and event.get("step") == "query.hello":
        return "told the coordinator its name, classes and version"
    if kind == "sent" and event.get("step") == "query.keep":
        return ""
    if kind == "sent" and event.get("step") == "evaluate":
        return f"{place}evaluated in {event.get('seconds')} s"
    if kind == "sent":
        what = ", ".join(event.get("tensors", ())) or "keys and shares"
        return f"{place}sent {size_of(event.get('bytes', 0))} ({what}) in {event.get('seconds')} s"
    lines = {
        "accepted": f"{place}the update counted",
        "held back": f"{place}{reason}",
        "left out": f"{place}left out by the coordinator: {reason}",
        "refused": f"{place}refused: {reason}",
        "failed": f"{place}failed: {reason}",
        "finished": "finished: the last round is done",
        "model kept": f"this site's model: {event.get('path')} (focoop predict, focoop serve)"
        + (f"; {reason}" if reason else ""),
        "run failed": f"the run failed at the coordinator: {reason}; this site waits for it to "
        "start again",
    }
    return lines.get(kind, "")


def size_of(count: float) -> str:
    """Write bytes in a unit that people read.

    Args:
        count: Number of bytes.

    Returns:
        Words.

    >>> size_of(12568), size_of(12), size_of(3.2e6)
    ('12.6 kB', '12 bytes', '3.2 MB')
    """
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:g} bytes"


def sentences(status: dict[str, Any]) -> list[str]:
    """Describe a status in words.

    Args:
        status: The status.

    Returns:
        A line each.
    """
    state = status["state"] if status["running"] or status["state"] in ("stopped", "failed") else ""
    head = f"{status['site']}: {state or 'not running'}"
    if not state:
        head += f" (last seen {duration(status['age'])} ago, then {status['state']})"
    lines = [head + (f": {status['reason']}" if status["reason"] else "")]
    if status["running"]:
        lines[0] += f" (since {status['since']})"
    of = f" of {status['rounds']}" if status.get("rounds") else ""
    if status["round"] is not None:
        doing = status["doing"] if status["running"] and status["doing"] else ""
        done = "finished" if status["finished"] else doing or "waiting for the next order"
        lines.append(f"round {status['round']}{of}: {done}")
    if status.get("model"):
        lines.append(f"this site's model: {status['model']}")
    if status.get("model_note"):
        lines.append(f"its model: {status['model_note']}")
    if status.get("run_failed"):
        lines.append(f"the run failed at the coordinator: {status['run_failed']}")
    lines.append(
        f"{status['updates_sent']} updates sent, {status['updates_counted']} of them known to "
        f"count, {size_of(status['bytes_sent'])} in all"
    )
    if status.get("held_back"):
        lines.append(status["held_back"])
    last = status.get("last_sent")
    if last:
        what = ", ".join(last.get("tensors") or ()) or "no tensors"
        place = f"round {last['round']}, " if last.get("round") is not None else ""
        lines.append(f"last sent: {place}{last['step']}, {size_of(last['bytes'] or 0)} ({what})")
    for name, title in (("refused", "refused"), ("left_out", "left out"), ("errors", "error")):
        for entry in status[name][-3:]:
            place = f"round {entry['round']}: " if "round" in entry else ""
            lines.append(f"{title}: {place}{entry.get('reason', '')}")
    return lines
