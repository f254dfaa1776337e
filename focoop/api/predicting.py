"""Open a trained model to ask it about images."""

from pathlib import Path

from focoop.errors import RunError
from focoop.predict import FILE, Client, Model, model_of_run, read_model
from focoop.runs import CONFIG, RunFolder


def load_model(
    path: str | Path,
    client: Client = None,
    *,
    device: str | None = None,
    weights: str | Path | None = None,
) -> Model:
    """Open the model of a run folder, or one that was exported.

    Args:
        path: A run folder, the folder of an exported model, or its file `model.safetensors`.
        client: Number or name of the client that is asked where a call names none; None: the global
            model.
        device: A torch device; by default that of the run, or the CPU.
        weights: The backbone's weights, where an exported model does not find them.

    Returns:
        The model. No image of the run's data is needed.

    Raises:
        RunError: The folder holds neither, or there is no such client.

    Example:
        ```python
        model = focoop.load_model("runs/demo", client=0)
        for answer in model.predict(["cat.jpg", "wall.jpg"]):
            print(answer.source, answer.verdict, answer.label)
        ```
    """
    place = Path(path)
    if place.is_file() or (place / FILE).is_file():
        return read_model(place, client, device, weights)
    if (place / CONFIG).is_file():
        return model_of_run(RunFolder.open(place), client, device)
    what = "is neither a run folder nor an exported model" if place.exists() else "does not exist"
    raise RunError(f"{place} {what}: give a folder of focoop run or of focoop export")
