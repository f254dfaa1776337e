"""A model as one ONNX file: pixels in, probabilities, score and verdict out, checked after writing.

`onnx_facts` says what goes in and comes out; the file's metadata says it too.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from focoop.clip import Backbone, ImageFeatures
from focoop.errors import FocoopError, MethodError, MissingExtra, RunError
from focoop.features import patch_kind_of
from focoop.predict.calibration import GLOBAL, SiteCalibration
from focoop.predict.deciding import probabilities
from focoop.predict.export_folder import CARD, ONNX, ONNX_DATA, SUMS, write_sums
from focoop.predict.facts import Client
from focoop.predict.images import features_of
from focoop.predict.model import Model
from focoop.predict.onnx_facts import (
    ENTRY,
    FEATURES,
    OUTPUTS,
    PATCHES,
    PIXELS,
    SHARE,
    describe_graph,
    tell_card,
)
from focoop.predict.prediction import KNOWN, OTHER, OWN, UNKNOWN, VERDICTS
from focoop.predict.side import Side, expectation, plain_similarities
from focoop.seeds import torch_generator

if TYPE_CHECKING:
    from torch import Tensor

OPSET = 18
# Largest difference between the file's numbers and the model's own. Judging is done in float64;
# other kernels of the image tower round its features by about 1e-6, which the scale of similarities
# (30 to 100) makes larger.
NEAR, FAR = 1e-6, 1e-3  # from features on, from pixels on
TRACED, CHECKED = 7, 5  # images; a number that equals another size would be taken for it
WHOLE = 2**30  # bytes of weights from which they are a file of their own: ONNX ends at 2 GiB


class Graph(nn.Module):
    """The whole path from pixels, or from features, to the parts of an answer.

    Args:
        model: The model, on the CPU.
        side: A client's model.
        pixels: Whether the image tower is part of it.
    """

    def __init__(self, model: Model, side: Side, pixels: bool) -> None:
        super().__init__()
        self.method, self.task, self.side = model.method, model.task, side.wide
        self.scale = float(model.method.answer_scale(model.task))
        self.site = None if model.calibration is None else model.calibration.at(side.client)
        self.backbone: Backbone | None = None
        self.kind: str | None = None
        if pixels:
            self.backbone = model.backbone
            if model.method.patch_kind:
                self.kind = patch_kind_of(model.backbone, model.method.patch_kind)
            for name, part in vars(model.backbone).items():
                if isinstance(part, nn.Module) and part is not model.backbone.text:
                    self.add_module(f"tower_{name}", part)

    def forward(self, given: Tensor, open_share: Tensor, patches: Tensor | None = None) -> Any:
        """Answer images.

        Args:
            given: Pixels (N, 3, H, W), or pooled features (N, D).
            open_share: Share of images that are expected of any class, a scalar.
            patches: Patch features (N, P, D) where features are given and the method reads them.

        Returns:
            A tensor per output, in the order of `OUTPUTS`.
        """
        pooled = given
        if self.backbone is not None:
            encoded = self.backbone.encode_images(given, patches=self.kind)
            pooled, patches = encoded.pooled, encoded.patches
        side, pooled = self.side, pooled.double()
        patches = None if patches is None else patches.double()
        found = self.method.logits(side.text, pooled, patches)
        score = self.method.score(found, self.task).double()
        plain = plain_similarities(self.method, side, found, pooled, patches)
        share = open_share.clamp(0.0, 1.0)
        shifted = plain + expectation(self.method, self.task, side, share)
        chances = probabilities(shifted, self.scale)
        label = chances.argmax(dim=1)
        answer = [chances.float(), label, score, self.verdict(label, score)]
        if self.site is not None:
            answer.append(_p_values(self.site, score))
            if self.site.class_threshold is not None:
                usual = probabilities(found.id, self.scale)
                answer.append(_in_set(usual, self.site.class_threshold))
        return tuple(answer)

    def verdict(self, label: Tensor, score: Tensor) -> Tensor:
        """Return the verdicts' numbers in `VERDICTS`.

        Args:
            label: (N,) best classes.
            score: (N,) OOD scores.

        Returns:
            (N,) int64.
        """
        if self.side.client is None:
            named = torch.full_like(label, VERDICTS.index(KNOWN))
        else:
            own = (self.side.counts > 0)[label]
            named = torch.where(own, VERDICTS.index(OWN), VERDICTS.index(OTHER))
        if self.site is None or self.site.threshold is None:
            return named
        return torch.where(score > self.site.threshold, VERDICTS.index(UNKNOWN), named)


def _p_values(site: SiteCalibration, score: Tensor) -> Tensor:
    values, weights = torch.from_numpy(site.scores.values), torch.from_numpy(site.scores.weights)
    above = ((values >= score[:, None]) * weights.double()).sum(dim=1)
    return (1.0 + above) / (site.scores.count + 1.0)


def _in_set(chances: Tensor, limit: float) -> Tensor:
    """(N, C) the classes that are not ruled out; the most probable one always is in the set."""
    best = chances >= chances.amax(dim=1, keepdim=True)
    return (1.0 - chances <= limit) | best


@dataclass(frozen=True)
class Sample:
    """Images to trace and check a graph with: what goes in, by name, without `open_share`."""

    inputs: dict[str, Tensor]
    features: ImageFeatures

    def first(self, count: int) -> tuple[Tensor, ...]:
        """Return the first rows of each input.

        Args:
            count: How many.

        Returns:
            The rows.
        """
        return tuple(value[:count] for value in self.inputs.values())


def write_onnx(model: Model, path: Path, client: Client = None, *, pixels: bool = True) -> Path:
    """Write a client's model as an ONNX file, and check it with onnxruntime.

    Args:
        model: The model, on the CPU.
        path: The file; one that is there is replaced once the new one has been checked.
        client: The client that is asked; None: the usual one.
        pixels: Whether the image tower is part of the file; otherwise it takes features.

    Returns:
        The file.

    Raises:
        MissingExtra: onnx, onnxscript or onnxruntime is not installed.
        MethodError: The method cannot be written as a graph.
        RunError: The model is not on the CPU, or the file's answers are not the model's; then there
            is no file.
    """
    onnx, runtime = onnx_packages()
    if model.task.device.type != "cpu":
        raise RunError("ONNX files are written on the CPU: load_model(path, device='cpu')")
    side = model.side(client)
    graph = Graph(model, side, pixels).eval()
    sample = _sample(model, graph)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".onnx-", dir=path.parent) as folder:
            made = Path(folder) / path.name
            _trace(graph, sample, made, model)
            tree = _describe(onnx, made, model, graph)
            _check(runtime, made, model, side, sample, FAR if pixels else NEAR)
            for part in sorted(Path(folder).iterdir(), reverse=True):  # weights, then the graph
                os.replace(part, path.parent / part.name)
        if path.name == ONNX and (path.parent / SUMS).is_file():
            tell_card(path.parent, tree)
            write_sums(path.parent, [ONNX, ONNX_DATA, CARD])
    except OSError as error:
        raise RunError(f"cannot write {path}: {error}") from error
    return path


def onnx_packages() -> tuple[ModuleType, ModuleType]:
    """Import what ONNX files need.

    Returns:
        The modules onnx and onnxruntime.

    Raises:
        MissingExtra: One of them, or onnxscript, is not installed.
    """
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"an ONNX file needs {error.name}: pip install 'focoop[export]'"
        ) from error
    return onnx, onnxruntime


def _sample(model: Model, graph: Graph) -> Sample:
    """Random images, or random features of unit length, always the same."""
    draw, count = torch_generator(0, "onnx sample"), TRACED
    if graph.backbone is None:
        width = model.task.anchors.shape[1]
        pooled = torch.nn.functional.normalize(torch.randn(count, width, generator=draw), dim=-1)
        if not model.method.patch_kind:
            return Sample({FEATURES: pooled}, ImageFeatures(pooled, None))
        patches = torch.randn(count, _patches(model), width, generator=draw)
        patches = torch.nn.functional.normalize(patches, dim=-1)
        both = {FEATURES: pooled, PATCHES: patches}
        return Sample(both, ImageFeatures(pooled, patches))
    pixels = _pixels(graph.backbone, count, draw)
    return Sample({PIXELS: pixels}, features_of(pixels, graph.backbone, graph.kind))


def _pixels(backbone: Backbone, count: int, draw: torch.Generator) -> Tensor:
    size = (count, 3, backbone.image_size, backbone.image_size)
    if backbone.pixel_type == torch.uint8:
        return torch.randint(0, 256, size, generator=draw, dtype=torch.uint8)
    return torch.randn(size, generator=draw).clamp(-1, 1)


def _patches(model: Model) -> int:
    """How many patches the backbone makes of an image: a graph's transport has a fixed number."""
    kind = patch_kind_of(model.backbone, model.method.patch_kind)
    found = features_of(_pixels(model.backbone, 1, torch_generator(0)), model.backbone, kind)
    assert found.patches is not None
    return found.patches.shape[1]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's notes about its own workings from the user."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _trace(graph: Graph, sample: Sample, path: Path, model: Model) -> None:
    names, batch = list(sample.inputs), {0: torch.export.Dim.DYNAMIC}
    rest = sample.first(TRACED)[1:]
    weights = sum(value.numel() * value.element_size() for value in graph.parameters())
    has_set = graph.site is not None and graph.site.class_threshold is not None
    outputs = list(OUTPUTS)[: 4 + (graph.site is not None) + has_set]
    try:
        with _quiet(), torch.no_grad():
            graph(sample.first(TRACED)[0], torch.tensor(1.0), *rest)  # makes what is made once
            torch.onnx.export(
                graph,
                (sample.first(TRACED)[0], torch.tensor(1.0), *rest),
                str(path),
                dynamo=True,
                verbose=False,
                input_names=[names[0], SHARE, *names[1:]],
                output_names=outputs,
                opset_version=OPSET,
                dynamic_shapes=(batch, {}, *[batch] * len(rest)),
                external_data=weights > WHOLE,
            )
    except Exception as error:  # the exporter raises what it likes
        reason = _reason(error)
        raise MethodError(
            f"this model of {model.facts.method} cannot be written as an ONNX graph ({reason}): "
            "export it without ONNX"
        ) from error


