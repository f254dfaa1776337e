"""Trained models in the shape that a server needs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from focoop.errors import RunError
from focoop.predict import FILE, GLOBAL, Calibration, Model, Prediction, model_of_run, read_model
from focoop.runs import CONFIG, RunFolder
from focoop.threads import side_by_side

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from focoop.clip import ImageFeatures

PIECE = 2  # images through the tower at once on a core: more need more time each


class LoadedModel:
    """A trained model, ready for images: its backbone and all its sides are in memory.

    Args:
        model: The model.
        open_share: Position of the dial where a request names none; None: as the method was set up.
    """

    def __init__(self, model: Model, open_share: float | None = None) -> None:
        from focoop.features import patch_kind_of

        self._model = model
        self._backbone = model.backbone
        if self._backbone.text_alone:
            raise self._backbone.no_image_tower()  # at the start, not at the first image
        kind = model.method.patch_kind
        self._patches = patch_kind_of(model.backbone, kind) if kind else None
        self.classes: Sequence[str] = model.classes
        self.sides: Mapping[str, int | None] = dict(zip(model.sides, model.keys, strict=True))
        self.usual = next(name for name, key in self.sides.items() if key == model.client)
        self.calibration: Calibration | None = model.calibration
        self.open_share: float | None = model.open_share if open_share is None else open_share
        self._chosen = open_share
        self.explains = bool(model.backbone.patch_kinds)

    def own_classes(self, client: int | None) -> Sequence[str]:
        """Return a client's class names; of the global model none.

        Args:
            client: Its number.

        Returns:
            The names.
        """
        return () if client is None else self._model.own_classes(client)

    def prepare(self, image: Any) -> "Tensor":
        """Make an image as small as the backbone takes it.

        Args:
            image: A PIL image in RGB.

        Returns:
            Its pixels.
        """
        return self._backbone.prepare(image)

    def encode(self, prepared: "Sequence[Tensor]") -> "ImageFeatures":
        """Encode images; on a CPU a few at a time, on all its cores.

        Args:
            prepared: What `prepare` gave for each.

        Returns:
            Features of all, in order.
        """
        import torch

        from focoop.clip import ImageFeatures

        where = self._backbone.device
        size = PIECE if where.type == "cpu" else len(prepared)

        def piece(number: int) -> ImageFeatures:
            pixels = torch.stack(list(prepared[number * size : (number + 1) * size]))
            with torch.no_grad():  # of this thread
                return self._backbone.encode_images(pixels.to(where), patches=self._patches)

        if len(prepared) <= size:  # all cores for the one piece
            return piece(0)
        parts = side_by_side(piece, -(-len(prepared) // size), where)
        local = [part.patches for part in parts if part.patches is not None]
        return ImageFeatures(
            torch.cat([part.pooled for part in parts]), torch.cat(local) if local else None
        )

    def decide(
        self, features: "ImageFeatures", *, client: int | None, open_share: float | None, top: int
    ) -> Sequence[Prediction]:
        """Answer images.

        Args:
            features: What `encode` gave.
            client: For whom; None: the global model.
            open_share: Position of the dial; None: the usual one.
            top: How many classes are listed.

        Returns:
            An answer for each image.
        """
        side = GLOBAL if client is None else client
        open_share = self._chosen if open_share is None else open_share
        return self._model.decide(features, client=side, open_share=open_share, top=top)

    def heat_map(self, image: Any, label: str, client: int | None) -> "NDArray[np.float32]":
        """Say where in an image a class is.

        Args:
            image: A PIL image.
            label: The class.
            client: Whose prompts are asked; None: the global ones.

        Returns:
            Similarities (h, w).
        """
        return self._model.heat_map(image, label, client=GLOBAL if client is None else client)


def load(
    path: Path,
    device: str | None = None,
    open_share: float | None = None,
    weights: str | Path | None = None,
) -> LoadedModel:
    """Load a run folder or an exported model.

    Args:
        path: The folder.
        device: Torch device; by default that of the run, or the CPU.
        open_share: Position of the dial where a request names none; None: as the method was set up.
        weights: The backbone's weights, where they are no longer where they were.

    Returns:
        The model.

    Raises:
        RunError: The folder holds neither.
    """
    if (path / CONFIG).is_file() and not (path / FILE).is_file():
        folder = RunFolder.open(path).look_for_weights(weights)
        return LoadedModel(model_of_run(folder, device=device), open_share)
    if not path.is_file() and not (path / FILE).is_file():
        raise RunError(f"{path} holds no model: give a folder of focoop run or of focoop export")
    return LoadedModel(read_model(path, device=device, weights=weights), open_share)
