"""Every public function says in its docstring what it takes, returns and raises.

`pydoclint` (make check) compares the names in a docstring with the signature. This test demands
that there are sections at all.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "focoop"
DONE = ("functional", "features", "config", "scenario", "runs", "")  # "": files at the top
FILES = sorted(
    path for room in DONE for path in (PACKAGE / room).glob("**/*.py" if room else "*.py")
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


def contract() -> set[str]:
    """The functions of a method, which its base class documents for all methods."""
    source = (PACKAGE / "methods" / "base.py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == "Method":
            return {one.name for one in node.body if isinstance(one, Function)}
    raise AssertionError("methods/base.py has no Method")


def lacking(name: str, node: Function, owner: ast.ClassDef | None) -> Iterator[str]:
    """What a docstring does not say."""
    text = ast.get_docstring(node) or ""
    first = text.split("\n")[0]
    overrides = owner is not None and bool(owner.bases) and node.name in contract()
    command = any("Annotated" in ast.unparse(a.annotation) for a in node.args.args if a.annotation)
    if overrides or command:  # documented by the base class, or by the options themselves
        return
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    arguments += [one for one in (node.args.vararg, node.args.kwarg) if one is not None]
    names = [one.arg for one in arguments if one.arg not in ("self", "cls") and one.arg[0] != "_"]
    entries = text.partition("Args:\n")[2].partition("\n\n")[0]
    for argument in names:
        if f"{argument}:" not in entries:
            yield f"{name}: Args lacks {argument}"
    returned = ast.unparse(node.returns) if node.returns else "None"
    sections = "Returns:\n" in text or "Yields:\n" in text
    one_line = not names and first.startswith(("Return ", "Yield "))
    if returned not in ("None", "Never", "NoReturn") and not sections and not one_line:
        yield f"{name}: no Returns"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_docstrings_have_sections(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    problems = [text for found in functions(tree) for text in lacking(*found)]
    assert problems == []
