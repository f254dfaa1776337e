"""Pin what each tracker needs beyond requirements.lock, for the tests with the real packages.

    python tools/lock_trackers.py UV     # UV: the program; as `make lock` does

A tracker's test (tests/tracking/test_real_trackers.py) makes an environment of its own that sees
the packages of this project's environment behind its own. So `tests/tracking/NAME.txt` holds, with
hashes, what the extra `NAME` needs and the lock file has not, or has in another version.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRACKERS = ("mlflow", "tensorboard", "trackio", "wandb")
PINNED = re.compile(r"^[\w.-]+==[^\s;\\]+")
OPTIONS = (
    *("--quiet", "--universal", "--generate-hashes", "--no-emit-index-url"),
    *("--no-emit-find-links", "--no-annotate", "--no-header", "--python-version", "3.11"),
)


def beyond(pins: str, lock: str) -> str:
    """Return the entries of a file of pins that a lock file does not have.

    Args:
        pins: The content of a file that uv compiled.
        lock: The content of the lock file.

    Returns:
        The other entries, with their hashes.
    """
    known = {match[0] for line in lock.splitlines() if (match := PINNED.match(line))}
    entries = [part for part in re.split(r"(?m)^(?=[\w.-]+==)", pins) if PINNED.match(part)]
    return "".join(part for part in entries if PINNED.match(part)[0] not in known)  # type: ignore[index]


def main() -> None:
    uv = sys.argv[1]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lock = (ROOT / "requirements.lock").read_text()
    for name in TRACKERS:
        path = ROOT / "tests" / "tracking" / f"{name}.txt"
        path.write_text(lock)  # uv prefers the versions that stand in its output
        subprocess.run(
            [uv, "pip", "compile", *OPTIONS, "-", "-o", str(path)],
            input="\n".join(extras[name]),
            text=True,
            check=True,
            timeout=600,
        )
        path.write_text(beyond(path.read_text(), lock))
        print(f"{path.relative_to(ROOT)}: {path.read_text().count('==')} packages")


if __name__ == "__main__":
    main()
