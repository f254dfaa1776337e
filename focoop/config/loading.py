"""Read and write the configuration of a run: TOML files and `key=value` overrides.

A TOML file may name another with `extends = "base.toml"` and then only says what differs. A layer
that changes `method.name` drops the settings that lower layers gave to the other method. A file
with `tuned = false` is run as it stands, without the preset of its method (`grid.tuned`).
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from focoop.config.schema import (
    AUTO_SETS,
    AUTO_SHOTS,
    AUTOMATIC,
    OWN_DATA,
    SCALARS,
    SECTIONS,
    BackboneConfig,
    DataConfig,
    FederationConfig,
    MethodConfig,
    NegativesConfig,
    PartitionConfig,
    PrivacyConfig,
    RobustConfig,
    RunConfig,
    automatic,
)
from focoop.errors import ConfigError, closest, nearest
from focoop.fields import (
    GROUPS,
    LONGEST_TOML,
    Typed,
    brief,
    build,
    convert,
    grouped,
    parse_toml,
    plain,
    toml_value,
)
from focoop.methods import lookup

__all__ = [
    "BackboneConfig",
    "DataConfig",
    "FederationConfig",
    "MethodConfig",
    "NegativesConfig",
    "PartitionConfig",
    "PrivacyConfig",
    "RobustConfig",
    "RunConfig",
    "config_hash",
    "describe",
    "differences",
    "from_dict",
    "from_flat",
    "load",
    "shipped",
    "to_dict",
    "to_flat",
    "to_toml",
]

Tree = dict[str, Any]
Override = str | Mapping[str, Any]  # `key=value`, or settings by (dotted) key
PACKAGE = Path(__file__).resolve().parents[1]
# Here, in an installed package, or in the checkout.
NAMED = (Path("configs"), PACKAGE / "configs", PACKAGE.parent / "configs")
DATA_KINDS = ("demo", "file", "folder", "clients", "csv", "hf")  # as `data.id` begins
TUNED = "tuned"  # the key of a file that says whether its method's preset is wanted


def load(
    path: Path | None = None, overrides: Sequence[str] = (), *, own: bool = False
) -> RunConfig:
    """Load a configuration: defaults, changed by a TOML file and all it extends, then by overrides.

    Args:
        path: The TOML file, or a bare name such as `cifar100-vitb16`, which stands for that file of
            a folder `configs`: one in the current folder, else the one that comes with focoop.
            None: the defaults.
        overrides: Texts such as `federation.rounds=3`; later ones win.
        own: Sites bring images of their own whatever `data.id` says, so that settings that depend
            on the data have the values for those.

    Returns:
        The checked configuration.
    """
    tree = {} if path is None else read_toml(locate(path))
    for text in overrides:
        tree = merge(tree, parse_override(text))
    return from_dict(_for_own_data(tree) if own else tree)


def _for_own_data(tree: Tree) -> Tree:
    """The settings with `auto` and -1, given or not, replaced by what suits a user's own data."""
    for (section, name), value in OWN_DATA.items():
        table = tree.get(section, {})
        given = _value(table.get(name)) if isinstance(table, dict) else value
        if given is None or given in (list(AUTO_SETS), AUTO_SHOTS):
            tree = merge(tree, {section: {name: list(value) if value == () else value}})
    return tree


def locate(path: Path) -> Path:
    """Find a configuration's file where only its name may be given.

    Args:
        path: The file, or a bare name.

    Returns:
        The file; `path` itself where no file of that name is known.
    """
    try:
        if path.suffix == ".toml" or path.exists():
            return path
        files = [folder / f"{path}.toml" for folder in NAMED]
        return next((file for file in files if file.is_file()), path)
    except (OSError, ValueError):  # no name of a file: told where it is opened
        return path


def shipped(name: str) -> Path:
    """Find a folder of `configs`: the user's own, or the one that came with focoop.

    Args:
        name: The folder's name, such as `methods`.

    Returns:
        The folder.
    """
    folders = [folder / name for folder in NAMED]
    return next((folder for folder in folders if folder.is_dir()), folders[0])


def read_toml(path: Path) -> Tree:
    """Read the settings of a file over those of the file it extends.

    Args:
        path: The TOML file.

    Returns:
        Nested values.
    """
    tree: Tree = {}
    for layer in read_layers(path):
        tree = merge(tree, {name: value for name, value in layer.items() if name != TUNED})
    return tree


