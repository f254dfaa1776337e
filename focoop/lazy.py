"""Rooms whose names are imported on first use, so that importing a room costs almost nothing."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def lazy_names(package: str, file: str) -> Callable[[str], Any]:
    """Return a module's `__getattr__`, which imports the module's public names on first use.

    The names and where they live are those of the `if TYPE_CHECKING:` block in the module's own
    source, which type checkers and editors read too: every name is written down once.

    Args:
        package: The module's `__name__`.
        file: The module's `__file__`.

    Returns:
        A function for the module's `__getattr__`.
    """

    @cache
    def homes() -> dict[str, tuple[str, str]]:
        with open(file, encoding="utf-8") as source:
            return imports_for_type_checkers(source.read())

    def get(name: str) -> Any:
        if name.startswith("__") or name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = homes()[name]
        if module == package:  # a module of the room itself
            return import_module(f"{package}.{original}")
        return getattr(import_module(module), original)

    return get


def imports_for_type_checkers(source: str) -> dict[str, tuple[str, str]]:
    """Read the imports of a module's `if TYPE_CHECKING:` blocks.

    Args:
        source: The module's source text.

    Returns:
        Name in the module -> the module to import and the name there.
    """
    import ast  # here: `import focoop` alone does not need it

    found = {}
    for block in ast.parse(source).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for node in block.body:
                if isinstance(node, ast.ImportFrom) and node.module:
                    for alias in node.names:
                        found[alias.asname or alias.name] = (node.module, alias.name)
    return found
