"""Images in, answers out: decoded side by side, encoded in batches across requests."""

import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from focoop.data import rgb_from_bytes
from focoop.errors import ConfigError, nearest
from focoop.serve.batching import Batcher, QueueFull, Stopped
from focoop.serve.limits import Limits
from focoop.serve.served import Answer, Served, ServedModel
from focoop.threads import cores

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from focoop.clip import ImageFeatures

Found = TypeVar("Found")
TOP = 100  # classes that an answer lists, at most


@dataclass(frozen=True)
class Question:
    """How a request wants its images answered.

    Attributes:
        model: the model's name.
        client: a client's number; None: the global model.
        open_share: the dial between own classes (0) and those of others (1); None: the model's.
        top: how many classes an answer lists.
    """

    model: str
    client: int | None = None
    open_share: float | None = None
    top: int = 5


@dataclass(frozen=True)
class Answered:
    """An image's answer and how many images were encoded with it."""

    answer: Answer
    together: int


class Engine:
    """Answers images for all models; used by many threads at once.

    Args:
        models: The models by name; the first one answers where none is named.
        limits: Bounds of everything.
        on_batch: Told the size of every batch.
    """

    def __init__(
        self,
        models: dict[str, ServedModel],
        limits: Limits | None = None,
        on_batch: Callable[[int], None] | None = None,
    ) -> None:
        if not models:
            raise ConfigError("no model to serve: name a run folder or an exported model")
        self.limits = limits or Limits()
        self.served = {name: Served(name, model) for name, model in models.items()}
        self.on_batch = on_batch or (lambda images: None)
        self._inside, self._lock = 0, threading.Lock()
        self._decoders = ThreadPoolExecutor(min(4, cores()), "focoop-decode")
        self._batcher: Batcher[tuple[Tensor, Question], Answered] = Batcher(
            self._answer,
            batch=self.limits.batch,
            wait=self.limits.wait,
            queue=self.limits.queue,
            coming=lambda: self._inside,
        )
        # A heat map runs the tower: one at a time, so that answers do not wait for many.
        self._explainer = ThreadPoolExecutor(1, "focoop-explain")

    @property
    def ready(self) -> bool:
        """Return whether images are answered."""
        return self._batcher.alive

    @property
    def inside(self) -> int:
        """Return how many images are decoded or wait at this moment."""
        return self._inside

    def find(self, name: str | None) -> Served:
        """Find a model by name.

        Args:
            name: The name; None or empty: the first.

        Returns:
            The model.

        Raises:
            ConfigError: There is no such model.
        """
        if not name:
            return next(iter(self.served.values()))
        if name not in self.served:
            raise ConfigError(f"no model {name[:64]!r}{nearest(name[:64], self.served)}")
        return self.served[name]

    def admit(self, images: int) -> None:
        """Let images in, or refuse them at once; whoever lets them in calls `release`.

        Args:
            images: Their number.

        Raises:
            QueueFull: There is no room.
            Stopped: The engine has been told to stop.
        """
        with self._lock:
            if not self._batcher.alive:
                raise Stopped
            if self._inside + images > self.limits.queue:
                raise QueueFull
            self._inside += images

    def release(self, images: int) -> None:
        """Let others in.

        Args:
            images: How many were let in before.
        """
        with self._lock:
            self._inside -= images

    def prepare(self, content: bytes, served: Served) -> "Future[Tensor]":
        """Decode an image in a thread, and keep no more of it than the backbone takes.

        Args:
            content: The file's bytes.
            served: The model that will answer it.

        Returns:
            A future, which raises `focoop.data.RefusedImage` for what is no image within limits.
        """
        return self._submit(self._decoders, lambda: served.model.prepare(self._decoded(content)))

    def ask(self, prepared: "Sequence[Tensor]", question: Question) -> "list[Future[Answered]]":
        """Have images answered, in batches with those of others.

        Args:
            prepared: What `prepare` gave.
            question: How they are answered.

        Returns:
            A future for each image.
        """
        return self._batcher.ask(question.model, [(image, question) for image in prepared])

    def explain(
        self, content: bytes, served: Served, client: int | None, label: str
    ) -> "Future[NDArray[np.float32]]":
        """Say where in an image a class is.

        Args:
            content: The file's bytes.
            served: The model.
            client: Whose prompts are asked; None: the global ones.
            label: The class.

        Returns:
            A future of similarities (h, w).
        """

        def work() -> "NDArray[np.float32]":
            return served.model.heat_map(self._decoded(content), label, client)

        return self._submit(self._explainer, work)

    def stop(self) -> bool:
        """Take no more images, answer those that wait, and end.

        Returns:
            Whether all were answered within `Limits.stop_seconds`.
        """
        done = self._batcher.stop(self.limits.stop_seconds)
        for pool in (self._decoders, self._explainer):
            pool.shutdown(wait=False, cancel_futures=True)
        return done

    def _submit(self, pool: ThreadPoolExecutor, work: "Callable[[], Found]") -> "Future[Found]":
        try:
            return pool.submit(work)
        except RuntimeError as error:  # it was shut down meanwhile
            raise Stopped from error

    def _decoded(self, content: bytes) -> Any:
        limits = self.limits
        return rgb_from_bytes(content, pixels=limits.pixels, names=limits.formats)

    def _answer(
        self, group: Hashable, asked: "Sequence[tuple[Tensor, Question]]"
    ) -> Sequence[Answered]:
        """Encode all images of a batch at once; equal questions are decided at once too."""
        served = self.served[str(group)]
        features = served.model.encode([image for image, _ in asked])
        self.on_batch(len(asked))
        rows: dict[Question, list[int]] = {}
        for row, (_, question) in enumerate(asked):
            rows.setdefault(question, []).append(row)
        found: dict[int, Answered] = {}
        for question, places in rows.items():
            answers = served.model.decide(
                features if len(places) == len(asked) else _rows(features, places),
                client=question.client,
                open_share=question.open_share,
                top=question.top,
            )
            served.count(question.client, answers)
            for place, answer in zip(places, answers, strict=True):
                found[place] = Answered(answer, len(asked))
        return [found[row] for row in range(len(asked))]


def _rows(features: "ImageFeatures", places: list[int]) -> "ImageFeatures":
    from focoop.clip import ImageFeatures

    patches = None if features.patches is None else features.patches[places]
    return ImageFeatures(features.pooled[places], patches)
