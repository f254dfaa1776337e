"""Refuse settings of different sections that cannot hold together, with what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from focoop.errors import ConfigError

if TYPE_CHECKING:
    from focoop.config.schema import RunConfig


def refuse_untrained(config: RunConfig) -> None:
    """Refuse classes and clients that are kept out of training where they cannot be.

    Args:
        config: The run's settings.

    Raises:
        ConfigError: They cannot be; the message says what to change.
    """
    kind = config.partition.kind
    for name in ("unknown_classes", "new_classes"):
        if getattr(config.data, name) and kind in ("domain", "given"):
            raise ConfigError(
                f"data.{name} needs a partition that divides classes, and partition.kind is "
                f"{kind}: choose pathological, overlap, dirichlet or iid"
            )
    late, rounds = config.federation.late_clients, config.federation.rounds
    if late and rounds < 2:
        raise ConfigError(
            f"federation.late_clients = {late} join in the last round, after the others: set "
            f"federation.rounds to 2 or more (now {rounds})"
        )
    if late and config.privacy.secure_sum:
        raise ConfigError(
            f"federation.late_clients = {late} join in a round of their own, whose sum would "
            "tell them: set privacy.secure_sum to false"
        )


def refuse_secure_sum(config: RunConfig) -> None:
    """Refuse what needs single updates where secure sums hide them.

    Args:
        config: The run's settings.

    Raises:
        ConfigError: Something does; the message says what to change.
    """
    if not config.privacy.secure_sum:
        return
    if config.robust.rule != "none":
        raise ConfigError(
            f"robust.rule = {config.robust.rule!r} compares single updates, which "
            "privacy.secure_sum hides: choose one of them (privacy.clip goes with both)"
        )
    if config.federation.payload != "fp32":
        raise ConfigError(
            f"federation.payload = {config.federation.payload!r} codes single updates, and "
            "privacy.secure_sum sends numbers under masks, 8 bytes each: set it to fp32"
        )
    own = config.method.settings
    if getattr(own, "goc", False) and getattr(own, "goc_pool", "mean") != "mean":
        raise ConfigError(
            "privacy.secure_sum hides single OOD prompts: set method.goc_pool to mean, "
            "or method.goc to false"
        )
