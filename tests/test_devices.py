"""Runs on a GPU learn what runs on a CPU learn, for every method: `make test-gpu`."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from focoop.methods import available
from tests.toy_command import call
from tests.toy_setting import write_setting

TRAINED = [name for name, kind in available().items() if kind.trains and not kind.patch_kind]


def run_on(device: str, method: str, folder: Path, precision: str) -> tuple[float, Path]:
    """The last loss of a short run, and its run folder."""
    setting = write_setting(folder / "data", rounds=2)
    out = folder / f"{device}-{precision}"
    words = folder / "words.txt"
    words.write_text("anvil\nbridge\ncandle\ndune\nfern\ngate\nharp\nhinge\n")
    given = [f"method.name={method}", f"negatives.words={words}", "negatives.count=6"]
    given += [f"backbone.precision={precision}"]
    options = [f"--set={text}" for text in given]
    done = call("run", str(setting), f"--device={device}", "--out", str(out), *options)
    assert done.exit_code == 0, done.output
    return json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])["loss"], out


@pytest.mark.gpu
@pytest.mark.parametrize("method", TRAINED)
def test_a_gpu_learns_what_a_cpu_learns(method: str, tmp_path: Path) -> None:
    expected, there = run_on("cpu", method, tmp_path, "float32")
    loss, here = run_on("cuda", method, tmp_path, "float32")
    # Sums in another order, over two rounds of a few steps; TF32 is not used.
    assert loss == pytest.approx(expected, rel=1e-2)
    tensors, others = (load_file(path / "state.safetensors") for path in (here, there))
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(tensor, others[name], rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["promptfl", "focoop"])
def test_bfloat16_learns_nearly_the_same(method: str, tmp_path: Path) -> None:
    expected, _ = run_on("cpu", method, tmp_path, "float32")
    loss, _ = run_on("cuda", method, tmp_path, "auto")
    assert loss == pytest.approx(expected, rel=5e-2)  # eight bits of a product, over a few steps
