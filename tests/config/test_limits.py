"""Bounds of settings: every number has some, and what is impossible is refused at once."""

import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from focoop import fields
from focoop.clip import load_backbone
from focoop.config import files, from_dict, load
from focoop.config.schema import SECTIONS, RunConfig
from focoop.errors import BackboneError, ConfigError
from focoop.federation import Edges
from focoop.flower.deploy.study import Federation
from focoop.flower.settings import ServerSettings
from focoop.flower.site import policy
from focoop.methods import Params, available, lookup
from focoop.scenario import cost, make_split
from tests.toy_setting import write_setting

CLASSES: dict[str, Any] = {
    **{name: kind for name, kind in SECTIONS.items() if name != "method"},
    **{f"method {name}": lookup(name).Config for name in available()},
    "run": RunConfig,
    "flower": ServerSettings,
    "study": Federation,
    "policy": policy.Policy,
    "privacy policy": policy.PrivacyPolicy,
}


@pytest.mark.parametrize("name", CLASSES)
def test_every_number_has_bounds_within_which_its_default_lies(name: str) -> None:
    for field, kind in fields.fields_of(CLASSES[name]):
        bounds = fields.bounds_of(field, kind) if field.metadata else None
        if bounds is None:
            continue
        low = bounds.low if bounds.low is not None else bounds.above
        assert low is not None and bounds.high is not None, field.name
        assert math.isfinite(low) and low < bounds.high <= 2**63 - 1
        if kind is int:
            assert {"low", "high"} <= set(field.metadata), f"{field.name} declares no bounds"
        else:
            assert float(torch.tensor(bounds.high, dtype=torch.float32).square()) < math.inf
        fields.check(field.name, field.default, field)
        for value in field.metadata.get("grid", ()):
            fields.check(field.name, value, field)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("partition.shots=100000000", "the most allowed is 1000000"),
        ("federation.edges=2147483648", "the most allowed is 100000"),
        ("method.id_steps=2147483648", "the most allowed is 1000"),
        ("method.transport_steps=4000000000", "the most allowed is 100000"),
        ("federation.lr=1e308", "the most allowed is 1e+09"),
        ("federation.lr=1e-45", "too close to 0: write 1e-12 or more"),
        ("federation.prox=1e-45", "write 1e-12 or more, or 0"),
        (f"federation.lr=1{'0' * 400}", "it must be a finite number"),
        (f"federation.rounds=1{'0' * 400}", "the most allowed is"),
        (f"federation.rounds=1{'0' * 5000}", "a whole number"),
        (f"federation.rounds=0x{'f' * 5000}", "a whole number of 20000 bits"),
        ("data.template={}}", "no other brace"),
        ("data.template={} {x}", "no other brace"),
        (f"federation.rounds={'[' * 5000}", "a whole number"),
        (f"data.ood={'[' * 9000}", "it must be a list"),
        (f"data.template={'a' * 20000}{{}}", "at most 10000 characters"),
        (f"{'x' * 20000}=1", "there is no setting"),
        ("name=a\\0b", None),  # a backslash, no zero byte
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_absurd_settings_are_refused_in_a_short_message(text: str, told: str | None) -> None:
    if told is None:
        load(None, [text])
        return
    with pytest.raises(ConfigError) as caught:
        load(None, [text])
    assert told in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = " + "[" * 5000, "nested too deeply"),
        ("x = " + "{a=" * 5000, "nested too deeply"),
        ("a." * 200_000 + "b = 1", "more than 100000 characters"),
        ("seed = 1" + "0" * 5000, "too many digits"),
        ('name = "a\\u0000b"', "zero byte"),
        ("[data]\ntemplate = 1979-05-27", "it must be a string"),
    ],
    ids=lambda value: value[:20],
)
def test_absurd_files_are_refused_at_once(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    began = time.monotonic()
    with pytest.raises(ConfigError, match=told):
        load(path)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("name", ["a" * 5000, "a\nb", "\udc80", "x" * 300 + ".toml", "/dev/zero"])
def test_odd_names_of_files_are_refused_too(name: str) -> None:
    with pytest.raises(ConfigError):
        load(Path(name))


@pytest.mark.parametrize("device", ["meta", "cuda:99", "", "xla", "vulkan", "a\nb"])
def test_devices_without_numbers_are_refused(device: str) -> None:
    with pytest.raises(BackboneError, match="cannot be used"):
        load_backbone("mini", device=device)


def toy(tmp_path: Path, *overrides: str) -> RunConfig:
    return load(write_setting(tmp_path), overrides)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (
            [
                "partition.shots=1000000",
                "partition.repeats=true",
                "federation.epochs=10000",
                "federation.batch_size=1",
            ],
            "at least .* days",
        ),
        (
            ["federation.rounds=1000000", "federation.epochs=10000", "federation.batch_size=1"],
            "at least .* days",
        ),
        (["partition.clients=100000"], "4 classes are too few for 100000 clients"),
        (["partition.clients=100000", "partition.kind=dirichlet"], "cannot share 32 images"),
    ],
)
def test_runs_that_cannot_end_are_refused_before_images_are_drawn(
    overrides: list[str], told: str, tmp_path: Path
) -> None:
    config = toy(tmp_path, *overrides)
    began = time.monotonic()
    with pytest.raises(ConfigError, match=told):
        make_split(config)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_a_container_counts(version: int, tmp_path: Path) -> None:
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    root = tmp_path / "groups" / ("memory" if version == 1 else "")
    inner = root / "jobs" / "one"
    inner.mkdir(parents=True)
    own = tmp_path / "own"
    own.write_text("5:cpu,memory:/jobs/one\n3:pids:/x\n" if version == 1 else "0::/jobs/one\n")

    def limit(group: Path, most: str) -> None:
        for name, text in zip(names, (most, "300", "x"), strict=True):
            (group / name).write_text(f"{text}\n")
        (group / "memory.stat").write_text(f"anon 7\n{names[2]} 100\n")

    assert cost.group_memory(own, tmp_path / "groups") is None  # nobody sets one
    limit(root / "jobs", "1000")
    limit(inner, "max" if version == 2 else str(2**63 - 4096))
    assert cost.group_memory(own, tmp_path / "groups") == 800  # of the group around it
    limit(inner, "250")
    assert cost.group_memory(own, tmp_path / "groups") == 50
    own.write_text("0::/elsewhere\n5:memory:/elsewhere\n")  # as a container may see it
    limit(root, "600")
    assert cost.group_memory(own, tmp_path / "groups") == 400
    assert cost.group_memory(tmp_path / "absent", tmp_path / "groups") is None


