"""The real packages of trackers, without a network: what a run told them is read back from them.

Each tracker has an environment of its own: what `tests/tracking/NAME.txt` pins, and behind it the
packages of this one (`tools/lock_trackers.py` says why).
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

import focoop

ROOT = Path(__file__).resolve().parents[2]
SESSION = Path(__file__).with_name("session.py")
SPECS = {
    "tensorboard": "tensorboard:{folder}/events",
    "wandb": "wandb:study",
    "mlflow": "mlflow:sqlite:///{folder}/mlflow.db",
    "trackio": "trackio:study",
}
NO_NETWORK = "http://127.0.0.1:9"  # a proxy that is not there
UNREACHABLE = ("error sending request", "dns error", "failed to fetch", "connection", "timed out")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module", params=sorted(SPECS))
def tracker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tracker's name and the Python that has its package."""
    name: str = request.param
    own = ROOT / ".uv" / "bin" / "uv"
    uv = str(own) if own.exists() else shutil.which("uv")
    if uv is None:
        pytest.skip("uv, which makes the tracker's environment, is not installed")
    home = tmp_path_factory.mktemp(name) / "environment"
    subprocess.run(
        [uv, "venv", "--quiet", "--python", sys.executable, str(home)], check=True, timeout=120
    )
    pins = Path(__file__).with_name(f"{name}.txt")
    install = [uv, "pip", "install", "--quiet", "--no-deps", "--require-hashes", "-r", str(pins)]
    try:
        done = subprocess.run(
            [*install, "--python", str(home)], capture_output=True, text=True, timeout=600
        )
    except subprocess.TimeoutExpired:
        pytest.skip("the package index did not answer within ten minutes")
    if done.returncode and any(words in done.stderr.lower() for words in UNREACHABLE):
        pytest.skip(f"the package index is not reachable: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    (site,) = home.glob("lib/python*/site-packages")
    shared = sysconfig.get_path("purelib")
    (site / "behind.pth").write_text(f"import site; site.addsitedir({shared!r})\n")
    return name, home / "bin" / "python"


def session(
    python: Path, action: str, spec: str, folder: Path
) -> "subprocess.CompletedProcess[str]":
    """One process of tests/tracking/session.py, which can reach nobody."""
    variables = {
        **{key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")},
        **{"HOME": str(folder), "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        **{"http_proxy": NO_NETWORK, "https_proxy": NO_NETWORK, "no_proxy": ""},
        **{"WANDB_MODE": "offline", "WANDB_DIR": str(folder), "TRACKIO_DIR": str(folder / "tr")},
    }
    return subprocess.run(
        [str(python), str(SESSION), action, spec, str(folder)],
        env=variables,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=400,
    )


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_resumed_run_is_one_run_of_the_tracker(
    tracker: tuple[str, Path], how: str, tmp_path: Path
) -> None:
    name, python = tracker
    if how == "kill" and name in ("wandb", "trackio"):
        pytest.skip("it writes in the background: kill -9 may lose its last rounds (the guide)")
    spec = SPECS[name].format(folder=tmp_path)
    first = session(python, how, spec, tmp_path)
    assert first.returncode == (9 if how == "kill" else -2), first.stderr  # -2: by Ctrl-C
    stopped = focoop.open_run(tmp_path / "run")
    assert (stopped.status, stopped.last_round) == (
        ("interrupted", 1) if how == "stop" else ("killed", 1)
    )
    second = session(python, "resume", spec, tmp_path)
    assert second.returncode == 0, second.stderr
    assert "warning" not in second.stderr.lower() and "tracked: " in second.stderr
    check(json.loads(second.stdout), focoop.open_run(tmp_path / "run"))


def check(found: dict[str, Any], run: focoop.Run) -> None:
    """What a tracker holds against the run folder."""
    assert run.status == "finished" and found["name"].split()[0] == "run"
    assert found.get("status", "FINISHED") == "FINISHED"
    settings = {key: str(value) for key, value in found["settings"].items()}
    assert settings["method.name"] == "promptfl" and settings["federation.rounds"] == "3"
    assert float(settings["federation.lr"]) == run.config.federation.lr
    curves = {name: [tuple(point) for point in points] for name, points in found["curves"].items()}
    trained, lines = run.rounds, run.metrics
    expected = {
        "train/loss": [(one["round"], one["loss"]) for one in trained],
        "cost/bytes_up": [(one["round"], one["bytes_up"]) for one in trained],
        "cost/seconds": [(one["round"], one["seconds"]) for one in trained],
        "own/accuracy": [(one["round"], one["accuracy_own"]) for one in lines],
        "all/accuracy": [(one["round"], one["accuracy_all"]) for one in lines],
        "ood/far/fpr95": [(one["round"], one["ood"]["far"]["fpr95"]) for one in lines],
        "clients/1/accuracy": [(one["round"], one["clients"][1]["accuracy_own"]) for one in lines],
    }
    assert [one["round"] for one in trained] == [1, 2, 3]
    assert [one["round"] for one in lines] == [0, 2, 3]
    for name, points in expected.items():
        assert [step for step, _ in curves[name]] == [step for step, _ in points], name
        for (_, value), (_, truth) in zip(curves[name], points, strict=True):
            assert value == pytest.approx(truth, rel=1e-6), name  # TensorBoard keeps float32
