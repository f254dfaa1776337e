"""CUDA graphs: a step of fixed shapes is recorded once and replayed, without the launches.

A step is a pure function of named tensors. On a CPU, and until a shape has come up often enough, it
runs as written; what cannot be recorded (it waits for the device) goes on running as written.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch

from focoop.methods._base import Params

Step = Callable[[Params], Params]
Key = tuple[tuple[str, torch.Size, torch.dtype], ...]

# Recording costs about as much as three steps: shapes seen less often are not worth it.
WORTH_RECORDING = 3


@dataclass(frozen=True)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    inputs: Params
    outputs: Params


class Graphs:
    """The recorded steps of one run, by the shapes of their inputs."""

    def __init__(self, step: Step, *, record: bool = True) -> None:
        self.step = step
        self.record = record
        self.seen: Counter[Key] = Counter()
        self.recorded: dict[Key, _Recorded | None] = {}

    def __call__(self, inputs: Params) -> Params:
        """The step's outputs, valid until the next call of the same shapes."""
        device = next(iter(inputs.values())).device
        if device.type != "cuda" or not self.record:
            return self.step(inputs)
        key = tuple((name, value.shape, value.dtype) for name, value in sorted(inputs.items()))
        self.seen[key] += 1
        if self.seen[key] < WORTH_RECORDING:
            return self.step(inputs)
        if key not in self.recorded:
            self.recorded[key] = self._record(inputs)
        found = self.recorded[key]
        if found is None:
            return self.step(inputs)
        for name, value in inputs.items():
            found.inputs[name].copy_(value)
        found.graph.replay()
        return found.outputs

    def _record(self, inputs: Params) -> _Recorded | None:
        still = {name: value.clone() for name, value in inputs.items()}
        graph = torch.cuda.CUDAGraph()
        try:
            # The step has run on the default stream before, but recording uses another.
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.step(still)
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                outputs = self.step(still)
        except RuntimeError:
            torch.cuda.synchronize()
            return None
        return _Recorded(graph, still, outputs)
