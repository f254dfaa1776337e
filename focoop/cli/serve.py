"""The command `focoop serve`: a trained model behind HTTP, and the page."""

from pathlib import Path
from typing import Annotated

import typer

from focoop.cli.screen import Device, Weights, messages, out

Models = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODEL...",
        help="Run folders or exported models; NAME=FOLDER gives one a name of its own.",
    ),
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")]


def serve(
    models: Models = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but this machine's own needs --keys.")
    ] = "127.0.0.1",
    port: Port = 8080,
    keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Ask for API keys; FILE holds their hashes.")
    ] = None,
    add_key: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Add a key to the file of --keys, show it once, and exit."
        ),
    ] = None,
    no_keys: Annotated[
        bool, typer.Option("--no-keys", help="Serve other machines without asking for keys.")
    ] = False,
    open_share: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Where the dial of the page starts: 0 only own classes, 1 all classes alike.",
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, help="Largest number of images encoded together.")
    ] = 8,
    wait: Annotated[
        float,
        typer.Option(min=0, help="Milliseconds an image waits for others to be encoded with it."),
    ] = 4.0,
    queue: Annotated[
        int, typer.Option(min=1, help="Images that may wait; further requests get status 503.")
    ] = 256,
    max_images: Annotated[
        int, typer.Option(min=1, help="Largest number of images in a request.")
    ] = 32,
    max_megabytes: Annotated[
        float, typer.Option(min=0.001, help="Largest size of an image file.")
    ] = 20.0,
    max_megapixels: Annotated[float, typer.Option(min=0.001, help="Pixels of an image.")] = 25.0,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Time to receive a request, and to answer it.")
    ] = 30.0,
    weights: Weights = None,
    device: Device = None,
) -> None:
    """Answer images over HTTP, with a page at /: one of my classes, another site's, or unknown."""
    from focoop.errors import ConfigError
    from focoop.serve import Limits
    from focoop.serve import add_key as new_key
    from focoop.serve import serve as run_server

    if add_key is not None:
        if keys is None:
            raise ConfigError("say where keys are kept: --keys keys.txt --add-key NAME")
        messages().print(f"the key of {add_key}; it cannot be shown again:", soft_wrap=True)
        out().print(new_key(keys, add_key), soft_wrap=True)
        return
    if not models:
        raise ConfigError("name a run folder or an exported model: focoop serve runs/demo/focoop")
    bytes_each = round(max_megabytes * 1e6)
    limits = Limits(
        images=max_images,
        image_bytes=bytes_each,
        request_bytes=max(64 * 2**20, bytes_each + 2**16),
        held_bytes=max(256 * 2**20, 4 * bytes_each),
        pixels=round(max_megapixels * 1e6),
        queue=queue,
        batch=batch,
        wait=wait / 1000,
        seconds=seconds,
    )
    run_server(
        models,
        host=host,
        port=port,
        keys=keys,
        open_to_all=no_keys,
        limits=limits,
        device=device,
        open_share=open_share,
        weights=weights,
        on_ready=tell_address,
    )
    tell_stopped()


def require_serve() -> None:
    """Stop before long work where the packages of a server are missing."""
    from focoop.serve import require_extra

    require_extra()


def tell_stopped() -> None:
    """Say that a signal ended the server, after what was taken had been answered."""
    messages().print("stopped: what was taken has been answered")


def tell_address(address: str) -> None:
    """Say where the page is.

    Args:
        address: The server's address.
    """
    messages().print(f"open {address} (Ctrl-C ends it)", markup=False, soft_wrap=True)
