"""The interface of a backbone: a frozen image tower and a frozen text tower that takes prompts."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from focoop.clip.image_features import ImageFeatures as ImageFeatures
from focoop.clip.image_features import LabelledFeatures as LabelledFeatures
from focoop.clip.text.tower import Names, TextTower
from focoop.errors import BackboneError


class Backbone(ABC):
    """A frozen vision-language model.

    Attributes:
        name: how a user names it, for example `mini` or `openclip:ViT-B-16:openai`.
        text: the frozen text tower.
        tokenize: texts -> (N, context_length) int64 tokens with SOT and EOT, zero padded.
        logit_scale: multiplies cosines in training losses (mini 30, released CLIP 100).
        fingerprint: hash of weights, architecture and preprocessing; part of every run's record.
        image_fingerprint: the same of all that image features depend on, the joint space included;
            features are cached and checked by it, so that they outlive a better text tower.
        patch_kinds: the patch features offered, default first (`lf_a`, `lf_b`, `lf_c`).
        image_size: side of the square input in pixels.
        pixel_type: of what `prepare` gives.
        text_alone: whether there is no image tower, so that features come from elsewhere.
    """

    name: str
    text: TextTower
    tokenize: Callable[[Sequence[str]], Tensor]
    logit_scale: float
    fingerprint: str
    image_fingerprint: str
    patch_kinds: tuple[str, ...]
    image_size: int
    pixel_type: torch.dtype = torch.float32
    text_alone: bool = False

    @property
    def dim(self) -> int:
        """Return the width D of the joint space."""
        return self.text.dim

    @property
    def width(self) -> int:
        """Return the width d_t of the text tower's token embeddings, hence of contexts."""
        return self.text.width

    @property
    def device(self) -> torch.device:
        """Return where the towers live."""
        return self.text.device

    @property
    def patch_projection(self) -> Tensor | None:
        """Return the frozen matrix (D', D) that follows a method's own one on `lf_c` patches.

        It is None where patches lie in the joint space already.
        """
        return None

    def no_image_tower(self) -> BackboneError:
        """Make the error about images that a text tower alone cannot encode.

        Returns:
            The error, to be raised.
        """
        return BackboneError(
            f"{self.name} has a text tower and no image tower, so it encodes no images: give "
            "features of its joint space (data.id, data.ood: file:PATH.safetensors), or take a "
            "backbone with both towers, such as openclip:ViT-B-32:openai"
        )

    @abstractmethod
    def preprocess(self, image: Any) -> Tensor:
        """Prepare an image for `encode_images`.

        Args:
            image: A PIL image.

        Returns:
            Pixels (3, image_size, image_size) float32.
        """

    @abstractmethod
    def describe_pixels(self) -> dict[str, Any]:
        """Say how `prepare` makes pixels of an image, for programs that have no focoop.

        Returns:
            What docs/reference/model-format.md lists: `size`, `channels`, `layout`, `dtype`,
            `crop`, `resize`, `filter`, `scale`, `mean`, `std`, `normalised`.
        """

    def prepare(self, image: Any) -> Tensor:
        """Prepare an image for its way to the device; `encode_images` takes this form too.

        Args:
            image: A PIL image.

        Returns:
            Pixels (3, image_size, image_size), perhaps as bytes.
        """
        return self.preprocess(image)

    @abstractmethod
    def encode_images(self, batch: Tensor, patches: str | None = None) -> ImageFeatures:
        """Encode preprocessed images.

        Args:
            batch: Images (N, 3, H, W).
            patches: One of `patch_kinds`, or None for pooled features alone.

        Returns:
            Unit features on the CPU in float32.
        """

    def names(self, names: Sequence[str], *, period: bool = True) -> Names:
        """Prepare class names or words for `encode_prompts`; underscores become spaces.

        Args:
            names: The names.
            period: End each name with a period.

        Returns:
            Names ready to be prompted.
        """
        return self.text.prepare(self.tokenize, names, period=period)

    def encode_prompts(self, contexts: Tensor, names: Names) -> Tensor:
        """Encode prompts; the result is differentiable in the contexts.

        Args:
            contexts: One context (n, d_t) for all names, or one for each (N, n, d_t).
            names: N names.

        Returns:
            Unit features (N, D).
        """
        tower: TextTower = self.text
        out: Tensor = tower(contexts, names)
        return out

    def embed(self, text: str) -> Tensor:
        """Return the embeddings of a text's tokens, without SOT and EOT.

        Args:
            text: The text.

        Returns:
            Embeddings (n, d_t).
        """
        tokens = self.tokenize([text])[0]
        ids = tokens[1 : int(tokens.argmax())].to(self.device)  # the EOT has the largest id
        with torch.no_grad():
            embedded: Tensor = self.text.tok(ids)
        return embedded.float()

    def encode_texts(self, texts: Sequence[str], batch_size: int = 1024) -> Tensor:
        """Encode plain texts, without gradient.

        Args:
            texts: The texts; a single one is a list of one.
            batch_size: Texts at once.

        Returns:
            Unit features (N, D).
        """
        texts = [texts] if isinstance(texts, str) else texts
        return self.text.encode_tokens(self.tokenize(texts), batch_size=batch_size)
