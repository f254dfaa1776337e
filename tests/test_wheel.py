"""The wheel: what a user who has no checkout gets, built offline and run elsewhere."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

from focoop import __version__
from focoop.config.schema import RunConfig
from focoop.errors import MissingExtra

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an installation; a pure wheel is installed by unpacking it."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("focoop-*.whl")
    with zipfile.ZipFile(wheel) as zipped:
        zipped.extractall(folder / "site")
    return folder / "site"


def focoop(installed: Path, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(installed), "FOCOOP_CACHE": str(folder / "c")}
    environment |= {"FOCOOP_DATA": str(folder / "data"), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, "-m", "focoop", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.mark.slow
def test_make_wheel_writes_the_file_that_the_guides_install(
    installed: Path, tmp_path: Path
) -> None:
    if shutil.which("make") is None or not (ROOT / "Makefile").is_file():
        pytest.skip("needs make")
    (tmp_path / "focoop-0.0.0-py3-none-any.whl").touch()  # of an older clone
    command = ["make", "wheel", f"DIST={tmp_path}"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    if re.search(r"fetch|connect|network", built.stderr, flags=re.I) and built.returncode:
        pytest.skip("no package index in reach")
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"focoop-{__version__}-py3-none-any.whl" and str(wheel) in built.stdout
    with zipfile.ZipFile(wheel) as zipped:
        names = {Path(name) for name in zipped.namelist()}
        (facts,) = [zipped.read(str(name)).decode() for name in names if name.name == "METADATA"]
    there = {path.relative_to(installed) for path in installed.rglob("*") if path.is_file()}
    assert names == there
    pages = "".join(p.read_text("utf-8") for p in (ROOT / "docs").rglob("*.md"))
    asked = set(re.findall(r"\.whl\[([\w,-]+)\]", pages))
    extras = set(re.findall(r"^Provides-Extra: (\S+)$", facts, flags=re.M))
    assert asked and {extra for text in asked for extra in text.split(",")} <= extras


class Environment:
    """A new virtual environment that holds the wheel and, if told, this one's other packages."""

    def __init__(self, folder: Path, installed: Path, *, packages: bool) -> None:
        command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
        subprocess.run(command, check=True, timeout=100)
        (site,) = folder.glob("lib/python*/site-packages")
        shutil.copytree(installed, site, dirs_exist_ok=True)
        if packages:  # a path in a .pth file is searched last, and without its own .pth files
            (site / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.python, self.site = folder / "bin" / "python", site

    def run(self, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run Python in a folder, apart from this process's environment and user's packages."""
        hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        environment = {k: v for k, v in os.environ.items() if k not in hidden}
        environment |= {"PYTHONNOUSERSITE": "1", "FOCOOP_CACHE": str(folder / "cache")}
        environment |= {"HF_HUB_OFFLINE": "1"}
        return subprocess.run(
            [str(self.python), *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )


@pytest.fixture(scope="module")
def alone(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel and no other package."""
    return Environment(tmp_path_factory.mktemp("alone") / "venv", installed, packages=False)


@pytest.fixture(scope="module")
def complete(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel and what it depends on."""
    return Environment(tmp_path_factory.mktemp("complete") / "venv", installed, packages=True)


@pytest.mark.slow
def test_the_wheel_alone_says_what_it_lacks(alone: Environment, tmp_path: Path) -> None:
    told = alone.run(tmp_path, "-c", "import focoop; print(focoop.__version__, focoop.__file__)")
    version, file = told.stdout.split()
    assert version == __version__ and alone.site in Path(file).parents, told.stderr
    told = alone.run(tmp_path, "-m", "focoop", "methods")
    assert told.returncode == MissingExtra.exit_code and "pip install" in told.stderr


@pytest.mark.slow
def test_help_shows_the_public_names(complete: Environment, tmp_path: Path) -> None:
    told = complete.run(tmp_path, "-c", "import focoop; help(focoop)")
    assert told.returncode == 0, told.stderr
    assert str(complete.site) in told.stdout and str(ROOT) not in told.stdout
    script = "import focoop, sys; print(*focoop.__all__); print('torch' in sys.modules)"
    listed, torch = complete.run(tmp_path, "-c", script).stdout.splitlines()
    names = set(listed.split()) - {"__version__"}
    assert torch == "False" and {"run", "open_run", "compare", "Method"} <= names
    shown = {name for name in names if re.search(rf"\b{name}\b", told.stdout)}
    assert shown == names and f"VERSION\n    {__version__}" in told.stdout


@pytest.mark.slow
def test_the_readmes_python_runs_outside_a_checkout(complete: Environment, tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    snippets = re.findall(r"^```python\n(.*?)^```", readme, flags=re.M | re.S)
    assert any("import focoop" in snippet for snippet in snippets)
    told = complete.run(tmp_path, "-c", "\n".join(snippets))
    assert told.returncode == 0, told.stderr


@pytest.mark.slow
def test_every_configuration_is_in_the_wheel_once(installed: Path) -> None:
    ours = {path.relative_to(ROOT / "configs") for path in (ROOT / "configs").rglob("*.toml")}
    there = {path.relative_to(installed) for path in installed.rglob("*.toml")}
    assert there == {Path("focoop/configs") / path for path in ours} and len(ours) > 20
    assert not (ROOT / "focoop" / "configs").exists()  # a copy would be taken before the original
    strangers = {path.name for path in installed.iterdir()} - {"focoop"}
    assert all(name.endswith(".dist-info") for name in strangers)


@pytest.mark.slow
def test_a_shipped_configuration_runs_outside_a_checkout(installed: Path, tmp_path: Path) -> None:
    told = focoop(installed, tmp_path, "doctor", "cifar100-vitb16", "--json")
    found = {check["topic"]: check for check in json.loads(told.stdout)}
    assert str(installed) in found["focoop"]["found"]  # not the checkout
    assert "focoop run fetches it" in found["this run's cifar100"]["advice"]
    resolved = json.loads(focoop(installed, tmp_path, "config", "cifar100-rn50", "--json").stdout)
    assert resolved["backbone"]["name"] == "openclip:RN50:openai" and resolved["data"]["fetch"]
    few = ("federation.rounds=1", "negatives.count=2", "partition.shots=1")
    options = [word for setting in few for word in ("--set", setting)]
    done = focoop(installed, tmp_path, "run", "demo", *options, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["summary"]["round"] == 1
    wrong = focoop(installed, tmp_path, "run", "cifar100-vitb61")
    assert wrong.returncode == 2 and "nearest is 'cifar100-vitb16'" in wrong.stderr


@pytest.mark.slow
def test_tuned_presets_come_with_the_wheel(installed: Path, tmp_path: Path) -> None:
    tuned = tomllib.loads((ROOT / "configs" / "methods" / "promptfl.toml").read_text("utf-8"))
    assert tuned["federation"]["lr"] != RunConfig().federation.lr
    (tmp_path / "mine.toml").write_text("[federation]\nrounds = 0\n", "utf-8")
    words = ["mine.toml", "--methods", "promptfl", "--seeds", "1", "--jobs", "0", "--out", "runs"]
    done = focoop(installed, tmp_path, "compare", *words)
    assert done.returncode == 0, done.stderr
    (kept,) = tmp_path.glob("runs/mine/promptfl/seed0/config.toml")
    assert tomllib.loads(kept.read_text("utf-8"))["federation"]["lr"] == tuned["federation"]["lr"]


@pytest.mark.slow
def test_a_setting_of_the_wheel_says_what_to_fetch_and_takes_ready_features(
    installed: Path, tmp_path: Path
) -> None:
    for words in (
        ["run", "settings/cifar100"],
        ["compare", "settings/cifar100", "--methods", "zeroshot", "--seeds", "1"],
    ):
        told = focoop(installed, tmp_path, *words)
        assert told.returncode == 3 and "focoop data fetch cifar100 dtd sun" in told.stderr
        assert "CIFAR-100, 169 MB" in told.stderr and not (tmp_path / "runs").exists()
    ready = tmp_path / "ready"
    ready.mkdir()
    for packed in (installed / "focoop" / "assets" / "demo").glob("*.gz"):
        (ready / packed.name).write_bytes(packed.read_bytes())  # mini's features, called the same
    words = ["run", "settings/cifar100", "--set", "method.name=zeroshot"]
    words += ["--features", "ready", "--out", "out", "--json"]
    done = focoop(installed, tmp_path, *words)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)["summary"]
    assert set(summary["ood"]) == {"dtd_32px", "sun_32px", "dtd", "sun"}
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text("utf-8"))
    assert manifest["data_sources"]["cifar100"]["served by"] == "ready features"
