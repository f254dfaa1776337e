"""`focoop export`: a run's model as a folder of its own."""

from pathlib import Path
from typing import Annotated

import typer

from focoop.cli.screen import AsJson, Weights, messages, out, print_json


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    target: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the model.")],
    client: Annotated[
        list[str] | None,
        typer.Option(
            "--client",
            metavar="K",
            help="A client's number or name, global or all; may be given again; default global.",
        ),
    ] = None,
    onnx: Annotated[
        bool,
        typer.Option(
            "--onnx", help="Write model.onnx too, from pixels to the verdict of the first client."
        ),
    ] = False,
    push: Annotated[
        str | None,
        typer.Option(
            "--push", metavar="REPO", help="Send it to this repository of the Hugging Face hub too."
        ),
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="With --push: a new repository is public.")
    ] = False,
    weights: Weights = None,
    as_json: AsJson = False,
) -> None:
    """Write a model that needs neither the run nor a text tower: model.safetensors and its card."""
    from focoop.api import export as write
    from focoop.api import load_model

    chosen = client or ["global"]
    who = "all" if chosen == ["all"] else chosen
    write(folder, target, client=who, onnx=onnx, weights=weights)
    model = load_model(target)
    if model.calibration is None:
        messages().print(
            f"note: the run is not calibrated, so the model never answers unknown; to change that, "
            f"run focoop calibrate {folder} and export again"
        )
    if push:
        from focoop.predict import push as send

        messages().print(f"sent: {send(target, push, public=public)}", soft_wrap=True)
    size = sum(path.stat().st_size for path in target.iterdir())
    if as_json:
        return print_json({"folder": str(target), "answers_for": list(model.sides), "bytes": size})
    console = out()
    console.print(
        f"{target}: answers for {', '.join(model.sides[:8])}"
        f"{', ...' if len(model.sides) > 8 else ''}; {len(model.classes)} classes, "
        f"{size / 1e6:.1f} MB"
    )
    console.print(f"ask it: focoop predict {target} IMAGES...", soft_wrap=True)
    return None
