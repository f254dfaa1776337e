"""Run folders: what is committed is read, kept apart, refused and reported."""

import errno
import json
import os
from pathlib import Path

import pytest
import torch

import focoop
from focoop import runs
from focoop.api.settings import configure
from focoop.config.schema import RunConfig
from focoop.errors import RunError
from focoop.runs import RunFolder, durable
from tests.runs.work import CLIENTS, CONFIG, content, new_manifest, work


def test_reading_sees_only_what_is_committed(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "r", CONFIG, new_manifest()) as folder:
        folder.private.save(0, 1, {"p": torch.ones(1)})
        folder.commit(1, {"w": torch.ones(2)}, {"a": 1.0})
        folder.private.save(0, 2, {"p": torch.full((1,), 2.0)})
        durable.append(folder.path / runs.METRICS, b'{"round": 2, "a": 2.0}\n')
        reader = RunFolder.open(tmp_path / "r")
        assert reader.status == "running"
        assert reader.metrics() == [{"round": 1, "a": 1.0}]
        own = reader.private.load(0)
        assert own is not None and own["p"].item() == 1.0
        newest = folder.private.load(0)
        assert newest is not None and newest["p"].item() == 2.0
        assert reader.private.load(7) is None
        with pytest.raises(RunError, match="reading only"):
            reader.commit(3, {})


def test_private_files_of_the_last_two_rounds_are_kept(reference: Path) -> None:
    names = sorted(str(p.relative_to(reference)) for p in (reference / "clients").rglob("*.safe*"))
    before = {0: 3, 1: 3, 2: 2}  # client 2 takes part in every second round
    assert len(before) == CLIENTS
    assert names == [
        f"clients/{client:04d}/round-{index:04d}.safetensors"
        for client, earlier in before.items()
        for index in (earlier, 4)
    ]


def test_state_keeps_shared_apart_from_memory_and_every_bit(tmp_path: Path) -> None:
    shared = {"a": torch.tensor([1e-45, -0.0, 3.3]), "words": torch.arange(3)}
    with RunFolder.create(tmp_path / "r", CONFIG, new_manifest()) as folder:
        folder.commit(1, shared, memory={"a": torch.ones(2, 2).T.half()})
        folder.finish("finished")
    point = RunFolder.open(tmp_path / "r").resume_point()
    assert point is not None and set(point.shared) == {"a", "words"}
    assert point.shared["a"].view(torch.int32).equal(shared["a"].view(torch.int32))
    assert point.shared["words"].dtype == torch.int64
    assert point.memory["a"].dtype == torch.float16


def test_a_run_of_clients_that_send_other_tensors_does_not_go_on(tmp_path: Path) -> None:
    """As one that an earlier focoop began; answers from its tensors are as they were."""
    small = {"partition.clients": 2, "partition.shots": 2}
    config = configure("demo/promptfl", small)[0]
    first = torch.zeros(4, 7)  # not the context that PromptFL begins with
    with RunFolder.create(tmp_path / "r", config, new_manifest()) as folder:
        folder.commit(1, {"context": first, "bias": first})
    with pytest.raises(RunError, match=r"other tensors \(bias, context\).*--out"):
        focoop.run(config, out=tmp_path / "r", resume=True)


def test_a_run_without_tensors_commits(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "r", CONFIG, new_manifest()) as folder:
        assert folder.resume_point() is None
        folder.commit(0, {}, {"loss": float("nan"), "n": torch.tensor(3)})
        folder.finish("finished")
    found = RunFolder.open(tmp_path / "r")
    assert found.last_round() == 0
    assert found.metrics() == [{"round": 0, "loss": None, "n": 3}]


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "r", CONFIG, new_manifest()) as folder:
        with pytest.raises(RunError, match=f"in use by another process .id {os.getpid()}.*--out"):
            RunFolder.open(tmp_path / "r", writable=True)
        folder.finish("finished")
    RunFolder.open(tmp_path / "r", writable=True).close()


