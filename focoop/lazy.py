"""Import on first use: the names of a room, and packages that take long to load, such as torch.

Nothing is imported here that takes time: the command line comes by before it watches signals.
"""

from __future__ import annotations

import sys
from _thread import RLock, get_ident
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

TYPE_CHECKING = False
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
    homes: dict[str, tuple[str, str]] = {}

    def get(name: str) -> Any:
        if not homes and not name.startswith("__"):
            with open(file, encoding="utf-8") as source:
                homes.update(imports_for_type_checkers(source.read()))
        if name not in homes:
            # With the module, Python itself adds the name that was probably meant.
            text = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(text, name=name, obj=sys.modules.get(package))
        module, original = homes[name]
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

    imports = {}
    for block in ast.parse(source).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for node in block.body:
                if isinstance(node, ast.ImportFrom) and node.module:
                    for alias in node.names:
                        imports[alias.asname or alias.name] = (node.module, alias.name)
    return imports


def defer(package: str) -> None:
    """Load a package, such as torch, when one of its names is first used, not when it is imported.

    Until then `import torch` and `import torch.nn.functional as F` cost nothing; `from torch import
    Tensor` loads it. Call this before anything has imported the package. A package that is loaded
    or not installed is left alone.

    Args:
        package: The name of an installed package.
    """
    from importlib.util import find_spec

    if package in sys.modules:
        return
    spec = find_spec(package)
    if spec is None or spec.loader is None or spec.submodule_search_locations is None:
        return
    sys.meta_path.insert(0, _Finder(_Deferral(package, spec)))


class _Deferral:
    """What is known of a deferred package: how to load it, and the stand-ins of its modules."""

    def __init__(self, package: str, spec: ModuleSpec) -> None:
        self.package = package
        self.spec = spec
        self.stand_ins: list[str] = []
        self.loader: int | None = None  # the thread that is loading it
        self.loaded = False
        self.lock = RLock()
        self.finder: _Finder | None = None

    def load(self) -> None:
        """Execute the package in the module that stands for it; those of its parts are dropped."""
        with self.lock:  # another thread waits here until all of it is there
            if self.loaded or self.loader is not None:
                return
            self.loader = get_ident()
            module = sys.modules[self.package]
            try:
                for name in self.stand_ins:
                    if name != self.package:
                        sys.modules.pop(name, None)
                        vars(module).pop(name.split(".")[1], None)
                if self.finder in sys.meta_path:
                    sys.meta_path.remove(self.finder)
                module.__spec__, module.__loader__ = self.spec, self.spec.loader
                self.spec.loader.exec_module(module)  # type: ignore[union-attr]
                self.loaded = True
                module.__class__ = ModuleType
            finally:
                self.loader = None


class _StandIn(ModuleType):
    """A module of a deferred package; asking it for a name loads the package."""

    def __getattr__(self, name: str) -> Any:
        deferral: _Deferral = vars(self)["_deferral"]
        own = vars(self)["__name__"]
        if own == deferral.package:
            if deferral.loader == get_ident():  # it asks itself for what it has not
                raise AttributeError(f"module {own!r} has no attribute {name!r}")
            deferral.load()
            return getattr(sys.modules[own], name)
        deferral.load()
        return getattr(import_module(own), name)


class _Finder:
    """Answers imports of a deferred package with stand-ins.

    A finder and a loader by its functions; the classes of both would take long to import.
    """

    def __init__(self, deferral: _Deferral) -> None:
        self.deferral = deferral
        deferral.finder = self

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find the package and all its modules; everything else is for others to find."""
        if name.partition(".")[0] != self.deferral.package:
            return None
        origin = self.deferral.spec.origin
        return ModuleSpec(name, self, origin=origin, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make a stand-in."""
        module = _StandIn(spec.name)
        whole = self.deferral.spec
        search = list(whole.submodule_search_locations or ())
        # What the import system asks every module for, so that asking does not load the package.
        vars(module).update(_deferral=self.deferral, __path__=search, __file__=whole.origin)
        self.deferral.stand_ins.append(spec.name)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Execute nothing yet."""
