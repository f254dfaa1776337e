"""Encoding that is killed, damaged or overtaken by another process."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from focoop.data import ImageSet, read_folder
from focoop.features.encoding import encode
from tests.features.test_encoding import ROOT, counting, plant_images


@pytest.fixture
def images(tmp_path: Path) -> ImageSet:
    return read_folder(plant_images(tmp_path / "images"), "test")


SLOW_RUN = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from focoop.data import read_folder
from focoop.features.encoding import encode
from tests.features.test_encoding import counting

images, cache, log = read_folder(sys.argv[2], "test"), Path(sys.argv[3]), Path(sys.argv[4])

def progress(done, total):
    with log.open("a") as stream:
        stream.write(f"{done}\\n")
    time.sleep(float(sys.argv[5]))

encode(images, counting(), cache_dir=cache, progress=progress, batch_size=2, shard_size=4)
"""


def start(images: ImageSet, cache: Path, log: Path, pause: float) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", SLOW_RUN, str(ROOT), str(images.root), str(cache), str(log)]
    return subprocess.Popen([*command, str(pause)])


@pytest.mark.slow
def test_a_killed_run_goes_on_after_its_last_shard(images: ImageSet, tmp_path: Path) -> None:
    cache, log = tmp_path / "c", tmp_path / "log"
    process = start(images, cache, log, pause=0.15)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:  # kill within the second shard of three
        if log.exists() and "6\n" in log.read_text():
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    shards = list(cache.rglob("[0-9]*.safetensors"))
    finished = 4 * len(shards)
    assert 4 <= finished < 12 and not list((cache / "features").glob("*.safetensors"))
    backbone = counting()
    steps: list[int] = []
    resumed = encode(
        images,
        backbone,
        cache_dir=cache,
        progress=lambda done, total: steps.append(done),
        batch_size=2,
        shard_size=4,
    )
    assert backbone.seen == 12 - finished and steps[0] == finished and steps[-1] == 12
    fresh = encode(images, counting(), cache_dir=tmp_path / "other")
    assert torch.equal(resumed.pooled, fresh.pooled) and resumed.sha256() == fresh.sha256()
    assert [path.suffix for path in (cache / "features").iterdir()] == [".safetensors"]


def test_a_damaged_shard_is_made_again(images: ImageSet, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode(images, counting(), cache_dir=tmp_path, progress=stop, batch_size=4, shard_size=4)
    shards = sorted(tmp_path.rglob("0*.safetensors"))
    assert len(shards) == 2
    shards[0].write_bytes(shards[0].read_bytes()[:-3])
    backbone = counting()
    encode(images, backbone, cache_dir=tmp_path, batch_size=4, shard_size=4)
    assert backbone.seen == 8


@pytest.mark.slow
def test_processes_that_encode_the_same_set_agree(images: ImageSet, tmp_path: Path) -> None:
    cache = tmp_path / "c"
    running = [start(images, cache, tmp_path / f"log{i}", pause=0.02) for i in range(2)]
    assert [process.wait(timeout=60) for process in running] == [0, 0]
    backbone = counting()
    got = encode(images, backbone, cache_dir=cache)
    assert backbone.seen == 0
    assert got.sha256() == encode(images, counting(), cache_dir=tmp_path / "alone").sha256()
    assert len(list((cache / "features").iterdir())) == 1


def test_another_process_that_finishes_first_is_not_an_error(
    images: ImageSet, tmp_path: Path
) -> None:
    whole = encode(images, counting(), cache_dir=tmp_path / "whole")
    finished = next((tmp_path / "whole" / "features").iterdir())
    slow, cache = counting(), tmp_path / "c"

    def overtaken(done: int, total: int) -> None:
        if done == 6:
            target = cache / "features" / finished.name
            target.write_bytes(finished.read_bytes())

    got = encode(images, slow, cache_dir=cache, progress=overtaken, batch_size=2, shard_size=4)
    assert slow.seen == 8 and torch.equal(got.pooled, whole.pooled)
