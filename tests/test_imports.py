"""Imports run one way along the data path, and the core needs torch, numpy, safetensors alone."""

import ast
import inspect
import re
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from focoop.lazy import imports_for_type_checkers

PACKAGE = Path(__file__).resolve().parents[1] / "focoop"
CORE_PACKAGES = {"torch", "numpy", "safetensors", "focoop"}
FOR_PEOPLE = "cli"  # may use the command line's packages at import time
FLOWER = "flower"  # needs flwr, an extra; nothing but the command line may need it
# open_clip, an extra, and Triton, which comes with torch where there may be a GPU.
OPENCLIP = {f"focoop.clip.{name}" for name in ("openclip", "openclip_text", "patches", "weights")}
OPENCLIP |= {f"focoop.clip.text.{name}" for name in ("kernels", "kernels_attention")}
OPENCLIP |= {"focoop.methods._bos_triton"}
# FastAPI, an extra: routes and documents are declared with its types.
OPENCLIP |= {"focoop.serve.app", "focoop.serve.schemas"}
OPENCLIP |= {"focoop.predict.hub_model"}  # huggingface_hub, an extra: a class of the hub's mixin
# Loose files first, then rooms. A room may import the lines above its own; rooms of one line do not
# import each other.
LAYERS = (
    ("errors", "lazy"),
    ("seeds", "caching", "threads", "progress"),
    ("fields", "processor", "plugins", "assets"),
    ("functional", "data", "clip"),
    ("features", "methods"),
    ("federation",),
    ("config",),
    ("scenario",),
    ("runs",),
    ("tracking",),
    ("experiments", "predict"),
    ("report",),
    ("paper",),
    ("flower", "api", "serve"),
    ("__init__",),
    ("cli",),
    ("__main__",),
)
LOOSE = 10  # files at the top of the package, at most
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
FORBIDDEN_IN_METHODS = {"flwr", "pathlib", "os", "io", "logging", "tomllib", "json", "rich"}
MODULES = sorted(PACKAGE.rglob("*.py"))
ROOMS = sorted(path.parent for path in PACKAGE.glob("*/__init__.py"))


def dotted(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


def layer(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


PLACES = sorted({layer(path) for path in MODULES})  # loose files and rooms


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path, *, anywhere: bool) -> set[str]:
    """Dotted names a module imports: at import time, or `anywhere` (inside functions too)."""
    tree = parsed(path)
    nodes = ast.walk(tree) if anywhere else import_time(tree)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative imports hide the direction"
            module = node.module or ""
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def import_time(tree: ast.Module) -> list[ast.AST]:
    found: list[ast.AST] = []
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        found.append(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        waiting.extend(ast.iter_child_nodes(node))
    return found


@pytest.mark.parametrize("here", PLACES)
def test_imports_run_one_way_and_through_the_front_door(here: str) -> None:
    assert here in RANK, f"give focoop/{here} its place in LAYERS"
    for path in (one for one in MODULES if layer(one) == here):
        for name in imported(path, anywhere=True):
            parts = name.split(".")
            if parts[0] != "focoop" or len(parts) < 2 or parts[1] not in RANK or parts[1] == here:
                continue
            assert RANK[parts[1]] < RANK[here], f"{dotted(path)} imports {name}"
            if (room := PACKAGE / parts[1]).is_dir():
                assert len(parts) == 3, f"{dotted(path)}: import {parts[-1]} from focoop.{parts[1]}"
                assert parts[2] in public_names(room), f"{dotted(path)} imports {name}"


@cache
def public_names(room: Path) -> list[str]:
    """The `__all__` of a room, read from its source."""
    for node in parsed(room / "__init__.py").body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    raise AssertionError(f"{room.name}/__init__.py has no __all__")


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_a_room_says_what_it_offers(room: Path) -> None:
    source = (room / "__init__.py").read_text(encoding="utf-8")
    text = ast.get_docstring(ast.parse(source)) or ""
    assert "May import:" in text
    offered = public_names(room)
    assert sorted(offered) == sorted(imports_for_type_checkers(source))
    module = import_module(f"focoop.{room.name}")
    files = {path.stem for path in room.iterdir()}
    for name in offered:
        value = getattr(module, name)
        assert name not in files or inspect.ismodule(value), f"focoop.{room.name}.{name} is hidden"


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_a_room_says_what_it_imports(room: Path) -> None:
    text = ast.get_docstring(parsed(room / "__init__.py")) or ""
    said = text.partition("May import:")[2].partition("\n\n")[0].partition(".")[0]
    if "every room" in said:
        return
    inside = (path for path in MODULES if path.is_relative_to(room))
    names = {name for path in inside for name in imported(path, anywhere=True)}
    used = {name.split(".")[1] for name in names if name.startswith("focoop.")}
    assert used & RANK.keys() - {room.name, "lazy"} <= set(re.findall(r"\w+", said))


def test_few_files_are_loose() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= LOOSE


@pytest.mark.parametrize("here", [name for name in PLACES if name not in (FOR_PEOPLE, FLOWER)])
def test_core_needs_three_packages(here: str) -> None:
    found = {
        dotted(path): {name.split(".")[0] for name in imported(path, anywhere=False)}
        - CORE_PACKAGES
        - set(sys.stdlib_module_names)
        for path in MODULES
        if layer(path) == here and dotted(path) not in OPENCLIP
    }
    assert {name: others for name, others in found.items() if others} == {}


def test_methods_are_pure() -> None:
    allowed = {"lazy", "clip", "errors", "fields", "functional", "methods", "seeds", "threads"}
    for path in (one for one in MODULES if layer(one) == "methods"):
        names = imported(path, anywhere=True)
        assert {name.split(".")[0] for name in names} & FORBIDDEN_IN_METHODS == set(), dotted(path)
        inside = {name.split(".")[1] for name in names if name.startswith("focoop.")}
        finds_plugins = {"plugins"} if path.stem == "_registry" else set()
        assert inside <= allowed | finds_plugins, dotted(path)


@pytest.mark.slow
def test_core_imports_where_nothing_else_is_installed() -> None:
    core = [dotted(m) for m in MODULES if layer(m) not in (FOR_PEOPLE, FLOWER, "__main__")]
    core = [name for name in core if name not in OPENCLIP]
    script = f"""
import importlib, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        absent = {{"PIL", "open_clip", "typer", "rich", "matplotlib", "timm", "cryptography"}}
        if name.split(".")[0] in absent:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Absent())
for name in {core!r}:
    importlib.import_module(name.removesuffix(".__init__"))
print("imported", len({core!r}))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=PACKAGE.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert f"imported {len(core)}" in done.stdout
