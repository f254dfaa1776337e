"""The command line: a thin layer that reads arguments, calls the library and prints.

Results go to standard output, messages to standard error. Exit codes: `failure.EXIT_CODES`.

May import: every room.
"""

from focoop.lazy import lazy_names

TYPE_CHECKING = False  # `typing` is not imported before signals are watched
if TYPE_CHECKING:
    from focoop.cli import interruption
    from focoop.cli.commands import app, main

__all__ = ["app", "interruption", "main"]

__getattr__ = lazy_names(__name__, __file__)
