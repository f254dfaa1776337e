"""CUDA graphs: record a step of fixed shapes once, and replay it without launching every kernel.

A step is a pure function of named tensors. On a CPU, and until a shape has come up often enough, it
runs as written; what cannot be recorded (it waits for the device) goes on running as written. All
graphs of a run share their memory: a step's intermediates are dead when the next one begins.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import torch

from focoop.methods import Params

if TYPE_CHECKING:
    from torch import Tensor

Found = TypeVar("Found")
Step = Callable[[Params], Params]
Key = tuple[tuple[object, ...], ...]

# Recording costs about as much as three steps: shapes seen less often are not worth it.
WORTH_RECORDING = 3
# Constants that take more values than this are inputs: each value would need a graph of its own.
# Until they stay the same for so many steps: then they are worth a graph again. If they change
# nevertheless, twice as many steps are waited for the next time.
CHANGES, SETTLED = 3, 6


@dataclass(frozen=True)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    inputs: Params
    outputs: Params


class Settling:
    """Decides whether constants of a step change so seldom that each value is worth a recording."""

    def __init__(self) -> None:
        self.values: set[Key] = set()
        self.last: Key | None = None
        self.unchanged = 0  # steps with the same constants
        self.patience = SETTLED
        self.settled = False  # after many changes

    def worth(self, now: Key) -> bool:
        """Take note of the constants of the next step.

        Args:
            now: The constants.

        Returns:
            Whether they are worth a recording; otherwise they are inputs like all others.
        """
        if len(self.values) <= CHANGES:
            self.values.add(now)
        same = now == self.last
        if self.settled and not same:
            self.patience *= 2
        self.last, self.unchanged = now, self.unchanged + 1 if same else 0
        many = len(self.values) > CHANGES
        self.settled = many and self.unchanged >= self.patience
        return not many or self.settled


class Graphs:
    """The recordings of one step, by the shapes of its inputs."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.pool: object = None  # memory that the graphs share; none before the first of them
        self.settling = Settling()
        self.seen: Counter[Key] = Counter()
        self.recorded: dict[Key, _Recorded | None] = {}

    def __call__(self, inputs: Params, constants: Params | None = None) -> Params:
        """The step's outputs, valid until the next call of the same shapes.

        `constants` stay on the host, where the step may look at them; it is recorded anew for
        other values, until there were too many: then they are inputs like all others, until they
        stay as they are for some time.
        """
        device = next(iter(inputs.values())).device
        constants = constants or {}
        if device.type != "cuda":
            return self.step({**inputs, **constants})
        fixed: Key = tuple((name, *v.tolist()) for name, v in sorted(constants.items()))
        if not self.settling.worth(fixed):
            inputs |= {name: value.to(device) for name, value in constants.items()}
            constants, fixed = {}, ()
        shapes: Key = tuple((name, v.shape, v.dtype) for name, v in sorted(inputs.items()))
        key = shapes + fixed
        self.seen[key] += 1
        # Constants that have settled come up again: nothing is waited for.
        if self.seen[key] < WORTH_RECORDING and not self.settling.settled:
            return self.step({**inputs, **constants})
        if key not in self.recorded:
            self.recorded[key] = self._record(inputs, constants)
        recording = self.recorded[key]
        if recording is None:
            return self.step({**inputs, **constants})
        for name, value in inputs.items():
            recording.inputs[name].copy_(value)
        recording.graph.replay()
        return recording.outputs

    def _record(self, inputs: Params, constants: Params) -> _Recorded | None:
        still = {name: value.clone() for name, value in inputs.items()}
        graph = torch.cuda.CUDAGraph()
        collecting = gc.isenabled()
        gc.disable()  # another run's graphs, freed while this one records, would spoil it
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
        try:
            # The step has run on the default stream before, but recording uses another.
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.step({**still, **constants})
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(
                graph,
                pool=self.pool,  # type: ignore[arg-type]
                capture_error_mode="thread_local",
            ):
                outputs = self.step({**still, **constants})
        except torch.OutOfMemoryError:
            raise  # fewer clients may still be recorded
        except RuntimeError:
            torch.cuda.synchronize()
            return None
        finally:
            if collecting:
                gc.enable()
        return _Recorded(graph, still, outputs)


def branches(jobs: Sequence[Callable[[], Found]], device: torch.device) -> list[Found]:
    """Run jobs; on a GPU each has a stream, so that one fills what others leave idle.

    Jobs do not read each other's tensors. Gradients take the same streams as what they belong to.

    Args:
        jobs: The jobs.
        device: Where they compute.

    Returns:
        Their results.
    """
    if device.type != "cuda" or len(jobs) < 2:
        return [job() for job in jobs]
    main = torch.cuda.current_stream()
    results = []
    streams = [_stream(device, place) for place in range(len(jobs))]
    for job, stream in zip(jobs, streams, strict=True):
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            results.append(job())
    for stream in streams:
        main.wait_stream(stream)
    return results


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the host to the device, while the device goes on computing.

    Args:
        tensor: The tensor.
        device: The device.

    Returns:
        The tensor there.
    """
    if device.type != "cuda":
        return tensor.to(device)
    there = tensor if tensor.is_pinned() else tensor.pin_memory()
    main, aside = torch.cuda.current_stream(), _stream(device, -1)
    with torch.cuda.stream(aside):
        on_device = there.to(device, non_blocking=True)
    main.wait_stream(aside)
    on_device.record_stream(main)
    return on_device


@cache
def _stream(device: torch.device, place: int) -> torch.cuda.Stream:
    """The same for the same place: a stream's freed memory serves that stream alone."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
