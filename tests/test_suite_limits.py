"""The test command itself ends: whatever dies or hangs in it, it fails and names the test."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.toy_command import ROOT

FINE = "def test_fine():\n    pass\n"
DIES = "import os, signal\n\ndef test_dies():\n    os.kill(os.getpid(), signal.SIGILL)\n"
SLEEPS = "import time\n\ndef test_sleeps():\n    time.sleep(60)\n"
# No signal gets through, as in a library that does not return to Python.
STUCK = """import signal, time

def test_is_stuck():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(60)
"""


def flags() -> list[str]:
    """The flags of `make test`."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    found = re.search(r"-m pytest (.*)", makefile)
    assert found is not None
    return found[1].replace("auto", "2").split()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bad", "says"),
    [
        pytest.param(DIES, "crashed", id="dies"),
        pytest.param(SLEEPS, "Timeout", id="sleeps", marks=pytest.mark.slow),
        pytest.param(STUCK, "crashed", id="stuck", marks=pytest.mark.slow),
    ],
)
def test_a_dead_or_hanging_test_ends_the_suite(tmp_path: Path, bad: str, says: str) -> None:
    for name, text in (("test_a.py", FINE), ("test_b.py", bad + FINE), ("test_c.py", FINE)):
        (tmp_path / name).write_text(text)
    limits = ["--timeout=2", "-o", "faulthandler_timeout=4"]
    limits += ["-o", "faulthandler_exit_on_timeout=true", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *flags(), *limits, f"--rootdir={tmp_path}", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=45,  # less than a bad test sleeps
        check=False,
    )
    assert done.returncode not in (0, 5), done.stdout
    assert says in done.stdout + done.stderr


def test_every_test_has_a_limit(request: pytest.FixtureRequest) -> None:
    assert request.config.pluginmanager.hasplugin("timeout")
    for item in request.session.items:
        limit = item.get_closest_marker("timeout")
        assert limit is not None and 0 < limit.args[0] <= 1800
