"""Tries, in a child process, whether this machine's processor can multiply in bfloat16.

Some sandboxes run on processors that announce an instruction set (AMX) which the sandbox does not
grant. A bfloat16 product then ends the whole process with an illegal instruction, which no
`except` can catch. So the product is tried in a child process first, if need be with a smaller
instruction set, and the answer is remembered per machine. This module imports no torch: a limit
works only when it is in the environment before torch loads.
"""

import functools
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from focoop.caching import SUM, cache_folder, is_intact, parse_json, sealed, write_whole
from focoop.errors import ConfigError

# oneDNN, torch's library of matrix products, reads its largest instruction set from here.
LIMIT = "ONEDNN_MAX_CPU_ISA"
# Tried in this order once a product without a limit has failed.
SMALLER_SETS = ("AVX512_CORE_BF16", "AVX512_CORE", "AVX2")
SECONDS = 120  # of one trial; importing torch is nearly all of it
_applied = ""  # the limit this process has set itself, before torch was loaded
TRIAL = """
import torch
for rows, width in ((4, 8), (64, 64), (300, 512)):
    a = torch.ones(rows, width, dtype=torch.bfloat16, requires_grad=True)
    w = torch.ones(width, width, dtype=torch.bfloat16)
    y = torch.nn.functional.linear(a, w, torch.zeros(width, dtype=torch.bfloat16))
    z = torch.bmm(y[None] / width, w[None])
    z.float().sum().backward()
    assert y.float().eq(width).all() and z.float().eq(width).all(), "wrong product"
    assert a.grad.float().eq(width).all(), "wrong gradient"
"""


@dataclass(frozen=True)
class Bfloat16:
    """What the trials of bfloat16 products on the CPU have shown.

    Attributes:
        works: whether products came out right, perhaps under a limit.
        limit: value of `ONEDNN_MAX_CPU_ISA` they need; empty: none.
        reason: how the product without a limit failed; empty where it worked.
    """

    works: bool
    limit: str = ""
    reason: str = ""

    @property
    def usable_now(self) -> bool:
        """Return whether this very process may multiply: torch was loaded under the limit."""
        if not self.limit:
            return self.works
        return _limit_at_start() in SMALLER_SETS[SMALLER_SETS.index(self.limit) :]

    def __str__(self) -> str:
        if self.works and not self.limit:
            return "bfloat16 products work"
        if self.works:
            return f"bfloat16 products work with {LIMIT}={self.limit} ({self.reason} without)"
        return f"bfloat16 products fail ({self.reason})"


def bfloat16_on_cpu() -> Bfloat16:
    """Return whether bfloat16 products work on this machine's CPU.

    The first call on a machine starts child processes and takes some seconds; the answer is then
    kept in the cache folder.
    """
    support = remembered()
    if support is None:
        support = try_products()
        with suppress(OSError):  # a cache that cannot be written costs the next process a trial
            write_whole(_file(), json.dumps(sealed(asdict(support))).encode())
    return support


def remembered() -> Bfloat16 | None:
    """Return what an earlier process found out on this machine, or None."""
    try:
        kept = parse_json(_file().read_text("utf-8"))
        if not is_intact(kept):  # then the products are tried again
            return None
        return Bfloat16(**{key: value for key, value in kept.items() if key != SUM})
    except (OSError, ValueError, TypeError):
        return None


def apply_remembered_limit() -> None:
    """Set the limit an earlier trial found necessary; call this before torch is imported."""
    global _applied
    support = remembered()
    if support is not None and support.limit and "torch" not in sys.modules:
        _applied = os.environ.setdefault(LIMIT, support.limit)


@functools.lru_cache(maxsize=1)
def try_products() -> Bfloat16:
    """Return what products in child processes show: without a limit first, then with limits."""
    reason = _failure("")
    if not reason:
        return Bfloat16(True)
    for limit in SMALLER_SETS:
        if not _failure(limit):
            return Bfloat16(True, limit, reason)
    return Bfloat16(False, "", reason)


def training_in_bfloat16(precision: str, device: str) -> bool:
    """Decide whether the text tower trains in bfloat16.

    Args:
        precision: `backbone.precision` of the run.
        device: kind of torch device, such as `cpu` or `cuda`.

    Returns:
        True for bfloat16, False for float32.

    Raises:
        ConfigError: bfloat16 is demanded on a CPU that cannot multiply in it.
    """
    if precision == "float32" or (precision == "auto" and device != "cuda"):
        return False
    if device != "cpu":
        return True
    support = bfloat16_on_cpu()
    if support.usable_now:
        return True
    if precision != "bfloat16":
        return False
    if support.works:
        raise ConfigError(
            f"on this machine {support}, and torch is loaded already: set {LIMIT}={support.limit} "
            "in the environment and start again, or set backbone.precision to float32"
        )
    raise ConfigError(
        f"backbone.precision = bfloat16 cannot be used on this machine's processor: {support}. Set "
        "it to float32, or to prefer_bfloat16 for bfloat16 only where it works"
    )


def restart_with_limit(precision: str, device: str) -> None:
    """Start this command again under the limit that its bfloat16 products need, if they need one.

    Returns where no restart is needed; else the process is replaced and the call never returns.
    Only a command line may call this, before it has done anything.

    Args:
        precision: `backbone.precision` of the run.
        device: Kind of torch device, such as `cpu` or `cuda`.
    """
    if precision not in ("bfloat16", "prefer_bfloat16") or device != "cpu":
        return
    support = bfloat16_on_cpu()
    if support.works and not support.usable_now and LIMIT not in os.environ:
        environment = {**os.environ, LIMIT: support.limit}
        os.execve(sys.executable, [sys.executable, "-m", "focoop", *sys.argv[1:]], environment)


def _failure(limit: str) -> str:
    """How one trial under a limit (empty: none) ended; empty where its products were right."""
    environment = {name: value for name, value in os.environ.items() if name != LIMIT}
    try:
        child = subprocess.run(
            [sys.executable, "-c", TRIAL],
            env=environment | ({LIMIT: limit} if limit else {}),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {SECONDS} s"
    except OSError as error:
        return f"no child process could be started: {error}"
    if child.returncode < 0:
        return f"killed by {signal.Signals(-child.returncode).name}"
    if child.returncode:
        return (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
    return ""


def _file() -> Path:
    """Where the answer for this machine, its torch and its environment is kept."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = ""
    about = [platform.node(), platform.release(), _processor(), torch]
    name = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
    return cache_folder() / "processor" / f"bfloat16-{name}.json"


def _processor() -> str:
    """The processor's name and instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "; ".join(sorted({line for line in lines if line.startswith(wanted)}))


def _limit_at_start() -> str:
    """The limit in this process's environment when it started, before torch was loaded."""
    try:
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:  # not Linux: what is set now must do
        return os.environ.get(LIMIT, "")
    name = LIMIT.encode() + b"="
    given = (entry.removeprefix(name).decode() for entry in entries if entry.startswith(name))
    return next(given, _applied)
