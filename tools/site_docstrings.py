"""Docstrings as the site reads them: bare doctests become code, class attributes a list.

mkdocs.yml names this file as an extension of griffe, which reads the package for mkdocstrings.
"""

import re
from typing import Any

from griffe import Extension

DOCTEST = re.compile(r"(?:^>>> .*\n?(?:^(?!>>> )\S.*\n?)*)+", re.M)


def readable(text: str) -> str:
    """Return a docstring's text with its doctests fenced and its attributes under a usual title."""
    text = re.sub(r"^Class attributes:$", "Attributes:", text, flags=re.M)
    return DOCTEST.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text).rstrip()


class Readable(Extension):
    """Changes the docstring of every object that griffe has read."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Change one object's docstring; griffe calls it."""
        if obj.docstring and "Examples:" not in obj.docstring.value:
            obj.docstring.value = readable(obj.docstring.value)
