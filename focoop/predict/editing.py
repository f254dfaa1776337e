"""Change a model without training: add, drop or rename a class, add a client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from focoop.data import refuse_incomplete_of
from focoop.errors import ConfigError, MethodError
from focoop.features import FeatureSet, open_features
from focoop.methods import PRIOR, Text, log_prior, text_map
from focoop.predict.calibration import GLOBAL, Calibration
from focoop.predict.facts import Client, Facts
from focoop.predict.images import dataset_of
from focoop.predict.model import Model
from focoop.predict.side import Side, folded_task

if TYPE_CHECKING:
    from torch import Tensor

TEMPLATE = "a photo of a {}."  # of models that do not tell theirs
# Parts of a model with a row per class (the second axis of three), and parts without.
BY_CLASS = ("known", "apart", "means", "local", "global", PRIOR)
WHOLE = ("centre", "metric", "background", "along", "projection", "foreign", "foreign_weight")
# Closed forms by what their rows are: means of images as a metric sees them, or texts beside them.
FROM_IMAGES, FROM_BOTH = ("fedncm", "fedlda", "focoop_plus"), ("gda_clip", "tofa")
LEAST = 2  # classes that a model keeps


def add_class(model: Model, name: str, images: Any = None, client: Client = None) -> Model:
    """Add a class by its name alone, or by a few images.

    Args:
        model: The model.
        name: The new class.
        images: Images of it as `encode` takes them, or None.
        client: A client that holds it; None: nobody does.

    Returns:
        The new model, not calibrated.

    Raises:
        ConfigError: The name is empty or taken.
        MethodError: The method cannot learn a class this way.
    """
    _new_name(name, model.classes, "class")
    holder = None if client is None else model.key(client)
    if client is not None and holder is None:
        raise ConfigError("the global model holds no classes of its own: give the name of a client")
    kind = model.facts.method
    mean, count = None, 0
    if images is not None:
        if kind not in (*FROM_IMAGES, *FROM_BOTH):
            raise MethodError(
                f"{kind} compares images with texts, which lie apart from images: add the class by "
                "its name alone; by images it goes with " + ", ".join((*FROM_IMAGES, *FROM_BOTH))
            )
        found = model.encode(images).pooled.to(model.task.device)
        mean, count = found.mean(dim=0), len(found)
    elif kind == "fed3r":
        raise MethodError("fed3r's classes come from a regression on all images: train it again")
    text = None
    if mean is None or kind in FROM_BOTH:
        template = str(model.facts.origin.get("template", TEMPLATE))
        text = model.backbone.encode_texts([template.format(name.replace("_", " "))])[0]
        text = text.to(model.task.anchors)
    anchor = mean if text is None else text
    assert anchor is not None
    anchors = torch.cat([model.task.anchors, anchor[None]])

    def changed(side: Side) -> Side:
        own = 0
        if holder is not None and side.client == holder:
            held = side.counts[side.counts > 0]
            own = count or (int(held.float().mean().round()) if len(held) else 1)
        counts = torch.cat([side.counts, side.counts.new_tensor([max(own, 0)])])
        rows = _rows(model, side, text, mean)
        grown = {
            part: torch.cat([value, rows[part].to(value)], dim=_axis(part, value))
            for part, value in _by_class(side).items()
        }
        return _side_with(model, side, grown, counts)

    held = (*model.facts.holders, () if holder is None else (holder,))
    how = "by its name" if mean is None else f"by {count} images"
    facts = _facts(model, f"class {name} added {how}", classes=(*model.classes, name))
    facts = replace(facts, holders=held if model.facts.holders else ())
    return _edited(model, facts, anchors, changed)


def drop_class(model: Model, name: str) -> Model:
    """Drop a class: images of it should then be unknown.

    Args:
        model: The model.
        name: The class.

    Returns:
        The new model, not calibrated.

    Raises:
        ConfigError: Too few classes would be left.
    """
    place = model.place(name)
    if len(model.classes) <= LEAST:
        raise ConfigError(f"a model needs {LEAST} classes, and this one has no more")
    kept = [k for k in range(len(model.classes)) if k != place]
    rows = torch.tensor(kept, device=model.task.device)

    def changed(side: Side) -> Side:
        left = {
            part: value.index_select(_axis(part, value), rows)
            for part, value in _by_class(side).items()
        }
        return _side_with(model, side, left, side.counts[kept])

    facts = _facts(model, f"class {name} dropped", classes=tuple(model.classes[k] for k in kept))
    holders = model.facts.holders
    facts = replace(facts, holders=tuple(holders[k] for k in kept) if holders else ())
    return _edited(model, facts, model.task.anchors[rows], changed)


def rename_class(model: Model, name: str, new: str) -> Model:
    """Rename a class; its prompts, scores and the calibration stay as they are.

    Args:
        model: The model.
        name: The class.
        new: Its new name.

    Returns:
        The new model.
    """
    place = model.place(name)
    _new_name(new, model.classes, "class")
    classes = (*model.classes[:place], new, *model.classes[place + 1 :])
    facts = _facts(model, f"class {name} renamed to {new}", classes=classes)
    return _edited(model, facts, model.task.anchors, lambda side: side, model.calibration)


def add_client(
    model: Model,
    name: str,
    classes: Sequence[str] | Mapping[str, int] = (),
    images: str | FeatureSet | None = None,
) -> Model:
    """Add a client that took no part: the global model, and what the client expects to see.

    Args:
        model: The model.
        name: The new client.
        classes: The classes that it holds, perhaps with their numbers of images.
        images: Its labelled images, a dataset as `data.id` takes it or features: they are counted.

    Returns:
        The new model; the new client is not calibrated, the others are as before.

    Raises:
        ConfigError: The name is taken, or no class is told.
        MethodError: There is no global model.
    """
    _new_name(name, (*model.clients, GLOBAL), "client")
    if None not in model.keys:
        raise MethodError(
            "a new client gets the global model, and this model has none: export the run with "
            "--client global or --client all"
        )
    if (images is None) == (not classes):
        raise ConfigError("say which classes the client holds: give their names, or its images")
    told = classes if isinstance(classes, Mapping) else dict.fromkeys(classes, 1)
    if images is not None:
        found = _open(model, images)
        counted = torch.bincount(found.labels.long(), minlength=len(model.classes)).tolist()
        told = {label: n for label, n in zip(model.classes, counted, strict=True) if n}
    counts = torch.zeros(len(model.classes), dtype=torch.int64)
    for label, number in told.items():
        if number < 1:
            raise ConfigError(f"the client's images of {label} must be 1 or more, got {number}")
        counts[model.place(label)] = number
    number = len(model.clients)

    facts = _facts(model, f"client {name} added", classes=model.classes)
    holders = tuple(
        (*held, number) if counts[place] else held for place, held in enumerate(facts.holders)
    )
    facts = replace(facts, clients=(*facts.clients, name), holders=holders)
    everyone = model.side(GLOBAL)
    counts = counts.to(everyone.counts)
    fresh = _side_with(model, replace(everyone, client=number), _by_class(everyone), counts)
    same: Callable[[Side], Side] = lambda side: side  # noqa: E731
    return _edited(model, facts, model.task.anchors, same, model.calibration, [fresh])


def _open(model: Model, images: str | FeatureSet) -> FeatureSet:
    if isinstance(images, str):
        refuse_incomplete_of([dataset_of(images)])
        images = open_features(dataset_of(images), "all", model.backbone)
    return images.with_classes(model.classes)


def _new_name(name: str, taken: Sequence[str], what: str) -> None:
    if not name.strip() or not name.isprintable():
        raise ConfigError(f"a {what} needs a name, got {name!r}")
    if name in taken:
        raise ConfigError(f"there is a {what} {name!r} already: choose another name")


def _axis(part: str, value: Tensor) -> int:
    return 1 if value.dim() == 3 else 0


def _by_class(side: Side) -> dict[str, Tensor]:
    """All tensors of a side with a row per class, the prior left out, which comes from counts."""
    strange = sorted(set(side.text.parts) - {*BY_CLASS, *WHOLE})
    if strange:
        raise MethodError(f"this method's models cannot be changed: it keeps {', '.join(strange)}")
    parts = {name: part for name, part in side.text.parts.items() if name in BY_CLASS}
    parts.pop(PRIOR, None)
    return {"id": side.text.id, **parts}


def _rows(model: Model, side: Side, text: Tensor | None, mean: Tensor | None) -> dict[str, Tensor]:
    """The new row of each tensor that `_by_class` names."""
    kind, parts = model.facts.method, side.text.parts
    known = torch.ones(1, dtype=torch.bool)
    if kind in FROM_BOTH:
        assert text is not None
        seen = torch.zeros_like(text) if mean is None else mean @ parts["metric"]
        ids = text[None] * model.task.logit_scale
        return {"id": ids, "means": seen[None], "known": known & (mean is not None)}
    if kind in FROM_IMAGES:
        if mean is None:
            assert text is not None
            rows = _predicted(model, side, text)
        else:
            centre, metric = parts.get("centre", 0.0), parts.get("metric")
            rows = {"id": (mean - centre if metric is None else (mean - centre) @ metric)[None]}
            if "apart" in parts:
                rows["apart"] = F.normalize(mean[None] @ parts["background"], dim=-1)
        if "along" in parts:
            rows["id"] = rows["id"] - (rows["id"] @ parts["along"])[:, None] * parts["along"]
        if kind != "fedlda":
            rows["id"] = F.normalize(rows["id"], dim=-1)
        return {**rows, "known": known}
    assert text is not None
    found = {}
    for name, value in _by_class(side).items():
        # A learned context moves the texts of all classes alike: so much is added to the new one.
        moved = text + (value - model.task.anchors).mean(dim=-2, keepdim=True)
        found[name] = F.normalize(moved, dim=-1)
    return found


def _predicted(model: Model, side: Side, text: Tensor) -> dict[str, Tensor]:
    """Rows of a class without images, by a linear map from texts to the known classes' rows."""
    known = side.text.parts["known"].cpu()
    if int(known.sum()) < 3:
        raise MethodError("fewer than 3 classes have images: give images of the new class too")
    texts = torch.cat([model.task.anchors, text[None]]).double().cpu()
    words = texts - texts[:-1][known].mean(dim=0)
    rows = {}
    for name, view in (("id", "metric"), ("apart", "background")):
        value = {"id": side.text.id, **side.text.parts}.get(name)
        if value is None:
            continue
        through = side.text.parts.get(view)
        seen = words if through is None else words @ through.double().cpu()
        given = torch.cat([value, torch.zeros_like(value[:1])]).double().cpu()
        _, all_rows, _ = text_map(seen, given, torch.cat([known, torch.zeros(1, dtype=torch.bool)]))
        found = all_rows[-1:].to(value)
        size = value[side.text.parts["known"]].norm(dim=-1).mean()
        rows[name] = F.normalize(found, dim=-1) * size
    return rows


