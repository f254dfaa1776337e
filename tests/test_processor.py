"""Products in bfloat16 are tried in a child process, so that no run dies by a signal."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from focoop import processor
from focoop.errors import ConfigError
from focoop.processor import LIMIT, Bfloat16, bfloat16_on_cpu, training_in_bfloat16, try_products
from tests.toy_command import FAST, ROOT

# Stands in for torch in a trial: the process dies as on a processor whose sandbox withholds AMX.
FAULTY = """
import os, signal
if os.environ.get({limit!r}, "") not in {working!r}:
    os.kill(os.getpid(), signal.SIGILL)
os._exit(0)
"""
# The same for a whole command: bfloat16 products of the real torch are fatal.
FAULTY_PRODUCTS = """
import os, signal, sys, importlib.abc, importlib.util

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "torch.nn.functional":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        def exec_module(module):
            execute(module)
            original = module.linear
            def linear(input, weight, bias=None):
                works = os.environ.get({limit!r}, "") in {working!r}
                if "bfloat16" in str(input.dtype) and not works:
                    os.kill(os.getpid(), signal.SIGILL)
                return original(input, weight, bias)
            module.linear = linear
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""


@pytest.fixture(autouse=True)
def forget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(LIMIT, raising=False)
    try_products.cache_clear()


def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *working: str) -> None:
    """Trials from now on see a torch that works with these instruction sets alone."""
    (tmp_path / "torch.py").write_text(FAULTY.format(limit=LIMIT, working=working))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.parametrize(
    ("working", "answer"),
    [
        (("", "AVX512_CORE_BF16", "AVX512_CORE", "AVX2"), Bfloat16(True)),
        (
            ("AVX512_CORE_BF16", "AVX512_CORE", "AVX2"),
            Bfloat16(True, "AVX512_CORE_BF16", "killed by SIGILL"),
        ),
        (("AVX2",), Bfloat16(True, "AVX2", "killed by SIGILL")),
        ((), Bfloat16(False, "", "killed by SIGILL")),
    ],
)
def test_a_fault_in_the_child_is_an_answer_not_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, working: tuple[str, ...], answer: Bfloat16
) -> None:
    faulty(tmp_path, monkeypatch, *working)
    assert bfloat16_on_cpu() == answer
    # Remembered: the child is not asked again, not even where it would now say something else.
    faulty(tmp_path, monkeypatch)
    try_products.cache_clear()
    assert bfloat16_on_cpu() == answer


def test_a_limit_of_the_users_does_not_hide_the_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LIMIT, "AVX2")
    faulty(tmp_path, monkeypatch, "AVX2")
    assert bfloat16_on_cpu().limit == "AVX2"


def test_the_setting_decides_between_refusing_and_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty(tmp_path, monkeypatch)
    with pytest.raises(ConfigError, match="killed by SIGILL.*float32.*prefer_bfloat16"):
        training_in_bfloat16("bfloat16", "cpu")
    assert not training_in_bfloat16("prefer_bfloat16", "cpu")
    assert not training_in_bfloat16("auto", "cpu") and not training_in_bfloat16("float32", "cuda")
    assert training_in_bfloat16("auto", "cuda") and training_in_bfloat16("bfloat16", "cuda")


def test_a_limit_that_comes_after_torch_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if f"{LIMIT}=".encode() in Path("/proc/self/environ").read_bytes():
        pytest.skip("the tests themselves were started under a limit")
    faulty(tmp_path, monkeypatch, "AVX2")
    monkeypatch.setenv(LIMIT, "AVX2")  # torch is loaded already in this process
    with pytest.raises(ConfigError, match=f"{LIMIT}=AVX2 in the environment"):
        training_in_bfloat16("bfloat16", "cpu")


def test_damaged_answers_are_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty(tmp_path, monkeypatch, "", "AVX2")
    assert bfloat16_on_cpu().works
    (kept,) = (tmp_path / "cache" / "processor").iterdir()
    for damage in ("", "[1]", '{"works": true, "more": 1}'):
        kept.write_text(damage)
        assert processor.remembered() is None and bfloat16_on_cpu() == Bfloat16(True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("working", "settings", "code", "says"),
    [
        (("AVX512_CORE", "AVX2"), ["bfloat16"], 0, "own classes"),
        ((), ["bfloat16"], 2, "killed by SIGILL"),
        ((), ["prefer_bfloat16"], 0, "own classes"),
    ],
)
def test_a_run_never_dies_by_a_signal(
    tmp_path: Path, working: tuple[str, ...], settings: list[str], code: int, says: str
) -> None:
    """A whole command on a machine where bfloat16 products are illegal instructions."""
    site = tmp_path / "site"
    site.mkdir()
    script = FAULTY_PRODUCTS.format(limit=LIMIT, working=working)
    (site / "sitecustomize.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": f"{site}:{ROOT}", "FOCOOP_CACHE": str(tmp_path)}
    environment.pop(LIMIT, None)
    precision = [f"--set=backbone.precision={name}" for name in settings]
    command = [sys.executable, "-m", "focoop", "run", "--out", str(tmp_path / "run"), *FAST]
    for _ in range(2):  # the second finds the answer in the cache
        done = subprocess.run(
            [*command, *precision, "--resume"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert says in done.stdout + done.stderr
    plain = subprocess.run(
        [sys.executable, "-c", "import torch as t; o = t.ones(2, 2).bfloat16()\n"
         "t.nn.functional.linear(o, o)"],
        env=environment, timeout=120, check=False,
    )  # fmt: skip
    assert plain.returncode < 0  # the fake really kills
