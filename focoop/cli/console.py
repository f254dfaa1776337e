"""The consoles of all commands: lines break between words, tables fit, pipes get them unbroken."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from focoop.cli.display.sheet import wrapped

UNBROKEN = 100_000  # columns of a pipe or a file, where nothing has to be broken
_live: list["Screen"] = []  # consoles that show a bar or a table at this moment, the newest last


class Screen(Console):
    """A console for plain text and tables.

    On a terminal lines are broken between words, and a word that is longer than a line stays whole.
    In a pipe or a file lines and tables have their natural width, or that of the environment
    variable COLUMNS where it is set. Brackets and colons in a text are no markup.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)
        if not self.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
            self.width = UNBROKEN

    def print(self, *objects: Any, hang: int = 0, **options: Any) -> None:
        """Print as rich does.

        Args:
            *objects: What to print.
            hang: Spaces before the further lines of a broken text.
            **options: Options of rich.
        """
        if objects and all(isinstance(item, str) for item in objects):
            text = str(options.pop("sep", " ")).join(objects)
            super().print(wrapped(text, self.width, hang), **{**options, "soft_wrap": True})
        else:
            super().print(*objects, **{"crop": False, **options})


def out() -> Screen:
    """Return the console of standard output."""
    return Screen()


def messages() -> Screen:
    """Return the console of standard error, or the one with a live bar on the same terminal.

    A line that is written past a live bar would begin behind it.
    """
    screen = Screen(stderr=True)
    return _live[-1] if _live and screen.is_terminal else screen


@contextmanager
def showing(console: Console) -> Iterator[None]:
    """Let messages appear above the bar or table that a console shows live inside.

    Args:
        console: The console.

    Yields:
        Nothing.
    """
    ours = [console] if isinstance(console, Screen) and console.is_terminal else []
    _live.extend(ours)
    try:
        yield
    finally:
        for screen in ours:
            _live.remove(screen)
