"""A trained model that can be asked about images: `focoop.load_model(path).predict(images)`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from focoop.clip import Backbone, ImageFeatures
from focoop.errors import BackboneError, ConfigError, DataError
from focoop.features import FeatureSet, patch_kind_of
from focoop.methods import Method, Task
from focoop.predict.calibration import Calibration
from focoop.predict.described import DescribedModel
from focoop.predict.facts import Client, Facts
from focoop.predict.heat_map import patch_similarities
from focoop.predict.images import OnBroken, encoded, joined, pictures
from focoop.predict.prediction import Prediction, Predictions
from focoop.predict.share import AUTO, likely_share, position, total_odds
from focoop.predict.side import Side, evidence, expectation
from focoop.progress import tell

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

CELLS = 2**22  # similarities of images, patches and prompts that are held at once


class Model(DescribedModel):
    """A model of a run or of an exported folder: encodes images and answers for any of its clients.

    Args:
        facts: What the model is.
        method: The method with its settings.
        task: The task; a saved model's has no text tower.
        sides: Gives the model of a client, or of nobody (None).
        keys: The clients it can answer for, and None for the global model.
        open_backbone: Loads the backbone when images are first encoded.
        calibration: Thresholds, or None.
        client: The client that is asked where a call names none; None: the global model.
    """

    def __init__(
        self,
        facts: Facts,
        method: Method,
        task: Task,
        sides: Callable[[int | None], Side],
        keys: Sequence[int | None],
        open_backbone: Callable[[], Backbone],
        calibration: Calibration | None = None,
        client: Client = None,
    ) -> None:
        super().__init__(facts, method, task, sides, keys, calibration, client)
        self._open_backbone = open_backbone

    @cached_property
    def backbone(self) -> Backbone:
        """Return the backbone, loaded when it is first needed.

        Returns:
            The backbone.

        Raises:
            BackboneError: It is not the one that the model was trained with.
        """
        backbone = self._open_backbone()
        if backbone.image_fingerprint != self.facts.image_fingerprint:
            raise BackboneError(
                f"the backbone {backbone.name} is not the one this model was trained with "
                f"(image fingerprint {backbone.image_fingerprint[:12]}, trained with "
                f"{self.facts.image_fingerprint[:12]}): give the weights of {self.facts.backbone} "
                "with --weights (weights= in Python)"
            )
        return backbone

    def encode(self, images: Any, *, patches: bool = False) -> ImageFeatures:
        """Encode images with the model's backbone; the text tower is not used.

        Args:
            images: A file or folder (path), a Pillow image, an array (H, W, 3) or (N, H, W, 3), a
                tensor (3, H, W) or (N, 3, H, W), a file's bytes, or any number of such images.
            patches: Keep patch features too; those that the method reads are always kept.

        Returns:
            `pooled` (N, D), and `patches` (N, P, D) or None.

        Raises:
            DataError: An image cannot be read, or there is none.
        """
        found = [part for _, part in self._encoded(images, patches, None)]
        if not found:
            raise DataError("there is no image to encode")
        return joined(found)

    def decide(
        self,
        features: ImageFeatures | Tensor | NDArray[Any],
        *,
        client: Client = None,
        open_share: float | str | None = None,
        top: int = 5,
        sources: Sequence[str] = (),
    ) -> Predictions:
        """Answer images whose features are known.

        Args:
            features: What `encode` gave, a `FeatureSet`, or (N, D) unit features.
            client: The client that is asked; None: the usual one.
            open_share: Share of images that the client expects of any class, 0 (own classes alone)
                to 1 (all alike); `auto`: estimated from these images (`estimate_open_share`);
                None: as the method was set up. Scores do not depend on it.
            top: How many classes to list in each answer.
            sources: Names of the images; by default `image 0`, `image 1`, ...

        Returns:
            An answer per image.

        Raises:
            ConfigError: `open_share` or `top` is out of range.
            DataError: The features do not fit the model.
        """
        if top < 1:
            raise ConfigError(f"top must be 1 or more, got {top}")
        given = self._features(features)
        if open_share == AUTO:
            open_share = self.estimate_open_share(given, client=client)
        share = position(open_share)
        side = self.side(client)
        judge = self.judge(side.client)
        names = list(sources) or [f"image {place}" for place in range(len(given.pooled))]
        if len(names) != len(given.pooled):
            raise DataError(f"{len(names)} names were given for {len(given.pooled)} images")
        device, answers, size = self.task.device, Predictions(), self.chunk(given, side)
        for first in range(0, len(names), size):
            rows = slice(first, first + size)
            pooled = given.pooled[rows].to(device)
            local = None if given.patches is None else given.patches[rows].to(device)
            found = evidence(self.method, self.task, side, pooled, local, share)
            usual = found
            if share is not None and judge.calibration is not None:
                usual = evidence(self.method, self.task, side, pooled, local)
            answers += judge.answers(found, usual.shifted, names[rows], top)
        return answers

    def predict(
        self,
        images: Any,
        *,
        client: Client = None,
        open_share: float | str | None = None,
        top: int = 5,
        explain: bool = False,
        on_broken: OnBroken | None = None,
    ) -> Predictions:
        """Answer images: a class of the client, a class of another client, or unknown.

        Args:
            images: As in `encode`.
            client: As in `decide`.
            open_share: As in `decide`; with `auto` all images are encoded before the first answer.
            top: As in `decide`.
            explain: Put a heat map of the best class into each answer.
            on_broken: Told of each image that cannot be read, which is then left out of the
                answers; by default the error is raised.

        Returns:
            An answer per image, in order.

        Raises:
            DataError: An image cannot be read.
        """
        side, answers = self.side(client), Predictions()
        batches = self._encoded(images, explain, on_broken)
        if open_share == AUTO:
            batches = list(batches)
            seen = [found for _, found in batches]
            open_share = self.estimate_open_share(joined(seen), client=client) if seen else None
        position(open_share)  # refused before images are encoded
        for names, found in batches:
            for place, answer in enumerate(
                self.decide(found, client=client, open_share=open_share, top=top, sources=names)
            ):
                if explain:
                    one = ImageFeatures(
                        found.pooled[place : place + 1],
                        None if found.patches is None else found.patches[place : place + 1],
                    )
                    answer = self._explained(answer, one, side)
                answers.append(answer)
        return answers

    def estimate_open_share(
        self, features: ImageFeatures | Tensor | NDArray[Any], *, client: Client = None
    ) -> float:
        """Estimate from unlabelled images which share of them is of any class of the federation.

        Images of one place, some twenty or more, tell how often it sees other clients' classes.
        Images that are unknown by the client's threshold take no part.

        Args:
            features: As in `decide`.
            client: The client that is asked; None: the usual one.

        Returns:
            The position of the dial, 0 to 1, at which these images are likeliest; the method's own
            for the global model, and where no image is known.
        """
        given, side = self._features(features), self.side(client)
        judge, device = self.judge(side.client), self.task.device
        if judge.own is None:
            return self.open_share
        threshold = None if judge.calibration is None else judge.calibration.threshold
        shifts = [expectation(self.method, self.task, side, share) for share in (0.0, 1.0)]
        logs: list[list[Tensor]] = [[], []]
        size = self.chunk(given, side)
        for first in range(0, len(given.pooled), size):
            rows = slice(first, first + size)
            local = None if given.patches is None else given.patches[rows].to(device)
            found = evidence(self.method, self.task, side, given.pooled[rows].to(device), local)
            known = found.score <= (math.inf if threshold is None else threshold)
            for shift, kept in zip(shifts, logs, strict=True):
                kept.append(total_odds(judge.scale * found.plain[known], judge.scale * shift))
        own, every = (torch.cat(kept) for kept in logs)
        return likely_share(own, every) if len(own) else self.open_share

    def heat_map(
        self, image: Any, label: str | None = None, *, client: Client = None
    ) -> NDArray[np.float32]:
        """Return how much more similar each patch of an image is to a class than to all classes.

        Args:
            image: One image, as in `encode`.
            label: The class; None: the best one.
            client: The client that is asked; None: the usual one.

        Returns:
            (h, w) similarities, rows from the top; the patches tile the square that the backbone
            sees.

        Raises:
            DataError: There is no such class.
        """
        features, side = self.encode(image, patches=True), self.side(client)
        if len(features.pooled) != 1:
            raise DataError(f"a heat map is of one image, not of {len(features.pooled)}")
        wanted = (
            label if label is not None else self.decide(features, client=client)[0].top[0].label
        )
        return self._map(features, side, wanted)

    def save(self, folder: str | Path, clients: Sequence[Client] | None = None) -> Path:
        """Write the model into a folder: `model.safetensors` and its card `README.md`.

        Args:
            folder: The folder, absent or empty, or one that holds an exported model.
            clients: Whose models to keep: numbers, names or `global`; None: all.

        Returns:
            The folder.
        """
        from focoop.predict.model_file import write_model

        return write_model(self, Path(folder), clients)

    def with_class(self, name: str, images: Any = None, *, client: Client = None) -> Model:
        """Return a model with one more class, known by its name or by images; nothing is trained.

        Args:
            name: The new class.
            images: Images of it, as in `encode`; None: its name alone.
            client: A client that holds it; None: nobody does.

        Returns:
            The new model. It is not calibrated, as all scores may change.
        """
        from focoop.predict.editing import add_class

        return add_class(self, name, images, client)

    def without_class(self, name: str) -> Model:
        """Return a model without a class; nothing is trained.

        Args:
            name: The class.

        Returns:
            The new model. It is not calibrated, as all scores may change.
        """
        from focoop.predict.editing import drop_class

        return drop_class(self, name)

    def renamed(self, name: str, new: str) -> Model:
        """Return a model in which a class has another name; all else stays, thresholds too.

        Args:
            name: The class.
            new: Its new name.

        Returns:
            The new model.
        """
        from focoop.predict.editing import rename_class

        return rename_class(self, name, new)

    def with_client(
        self,
        name: str,
        classes: Sequence[str] | Mapping[str, int] = (),
        *,
        images: str | FeatureSet | None = None,
    ) -> Model:
        """Return a model with one more client: the global model, and what this client expects.

        Args:
            name: The new client.
            classes: The classes that it holds, perhaps with their numbers of images.
            images: Its labelled images instead (`folder:PATH`, or features): they are counted.

        Returns:
            The new model. Other clients are calibrated as before, the new one is not.
        """
        from focoop.predict.editing import add_client

        return add_client(self, name, classes, images)

    def to_onnx(self, path: str | Path, *, client: Client = None, pixels: bool = True) -> Path:
        """Write one client's model as an ONNX file, from pixels to the verdict.

        The file is checked with onnxruntime; one that does not answer as this model is not kept.

        Args:
            path: The file.
            client: The client that is asked; None: the usual one.
            pixels: Whether the image tower is part of the file; otherwise it takes features.

        Returns:
            The file.
        """
        from focoop.predict.onnx_file import write_onnx

        return write_onnx(self, Path(path), client, pixels=pixels)

    def _encoded(self, images: Any, patches: bool, on_broken: OnBroken | None) -> Any:
        """Names and features of images, some at a time; progress is told."""
        kind = None
        if self.method.patch_kind:
            kind = patch_kind_of(self.backbone, self.method.patch_kind)
        elif patches:
            kind = next(iter(self.backbone.patch_kinds), None)
            if kind is None:
                raise BackboneError(f"{self.backbone.name} has no patch features: no heat map")
        wanted, done = pictures(images), 0
        for names, found in encoded(wanted, self.backbone, kind, on_broken):
            done += len(names)
            tell("encoding images", done, len(wanted))
            yield names, found

    def _features(self, features: Any) -> ImageFeatures:
        if isinstance(features, ImageFeatures):
            return features
        pooled = torch.as_tensor(features, dtype=torch.float32)
        width = self.task.anchors.shape[1]
        if pooled.ndim != 2 or pooled.shape[1] != width:
            raise DataError(f"features must be (N, {width}), these are {tuple(pooled.shape)}")
        return ImageFeatures(pooled, None)

    def chunk(self, features: ImageFeatures, side: Side) -> int:
        """Return how many images are answered at a time, so that their similarities fit memory.

        Args:
            features: The images.
            side: A client's model.

        Returns:
            Their number.
        """
        parts = (side.text.id, *side.text.parts.values())
        rows = sum(part.numel() // max(1, part.shape[-1]) for part in parts if part.dim() > 1)
        rows += 0 if side.text.ood is None else len(side.text.ood)
        if features.patches is not None:
            rows += features.patches.shape[1] * (rows + features.patches.shape[2])
        return max(1, min(4096, CELLS // max(1, rows)))

    def _explained(self, answer: Prediction, features: ImageFeatures, side: Side) -> Prediction:
        return replace(answer, heat_map=self._map(features, side, answer.top[0].label))

    def _map(self, features: ImageFeatures, side: Side, label: str) -> NDArray[np.float32]:
        assert features.patches is not None
        place = self.place(label)
        return patch_similarities(self.method, side, features, place, self.task.device)