def read_layers(path: Path, seen: tuple[Path, ...] = ()) -> list[Tree]:
    """Read the settings of a file and of all that it extends.

    Args:
        path: The TOML file.
        seen: Files that were read on the way here, to notice files that extend each other.

    Returns:
        Nested values of each file, lowest first; `tuned` stays among them.

    Raises:
        ConfigError: A file is missing, is no TOML, or extends itself.
    """
    try:
        here = path.resolve()
        tree = {} if here in seen else _parsed(path)
    except FileNotFoundError as error:
        raise ConfigError(f"no configuration file {path}{_instead(path)}") from error
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, no TOML
        raise ConfigError(f"cannot read the configuration {path}: {error}") from error
    if here in seen:
        raise ConfigError(f"{path} extends itself: {' -> '.join(p.name for p in (*seen, here))}")
    base = tree.pop("extends", None)
    if not isinstance(tree.get(TUNED, True), bool):
        raise ConfigError(f"{TUNED} = {brief(tree[TUNED])} is not allowed in {path}: true or false")
    if base is None:
        return [tree]
    if not isinstance(base, str):
        raise ConfigError(f"extends = {brief(base)} is not allowed in {path}: it must be a string")
    return [*read_layers(path.parent / base, (*seen, here)), tree]


def _parsed(path: Path) -> Tree:
    """The content of a TOML file; of a very long one, or of a device without end, only a part."""
    with open(path, "rb") as file:
        return parse_toml(file.read(4 * LONGEST_TOML + 1).decode())


def _instead(path: Path) -> str:
    """The end of the message about a configuration file that is not there."""
    kind, colon, _ = str(path).partition(":")
    if colon and kind in DATA_KINDS:
        return f": this names data; give it as a setting: --set data.id={path}"
    name = Path(str(path).removesuffix(".toml").removeprefix("configs/"))
    if path.suffix == ".toml" and not path.is_absolute() and locate(name).is_file():
        return f" here; settings of that name come with focoop: focoop run {name}"
    beside = sorted(file.name for file in path.parent.glob("*.toml"))
    if closest(path.name, beside):
        return nearest(path.name, beside)
    return nearest(name.as_posix(), shipped_names())


def shipped_names() -> list[str]:
    """Return the names that stand for files of `configs`, such as `demo` or `settings/cifar100`.

    Presets (`methods`) and items of `paper` are no whole configurations: they are left out.
    """
    names = [
        file.relative_to(folder).as_posix().removesuffix(".toml")
        for folder in NAMED
        for file in folder.rglob("*.toml")
    ]
    return sorted({name for name in names if not re.match(r"methods/|paper/[^/]+$", name)})


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Tree:
    """Put one tree of settings on top of another, table by table.

    Args:
        base: The lower tree.
        over: The upper tree, whose values win.

    Returns:
        A new tree.
    """
    merged = dict(base)
    for name, value in over.items():
        below = merged.get(name)
        if isinstance(value, dict) and isinstance(below, dict):
            changed = name == "method" and _bare(value.get("name", below.get("name"))) != _bare(
                below.get("name")
            )
            merged[name] = dict(value) if changed else {**below, **value}
        else:
            merged[name] = value
    return merged


def parse_override(text: str) -> Tree:
    """Read an override such as `federation.rounds=3` as a tree of one value.

    Args:
        text: The override; the value is TOML, and a bare word is a string.

    Returns:
        Nested values.

    Raises:
        ConfigError: The text has no `=`, or no key.
    """
    key, equals, raw = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(
            f"cannot read --set {brief(text)}: write KEY=VALUE, as federation.rounds=3"
        )
    section, dot, name = key.partition(".")
    value = Typed.parse(raw.strip())
    return {section: {name: value}} if dot else {key: value}


def tree_of(values: Mapping[str, Any]) -> Tree:
    """Nested plain values of settings that are given in Python.

    Args:
        values: settings by section (`{"method": {"name": "focoop"}}`), by dotted key
            (`{"method.name": "focoop"}`), or both; later entries win.

    Returns:
        A tree for `merge` and `from_dict`; paths have become text and tuples lists.

    >>> tree_of({"federation.rounds": 3, "method": {"name": "promptfl"}})
    {'federation': {'rounds': 3}, 'method': {'name': 'promptfl'}}
    """
    tree: Tree = {}
    for key, value in values.items():
        section, dot, name = str(key).partition(".")
        if dot:
            tree = merge(tree, {section: {name: _plain(value)}})
        elif isinstance(value, Mapping):
            table = {str(inner): _plain(item) for inner, item in value.items()}
            tree = merge(tree, {section: table})
        else:
            tree[section] = _plain(value)
    return tree


