"""Typed errors: each says what is wrong and what to do, and carries the exit code of the CLI."""


class FocoopError(Exception):
    """Anything a user can mend; its message is complete and shown without a stack trace."""

    exit_code = 1


class ConfigError(FocoopError):
    """An unknown key, a wrong type or an impossible value."""

    exit_code = 2


class DataError(FocoopError):
    """Missing, unreadable or inconsistent images, features or splits."""

    exit_code = 3


class BackboneError(FocoopError):
    """Backbone weights that are missing, damaged or of an unsupported family."""

    exit_code = 4


class MethodError(FocoopError):
    """A method that cannot run in the given setting."""

    exit_code = 5


class RunError(FocoopError):
    """A run folder that is missing, locked, damaged or of another configuration."""

    exit_code = 6


class FederationError(FocoopError):
    """A federation that cannot go on, or a message that cannot be used."""

    exit_code = 7


class MissingExtra(FocoopError):
    """An optional package is not installed; the message gives the `pip install` that brings it.

    Raised wherever a package of an extra is first needed (open_clip, Flower, matplotlib, datasets,
    pillow-heif, pydicom), so that scripts meet one exit code for all of them.
    """

    exit_code = 8