def _reason(error: BaseException) -> str:
    """The first line of an error, or of the one of ours that is behind it."""
    behind: BaseException | None = error
    while behind is not None and not isinstance(behind, FocoopError):
        behind = behind.__cause__ or behind.__context__
    text = str(behind or error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _describe(onnx: ModuleType, path: Path, model: Model, graph: Graph) -> dict[str, Any]:
    """Give `open_share` its usual value and write into the file what it is."""
    made = onnx.load(str(path), load_external_data=False)
    usual = onnx.numpy_helper.from_array(np.array(model.open_share, np.float32), SHARE)
    made.graph.initializer.append(usual)
    names = [value.name for value in (*made.graph.input, *made.graph.output)]
    tree = describe_graph(model, graph.side.client, graph.backbone, names)
    entry = made.metadata_props.add()
    entry.key, entry.value = ENTRY, json.dumps(tree, ensure_ascii=False)
    onnx.save(made, str(path))
    onnx.checker.check_model(str(path))
    return tree


def _check(
    runtime: ModuleType, path: Path, model: Model, side: Side, sample: Sample, far: float
) -> None:
    """Compare the file's answers with the model's, for another number of images than traced."""
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    asked = GLOBAL if side.client is None else side.client
    given = {name: value[:CHECKED].numpy() for name, value in sample.inputs.items()}
    for share in (None, 0.3):
        known = {} if share is None else {SHARE: np.array(share, np.float32)}
        names = [output.name for output in session.get_outputs()]
        found = dict(zip(names, session.run(None, {**given, **known}), strict=True))
        wanted = model.decide(
            sample.features, client=asked, open_share=share, top=len(model.classes)
        )
        for place, answer in enumerate(wanted[:CHECKED]):
            chances = {entry.label: entry.probability for entry in answer.top}
            expected = [chances[name] for name in model.classes]
            apart = np.abs(found["probabilities"][place] - expected).max()
            score = abs(float(found["score"][place]) - answer.score) / max(1.0, abs(answer.score))
            if not (apart <= far and score <= far):
                raise RunError(
                    f"the ONNX file does not answer as the model does (probabilities differ by "
                    f"{apart:.2g}, scores by {score:.2g}), so that it was not kept: please report "
                    f"it with the versions of torch ({torch.__version__}) and onnxruntime "
                    f"({runtime.__version__})"
                )
