"""The names of a run: its classes, its clients and what they hold, and the words it mined.

The numbers of a trained state mean something only together with these names. They are written to
`names.json` before the first round is committed, and compared whenever the run's data is opened
again.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from focoop.caching import checksum, parse_json
from focoop.config import RunConfig, to_toml
from focoop.errors import RunError
from focoop.runs.files import check_sum

SHOWN = 8  # differences that a message lists
Counts = Mapping[str, int]


@dataclass(frozen=True)
class Client:
    """One client: its name, and how many images of each class it trains and is tested on."""

    name: str
    train: Counts = field(default_factory=dict)
    test: Counts = field(default_factory=dict)


@dataclass(frozen=True)
class Names:
    """The names of a run.

    Attributes:
        classes: class names, in the order of the labels.
        clients: the clients, in the order of their numbers.
        words: mined negative words; empty for methods that use none.
        tested: the split whose images the run is tested on: `test` where it is one of its own,
            `all` where the test images were held out of the same images as the training images;
            empty where not known.
    """

    classes: tuple[str, ...]
    clients: tuple[Client, ...]
    words: tuple[str, ...] = ()
    tested: str = ""

    @property
    def counted(self) -> bool:
        """Return whether the numbers of images of the clients are known."""
        return any(client.train or client.test for client in self.clients)

    def to_json(self) -> str:
        """Return the text of `names.json`: one line per client, equal for equal names."""
        clients = [
            json.dumps(
                {"name": client.name, "train": client.train, "test": client.test},
                ensure_ascii=False,
            )
            for client in self.clients
        ]
        parts = [
            f'"classes": {json.dumps(self.classes, ensure_ascii=False)}',
            f'"negative_words": {json.dumps(self.words, ensure_ascii=False)}',
            f'"tested": {json.dumps(self.tested)}',
            '"clients": [\n  ' + ",\n  ".join(clients) + "\n ]",
        ]
        return "{\n " + ",\n ".join(parts) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> "Names":
        """Read the text of `names.json`.

        Args:
            text: The text.

        Returns:
            The names.
        """
        tree: Mapping[str, Any] = parse_json(text)
        return cls(
            tuple(map(str, tree["classes"])),
            tuple(Client(str(c["name"]), c["train"], c["test"]) for c in tree["clients"]),
            tuple(map(str, tree["negative_words"])),
            str(tree["tested"]),
        )

    def differences(self, now: "Names", *, of: Sequence[str] = ("train", "test")) -> list[str]:
        """List what is named or counted differently in the data as it is found now.

        Args:
            now: The names of the data as it is found.
            of: The images that are compared; `("test",)` where no training image was opened.

        Returns:
            One line per difference; empty where all agree.
        """
        lines = _class_lines(self, now)
        if not self.counted or not now.counted:  # a server of sites sees no images
            then, new = len(self.clients), len(now.clients)
            lines += [] if then == new else [f"{then} -> {new} clients"]
        else:
            lines += _client_lines(self, now)
            # Where clients are made of the classes, all they hold shifts with one class.
            if not lines or any(not client.name.isdecimal() for client in self.clients):
                lines += _count_lines(self, now, of)
        changed = [pair for pair in zip(self.words, now.words, strict=False) if pair[0] != pair[1]]
        if changed or len(self.words) != len(now.words):
            first = f", first {changed[0][0]!r} -> {changed[0][1]!r}" if changed else ""
            count = len(changed) + abs(len(self.words) - len(now.words))
            lines.append(f"{count} of the {len(self.words)} mined words are others{first}")
        return lines


def read_names(path: Path, manifest: Mapping[str, Any]) -> Names | None:
    """Read the names of a run.

    Args:
        path: The file.
        manifest: The run's manifest, with the checksum of the file.

    Returns:
        The names; None where there is no such file, as in folders of an earlier focoop.

    Raises:
        RunError: The file is damaged.
    """
    try:
        raw = path.read_bytes()
        check_sum(path, raw, manifest)
        return Names.from_json(raw.decode("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is damaged ({error}): start the run again") from error


def run_name(config: RunConfig) -> str:
    """Return what a run is known by in its checksums: all settings but the number of rounds.

    Equal runs have the same name, and a run keeps it when it is lengthened.

    Args:
        config: The run's configuration.

    Returns:
        Hexadecimal digits.
    """
    least = 2 if config.federation.late_clients else 1  # late clients need a round after another
    same = replace(config, federation=replace(config.federation, rounds=least))
    return checksum("run", to_toml(same))


def listed(lines: Sequence[str]) -> str:
    """Return the first few differences, indented, one per line.

    Args:
        lines: The differences.

    Returns:
        Text for a message.
    """
    return "".join(f"\n  {line}" for line in [*lines[:SHOWN], *["..."] * (len(lines) > SHOWN)])


def changed(then: Any, now: Any) -> str:
    """Describe two values of a fact: of tables the entries that differ, of hashes the beginning.

    Args:
        then: The value that was noted.
        now: The value that is found.

    Returns:
        Text for a message.

    >>> changed({"a": 1, "b": 2}, {"a": 1, "b": 3})
    'b: then 2, now 3'
    """
    if not isinstance(then, dict) or not isinstance(now, dict):
        return f"then {then}, now {now}"
    keys = [key for key in {**then, **now} if then.get(key) != now.get(key)]
    pairs = [[str(facts.get(key, "absent"))[:12] for facts in (then, now)] for key in keys]
    return "; ".join(f"{k}: then {a}, now {b}" for k, (a, b) in zip(keys, pairs, strict=True))


def _class_lines(old: Names, new: Names) -> list[str]:
    gone = [name for name in old.classes if name not in new.classes]
    added = [name for name in new.classes if name not in old.classes]
    lines = [f"class {name!r} is gone{_holders(old, name)}" for name in gone]
    lines += [f"class {name!r} is new{_holders(new, name)}" for name in added]
    if not lines and old.classes != new.classes:
        lines = ["the classes are in another order"]
    return lines


def _client_lines(old: Names, new: Names) -> list[str]:
    before, after = ([client.name for client in names.clients] for names in (old, new))
    lines = [f"client {name!r} is gone" for name in before if name not in after]
    lines += [f"client {name!r} is new" for name in after if name not in before]
    if not lines and before != after:
        lines = ["the clients are in another order"]
    return lines


def _count_lines(old: Names, new: Names, of: Sequence[str]) -> list[str]:
    """Clients and classes that are there then and now, with other numbers of images."""
    after = {client.name: client for client in new.clients}
    pairs = [(earlier, after[earlier.name]) for earlier in old.clients if earlier.name in after]
    names = [name for name in old.classes if name in new.classes]
    lines = []
    for earlier, other in pairs:
        for split, what in (("train", "training"), ("test", "test")):
            then, now = getattr(earlier, split), getattr(other, split)
            lines += [
                f"client {earlier.name!r}: {then.get(name, 0)} -> {now.get(name, 0)} {what} images "
                f"of {name!r}"
                for name in names
                if split in of and then.get(name, 0) != now.get(name, 0)
            ]
    return lines


def _holders(names: Names, class_name: str) -> str:
    """Who holds a class, in brackets; empty where it is nobody, or where not known."""
    holders = [
        client.name
        for client in names.clients
        if class_name in client.train or class_name in client.test
    ]
    if not holders:
        return ""
    more = ", ..." if len(holders) > SHOWN else ""
    return f" (client {', '.join(map(repr, holders[:SHOWN]))}{more})"
