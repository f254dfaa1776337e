"""A reader that goes away does not stop what is shown to it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from focoop.cli.output import Output
from focoop.runs import LOG, RunFolder
from tests.toy_setting import write_setting


def test_a_stream_that_nobody_reads_falls_silent(caplog: pytest.LogCaptureFixture) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with Output(open(writing, "wb")) as stream:  # noqa: SIM115 - closed with the stream
        for _ in range(3):
            stream.write("a line\n")
            stream.flush()
    (record,) = caplog.records
    assert "takes no more (it was closed): the work goes on" in record.message


@pytest.mark.slow
def test_a_run_whose_lines_nobody_reads_ends(tmp_path: Path) -> None:
    setting = write_setting(tmp_path / "data", rounds=6)
    command = f"{sys.executable} -m focoop run {setting} --set method.name=promptfl --untuned"
    command += " --set federation.evaluate_every=1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} --out {tmp_path / 'run'} | head -1"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert RunFolder.open(tmp_path / "run").status == "finished"
    assert (
        "<stdout> takes no more (it was closed): the work goes on"
        in (tmp_path / "run" / LOG).read_text()
    )
