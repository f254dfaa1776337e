"""Values as TOML: read within bounds, and written so that equal values give equal text."""

import tomllib
from dataclasses import dataclass
from typing import Any

LONGEST_TOML = 100_000  # characters


@dataclass(frozen=True)
class Typed:
    """A value typed on a command line: `raw` is its text, `value` what the text means as TOML."""

    raw: str
    value: Any

    @classmethod
    def parse(cls, raw: str) -> "Typed":
        """Read a value typed on a command line as TOML, or as a bare word where it is not TOML.

        Args:
            raw: The text.

        Returns:
            The value.

        >>> Typed.parse("[1, 2]").value, Typed.parse("cosine").value
        ([1, 2], 'cosine')
        """
        try:
            tree = parse_toml(f"value = {raw}")
        except tomllib.TOMLDecodeError:
            return cls(raw, raw)
        return cls(raw, tree["value"] if set(tree) == {"value"} else raw)


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML of bounded length and depth.

    Args:
        text: The text.

    Returns:
        Nested values.

    Raises:
        TOMLDecodeError: It is no TOML, longer than `LONGEST_TOML` (the parser takes very long for
            some such texts), nested too deeply, or holds a number of too many digits.
    """
    if len(text) > LONGEST_TOML:
        raise tomllib.TOMLDecodeError(f"it has more than {LONGEST_TOML} characters")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise tomllib.TOMLDecodeError("its brackets are nested too deeply") from error
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:
        raise tomllib.TOMLDecodeError("a number has too many digits") from error


def toml_value(value: Any) -> str:
    """Write one scalar or list as TOML; equal values give equal text.

    Args:
        value: The value.

    Returns:
        TOML text.

    Raises:
        TypeError: The value has no form in TOML.

    >>> toml_value(["a", 1, 2.0, True])
    '["a", 1, 2.0, true]'
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return '"' + "".join(_escaped(character) for character in value) + '"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    raise TypeError(f"settings hold no {type(value).__name__}")


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    code = ord(character)
    return f"\\u{code:04X}" if code < 0x20 or code == 0x7F else character
