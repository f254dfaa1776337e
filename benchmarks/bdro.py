"""What Bi-level OOD Separations cost: one FOCoOp step by where and how the ascent runs.

    PYTHONPATH=. python benchmarks/bdro.py [mini|vit] [repeats]

A step is forward and backward of 100 class prompts and 100 OOD prompts with 32 images, 4 + 4 steps
of ascent, one client, one thread, float32; processor time, best of interleaved repeats. `vit` is a
text tower of ViT-B/16's size with random weights.
"""

import sys
import time

import torch
from gpu_world import REAL, TINY, features, make_task, make_tower

from focoop.clip import load_backbone
from focoop.methods.base import Batch, State, Task
from focoop.methods.focoop import FOCoOp, FOCoOpConfig
from focoop.seeds import torch_generator

VARIANTS = {
    "no ascent (bos=false)": FOCoOpConfig(bos=False),
    "feature space, the default": FOCoOpConfig(),
    "prompt space, reuse_slopes": FOCoOpConfig(space="prompt", reuse_slopes=True),
    "prompt space, as in the paper": FOCoOpConfig(space="prompt"),
}


def step(method: FOCoOp, state: State, batch: Batch, task: Task) -> float:
    """Processor seconds of one step."""
    leaves = {
        name: value.detach().clone().requires_grad_(value.is_floating_point())
        for name, value in {**state.shared, **state.private}.items()
    }
    noise = method.noise(len(batch.labels), task, torch_generator(0))
    began = time.process_time()
    text = method.encode(leaves, task)
    method.loss(leaves, text, batch, task, noise).backward()
    return time.process_time() - began


def main() -> None:
    size = sys.argv[1] if len(sys.argv) > 1 else "mini"
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if size == "mini":
        tower = load_backbone("mini").text
    else:
        tower = make_tower(REAL if size == "vit" else TINY, device)
    task = make_task(tower, 100, 100)
    batch = Batch(features(32, tower.dim, 0), None, torch.arange(32) % 10)
    methods = {name: FOCoOp(config) for name, config in VARIANTS.items()}
    states = {name: method.init(task, torch_generator(0)) for name, method in methods.items()}
    found: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(repeats):
        for name, method in methods.items():
            found[name].append(step(method, states[name], batch, task))
    base = min(found["feature space, the default"])
    for name, seconds in found.items():
        print(f"{name:32s} {1e3 * min(seconds):8.1f} ms  {min(seconds) / base:5.2f}x")


if __name__ == "__main__":
    main()
