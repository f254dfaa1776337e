"""Parts of benchmarks/gpu.py: the paper's ascent and evaluation, each beside a default round."""

import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_tower import Bench, Row, apart
from gpu_world import LOCAL, Federation, make_clients, make_sets, make_task, wait

from focoop.clip import load_backbone
from focoop.clip.text import fused
from focoop.clip.text.tower import TextTower
from focoop.federation.batched_training import BatchedTrainer
from focoop.federation.client import train
from focoop.federation.evaluation import answers, evaluate
from focoop.federation.evaluation import texts as evaluation_texts
from focoop.federation.evaluation import together as evaluation_together
from focoop.federation.evaluation.sets import EvaluationSets, Owned
from focoop.federation.rounds import client_state, start
from focoop.federation.simulator import MemoryStore
from focoop.methods.base import Method, Params, Server, Text
from focoop.seeds import torch_generator

PRESET = Path(__file__).resolve().parent.parent / "configs" / "methods" / "focoop-paper.toml"


def paper_settings() -> dict[str, Any]:
    """Settings of the preset `focoop-paper`."""
    found: dict[str, Any] = tomllib.loads(PRESET.read_text())["method"]
    return {name: value for name, value in found.items() if name != "name"}


def paper_profile(bench: Bench) -> list[Row]:
    """Kernels of a settled round of `focoop-paper`."""
    settings = {**paper_settings(), "keep": "slot"}  # words stay
    federation = bench.federation(10 if bench.real else 2, **settings)
    rounds = federation.simulated(federation.method(), MemoryStore(), 4)
    for _ in range(3):
        next(rounds)
    wait(bench.device)
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if bench.device.type == "cuda":
        kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profiler:
        began = time.perf_counter()
        next(rounds)
        wait(bench.device)
        wall = time.perf_counter() - began
    events = sorted(profiler.key_averages(), key=lambda e: -e.self_device_time_total)
    total = sum(e.self_device_time_total for e in events)
    rows: list[Row] = [
        {"kernel": "wall, all", "ms": 1e3 * wall},
        {"kernel": "sum", "ms": total / 1e3},
    ]
    return rows + [
        {"kernel": e.key[:70], "ms": e.self_device_time_total / 1e3, "calls": e.count}
        for e in events[:26]
    ]


def paper(bench: Bench) -> list[Row]:
    """Rounds of the preset `focoop-paper`, of its ascent with the default's server, and default."""
    whole = paper_settings()
    server = ("transport_rule", "transport_gap", "cost_scale", "calibration", "keep")
    kinds: dict[str, dict[str, Any]] = {
        "default": {},
        "focoop-paper": whole,
        "its ascent alone": {k: v for k, v in whole.items() if k not in server},
        "reuse_slopes": {**whole, "reuse_slopes": True},
        "prompt space, monotone": {"space": "prompt"},
    }
    rows = []
    for name, settings in kinds.items():
        bench.fresh()
        count = (14 if bench.real else 3) if name != "prompt space, monotone" else 4
        federation = bench.federation(10 if bench.real else 2, **settings)
        found = federation.rounds(count)
        timed = federation.rounds(count, timed=True) if name in ("default", "focoop-paper") else []
        seconds = [row["round"] for row in found]
        rows.append({
            "ascent": name, "first s": seconds[0], "third s": seconds[2],
            "round s": float(np.median(seconds[-4:])), "best s": min(seconds[2:]),
            **{k: float(np.median([r[k] for r in timed[-4:]]))
               for k in ("training", "server", "noise") if timed},
            "words": found[-1].get("server/distinct_words", 0.0), "GiB": bench.peak_memory(),
        })  # fmt: skip
    return rows


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Another value for a time."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def models_of(
    federation: Federation, method: Method, server: Server, store: MemoryStore
) -> list[Params]:
    """Every client's tensors."""
    initial, task, found = start(method, federation.task, 0), federation.task, []
    for client, data in enumerate(federation.clients):
        counts = partial(data().counts, len(task.classes))
        kept = store.load(client) if initial.private else None
        state = client_state(method, task, initial, server, kept, counts)
        found.append({**state.shared, **state.private})
    return found


