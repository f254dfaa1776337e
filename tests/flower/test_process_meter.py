"""The meter of `benchmarks/flower_floor.py` counts processors and waiting."""

import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.process_meter import Meter, Sample, look

PROC = Path("/proc/self/stat").exists()


def test_a_step_is_charged_with_its_own_samples() -> None:
    meter = Meter(lambda: 0)
    rows = [(0.0, 9.0, True, 0), (1.0, 10.0, True, 1), (2.0, 10.5, False, 1), (3.0, 12.0, True, 2)]
    meter.samples = [Sample(*row) for row in [*rows, (5.0, 14.0, False, 2), (6.0, 99.0, True, 3)]]
    # Two steps in four seconds: four seconds of a processor, and in half the samples nobody works.
    assert meter.each(1, 3) == (2.0, 1.0)
    assert all(math.isnan(one) for one in meter.each(7, 9))


@pytest.mark.skipif(not PROC, reason="needs /proc")
def test_processes_that_work_and_processes_that_wait() -> None:
    loop = "print(1, flush=True)\nwhile True: pass"
    wait = "print(1, flush=True)\nimport time; time.sleep(60)"
    for code, works in ((loop, True), (wait, False)):
        command = [sys.executable, "-c", code]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None and child.stdout.readline()
            until = time.monotonic() + 20
            while look(child.pid, set())[1] is not works and time.monotonic() < until:
                time.sleep(0.01)
            assert look(child.pid, set())[1] is works
            assert look(os.getpid(), {threading.get_native_id()})[0] >= look(child.pid, set())[0]
            child.kill()
    assert look(child.pid, set()) == (0.0, False)  # it is gone
