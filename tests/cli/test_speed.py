"""Commands that only print a table do not load torch, and take little of the processor's time."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = (["methods"], ["config"], ["runs"], ["data", "list"])
# Runs a command and says which line of focoop loaded torch, if any did.
WHO = """
import json, sys, traceback
from focoop import lazy
load, told = lazy._Deferral.load, []
def watched(self):
    if not told:
        files = ("lazy.py", "<string>", "<frozen")
        stack = traceback.extract_stack()
        lines = [one for one in stack if not any(name in one.filename for name in files)]
        told.extend(f"{one.filename}:{one.lineno} {one.line}" for one in lines[-1:])
    load(self)
lazy._Deferral.load = watched
from focoop.__main__ import main
sys.argv[0] = "focoop"
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print(json.dumps([told, "torch._C" in sys.modules]))
"""


def seconds(*words: str, cwd: Path) -> float:
    """Processor time of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], cwd=cwd, check=True, capture_output=True, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_that_tells_loads_no_torch(words: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WHO, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    told, loaded = json.loads(done.stdout.splitlines()[-1])
    advice = "use `import torch` and names behind `if TYPE_CHECKING:`; no torch at module level"
    assert not told and not loaded, f"{advice}: {told}"


@pytest.mark.slow
def test_a_command_that_tells_takes_half_of_importing_torch(tmp_path: Path) -> None:
    torch = min(seconds("-c", "import torch", cwd=tmp_path) for _ in range(2))
    for words in COMMANDS:
        assert seconds("-m", "focoop", *words, cwd=tmp_path) < 0.5 * torch, words
