"""The settings of a run as nested frozen dataclasses; every field is documented and checked."""

from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar

from focoop.config.refusals import refuse_secure_sum, refuse_untrained
from focoop.errors import ConfigError
from focoop.federation import COUNTS, DOWN, LEAST_PARTIES, RULES, SCHEDULES, UP
from focoop.fields import brief, build, check, convert, fields_of, plain, setting
from focoop.methods import lookup, name_method
from focoop.plugins import is_file

# Values that stand for what suits the data, in the place of a list of sets and of a number.
AUTO_SETS = ("auto",)
AUTO_SHOTS = AUTO_CLIENTS = -1
AUTO_CALIBRATION = -1.0
PAPER_SHOTS, PAPER_CLIENTS = 8, 10
PACKAGED_CORRUPTED = ("demo:cifar100#brightness",)
PACKAGED_OOD = ("demo:dtd_32px", "demo:sun_32px")
TWO_THIRDS = 2 / 3
SEEDS = 2**63 - 1  # of whole numbers in TOML
PARTITIONS = ("dirichlet", "pathological", "overlap", "domain", "given", "iid")


class Section:
    """A table of the configuration, checked field by field however it is made."""

    prefix: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for member, kind in fields_of(type(self)):
            if member.metadata:
                key = self.prefix + member.name
                value = convert(key, getattr(self, member.name), kind)
                check(key, value, member)
                object.__setattr__(self, member.name, value)  # 3 becomes 3.0 where a number is due


