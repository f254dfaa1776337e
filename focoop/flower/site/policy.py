"""A site's own policy: what it does for a coordinator, and what it refuses, whatever is asked.

The policy is a TOML file of the site (`policy.toml`), read anew for every message: a change holds
from the next message on. Without a file the defaults below hold: they open no folder but the site's
own images, and bound rounds, epochs and bytes. `default_policy_toml` (`policy_words.py`) writes a
file with every key, its default and its meaning. Unknown keys are errors.
"""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from focoop.config import RunConfig, load, to_flat
from focoop.data import Source
from focoop.errors import ConfigError, FederationError, nearest
from focoop.federation import COUNTS, LEAST_PARTIES
from focoop.fields import build, parse_toml, setting
from focoop.methods import available

FILE = "policy.toml"
PATHS = ("file", "folder", "clients", "csv")  # kinds of datasets that name a path
# Settings in which a site's machine may differ from the agreed file.
OWN_PLACES = ("name", "data.id", "data.root", "backbone.device", "backbone.weights")
MEGABYTE = 10**6
MOST_TOKENS = 77  # positions of CLIP's text tower; longer contexts would only fill the memory


class Refusal(FederationError):
    """Something the site's policy forbids; the text goes to the coordinator, without local names.

    It repeats settings that the coordinator sent and bounds of the policy, nothing else.
    """


class PolicyFileError(ConfigError):
    """A policy file that cannot be used: nothing is answered until it is mended."""


@dataclass(frozen=True)
class PrivacyPolicy:
    """What an update must be protected by before it leaves."""

    noise_at_least: float = setting(
        0.0, "privacy.noise of a run must be this or more; 0: none is needed", low=0
    )
    clip_at_most: float = setting(
        0.0, "privacy.clip of a run must be this or less, and not off; 0: any", low=0
    )
    secure_sum: bool = setting(False, "true: only runs in which the server sees sums alone")
    epsilon_at_most: float = setting(
        0.0, "epsilon of all noised updates of this site together, in all runs; 0: any", low=0
    )
    parties_at_least: int = setting(
        LEAST_PARTIES, "fewest sites of a secure sum", low=LEAST_PARTIES, high=100_000
    )
    counts: tuple[str, ...] = setting(COUNTS, "values of privacy.counts that are allowed")


