"""CUDA graphs: a step of fixed shapes is recorded once and replayed, without the launches.

A step is a pure function of named tensors. On a CPU, and until a shape has come up often enough, it
runs as written; what cannot be recorded (it waits for the device) goes on running as written. All
graphs of a run share their memory: a step's intermediates are dead when the next one begins.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch

from focoop.methods._base import Params

Step = Callable[[Params], Params]
Key = tuple[tuple[object, ...], ...]

# Recording costs about as much as three steps: shapes seen less often are not worth it.
WORTH_RECORDING = 3
# Constants that take more values than this are inputs: each value would need a graph of its own.
CHANGES = 3


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
        self.pool: object = None
        self.values: set[Key] = set()
        self.seen: Counter[Key] = Counter()
        self.recorded: dict[Key, _Recorded | None] = {}

    def __call__(self, inputs: Params, constants: Params | None = None) -> Params:
        """The step's outputs, valid until the next call of the same shapes.

        `constants` stay on the host, where the step may look at them; it is recorded anew for
        other values, until there were too many: then they are inputs like all others.
        """
        device = next(iter(inputs.values())).device
        constants = constants or {}
        if device.type != "cuda" or not self.record:
            return self.step({**inputs, **constants})
        fixed: Key = tuple((name, *v.tolist()) for name, v in sorted(constants.items()))
        if len(self.values) <= CHANGES:
            self.values.add(fixed)
        if len(self.values) > CHANGES:
            inputs |= {name: value.to(device) for name, value in constants.items()}
            constants, fixed = {}, ()
        shapes: Key = tuple((name, v.shape, v.dtype) for name, v in sorted(inputs.items()))
        key = shapes + fixed
        self.seen[key] += 1
        if self.seen[key] < WORTH_RECORDING:
            return self.step({**inputs, **constants})
        if key not in self.recorded:
            self.recorded[key] = self._record(inputs, constants)
        found = self.recorded[key]
        if found is None:
            return self.step({**inputs, **constants})
        for name, value in inputs.items():
            found.inputs[name].copy_(value)
        found.graph.replay()
        return found.outputs

    def forget(self) -> None:
        """Give the graphs' memory back."""
        self.recorded.clear()
        self.seen.clear()
        self.pool = None

    def _record(self, inputs: Params, constants: Params) -> _Recorded | None:
        still = {name: value.clone() for name, value in inputs.items()}
        graph = torch.cuda.CUDAGraph()
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
        try:
            # The step has run on the default stream before, but recording uses another.
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.step({**still, **constants})
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):  # type: ignore[arg-type]
                outputs = self.step({**still, **constants})
        except torch.OutOfMemoryError:
            raise  # fewer clients may still be recorded
        except RuntimeError:
            torch.cuda.synchronize()
            return None
        return _Recorded(graph, still, outputs)
