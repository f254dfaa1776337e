"""What a model says about an image: a class of this client, of another client, or nobody's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from focoop.errors import MissingExtra

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from pandas import DataFrame

# The verdicts. A client's model says OWN, OTHER or UNKNOWN; the global model, which has no classes
# of its own, says KNOWN or UNKNOWN.
OWN, OTHER, KNOWN, UNKNOWN = "own", "other", "known", "unknown"
VERDICTS = (OWN, OTHER, KNOWN, UNKNOWN)


@dataclass(frozen=True)
class ClassProbability:
    """A class with its probability.

    Attributes:
        label: The class name.
        probability: Its share among all classes, from 0 to 1.
        own: Whether the client that was asked has training images of it.
        holders: Names of the clients that have training images of it; empty where the run does not
            say who holds what.
    """

    label: str
    probability: float
    own: bool
    holders: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prediction:
    """The answer to one image.

    Attributes:
        source: The file's name, or `image 3` for the fourth of images without a name.
        verdict: `own`: a class of this client; `other`: a class that only other clients hold;
            `known`: a class of the federation (global model); `unknown`: nobody's, no answer.
        label: The class; None where the verdict is `unknown`.
        probability: Probability of the best class among all classes, under the prior `open_share`.
            It says how sure the model is *if* the image is of a known class.
        score: How foreign the image looks: higher means more OOD.
        p_value: Share of calibration images that look at least as foreign; small: foreign. None
            where the model is not calibrated.
        threshold: The answer is `unknown` where `score` is above this; None: never.
        top: The best classes, most probable first.
        class_set: Classes among which the right one is with the calibrated coverage, *if* the image
            is of a known class: not to be shown to people where the verdict is `unknown`. None
            where the model is not calibrated.
        nearest_id: The class whose prompt is nearest, before any prior.
        nearest_ood: The word of the nearest OOD prompt; None for methods without OOD prompts.
        heat_map: (h, w) how much more each patch resembles the best class than all classes; None
            where it was not asked for.
    """

    source: str
    verdict: str
    label: str | None
    probability: float
    score: float
    p_value: float | None
    threshold: float | None
    top: tuple[ClassProbability, ...]
    class_set: tuple[str, ...] | None
    nearest_id: str
    nearest_ood: str | None
    heat_map: NDArray[np.float32] | None = field(default=None, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain values for JSON; the heat map is left out."""
        plain = {part.name: getattr(self, part.name) for part in fields(self) if part.compare}
        plain["top"] = [{**asdict(entry), "holders": list(entry.holders)} for entry in self.top]
        plain["class_set"] = None if self.class_set is None else list(self.class_set)
        return plain


class Predictions(list[Prediction]):
    """The answers to several images, in the order of the images."""

    def __init__(self, answers: Iterable[Prediction] = ()) -> None:
        super().__init__(answers)

    def to_pandas(self) -> DataFrame:
        """Return a pandas DataFrame with a row per image.

        Returns:
            The table; `holders`, `top` and `class_set` are texts.

        Raises:
            MissingExtra: pandas is not installed.
        """
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise MissingExtra("a DataFrame needs pandas: pip install pandas") from error
        return pandas.DataFrame([flat(answer) for answer in self], columns=list(COLUMNS))


COLUMNS = (
    "source",
    "verdict",
    "label",
    "holders",
    "probability",
    "score",
    "p_value",
    "threshold",
    "top",
    "class_set",
    "nearest_id",
    "nearest_ood",
)


def flat(answer: Prediction) -> dict[str, Any]:
    """Return an answer as one row of a table.

    Args:
        answer: The answer.

    Returns:
        Values by `COLUMNS`; several classes are one text, `cat 0.81; dog 0.12`. `holders` are those
        of the class that is the answer.
    """
    row = answer.to_dict()
    row["holders"] = "" if answer.label is None else "; ".join(answer.top[0].holders)
    row["top"] = "; ".join(f"{entry.label} {entry.probability:.4g}" for entry in answer.top)
    row["class_set"] = None if answer.class_set is None else "; ".join(answer.class_set)
    return row
