"""Find methods by name: every file of this folder without a leading underscore holds one."""

import inspect
import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module

from focoop.errors import ConfigError, MethodError, nearest
from focoop.methods.base import Method

# What people call methods, without case and signs -> the file that holds it.
SPELLINGS = {
    "averaging": "promptfl",
    "clip": "zeroshot",
    "coop": "promptfl",
    "central": "centralized",
    "centralised": "centralized",
    "fedavg": "promptfl",
    "fedcoop": "promptfl",
    "fedprox": "promptfl",
    "gallop": "fedgallop",
    "gda": "gda_clip",
    "gdaclip": "gda_clip",
    "lapt": "fedlapt",
    "lda": "fedlda",
    "local": "local_only",
    "locoop": "fedlocoop",
    "ncm": "fedncm",
    "otp": "fedotp",
    "pgp": "fedpgp",
    "ridge": "fed3r",
}


@cache
def available() -> Mapping[str, type[Method]]:
    """Return all methods by name, one per file: the directory is the registry."""
    found: dict[str, type[Method]] = {}
    for module_info in pkgutil.iter_modules(import_module("focoop.methods").__path__):
        if module_info.name.startswith("_") or module_info.name == "base":
            continue
        module = import_module(f"focoop.methods.{module_info.name}")
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
    """Find the class of a method.

    Args:
        name: The method's name.

    Returns:
        The class.

    Raises:
        ConfigError: There is none; the message names the nearest.
    """
    methods = available()
    if name not in methods:
        hint = nearest(name, methods, spellings=SPELLINGS)
        known = "" if hint.startswith("; there are") else f" (all: {', '.join(methods)})"
        raise ConfigError(f"no method is called {name!r}{hint}{known}")
    return methods[name]


def create(name: str, settings: object | None = None) -> Method:
    """Make a method with its settings.

    Args:
        name: The method's name.
        settings: An instance of its `Config`; None: the defaults.

    Returns:
        The method.
    """
    return lookup(name)(settings)
