"""The demo's model on photographs: one class of the client, one of another, and a texture."""

from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

import focoop
from focoop.cli.demo import OPEN_SHARE
from focoop.config import shipped
from focoop.runs import RunFolder
from focoop.serve import Engine
from focoop.serve.loading import load
from tests.serve.calling import calling


@pytest.mark.slow
@pytest.mark.shared
def test_three_photographs_have_three_answers(shared_dir: Path, tmp_path: Path) -> None:
    images = shared_dir / "images"
    settings = shipped("demo") / "focoop_plus.toml"
    focoop.run(settings, {"federation.evaluate_every": 0}, out=tmp_path / "run")
    focoop.calibrate(tmp_path / "run", from_test=True)
    names = RunFolder.open(tmp_path / "run").names
    assert names is not None
    asks = next(k for k, client in enumerate(names.clients) if "orange" in client.train)
    holder = next(client.name for client in names.clients if "whale" in client.train)
    folders = (images / "cifar100/test/orange", images / "cifar100/test/whale")
    textures = [sorted(folder.iterdir())[0] for folder in sorted((images / "dtd/test").iterdir())]
    photos = [sorted(folder.iterdir())[:30] for folder in folders] + [textures[:30]]
    with calling(Engine({"demo": load(tmp_path / "run", open_share=OPEN_SHARE)})) as caller:
        found = [
            caller.predict(*(path.read_bytes() for path in part), client=asks).json()
            for part in photos
        ]
        heat = caller.post(
            "/v1/explain",
            files=[("images", ("a.png", photos[0][0].read_bytes()))],
            data={"label": "orange", "client": str(asks)},
        ).json()
    verdicts = [[one["verdict"] for one in part["predictions"]] for part in found]
    for said, expected in zip(verdicts, ("own", "other", "unknown"), strict=True):
        assert max(set(said), key=said.count) == expected, verdicts
    whales = [one for one in found[1]["predictions"] if one["label"] == "whale"]
    assert len(whales) >= 3 and whales[0]["top"][0]["holders"] == [holder]
    assert heat["rows"] == heat["columns"] > 1
