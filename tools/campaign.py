"""Damage the files of a small run in many ways, read them back, and count what happens.

    python -m tools.campaign --docs docs/reliability.md

A case changes one file: one bit at a random place, a cut, a removal, or an exchange with a file of
another client, set, or run of another seed. The file is then read as the commands read it. What
happens is one of three: *named* (an error, or a note and a cache made again, that names the file),
*harmless* (the same values as before), *silent* (other values and not a word). The last column must
be zero; otherwise the tool ends with exit code 1.
"""

import argparse
import random
import re
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

from focoop.errors import FocoopError
from tools.campaign_kinds import BIT, CUT, EXCHANGED, REMOVED, Kind, Reading, all_kinds

MARKS = "<!-- campaign: begin -->", "<!-- campaign: end -->"
ENDS = ("named", "harmless", "silent")
OFTEN = {BIT: 8, CUT: 1, REMOVED: 1, EXCHANGED: 2}  # of the kinds of damage
NOW_AND_THEN = 20


class Campaign:
    """Cases and what became of them, by kind of file and kind of damage.

    Args:
        seed: Seed of the places that are damaged.
    """

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self.silent: list[str] = []
        self.nameless: list[str] = []  # refusals that do not name the file

    def run(self, kind: Kind, cases: int) -> None:
        """Damage files of one kind so many times."""
        for number in range(cases):
            file = self.draw.choice(kind.files)
            reads = [*kind.reads, *(kind.now_and_then if number % NOW_AND_THEN == 0 else [])]
            self.case(kind.name, file, reads, kind.others(file), kind.ways)

    def case(
        self,
        kind: str,
        file: Path,
        reads: list[Reading],
        others: list[Path],
        ways: tuple[str, ...] = tuple(OFTEN),
    ) -> None:
        """Damage one file, read it back, restore it."""
        raw = file.read_bytes()
        chances = [way for way in ways for _ in range(OFTEN[way]) if way != EXCHANGED or others]
        way = self.draw.choice(chances)
        self.damage(way, file, raw, others)
        try:
            if way != REMOVED and file.read_bytes() == raw:
                outcome = "harmless"
            else:
                outcome = self.outcome(kind, file, reads)
        finally:
            file.write_bytes(raw)
        self.counts[kind, way, outcome] += 1
        if outcome == "silent":
            self.silent.append(f"{kind}: {way} in {file}")

    def damage(self, way: str, file: Path, raw: bytes, others: list[Path]) -> None:
        """Change a file."""
        if way == BIT:
            content = bytearray(raw)
            content[self.draw.randrange(len(raw))] ^= 1 << self.draw.randrange(8)
            file.write_bytes(content)
        elif way == CUT:
            file.write_bytes(raw[: self.draw.randrange(len(raw))])
        elif way == REMOVED:
            file.unlink()
        else:
            shutil.copy(self.draw.choice(others), file)

    def outcome(self, kind: str, file: Path, reads: list[Reading]) -> str:
        """What reading says; whoever is silent once is silent."""
        found = []
        for read, wanted in reads:
            with warnings.catch_warnings(record=True) as notes:
                warnings.simplefilter("always")
                try:
                    same = read() == wanted
                except FocoopError as error:
                    found.append("named")
                    if file.name not in str(error):
                        self.nameless.append(f"{kind}: {error}")
                    continue
            told = any(file.name in str(note.message) for note in notes)
            found.append("named" if told else "harmless" if same else "silent")
        return next(name for name in ("silent", "named", "harmless") if name in found)

    def table(self) -> str:
        """The counts as Markdown."""
        lines = [
            "| what is damaged | how | cases | named | harmless | silent |",
            "|---|---|---:|---:|---:|---:|",
        ]
        for kind, way in sorted({key[:2] for key in self.counts}):
            found = [self.counts[kind, way, name] for name in ENDS]
            numbers = " | ".join(map(str, [sum(found), *found]))
            lines.append(f"| {kind} | {way} | {numbers} |")
        found = [self.total(name) for name in ENDS]
        lines.append(f"| **all** | | {sum(found)} | {' | '.join(map(str, found))} |")
        return "\n".join(lines)

    def total(self, outcome: str) -> int:
        """All cases that ended in one way."""
        return sum(count for key, count in self.counts.items() if key[2] == outcome)


def campaign_of(share: float, seed: int = 0, root: Path | None = None) -> Campaign:
    """Run a share of the whole campaign, two cases of a kind at least.

    Args:
        share: Of the cases that each kind has.
        seed: Seed of the places that are damaged.
        root: An empty folder to work in; None: a temporary one.

    Returns:
        What became of them.
    """
    campaign = Campaign(seed)
    with tempfile.TemporaryDirectory() as place:
        for kind in all_kinds(root or Path(place)):
            campaign.run(kind, max(2, round(share * kind.cases)))
    return campaign


def main() -> None:
    """Run the campaign and print its table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--share", type=float, default=1.0, help="of the cases, 1.0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--docs", type=Path, help="write the table between its marks in this page")
    given = parser.parse_args()
    found = campaign_of(given.share, given.seed)
    print(found.table())
    print("\n".join(found.silent))
    print("\n".join(sorted(set(found.nameless))[:20]))
    if given.docs is not None:
        text = given.docs.read_text(encoding="utf-8")
        command = f"`python -m tools.campaign --share {given.share} --seed {given.seed}`"
        inside = f"{MARKS[0]}\n\n{command}:\n\n{found.table()}\n\n{MARKS[1]}"
        pattern = re.escape(MARKS[0]) + ".*" + re.escape(MARKS[1])
        given.docs.write_text(re.sub(pattern, lambda _: inside, text, flags=re.DOTALL), "utf-8")
    sys.exit(1 if found.silent else 0)


if __name__ == "__main__":
    main()
