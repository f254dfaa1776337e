"""Every supported Python is looked for, and the Makefile keeps an environment for each of them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import each_python

ROOT = Path(__file__).resolve().parents[2]
HERE = "{}.{}".format(*sys.version_info)


def interpreter(path: Path, answer: str) -> Path:
    """A program that answers as a Python of that version would; without an answer it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{answer}'\n" if answer else "#!/bin/sh\nexit 127\n")
    path.chmod(0o755)
    return path


def test_supported_versions_are_those_that_the_project_names() -> None:
    assert each_python.supported() == ["3.11", "3.12", "3.13"]


def test_an_interpreter_is_found_on_the_path_and_among_pyenvs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shims, versions = tmp_path / "shims", tmp_path / "pyenv" / "versions"
    interpreter(shims / "python3.88", "")  # a shim whose version is not chosen
    interpreter(versions / "3.88.1/bin/python3", "3.88")
    interpreter(shims / "python3.99", "3.99")
    monkeypatch.setenv("PATH", str(shims))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert each_python.find("3.99") == str(shims / "python3.99")
    assert each_python.find("3.88") == str(versions / "3.88.1/bin/python3")
    assert each_python.find("3.77") is None
    assert each_python.find(HERE) == sys.executable


def test_make_uses_an_environment_of_the_python_that_it_is_given(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    interpreter(tmp_path / ".venv/bin/python", "3.12")
    # The make that runs this test may have been given a Python and an environment of its own.
    given = ("PYTHON", "VENV", "MAKE")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(given)}

    def make(*given: str) -> subprocess.CompletedProcess[str]:
        command = ["make", "--dry-run", "--no-print-directory", "-o", ".venv/.installed"]
        command += ["-o", ".venv-3.13/.installed", "test", *given]
        return subprocess.run(
            command, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=60
        )

    assert ".venv/bin/python -m pytest" in make().stdout
    same, other = (interpreter(tmp_path / v, v) for v in ("3.12", "3.13"))
    assert ".venv/bin/python -m pytest" in make(f"PYTHON={same}").stdout
    assert ".venv-3.13/bin/python -m pytest" in make(f"PYTHON={other}").stdout
    broken = make(f"PYTHON={interpreter(tmp_path / 'shim', '')}")
    assert broken.returncode == 2 and "shim does not run: give the path" in broken.stderr
