"""Configuration: what is refused and how, and that nothing is lost on the way out and in."""

import dataclasses
import tomllib
from pathlib import Path
from typing import Any, Literal

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from focoop import fields
from focoop.config import loading, schema, writing
from focoop.config.schema import RunConfig
from focoop.errors import ConfigError
from focoop.methods import available

CONFIGS = Path(__file__).resolve().parents[2] / "configs"

positive = st.floats(min_value=1e-9, max_value=1e9)
texts = st.text(max_size=12).map(lambda text: text.replace("\0", ""))


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Any]:
    """Random valid values for a good part of the settings, in plain nested form."""
    return {
        "seed": draw(st.integers(0, 2**40)),
        "name": draw(texts),
        "data": {
            "id": draw(texts),
            "ood": draw(st.lists(texts, max_size=3)),
            "template": draw(texts.map(lambda t: t.replace("{", "").replace("}", ""))) + "{}",
            "with_patches": draw(st.booleans()),
        },
        "partition": {
            "kind": draw(st.sampled_from(schema.PARTITIONS)),
            "alpha": draw(positive),
        },
        "negatives": {"band": draw(st.lists(st.floats(1e-9, 1), min_size=2, max_size=2))},
        "method": {"name": "promptfl", "temperature": draw(positive)},
    }


@hypothesis.settings(max_examples=50)
@given(trees())
def test_toml_and_flat_round_trips_are_exact(tree: dict[str, Any]) -> None:
    original = loading.from_dict(tree)
    text = writing.to_toml(original)
    again = loading.from_dict(tomllib.loads(text))
    assert again == original
    assert writing.to_toml(again) == text
    assert loading.from_dict(tomllib.loads(writing.to_toml(original, docs=True))) == original
    flat = writing.to_flat(original)
    assert loading.from_flat(flat) == original
    # Flower hands the keys over in any order.
    assert loading.from_flat(dict(sorted(flat.items(), reverse=True))) == original
    assert all(type(value) in (bool, int, float, str) for value in flat.values())
    assert not any("_" in key for key in flat)
    assert original.method.settings.temperature == tree["method"]["temperature"]
    assert original.data.ood == tuple(tree["data"]["ood"])


@given(texts)
def test_toml_strings_are_read_back_by_the_standard_parser(text: str) -> None:
    assert tomllib.loads(f"x = {fields.toml_value(text)}") == {"x": text}


@pytest.mark.parametrize("method", available())
def test_every_method_setting_is_documented_and_round_trips(method: str) -> None:
    made = loading.load(None, [f"method.name={method}"])
    assert loading.from_dict(tomllib.loads(writing.to_toml(made))) == made
    undocumented = [key for key, _, doc in writing.describe(made) if not doc]
    assert undocumented == []


@pytest.mark.parametrize("method", available())
def test_every_method_setting_has_a_group_under_which_it_is_shown(method: str) -> None:
    made = loading.load(None, [f"method.name={method}"])
    assert "" not in fields.grouped(type(made.method.settings))
    shown = writing.to_toml(made, docs=True).partition("[method]")[2]
    group, under = "", {}
    for line in shown.splitlines():
        group = line[2:].partition(":")[0] if line.startswith("# ") else group
        if " = " in line and not line.startswith("name = "):
            under[line.partition(" = ")[0]] = group
    assert under == {
        one.name: one.metadata["group"] for one in dataclasses.fields(made.method.settings)
    }
    assert loading.from_dict(tomllib.loads(writing.to_toml(made, docs=True))) == made


def test_a_group_that_is_none_is_refused_where_it_is_declared() -> None:
    with pytest.raises(ConfigError, match="ablation"):
        fields.setting(1, "a setting", group="ablatoin")