def evaluations(bench: Bench) -> list[Row]:
    """One evaluation of ten clients on all sets, beside a training round; where its time goes."""
    federation, sets = bench.federation(10), make_sets(bench.sizes, 10, bench.sizes.classes)
    method, store, task, device = federation.method(), MemoryStore(), bench.task, bench.device
    rounds, spent = federation.simulated(method, store, 12 if bench.real else 3), []
    wait(device)
    began = time.perf_counter()
    for result in rounds:
        server = result.server
        wait(device)
        spent.append(time.perf_counter() - began)
        began = time.perf_counter()

    def timed(job: Callable[[], object], count: int = 7) -> tuple[float, float]:
        found = []
        for _ in range(count):
            wait(device)
            began = time.perf_counter()
            job()
            wait(device)
            found.append(time.perf_counter() - began)
        return found[0], float(np.median(found[2:] if count > 2 else found))

    def once() -> None:
        federation.evaluate(method, server, store, sets)

    first, together = timed(once)
    with patched(evaluate, "fits", lambda _: False):
        _, alone = timed(once, 3)
        with patched(fused, "products", lambda *_: None):
            _, before = timed(once, 3)
    there = sets.on(device, len(task.classes))
    every = models_of(federation, method, server, store)
    models = [every[client] for client in there.clients]
    size = partial(answers.chunk_size, most=2**20, room=answers.DEVICE_CELLS)
    with torch.no_grad():
        text_s = timed(lambda: evaluation_texts.encoded_together(method, models, task))[1]
        texts = evaluation_texts.encoded_together(method, models, task)
        found = evaluation_together.answered(method, task, texts, there, size)
        answers_s = timed(lambda: evaluation_together.answered(method, task, texts, there, size))[1]
        metrics_s = timed(
            lambda: evaluation_together.on_host(evaluation_together.measured(found, there, 0.0))
        )[1]
        with patched(fused, "products", lambda *_: None):
            plain = [method.encode(model, task) for model in models]
        expected = evaluation_together.answered(method, task, plain, there, size)
        exact = [in_float64(bench, method, model) for model in models]
    round_s = float(np.median(spent[3:]))
    return [{
        "round s": round_s, "evaluation s": together, "of a round": together / round_s,
        "first s": first, "one client at a time s": alone, "without kernels s": before,
        "text ms": 1e3 * text_s, "answers ms": 1e3 * answers_s, "metrics ms": 1e3 * metrics_s,
        "largest score": float(expected.score.abs().max()),
        "scores apart": float((found.score - expected.score).abs().max()),
        "classes apart": int((found.predicted != expected.predicted).sum()),
        "answers": found.predicted.numel(),
        "margins apart": float((found.margin - expected.margin).abs().max()),
        "features off, ours": off(texts, exact), "features off, float32": off(plain, exact),
    }]  # fmt: skip


def off(texts: list[Text], exact: list[torch.Tensor]) -> float:
    """Mean relative error of class features."""
    return float(np.mean([apart(t.id, e) for t, e in zip(texts, exact, strict=True)]))


def in_float64(bench: Bench, method: Method, model: Params) -> torch.Tensor:
    """(C, D) class features of a model, through the tower in float64."""
    wide = deepcopy(bench.tower).train_in(None).double()
    prompt = method.prompts(model, bench.task)["id"]
    names = replace(prompt.names, embeddings=prompt.names.embeddings.double(), flats={}, chosen={})
    return wide(prompt.contexts.double(), names)


