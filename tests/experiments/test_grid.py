"""What a cell of a grid is made of: methods, presets, settings, folders."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from focoop.errors import ConfigError
from focoop.experiments import grid, variants
from focoop.methods import available
from tests.toy_setting import toy_plan, write_setting


def test_methods_are_read_with_their_own_settings() -> None:
    found = variants.parse_methods('promptfl, focoop:bos=false,goc=false,a:x=[1, 2],y="p,q"')
    assert found is not None
    assert [(one.name, one.overrides) for one in found] == [
        ("promptfl", ()),
        ("focoop", ("method.bos=false", "method.goc=false")),
        ("a", ("method.x=[1, 2]", 'method.y="p,q"')),
    ]
    assert found[1].label == "focoop:bos=false,goc=false"
    assert variants.parse_methods("all") is None
    for wrong in ("bos=false", "Our best=./mine.py"):
        with pytest.raises(ConfigError, match="cannot read --methods"):
            variants.parse_methods(wrong)


def test_a_file_is_called_by_its_label_its_methods_name_or_its_own(tmp_path: Path) -> None:
    file = tmp_path / "some where" / "mine.py"
    file.parent.mkdir()
    file.write_text(
        "from focoop.methods.promptfl import PromptFL\n\nclass Mine(PromptFL):\n    x = 1\n"
    )
    found = variants.parse_methods(
        f"promptfl:score=./own.py,context_tokens=2,Ours={file}:score=mcm,{file}"
    )
    assert found is not None
    assert [one.label for one in found] == [
        "promptfl:score=own,context_tokens=2",
        "Ours",
        "mine",
    ]
    assert found[1].overrides == ("method.score=mcm",) and found[1].name == str(file)
    file.write_text(file.read_text().replace("x = 1", "name = 'Fed-Mine'"))
    (named,) = variants.parse_methods(f"{file}:score=mcm") or ()
    assert (named.label, named.preset) == ("Fed-Mine:score=mcm", "Fed-Mine")
    (tmp_path / "promptfl.py").write_text(file.read_text().replace("Fed-Mine", ""))
    assert variants.parse_methods(str(tmp_path / "promptfl.py"))[0].label == "promptfl.py"  # type: ignore[index]
    with pytest.raises(ConfigError, match="has a method 'focoop' of its own"):
        variants.parse_methods(f"focoop={file}")


def test_layers_override_one_another_in_order(tmp_path: Path) -> None:
    presets = tmp_path / "presets"
    presets.mkdir()
    (presets / "promptfl.toml").write_text(
        "[federation]\nlr = 1.0\nmomentum = 0.1\nweight_decay = 0.1\n[backbone]\nlogit_scale = 1.0"
    )
    (presets / "promptfl@toy.toml").write_text(
        "[federation]\nmomentum = 0.2\nweight_decay = 0.2\n[backbone]\nlogit_scale = 2.0"
    )
    cell, variant = toy_plan(
        tmp_path,
        "promptfl,promptfl:federation.weight_decay=0.3,backbone.logit_scale=3",
        presets=presets,
        overrides=["backbone.logit_scale=4", "seed=9"],
    )
    assert (cell.config.federation.lr, cell.config.federation.momentum) == (1.0, 0.2)
    assert (cell.config.federation.weight_decay, variant.config.federation.weight_decay) == (
        0.2,
        0.3,
    )
    assert cell.config.backbone.logit_scale == variant.config.backbone.logit_scale == 4.0
    assert cell.config.seed == 0 and cell.config.federation.rounds == 2


def test_a_preset_may_be_named_unlike_its_method(tmp_path: Path) -> None:
    presets = tmp_path / "presets"
    presets.mkdir()
    (presets / "focoop-paper.toml").write_text('[method]\nname = "focoop"\nmu = 0.1')
    (cell,) = toy_plan(tmp_path, "focoop-paper", presets=presets)
    assert cell.config.method.name == "focoop" and cell.config.method.settings.mu == 0.1
    assert cell.label == "focoop-paper"
    with pytest.raises(ConfigError, match="'focoop-paper'"):
        toy_plan(tmp_path, "focoop-papr", presets=presets)


def test_a_preset_cannot_change_what_is_compared_on(tmp_path: Path) -> None:
    presets = tmp_path / "presets"
    presets.mkdir()
    for text, told in (("[federation]\nrounds = 9", "federation.rounds"), ("seed = 3", "seed")):
        (presets / "promptfl.toml").write_text(text)
        with pytest.raises(ConfigError, match=f"{told}, which belongs to the setting"):
            toy_plan(tmp_path, "promptfl", presets=presets)


def test_cells_of_a_setting_come_together(tmp_path: Path) -> None:
    files = [write_setting(tmp_path / name, name) for name in ("one", "two")]
    cells = grid.plan(files, "zeroshot,promptfl", (0, 1), tmp_path / "out")
    assert [(c.setting, c.config.seed, c.label) for c in cells] == [
        (setting, seed, method)
        for setting in ("one", "two")
        for seed in (0, 1)
        for method in ("zeroshot", "promptfl")
    ]
    assert cells[1].folder == tmp_path / "out" / "one" / "promptfl" / "seed0"
    with pytest.raises(ConfigError, match="share the folder"):
        grid.plan(files, "zeroshot,zeroshot", (0,), tmp_path / "out")


def test_all_means_every_method_that_the_setting_feeds() -> None:
    pooled = [name for name, kind in available().items() if not kind.patch_kind]
    assert [one.name for one in variants.variants_for(None, {})] == pooled
    with_patches = {"data": {"with_patches": True}}
    assert [one.name for one in variants.variants_for(None, with_patches)] == list(available())


@given(st.text(max_size=300))
def test_a_label_becomes_one_folder_name(label: str) -> None:
    name = grid.safe(label)
    assert name and name not in (".", "..") and "/" not in name and len(name) <= 120
    assert name == grid.safe(label)