REFUSED = {
    "federation.roundz=3": ["federation.roundz", "3", "'federation.rounds'"],
    "fedration.rounds=3": ["fedration", "'federation'"],
    "rounds=3": ["rounds", "'federation.rounds'"],
    "method.alpa=1": ["method.alpa", "'method.alpha'"],
    "method.name=focop": ["'focop'", "'focoop'"],
    "partition.kind=dirichle": ["partition.kind", "'dirichle'", "'dirichlet'", "overlap"],
    "federation.rounds=ten": ["federation.rounds", "'ten'", "whole number"],
    "federation.rounds=2.5": ["federation.rounds", "2.5", "whole number"],
    "federation.rounds=true": ["federation.rounds", "True", "whole number"],
    "federation.rounds=-1": ["federation.rounds", "-1", "0"],
    "federation.participation=0": ["federation.participation", "more than 0"],
    "federation.participation=1.5": ["federation.participation", "1.5", "most allowed is 1"],
    "method.nam=focoop": ["method.nam", "method.name"],
    "federation.lr=nan": ["federation.lr", "nan", "finite"],
    "data.with_patches=yes": ["data.with_patches", "'yes'", "true or false"],
    "data.ood=demo:dtd": ["data.ood", "list"],
    "data.ood=[1]": ["data.ood[0]", "string"],
    "negatives.band=[0.1]": ["negatives.band", "2 values"],
    "negatives.band=[0.1, 3]": ["negatives.band", "most allowed is 1"],
    "data.template=no hole": ["data.template", "no hole", "{}"],
    "seed=-1": ["seed", "-1"],
    "federation=3": ["federation", "table"],
    "method.context_tokens=many": ["method.context_tokens", "'many'"],
    "no equals sign": ["--set", "KEY=VALUE"],
}


