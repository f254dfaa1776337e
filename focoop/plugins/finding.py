"""Find what a name from outside the package means: registered, a file, or an entry point.

A name that ends with `.py` is a file, `./mine.py`. Other names are those given to
`focoop.register`, or the entry points `focoop.methods`, `focoop.datasets`, `focoop.scores` and
`focoop.trackers` of installed packages.
"""

import hashlib
import inspect
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import metadata
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from focoop.errors import ConfigError, FocoopError

GROUPS = {
    "method": "focoop.methods",
    "dataset": "focoop.datasets",
    "score": "focoop.scores",
    "tracker": "focoop.trackers",
}
_registered: dict[tuple[str, str], Any] = {}
_modules: dict[tuple[Path, str], ModuleType] = {}  # by path and content
_places: dict[str, Path] = {}  # where a relative name was found last
_bases: ContextVar[tuple[Path, ...]] = ContextVar("bases", default=())
_files_refused: ContextVar[str] = ContextVar("files_refused", default="")


def is_file(name: str) -> bool:
    """Say whether a name means a Python file.

    Args:
        name: What a user wrote as a method, dataset, score or tracker.

    Returns:
        Whether it ends in `.py`.

    >>> is_file("./mine.py"), is_file("promptfl")
    (True, False)
    """
    return name.endswith(".py")


def put(kind: str, name: str, thing: Any) -> None:
    """Make something known by name in this process; an earlier one of that name is replaced.

    Args:
        kind: `method`, `dataset`, `score` or `tracker`.
        name: Its name in settings.
        thing: The class of a method or tracker, the dataset, or the score's function.

    Raises:
        ConfigError: The name would be read as something else.
    """
    if not name or not name.replace("_", "").replace("-", "").isalnum():
        raise ConfigError(f"{name!r} is no name for a {kind}: use letters, digits, _ and -")
    _registered[kind, name] = thing


def forget() -> None:
    """Forget what was registered in this process, and where files were found."""
    _registered.clear()
    _places.clear()


def names(kind: str) -> dict[str, Any]:
    """List what is registered or installed, by name.

    Args:
        kind: `method`, `dataset`, `score` or `tracker`.

    Returns:
        Name -> what was registered, or what the entry point loads. An entry point that cannot be
        loaded is left out with a warning.
    """
    plugins = {}
    for point in _entry_points(kind):
        try:
            plugins[point.name] = point.load()
        except Exception as error:  # another package's code: whatever it raises
            warnings.warn(f"{_told(point)} cannot be loaded: {error}", stacklevel=2)
    return plugins | {name: thing for (of, name), thing in _registered.items() if of == kind}


def class_of(thing: Any, base: type, name: str, error: type[FocoopError]) -> Any:
    """Return a class derived from one of focoop's: the one that a module defines, or the given one.

    Args:
        thing: A module, a user's file for example, or a class.
        base: The class of focoop that it must be derived from, which is public.
        name: What the user called it, for messages.
        error: What is raised for anything else.

    Returns:
        The class.
    """
    wanted = f"focoop.{base.__name__}"
    if not inspect.ismodule(thing):
        if inspect.isclass(thing) and issubclass(thing, base):
            return thing
        raise error(f"the {base.__name__.lower()} {name} must be a class derived from {wanted}")
    classes = [
        member
        for _, member in inspect.getmembers(thing, inspect.isclass)
        if issubclass(member, base) and member.__module__ == thing.__name__  # not only imported
    ]
    if len(classes) != 1:
        raise error(f"{name} must define exactly one {wanted}, it defines {len(classes)}")
    return classes[0]


def plugged(kind: str, name: str) -> Any:
    """Load what a name from outside the package means.

    Args:
        kind: `method`, `dataset`, `score` or `tracker`.
        name: A registered name, an entry point, or a file.

    Returns:
        What was registered, what the entry point loads, or the file's module; None where nothing
        has this name.

    Raises:
        ConfigError: The file or the entry point cannot be loaded.
    """
    if is_file(name):
        return _module(kind, _located(kind, name))
    if (kind, name) in _registered:
        return _registered[kind, name]
    for point in _entry_points(kind):
        if point.name == name:
            try:
                return point.load()
            except Exception as error:  # another package's code: whatever it raises
                raise ConfigError(f"{_told(point)} cannot be loaded: {error}") from error
    return None


