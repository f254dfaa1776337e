"""Sessions of one run with a real tracker, in the environment that has its package.

    python session.py stop|kill SPEC FOLDER     # train until round 1 is committed and told
    python session.py resume SPEC FOLDER        # go on by the command line to the end, and read

The second prints, as JSON, what the tracker holds then, as its own reader reads it. A curve is a
list of (round, value).
"""

import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import focoop
from tests.toy_command import call
from tests.toy_setting import write_setting

GIVEN = {"method.name": "promptfl", "federation.rounds": 3, "federation.evaluate_every": 2}
Curves = dict[str, list[tuple[int, float]]]


def first(how: str, spec: str, folder: Path) -> None:
    def leave(event: focoop.RoundEvent) -> None:
        if event.round == 1 and how == "kill":
            os._exit(9)
        if event.round == 1:
            raise KeyboardInterrupt

    setting = write_setting(folder / "data")
    focoop.run(setting, GIVEN, out=folder / "run", on_round=[spec, leave])


def resume(spec: str, folder: Path) -> None:
    sets = [f"--set={key}={value}" for key, value in GIVEN.items()]
    where = ["--out", str(folder / "run"), "--resume", "--track", spec, "--json"]
    done = call("run", str(folder / "data" / "toy.toml"), *sets, *where)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["status"] == "finished"  # nothing else is printed there
    print(done.stderr, file=sys.stderr)


def tensorboard(target: str, folder: Path) -> dict[str, Any]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (where,) = [path for path in Path(target).iterdir() if path.is_dir()]
    events = EventAccumulator(str(where), size_guidance={"tensors": 0, "scalars": 0}).Reload()
    tags = events.Tags()
    curves = {
        name: [(point.step, point.value) for point in events.Scalars(name)]
        for name in tags["scalars"]
    }
    text = events.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    rows = [row.split(" | ") for row in text.splitlines()[2:]]
    settings = {row[0].removeprefix("| "): row[1].strip("`| ") for row in rows}
    return {"name": where.name, "settings": settings, "curves": curves}


def wandb(target: str, folder: Path) -> dict[str, Any]:
    import wandb as package

    package.teardown()  # its service writes the last rounds while it ends
    files = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    curves: Curves = {}
    settings: dict[str, str] = {}
    names = set()
    for file in files:
        for record in _wandb_records(file.read_bytes()):
            if record.WhichOneof("record_type") == "run":
                names.add((record.run.run_id, record.run.display_name, record.run.project))
                settings |= {
                    one.key: json.loads(one.value_json) for one in record.run.config.update
                }
            if record.WhichOneof("record_type") == "history":
                for one in record.history.item:
                    name = one.key or "/".join(one.nested_key)
                    if not name.startswith("_"):
                        point = record.history.step.num, json.loads(one.value_json)
                        curves.setdefault(name, []).append(point)
    ((identifier, name, project),) = names  # one run, however many sessions
    assert project == target and files[0].name == f"run-{identifier}.wandb"
    return {"name": name, "settings": settings, "curves": curves}


def _wandb_records(raw: bytes) -> Iterator[Any]:
    """The records of a file: LevelDB's log format, in blocks of 32 KiB, after seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    assert raw[:4] == b":W&B"
    place, parts = 7, b""
    while place + 7 <= len(raw):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, size, kind = struct.unpack("<IHB", raw[place : place + 7])
        parts += raw[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


def mlflow(target: str, folder: Path) -> dict[str, Any]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=target)
    experiment = client.get_experiment_by_name("focoop")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    curves = {
        name: [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }
    found = {"name": run.info.run_name, "settings": run.data.params, "curves": curves}
    return {**found, "status": run.info.status}


def trackio(target: str, folder: Path) -> dict[str, Any]:
    import trackio as package
    from trackio.sqlite_storage import SQLiteStorage

    (run,) = package.Api().runs(target)
    curves: Curves = {}
    for row in SQLiteStorage.get_logs(target, run.name):
        for name, value in row.items():
            if "/" in name:
                curves.setdefault(name, []).append((row["step"], value))
    return {"name": run.name, "settings": run.config, "curves": curves}


READERS = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow, "trackio": trackio}


if __name__ == "__main__":
    action, given, place = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if action == "resume":
        resume(given, place)
        name, _, where = given.partition(":")
        print(json.dumps(READERS[name](where, place)))
    else:
        first(action, given, place)