def test_memory_is_estimated_before_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = ("partition.shots=1000", "partition.repeats=true")
    config = toy(tmp_path, *many)
    table = tmp_path / "meminfo"
    table.write_text("MemTotal: 9999999 kB\nMemFree: 2 kB\nMemAvailable: 1 kB\n")
    assert cost.free_memory(table) == 1024
    assert cost.free_memory(tmp_path / "absent") > 10**8  # all there is
    monkeypatch.setattr(cost, "free_memory", lambda: 1024)
    with pytest.raises(ConfigError, match=r"at least .* GB of memory.* free .*federation\.large"):
        make_split(config)
    allowed = make_split(toy(tmp_path, *many, "federation.large=true"))
    rows = [len(index) for index in allowed.train_index]
    assert cost.least_cost(config, rows, 4).rows == sum(rows) == 4000
    closed = toy(tmp_path, "method.name=fedncm")  # takes all images of a client at once
    assert cost.least_cost(closed, rows, 4, 1024).memory == 8 * 4000 + 2 * max(rows) * 1024


def test_an_estimate_counts_the_steps_that_training_takes(tmp_path: Path) -> None:
    config = toy(
        tmp_path, "federation.rounds=3", "federation.epochs=2", "federation.participation=0.5"
    )
    # 2 clients, one of them a round; 20 and 12 images in batches of 8: 3 and 2 steps.
    assert cost.least_cost(config, [20, 12], 4).steps == 3 * 1 * 2 * 2.5
    still = toy(tmp_path, "method.name=fedncm")
    assert cost.least_cost(still, [20, 12], 4).steps == 0


def test_ordinary_settings_are_far_from_any_limit(mini: Any) -> None:
    configs = sorted((Path(files.PACKAGE).parent / "configs").glob("*.toml"))
    for path in configs:
        config = load(path)
        clients = config.partition.clients or 10
        largest = cost.least_cost(config, [5000] * clients, 1000, 4096, mini.text)
        assert largest.seconds < cost.DAYS * 86400
        assert largest.memory < 8e9


def test_empty_edges_cost_nothing() -> None:
    began = time.monotonic()
    edges = Edges(2**31)
    shared = {"a": torch.zeros(2)}

    class Plain:
        by_class = ()

        def sent(self, shared: Params) -> Params:
            return shared

    from focoop.methods import ClientUpdate, Server

    updates = [ClientUpdate(k, {"a": torch.ones(2)}, 3, torch.ones(2), 0.0) for k in (0, 5)]
    task: Any = type("Task", (), {"classes": ("x", "y")})()
    combined, report = edges.screen(Plain(), Server(shared), updates, task)  # type: ignore[arg-type]
    assert [update.client for update in combined] == [0, 5] and report["edges"] == 2
    assert time.monotonic() - began < 5


def test_a_plugin_without_bounds_is_bounded_by_its_types() -> None:
    @dataclasses.dataclass(frozen=True)
    class Own:
        count: int = fields.setting(3, "a count")
        rate: float = fields.setting(0.5, "a rate")

    for given in ({"count": 2**40}, {"rate": 1e30}, {"rate": -1e30}, {"rate": 1e-30}):
        with pytest.raises(ConfigError):
            fields.build(Own, given, "method.")


def test_settings_may_be_asked_for_in_words() -> None:
    assert from_dict({"federation": {"large": True}}).federation.large
