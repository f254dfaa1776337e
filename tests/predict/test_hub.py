"""An exported model is a folder that the Hugging Face hub accepts, and is sent only if asked."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from focoop.errors import MissingExtra, RunError
from focoop.predict import push, read_model
from tests.predict.test_model import CLASSES, model_of

hub = pytest.importorskip("huggingface_hub")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_of("promptfl").save(tmp_path_factory.mktemp("hub") / "model")


class FakeApi:
    calls: list[tuple[str, Any]] = []

    def __init__(self, **_: Any) -> None: ...

    def create_repo(self, repo: str, **options: Any) -> None:
        hub.utils.validate_repo_id(repo)
        self.calls.append((repo, options))

    def upload_folder(self, **options: Any) -> SimpleNamespace:
        self.calls.append(("upload", options))
        return SimpleNamespace(commit_url="https://hub.example/commit/1")


def test_the_card_and_the_config_are_what_the_hub_reads(folder: Path) -> None:
    data = hub.ModelCard.load(folder / "README.md").data
    assert data.library_name == "focoop" and data.license == "other"
    assert data.pipeline_tag == "image-classification" and "federated-learning" in data.tags
    config = json.loads((folder / "config.json").read_text())
    assert list(config["id2label"].values()) == list(CLASSES)
    assert read_model(folder).classes == CLASSES  # as a snapshot of the hub is read


def test_a_model_is_sent_with_its_own_files_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "HfApi", FakeApi)
    monkeypatch.setattr(FakeApi, "calls", [])
    assert push(folder, "me/fruit") == "https://hub.example/commit/1"
    (repo, made), (_, sent) = FakeApi.calls
    assert repo == "me/fruit" and made["private"] and made["exist_ok"]
    assert sent["folder_path"] == folder and "model.safetensors" in sent["allow_patterns"]
    with pytest.raises(RunError, match="check the name"):
        push(folder, "not a name")
    monkeypatch.setattr(FakeApi, "upload_folder", lambda *_, **__: 1 / 0)
    with pytest.raises(RunError, match="network"):
        push(folder, "me/fruit")
    with pytest.raises(RunError, match="no exported model"):
        push(folder.parent, "me/fruit")
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra, match=r"focoop\[export\]"):
        push(folder, "me/fruit")
