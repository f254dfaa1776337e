"""Calibrate a run, open its model to ask it about images, and export it."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from focoop.clip import LabelledFeatures
from focoop.data import refuse_incomplete_of
from focoop.errors import ConfigError, DataError, RunError
from focoop.experiments import open_state
from focoop.features import FeatureSet, open_features
from focoop.federation import Owned
from focoop.predict import (
    CALIBRATION,
    COORDINATED,
    FILE,
    GLOBAL,
    ONNX,
    Calibration,
    Client,
    Model,
    calibration_of,
    dataset_of,
    from_sketches,
    halves,
    least_images,
    model_of_run,
    onnx_packages,
    read_model,
    sketches_of,
)
from focoop.predict import calibrate as find_thresholds
from focoop.runs import CONFIG, RunFolder, write


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
        weights: The backbone's weights, where they are no longer where they were.

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
        return model_of_run(RunFolder.open(place).look_for_weights(weights), client, device)
    raise _no_model(place)


def calibrate(
    path: str | Path,
    *,
    keep: float = 0.95,
    client: Client = None,
    images: str | FeatureSet | None = None,
    from_test: bool = False,
    device: str | None = None,
    weights: str | Path | None = None,
) -> Calibration:
    """Find the score above which a run's models answer `unknown`; keep it in the run folder.

    Split conformal prediction on images that took no part in training or tests: those that the run
    set aside (`data.calibration`), or images of your own. A new image of a known class is kept with
    probability `keep` or more, and its class is in its class set with that probability. A client
    with too few images gets the pool's threshold; a warning says so.

    Args:
        path: The run folder; or an exported model, which then keeps the thresholds of `images`.
        keep: Share of images of known classes to keep.
        client: Number or name of the client to calibrate alone, or `global`; None: all.
        images: Labelled images of this client in the place of those set aside: a dataset as the
            setting `data.id` takes it (`folder:PATH`), or features.
        from_test: Take half of every client's test images in their place, where a run trains on all
            others. The promise holds, as training never saw them; but the run's own metrics did.
        device: A torch device; by default the run's.
        weights: The backbone's weights, where they are no longer where they were.

    Returns:
        The calibration; it is written to `calibration.json`, where other clients' of the same round
        and `keep` stay.

    Raises:
        ConfigError: `keep` is out of range, or images were given without a client.
        DataError: There are no calibration images.
        RunError: Nothing is committed, or the data is not what the run was trained on.
    """
    least_images(keep)  # refuses a share out of range before anything is opened
    if images is not None and client is None:
        raise ConfigError("say whose images these are: --client K, or --client global")
    if (Path(path) / FILE).is_file():
        exported = read_model(Path(path), None, device, weights)
        return _calibrate_export(exported, Path(path), keep, client, images)
    if not (Path(path) / CONFIG).is_file():
        raise _no_model(Path(path))
    folder = RunFolder.open(path).look_for_weights(weights)
    if images is not None:
        model = model_of_run(folder, None, device, calibrated=False)
        key = model.key(client)
        owned = _given(model, key, images)
        told = sketches_of(folder)
        known = None if told is None else from_sketches(told, keep, [key])
        found = find_thresholds(model, owned, keep, clients=[key], before=known)
    elif COORDINATED in folder.manifest:
        found = _calibrate_coordinated(folder, keep, client, device)
    else:
        state = open_state(folder, device)
        backbone = state.scenario.backbone
        model = model_of_run(folder, None, device, backbone, calibrated=False)
        sets = state.scenario.sets
        aside, test = sets.calibration, sets.test
        if from_test:
            aside, test = halves(test, folder.config.seed)
        if aside is None:
            raise DataError(
                f"{folder.path} set no calibration images aside, as it trains on all images: run "
                "it with --set data.calibration=0.2, take half of the test images (--from-test), "
                "or give labelled images that took no part in it (--images folder:PATH --client K)"
            )
        keys = None if client is None else [model.key(client)]
        found = find_thresholds(model, aside, keep, clients=keys, test=test)
    found = replace(found, models=folder.models_sum())
    before = _before(folder)
    if before is not None and before.keep == keep:
        found = replace(found, sites={**before.sites, **found.sites})
    write(folder.path / CALIBRATION, found.to_json().encode())
    return found


def _no_model(place: Path) -> RunError:
    """Say that a folder holds neither a run nor a model."""
    what = "is neither a run folder nor an exported model" if place.exists() else "does not exist"
    return RunError(f"{place} {what}: give a folder of focoop run or of focoop export")


def _before(folder: RunFolder) -> Calibration | None:
    """The calibration that is there; a damaged one is made anew, and a warning says so."""
    try:
        return calibration_of(folder)
    except RunError as error:
        told = str(error).removesuffix(": run focoop calibrate again")
        warnings.warn(f"{told}: it is made anew, without other clients' thresholds", stacklevel=3)
        return None


def _calibrate_coordinated(
    folder: RunFolder, keep: float, client: Client, device: str | None
) -> Calibration:
    """Calibrate a coordinator's run: no image is here, but sketches of the sites' scores are."""
    told = sketches_of(folder)
    if told is None or not told.sites:
        reasons = (
            "they did not tell"
            if told is None
            else "; ".join(f"{name}: {reason}" for name, reason in told.left_out.items())
        )
        raise DataError(
            f"{folder.path} is a coordinator's and has no sketches of its sites' scores "
            f"({reasons}): give labelled images that took no part in it (--images folder:PATH "
            "--client K), or calibrate the model that each site keeps, there"
        )
    model = model_of_run(folder, None, device, calibrated=False)
    found = from_sketches(told, keep, model.keys if client is None else [model.key(client)])
    if told.left_out:
        names = "; ".join(f"{name}: {reason}" for name, reason in told.left_out.items())
        warnings.warn(f"the pool is without {names}", stacklevel=3)
    return found


def _calibrate_export(
    model: Model, path: Path, keep: float, client: Client, images: str | FeatureSet | None
) -> Calibration:
    """Calibrate a client of an exported model, such as one whose classes were changed."""
    if images is None:
        raise DataError(
            f"{path} is an exported model and has no images: give labelled images that took no "
            "part in training (--images folder:PATH --client K)"
        )
    key = model.key(client)
    before = model.calibration
    owned = _given(model, key, images)
    found = find_thresholds(model, owned, keep, clients=[key], before=before)
    if before is not None and before.keep == keep:
        found = replace(found, sites={**before.sites, **found.sites})
    model.calibration = found
    model.save(path)  # an ONNX file goes: its thresholds are those of before
    return found


def export(
    path: str | Path,
    out: str | Path,
    *,
    client: Client | Sequence[Client] = "global",
    onnx: bool = False,
    weights: str | Path | None = None,
) -> Path:
    """Write the model of a run into a folder of its own: `model.safetensors` and its card.

    Args:
        path: The run folder, or an exported model.
        out: The folder, absent or empty, or one that holds an exported model.
        client: Number or name of a client, `global`, several of these, or `all`.
        onnx: Write `model.onnx` too, from pixels to the verdict, for the first of these clients.
        weights: The backbone's weights, where they are no longer where they were.

    Returns:
        The folder.

    Raises:
        RunError: There is no such client, or the folder holds something else.
        MissingExtra: ONNX is asked for, and its packages are not installed.
    """
    if onnx:
        onnx_packages()  # nothing is written where they are missing
    model = load_model(path, weights=weights)
    if client == "all" and "all" not in model.clients:
        folder = model.save(out)
    else:
        single = client is None or isinstance(client, int | str)
        folder = model.save(out, [client] if single else list(client))  # type: ignore[arg-type,list-item]
    if onnx:
        saved = load_model(folder, device="cpu", weights=weights)
        saved.to_onnx(folder / ONNX, client=GLOBAL if saved.keys[0] is None else saved.keys[0])
    return folder


def _given(model: Model, client: int | None, images: str | FeatureSet) -> Owned:
    """Labelled images of a client, by the model's classes."""
    if isinstance(images, str):
        refuse_incomplete_of([dataset_of(images)])
        images = open_features(
            dataset_of(images),
            "all",
            model.backbone,
            with_patches=bool(model.method.patch_kind),
            patch_kind=model.method.patch_kind,
        )
    known = images.with_classes(model.classes)
    part = LabelledFeatures(known.pooled, known.patches, known.labels)
    rows, nothing = np.arange(len(part)), np.zeros(0, np.int64)
    index = [rows if k == (client or 0) else nothing for k in range(len(model.clients))]
    return Owned(part, index)
