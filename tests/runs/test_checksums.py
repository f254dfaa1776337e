"""Run folders: a changed, lost or exchanged file is named, and the round before is offered."""

import errno
import json
import os
import shutil
import threading
from pathlib import Path

import pytest
import torch

from focoop import runs
from focoop.config import RunConfig
from focoop.errors import RunError
from focoop.runs import RunFolder, durable
from focoop.runs.files import FORMAT
from tests.runs.work import CONFIG, as_earlier, change_manifest, content, new_manifest, work


@pytest.fixture
def run(reference: Path, tmp_path: Path) -> Path:
    shutil.copytree(reference, tmp_path / "run")
    return tmp_path / "run"


def flip(path: Path, place: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[place % len(raw)] ^= 1
    path.write_bytes(raw)


def read_all(path: Path) -> None:
    """Read what every reader of a run reads together."""
    folder = RunFolder.open(path)
    folder.metrics()
    assert folder.names is not None
    point, store = folder.snapshot()
    assert point is not None
    assert all(store.load(client) is not None for client in range(3))


FILES = [
    runs.STATE,
    runs.METRICS,
    runs.ROUNDS,
    runs.CONFIG,
    runs.NAMES,
    runs.MANIFEST,
    "clients/0001/round-0004.safetensors",
]


@pytest.mark.parametrize("name", FILES)
def test_single_bits_are_named_with_their_file(run: Path, name: str) -> None:
    whole = (run / name).read_bytes()
    read_all(run)
    for place in range(0, len(whole), max(1, len(whole) // 12)):
        flip(run / name, place)
        with pytest.raises(RunError, match=name):
            read_all(run)
        with pytest.raises(RunError, match=name):
            RunFolder.open(run, writable=True)
        (run / name).write_bytes(whole)


def test_lost_and_exchanged_files_are_found(run: Path, tmp_path: Path) -> None:
    first, second = (run / f"clients/{client:04d}/round-0004.safetensors" for client in (0, 1))
    raw = first.read_bytes()
    first.write_bytes(second.read_bytes())
    with pytest.raises(RunError, match=r"clients/0000/round-0004.* is damaged"):
        read_all(run)
    first.unlink()
    with pytest.raises(
        RunError, match=r"clients/0000/round-0004.* is gone, and client 0 has train"
    ):
        read_all(run)
    first.write_bytes(raw)
    (run / runs.NAMES).rename(run / "elsewhere")
    with pytest.raises(RunError, match=r"names.json is gone"):
        read_all(run)
    (run / "elsewhere").rename(run / runs.NAMES)
    with RunFolder.create(tmp_path / "other", RunConfig(seed=6), new_manifest()) as other:
        other.commit(4, {"w": torch.zeros(4)}, memory={"m": torch.zeros(4)})
        other.finish("finished")
    for name in ([runs.STATE], [runs.STATE, runs.ROUNDS], [runs.STATE, runs.ROUNDS, runs.MANIFEST]):
        kept = {file: (run / file).read_bytes() for file in name}
        for file in name:
            shutil.copy(tmp_path / "other" / file, run / file)
        with pytest.raises(RunError, match="checksum differs"):
            read_all(run)
        for file, content_then in kept.items():
            (run / file).write_bytes(content_then)
    read_all(run)


@pytest.mark.parametrize(
    "name", [runs.STATE, runs.METRICS, runs.ROUNDS, "clients/0000/round-0004.safetensors"]
)
def test_the_round_before_is_offered_and_ends_with_the_same_bits(
    run: Path, reference: Path, name: str
) -> None:
    flip(run / name, -8)  # of lines the last, of tensors a value
    with pytest.raises(RunError, match=r"round 3 is whole: .*--resume --round-before") as caught:
        RunFolder.open(run, writable=True)
    assert name in str(caught.value)
    with pytest.raises(RunError, match="checksum differs"):
        read_all(run)
    folder = runs.start(run, CONFIG, new_manifest(), resume=True, from_round_before=True)
    assert folder.last_round() == 3
    folder.close()
    work(run)
    assert content(run) == content(reference)
    read_all(run)


def test_a_state_that_is_gone_is_told(run: Path) -> None:
    (run / runs.STATE).unlink()
    with pytest.raises(RunError, match=r"state.safetensors is gone: round 3 is whole"):
        read_all(run)
    with pytest.raises(RunError, match=r"state.safetensors is gone"):
        RunFolder.open(run, writable=True)


def test_without_a_whole_round_before_nothing_is_offered(run: Path) -> None:
    flip(run / runs.STATE, -1)
    (run / runs.BEFORE).unlink()
    with pytest.raises(RunError, match=r"checksum differs; restore it from a copy"):
        RunFolder.open(run)
    with pytest.raises(RunError, match="no round before the last one that is whole"):
        runs.start(run, CONFIG, new_manifest(), resume=True, from_round_before=True)


def test_a_lost_last_line_of_metrics_is_told(run: Path, reference: Path) -> None:
    lines = (run / runs.METRICS).read_bytes().splitlines(keepends=True)
    (run / runs.METRICS).write_bytes(b"".join(lines[:-1]))
    with pytest.raises(RunError, match=r"has lost the line of round 4"):
        RunFolder.open(run).metrics()
    assert RunFolder.open(run).snapshot()[0] is not None  # its tensors can be evaluated
    shutil.rmtree(run)
    shutil.copytree(reference, run)
    as_earlier(run)  # a folder of an earlier focoop too
    (run / runs.METRICS).write_bytes(b"".join(lines[:-1]))
    with pytest.raises(RunError, match=r"has lost the line of round 4"):
        RunFolder.open(run, convert=False).metrics()
    with pytest.warns(UserWarning, match="read unchecked"), pytest.raises(RunError, match="lost"):
        RunFolder.open(run).metrics()


def test_a_folder_of_an_earlier_focoop_gains_checksums(run: Path) -> None:
    wanted = RunFolder.open(run).manifest["rounds"]
    as_earlier(run)
    with pytest.warns(UserWarning, match="has no checksums .* from now on"):
        folder = RunFolder.open(run)
    assert folder.manifest["rounds"] == wanted
    assert "rounds" not in json.loads((run / runs.MANIFEST).read_text())
    read_all(run)  # says nothing any more
    flip(run / "clients/0001/round-0004.safetensors", -3)
    with pytest.raises(RunError, match="is damaged"):
        read_all(run)


def test_an_earlier_run_that_was_killed_goes_on(tmp_path: Path, reference: Path) -> None:
    work(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    shutil.copytree(reference, tmp_path / "run")
    as_earlier(tmp_path / "run")
    told = json.loads((tmp_path / "run" / runs.MANIFEST).read_text())
    (tmp_path / "run" / runs.MANIFEST).write_text(json.dumps({**told, "status": "running"}))
    folder = RunFolder.open(tmp_path / "run", writable=True)
    assert folder.last_round() == 4
    folder.finish("finished")
    assert len(folder.manifest["rounds"]) == 4
    read_all(tmp_path / "run")


def test_a_newer_format_is_refused(run: Path) -> None:
    change_manifest(run, format=FORMAT + 1)
    with pytest.raises(RunError, match=f"newer focoop .format {FORMAT + 1}.*install that version"):
        RunFolder.open(run)


@pytest.mark.parametrize("form", [0, -1, "2", None, True, 2.0])
def test_what_is_no_format_is_damage(run: Path, form: object) -> None:
    change_manifest(run, format=form)
    with pytest.raises(RunError, match="is damaged: its format is"):
        RunFolder.open(run)


def test_a_folder_that_says_no_format_is_of_the_first_one(run: Path) -> None:
    as_earlier(run)
    told = json.loads((run / runs.MANIFEST).read_text())
    (run / runs.MANIFEST).write_text(json.dumps({k: v for k, v in told.items() if k != "format"}))
    with pytest.warns(UserWarning, match="has no checksums"):
        RunFolder.open(run)
    assert json.loads((run / runs.MANIFEST).read_text())["format"] == FORMAT


def test_a_reader_beside_a_writer_sees_one_round(tmp_path: Path) -> None:
    """Every value of round r is r: a mixture of rounds, or a client taken as new, would show."""
    done = threading.Event()
    with RunFolder.create(tmp_path / "run", CONFIG, new_manifest()) as folder:

        def commit(index: int) -> None:
            for client in range(4):
                folder.private.save(client, index, {"p": torch.full((2,), float(index))})
            line = {"value": index}
            folder.commit(index, {"w": torch.full((2,), float(index))}, line)

        def train() -> None:
            for index in range(2, 25):
                commit(index)
            done.set()

        commit(1)
        reader = RunFolder.open(tmp_path / "run")
        thread = threading.Thread(target=train)
        thread.start()
        seen = 0
        while not done.is_set():
            for run in (reader, RunFolder.open(tmp_path / "run")):
                point, store = run.snapshot()
                assert point is not None
                values = {float(store.load(client)["p"][0]) for client in range(4)}  # type: ignore[index]
                assert values == {float(point.shared["w"][0])} == {float(point.round_index)}
                lines = run.metrics()
                assert [line["value"] for line in lines] == list(range(1, len(lines) + 1))
                assert point.round_index <= len(lines) <= run.last_round()
                seen += 1
        thread.join()
        assert seen > 3
        folder.finish("finished")


def test_a_private_file_that_vanishes_is_no_untrained_client(run: Path) -> None:
    reader = RunFolder.open(run)
    shutil.rmtree(run / "clients" / "0001")
    with pytest.raises(RunError, match="is gone, and client 1 has trained"):
        reader.private.load(1)


def test_a_run_that_never_began_is_cleared_away_under_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    RunFolder.create(path, CONFIG, new_manifest()).finish("failed")
    holder = durable.Lock(path / runs.LOCK)
    holder.take()
    with pytest.raises(RunError, match="in use by another process"):
        runs.start(path, CONFIG, new_manifest(), resume=False)
    assert (path / runs.CONFIG).is_file()
    holder.release()
    runs.start(path, CONFIG, new_manifest(), resume=False).finish("finished")


def test_a_full_disk_at_the_lock_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "getpid", full)  # while the holder is written down
    with pytest.raises(RunError, match=r"cannot write .*.lock: No space left on device; free"):
        RunFolder.create(tmp_path / "run", CONFIG, new_manifest())


def test_damaged_folders_are_listed_with_the_reason(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "whole")
    flip(run / runs.METRICS, 20)
    (tmp_path / "no run").mkdir()
    (tmp_path / "no run" / runs.CONFIG).write_text("seed = 'x'")
    found, damaged = runs.survey_runs(tmp_path)
    assert [one.path.name for one in found] == ["whole"]
    assert [one.path.name for one in damaged] == ["run"]
    assert "metrics.jsonl is damaged" in damaged[0].reason


@pytest.mark.parametrize("name", [runs.MANIFEST, "state.safetensors", runs.NAMES, runs.METRICS])
def test_brackets_without_end_are_damage(run: Path, name: str, tmp_path: Path) -> None:
    raw = b"[" * 100_000
    (run / name).write_bytes(len(raw).to_bytes(8, "little") + raw if "state" in name else raw)
    with pytest.raises(RunError, match=name):
        read_all(run)
    if name != runs.NAMES:  # which a list of runs does not read
        assert [one.path for one in runs.survey_runs(tmp_path)[1]] == [run]


@pytest.mark.parametrize("rounds", [[1, 2], "x", [{"a": 1}], [{"round": "1"}]])
def test_rounds_of_an_earlier_focoop_that_are_none_are_damage(run: Path, rounds: object) -> None:
    as_earlier(run)
    told = json.loads((run / runs.MANIFEST).read_text())
    (run / runs.MANIFEST).write_text(json.dumps({**told, "rounds": rounds}))
    for writable in (False, True):
        with pytest.raises(RunError, match="manifest.json is damaged: its rounds"):
            RunFolder.open(run, writable=writable)


def test_odd_files_of_an_earlier_focoop(run: Path, tmp_path: Path) -> None:
    as_earlier(run)
    (run / "clients/0001/round-old.safetensors").write_bytes(b"a copy by hand")
    assert [one.path for one in runs.survey_runs(tmp_path)[0]] == [run]
    state = run / "state.safetensors"
    whole = state.read_bytes()
    state.write_bytes(whole[:-4])  # cut off: it gets no checksum
    with pytest.warns(UserWarning, match="read unchecked"), pytest.raises(RunError, match="state"):
        RunFolder.open(run).resume_point()
    state.write_bytes(whole)
    with pytest.warns(UserWarning, match="from now on"):
        RunFolder.open(run)
    read_all(run)