@dataclass(frozen=True)
class DataConfig(Section):
    """What is learned and what it is tested on."""

    prefix = "data."
    id: str = setting(
        "demo:cifar100",
        "ID dataset: NAME (focoop data list), demo:NAME, file:PATH.safetensors, folder:PATH, "
        "clients:PATH, csv:FILE, hf:NAME",
    )
    root: str = setting("", "folder of public datasets; empty: FOCOOP_DATA, then the cache")
    strict: bool = setting(False, "refuse images of your own that cannot be read; else skip them")
    incomplete: bool = setting(False, "use public datasets of other counts than the official ones")
    fetch: bool = setting(False, "focoop run fetches public datasets that are not here yet")
    test_share: float = setting(
        0.2, "share of each class held out as test where images have no splits", above=0, high=0.9
    )
    calibration: float = setting(
        AUTO_CALIBRATION,
        "share of each class set aside at each client to calibrate thresholds, first of images "
        "that training leaves over; -1: up to half, of those alone; 0: none",
        low=-1,
        high=0.9,
    )
    corrupted: tuple[str, ...] = setting(
        AUTO_SETS,
        "corrupted ID test sets; without @SEVERITY all five severities; auto: the packaged ones "
        "for CIFAR-100, none for other data",
    )
    ood: tuple[str, ...] = setting(
        AUTO_SETS, "OOD test sets; auto: the packaged ones for CIFAR-100, none for other data"
    )
    drop_classes: tuple[str, ...] = setting((), "classes of the ID dataset to leave out")
    unknown_classes: int = setting(
        0,
        "classes that nobody knows, drawn by partition.seed: their test images are the OOD set "
        "unknown_classes, and nothing else of them is used",
        low=0,
        high=100_000,
    )
    new_classes: int = setting(
        0,
        "classes known by name alone, drawn by partition.seed: tested, without training images",
        low=0,
        high=100_000,
    )
    template: str = setting("a photo of a {}.", "zero-shot prompt; {} stands for the class name")
    validation: int = setting(
        0,
        "tune on this many training images per class instead of the test split",
        low=0,
        high=1_000_000,
    )
    validation_ood: tuple[str, ...] = setting(
        (), "OOD sets in place of data.ood while data.validation is set; []: data.ood itself"
    )
    with_patches: bool = setting(False, "load patch features, for methods that use them")
    views: int = setting(
        0,
        "random crops of each training image, as further rows to train on (images only)",
        low=0,
        high=1000,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.template.count("{}") != 1 or set("{}") & set(self.template.replace("{}", "")):
            raise ConfigError(
                f"data.template = {brief(self.template)} must contain {{}} once, and no other brace"
            )
        if -1 < self.calibration < 0:
            raise ConfigError(
                f"data.calibration = {self.calibration} is not allowed: it must lie in 0..0.9, or "
                "be -1 for images that training leaves over"
            )
        for name in ("ood", "corrupted"):
            given = getattr(self, name)
            if AUTO_SETS[0] in given and len(given) > 1:
                raise ConfigError(
                    f"data.{name}: auto stands alone: name the sets, or write [] for none"
                )


@dataclass(frozen=True)
class BackboneConfig(Section):
    """The frozen vision-language model."""

    prefix = "backbone."
    name: str = setting("mini", "mini, openclip:MODEL:PRETRAINED or local-dir:FOLDER")
    weights: str = setting("", "local weights file for openclip; empty: its hub")
    device: str = setting("cpu", "torch device, such as cpu or cuda")
    precision: str = setting(
        "auto",
        "products inside the text tower while training; auto: bfloat16 on a GPU, float32 on a "
        "CPU; prefer_bfloat16: bfloat16 where it works, else float32",
        choices=("auto", "float32", "bfloat16", "prefer_bfloat16"),
    )
    logit_scale: float = setting(0.0, "factor of cosines in losses; 0: the backbone's own", low=0)


@dataclass(frozen=True)
class PartitionConfig(Section):
    """How the images are divided among clients."""

    prefix = "partition."
    kind: str = setting("pathological", "how classes are divided", choices=PARTITIONS)
    clients: int = setting(
        AUTO_CLIENTS,
        "number of clients K; 0: one per domain or given client; -1: 10; of your own data one per "
        "domain or given client, or 10 with two classes each, fewer where there are fewer classes",
        low=-1,
        high=100_000,
    )
    alpha: float = setting(0.1, "concentration of dirichlet; smaller is more uneven", above=0)
    classes_per_client: int = setting(20, "classes of a client (overlap)", low=1, high=100_000)
    shots: int = setting(
        AUTO_SHOTS,
        "training images per class and client, at most; 0: all; -1: all of your own data (folder:, "
        "csv:, clients:, file:, hf:), 8 as in the paper of packaged and public data",
        low=-1,
        high=1_000_000,
    )
    repeats: bool = setting(
        False, "repeat images of a client that has fewer of a class than partition.shots"
    )
    leave_out: str = setting(
        "", "domain that all clients are tested on and none holds (kind domain); empty: none"
    )
    seed: int = setting(21, "seed of the partition, apart from the run's", low=0, high=SEEDS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind != "domain" and self.leave_out:
            raise ConfigError(
                f"partition.leave_out = {self.leave_out!r} needs partition.kind = domain, "
                f"not {self.kind}"
            )
        if self.kind not in ("domain", "given") and not self.clients:
            raise ConfigError(
                "partition.clients = 0 means one client per domain: with partition.kind = "
                f"{self.kind} it must be 1 or more"
            )


@dataclass(frozen=True)
class FederationConfig(Section):
    """Rounds and local training."""

    prefix = "federation."
    rounds: int = setting(25, "communication rounds T", low=0, high=1_000_000)
    participation: float = setting(1.0, "share of clients per round", above=0, high=1)
    epochs: int = setting(2, "local epochs E per round", low=1, high=10_000)
    batch_size: int = setting(32, "images per step", low=1, high=1_000_000)
    lr: float = setting(3.0, "learning rate of SGD", above=0)
    lr_schedule: str = setting("constant", "rate over the rounds", choices=SCHEDULES)
    momentum: float = setting(0.0, "momentum within a round", low=0, high=1)
    weight_decay: float = setting(0.0, "weight decay of the prompts", low=0)
    prox: float = setting(0.0, "mu of FedProx, mu/2 |shared - received|^2; 0: FedAvg", low=0)
    together: int = setting(
        0,
        "clients trained as one batch; 0: one at a time on a CPU, up to 50 on a GPU",
        low=0,
        high=10_000,
    )
    evaluate_every: int = setting(
        1, "evaluate every so many rounds; 0: the last alone", low=0, high=1_000_000
    )
    late_clients: int = setting(
        0,
        "clients, the last ones, that join after training: they take part in the last round alone; "
        "closed forms add their sums, other methods keep the shared parameters",
        low=0,
        high=100_000,
    )
    edges: int = setting(
        0,
        "edge servers that combine their clients' updates for the root; 0: none",
        low=0,
        high=100_000,
    )
    large: bool = setting(False, "run even where it takes a month, or more memory than is here")
    payload: str = setting("fp32", "how clients' changes travel up; fp32: uncoded", choices=UP)
    payload_down: str = setting("fp32", "how shared tensors travel down", choices=DOWN)


@dataclass(frozen=True)
class NegativesConfig(Section):
    """The words that name OOD prompts, for methods that have some."""

    prefix = "negatives."
    count: int = setting(100, "number U of words", low=0, high=50_000)
    quantile: float = setting(0.95, "quantile of a word's cosines to the classes", low=0, high=1)
    band: tuple[float, float] = setting(
        (0.0, 0.0), "stretch of the ranking, farthest first, as two fractions", low=0, high=1
    )
    adjective_share: float = setting(
        -1.0, "share of adjectives among the words; -1: as among the candidates", low=-1, high=1
    )
    words: str = setting("", "text file of candidates, one per line; empty: WordNet's")

    def __post_init__(self) -> None:
        super().__post_init__()
        if -1 < self.adjective_share < 0:
            raise ConfigError(
                f"negatives.adjective_share = {self.adjective_share} is not allowed: it must lie "
                "in 0..1, or be -1 for the share among the candidates"
            )


@dataclass(frozen=True)
class RobustConfig(Section):
    """What the server does against hostile or broken clients."""

    prefix = "robust."
    rule: str = setting("none", "how updates are screened before they are used", choices=RULES)
    hostile: float = setting(
        0.2, "share of clients to withstand: trimmed, or left out by krum", low=0, high=0.5
    )
    clip: float = setting(2.0, "longest change under rule clip, in medians of a round", above=0)
    count_cap: float = setting(
        10.0, "largest image count under any rule, in medians of a round; 0: none", low=0
    )


@dataclass(frozen=True)
class PrivacyConfig(Section):
    """What clients do to their updates before they leave (docs/reliability/threat-model.md)."""

    prefix = "privacy."
    clip: float = setting(0.0, "longest change of the shared tensors in a round; 0: any", low=0)
    noise: float = setting(0.0, "deviation of Gaussian noise, in units of privacy.clip", low=0)
    delta: float = setting(1e-5, "delta of the epsilon that is reported", above=0, high=0.1)
    counts: str = setting("exact", "class counts that are sent", choices=COUNTS)
    count_step: int = setting(10, "rounded counts are multiples of it", low=1, high=1_000_000)
    count_noise: float = setting(10.0, "deviation of noised counts, in images", above=0)
    secret_draw: bool = setting(
        False, "clients of a round are drawn secretly, not from the seed; tells epsilon_outside"
    )
    secure_sum: bool = setting(False, "the server sees sums over clients alone")
    # A server that tells two groups of clients different stories needs this many in each of them.
    threshold: float = setting(
        TWO_THIRDS,
        "a secure sum opens while more than this share of its clients is left",
        low=TWO_THIRDS,
        high=1,
    )
    parties: int = setting(
        LEAST_PARTIES,
        "fewest clients in a secure sum; a site may ask for more",
        low=LEAST_PARTIES,
        high=100_000,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise and not self.clip:
            raise ConfigError("privacy.noise is in units of privacy.clip: set privacy.clip too")


@dataclass(frozen=True)
class MethodConfig:
    """A method's name and its own settings; `settings` None means its defaults."""

    name: str = setting("focoop", "a method of focoop methods, or a file of your own, ./mine.py")
    settings: Any = None

    def __post_init__(self) -> None:
        wanted = lookup(self.name).Config
        given = wanted() if self.settings is None else self.settings
        if type(given) is not wanted:
            raise ConfigError(
                f"method.name = {self.name!r} takes settings of its own class, "
                f"not {type(given).__qualname__}"
            )
        object.__setattr__(self, "settings", build(wanted, plain(given), "method."))

    @property
    def label(self) -> str:
        """Return what the method is called in tables and reports."""
        return name_method(self.name)


@dataclass(frozen=True)
class RunConfig(Section):
    """Everything a run depends on."""

    seed: int = setting(
        0,
        "seed of the run: shots, calibration images, first prompts, batches and participation",
        low=0,
        high=SEEDS,
    )
    name: str = setting("", "name of the run folder; empty: made of data, method and seed")
    data: DataConfig = field(default_factory=DataConfig)
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    partition: PartitionConfig = field(default_factory=PartitionConfig)
    federation: FederationConfig = field(default_factory=FederationConfig)
    negatives: NegativesConfig = field(default_factory=NegativesConfig)
    robust: RobustConfig = field(default_factory=RobustConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    method: MethodConfig = field(default_factory=MethodConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._settle()
        refuse_untrained(self)
        refuse_secure_sum(self)

    def _settle(self) -> None:
        """Replace `auto` and -1 by what they mean for this data, so that a run folder says it."""
        meant = automatic(self.data.id, self.backbone.name)
        for section, name in AUTOMATIC:
            holder = getattr(self, section)
            if getattr(holder, name) in (AUTO_SETS, AUTO_SHOTS):
                changed = replace(holder, **{name: meant[section, name]})
                object.__setattr__(self, section, changed)

    @property
    def title(self) -> str:
        """Return `name`, or a name made of what distinguishes runs."""
        kind, colon, target = self.data.id.partition(":")
        path = colon or is_file(kind)
        data = (target or kind).rsplit("/", 1)[-1] if path else kind.replace("/", "-")
        for end in (".safetensors", ".csv", ".py"):
            data = data.removesuffix(end)
        return self.name or f"{data}-{self.partition.kind}-{self.method.label}-{self.seed}"


# Section and name of the settings whose default depends on the data, with the value that says so.
AUTOMATIC: dict[tuple[str, str], Any] = {
    ("data", "corrupted"): AUTO_SETS,
    ("data", "ood"): AUTO_SETS,
    ("partition", "shots"): AUTO_SHOTS,
    ("partition", "clients"): AUTO_CLIENTS,
}
OWN_DATA = {("data", "corrupted"): (), ("data", "ood"): (), ("partition", "shots"): 0}


def automatic(data_id: str, backbone: str = "mini") -> dict[tuple[str, str], Any]:
    """Say what the settings of `AUTOMATIC` mean for a dataset.

    Args:
        data_id: the setting `data.id`.
        backbone: the setting `backbone.name`; the packaged sets are features of `mini`.

    Returns:
        (section, name) -> value.

    >>> automatic("folder:images")["partition", "shots"]
    0
    """
    kind, colon, _ = data_id.partition(":")
    if colon and kind != "demo":
        return {**OWN_DATA, ("partition", "clients"): AUTO_CLIENTS}  # who divides them knows
    here = data_id == "demo:cifar100" or (data_id == "cifar100" and backbone == "mini")
    return {
        ("data", "corrupted"): PACKAGED_CORRUPTED if here else (),
        ("data", "ood"): PACKAGED_OOD if here else (),
        ("partition", "shots"): PAPER_SHOTS,
        ("partition", "clients"): PAPER_CLIENTS,
    }


SECTIONS: dict[str, type[Any]] = {
    member.name: kind
    for member, kind in fields_of(RunConfig)
    if isinstance(kind, type) and is_dataclass(kind)
}
SCALARS = tuple(member.name for member in fields(RunConfig) if member.name not in SECTIONS)
