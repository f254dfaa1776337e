"""`log.txt`: what happened when, for people; runs side by side do not write in each other's."""

import logging
import re
import threading
import warnings
from pathlib import Path

import pytest

from focoop import runs
from focoop.config import loading
from focoop.experiments.grid import plan
from focoop.experiments.running import run_experiment
from focoop.experiments.workers import Job, run_jobs
from focoop.runs import LOG, RunFolder, run_log
from tests.runs.work import CONFIG, new_manifest
from tests.toy_command import FAST, call
from tests.toy_setting import write_setting

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ (INFO|WARNING|ERROR) +\S")


def text(path: Path) -> str:
    return (path / LOG).read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_run_logs_rounds_losses_and_its_end(tmp_path: Path) -> None:
    result = call("run", *FAST, "--set=data.corrupted=[]", "--out", str(tmp_path / "run"))
    assert result.exit_code == 0, result.stderr
    lines = text(tmp_path / "run").splitlines()
    assert all(LINE.match(line) for line in lines)
    assert "begins, 2 rounds; method promptfl" in lines[0]
    assert "INFO    note: tuned settings of " in lines[1]  # what was said before the run began
    rounds = [line for line in lines if re.search(r" round \d of 2", line)]
    assert len(rounds) == 3
    assert "loss " in rounds[1] and "own classes " in rounds[1] and " s," in rounds[1]
    assert "all rounds are done" in lines[-1]
    again = call("run", *FAST, "--out", str(tmp_path / "run"), "--resume")
    assert again.exit_code == 0 and text(tmp_path / "run").splitlines() == lines


def test_warnings_shown_and_errors_with_their_traceback_are_kept(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", CONFIG, new_manifest())
    before = warnings.showwarning
    with pytest.raises(ZeroDivisionError), folder, run_log(folder.path, folder.log):
        with pytest.warns(UserWarning, match="few images"):
            warnings.warn("few images", stacklevel=1)
        logging.getLogger("focoop.data").warning("told by the package")
        logging.getLogger("another").warning("of no concern")
        print(1 / 0)
    kept = text(folder.path)
    assert "WARNING told by the package" in kept and "of no concern" not in kept
    assert "ERROR   failed: division by zero" in kept and "Traceback" in kept
    assert warnings.showwarning is before


def test_a_shown_warning_is_logged(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", CONFIG, new_manifest())
    shown: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warnings, "showwarning", lambda message, *_, **__: shown.append(str(message)))
        with folder, run_log(folder.path, folder.log), warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("few images", stacklevel=1)
    assert shown == ["few images"] and "WARNING few images" in text(folder.path)


@pytest.mark.slow
def test_the_log_of_a_run_that_never_began_stays(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "run")]
    assert call("run", *FAST, "--set=partition.clients=200", *out).exit_code == 2
    assert "partition.clients to 100 or fewer" in text(tmp_path / "run")
    assert call("run", *FAST, *out).exit_code == 0
    kept = text(tmp_path / "run")
    assert kept.index("Traceback") < kept.index("all rounds are done")


def test_runs_of_one_process_have_logs_of_their_own(tmp_path: Path) -> None:
    setting = write_setting(tmp_path / "data", rounds=1)
    cells = plan([setting], "promptfl,local_only", (0,), tmp_path / "out")
    jobs = [Job(cell.config, cell.folder) for cell in cells]
    run_jobs(jobs, lambda news: None, workers=0)
    for cell, other in zip(cells, cells[::-1], strict=True):
        kept = text(cell.folder)
        assert f"method {cell.label}," in kept and f"method {other.label}," not in kept
        assert kept.count("round 1 of 1") == 1


def test_a_thread_of_another_run_does_not_write_here(tmp_path: Path) -> None:
    folders = [RunFolder.create(tmp_path / name, CONFIG, new_manifest()) for name in "ab"]
    inside, done = threading.Event(), threading.Event()

    def other() -> None:
        with run_log(folders[1].path, folders[1].log):
            logging.getLogger("focoop").warning("of b")
            inside.set()
            assert done.wait(10)

    thread = threading.Thread(target=other)
    with run_log(folders[0].path, folders[0].log):
        thread.start()
        assert inside.wait(10)
        logging.getLogger("focoop").warning("of a")
        done.set()
        thread.join(10)
    assert "of a" in text(folders[0].path) and "of b" not in text(folders[0].path)
    assert "of b" in text(folders[1].path) and "of a" not in text(folders[1].path)
    for folder in folders:
        folder.close()


def test_a_log_that_cannot_be_written_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = loading.load(write_setting(tmp_path / "data", rounds=1), ["method.name=promptfl"])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOG).mkdir()  # a folder in its place
    with runs.start(tmp_path / "run", wanted, new_manifest(), resume=False) as folder:
        run_experiment(wanted, folder)
        folder.finish("finished")
    assert RunFolder.open(tmp_path / "run").last_round() == 1
    assert capsys.readouterr().err == ""


def test_a_log_on_a_full_disk_hides_no_error(tmp_path: Path) -> None:
    """What the disk did not take is tried again at closing, and refused again."""
    (tmp_path / LOG).symlink_to("/dev/full")
    log = logging.Logger("test", logging.INFO)
    with pytest.raises(ValueError, match="the error itself"), run_log(tmp_path, log):
        log.info("begins")
        raise ValueError("the error itself")
    with run_log(tmp_path, log):
        log.info("begins")