def _plain(value: Any) -> Any:
    """A value as TOML would give it."""
    if isinstance(value, Path):
        return str(value)
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def override_tree(given: Override) -> Tree:
    """Return an override as a tree of settings.

    Args:
        given: The text `key=value`, or settings in Python.

    Returns:
        Nested values.
    """
    return parse_override(given) if isinstance(given, str) else tree_of(given)


def from_dict(tree: Mapping[str, Any]) -> RunConfig:
    """Make a configuration from plain nested values.

    Args:
        tree: Nested values; what is absent has its default.

    Returns:
        The checked configuration.

    Raises:
        ConfigError: A key is unknown, or a value is of the wrong type or out of range.
    """
    values: Tree = {}
    for name, given in tree.items():
        if name in SECTIONS:
            if not isinstance(given, dict):
                raise ConfigError(f"{name} = {brief(_bare(given))} is not allowed: it is a table")
            values[name] = (
                _method(given) if name == "method" else build(SECTIONS[name], given, f"{name}.")
            )
        elif name in SCALARS:
            values[name] = given
        else:
            raise ConfigError(f"there is no setting {brief(name)}{_elsewhere(name)}")
    return RunConfig(**values)


def to_dict(config: RunConfig) -> Tree:
    """Return a configuration as plain nested values; method settings stand beside `method.name`.

    Args:
        config: The configuration.

    Returns:
        Nested values.
    """
    tree: Tree = {name: getattr(config, name) for name in SCALARS}
    for name in SECTIONS:
        tree[name] = plain(getattr(config, name)) if name != "method" else {}
    tree["method"] = {"name": config.method.name, **plain(config.method.settings)}
    return tree


def to_toml(config: RunConfig, *, docs: bool = False) -> str:
    """Write a whole configuration as TOML, the same text for the same values.

    Args:
        config: The configuration.
        docs: Make a file to edit: with comments, and with `auto` and -1 where the value is the one
            that they stand for, so that another `data.id` gets its own.

    Returns:
        TOML text.
    """
    meanings = {key: doc for key, _, doc in describe(config)} if docs else {}
    lines = []
    tree = to_dict(config)
    if docs:
        tree, chosen = _automatic(config)
        meanings |= {
            key: f"{meanings[key]} (here: {toml_value(value)})" for key, value in chosen.items()
        }
    for name, value in tree.items():
        if not isinstance(value, dict):
            lines.append(_line(name, value, meanings.get(name)))
            continue
        lines += ["", f"[{name}]"]
        shown = {
            key: _line(key, item, meanings.get(f"{name}.{key}")) for key, item in value.items()
        }
        lines += _by_group(shown, config) if docs and name == "method" else shown.values()
    return "\n".join(lines) + "\n"


def _by_group(shown: Mapping[str, str], config: RunConfig) -> list[str]:
    """Put the lines of a method's settings below a comment for each group of them."""
    lines = [shown["name"]]
    for group, members in grouped(type(config.method.settings)).items():
        lines += [f"# {group}: {GROUPS[group]}"] if group else []
        lines += [shown[field.name] for field in members if field.name in shown]
    return lines


def to_flat(config: RunConfig) -> dict[str, bool | int | float | str]:
    """Return a configuration as scalars, for Flower's run configuration.

    Args:
        config: The configuration.

    Returns:
        Values by dotted key with dashes; lists become TOML text.
    """
    flat: dict[str, bool | int | float | str] = {}
    for name, value in to_dict(config).items():
        items = value.items() if isinstance(value, dict) else [("", value)]
        for key, item in items:
            dotted = f"{name}.{key}" if key else name
            flat[dotted.replace("_", "-")] = toml_value(item) if isinstance(item, list) else item
    return flat


