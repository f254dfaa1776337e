"""A method in a user's file: it runs, is checked, compared and tuned as focoop's own are."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import focoop
from focoop.experiments import plan
from focoop.methods import lookup
from focoop.methods.promptfl import PromptFL
from focoop.plugins import finding
from tests.plugins.own_method import METHOD, QUICK
from tests.toy_command import call


def test_a_method_in_a_file_runs_and_opens_again(
    here: Path, setting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "mine.py").write_text(METHOD)
    run = focoop.run(setting, {"method.name": "./mine.py", "method.tokens": 3, **QUICK})
    assert run.path.name == "id-pathological-mine-0"
    assert run.prompts()["context"].shape[0] == 3
    manifest = json.loads((run.path / "manifest.json").read_text())
    (told,) = manifest["plugins"]
    assert told["name"] == "./mine.py" and len(told["sha256"]) == 64
    path, before = run.path.resolve(), run.summary["accuracy_own"]
    monkeypatch.chdir(tmp_path)  # elsewhere the same file is found
    finding.forget()
    again = focoop.open_run(path)
    assert again.evaluate().summary["accuracy_own"] == before
    (here / "mine.py").write_text(METHOD + "\n# changed\n")
    with pytest.raises(focoop.RunError, match=r"plugins is not what .* was started with"):
        focoop.open_run(path).evaluate()
    (here / "mine.py").unlink()
    finding.forget()
    with pytest.raises(focoop.RunError, match=r"no file \./mine\.py") as error:
        focoop.open_run(path)
    assert f"put the file back, sha256 {told['sha256'][:16]}" in str(error.value)


def test_a_run_folder_that_moved_with_its_project_finds_its_method(
    here: Path, setting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "mine.py").write_text(METHOD)
    focoop.run(setting, {"method.name": "./mine.py", **QUICK}, out="runs/x")
    shutil.move(here, tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    finding.forget()
    assert focoop.open_run(tmp_path / "moved" / "runs" / "x").config.method.settings.tokens == 2


def test_a_file_goes_into_a_comparison(here: Path, setting: Path) -> None:
    (here / "mine.py").write_text(METHOD)
    cells = plan([setting], "./mine.py:tokens=1,zeroshot", (0,), here / "out")
    assert [cell.config.method.name for cell in cells] == ["./mine.py", "zeroshot"]
    assert cells[0].config.method.settings.tokens == 1
    assert cells[0].folder.relative_to(here / "out").as_posix() == "toy/mine-tokens=1/seed0"


def test_files_that_hold_no_method_are_refused(here: Path) -> None:
    (here / "empty.py").write_text("x = 1\n")
    with pytest.raises(focoop.MethodError, match=r"exactly one focoop\.Method, it defines 0"):
        lookup("./empty.py")
    (here / "broken.py").write_text("import os\n1 / 0\n")
    with pytest.raises(
        focoop.ConfigError, match=r"ZeroDivisionError: .*, in .*broken\.py, line 2$"
    ):
        lookup("./broken.py")
    with pytest.raises(focoop.ConfigError, match=r"there is no file \./none\.py for the method in"):
        lookup("./none.py")


def test_a_method_that_breaks_the_contract_is_refused_before_its_first_round(
    here: Path, setting: Path
) -> None:
    (here / "mine.py").write_text(
        METHOD.replace("batch.labels)", "batch.labels, reduction='none')")
    )
    with pytest.raises(focoop.MethodError, match=r"Mine\.loss returned a tensor of the shape"):
        focoop.run(setting, {"method.name": "./mine.py", **QUICK}, out="broken")
    assert focoop.open_run("broken").last_round == -1
    (here / "mine.py").write_text(METHOD.replace("def score", "def scores"))
    with pytest.raises(focoop.MethodError, match=r"\./mine\.py\) lacks the function score: help\("):
        focoop.run(setting, {"method.name": "./mine.py", **QUICK}, out="lacking")


def test_a_run_checks_the_rules_before_its_first_round_and_not_again(
    here: Path, setting: Path
) -> None:
    centred = METHOD.replace("cosines(text, pooled)", "cosines(text, pooled - pooled.mean(dim=0))")
    (here / "mine.py").write_text(centred)
    given = {"method.name": "./mine.py", **QUICK}
    with pytest.raises(focoop.MethodError, match="logits of an image changes with the images"):
        focoop.run(setting, given, out="centred")
    (here / "mine.py").write_text(METHOD.replace('    shares = "context"\n', ""))
    problem = 'the class says shares = "nothing" and init gives context: name it'
    with pytest.warns(UserWarning, match=problem):
        run = focoop.run(setting, given, out="unnamed")
    assert run.notes == [problem] and problem in (run.path / "log.txt").read_text()
    # Warnings are errors here: nobody is told again.
    longer = focoop.run(setting, {**given, "federation.rounds": 2}, out="unnamed", resume=True)
    assert longer.notes == [problem]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    @dataclass(frozen=True)\n", "", "are no dataclass: write @dataclass"),
        ('focoop.setting(2, "length of the context", low=1)', "", "tokens of Mine has no default"),
        ("tokens: int", "name: int", "a setting called name"),
        ("low=1", "minimum=1", "TypeError: .* 'minimum', in .*mine.py, line 14"),
    ],
)
def test_settings_of_a_method_that_cannot_be_set_are_refused(
    here: Path, old: str, new: str, message: str
) -> None:
    lines = METHOD.replace(old, new).replace("int = \n", "int\n")
    (here / "mine.py").write_text(lines)
    with pytest.raises(focoop.FocoopError, match=message):
        lookup("./mine.py")


def test_a_method_is_checked_against_the_contract(here: Path, setting: Path) -> None:
    (here / "mine.py").write_text(METHOD)
    checks = focoop.check_method("./mine.py", setting, {"method.tokens": 1})
    assert len(checks) == 6 and all(check.kept for check in checks)

    class Centred(PromptFL):
        """Looks at the whole batch."""

        def logits(self, text: Any, pooled: torch.Tensor, patches: Any) -> focoop.Logits:
            return super().logits(text, pooled - pooled.mean(dim=0), patches)

    (broken,) = [check for check in focoop.check_method(Centred, setting) if not check.kept]
    assert "logits of an image changes" in broken.problem and lookup("centred") is Centred


def test_the_command_line_checks_a_method(here: Path) -> None:
    (here / "mine.py").write_text(METHOD)
    done = call("methods", "./mine.py", "--check")
    assert done.exit_code == 0 and done.stdout.count("  ok  ") == 6, done.stdout
    lines = METHOD.replace(
        'focoop.weighted_mean(updates, "context")', 'updates[0].shared["contxt"]'
    )
    (here / "mine.py").write_text(lines)
    done = call("methods", "./mine.py", "--check", "--json")
    (told,) = json.loads(done.stdout)
    assert done.exit_code == 1 and "mine.py, line 36: KeyError: 'contxt'" in told["problem"]
    assert "name the method to check" in call("methods", "--check").stderr


def test_a_method_of_ones_own_is_tuned_as_focoops_are(here: Path, setting: Path) -> None:
    answering = METHOD.replace("focoop.Method", "focoop.Answering")
    answering = answering.replace("class Config:", "class Config(focoop.AnswerConfig):")
    answering = answering.replace("tokens)})", "tokens)}, self.unknown_counts(task))")
    for name in ("logits", "score"):  # both are there
        start = answering.index(f"    def {name}(")
        answering = answering[:start] + answering[answering.index("    def ", start + 8) :]
    answering = answering.replace("self.logits(text, batch.pooled, batch.patches)", "cosines")
    answering = answering.replace("logits = cosines", "logits = focoop.cosines(text, batch.pooled)")
    (here / "mine.py").write_text(answering)
    (here / "plain.py").write_text(METHOD)
    assert all(check.kept for check in focoop.check_method("./mine.py", setting))
    call_ = ["tune", str(setting), "--methods=./mine.py,./plain.py,promptfl", "--budget=1"]
    done = call(*call_, "--validation=3", "--jobs=0", "--out=out", "--write=presets")
    told = " ".join(done.stderr.split())
    assert done.exit_code == 0, done.stderr
    assert "note: plain is tried with its own score alone" in told and told.count("note") == 2
    assert "3 training images of each class validate" in told
    heads = {name: (here / "presets" / f"{name}.toml").read_text() for name in ("mine", "promptfl")}
    assert all("each under 55 answers" in text for text in heads.values())
    cells = plan([setting], f"{here}/mine.py", (0,), here / "o", presets=here / "presets")
    assert f"open_share = {cells[0].config.method.settings.open_share}" in heads["mine"]
    twice = call("tune", str(setting), str(setting), "--methods=promptfl")
    assert twice.exit_code == 2 and "each once" in twice.stderr
