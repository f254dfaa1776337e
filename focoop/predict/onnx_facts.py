"""What an ONNX file says of itself: how pixels are made of an image, its inputs, its outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from focoop.caching import write_whole
from focoop.predict.calibration import GLOBAL
from focoop.predict.export_folder import CARD, ONNX
from focoop.predict.prediction import VERDICTS

if TYPE_CHECKING:
    from focoop.clip import Backbone
    from focoop.predict.model import Model

ENTRY = "focoop"  # of the file's metadata
SHARE = "open_share"
PIXELS, FEATURES, PATCHES = "pixels", "features", "patches"
INPUTS = {
    PIXELS: "prepared images, as `preprocessing` says",
    FEATURES: "pooled features of the backbone, of length 1",
    PATCHES: "patch features of the backbone",
    SHARE: "optional: how much to expect other clients' classes, 0 to 1",
}
OUTPUTS = {
    "probabilities": "of the classes, in the order of `classes`",
    "label": "number of the most probable class",
    "score": "OOD score: higher means more foreign",
    "verdict": "number in `verdicts`; unknown where the score is above `threshold`",
    "p_value": "share of calibration images that look at least as foreign",
    "class_set": "whether the class is in the set that holds the right one, if the image is known",
}
READ = (
    "the file's first image, upright by its EXIF orientation, transparent parts laid on white, "
    "RGB, 8 bits a value"
)
HEADING = "## ONNX"


def describe_graph(
    model: Model, client: int | None, backbone: Backbone | None, names: list[str]
) -> dict[str, Any]:
    """Collect all that a program without focoop must know to use a graph.

    Args:
        model: The model.
        client: The client it answers for; None: the global model.
        backbone: The backbone in the graph; None where it takes features.
        names: Its inputs and outputs.

    Returns:
        A tree for JSON.
    """
    facts, calibration = model.facts, model.calibration
    site = None if calibration is None else calibration.at(client)
    return {
        "method": facts.method,
        "client": GLOBAL if client is None else facts.clients[client],
        "classes": list(facts.classes),
        "verdicts": list(VERDICTS),
        SHARE: model.open_share,
        "threshold": None if site is None else site.threshold,
        "keep": None if calibration is None else calibration.keep,
        "backbone": facts.backbone,
        "image_fingerprint": facts.image_fingerprint,
        "inputs": {name: INPUTS[name] for name in names if name in INPUTS},
        "outputs": {name: OUTPUTS[name] for name in names if name in OUTPUTS},
        "preprocessing": backbone and {"read": READ, **backbone.describe_pixels()},
    }


def tell_card(folder: Path, tree: dict[str, Any]) -> None:
    """Write into an exported model's card what its graph takes and gives.

    Args:
        folder: The exported model; what people changed in its card stays.
        tree: What `describe_graph` gave.
    """
    shown = {name: value for name, value in tree.items() if name != "classes"}
    text = (folder / CARD).read_text(encoding="utf-8").partition(f"\n{HEADING}\n")[0]
    said = (
        f"\n{HEADING}\n\n`{ONNX}` answers for `{tree['client']}`. Its metadata holds the facts "
        f"below, as JSON in the entry `{ENTRY}`, and the names of all classes in their order "
        "(`classes`; also `id2label` in `config.json`). The page *Format of an exported model* "
        "of focoop has a program for it that needs numpy, Pillow and onnxruntime alone.\n\n"
        f"```json\n{json.dumps(shown, indent=2, ensure_ascii=False)}\n```\n"
    )
    write_whole(folder / CARD, (text + said).encode())
