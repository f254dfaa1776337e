"""The tuned settings of a method: below the user's words, the same for `run` and `compare`."""

import json
from pathlib import Path

import pytest

from focoop.config import files, loading, writing
from focoop.config.schema import RunConfig
from focoop.errors import ConfigError
from focoop.experiments.grid import plan
from focoop.experiments.presets import TUNABLE, tuned
from focoop.runs import LOG, RunFolder
from tests.toy_command import FAST, ROOT, call

CONFIGS = ROOT / "configs"
PRESETS = CONFIGS / "methods"
PACKAGED = CONFIGS / "packaged.toml"  # a setting without a method, as those of configs/settings
WHOLE = sorted({*CONFIGS.glob("*.toml")} - {CONFIGS / "base.toml", PACKAGED})
SETTINGS = [PACKAGED, *sorted((CONFIGS / "settings").glob("*.toml"))]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_what_nobody_says_is_tuned_and_what_is_said_stays(tmp_path: Path) -> None:
    preset = files.read_toml(PRESETS / "promptfl.toml")
    name = ("method.name=promptfl",)
    found, used = tuned(None, name, PRESETS)
    assert used == [PRESETS / "promptfl.toml"]
    for section, values in preset.items():
        for key, value in values.items():
            assert writing.to_dict(found)[section][key] == value
    file = write(tmp_path / "mine.toml", "[federation]\nlr = 0.7\n[method]\nname = 'promptfl'\n")
    found, _ = tuned(file, ("backbone.logit_scale=7",), PRESETS)
    assert (found.federation.lr, found.backbone.logit_scale) == (0.7, 7.0)
    assert found.federation.lr_schedule == preset["federation"]["lr_schedule"]
    assert found.method.settings.context_tokens == preset["method"]["context_tokens"]
    assert tuned(None, name, None) == (loading.load(None, name), [])


def test_a_default_that_is_written_out_is_a_word_of_the_user(tmp_path: Path) -> None:
    lr = RunConfig().federation.lr
    file = write(tmp_path / "mine.toml", f"[federation]\nlr = {lr}\n")
    assert tuned(file, (), PRESETS)[0].federation.lr == lr
    whole = write(tmp_path / "whole.toml", writing.to_toml(RunConfig(seed=3)))
    assert tuned(whole, (), PRESETS) == (RunConfig(seed=3), [])  # as a run folder's config.toml
    over = write(tmp_path / "over.toml", f'extends = "{CONFIGS / "base.toml"}"\nseed = 3\n')
    found, used = tuned(over, (), PRESETS)  # base.toml spells out the defaults for everybody
    assert used and found == tuned(None, ("seed=3",), PRESETS)[0]


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.stem)
def test_whole_configurations_that_ship_are_run_as_they_stand(path: Path) -> None:
    assert tuned(path, (), PRESETS) == (loading.load(path), [])


@pytest.mark.parametrize("path", SETTINGS, ids=lambda path: path.stem)
def test_run_and_compare_give_a_setting_and_method_the_same_run(path: Path, tmp_path: Path) -> None:
    methods = sorted(preset.stem for preset in PRESETS.glob("*.toml") if "-" not in preset.stem)
    patches = loading.load(path).data.with_patches
    for cell in plan([path], ",".join(methods), (0,), tmp_path, presets=PRESETS):
        alone, _ = tuned(path, (f"method.name={cell.label}",), PRESETS)
        assert alone == cell.config, (cell.label, patches)


