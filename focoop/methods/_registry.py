"""Find methods by name: a file of this folder, a user's own file, or an installed package."""

import inspect
import pkgutil
import warnings
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from importlib import import_module
from typing import Any

from focoop.errors import ConfigError, MethodError, folded, nearest
from focoop.methods.base import Method
from focoop.plugins import class_of, is_file, plugged
from focoop.plugins import names as plugin_names

# What people call methods, without case and signs -> the file that holds it.
SPELLINGS = {
    "averaging": "promptfl",
    "clip": "zeroshot",
    "coop": "promptfl",
    "central": "centralized",
    "centralised": "centralized",
    "fedavg": "promptfl",
    "fedbayes": "focoop_plus",
    "fedcoop": "promptfl",
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


# What people look for among the methods, and what it is here.
ELSEWHERE = {
    "fedprox": "FedProx is a setting of every method: --set method.name=promptfl "
    "--set federation.prox=0.1, in a comparison --methods promptfl:federation.prox=0.1",
}


@cache
def _names() -> tuple[str, ...]:
    """Names of the methods of this folder, one per file: the directory is the registry."""
    modules = [
        module.name for module in pkgutil.iter_modules(import_module("focoop.methods").__path__)
    ]
    return tuple(sorted(name for name in modules if not name.startswith("_") and name != "base"))


@cache
def _built_in(name: str) -> type[Method]:
    """A method of this folder; the files of others are not loaded."""
    return _method_of(import_module(f"focoop.methods.{name}"), f"methods/{name}.py")


def available() -> Mapping[str, type[Method]]:
    """Return all methods by name: those of this folder, of installed packages, and registered.

    What is installed or registered and no method is left out with a warning.
    """
    others = {}
    for name, thing in plugin_names("method").items():
        if name not in _names():
            try:
                others[name] = _method_of(thing, name)
            except MethodError as error:  # one package's mistake must not hide all other methods
                warnings.warn(f"{name} is left out: {error}", stacklevel=2)
    return {**{name: _built_in(name) for name in _names()}, **dict(sorted(others.items()))}


def lookup(name: str) -> type[Method]:
    """Find the class of a method.

    Args:
        name: The method's name, or a file that defines one, `./mine.py`.

    Returns:
        The class.

    Raises:
        ConfigError: There is none; the message names the nearest.
        MethodError: The file or package holds no method.
    """
    if name in _names():
        return _built_in(name)
    plugin = plugged("method", name)
    if plugin is not None:
        return _method_of(plugin, name)
    if folded(name) in ELSEWHERE:
        raise ConfigError(f"no method is called {name!r}: {ELSEWHERE[folded(name)]}")
    methods = available()
    hint = nearest(name, methods, spellings=SPELLINGS)
    every = ", ".join(methods)
    choices = f"; there are {every}" if hint.startswith("; there are") else f"{hint} (all: {every})"
    raise ConfigError(f"no method is called {name!r}{choices}")


def name_method(name: str) -> str:
    """Return what a method is called in tables and reports: never a path.

    Args:
        name: The setting `method.name`.

    Returns:
        The name; of a file what its class calls itself, else the file's own name.

    Raises:
        ConfigError: There is no such file.
        MethodError: The file holds no method.
    """
    if not is_file(name):
        return name
    file = name.rpartition("/")[2]
    called = lookup(name).name or file.removesuffix(".py")
    return file if called in _names() else called  # `./promptfl.py` is not ours


def _method_of(thing: Any, name: str) -> type[Method]:
    method: type[Method] = class_of(thing, Method, name, MethodError)
    if lacking := sorted(getattr(method, "__abstractmethods__", ())):
        functions = "functions" if len(lacking) > 1 else "function"
        raise MethodError(
            f"the method {method.__name__} ({name}) lacks the {functions} {', '.join(lacking)}: "
            f"help(focoop.Method.{lacking[0]}) says what to write"
        )
    _check_settings(method)
    return method


def _check_settings(method: type[Method]) -> None:
    """Refuse settings that could not be set."""
    config = method.Config
    known = {field.name: field for field in fields(config)} if is_dataclass(config) else {}
    if not is_dataclass(config) or set(inspect.get_annotations(config)) - known.keys():
        raise MethodError(
            f"the settings of {method.__name__} are no dataclass: write @dataclass(frozen=True) "
            "above class Config"
        )
    for name, field in known.items():
        if field.default is MISSING and field.default_factory is MISSING:
            raise MethodError(
                f"the setting {name} of {method.__name__} has no default: write "
                f'{name}: ... = focoop.setting(DEFAULT, "what it does")'
            )
    if "name" in known:
        raise MethodError(
            f"{method.__name__} has a setting called name, and method.name says which method "
            "runs: call it something else"
        )


def create(name: str, settings: object | None = None) -> Method:
    """Make a method with its settings.

    Args:
        name: The method's name.
        settings: An instance of its `Config`; None: the defaults.

    Returns:
        The method.
    """
    return lookup(name)(settings)
