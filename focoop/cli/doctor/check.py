"""One finding of the doctor."""

from collections.abc import Callable
from dataclasses import dataclass

from focoop.errors import FocoopError

OK, NOTE, FAIL = "ok", "note", "fail"


@dataclass(frozen=True)
class Check:
    """One finding: `state` is ok, note (something optional is absent) or fail."""

    topic: str
    state: str
    found: str
    advice: str = ""


def guarded(check: Callable[[], Check], topic: str = "") -> Check:
    """Return a finding even where looking for it fails.

    Args:
        check: Looks for it.
        topic: What it is about.

    Returns:
        The finding.
    """
    topic = topic or check.__name__.replace("_", " ")
    try:
        return check()
    except FocoopError as error:
        return Check(topic, FAIL, str(error))
    except (ImportError, OSError, RuntimeError) as error:
        return Check(topic, FAIL, f"{type(error).__name__}: {error}", "see above")
