"""Suggestions for unknown names: what was probably meant, however it was written."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from focoop.config import files, loading
from focoop.data import dataset_spec, registry
from focoop.errors import ConfigError, DataError, closest, folded, nearest
from focoop.experiments import presets, variants
from focoop.methods import SPELLINGS, available, lookup

PACKAGE = Path(__file__).resolve().parents[2] / "focoop"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("FOCoOp", "focoop"),
        ("focoop+", "focoop_plus"),
        ("FOCoOp+", "focoop_plus"),
        ("focoop plus", "focoop_plus"),
        ("PromptFL", "promptfl"),
        ("promtfl", "promptfl"),
        ("FedAvg", "promptfl"),
        ("zero-shot", "zeroshot"),
        ("CLIP", "zeroshot"),
        ("GalLoP", "fedgallop"),
        ("local", "local_only"),
        ("centralised", "centralized"),
    ],
)
def test_methods_by_other_spellings(written: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"nearest is '{meant}'"):
        lookup(written)
    with pytest.raises(ConfigError, match=f"nearest is '{meant}'"):
        presets.configured({}, "any", variants.Variant(written, written), None)


def test_spellings_name_methods_that_exist() -> None:
    assert set(SPELLINGS.values()) <= set(available())
    assert all(folded(name) == name for name in SPELLINGS)


def test_an_unlike_name_gets_the_list() -> None:
    with pytest.raises(ConfigError) as error:
        lookup("xyzzy")
    assert all(name in str(error.value) for name in available())
    assert "nearest" not in str(error.value)


@pytest.mark.parametrize(("written", "meant"), [("CIFAR-100", "cifar100"), ("Pets", "oxford_pets")])
def test_datasets_by_other_spellings(written: str, meant: str) -> None:
    with pytest.raises(DataError, match=f"nearest is '{meant}'"):
        registry.lookup(written)


@given(st.text(min_size=1), st.lists(st.text(min_size=1), unique=True))
def test_only_valid_names_are_suggested_and_an_exact_one_first(name: str, valid: list[str]) -> None:
    assert set(closest(name, valid, 3)) <= set(valid)
    assert folded(closest(name.upper(), [name])[0]) == folded(name)
    if not valid:
        assert nearest(name, valid) == ""


@pytest.mark.parametrize(
    ("given_", "told"),
    [
        ("demo.toml", "here; settings of that name come with focoop: focoop run demo"),
        ("settings/cifar100.toml", "focoop run settings/cifar100"),
        ("configs/settings/cifar100.toml", "focoop run settings/cifar100"),
        ("csv:table.csv", "this names data; give it as a setting: --set data.id=csv:table.csv"),
        ("dmo.toml", "nearest is 'demo'"),
        ("Demo", "nearest is 'demo'"),
    ],
)
def test_a_missing_file_whose_name_comes_with_focoop(
    given_: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        loading.load(Path(given_))
    assert str(error.value).startswith(f"no configuration file {given_}")
    assert told in str(error.value)


def test_a_file_of_ones_own_is_suggested_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("demos.toml").write_text("seed = 1\n")
    with pytest.raises(ConfigError, match=r"nearest is 'demos\.toml'"):
        loading.load(Path("demo1.toml"))


def test_every_kind_of_data_is_told_from_a_file() -> None:
    assert set(files.DATA_KINDS) == set(dataset_spec.KINDS)


def test_one_function_suggests() -> None:
    users = [p.name for p in PACKAGE.rglob("*.py") if "difflib" in p.read_text(encoding="utf-8")]
    assert users == ["errors.py"]


def test_names_with_a_dot_are_found() -> None:
    found = files.locate(Path("settings/cifar100-dir0.1"))
    assert found.is_file() and found.name == "cifar100-dir0.1.toml"
