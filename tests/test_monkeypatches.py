"""Tests pass in what they change: none replaces a constant or a private name of focoop.

Such a test knows how the code is written, not what it does. What a test must change is an argument
or a field of a dataclass. Public functions, environment variables and other packages may be
replaced.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
REPLACES = ("setattr", "setitem", "delattr", "delitem")
HIDDEN = re.compile(r"_(?!_)\w*|[A-Z][A-Z0-9_]+")  # private names and constants; no dunder


def imported(tree: ast.Module) -> dict[str, str]:
    """Names that a module imports, anywhere in it, and where they come from."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(a.asname or a.name).partition(".")[0]: a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return found


def is_ours(path: str, names: dict[str, str]) -> bool:
    """Whether a dotted path of the source begins at something imported from focoop."""
    origin = names.get(path.partition(".")[0], path)
    return origin.partition(".")[0] == "focoop"


def replaced(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of every hidden name of focoop that a test replaces."""
    names = imported(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr not in REPLACES or not node.args:
            continue
        target, *rest = node.args
        if isinstance(target, ast.Constant):  # "focoop.module.NAME"
            path = str(target.value)
        elif node.func.attr.endswith("attr") and rest:
            name = rest[0].value if isinstance(rest[0], ast.Constant) else "_computed"
            path = f"{ast.unparse(target)}.{name}"
        else:
            path = ast.unparse(target)
        if HIDDEN.fullmatch(path.rpartition(".")[2]) and is_ours(path, names):
            yield node.lineno, path


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('patch.setattr(module, "LIMIT", 3)', ["module.LIMIT"]),
        ('patch.setattr(module, "_inner", None)', ["module._inner"]),
        ("patch.setattr(module, name, None)", ["module._computed"]),
        ('patch.setitem(module.COSTS, "cpu", 3)', ["module.COSTS"]),
        ('patch.setattr("focoop.room.module.LIMIT", 3)', ["focoop.room.module.LIMIT"]),
        ('patch.setattr(module, "solve", None)', []),
        ('patch.setattr(module.Thing, "__exit__", None)', []),
        ('patch.setattr(other.constants, "OFFLINE", True)', []),
        ('patch.setattr("socket.socket", None)', []),
    ],
)
def test_what_is_found(line: str, found: list[str]) -> None:
    tree = ast.parse(f"import other\nfrom focoop.room import module\n{line}")
    assert [path for _, path in replaced(tree)] == found


def test_no_test_replaces_constants_or_private_names() -> None:
    offending = [
        f"{path.relative_to(TESTS)}:{line}: {name}"
        for path in sorted(TESTS.rglob("*.py"))
        if any(word in (text := path.read_text(encoding="utf-8")) for word in REPLACES)
        for line, name in replaced(ast.parse(text))
    ]
    assert offending == []
