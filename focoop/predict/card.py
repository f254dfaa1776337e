"""The card of an exported model: what it is, what it promises, where it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from focoop.methods import name_method
from focoop.predict.calibration import FROM_POOL, GLOBAL, SiteCalibration
from focoop.predict.model import Model

SHOWN = 200  # class names that a card lists


def card(model: Model, keys: Sequence[int | None]) -> str:
    """Write the card of a model.

    Args:
        model: The model.
        keys: The clients whose models are kept, None for the global one.

    Returns:
        Markdown with a header that the Hugging Face hub reads.
    """
    facts, origin = model.facts, model.facts.origin
    method = name_method(facts.method)
    parts = [
        _HEADER,
        f"# {method} on {origin.get('data', 'images')}",
        "",
        f"A model of a federation of {len(facts.clients)} clients: {_what(model)}. It says for an "
        "image: one of the client's own classes, a class of another client, or unknown.",
        "",
        "```python",
        "import focoop",
        "",
        'model = focoop.load_model("this folder")',
        '# from the hub: focoop.predict.HubModel.from_pretrained("me/this-model")',
        'model.predict(["image.jpg"])[0].verdict',
        "```",
        "",
        *_models(model, keys),
        *_origin(model),
        *_changes(origin.get("changes", [])),
        *_results(origin.get("metrics", {})),
        *_classes(model),
        *_use(model),
    ]
    return "\n".join(parts) + "\n"


_HEADER = """---
library_name: focoop
license: other
pipeline_tag: image-classification
tags: [focoop, federated-learning, prompt-learning, out-of-distribution-detection, clip]
---
"""


def _what(model: Model) -> str:
    """What the model's tensors are."""
    backbone, method = f"the frozen backbone `{model.facts.backbone}`", model.method
    name = f"the method `{model.facts.method}` of focoop"
    if method.closed_form:
        return f"{method.shares} (of features of {backbone}), added up with {name}: none is trained"
    if not method.trains:
        return f"the class names alone as {backbone} reads them, with {name}, which learns nothing"
    return f"prompts of {backbone}, learned with {name}"


def _models(model: Model, keys: Sequence[int | None]) -> list[str]:
    """Whom the model answers for, with thresholds and what they did to test images."""
    lines = ["## Answers for", ""]
    calibration = model.calibration
    if calibration is None:
        lines.append("Not calibrated: it never answers unknown. See `focoop calibrate`.\n")
    else:
        share = f"{100 * calibration.keep:g}%"
        lines.append(
            f"Calibrated to keep {share} of images of known classes, and to have "
            f"the right class in {share} of class sets (split conformal). An "
            "image is unknown where its score is above the threshold.\n"
        )
    lines.append("| client | own classes | calibration images | threshold | kept | covered | set |")
    lines.append("|---|---:|---:|---:|---:|---:|---:|")
    for key in keys:
        name = GLOBAL if key is None else model.clients[key]
        own = len(model.own_classes(GLOBAL if key is None else key)) or "-"
        site = None if calibration is None else calibration.at(key)
        lines.append(f"| {_cell(name)} | {own} | {' | '.join(_site(site))} |")
    lines += ["", "*kept*, *covered*, *set* (mean size of class sets): on test images.", ""]
    return lines


def _site(site: SiteCalibration | None) -> list[str]:
    if site is None:
        return ["-"] * 5
    pool = f" (pool of {site.scores.count})" if site.source == FROM_POOL else ""
    threshold = "none" if site.threshold is None else f"{site.threshold:.4f}"
    seen = site.measured
    shares = [f"{100 * seen[name]:.1f}%" if name in seen else "-" for name in ("kept", "covered")]
    size = f"{seen['set_size']:.1f}" if "set_size" in seen else "-"
    return [f"{site.images}{pool}", threshold, *shares, size]


def _origin(model: Model) -> list[str]:
    facts, origin = model.facts, model.facts.origin
    hashes = origin.get("data_hashes", {})
    return [
        "## Made of",
        "",
        f"- backbone `{facts.backbone}`, fingerprint `{facts.fingerprint}`, of its image side "
        f"`{facts.image_fingerprint}`; its weights are not in this folder",
        f"- run `{origin.get('run', '')}`, round {origin.get('round', '')}, seed "
        f"{origin.get('seed', '')}, focoop {origin.get('versions', {}).get('focoop', '')}",
        f"- data `{origin.get('data', '')}`; hashes of all features (SHA-256):",
        *[f"    - `{name}`: `{value}`" for name, value in hashes.items()],
        "",
    ]


def _changes(changes: Sequence[str]) -> list[str]:
    """What was changed by hand after training, which results and data hashes know nothing of."""
    if not changes:
        return []
    told = [f"- {_cell(change)}" for change in changes]
    note = "Results below are of the model before. Added or dropped classes end a calibration."
    return ["## Changed after training", "", *told, "", note, ""]


def _results(metrics: dict[str, Any]) -> list[str]:
    """The last evaluation of the run, over all clients."""
    if not metrics:
        return []
    rows = [
        ("accuracy on own classes", metrics.get("accuracy_own")),
        ("accuracy on all classes", metrics.get("accuracy_all")),
        ("accuracy on own classes, corrupted images", metrics.get("accuracy_corrupted")),
        ("other clients' images flagged", metrics.get("cross_alarm")),
    ]
    for name, found in metrics.get("ood", {}).items():
        rows.append((f"AUROC against {name}", found.get("auroc")))
        rows.append((f"FPR95 against {name}", found.get("fpr95")))
    told = [f"| {name} | {100 * value:.1f} |" for name, value in rows if value is not None]
    return ["## Results of the run", "", "| test images | percent |", "|---|---:|", *told, ""]


def _classes(model: Model) -> list[str]:
    names = [_cell(name) for name in model.classes[:SHOWN]]
    more = f", and {len(model.classes) - SHOWN} more" if len(model.classes) > SHOWN else ""
    return [f"## Classes ({len(model.classes)})", "", ", ".join(names) + more, ""]


def _use(model: Model) -> list[str]:
    return [
        "## Use",
        "",
        "- **Intended**: images like those of the federation's clients. The promise holds where "
        "new images come from where the calibration images came from; under another camera, site "
        "or season calibrate again on images from there.",
        "- **Not intended**: decisions about people or health without somebody who checks them. "
        "*Unknown* means unlike the calibration images, not dangerous or wrong.",
        "- **Licence**: the model's weights follow the licences of its data and its backbone; fill "
        "in `license` above before you publish it. focoop itself is under its own licence.",
    ]


def _cell(text: str) -> str:
    """A name that may stand in a table."""
    return text.replace("|", "\\|").replace("\n", " ")
