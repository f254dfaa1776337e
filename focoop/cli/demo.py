"""The command `focoop demo`: a few methods trained and compared on packaged features."""

import itertools
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from focoop.cli.run import print_results, train
from focoop.cli.screen import AsJson, Device, Overrides, load_config, out, print_json
from focoop.cli.serve import Port, require_serve, tell_address, tell_stopped
from focoop.errors import RunError

if TYPE_CHECKING:
    from focoop.config import RunConfig

# Files of configs/demo and the columns they fill.
METHODS = {
    "zeroshot": "zero-shot",
    "promptfl": "PromptFL",
    "focoop": "FOCoOp",
    "focoop_plus": "FOCoOp+",
}
SETS = (
    "dtd_32px, sun_32px: foreign images, textures and scenes, reduced to 32 px, as blurred as the "
    "known ones"
)
FOLDER = Path("runs/demo")
SERVED = "focoop_plus"
# Where the dial stands: half of the images are expected of own classes. FOCoOp+ was set up with 0.3
# for accuracy on own classes, and tells 58% of other clients' images; here it tells 65%
# (docs/guides/predict.md).
OPEN_SHARE = 0.5


def demo(
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder of the runs; default runs/demo, then runs/demo-2, ...",
        ),
    ] = None,
    overrides: Overrides = None,
    device: Device = None,
    as_json: AsJson = False,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve", help="Then serve the result as a web page; a finished demo is not run again."
        ),
    ] = False,
    port: Port = 8080,
) -> None:
    """Compare zero-shot, PromptFL, FOCoOp and FOCoOp+ on ten clients' CIFAR-100 features."""
    if serve:
        require_serve()
    configs = {method: demo_config(method, overrides, device) for method in METHODS}
    folder = folder or _free_folder(configs, finished=serve)
    rows, paths = [], []
    for method, label in METHODS.items():
        path = folder / method
        summary = train(configs[method], path, resume=True, quiet=as_json, label=label)
        rows.append((label, summary))
        paths.append(path)
    if as_json:
        return print_json(
            [
                {"method": label, "folder": str(path), "summary": summary}
                for (label, summary), path in zip(rows, paths, strict=True)
            ]
        )
    print_results(rows, paths)
    out().print(SETS)
    if serve:
        return _serve(folder, port)
    again = "" if folder == FOLDER else f" --out {folder}"
    command = _command()
    out().print(f"ask it about images: {command} demo --serve{again}", soft_wrap=True)
    out().print(f"images of your own, PATH/CLASS/*: {command} data check folder:PATH, then")
    out().print(f"    {command} run --set data.id=folder:PATH", soft_wrap=True)
    return None


def _command() -> str:
    """How this command was called: `focoop`, or where it lies if the shell does not find it."""
    called = Path(sys.argv[0])
    if called.name != "focoop" or shutil.which("focoop") == str(called.absolute()):
        return "focoop"
    return os.path.relpath(called)


def _serve(folder: Path, port: int) -> None:
    """Serve the demo's last method, calibrated on half of the test images: all others train."""
    from focoop.api import calibrate
    from focoop.predict import CALIBRATION
    from focoop.serve import serve

    run = folder / SERVED
    if not (run / CALIBRATION).is_file():
        calibrate(run, from_test=True)
    serve([run], port=port, open_share=OPEN_SHARE, on_ready=tell_address)
    tell_stopped()


def demo_config(
    method: str, overrides: list[str] | None = None, device: str | None = None
) -> "RunConfig":
    """Load the settings of one of the demo's runs, `configs/demo/METHOD.toml`.

    Args:
        method: The method's name.
        overrides: Texts such as `federation.rounds=3`.
        device: The device, or None.

    Returns:
        The settings.
    """
    from focoop.config import shipped

    return load_config(shipped("demo") / f"{method}.toml", overrides, device)


def _free_folder(configs: "dict[str, RunConfig]", *, finished: bool = False) -> Path:
    """The first of runs/demo, runs/demo-2, ... that is free or holds this demo unfinished.

    With `finished` one that holds this demo finished will do as well.
    """
    from focoop.runs import RunFolder

    for number in itertools.count(1):
        folder = FOLDER if number == 1 else Path(f"{FOLDER}-{number}")
        if not folder.exists():
            return folder
        names = sorted(path.name for path in folder.iterdir() if path.is_dir())
        try:
            runs = {name: RunFolder.open(folder / name) for name in names}
        except RunError:
            continue
        same = all(name in configs and run.config == configs[name] for name, run in runs.items())
        done = all(name in runs and runs[name].status == "finished" for name in configs)
        if same and (finished or not done):
            return folder
    raise AssertionError("itertools.count ended")
