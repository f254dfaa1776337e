"""Run the quick tests on every Python that focoop supports and that is found on this machine.

    python tools/each_python.py            # or: make test-versions
    python tools/each_python.py --smoke    # install, import everything, train a small run: a minute

Each version has an environment of its own with the pinned packages, `.venv-3.12` and so on, made on
first use. A version is looked for as `python3.12` on the PATH and among pyenv's versions. One that
is not found is named and is no failure.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SMOKE = (
    "import pkgutil, focoop\n"
    "names = [m.name for m in pkgutil.walk_packages(focoop.__path__, 'focoop.')]\n"
    "[__import__(name) for name in names if not name.endswith(('__main__', '_triton'))]\n"
    "run = focoop.run('demo', {'federation.rounds': 1, 'partition.shots': 1})\n"
    "print(len(names), 'modules imported, own classes', round(run.summary['accuracy_own'], 3))\n"
)


def supported() -> list[str]:
    """The versions that pyproject.toml names, such as 3.11."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = [re.fullmatch(r".*Python :: (3\.\d+)", line) for line in project["classifiers"]]
    return [match[1] for match in found if match]


def version_of(python: str) -> str | None:
    """The version of an interpreter; None where it does not run, as a shim of pyenv may not."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        result = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def find(version: str) -> str | None:
    """The path of an interpreter of a version."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places = [shutil.which(f"python{version}"), sys.executable]
    places += sorted((str(path) for path in pyenv.glob(f"{version}.*/bin/python3")), reverse=True)
    return next((place for place in places if place and version_of(place) == version), None)


def main() -> int:
    """Run and report; the exit code is 1 where a version failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="no tests: imports and a small run")
    smoke = parser.parse_args().smoke
    outcome = {}
    for version in supported():
        python = find(version)
        if python is None:
            outcome[version] = "absent"
            continue
        print(f"== Python {version}: {python}", flush=True)
        make = ["make", "-C", str(ROOT), f"PYTHON={python}", f"VENV=.venv-{version}"]
        failed = subprocess.run([*make, "setup" if smoke else "test"]).returncode
        if smoke and not failed:
            command = [str(ROOT / f".venv-{version}/bin/python"), "-W", "error", "-c", SMOKE]
            failed = subprocess.run(command, cwd=ROOT).returncode
        outcome[version] = "failed" if failed else "passed"
    for version, result in outcome.items():
        print(f"Python {version}: {result}")
    return int("failed" in outcome.values())


if __name__ == "__main__":
    sys.exit(main())
