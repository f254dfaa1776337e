"""The Python that pages and the README show runs, and prints what they say."""

import contextlib
import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import focoop
from tests.toy_setting import write_setting

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


def run(page: str) -> tuple[str, dict[str, Any]]:
    """Run a page's blocks in order, as one notebook; return what they print, and their names."""
    shown = io.StringIO()
    blocks = BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    assert blocks
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(shown):
        for block in blocks:
            exec(compile(block, page, "exec"), names)
    return shown.getvalue(), names


def test_scores_and_metrics() -> None:
    printed, _ = run("docs/reference/python-functional.md")
    assert float(printed) == pytest.approx(1.0)


def test_the_methods_of_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    setting = write_setting(tmp_path / "data")
    blocks = BLOCK.findall((ROOT / "docs/guides/add-a-method.md").read_text(encoding="utf-8"))
    (score,) = (block for block in blocks if block.startswith("def score("))
    blocks.remove(score)
    assert len(blocks) == 5
    for number, block in enumerate(blocks):
        (tmp_path / f"mine{number}.py").write_text(block, encoding="utf-8")
        settings = {"method.name": f"./mine{number}.py", "federation.rounds": 2}
        made = focoop.run(setting, settings, out=f"runs/{number}")
        assert made.summary["accuracy_own"] >= 0.25  # four classes
        scores, answers = made.scores("far", client=0), made.predictions("far", client=0)
        assert scores.shape == answers.shape
        problems = [check.problem for check in focoop.check_method(f"./mine{number}.py", setting)]
        assert problems and not any(problems)
    (tmp_path / "score.py").write_text(score, encoding="utf-8")
    nearest = np.sort(made.logits("far", client=0)["id"])[:, ::-1]
    found = made.scores("far", client=0, score="./score.py")
    assert np.allclose(found, nearest[:, 1] - 2 * nearest[:, 0], atol=1e-6)
    assert focoop.open_run("runs/0").prompts()["context"].shape[0] == 4
    assert set(focoop.open_run("runs/2").prompts(client=0)) == {"context", "bias"}


@pytest.mark.slow
def test_the_guide_to_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/guides/track-runs.md").read_text(encoding="utf-8")
    first, *others = BLOCK.findall(text)
    assert "tensorboard:curves" in first  # its package is not installed here
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        for block in others:
            exec(compile(block, "track-runs.md", "exec"), {"focoop": focoop})
    own = focoop.open_run("runs/shown").summary["accuracy_own"]
    assert shown.getvalue().startswith(f"0 {own} ")
    lines = Path("rounds.txt").read_text().splitlines()
    assert lines == [f"lined 0 {own}", "lined finished"]


@pytest.mark.slow
def test_the_guide_to_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.chdir(tmp_path)
    settings = {"method.name": "focoop_plus", "federation.rounds": 1, "partition.shots": 4}
    focoop.run(write_setting(tmp_path / "data"), settings, out="runs/mine")
    focoop.calibrate("runs/mine", keep=0.8)
    for name in ("a.jpg", "b.jpg", "photo.jpg"):
        Image.new("RGB", (40, 30), "red").save(name)
    focoop.export("runs/mine", "model", client=0)
    first, hub = BLOCK.findall((ROOT / "docs/guides/predict.md").read_text(encoding="utf-8"))
    sent: list[str] = []

    class Api:
        def __init__(self, **_: Any) -> None: ...

        def create_repo(self, repo_id: str, private: bool, **_: Any) -> Any:
            sent.append(f"{repo_id} {private}")
            return SimpleNamespace(repo_id=repo_id)

        def upload_folder(self, folder_path: Path, **_: Any) -> str:
            return str(sorted(path.name for path in Path(folder_path).iterdir()))

    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", Api)
    shown, names = io.StringIO(), dict[str, Any]()
    with contextlib.redirect_stdout(shown):
        for block in (first, hub.replace('("me/my-model", client', '("model", client')):
            exec(compile(block, "predict.md", "exec"), names)
    a, b = (line.split() for line in shown.getvalue().splitlines())
    answer = names["model"].predict(["photo.jpg"])[0]
    assert a[0] == "a.jpg" and a[1:3] == b[1:3] == [answer.verdict, str(answer.label)]
    assert sent == ["me/my-model True"]


@pytest.mark.slow
def test_the_page_of_the_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed, names = run("docs/reference/python.md")
    first, fpr95, *_ = printed.splitlines()
    told = re.search(r"own classes (\d+)%, all classes (\d+)%", first)
    assert told and abs(int(told[1]) - 81) <= 1 and abs(int(told[2]) - 48) <= 1
    assert 0.0 <= float(fpr95) <= 1.0
    assert "| zeroshot |" in printed and "federation.rounds" in printed.splitlines()[-1]
    assert names["cosines"].shape == (5, 2)


@pytest.mark.slow
def test_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, names = run("README.md")
    summary = names["run"].summary
    assert summary["accuracy_own"] == pytest.approx(0.807, abs=0.005)
    assert summary["accuracy_all"] == pytest.approx(0.485, abs=0.005)
