"""The methods of a grid as a user writes them: `promptfl,focoop:bos=false`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from focoop.errors import ConfigError
from focoop.methods import available

NAME = re.compile(r"\s*([\w./~+-]+)\s*(?::(.*))?", re.DOTALL)


@dataclass(frozen=True)
class Variant:
    """A row of the table: a method or preset by name, and settings of this variant alone."""

    label: str
    name: str
    overrides: tuple[str, ...] = ()


def parse_methods(text: str) -> list[Variant] | None:
    """Read methods such as `promptfl,focoop:bos=false,goc=false`, which are two variants.

    Args:
        text: The text.

    Returns:
        The variants; None for `all`.

    Raises:
        ConfigError: A method is unknown, or one is named twice.
    """
    if text.strip() == "all":
        return None
    groups: list[list[str]] = []
    for part in split_list(text):
        name, colon, _ = part.partition(":")
        if groups and "=" in part and not (colon and "=" not in name):
            groups[-1].append(part)  # one more setting of the variant before it
        else:
            groups.append([part])
    variants = []
    for parts in groups:
        match = NAME.fullmatch(parts[0])
        if match is None:
            raise ConfigError(
                f"cannot read --methods {','.join(parts)!r}: write promptfl,focoop:bos=false"
            )
        name, first = match.groups()
        settings = [setting.strip() for setting in (first, *parts[1:]) if setting]
        overrides = tuple(s if "." in s.partition("=")[0] else f"method.{s}" for s in settings)
        label = f"{name}:{','.join(settings)}" if settings else name
        variants.append(Variant(label, name, overrides))
    return variants


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
