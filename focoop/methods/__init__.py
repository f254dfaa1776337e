"""Federated prompt-learning methods: every file of this folder without a leading underscore."""

import difflib
import inspect
import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module

from focoop.errors import ConfigError, MethodError
from focoop.methods._base import Method

__all__ = ["Method", "available", "create", "lookup"]


@cache
def available() -> Mapping[str, type[Method]]:
    """Name -> class, one per file: the directory is the registry."""
    found: dict[str, type[Method]] = {}
    for module_info in pkgutil.iter_modules(__path__):
        if module_info.name.startswith("_"):
            continue
        module = import_module(f"{__name__}.{module_info.name}")
        classes = [
            member
            for _, member in inspect.getmembers(module, inspect.isclass)
            if issubclass(member, Method) and member.__module__ == module.__name__
        ]
        if len(classes) != 1:
            raise MethodError(
                f"methods/{module_info.name}.py must define exactly one Method, "
                f"it defines {len(classes)}"
            )
        found[module_info.name] = classes[0]
    return dict(sorted(found.items()))


def lookup(name: str) -> type[Method]:
    """The class of a method, or a refusal that names the nearest."""
    methods = available()
    if name not in methods:
        near = difflib.get_close_matches(name, methods, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"no method is called {name!r}.{hint} Known: {', '.join(methods)}")
    return methods[name]


def create(name: str, settings: object | None = None) -> Method:
    """A method with its settings (an instance of its `Config`), defaults where None."""
    return lookup(name)(settings)