def from_flat(flat: Mapping[str, bool | int | float | str]) -> RunConfig:
    """Make a configuration from the scalars of `to_flat`.

    Args:
        flat: Values by dotted key with dashes.

    Returns:
        The checked configuration.
    """
    tree: Tree = {}
    for dotted, value in flat.items():
        section, dot, name = dotted.replace("-", "_").partition(".")
        parsed: Any = value
        if isinstance(value, str) and isinstance(Typed.parse(value).value, list):
            parsed = Typed.parse(value)  # a list, unless its setting is a string
        if dot:  # not merged: Flower gives keys in any order, a method's settings before its name
            tree.setdefault(section, {})[name] = parsed
        else:
            tree[section] = parsed
    return from_dict(tree)


def config_hash(config: RunConfig) -> str:
    """Return a short name of a configuration's values, equal exactly for equal configurations.

    Args:
        config: The configuration.

    Returns:
        Hexadecimal digits.
    """
    return hashlib.sha256(to_toml(config).encode()).hexdigest()[:16]


def differences(old: RunConfig, new: RunConfig) -> list[str]:
    """Say in which settings two configurations differ.

    Args:
        old: The one configuration.
        new: The other.

    Returns:
        One line per setting, written as `--set` takes it.
    """
    before, after = _dotted(old), _dotted(new)
    return [
        f"{key}: {before.get(key, 'absent')} -> {after.get(key, 'absent')}"
        for key in dict.fromkeys([*before, *after])
        if before.get(key) != after.get(key)
    ]


def _dotted(config: RunConfig) -> dict[str, str]:
    """Every setting as a user writes it: `section.name` -> the value, lists as TOML."""
    settings: dict[str, str] = {}
    for name, value in to_dict(config).items():
        for key, item in value.items() if isinstance(value, dict) else [("", value)]:
            shown = toml_value(item) if isinstance(item, list) else repr(item)
            settings[f"{name}.{key}" if key else name] = shown
    return settings


def describe(config: RunConfig) -> list[tuple[str, Any, str]]:
    """List every setting of a configuration, those of the method included.

    Args:
        config: The configuration.

    Returns:
        Key, value and documentation of each setting.
    """
    rows = [(n, getattr(config, n), _doc(RunConfig, n)) for n in SCALARS]
    for section in SECTIONS:
        holder = getattr(config, section)
        if section == "method":
            rows.append(("method.name", holder.name, _doc(MethodConfig, "name")))
            holder = holder.settings
        for field in fields(holder):
            rows.append(
                (
                    f"{section}.{field.name}",
                    getattr(holder, field.name),
                    _doc(type(holder), field.name),
                )
            )
    return rows


def _method(given: Mapping[str, Any]) -> MethodConfig:
    settings = dict(given)
    name = convert("method.name", settings.pop("name", MethodConfig.name), str)
    return MethodConfig(name, build(lookup(name).Config, settings, "method.", also=("name",)))


def _doc(cls: type[Any], name: str) -> str:
    metadata = next(field.metadata for field in fields(cls) if field.name == name)
    doc = str(metadata.get("doc", ""))
    return f"{doc}: {', '.join(metadata['choices'])}" if "choices" in metadata else doc


def _elsewhere(name: str) -> str:
    """A hint for a key given without its section, such as `rounds` for `federation.rounds`."""
    keys = [key for key, _, _ in describe(RunConfig())]
    inside = [key for key in keys if key.rpartition(".")[2] == name]
    return f"; nearest is {inside[0]!r}" if inside else nearest(name, [*SCALARS, *SECTIONS])


def _line(key: str, value: Any, doc: str | None) -> str:
    text = f"{key} = {toml_value(value)}"
    return f"{text}  # {doc}" if doc else text


def _automatic(config: RunConfig) -> tuple[Tree, Tree]:
    """Plain nested values with `auto` and -1 where they mean the same, and what they stand for."""
    tree, meant = to_dict(config), automatic(config.data.id, config.backbone.name)
    chosen = {}
    for (section, name), auto in AUTOMATIC.items():
        if getattr(getattr(config, section), name) == meant[section, name]:
            chosen[f"{section}.{name}"] = tree[section][name]
            tree[section][name] = list(auto) if isinstance(auto, tuple) else auto
    return tree, chosen


def _value(given: Any) -> Any:
    return given.value if isinstance(given, Typed) else given


def _bare(value: Any) -> Any:
    return value.raw if isinstance(value, Typed) else value
