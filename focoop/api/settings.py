"""The settings of a run, in any of the forms that Python code may give them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from focoop.config import (
    Override,
    RunConfig,
    from_dict,
    merge,
    override_tree,
    shipped,
    to_dict,
)
from focoop.experiments import tuned

Settings = str | Path | Mapping[str, Any] | RunConfig | None
Overrides = Mapping[str, Any] | Sequence[Override] | None


def configure(
    config: Settings = None,
    overrides: Overrides = None,
    *,
    use_tuned: bool = True,
    device: str | None = None,
) -> tuple[RunConfig, list[Path]]:
    """Resolve settings as `run` does, without running anything.

    Args:
        config: As in `focoop.run`.
        overrides: As in `run`.
        use_tuned: As in `run`.
        device: As in `run`.

    Returns:
        The whole configuration, and the files of tuned settings that changed it.

    Raises:
        ConfigError: A setting is unknown or impossible.
    """
    layers = on_device(overrides, device)
    if isinstance(config, RunConfig):
        if not layers:
            return config, []
        tree = to_dict(config)
        for over in layers:
            tree = merge(tree, override_tree(over))
        return from_dict(tree), []
    given = Path(config) if isinstance(config, str) else config
    return tuned(given, layers, shipped("methods") if use_tuned else None)


def listed(overrides: Overrides) -> list[Override]:
    """Return overrides as a list, whatever form they were given in.

    Args:
        overrides: The overrides.

    Returns:
        The list.
    """
    if overrides is None:
        return []
    return [overrides] if isinstance(overrides, Mapping) else list(overrides)


def on_device(overrides: Overrides, device: str | None) -> list[Override]:
    """Return overrides as a list, with the device among them.

    Args:
        overrides: The overrides.
        device: The device, or None.

    Returns:
        The list.
    """
    return [*listed(overrides), *([{"backbone.device": device}] if device else [])]
