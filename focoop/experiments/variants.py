"""The methods of a grid as a user writes them: `promptfl,focoop:bos=false`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from focoop.errors import ConfigError
from focoop.methods import available, name_method
from focoop.plugins import is_file

NAME, LABEL = re.compile(r"[\w./~+ -]+"), re.compile(r"[\w.+-]+")


@dataclass(frozen=True)
class Variant:
    """A row of the table: a method or preset by name, and settings of this variant alone."""

    label: str
    name: str
    overrides: tuple[str, ...] = ()

    @property
    def preset(self) -> str:
        """Return the name of the preset that it begins with."""
        return self.label.partition(":")[0]


def parse_methods(text: str) -> list[Variant] | None:
    """Read methods such as `promptfl,focoop:bos=false,goc=false`, which are two variants.

    A file is called by its method's `name`, else as the file is; `Ours=./mine.py` calls it `Ours`.

    Args:
        text: The text.

    Returns:
        The variants; None for `all`.

    Raises:
        ConfigError: A method cannot be read, or is no method.
    """
    if text.strip() == "all":
        return None
    groups: list[list[str]] = []
    for part in split_list(text):
        if groups and not _begins_variant(part):
            groups[-1].append(part)  # one more setting of the variant before it
        else:
            groups.append([part])
    return [_variant(parts) for parts in groups]


def _begins_variant(part: str) -> bool:
    """Whether a part is a method, and no setting of the one before it."""
    key, equals, value = part.partition(":")[0].partition("=")
    is_setting = "." in key or key.strip() == "score"  # which may be a file too
    return not equals or (is_file(value.strip()) and not is_setting)


def _variant(parts: Sequence[str]) -> Variant:
    head, _, first = parts[0].partition(":")
    label, equals, name = (word.strip() for word in head.rpartition("="))
    labelled = LABEL.fullmatch(label) and is_file(name)
    if not NAME.fullmatch(name) or (equals and not labelled):
        raise ConfigError(
            f"cannot read --methods {','.join(parts)!r}: write promptfl,focoop:bos=false,"
            "Ours=./mine.py; a label has letters, digits and ._+-"
        )
    if label in available():
        raise ConfigError(f"focoop has a method {label!r} of its own: choose another label")
    settings = [setting.strip() for setting in (first, *parts[1:]) if setting.strip()]
    overrides = tuple(s if "." in s.partition("=")[0] else f"method.{s}" for s in settings)
    called = label or name_method(name)
    shown = ",".join(_without_path(setting) for setting in settings)
    return Variant(called if label or not shown else f"{called}:{shown}", name, overrides)


def _without_path(setting: str) -> str:
    """A setting as a label shows it: a file by its own name."""
    key, _, value = setting.partition("=")
    return f"{key}={Path(value).stem}" if is_file(value) else setting


def variants_for(given: list[Variant] | None, setting: Mapping[str, Any]) -> list[Variant]:
    """Return the variants asked for; `all` leaves out methods whose patch features a setting lacks.

    Args:
        given: The variants; None: all.
        setting: The setting's values.

    Returns:
        The variants.
    """
    if given is not None:
        return given
    patches = setting.get("data", {}).get("with_patches", False)
    kinds = available().items()
    return [Variant(name, name) for name, kind in kinds if patches or not kind.patch_kind]


def split_list(text: str) -> list[str]:
    """Return the parts between commas, except commas within brackets or quotes.

    Args:
        text: The text.

    Returns:
        The parts that hold something.
    """
    parts = re.findall(r"(?:\[[^\]]*\]|\"[^\"]*\"|[^,\[\"])+", text)
    return [part for part in parts if part.strip()]
