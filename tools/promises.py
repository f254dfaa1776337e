"""Keep the table of promises in docs/reliability.md: one row for each tool that attacks one."""

from dataclasses import astuple, dataclass
from pathlib import Path

MARKS = "<!-- promises: begin -->", "<!-- promises: end -->"
HEAD = "| promise | how it was attacked | cases | what happened | broken | command |"
RULE = "|---|---|---:|---|---:|---|"


@dataclass(frozen=True)
class Promise:
    """One row of the table.

    Attributes:
        promise: what focoop promises; a later row of the same words replaces an earlier one.
        attack: how it was attacked.
        cases: how many times.
        happened: what happened, with counts.
        broken: how many times the promise was broken.
        command: what makes this row again.
    """

    promise: str
    attack: str
    cases: int
    happened: str
    broken: int
    command: str

    @property
    def row(self) -> str:
        """The row as Markdown."""
        cells = [f"{one:,}" if isinstance(one, int) else one for one in astuple(self)[:-1]]
        return "| " + " | ".join([*cells, f"`{self.command}`"]) + " |"


def write_promise(page: Path, promise: Promise) -> None:
    """Put a row into a page's table, in the place of an earlier one of the same promise.

    Args:
        page: a Markdown page with `MARKS`.
        promise: the row.

    Raises:
        ValueError: the page has no such marks.
    """
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(MARKS[0])
    inside, end, after = rest.partition(MARKS[1])
    if not begin or not end:
        raise ValueError(f"{page} has no {MARKS[0]} with {MARKS[1]} after it")
    rows = [line for line in inside.splitlines() if line.startswith("| ") and line != HEAD]
    heads = [line.split(" | ")[0] for line in rows]
    name = f"| {promise.promise}"
    if name in heads:
        rows[heads.index(name)] = promise.row
    else:
        rows.append(promise.row)
    table = "\n".join([HEAD, RULE, *rows])
    page.write_text(f"{before}{begin}\n\n{table}\n\n{end}{after}", encoding="utf-8")