def agree(bench: Bench) -> list[Row]:
    """`mini` on this device: a round in prompt space, and an evaluation, against slow references.

    References: one client at a time in float32, and the evaluation of one client at a time on a
    CPU, from the same state.
    """
    backbone = load_backbone("mini")
    tower = backbone.text.to(bench.device)
    task = make_task(tower, bench.sizes.classes, bench.sizes.words)
    # One step, at the preset's scale: rounding grows from step to step under the default's 100.
    task, local = replace(task, logit_scale=10.0), replace(LOCAL, epochs=1, batch_size=80)
    data = make_clients(2 if bench.real else 1, len(task.classes), tower.dim)
    rows: list[Row] = []
    for label, settings in (("paper", paper_settings()), ("monotone", {"space": "prompt"})):
        federation = Federation(task, data, settings=settings)
        method = federation.method()
        initial = start(method, task, 0)
        states = [initial] * len(data)
        images = [one() for one in data]
        changes = []
        for kind, precision in (("alone", None), ("together", None), ("kernels", torch.bfloat16)):
            tower.train_in(precision if bench.device.type == "cuda" else None)
            draws = [torch_generator(k, "agree") for k in range(len(data))]
            if kind == "alone":
                found = [
                    train(method, state, own, task, local, draw)[0]
                    for state, own, draw in zip(states, images, draws, strict=True)
                ]
            else:
                trainer = BatchedTrainer(method, task, local)
                for _ in range(3):  # the last is replayed
                    draws = [torch_generator(k, "agree") for k in range(len(data))]
                    trained = trainer.train(states, images, local.lr, draws)
                found = [state for state, _ in trained]
            changes.append({
                name: torch.stack([s.shared[name] - initial.shared[name] for s in found])
                for name in ("global", "ood")
            })  # fmt: skip
        for kind, change in zip(("together", "kernels"), changes[1:], strict=True):
            rows.append({
                "what": f"{label}, {kind}",
                **{f"{n} apart": apart(v, changes[0][n].double()) for n, v in change.items()},
            })  # fmt: skip
    tower.train_in(torch.bfloat16 if bench.device.type == "cuda" else None)
    return rows + [agreed_evaluation(bench, tower, task, data)]


def agreed_evaluation(bench: Bench, tower: TextTower, task: Any, data: list[Any]) -> Row:
    """Metrics of `mini`'s clients on this device and, one at a time, on a CPU."""
    federation = Federation(task, data)
    method, store = federation.method(), MemoryStore()
    for result in federation.simulated(method, store, 2):
        server = result.server
    sizes = replace(bench.sizes, text=tower.shape)
    sets = near_sets(make_sets(sizes, 2, len(task.classes)), task)
    models = models_of(federation, method, server, store)
    here = evaluate.evaluate(method, task, models.__getitem__, sets)
    host = make_task(load_backbone("mini").text, len(task.classes), bench.sizes.words)
    host = replace(host, logit_scale=task.logit_scale)
    moved = [{name: value.cpu() for name, value in model.items()} for model in models]
    there = evaluate.evaluate(method, host, moved.__getitem__, sets)
    numbers = [flat(found.summary) for found in (here, there)]
    worst = {k: abs(v - numbers[1][k]) for k, v in numbers[0].items()}
    name = max(worst, key=worst.__getitem__)
    return {
        "what": "evaluation", "numbers": len(worst), "largest difference": worst[name], "of": name,
        "own": here.summary["accuracy_own"], "own on a CPU": there.summary["accuracy_own"],
        "all": here.summary["accuracy_all"], "all on a CPU": there.summary["accuracy_all"],
    }  # fmt: skip


def near_sets(sets: Any, task: Any) -> Any:
    """Test images near the text of their class, so that answers are not chance."""
    images, anchors = sets.test.images, task.anchors.cpu()
    drawn = images.pooled + 0.5 * anchors[images.labels]
    pooled = torch.nn.functional.normalize(drawn, dim=-1)
    labelled = type(images)(pooled, None, images.labels)
    owned = Owned(labelled, sets.test.index)
    return EvaluationSets(owned, {"same@1": owned}, sets.ood)


def flat(value: Any, name: str = "") -> dict[str, float]:
    """Every number of a summary by its path."""
    if isinstance(value, dict):
        return {k: v for key, part in value.items() for k, v in flat(part, f"{name}/{key}").items()}
    return {} if value is None else {name: float(value)}
