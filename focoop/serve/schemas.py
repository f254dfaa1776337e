"""The documents of the API, as its OpenAPI description lists them."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


def _example(**values: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [values]})


class ClassProbability(BaseModel):
    """A class with its probability."""

    label: str
    probability: float = Field(ge=0, le=1.0001)
    own: bool = Field(description="Whether the client that was asked holds the class.")
    holders: list[str] = Field(description="Clients that hold it; empty where not told.")


class PredictedImage(BaseModel):
    """The answer to one image."""

    source: str = Field(description="The file's name.")
    verdict: Literal["own", "other", "known", "unknown"] = Field(
        description="own: a class of this client. other: a class that only other clients hold. "
        "known: a class of the federation (global model). unknown: nobody's."
    )
    label: str | None = Field(description="The class; null where the verdict is unknown.")
    probability: float
    score: float = Field(description="How foreign the image looks; higher means more OOD.")
    p_value: float | None = Field(
        description="Share of calibration images that look at least as foreign."
    )
    threshold: float | None = Field(description="Scores above this are unknown.")
    top: list[ClassProbability]
    class_set: list[str] | None = Field(
        description="Classes among which the right one is, with the calibrated coverage, if the "
        "image is of a known class: show none where the verdict is unknown."
    )
    nearest_id: str
    nearest_ood: str | None


class PredictAnswer(BaseModel):
    """Answers to the images of a request, in their order."""

    model_config = _example(
        model="focoop_plus",
        client="3",
        open_share=0.5,
        predictions=[
            {
                "source": "scan.png",
                "verdict": "own",
                "label": "whale",
                "probability": 0.93,
                "score": 1.7,
                "p_value": 0.62,
                "threshold": 3.9,
                "top": [{"label": "whale", "probability": 0.93, "own": True, "holders": ["3"]}],
                "class_set": ["whale"],
                "nearest_id": "whale",
                "nearest_ood": "granite",
            }
        ],
    )

    model: str
    client: str
    open_share: float | None
    predictions: list[PredictedImage]


class Explanation(BaseModel):
    """Where in an image a class is."""

    model_config = _example(
        model="focoop_plus", label="whale", rows=2, columns=2, values=[[0.12, 0.31], [-0.04, 0.08]]
    )

    model: str
    label: str
    rows: int
    columns: int
    values: list[list[float]] = Field(description="Similarities, row by row from the top left.")


class DriftReport(BaseModel):
    """Flagged images of the last window, beside what calibration lets expect."""

    images: int
    flagged: int
    expected: float | None
    low: int
    high: int
    state: Literal["unknown", "too few", "as calibrated", "more foreign", "fewer foreign"]


class Histogram(BaseModel):
    """Scores of calibration images in bars of equal width."""

    low: float
    high: float
    counts: list[int]


class ClientDescription(BaseModel):
    """A client of a model."""

    name: str
    is_global: bool
    own_classes: list[str]
    threshold: float | None
    calibrated_on: int
    calibrated_by: str | None
    histogram: Histogram | None
    drift: DriftReport


class ModelDescription(BaseModel):
    """A model that is served."""

    name: str
    classes: list[str]
    keep: float | None = Field(description="Share of known images that thresholds keep.")
    open_share: float | None = Field(description="The model's own setting of the dial.")
    explains: bool = Field(description="Whether it gives heat maps.")
    usual: str = Field(description="The client that answers where a request names none.")
    clients: list[ClientDescription]


class Bounds(BaseModel):
    """What a request may hold."""

    images: int
    image_bytes: int
    request_bytes: int
    pixels: int
    formats: list[str]


class ModelList(BaseModel):
    """All models, and what a request may hold."""

    model_config = _example(
        models=[
            {
                "name": "focoop_plus",
                "classes": ["orange", "whale"],
                "keep": 0.95,
                "open_share": 0.5,
                "explains": True,
                "usual": "global",
                "clients": [
                    {
                        "name": "3",
                        "is_global": False,
                        "own_classes": ["whale"],
                        "threshold": 3.9,
                        "calibrated_on": 100,
                        "calibrated_by": "own",
                        "histogram": {"low": -2.0, "high": 6.0, "counts": [12, 55, 31, 2]},
                        "drift": {
                            "images": 200,
                            "flagged": 9,
                            "expected": 0.05,
                            "low": 1,
                            "high": 27,
                            "state": "as calibrated",
                        },
                    }
                ],
            }
        ],
        limits={
            "images": 32,
            "image_bytes": 20000000,
            "request_bytes": 67108864,
            "pixels": 25000000,
            "formats": ["JPEG", "PNG"],
        },
    )

    models: list[ModelDescription]
    limits: Bounds


class State(BaseModel):
    """A word about the server."""

    model_config = _example(status="ok")

    status: str


class BadImage(BaseModel):
    """An image that was refused."""

    index: int
    source: str
    reason: str


class Problem(BaseModel):
    """Why a request got no answer."""

    kind: str
    message: str
    images: list[BadImage]


class ErrorAnswer(BaseModel):
    """The document of every refusal."""

    model_config = _example(
        error={
            "kind": "image",
            "message": "1 of 2 images cannot be read",
            "images": [{"index": 1, "source": "b.jpg", "reason": "damaged"}],
        }
    )

    error: Problem
