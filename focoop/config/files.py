"""Find and read TOML files of settings: by path or by name, with all that they extend.

A TOML file may name another with `extends = "base.toml"` and then only says what differs. A file
with `tuned = false` is run as it stands, without the preset of its method (`presets.tuned`).
"""

import re
from pathlib import Path

from focoop.config.layers import Tree, merge
from focoop.errors import ConfigError, closest, nearest
from focoop.fields import LONGEST_TOML, brief, parse_toml

PACKAGE = Path(__file__).resolve().parents[1]
# Here, in an installed package, or in the checkout.
NAMED = (Path("configs"), PACKAGE / "configs", PACKAGE.parent / "configs")
DATA_KINDS = ("demo", "file", "folder", "clients", "csv", "hf")  # as `data.id` begins
TUNED = "tuned"  # the key of a file that says whether its method's preset is wanted


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
    known = shipped_names()
    same = [one for one in known if one.rpartition("/")[2] == name.name]  # of another folder
    return f"; nearest is {same[0]!r}" if same else nearest(name.as_posix(), known)


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
