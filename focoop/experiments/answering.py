"""The answers of a trained model that `focoop tune` tries: each score with each prior, no training.

A trial is trained once. Then every client answers the validation images under every score of the
family that all methods have in common, and under its method's own, each with every prior; the
numbers are kept in the run folder, so that they are not made twice.
"""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from focoop.caching import is_intact, parse_json, sealed
from focoop.config import RunConfig
from focoop.experiments.evaluation import OpenedRun, open_state
from focoop.federation import PriorChoice, evaluate_choices
from focoop.methods import Answering, Logits, Task, lookup
from focoop.runs import RunFolder, plain, write

ANSWERS = "answers.json"
Point = dict[str, Any]


def answers_of(config: RunConfig, fixed: Sequence[str] = ()) -> list[Point]:
    """Return what is tried after training for a configuration's method.

    Args:
        config: The configuration.
        fixed: Dotted keys that do not vary.

    Returns:
        Values by dotted key, one mapping for each answer; none for a method without such settings.
    """
    kind = lookup(config.method.name)
    if not issubclass(kind, Answering):
        return []
    given = vars(config.method.settings)

    def tried(name: str, values: Sequence[Any]) -> list[Any]:
        return [given[name]] if f"method.{name}" in fixed else list(values)

    points = []
    for score in tried("score", list(kind.tried_scores)):
        grid = {name: tried(name, v) for name, v in kind.tried_scores.get(score, {}).items()}
        for values in product(tried("open_share", kind.open_shares), *grid.values()):
            point = dict(zip(("open_share", *grid), values, strict=True))
            points.append({f"method.{name}": v for name, v in {"score": score, **point}.items()})
    return points


def read_answers(folder: RunFolder, points: Sequence[Point]) -> list[dict[str, Any]] | None:
    """Read what `measure_answers` kept.

    Args:
        folder: The run folder.
        points: What is asked for.

    Returns:
        A summary for each point; None where they were not measured, or are of other models. A
        warning names a damaged file; one of an earlier focoop has no checksum and is none.
    """
    path = folder.path / ANSWERS
    try:
        kept = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        kept = {}
    if isinstance(kept, list):
        return None
    if not isinstance(kept, dict) or not is_intact(kept):
        warnings.warn(f"{path} is damaged: its answers are measured again", stacklevel=2)
        return None
    if kept["models"] != folder.models_sum():
        warnings.warn(f"{path} is of other models: answers are measured again", stacklevel=2)
        return None
    found = {_key(entry["point"]): entry["summary"] for entry in kept["answers"]}
    wanted = [_key(point) for point in points]
    return [found[key] for key in wanted] if all(key in found for key in wanted) else None


def measure_answers(folder: RunFolder, points: Sequence[Point]) -> list[dict[str, Any]]:
    """Measure a finished run under other scores and priors, and keep it in the folder.

    Args:
        folder: The run folder, open for writing.
        points: Values by dotted key, as `answers_of` gives them.

    Returns:
        A summary for each point.
    """
    opened = open_state(folder)
    summaries = evaluate_answers(opened, points)
    entries = [
        {"point": point, "summary": summary}
        for point, summary in zip(points, summaries, strict=True)
    ]
    kept = {"models": folder.models_sum(), "answers": plain(entries)}
    write(folder.path / ANSWERS, json.dumps(sealed(json.loads(json.dumps(kept)))).encode())
    return summaries


def evaluate_answers(opened: OpenedRun, points: Sequence[Point]) -> list[dict[str, Any]]:
    """Evaluate a committed state under other scores and priors.

    Args:
        opened: The state and its data.
        points: Values by dotted key, as `answers_of` gives them.

    Returns:
        A summary for each point.
    """
    scenario = opened.scenario
    method, task = scenario.method, scenario.task
    kind = type(method)
    bare = kind(replace(method.config, open_share=1.0))
    by_share: dict[float, dict[str, Answering]] = {}
    for point in points:
        settings = {key.removeprefix("method."): value for key, value in point.items()}
        one = kind(replace(method.config, **settings))
        assert isinstance(one, Answering)
        by_share.setdefault(settings["open_share"], {})[_key(point)] = one
    choices = [
        PriorChoice(_shift(opened, next(iter(scores.values())), task), scores)
        for scores in by_share.values()
    ]
    found = evaluate_choices(bare, task, opened.params, scenario.sets, choices)
    return [found[_key(point)] for point in points]


def _shift(opened: OpenedRun, method: Answering, task: Task) -> Callable[[Logits, int], Logits]:
    """A function that gives logits a client's prior."""
    counts = {
        client: opened.class_counts(client).to(task.device)
        for client, own in enumerate(opened.scenario.sets.test.index)
        if len(own)
    }

    def shift(logits: Logits, client: int) -> Logits:
        return method.with_prior(logits, {"counts": counts[client]}, task)

    return shift


def _key(point: Mapping[str, Any]) -> str:
    return json.dumps(point, sort_keys=True)