@pytest.mark.parametrize("text", REFUSED)
def test_refusals_name_key_value_and_what_is_allowed(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loading.load(None, [text])
    for part in REFUSED[text]:
        assert part in str(caught.value)


def test_overrides_take_toml_values_and_bare_words() -> None:
    made = loading.load(
        None,
        ["federation.lr=2", "name=42", 'data.ood=["demo:dtd"]', "data.id=file:x#y.safetensors"],
    )
    assert made.federation.lr == 2.0 and type(made.federation.lr) is float
    assert made.name == "42"
    assert made.data.ood == ("demo:dtd",)
    assert made.data.id == "file:x#y.safetensors"
    assert loading.load(None, ["seed=1", "seed=2"]).seed == 2


def test_a_date_or_smuggled_key_stays_a_string() -> None:
    assert loading.load(None, ["name=2026-01-02"]).name == "2026-01-02"
    assert loading.load(None, ["name=1\nseed = 5"]) == RunConfig(name="1\nseed = 5")


def test_files_extend_files_and_another_method_drops_settings(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('seed = 3\n[method]\nname = "focoop"\nalpha = 0.25\n')
    over = tmp_path / "more" / "over.toml"
    over.parent.mkdir()
    over.write_text('extends = "../base.toml"\n[federation]\nrounds = 2\n')
    made = loading.load(over)
    assert (made.seed, made.federation.rounds) == (3, 2)
    assert made.method.settings.alpha == 0.25
    assert loading.load(over, ["method.name=promptfl"]).method.name == "promptfl"
    assert loading.load(over, ["method.name=focoop"]).method.settings.alpha == 0.25


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('extends = "base.toml"\n')
    with pytest.raises(ConfigError, match="extends itself"):
        loading.load(tmp_path / "base.toml")
    with pytest.raises(ConfigError, match=r"nearest is 'base.toml'"):
        loading.load(tmp_path / "bse.toml")
    (tmp_path / "bad.toml").write_text("seed = = 3\n")
    with pytest.raises(ConfigError, match="cannot read"):
        loading.load(tmp_path / "bad.toml")
    (tmp_path / "number.toml").write_text("extends = 3\n")
    with pytest.raises(ConfigError, match="must be a string"):
        loading.load(tmp_path / "number.toml")


def test_a_setting_of_another_folder_is_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for wrong in ("demo/cifar100", "configs/cifar100.toml"):
        with pytest.raises(ConfigError, match="settings/cifar100"):
            loading.load(Path(wrong))


def test_hash_names_values_not_spelling() -> None:
    assert writing.config_hash(RunConfig()) == writing.config_hash(loading.load())
    assert writing.config_hash(loading.load(None, ["federation.lr=2"])) == writing.config_hash(
        loading.load(None, ["federation.lr=2.0"])
    )
    assert writing.config_hash(RunConfig(seed=1)) != writing.config_hash(RunConfig())


def test_direct_construction_is_checked_too() -> None:
    with pytest.raises(ConfigError, match="partition.clients"):
        schema.PartitionConfig(clients=0)
    with pytest.raises(ConfigError, match="settings of its own class"):
        schema.MethodConfig("promptfl", available()["focoop"].Config())
    assert type(schema.FederationConfig(lr=3).lr) is float


def test_differences_name_old_and_new() -> None:
    lines = writing.differences(RunConfig(), loading.load(None, ["seed=4", "method.name=zeroshot"]))
    assert "seed: 0 -> 4" in lines
    assert any(line.startswith("method.alpha: ") and line.endswith(" -> absent") for line in lines)
    changed = loading.load(None, ['data.validation_ood=["demo:sun"]'])
    assert writing.differences(RunConfig(), changed) == ['data.validation_ood: [] -> ["demo:sun"]']


def test_optional_and_literal_fields() -> None:
    @dataclasses.dataclass(frozen=True)
    class Extra:
        mode: Literal["a", "b"] = "a"
        limit: float | None = None

    assert fields.build(Extra, {"limit": 3}, "x.") == Extra(limit=3.0)
    assert fields.plain(Extra()) == {"mode": "a"}
    with pytest.raises(ConfigError, match=r"x.mode = 'c' is not allowed; there are a, b"):
        fields.build(Extra, {"mode": "c"}, "x.")


def test_title_distinguishes_runs() -> None:
    assert RunConfig().title == "cifar100-pathological-focoop-0"
    assert RunConfig(name="mine").title == "mine"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_packaged_configuration_loads(path: Path) -> None:
    assert isinstance(loading.load(path), RunConfig)


def test_base_states_the_defaults() -> None:
    assert loading.load(CONFIGS / "base.toml") == RunConfig()
    stated = tomllib.loads((CONFIGS / "base.toml").read_text(encoding="utf-8"))
    for name in (*schema.SCALARS, *schema.SECTIONS):
        assert name in stated, f"configs/base.toml leaves out {name}"


OWN = ("folder:x", "csv:x.csv", "clients:x", "file:x.safetensors", "hf:me/x")


def test_what_is_left_to_the_data_is_settled_by_it() -> None:
    packaged = loading.load()
    assert packaged.data.ood == ("demo:dtd_32px", "demo:sun_32px") and packaged.partition.shots == 8
    assert packaged.data.corrupted == ("demo:cifar100#brightness",)
    for spec in OWN:
        own = loading.load(CONFIGS / "base.toml", [f"data.id={spec}"])
        assert (own.data.ood, own.data.corrupted, own.partition.shots) == ((), (), 0)
        told = loading.load(None, [f"data.id={spec}", 'data.ood=["demo:dtd"]', "partition.shots=8"])
        assert (told.data.ood, told.partition.shots) == (("demo:dtd",), 8)
    public = loading.load(None, ["data.id=oxford_pets"])
    assert (public.data.ood, public.data.corrupted, public.partition.shots) == ((), (), 8)
    assert loading.load(None, ["data.id=cifar100"]).data.ood == packaged.data.ood
    with pytest.raises(ConfigError, match="data.ood: auto stands alone"):
        loading.load(None, ['data.ood=["auto", "demo:dtd"]'])


def test_a_run_folder_says_what_a_file_to_edit_leaves_to_the_data() -> None:
    made = loading.load(None, ["data.id=folder:x"])
    assert "shots = 0\n" in writing.to_toml(made) and "ood = []\n" in writing.to_toml(made)
    edited = writing.to_toml(loading.load(), docs=True)
    assert "shots = -1  #" in edited and "(here: 8)" in edited and 'ood = ["auto"]  #' in edited
    moved = edited.replace('id = "demo:cifar100"', 'id = "folder:x"')
    assert loading.from_dict(tomllib.loads(moved)) == made
    fixed = loading.load(None, ["data.id=folder:x", "partition.shots=4"])
    assert "shots = 4  #" in writing.to_toml(fixed, docs=True)


def test_sites_with_images_of_their_own_have_the_settings_for_those() -> None:
    for path in (None, CONFIGS / "base.toml"):
        own = loading.load(path, ["seed=3"], own=True)
        assert (own.data.ood, own.data.corrupted, own.partition.shots) == ((), (), 0)
    told = loading.load(None, ["partition.shots=2", 'data.ood=["demo:dtd"]'], own=True)
    assert (told.data.ood, told.data.corrupted, told.partition.shots) == (("demo:dtd",), (), 2)
    assert loading.from_flat(writing.to_flat(told)) == told


def test_a_methods_settings_may_come_before_its_name() -> None:
    wanted = loading.load(None, ["method.name=focoop", "method.context_tokens=3"])
    flat = writing.to_flat(wanted)
    assert loading.from_flat(dict(reversed(flat.items()))) == wanted
