"""Settings as their source files declare them, for tab completion.

A shell waits for a completion, and importing torch takes seconds. The source text of the settings
is read instead: it says their names, their defaults and what they may be.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from focoop.lazy import imports_for_type_checkers

PACKAGE = Path(__file__).resolve().parents[1]
SETTING = "setting"  # the function that declares one


@dataclass(frozen=True)
class Outline:
    """What completion knows of one setting."""

    key: str
    default: Any
    doc: str
    choices: tuple[str, ...]


def methods() -> list[str]:
    """Return the names of the methods: the files of focoop/methods."""
    return [name for name in _modules(PACKAGE / "methods") if name != "base"]


def datasets() -> list[str]:
    """Return the names of the public datasets: files of focoop/data/datasets that declare one."""
    folder = PACKAGE / "data" / "datasets"
    return [
        name
        for name in _modules(folder)
        if "\nDATASET" in (folder / f"{name}.py").read_text(encoding="utf-8")
    ]


def settings(method: str) -> dict[str, Outline]:
    """Return what is known of the settings of a run.

    Args:
        method: Its method; unknown: without the method's settings.

    Returns:
        Outlines by key.
    """
    outlines = []
    for node in _tree("config.schema").body:
        if isinstance(node, ast.ClassDef):
            prefix = _assigned(node, "prefix")
            if node.name in ("RunConfig", "MethodConfig") or prefix is not None:
                start = "method." if node.name == "MethodConfig" else _text(prefix)
                outlines += list(_declared("config.schema", node, start))
    own = _config(f"methods.{method}") if method in methods() else None
    if own is not None:
        outlines += list(_declared(own[0], own[1], "method."))
    return {outline.key: outline for outline in outlines}


def _modules(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.py") if not path.name.startswith("_"))


@cache
def _tree(module: str) -> ast.Module:
    """The syntax tree of a module of this package."""
    path = PACKAGE.joinpath(*module.split(".")).with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def _config(module: str, name: str = "") -> tuple[str, ast.ClassDef] | None:
    """The settings class of a method's class (the module's last one): its own or inherited."""
    classes = {node.name: node for node in _tree(module).body if isinstance(node, ast.ClassDef)}
    candidates = [node for node in classes.values() if not name or node.name == name]
    for node in reversed(candidates):
        inside = [
            member
            for member in node.body
            if isinstance(member, ast.ClassDef) and member.name == "Config"
        ]
        named = _assigned(node, "Config")
        if inside:
            return module, inside[0]
        if isinstance(named, ast.Name):
            return _settings_class(module, named.id)
        for base in node.bases:
            origin = _origin(module, ast.unparse(base))
            if origin is not None and (inherited := _config(origin, ast.unparse(base))):
                return inherited
    return None


def _settings_class(module: str, name: str) -> tuple[str, ast.ClassDef] | None:
    """The settings class that `name` or `METHOD.Config` stands for in a module."""
    outer, _, inner = name.partition(".")
    origin = _origin(module, outer) or module
    if inner:
        return _config(origin, outer)
    for node in _tree(origin).body:
        if isinstance(node, ast.ClassDef) and node.name == outer:
            return origin, node
    return None


def _declared(module: str, node: ast.ClassDef, prefix: str) -> Iterator[Outline]:
    """The settings that a class declares, after those of the classes it derives from."""
    for base in node.bases:
        if inherited := _settings_class(module, ast.unparse(base)):
            yield from _declared(*inherited, prefix)
    for statement in node.body:
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.value, ast.Call)):
            continue
        if ast.unparse(statement.value.func) == SETTING:
            default, doc = (_value(module, argument) for argument in statement.value.args[:2])
            key = prefix + ast.unparse(statement.target)
            yield Outline(
                key, default, str(doc or ""), _choices(module, statement, statement.value)
            )


def _choices(module: str, declaration: ast.AnnAssign, call: ast.Call) -> tuple[str, ...]:
    """The values a setting may have, where they can be counted."""
    for keyword in call.keywords:
        if keyword.arg == "choices":
            return tuple(_value(module, keyword.value) or ())
    kind = ast.unparse(declaration.annotation)
    if kind == "bool":
        return ("true", "false")
    where, annotation = _resolved(module, declaration.annotation)
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        return tuple(_value(where, annotation.slice) or ())
    return ()


def _resolved(module: str, node: ast.expr) -> tuple[str, ast.expr]:
    """What a name stands for, and the module that says so; anything else as it is."""
    if isinstance(node, ast.Name):
        for statement in _tree(module).body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == node.id:
                return module, statement.value
        origin = _origin(module, node.id)
        if origin is not None and origin != module:
            return _resolved(origin, node)
    return module, node


def _value(module: str, node: ast.expr) -> Any:
    """A literal, or what a name stands for; None where it is computed."""
    if isinstance(node, ast.Name):
        where, resolved = _resolved(module, node)
        return None if isinstance(resolved, ast.Name) else _value(where, resolved)
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _origin(module: str, name: str) -> str | None:
    """The module of this package from which a name is imported."""
    for node in _tree(module).body:
        if not isinstance(node, ast.ImportFrom) or name not in [alias.name for alias in node.names]:
            continue
        package, _, inside = (node.module or "").partition(".")
        if package != "focoop" or not inside:
            return None
        room = PACKAGE.joinpath(*inside.split(".")) / "__init__.py"
        if room.is_file():  # a room names the module that holds what it offers
            home, _ = imports_for_type_checkers(room.read_text(encoding="utf-8"))[name]
            return home.partition(".")[2]
        return inside
    return None


def _assigned(node: ast.ClassDef, name: str) -> ast.expr | None:
    """The value of a class's plain assignment."""
    for statement in node.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
            return statement.value
    return None


def _text(node: ast.expr | None) -> str:
    return str(ast.literal_eval(node)) if node is not None else ""
