"""A model with the methods that the Hugging Face hub gives models: load, save and send.

    model = HubModel.from_pretrained("me/my-model", client=0)  # or the folder of an export
    model.predict(["photo.jpg"])
    HubModel(focoop.load_model("runs/mine")).push_to_hub("me/my-model")

Nothing is sent unless `push_to_hub` is called; a new repository is then private.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from focoop.errors import MissingExtra
from focoop.predict.export_folder import ALWAYS
from focoop.predict.facts import Client
from focoop.predict.model import Model
from focoop.predict.model_file import read_model

try:
    from huggingface_hub import ModelHubMixin, snapshot_download
except ModuleNotFoundError as error:
    raise MissingExtra("the hub needs huggingface_hub: pip install 'focoop[export]'") from error


class HubModel(Model, ModelHubMixin, library_name="focoop"):
    """A `Model` with `from_pretrained`, `save_pretrained` and `push_to_hub` of `huggingface_hub`.

    The folder is the one that `focoop export` writes. `from_pretrained` takes `client`, `device`
    and `weights` too, as `focoop.load_model` does.

    Args:
        model: The model of a run or of an exported folder.
    """

    def __init__(self, model: Model) -> None:
        vars(self).update(vars(model))

    def push_to_hub(self, repo_id: str, *, private: bool | None = True, **options: Any) -> str:
        """Send the model to a repository of the hub, which is made where there is none.

        Args:
            repo_id: The repository, such as `me/my-model`.
            private: Whether a new repository is private.
            **options: What the hub's own method takes, such as `token` and `commit_message`.

        Returns:
            The address of the commit.
        """
        done = super().push_to_hub(repo_id, private=private, **options)
        return str(getattr(done, "commit_url", done))

    def _save_pretrained(self, save_directory: Path) -> None:
        self.save(save_directory)

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        client: Client = None,
        device: str | None = None,
        weights: str | Path | None = None,
        **options: Any,
    ) -> HubModel:
        folder = Path(model_id)
        if not folder.is_dir():  # a repository: of its files those that every export has
            folder = Path(str(snapshot_download(model_id, allow_patterns=[*ALWAYS], **options)))
        return cls(read_model(folder, client, device, weights))
