"""A long run costs the same in every round: neither bytes written nor memory grow with rounds."""

import gc
import tracemalloc
from pathlib import Path

import pytest
import torch

from focoop.runs import RunFolder
from tests.runs.work import CONFIG, new_manifest

CLIENTS, EARLY, ROUNDS = 30, 6, 24
IO = Path("/proc/self/io")


def written() -> int:
    return int(IO.read_text().split("wchar:")[1].split()[0])


@pytest.mark.skipif(not IO.exists(), reason="needs Linux's /proc")
def test_a_late_round_writes_and_keeps_no_more_than_an_early_one(tmp_path: Path) -> None:
    costs: list[int] = []
    with RunFolder.create(tmp_path / "run", CONFIG, new_manifest()) as folder:

        def train(rounds: range) -> None:
            for index in rounds:
                for client in range(CLIENTS):
                    folder.private.save(client, index, {"p": torch.zeros(2)})
                traffic = {"participants": list(range(1000, 1000 + CLIENTS)), "bytes_up": 1}
                before = written()
                folder.commit(index, {"w": torch.zeros(4)}, {"loss": 0.5}, traffic)
                costs.append(written() - before)

        train(range(EARLY))
        gc.collect()
        tracemalloc.start(25)
        train(range(EARLY, ROUNDS))
        gc.collect()
        # Of the folder's code alone: threads that other tests left behind allocate too.
        ours = tracemalloc.Filter(True, "*/focoop/runs/*", all_frames=True)
        kept = tracemalloc.take_snapshot().filter_traces([ours])
        tracemalloc.stop()
        held = sum(group.size for group in kept.statistics("filename"))
        folder.finish("finished")
    assert max(costs[EARLY:]) <= max(costs[2:EARLY]) + 20  # the digits of a round's number
    # What is known of the last two rounds' files takes 50 KB; the lines of 18 rounds take 95 KB.
    assert held < 80_000
    assert [len(entry["participants"]) for entry in folder.manifest["rounds"]] == [CLIENTS] * ROUNDS
