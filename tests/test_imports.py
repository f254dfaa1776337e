"""Imports run one way along the data path, and the core needs torch, numpy, safetensors alone."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "focoop"
CORE_PACKAGES = {"torch", "numpy", "safetensors", "focoop"}
# Modules for people rather than numbers may use the command line's packages at import time.
FOR_PEOPLE = ("cli", "doctor", "show")
FLOWER = "flower"  # needs flwr, an extra; nothing but the command line may need it
# open_clip, an extra, and Triton, which comes with torch where there may be a GPU.
OPENCLIP = {f"focoop.clip.{name}" for name in ("openclip", "patches", "weights")}
OPENCLIP |= {f"focoop.clip.{name}" for name in ("kernels", "kernels_attention")}
OPENCLIP |= {"focoop.methods._climb"}
# A module may import its own layer and those to the left of it.
LAYERS = (
    ("errors", "__init__"),
    ("seeds", "atomic", "cores", "kept", "processor", "watch"),
    ("tensorcache", "linesearch", "marginals", "words"),
    ("transport", "transport_dual", "partial_transport", "scores", "metrics"),
    ("data",),
    ("settings",),
    ("clip",),
    ("featureset", "featurefile", "encode", "features"),
    ("partition", "negatives"),
    ("methods",),
    ("robust", "privacy", "secure_sum", "payload"),
    ("federation",),
    ("schema",),
    ("config",),
    ("evaluation",),
    ("durable", "manifest"),
    ("runstore",),
    ("runs",),
    ("split",),
    ("scenario", "mined"),
    ("experiment",),
    ("workers", "tables"),
    ("grid",),
    ("compare",),
    ("choice",),
    ("tune",),
    ("show", "doctor", "flower"),
    ("cli",),
    ("__main__",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
FORBIDDEN_IN_METHODS = {"flwr", "pathlib", "os", "io", "logging", "tomllib", "json", "rich"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def dotted(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


def layer(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path, *, anywhere: bool) -> set[str]:
    """Dotted names a module imports: at import time, or `anywhere` (inside functions too)."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
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


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_imports_run_one_way(path: Path) -> None:
    here = layer(path)
    assert here in RANK, f"give focoop/{here} its place in LAYERS"
    for name in imported(path, anywhere=True):
        parts = name.split(".")
        if parts[0] != "focoop" or len(parts) < 2 or parts[1] not in RANK:
            continue
        assert RANK[parts[1]] <= RANK[here], f"{dotted(path)} imports {name}"


@pytest.mark.parametrize(
    "path",
    [m for m in MODULES if layer(m) not in (*FOR_PEOPLE, FLOWER) and dotted(m) not in OPENCLIP],
    ids=dotted,
)
def test_core_needs_three_packages(path: Path) -> None:
    roots = {name.split(".")[0] for name in imported(path, anywhere=False)}
    assert roots - CORE_PACKAGES - set(sys.stdlib_module_names) == set()


@pytest.mark.parametrize("path", [m for m in MODULES if layer(m) == "methods"], ids=dotted)
def test_methods_are_pure(path: Path) -> None:
    names = imported(path, anywhere=True)
    assert {name.split(".")[0] for name in names} & FORBIDDEN_IN_METHODS == set()
    inside = {name.split(".")[1] for name in names if name.startswith("focoop.")}
    assert inside <= {
        "clip",
        "cores",
        "errors",
        "methods",
        "scores",
        "transport",
        "transport_dual",
        "partial_transport",
        "metrics",
        "seeds",
        "settings",
    }


def test_core_imports_where_nothing_else_is_installed() -> None:
    core = [dotted(m) for m in MODULES if layer(m) not in (*FOR_PEOPLE, FLOWER, "__main__")]
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