def test_status_after_errors(tmp_path: Path) -> None:
    for name, error, status in (
        ("a", ValueError("no"), "failed"),
        ("b", KeyboardInterrupt(), "interrupted"),
    ):
        with pytest.raises(type(error)), RunFolder.create(tmp_path / name, CONFIG, new_manifest()):
            raise error
        assert RunFolder.open(tmp_path / name).status == status
    with RunFolder.create(tmp_path / "c", CONFIG, new_manifest()):
        pass
    assert RunFolder.open(tmp_path / "c").status == "interrupted"


def test_start_says_what_differs_and_what_to_do(tmp_path: Path, reference: Path) -> None:
    with pytest.raises(RunError, match="seed: 5 -> 6") as caught:
        runs.start(reference, RunConfig(seed=6), new_manifest(), resume=True)
    assert "--out" in str(caught.value)
    with pytest.raises(RunError, match=r"finished, round 4.*--resume"):
        runs.start(reference, CONFIG, new_manifest(), resume=False)
    assert runs.start(reference, CONFIG, new_manifest(), resume=True).status == "finished"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "holiday.txt").write_text("x")
    with pytest.raises(RunError, match="not empty"):
        runs.start(tmp_path / "full", CONFIG, new_manifest(), resume=False)
    with pytest.raises(RunError, match="is a file"):
        runs.start(tmp_path / "full" / "holiday.txt", CONFIG, new_manifest(), resume=False)
    with pytest.raises(RunError, match="not a run folder"):
        RunFolder.open(tmp_path / "full")


def test_pinned_facts_may_not_change(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "r", CONFIG, new_manifest()) as folder:
        folder.pin("data", {"train": "abc"})
        folder.pin("data", {"train": "abc"})
        with pytest.raises(RunError, match="data is not what"):
            folder.pin("data", {"train": "xyz"})


def test_a_round_is_committed_once(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "r", CONFIG, new_manifest()) as folder:
        folder.commit(1, {})
        with pytest.raises(RunError, match="committed already"):
            folder.commit(1, {})


def test_full_disk_is_reported_and_the_run_resumes(tmp_path: Path, reference: Path) -> None:
    path = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        count = 0

        def fsync(handle: int) -> None:
            nonlocal count
            count += 1
            if count > 30:
                raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(os, "fsync", fsync)
        with pytest.raises(RunError, match=r"No space left on device; free some space.*--resume"):
            work(path)
    work(path)
    assert content(path) == content(reference)


def test_an_unwritable_place_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        RunFolder.create(tmp_path / "file" / "run", CONFIG, new_manifest())


def test_damaged_files_are_named(tmp_path: Path) -> None:
    work(tmp_path / "r")
    state = tmp_path / "r" / runs.STATE
    good = state.read_bytes()
    state.write_bytes(good[:20])
    with pytest.raises(RunError, match="state.safetensors is damaged"):
        RunFolder.open(tmp_path / "r")
    state.write_bytes(good)
    metrics = tmp_path / "r" / runs.METRICS
    metrics.write_bytes(b"nonsense\n" + metrics.read_bytes())
    with pytest.raises(RunError, match=r"metrics.jsonl is damaged"):
        RunFolder.open(tmp_path / "r").metrics()


def test_list_runs_passes_over_other_folders(tmp_path: Path) -> None:
    for name, day in (("b", "2026-01-01"), ("a", "2026-01-02")):
        manifest = new_manifest() | {"started": day}
        RunFolder.create(tmp_path / name, CONFIG, manifest).finish("finished")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / runs.CONFIG).write_text("seed = 'x'")
    assert [run.path.name for run in runs.list_runs(tmp_path)] == ["b", "a"]
    assert runs.list_runs(tmp_path / "absent") == []


def test_metrics_are_plain_json_lines(reference: Path) -> None:
    lines = (reference / runs.METRICS).read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 3, 4]
