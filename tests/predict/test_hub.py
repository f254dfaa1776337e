"""An exported model is a folder that the Hugging Face hub accepts, and is sent only if asked."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("huggingface_hub")

import huggingface_hub as hub

from focoop.errors import MissingExtra, RunError
from focoop.predict import HubModel, Model, push, read_model
from tests.predict.test_model import CLASSES, model_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_of("promptfl").save(tmp_path_factory.mktemp("hub") / "model")


class FakeApi:
    calls: list[tuple[str, Any]] = []

    def __init__(self, **_: Any) -> None: ...

    def create_repo(self, repo_id: str, **options: Any) -> SimpleNamespace:
        hub.utils.validate_repo_id(repo_id)
        self.calls.append((repo_id, options))
        return SimpleNamespace(repo_id=repo_id)

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


def test_the_hub_s_own_methods_load_save_and_send(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = HubModel.from_pretrained(folder, client=1)
    assert isinstance(model, Model) and isinstance(model, hub.ModelHubMixin) and model.client == 1
    features = torch.nn.functional.normalize(torch.randn(5, 16), dim=-1)
    own = read_model(folder, 1).decide(features)
    assert model.decide(features) == own
    model.save_pretrained(tmp_path / "again")
    assert sorted(path.name for path in (tmp_path / "again").iterdir()) == sorted(
        path.name for path in folder.iterdir()
    )
    for file in folder.iterdir():  # the card and the config are the export's, not the hub's
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()
    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", FakeApi)
    monkeypatch.setattr(FakeApi, "calls", [])
    assert HubModel(model_of("promptfl")).push_to_hub("me/fruit").endswith("/commit/1")
    (repo, made), (_, sent) = FakeApi.calls
    assert repo == "me/fruit" and made["private"] and sent["repo_id"] == "me/fruit"


def test_a_repository_is_fetched_without_its_graph(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def fetch(repo: str, **options: Any) -> str:
        asked.update(options, repo=repo)
        return str(folder)

    config = lambda **_: str(folder / "config.json")  # noqa: E731
    monkeypatch.setattr("huggingface_hub.hub_mixin.hf_hub_download", config)
    monkeypatch.setattr("focoop.predict.hub_model.snapshot_download", fetch)
    model = HubModel.from_pretrained("me/fruit", revision="v1", client="global")
    assert model.classes == CLASSES and model.client is None
    assert (asked["repo"], asked["revision"]) == ("me/fruit", "v1")
    assert "model.safetensors" in asked["allow_patterns"]
    assert "model.onnx" not in asked["allow_patterns"]