@dataclass(frozen=True)
class Policy:
    """What a site allows. Every check raises `Refusal`, a text that may leave the site."""

    methods: tuple[str, ...] = setting((), "methods that may be trained; []: all of focoop's")
    run: str = setting(
        "", "configuration file that a run must equal, setting by setting; empty: any run"
    )
    folders: tuple[str, ...] = setting(
        (), "folders that a run may read beside the site's own images, such as OOD sets"
    )
    sets: tuple[str, ...] = setting(
        ("demo:*",), "named datasets that a run may read; * stands for anything"
    )
    rounds: int = setting(1000, "most rounds of a run", low=1, high=1_000_000)
    epochs: int = setting(50, "most epochs of a round", low=1, high=10_000)
    views: int = setting(32, "most random views of an image", low=0, high=1000)
    least_images: int = setting(
        5,
        "different images of a class below which nothing of it is sent, where statistics are sent; "
        "a run's method.least_images holds where it is more",
        low=0,
        high=1_000_000,
    )
    megabytes_in: float = setting(500.0, "largest message that is taken, in MB", above=0)
    megabytes_out: float = setting(500.0, "largest answer that is sent, in MB", above=0)
    accuracies: bool = setting(True, "false: accuracies on the site's test images stay here")
    sketches: bool = setting(
        True, "false: sketches of the scores of calibration images stay here; so without accuracies"
    )
    holdings: bool = setting(
        False, "true: the federation's models may say which classes this site holds"
    )
    privacy: PrivacyPolicy = field(default_factory=PrivacyPolicy)
    settings: Mapping[str, Any] = field(default_factory=dict)
    base: Path = Path()  # folder that relative paths of the policy start from

    @classmethod
    def read(cls, path: Path | str | None) -> "Policy":
        """Read a policy file.

        Args:
            path: the file; None or "" for the defaults.

        Returns:
            The policy.

        Raises:
            PolicyFileError: for a file that is not there, is no TOML, or has unknown keys or
                values that are not allowed.
        """
        if not path:
            return cls()
        path = Path(path)
        try:
            tree = parse_toml(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise PolicyFileError(f"the policy {path} cannot be read ({error})") from error
        try:
            return cls.of(tree, path.resolve().parent)
        except ConfigError as error:
            raise PolicyFileError(f"the policy {path}: {error}") from error

    @classmethod
    def of(cls, tree: Mapping[str, Any], base: Path = Path()) -> "Policy":
        """Make a policy of plain values.

        Args:
            tree: Nested values.
            base: The folder from which relative paths in it start.

        Returns:
            The policy.

        Raises:
            ConfigError: A key is unknown, or a value cannot be used.
        """
        plain = dict(tree)
        privacy, allowed = plain.pop("privacy", {}), plain.pop("settings", {})
        if not isinstance(privacy, dict) or not isinstance(allowed, dict):
            raise ConfigError("privacy and settings must be tables: [privacy], [settings]")
        if "base" in plain:
            raise ConfigError("there is no setting base")
        also = ("privacy", "settings")
        made = build(cls, plain, "", also)
        rules = {key: _rule(key, value) for key, value in allowed.items()}
        own = {entry.name: getattr(made, entry.name) for entry in fields(made)}
        privacy_policy = build(PrivacyPolicy, privacy, "privacy.")
        policy = cls(**{**own, "privacy": privacy_policy, "settings": rules, "base": base})
        policy._check_names()
        return policy

    def check(self, config: RunConfig, places: Mapping[str, str] | None = None) -> None:
        """Refuse a run whose settings the policy does not allow.

        Args:
            config: the run's settings as the coordinator sent them.
            places: what the site itself says of `root` and `weights`, which are then not the
                coordinator's to choose.

        Raises:
            Refusal: naming the first setting that is not allowed, and the bound.
        """
        self._check_amounts(config)
        self._check_privacy(config)
        self._check_reads(config, places or {})
        for key, rule in self.settings.items():
            value = to_flat(config).get(key.replace("_", "-"))
            if not _within(value, rule):
                raise Refusal(f"{key} = {value!r} is not allowed here")
        if self.run:
            self._check_agreed(config)

    def agree(self, config: RunConfig) -> None:
        """Check a run for the people of the site, before they join.

        Args:
            config: The run's settings.

        Raises:
            ConfigError: What the policy refuses, and what can be done about it.
        """
        try:
            self.check(config)
        except Refusal as error:
            raise ConfigError(
                f"this site's policy refuses this run: {error}. Ask for another run, or change the "
                "policy (policy.toml beside the keys, or --policy FILE)"
            ) from error

    def raise_least_images(self, config: RunConfig) -> RunConfig:
        """Return a run's settings with which this site sends nothing of its small classes.

        Args:
            config: The run's settings.

        Returns:
            The settings, with the policy's `least_images` where the method has it and less.
        """
        settings = config.method.settings
        if getattr(settings, "least_images", self.least_images) >= self.least_images:
            return config
        raised = replace(settings, least_images=self.least_images)
        return replace(config, method=replace(config.method, settings=raised))

    def check_message(self, size: int, what: str = "message") -> None:
        """Refuse a message or an answer of too many bytes.

        Args:
            size: Its bytes.
            what: `message` or `answer`.

        Raises:
            Refusal: There are too many.
        """
        most = self.megabytes_in if what == "message" else self.megabytes_out
        if size > most * MEGABYTE:
            raise Refusal(f"a {what} of {size / MEGABYTE:.1f} MB, and {most:g} MB are the most")

    def check_parties(self, count: int) -> None:
        """Refuse a secure sum over too few sites.

        Args:
            count: Number of sites.

        Raises:
            Refusal: There are too few.
        """
        if count < self.privacy.parties_at_least:
            raise Refusal(
                f"a secure sum of {count} sites, and {self.privacy.parties_at_least} are the least"
            )

    def check_file(self, path: str, what: str) -> None:
        """Refuse a file or folder of this machine that is in none of the policy's folders.

        Args:
            path: The file or folder.
            what: What asks for it, for the message.

        Raises:
            Refusal: It is in none of them.
        """
        place = Path(path).expanduser().resolve()
        allowed = [(self.base / Path(name).expanduser()).resolve() for name in self.folders]
        if not any(place.is_relative_to(folder) for folder in allowed):
            raise Refusal(f"{what} names files of this site, which its policy does not open")

    def _check_names(self) -> None:
        known = available()
        for name in self.methods:
            if name not in known:
                raise ConfigError(f"methods names {name!r}{nearest(name, list(known))}")
        for name in self.privacy.counts:
            if name not in COUNTS:
                raise ConfigError(f"privacy.counts names {name!r} (allowed: {', '.join(COUNTS)})")

    def _check_amounts(self, config: RunConfig) -> None:
        method = config.method
        if self.methods and method.name not in self.methods:
            raise Refusal(f"the method {method.name} (allowed: {', '.join(self.methods)})")
        bounds = (
            ("federation.rounds", config.federation.rounds, self.rounds),
            ("federation.epochs", config.federation.epochs, self.epochs),
            ("data.views", config.data.views, self.views),
            ("method.context_tokens", getattr(method.settings, "context_tokens", 0), MOST_TOKENS),
        )
        for key, value, most in bounds:
            if value > most:
                raise Refusal(f"{key} = {value}, and {most} is the most")

    def _check_privacy(self, config: RunConfig) -> None:
        wanted, given = self.privacy, config.privacy
        if given.noise < wanted.noise_at_least:
            raise Refusal(
                f"privacy.noise = {given.noise:g}, {wanted.noise_at_least:g} is the least"
            )
        if wanted.clip_at_most and not 0 < given.clip <= wanted.clip_at_most:
            raise Refusal(f"privacy.clip = {given.clip:g}, {wanted.clip_at_most:g} is the most")
        if wanted.epsilon_at_most and not given.noise:
            raise Refusal(
                "privacy.noise is off, and this site has a bound on epsilon "
                f"({wanted.epsilon_at_most:g})"
            )
        if wanted.secure_sum and not given.secure_sum:
            raise Refusal("privacy.secure_sum is off, and this site needs it")
        if given.counts not in wanted.counts:
            allowed = ", ".join(wanted.counts)
            raise Refusal(f"privacy.counts = {given.counts!r} (allowed: {allowed})")

    def _check_reads(self, config: RunConfig, places: Mapping[str, str]) -> None:
        for key in ("ood", "validation_ood"):
            for spec in getattr(config.data, key):
                self._check_set(f"data.{key}", spec)
        files = (
            ("negatives.words", config.negatives.words),
            ("data.root", "" if "root" in places else config.data.root),
            ("backbone.weights", "" if "weights" in places else config.backbone.weights),
        )
        for what, path in files:
            if path:
                self.check_file(path, what)

    def _check_set(self, what: str, spec: str) -> None:
        kind, _, _ = spec.partition(":")
        if kind in PATHS:
            self.check_file(Source.parse(spec).target, what)
        elif ".." in spec or not any(fnmatch.fnmatchcase(spec, pattern) for pattern in self.sets):
            raise Refusal(f"{what} names {spec}, which is none of this site's `sets`")

    def _check_agreed(self, config: RunConfig) -> None:
        try:
            agreed, given = to_flat(load(self.base / self.run)), to_flat(config)
        except ConfigError as error:
            raise PolicyFileError(f"the policy's run file: {error}") from error
        for key in dict.fromkeys([*agreed, *given]):
            if key not in OWN_PLACES and agreed.get(key) != given.get(key):
                raise Refusal(
                    f"{key} = {given.get(key, 'absent')!r} differs from the run agreed upon "
                    f"({agreed.get(key, 'absent')!r})"
                )


def policy_file(given: Path | None, keys: Path | None) -> Path | None:
    """The policy a site's command works under.

    Args:
        given: the file named on the command line, if one was.
        keys: the site's folder of keys, whose `policy.toml` is taken otherwise.

    Returns:
        The file, absolute; None where there is none, so that the defaults hold.
    """
    beside = keys / FILE if keys is not None else None
    path = given or (beside if beside is not None and beside.is_file() else None)
    return path.resolve() if path is not None else None


def _rule(key: str, value: Any) -> Any:
    """A rule of the table `settings`: a list of values, or bounds."""
    known = set(to_flat(RunConfig()))
    name = key.replace("_", "-")
    if name not in known and not name.startswith("method."):
        raise ConfigError(f"settings: there is no setting {key}{nearest(name, sorted(known))}")
    if isinstance(value, list):
        return value
    bounds = isinstance(value, dict) and value and set(value) <= {"least", "most"}
    if bounds and all(type(bound) in (int, float) for bound in value.values()):
        return value
    raise ConfigError(
        f"settings: {key} must be a list of allowed values or {{ least = 1, most = 9 }}"
    )


def _within(value: Any, rule: Any) -> bool:
    if isinstance(rule, list):
        return value in rule
    if type(value) not in (int, float):
        return False
    return bool(rule.get("least", value) <= value <= rule.get("most", value))