def _side_with(model: Model, side: Side, by_class: dict[str, Tensor], counts: Tensor) -> Side:
    """A side with other rows and counts; the prior follows the counts."""
    parts = {name: side.text.parts[name] for name in side.text.parts if name in WHOLE}
    parts |= {name: value for name, value in by_class.items() if name != "id"}
    ids, share = by_class["id"], model.open_share
    if PRIOR in side.text.parts or (share < 1 and bool(counts.any())):
        scale = model.method.answer_scale(model.task)
        parts[PRIOR] = log_prior(counts.to(ids.device), share, ids.dtype) / scale
    return Side(side.client, Text(ids, side.text.ood, parts), counts)


def _facts(model: Model, change: str, classes: tuple[str, ...]) -> Facts:
    origin = dict(model.facts.origin)
    origin["changes"] = [*origin.get("changes", []), change]
    return replace(model.facts, classes=classes, origin=origin)


def _edited(
    model: Model,
    facts: Facts,
    anchors: Tensor,
    change: Callable[[Side], Side],
    calibration: Calibration | None = None,
    more: Sequence[Side] = (),
) -> Model:
    task = folded_task(facts.classes, anchors, facts.logit_scale)
    sides = {key: change(model.side(GLOBAL if key is None else key)) for key in model.keys}
    sides |= {side.client: side for side in more}
    asked = GLOBAL if model.client is None else model.client
    made = sides.__getitem__
    return Model(
        facts, model.method, task, made, list(sides), lambda: model.backbone, calibration, asked
    )