def test_files_that_compare_takes_as_runs_are_those_of_run(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.toml", "[federation]\nrounds = 3\n[method]\nname = 'fedpgp'\n")
    (cell,) = plan([file], None, (0,), tmp_path / "out", presets=PRESETS)
    assert cell.config == tuned(file, (), PRESETS)[0] != loading.load(file)
    (plain,) = plan([file], None, (0,), tmp_path / "out")
    assert plain.config == loading.load(file)


def test_a_file_may_refuse_and_inherit_the_refusal(tmp_path: Path) -> None:
    base = write(tmp_path / "base.toml", "tuned = false\nseed = 4\n")
    over = write(tmp_path / "over.toml", 'extends = "base.toml"\n[method]\nname = "promptfl"\n')
    assert tuned(base, (), PRESETS) == (RunConfig(seed=4), [])
    assert tuned(over, (), PRESETS) == (loading.load(over), [])
    again = write(tmp_path / "again.toml", 'extends = "over.toml"\ntuned = true\n')
    assert tuned(again, (), PRESETS)[1] == [PRESETS / "promptfl.toml"]
    assert loading.load(again) == loading.load(over)
    wrong = write(tmp_path / "wrong.toml", 'tuned = "no"\n')
    with pytest.raises(ConfigError, match="tuned = 'no' is not allowed in .*wrong.toml"):
        loading.load(wrong)


def test_a_preset_for_one_setting_is_found_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "presets").mkdir()
    write(tmp_path / "presets" / "promptfl.toml", "[federation]\nlr = 1.0\nmomentum = 0.5\n")
    write(tmp_path / "presets" / "promptfl@mine.toml", "[federation]\nlr = 2.0\n")
    file = write(tmp_path / "mine.toml", "[method]\nname = 'promptfl'\n")
    found, used = tuned(file, (), tmp_path / "presets")
    assert (found.federation.lr, found.federation.momentum, len(used)) == (2.0, 0.5, 2)
    write(tmp_path / "presets" / "promptfl.toml", "[federation]\nrounds = 1\n")
    with pytest.raises(ConfigError, match="sets federation.rounds, which belongs to the setting"):
        tuned(file, (), tmp_path / "presets")


@pytest.mark.parametrize("name", ["openclip:ViT-B-16:openai", "local-dir:mine"])
def test_a_backbone_of_clips_geometry_has_presets_of_its_own(name: str, tmp_path: Path) -> None:
    (tmp_path / "presets" / "clip").mkdir(parents=True)
    for folder, lr in (("presets", 1.0), ("presets/clip", 0.02)):
        write(tmp_path / folder / "promptfl.toml", f"[federation]\nlr = {lr}\n")
    write(tmp_path / "presets" / "fedpgp.toml", "[federation]\nlr = 3.0\n")
    write(tmp_path / "presets" / "promptfl@clipped.toml", "[federation]\nmomentum = 0.5\n")
    clipped = write(tmp_path / "clipped.toml", f"[backbone]\nname = '{name}'\n")
    usual = write(tmp_path / "usual.toml", "")
    rates = {}
    for file, overrides in ((clipped, ()), (usual, ()), (usual, (f"backbone.name={name}",))):
        for method in ("promptfl", "fedpgp"):
            given = (*overrides, f"method.name={method}")
            alone, _ = tuned(file, given, tmp_path / "presets")
            (cell,) = plan(
                [file], method, (0,), tmp_path, presets=tmp_path / "presets", overrides=overrides
            )
            assert alone == cell.config
            rates[file.stem, bool(overrides), method] = alone.federation.lr
            assert alone.federation.momentum == 0.5 * ((file, method) == (clipped, "promptfl"))
    assert rates == {
        ("clipped", False, "promptfl"): 0.02,
        ("usual", False, "promptfl"): 1.0,
        ("usual", True, "promptfl"): 0.02,
        **{(stem, over, "fedpgp"): 3.0 for stem, over, _ in rates},  # none of its own: the usual
    }


def test_run_says_so_and_the_folder_holds_the_values(tmp_path: Path) -> None:
    told = "tuned settings of configs/methods/promptfl.toml (without: --untuned)"
    result = call("run", *FAST, "--set=federation.rounds=0", "--out", str(tmp_path / "run"))
    assert result.exit_code == 0, result.stderr
    assert told in result.stderr and told not in result.stdout
    assert told in (tmp_path / "run" / LOG).read_text()
    folder = RunFolder.open(tmp_path / "run")
    chosen = files.read_toml(PRESETS / "promptfl.toml")["federation"]
    assert folder.config.federation.lr == chosen["lr"]
    assert folder.config.federation.lr_schedule == chosen["lr_schedule"] == "cosine"
    shown = json.loads(call("config", *FAST, "--set=federation.rounds=0", "--json").stdout)
    assert shown == writing.to_dict(folder.config)
    plain = call("run", *FAST, "--set=federation.rounds=0", "--untuned", "--out", "plain")
    assert "tuned settings" not in plain.stderr
    assert RunFolder.open(Path("plain")).config.federation.lr == RunConfig().federation.lr
    again = call("run", *FAST, "--set=federation.rounds=0", "--resume", "--out", "plain")
    assert again.exit_code == 6 and "add --untuned" in again.stderr


def test_every_preset_is_one_and_of_a_setting_that_can_be_tuned() -> None:
    for path in PRESETS.rglob("*.toml"):
        tree = files.read_toml(path)
        assert set(tree) <= {"method", *TUNABLE}
