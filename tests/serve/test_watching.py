"""Runs as the page sees them, while they are written and after."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from focoop.errors import RunError
from focoop.serve import Engine
from focoop.serve.watching import Runs, events, snapshot
from tests.serve import small_run
from tests.serve.calling import calling
from tests.serve.fake_model import FakeModel


def test_a_snapshot_says_what_the_folder_says(tmp_path: Path) -> None:
    with small_run.begin(tmp_path / "a") as run:
        small_run.step(run, 0, 0.2)
        small_run.step(run, 1, 0.6)
        found = snapshot(tmp_path / "a")
        assert (found["status"], found["round"], found["total"]) == ("running", 1, 3)
    assert [point["accuracy_own"] for point in found["curves"]] == [0.2, 0.6]
    assert found["curves"][1]["auroc"] == 0.9 and found["curves"][1]["clients"] == [0.6] * 3
    assert found["rounds"][-1]["participants"] == [0, 2]
    assert found["partition"]["clients"][1] == {
        "name": "south",
        "images": 12,
        "held": [[1, 8], [2, 4]],
    }
    assert json.dumps(found, allow_nan=False)


def test_events_follow_a_run_until_the_server_ends(tmp_path: Path) -> None:
    run = small_run.begin(tmp_path / "a")
    ended: list[bool] = []

    async def follow() -> list[tuple[str, Any]]:
        seen = []
        async for event in events(tmp_path / "a", lambda: bool(ended), every=0.02):
            kind, data = event.decode().removesuffix("\n\n").split("\n")
            seen.append((kind, json.loads(data.removeprefix("data: "))))
            if len(seen) == 1:
                small_run.step(run, 0, 0.2)
            elif len(seen) == 2:
                small_run.step(run, 1, 0.5)
                run.finish("finished")
            else:
                ended.append(True)
        return seen

    seen = asyncio.run(asyncio.wait_for(follow(), 20))
    run.close()
    assert [kind for kind, _ in seen] == ["event: run"] * 3 + ["event: end"]
    assert [len(found["curves"]) for _, found in seen[:3]] == [0, 1, 2]
    assert seen[2][1]["status"] == "finished"


def test_a_name_never_leads_out_of_the_folder(tmp_path: Path) -> None:
    small_run.begin(tmp_path / "secret").close()
    small_run.begin(tmp_path / "runs" / "deep" / "a").close()
    engine = Engine({"colours": FakeModel()})
    with calling(engine, runs=tmp_path / "runs") as caller:
        (line,) = caller.get("/v1/runs").json()["runs"]
        assert line["name"] == "deep/a" and line["status"] == "killed"
        assert caller.get("/v1/runs/deep/a").json()["total"] == 3
        for name in ("../secret", "..%2Fsecret", "deep/../../secret", "/etc", "nothing", "%00"):
            assert caller.get(f"/v1/runs/{name}").status_code == 404
            assert caller.get(f"/v1/runs/{name}/events").status_code == 404
        assert caller.get("/v1/models").json()["runs"]
    with pytest.raises(RunError, match="no folder"):
        Runs(tmp_path / "absent")


def test_without_a_folder_there_are_no_runs() -> None:
    with calling(Engine({"colours": FakeModel()})) as caller:
        assert caller.get("/v1/runs").status_code == 404