def origin(kind: str, name: str) -> dict[str, str] | None:
    """Say where something comes from, so that a run can name what it needs.

    Args:
        kind: `method`, `dataset`, `score` or `tracker`.
        name: As in `plugged`.

    Returns:
        `kind` and `name`, with the `sha256` of a file or of a registered thing's source, or with
        `package` and `version`; None for what is part of focoop or unknown.
    """
    record = {"kind": kind, "name": name}
    if is_file(name):
        content = _located(kind, name).read_bytes()
        return {**record, "sha256": hashlib.sha256(content).hexdigest()}
    if (kind, name) in _registered:
        try:
            source = inspect.getsource(_registered[kind, name])
        except (OSError, TypeError):  # typed into a prompt, or no class or function
            return {**record, "registered": "in Python"}
        digest = hashlib.sha256(source.encode()).hexdigest()
        return {**record, "registered": "in Python", "sha256": digest}
    for point in _entry_points(kind):
        if point.name == name:
            package = point.dist
            return {
                **record,
                "package": "" if package is None else package.name,
                "version": "" if package is None else package.version,
            }
    return None


@contextmanager
def looking_in(folder: Path) -> Iterator[None]:
    """Look for files with relative names in a folder before the current one.

    Args:
        folder: Such as the one a run was started in.

    Yields:
        Nothing; the folder is looked in while the block runs.
    """
    token = _bases.set((folder, *_bases.get()))
    try:
        yield
    finally:
        _bases.reset(token)


@contextmanager
def only_installed(reason: str) -> Iterator[None]:
    """Refuse files: settings that come over a network must not choose which code runs here.

    Args:
        reason: What to say to whoever named a file.

    Yields:
        Nothing; files are refused while the block runs.
    """
    token = _files_refused.set(reason)
    try:
        yield
    finally:
        _files_refused.reset(token)


def _located(kind: str, name: str) -> Path:
    """The file that a name means."""
    if _files_refused.get():
        raise ConfigError(f"the {kind} {name} is a file: {_files_refused.get()}")
    path = Path(name).expanduser()
    bases = [*_bases.get(), Path.cwd()]
    file = next((base / path for base in bases if (base / path).is_file()), _places.get(name))
    if file is None or not file.is_file():
        looked = ", ".join(dict.fromkeys(str(base) for base in bases))
        where = "" if path.is_absolute() else f" in {looked}"
        raise ConfigError(f"there is no file {name} for the {kind}{where}")
    _places[name] = file
    return file.resolve()


def _module(kind: str, path: Path) -> ModuleType:
    """A file's module; the same content is loaded once, so that its classes stay the same."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if (path, digest) in _modules:
        return _modules[path, digest]
    spec = spec_from_file_location(f"focoop_plugin_{digest[:16]}", path)
    assert spec is not None and spec.loader is not None  # the name ends with .py
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for the module of a class
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a user's own code: whatever it raises
        del sys.modules[spec.name]
        place = line_of(error, spec.name) or f" in {path}"
        raise ConfigError(
            f"the {kind} cannot be loaded: {type(error).__name__}: {error},{place}"
        ) from error
    _modules[path, digest] = module
    return module


def line_of(error: Exception, module: str) -> str:
    """Say where in a module of a user's own an error arose.

    Args:
        error: The error, as it was caught.
        module: The module's name.

    Returns:
        Such as ` in /home/me/mine.py, line 12`; nothing where the module had no part in it.
    """
    trace, place = error.__traceback__, ""
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_globals.get("__name__") == module:
            place = f" in {frame.f_code.co_filename}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return place


def _entry_points(kind: str) -> list[metadata.EntryPoint]:
    return list(metadata.entry_points(group=GROUPS[kind]))


def _told(point: metadata.EntryPoint) -> str:
    """An entry point in words."""
    package = f" of {point.dist.name} {point.dist.version}" if point.dist is not None else ""
    return f"the entry point {point.name} ({point.group}){package}"
