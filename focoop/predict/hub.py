"""Send an exported model to the Hugging Face hub, which accepts its folder as it is."""

from __future__ import annotations

from pathlib import Path

from focoop.errors import MissingExtra, RunError
from focoop.predict.export_folder import CARD, FILE, FILES, SUMS, check_sums, write_sums

# What is sent; whatever else lies in the folder stays there.
SENT = (*FILES, SUMS)


def push(folder: str | Path, repo: str, *, public: bool = False) -> str:
    """Send an exported model to a repository of the hub, which is made where there is none.

    The token is the one that `hf auth login` or the variable HF_TOKEN gave.

    Args:
        folder: The exported model.
        repo: The repository, such as `me/my-model`.
        public: Whether a new repository is public.

    Returns:
        The address of the commit.

    Raises:
        MissingExtra: huggingface_hub is not installed.
        RunError: The folder holds no model, a file of it is damaged, or the hub refuses it.
    """
    try:
        from huggingface_hub import HfApi
    except ModuleNotFoundError as error:
        raise MissingExtra("the hub needs huggingface_hub: pip install 'focoop[export]'") from error
    place = Path(folder)
    if not (place / FILE).is_file():
        raise RunError(f"{place} holds no exported model; focoop export RUN --out MODEL writes one")
    if CARD not in check_sums(place):
        write_sums(place, [CARD])  # it was edited
    api = HfApi(library_name="focoop")
    try:
        api.create_repo(repo, repo_type="model", private=not public, exist_ok=True)
        done = api.upload_folder(
            repo_id=repo,
            repo_type="model",
            folder_path=place,
            allow_patterns=list(SENT),
            commit_message="Model exported by focoop",
        )
    except Exception as error:  # of the hub's client and of the one below it, of many kinds
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RunError(
            f"the hub does not take {place} as {repo} ({reason}): check the name, the network and "
            "your token (hf auth login)"
        ) from error
    return str(getattr(done, "commit_url", done))
