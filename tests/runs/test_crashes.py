"""Run folders: a crash at any write, then a resume, ends with the bytes of an undisturbed run."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from focoop import runs
from focoop.runs import RunFolder
from tests.runs.work import ROUNDS, Crash, content, crash_at, work


def number_of_operations(tmp_path: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        count = crash_at(patch, -1, after=False)
        work(tmp_path / "count")
        return count()


@pytest.mark.parametrize("after", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_crash_at_every_disk_operation_then_resume(
    tmp_path: Path, reference: Path, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a context manager would tidy up does not happen when a process is killed.
    monkeypatch.setattr(RunFolder, "__exit__", lambda self, *_: self._lock.release())
    wanted = content(reference)
    total = number_of_operations(tmp_path)
    assert total > 60
    for moment in range(1, total + 1):
        path = tmp_path / f"{moment}"
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
            crash_at(patch, moment, after)
            work(path)
        work(path)
        assert content(path) == wanted, f"crash at operation {moment}"
        folder = RunFolder.open(path)
        assert folder.status == "finished"
        assert [entry["round"] for entry in folder.manifest["rounds"]] == [1, 2, 3, 4]


def test_two_crashes_in_a_row(tmp_path: Path, reference: Path) -> None:
    for moment in (32, 13, 16):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
            crash_at(patch, moment, after=True)
            work(tmp_path / "run")
    work(tmp_path / "run")
    assert content(tmp_path / "run") == content(reference)


def test_private_files_are_on_the_disk_before_their_round_is_committed(tmp_path: Path) -> None:
    real_replace, real_fsync = os.replace, os.fsync
    named, on_disk, commits = set[Path](), set[Path](), 0

    def fsync(handle: int) -> None:
        on_disk.add(Path(os.readlink(f"/proc/self/fd/{handle}")))
        real_fsync(handle)

    def replace(draft: Path, path: Path) -> None:
        nonlocal commits
        if path.name == runs.STATE:  # a power cut may come from here on
            commits += 1
            assert named and named <= on_disk and {file.parent for file in named} <= on_disk
            named.clear()
        elif path.name.startswith("round-"):
            named.add(path)
            on_disk.difference_update((path, path.parent))
        if draft in on_disk:
            on_disk.add(path)
        real_replace(draft, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", replace)
        patch.setattr(os, "fsync", fsync)
        work(tmp_path.resolve() / "run")
    assert commits == ROUNDS


@pytest.mark.slow
def test_kill_minus_nine_then_resume(tmp_path: Path, reference: Path) -> None:
    path = tmp_path / "run"
    script = textwrap.dedent(f"""
        import os, signal
        from pathlib import Path
        from tests.runs import work
        real, count = os.replace, 0
        def replace(*arguments):
            global count
            count += 1
            if count == 11:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments)
        os.replace = replace
        work.work(Path({str(path)!r}))
    """)
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    killed = RunFolder.open(path)
    assert killed.status == "killed"
    assert 0 < killed.last_round() < ROUNDS
    work(path)
    assert content(path) == content(reference)


def test_torn_line_and_later_lines_are_dropped(tmp_path: Path, reference: Path) -> None:
    path = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, 40, after=False)
        work(path)
    with open(path / runs.METRICS, "ab") as file:
        file.write(b'{"round": 99, "sum": 1.0}\n{"round": 100, "su')
    assert all(line["round"] <= ROUNDS for line in RunFolder.open(path).metrics())
    work(path)
    assert content(path) == content(reference)
