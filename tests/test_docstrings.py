"""Every public function says in its docstring what it takes, returns and raises.

`pydoclint` (make check) compares the names in a docstring with the signature. This test demands
that there are sections at all.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "focoop"
# A module with a leading underscore is private, but for the one that finds methods.
FILES = sorted(
    path
    for path in PACKAGE.rglob("*.py")
    if not path.stem.startswith("_") or path.stem == "_registry"
)
Function = ast.FunctionDef | ast.AsyncFunctionDef
Found = tuple[str, Function, ast.ClassDef | None]


def functions(
    tree: ast.AST, prefix: str = ""
) -> Iterator[tuple[str, Function, ast.ClassDef | None]]:
    """Public functions and methods of public classes, with their class."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function) and not node.name.startswith("_"):
            yield prefix + node.name, node, tree if isinstance(tree, ast.ClassDef) else None
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from functions(node, f"{prefix}{node.name}.")


# Functions of one signature that is documented once: what torch calls, the readers that
# `data/dataset.py` describes, and the corruptions of `data/corruptions/apply.py`.
OPTIONS = ("AsJson", "ConfigFile")  # options of a command, whose help documents them
TORCH = ("forward", "backward", "setup_context")
READERS = {("base",), ("base", "kind", "severity")}
CORRUPTIONS = {("pixels", "strength"), ("pixels", "strength", "generators")}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def classes() -> dict[str, list[tuple[set[str], list[str]]]]:
    """Methods and bases of every class of the package, by the class's name."""
    found: dict[str, list[tuple[set[str], list[str]]]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                names = {one.name for one in node.body if isinstance(one, Function)}
                found.setdefault(node.name, []).append((names, bases(node)))
    return found


def bases(owner: ast.ClassDef) -> list[str]:
    """Names of a class's bases, without what stands before a dot or in brackets."""
    return [ast.unparse(base).partition("[")[0].split(".")[-1] for base in owner.bases]


def documented(name: str, base: str) -> bool:
    """Whether a class or one of its bases has a method of this name."""
    return any(
        name in names or any(documented(name, above) for above in further if above != base)
        for names, further in classes().get(base, [])
    )


def overrides(name: str, owner: ast.ClassDef | None) -> bool:
    """Whether a base class documents this method for all classes derived from it."""
    return owner is not None and any(documented(name, base) for base in bases(owner))


def lacking(name: str, node: Function, owner: ast.ClassDef | None) -> Iterator[str]:
    """What a docstring does not say."""
    text = ast.get_docstring(node) or ""
    first = text.split("\n")[0]
    annotations = [ast.unparse(one.annotation) for one in node.args.args if one.annotation]
    command = any("Annotated" in one or one in OPTIONS for one in annotations)
    if command or overrides(node.name, owner) or node.name in TORCH:
        return
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    arguments += [one for one in (node.args.vararg, node.args.kwarg) if one is not None]
    names = [one.arg for one in arguments if one.arg not in ("self", "cls") and one.arg[0] != "_"]
    if tuple(names) in (READERS | CORRUPTIONS) and owner is None:
        return
    entries = text.partition("Args:\n")[2].partition("\n\n")[0]
    for argument in names:
        if f"{argument}:" not in entries:
            yield f"{name}: Args lacks {argument}"
    returned = ast.unparse(node.returns) if node.returns else "None"
    sections = "Returns:\n" in text or "Yields:\n" in text
    one_line = not names and first.startswith(("Return ", "Yield "))
    if returned not in ("None", "Never", "NoReturn") and not sections and not one_line:
        yield f"{name}: no Returns"


@pytest.mark.parametrize("place", sorted({path.relative_to(PACKAGE).parts[0] for path in FILES}))
def test_docstrings_have_sections(place: str) -> None:
    problems = [
        f"{path.relative_to(PACKAGE)}: {text}"
        for path in FILES
        if path.relative_to(PACKAGE).parts[0] == place
        for found in functions(parsed(path))
        for text in lacking(*found)
    ]
    assert problems == []
