"""The command `focoop demo`: a few methods trained and compared on packaged features."""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from focoop.cli.run import print_results, train
from focoop.cli.screen import AsJson, Device, Overrides, load_config, print_json
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
FOLDER = Path("runs/demo")


def demo(
    folder: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder of the runs; default runs/demo, demo-2."),
    ] = None,
    overrides: Overrides = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Compare zero-shot, PromptFL, FOCoOp and FOCoOp+ on ten clients' CIFAR-100 features."""
    configs = {method: demo_config(method, overrides, device) for method in METHODS}
    folder = folder or _free_folder(configs)
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
    return None


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


def _free_folder(configs: "dict[str, RunConfig]") -> Path:
    """The first of runs/demo, runs/demo-2, ... that is free or holds this demo unfinished."""
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
        if same and any(name not in runs or runs[name].status != "finished" for name in configs):
            return folder
    raise AssertionError("itertools.count ended")
