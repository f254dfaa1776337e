"""What must hold of the tracked files themselves."""

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from focoop import __version__

ROOT = Path(__file__).resolve().parents[1]
SIZE_LIMIT = 45 * 1024**2
# Assembled, so that this file does not contain what it looks for.
INDEX_HOSTS = [".".join(parts) for parts in (("pypi", "org"), ("pythonhosted", "org"))]
MACHINE_FOLDERS = re.compile(r"(?<![\w.~*}\])])/(?:" + "|".join(("tmp", "work", "root")) + r")/\w")


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    """Files git tracks; in an unpacked source archive there is no git to ask."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def texts(paths: list[Path]) -> dict[Path, str]:
    found = {}
    for path in paths:
        raw = path.read_bytes()
        if b"\0" not in raw[:8192]:
            found[path.relative_to(ROOT)] = raw.decode("utf-8")
    return found


def test_tracked_files_stay_small(tracked: list[Path]) -> None:
    assert sum(path.stat().st_size for path in tracked) < SIZE_LIMIT


def test_no_package_index_is_named(tracked: list[Path]) -> None:
    offending = {
        str(path): host
        for path, text in texts(tracked).items()
        for host in INDEX_HOSTS
        if host in text
    }
    assert offending == {}


def test_no_machine_folder_is_named(tracked: list[Path]) -> None:
    offending = {
        str(path): found.group()
        for path, text in texts(tracked).items()
        if (found := MACHINE_FOLDERS.search(text))
    }
    assert offending == {}


def lines_of_code(path: Path) -> int:
    """Lines of a module without its docstrings: documenting a function makes no file too long."""
    source = path.read_text(encoding="utf-8")
    if len(source.splitlines()) <= 400:
        return len(source.splitlines())
    documented = 0
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                documented += (first.end_lineno or first.lineno) - first.lineno + 1
    return len(source.splitlines()) - documented


def test_modules_stay_short() -> None:
    lengths = {
        str(path.relative_to(ROOT)): lines_of_code(path) for path in (ROOT / "focoop").rglob("*.py")
    }
    assert {name: length for name, length in lengths.items() if length > 400} == {}


# What is installed for development, and what the tests of trackers install beside it.
LOCKS = [ROOT / "requirements.lock", *sorted((ROOT / "tests" / "tracking").glob("*.txt"))]


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_lock_pins_everything_with_hashes_and_no_addresses(path: Path) -> None:
    lock = path.read_text(encoding="utf-8")
    assert "://" not in lock
    assert not re.search(r"^\s*-", re.sub(r"^\s+--hash=", "", lock, flags=re.M), flags=re.M)
    entries = re.split(r"\n(?=[A-Za-z0-9])", re.sub(r"^#.*\n", "", lock, flags=re.M).strip())
    for entry in entries:
        assert re.match(r"[a-z0-9-]+==\S+", entry), entry.splitlines()[0]
        assert "--hash=sha256:" in entry, entry.splitlines()[0]


def test_lock_covers_every_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        declared += extra
    names = {re.match(r"[\w-]+", entry).group().lower().replace("_", "-") for entry in declared}  # type: ignore[union-attr]
    lock = "\n".join(path.read_text(encoding="utf-8") for path in LOCKS)
    pinned = set(re.findall(r"^([a-z0-9-]+)==", lock, flags=re.M))
    assert names - pinned - {"focoop"} == set()


DOCKERFILE = ROOT / "deploy" / "Dockerfile"


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.defpath}")
    if hadolint is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([hadolint, str(DOCKERFILE)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
    bad = DOCKERFILE.read_text(encoding="utf-8").replace("--no-cache-dir ", "")
    worse = subprocess.run([hadolint, "-"], input=bad, capture_output=True, text=True, timeout=60)
    assert worse.returncode != 0 and "DL3042" in worse.stdout  # it looks


def test_images_take_nothing_without_a_hash_of_the_lock(tmp_path: Path) -> None:
    """The steps before the packages, on this machine, with stand-ins for pip and uv."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.M)
    text = text.replace("\\\n", "")
    installs = re.findall(r"\b(?:pip|uv build|uv pip) .*?(?=;|&&|$)", text, flags=re.M)
    assert len(installs) == 4 and all("--require-hashes" in line for line in installs)
    assert all("-c /wheel/lock.txt" in line for line in installs if line.startswith("uv pip"))
    (recipe,) = re.findall(r"^RUN (case .*)$", text, flags=re.M)
    for name in ("src", "wheel", "bin"):
        (tmp_path / name).mkdir()
    shutil.copy(ROOT / "requirements.lock", tmp_path / "src")
    for name, script in (
        ("pip", 'cp "${@: -1}" "$0.given"'),
        ("uv", "printf wheel > $WHEEL/focoop-1-py3-none-any.whl"),
    ):
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    recipe = recipe.replace("/wheel", f"{tmp_path}/wheel").replace("/uv.txt", f"{tmp_path}/uv.txt")
    for digest in ("", "@sha256:" + 64 * "0"):
        given = {"BASE": f"python:3.11-slim{digest}", "LOCK": "requirements.lock"}
        path = f"{tmp_path}/bin:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", recipe],
            cwd=tmp_path / "src",
            env={**given, "PATH": path, "WHEEL": str(tmp_path / "wheel")},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert ("has no digest" in done.stderr) == (not digest)
    pins = (tmp_path / "bin" / "pip.given").read_text().split()
    assert pins[0].startswith("uv==") and pins[-1].startswith("--hash=") and "uvicorn" not in pins
    digest = hashlib.sha256(b"wheel").hexdigest()
    for use in ("flower", "serve"):
        wanted = (tmp_path / "wheel" / f"{use}.txt").read_text()
        assert wanted.endswith(f"-any.whl[{use},formats] --hash=sha256:{digest}\n")


def test_the_line_that_pins_the_base_image_pins_it(tmp_path: Path) -> None:
    text = DOCKERFILE.read_text(encoding="utf-8")
    (line,) = re.findall(r"^# +(D=\$\(docker .*)$", text, flags=re.M)
    (tmp_path / "deploy").mkdir()
    shutil.copy(DOCKERFILE, tmp_path / "deploy")
    line = re.sub(r"\$\(docker .*?\)", "sha256:" + 64 * "a", line, count=1)
    subprocess.run(["bash", "-ec", line], cwd=tmp_path, check=True, timeout=20)
    pinned = (tmp_path / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    assert f"\nARG BASE=python:3.11-slim@sha256:{64 * 'a'}\n" in pinned
    assert pinned.count("\nFROM ${BASE} AS ") == text.count("\nFROM ") == 3


def test_version_is_stated_once_and_the_same() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == __version__
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_ci_runs_what_the_makefile_offers() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    targets = re.findall(r"^make ([\w-]+)$", ci, flags=re.M)
    assert {"check", "test", "test-slow"} <= set(targets)
    for target in ("demo", "format", "bench", "clean", *targets):
        assert re.search(rf"^{target}:.*## ", makefile, flags=re.M), target
