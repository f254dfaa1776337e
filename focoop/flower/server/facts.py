"""What the parties of a federation must agree on, and what two of them do not agree on."""

from dataclasses import dataclass

from focoop import __version__


@dataclass(frozen=True)
class Facts:
    """What all parties must agree on."""

    clients: int
    backbone: str
    classes: tuple[str, ...]
    version: str


def difference(facts: Facts, wanted: Facts) -> str:
    """Describe the first thing two parties do not agree on.

    Args:
        facts: The facts of the one.
        wanted: The facts of the other.

    Returns:
        A sentence.
    """
    if facts.version != wanted.version:
        return f"focoop's version ({facts.version}, not {wanted.version}; here {__version__})"
    if facts.backbone != wanted.backbone:
        return "the backbone's weights"
    if facts.classes != wanted.classes:
        odd = sorted(set(facts.classes) ^ set(wanted.classes))
        return f"its classes ({', '.join(odd[:3]) or 'their order'})"
    return f"the number of clients ({facts.clients}, not {wanted.clients})"
