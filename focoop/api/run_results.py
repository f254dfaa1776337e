"""What a run has found: metrics as tables, prompts, text features, logits and scores as arrays."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from focoop.api.frames import pandas
from focoop.clip import LabelledFeatures
from focoop.config import RunConfig
from focoop.errors import ConfigError, DataError, RunError, nearest
from focoop.experiments import OpenedRun, open_state, tables, with_score
from focoop.federation import Evaluation
from focoop.functional import scores
from focoop.methods import Logits, Text
from focoop.runs import RunFolder, answers_from_outside

if TYPE_CHECKING:
    from pandas import DataFrame

Array = np.ndarray[Any, Any]
Score = str | Callable[[scores.Inputs], Tensor]
ImageSource = str | LabelledFeatures | Array


class Run:
    """A run in its folder: settings, metrics, and what every client's model answers.

    Reading metrics and stored prompts needs nothing but the folder. Text features, logits, scores
    and a new evaluation open the run's backbone and data once, after a check that they are still
    what the run was trained with.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._opened: OpenedRun | None = None
        self.evaluated_round = -1  # the round that `evaluate` looked at last

    def __repr__(self) -> str:
        method, last = self.config.method.label, max(self.last_round, 0)
        return f"Run({str(self.path)!r}, method={method!r}, {self.status}, round {last})"

    @property
    def path(self) -> Path:
        """Return the run folder."""
        return self._folder.path

    @property
    def config(self) -> RunConfig:
        """Return the resolved settings; `run.config.method.settings` are the method's own."""
        return self._folder.config

    @property
    def status(self) -> str:
        """Return `finished`, `failed`, `interrupted`, `running` or `killed`."""
        return self._folder.status

    @property
    def last_round(self) -> int:
        """Return the last committed round; 0 is the state before training, -1 nothing at all."""
        return self._folder.last_round()

    @property
    def class_names(self) -> tuple[str, ...]:
        """Return the class names in the order of the labels."""
        return self._folder.class_names

    @property
    def client_names(self) -> tuple[str, ...]:
        """Return the names of the clients in the order of their numbers.

        Empty in folders of focoop < 0.1.
        """
        return () if self._folder.names is None else self._folder.client_names

    @property
    def negative_words(self) -> tuple[str, ...]:
        """Return the words of the OOD prompts; empty for methods that use none."""
        return self._folder.negative_words

    @property
    def notes(self) -> list[str]:
        """Return what it told when it began: what it leaves out, and what its method lacks."""
        return [*self._folder.notes]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Return every evaluated round in order: its number, the summary, and a row per client."""
        return self._folder.metrics()

    @property
    def summary(self) -> dict[str, Any]:
        """Return the last evaluation, over all clients.

        Raises:
            RunError: No round is evaluated yet.
        """
        return {name: value for name, value in self._last().items() if name != "clients"}

    @property
    def clients(self) -> list[dict[str, Any]]:
        """Return the last evaluation, client by client, each with its `name`.

        Raises:
            RunError: No round is evaluated yet.
        """
        names, rows = self.client_names, self._last()["clients"]
        return [{**row, "name": names[row["client"]] if names else ""} for row in rows]

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """Return every trained round.

        Participants, bytes, seconds, and the loss where it is known.
        """
        losses = {line["round"]: line.get("loss") for line in self.metrics}  # of older folders
        trained = [entry for entry in self._folder.manifest.get("rounds", []) if entry["round"]]
        return [{"loss": losses.get(entry["round"]), **entry} for entry in trained]

    def frame(self, of: str = "rounds") -> "DataFrame":
        """Return metrics as a pandas DataFrame.

        Args:
            of: `rounds`, a row per evaluated round; `clients`, a row per client and evaluated
                round; or `traffic`, a row per trained round. Nested values become columns such as
                `ood.dtd_32px.auroc`.

        Returns:
            The table.

        Raises:
            MissingExtra: pandas is not installed.
            ConfigError: `of` is something else.
        """
        if of == "rounds":
            rows = [{k: v for k, v in line.items() if k != "clients"} for line in self.metrics]
        elif of == "clients":
            rows = [{"round": m["round"], **row} for m in self.metrics for row in m["clients"]]
        elif of == "traffic":
            rows = self.rounds
        else:
            raise ConfigError(f"there is no table {of!r}{nearest(of, FRAMES)}")
        return pandas().json_normalize(rows)

    def prompts(self, client: int | str | None = None) -> dict[str, Array]:
        """Return the learned tensors of a model by name, such as `context` (n, d_t).

        Args:
            client: Number or name of a client, whose private tensors are among them; None: the
                shared tensors alone.

        Returns:
            Arrays by name; what they are is said in the method's own documentation.

        Raises:
            RunError: Nothing is committed, or there is no such client.
        """
        self._folder.require_models()
        committed = self._folder.resume_point()
        if committed is None:
            raise RunError(f"{self.path} has no committed round yet: run it first")
        if client is None:
            return {name: _array(tensor) for name, tensor in committed.shared.items()}
        number = self._client(client)
        private = self._folder.private.load(number)
        if private is None and self._folder.private.clients():  # has not trained yet
            return {name: _array(tensor) for name, tensor in self._state().params(number).items()}
        return {n: _array(tensor) for n, tensor in {**committed.shared, **(private or {})}.items()}

    def text_features(self, client: int | str | None = None) -> dict[str, Array]:
        """Return the text side of a client's model.

        Args:
            client: Number or name of a client; needed where the method keeps private prompts.

        Returns:
            `id` (C, D) unit features of the classes, `ood` (U, D) of the negative words where the
            method has some, and the method's own parts.
        """
        text = self._text(client)
        tensors = {"id": text.id, **({} if text.ood is None else {"ood": text.ood}), **text.parts}
        return {name: _array(tensor) for name, tensor in tensors.items()}

    def logits(
        self, images: ImageSource = "test", client: int | str | None = None
    ) -> dict[str, Array]:
        """Return cosines of images with a client's prompts, not yet scaled.

        Args:
            images: `test`, `train` (the client's), an OOD set of the run by its name in the metrics
                (`dtd_32px`), a corrupted set (`brightness@3`), a `FeatureSet`, or (N, D) unit
                features.
            client: Number or name of a client; needed where the method keeps private prompts.

        Returns:
            `id` (N, C), and `ood` (N, U) where the method has OOD prompts.
        """
        chunks: dict[str, list[Array]] = {}
        for logits in self._answers(images, client):
            chunks.setdefault("id", []).append(_array(logits.id))
            if logits.ood is not None:
                chunks.setdefault("ood", []).append(_array(logits.ood))
        return {name: np.concatenate(parts) for name, parts in chunks.items()}

    def predictions(self, images: ImageSource = "test", client: int | str | None = None) -> Array:
        """Return the predicted class of each image, (N,) indices into `class_names`.

        Args:
            images: As in `logits`.
            client: As in `logits`.

        Returns:
            Indices (N,).
        """
        parts = [_array(logits.id.argmax(dim=1)) for logits in self._answers(images, client)]
        return np.concatenate(parts)

    def scores(
        self,
        images: ImageSource = "test",
        client: int | str | None = None,
        *,
        score: Score | None = None,
    ) -> Array:
        """Return how foreign each image looks to a client's model: higher means more OOD.

        Args:
            images: As in `logits`.
            client: As in `logits`.
            score: A score by name (`"energy"`), or a function of `focoop.scores.Inputs`; by
                default the method's own.

        Returns:
            (N,) scores.
        """
        scenario = self._state().scenario
        method = scenario.method if score is None else with_score(scenario.method, score)
        with torch.no_grad():
            parts = [
                _array(method.score(logits, scenario.task))
                for logits in self._answers(images, client)
            ]
        return np.concatenate(parts)

    def score_frame(self, *names: str, score: Score | None = None) -> "DataFrame":
        """Return the scores of images under all clients' models as one pandas DataFrame.

        Args:
            *names: Sets of images, as in `images`; by default the test images and all OOD sets.
            score: As in `scores`.

        Returns:
            A row per client and image: `client`, `name` of the client, `set`, `row` in the set,
            `label`, `own` (whether it is a test image of the client), `score`.

        Raises:
            MissingExtra: pandas is not installed.
        """
        sets, named = self._state().scenario.sets, self.client_names
        parts = []
        for client, own in enumerate(sets.test.index):
            for name in names or ("test", *sets.ood):
                rows = np.arange(len(labels := self.images(name, client).labels))
                told = {"client": client, "name": named[client] if named else "", "set": name}
                told |= {"row": rows, "label": labels.numpy()}
                told |= {"own": np.isin(rows, own) & (name == "test")}
                found = self.scores(name, client, score=score)
                parts.append(pandas().DataFrame({**told, "score": found}))
        return pandas().concat(parts, ignore_index=True)

    def images(self, name: str = "test", client: int | str | None = None) -> LabelledFeatures:
        """Return the features of a set that the run trained on or is measured on.

        Args:
            name: `train`, `test`, an OOD set or a corrupted set, as in `logits`.
            client: Number or name of the client whose training images are meant; other sets are
                the same for all clients (`own_rows` says which test images are whose).

        Returns:
            `pooled` (N, D), `patches` or None, and `labels` (N,).

        Raises:
            ConfigError: Training images of no client are asked for.
            DataError: The run has no such set.
        """
        if name == "train":
            if client is None:
                raise ConfigError("training images are a client's: name one, as in client=0")
            return self._state().scenario.client(self._client(client))
        sets = self._state().scenario.sets
        known = {"test": sets.test.images, **sets.ood}
        known |= {name: owned.images for name, owned in sets.corrupted.items()}
        if name not in known:
            raise DataError(f"this run has no set {name!r}{nearest(name, known)}")
        return known[name]

    def own_rows(self, client: int | str) -> Array:
        """Return which rows of the test images belong to a client.

        Args:
            client: Number or name of a client.

        Returns:
            Row numbers of `images("test")`, and so of `scores("test", ...)`.
        """
        return self._state().scenario.sets.test.index[self._client(client)]

    def evaluate(
        self,
        *,
        score: Score | None = None,
        open_share: float | None = None,
        device: str | None = None,
        test_only: bool = False,
    ) -> Evaluation:
        """Evaluate the last committed state again, client by client.

        Args:
            score: A score by name, or a function of `focoop.scores.Inputs`, in the place of the
                method's own.
            open_share: Share of images that clients expect from any class, 0 to 1, in the place of
                the run's.
            device: A torch device; by default the run's.
            test_only: Neither open nor check the training images.

        Returns:
            `summary` over all clients and `clients`, a row each.

        Raises:
            RunError: Nothing is committed, or the data is not what the run was trained on.
            DataError: The test images or an OOD set cannot be opened.
            ConfigError: The method has no open share.
        """
        fresh = device is not None or test_only
        state = open_state(self._folder, device, test_only=test_only) if fresh else self._state()
        self.evaluated_round = state.round_index
        method = None if score is None else with_score(state.scenario.method, score)
        found = (
            state.evaluate(method) if open_share is None else state.evaluate_at(open_share, method)
        )
        outside = answers_from_outside(self.config) if score is None else score not in scores.SCORES
        if outside and (doubt := tables.doubt_sign(found.summary)):
            warnings.warn(doubt, stacklevel=2)
        return found

    def _last(self) -> dict[str, Any]:
        metrics = self.metrics
        if not metrics:
            raise RunError(f"{self.path} has no evaluated round yet: run it first")
        return metrics[-1]

    def _state(self) -> OpenedRun:
        """The committed state with its data, opened on first use."""
        if self._opened is None:
            self._opened = open_state(self._folder)
        return self._opened

    def _client(self, client: int | str) -> int:
        """A client's number."""
        names = self.client_names
        if isinstance(client, str):
            if client not in names:
                raise RunError(f"there is no client {client!r}{nearest(client, names)}")
            return names.index(client)
        if not 0 <= client < (len(names) or client + 1):
            raise RunError(f"there is no client {client}: they are 0 to {len(names) - 1}")
        return int(client)

    def _text(self, client: int | str | None) -> Text:
        state = self._state()
        if client is None and not state.same_for_all:
            raise ConfigError(
                f"{self.config.method.label} keeps private prompts, so every client has its own "
                "model: name one, as in client=0"
            )
        return state.text(0 if client is None else self._client(client))

    def _answers(self, source: ImageSource, client: int | str | None) -> Sequence[Logits]:
        """Logits of a client's model, chunk by chunk."""
        text = self._text(client)
        return self._state().answers(text, self._features(source, client))

    def _features(self, source: ImageSource, client: int | str | None) -> LabelledFeatures:
        if isinstance(source, str):
            return self.images(source, client)
        if not isinstance(source, LabelledFeatures):
            pooled = torch.as_tensor(np.asarray(source)).float()
            labels = torch.zeros(pooled.shape[:1], dtype=torch.int64)
            source = LabelledFeatures(pooled, None, labels)
        shape = tuple(source.pooled.shape)
        width = self._state().scenario.task.anchors.shape[1]
        if len(shape) != 2 or shape[1] != width:
            raise DataError(
                f"features must be (N, {width}), these are {shape}: encode the images with the "
                f"run's backbone, {self.config.backbone.name}"
            )
        return source


FRAMES = ("rounds", "clients", "traffic")


def open_run(path: str | Path, *, weights: str | Path | None = None) -> Run:
    """Open a run that was made before; no image and no backbone is needed for its metrics.

    Args:
        path: The run folder.
        weights: The backbone's weights, where they are no longer where they were.

    Returns:
        The run.

    Raises:
        RunError: The folder holds no run, or one that cannot be read; the message says why.
    """
    return Run(RunFolder.open(path).look_for_weights(weights))


def _array(tensor: Tensor) -> Array:
    return tensor.detach().cpu().numpy()
