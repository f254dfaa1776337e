"""`focoop federation`: a coordinator's federation, from one command to the last round."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from focoop.cli import completion
from focoop.cli.keys import need_flower
from focoop.cli.screen import (
    Overrides,
    Track,
    Untuned,
    Weights,
    load_config,
    load_tuned,
    messages,
    out,
    with_weights,
)
from focoop.cli.site import Classes, class_names
from focoop.cli.site_status import LogJson
from focoop.cli.status_page import STATUS_PORT, DisplayOptions, StatusPort
from focoop.errors import ConfigError

if TYPE_CHECKING:
    from focoop.config import RunConfig

app = typer.Typer(
    name="federation", no_args_is_help=True, help="A coordinator's federation and its sites."
)
OWN = "folder:images"  # stands for each site's images in the study's settings
Name = Annotated[Path, typer.Argument(metavar="NAME", help="The federation's folder.")]


@app.command()
def create(
    folder: Name,
    hosts: Annotated[
        list[str],
        typer.Option(
            "--host",
            metavar="HOST[:PORT]",
            help="Name or address of this server for the sites; may be repeated. Port 8000.",
        ),
    ],
    sites: Annotated[
        str, typer.Option("--sites", metavar="A,B,...", help="Names of the sites, in their order.")
    ],
    classes: Classes,
    file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="CONFIG.toml",
            help="Settings of the study; other settings have their defaults.",
            autocompletion=completion.configuration,
        ),
    ] = None,
    overrides: Overrides = None,
    weights: Weights = None,
    quorum: Annotated[
        float, typer.Option(help="Share of clients that must answer in a round.")
    ] = 0.5,
    untuned: Untuned = False,
) -> None:
    """Make a federation: its keys, its study, and a join bundle for each site.

    Settings that are not given have the method's tuned values; NAME/run.toml has them all.
    """
    need_flower()
    from focoop.flower import Federation, Policy, Refusal, host_port
    from focoop.flower import create as make
    from focoop.scenario import check_parties

    names = [part.strip() for part in sites.split(",") if part.strip()]
    # Settings that depend on the data have the values for images of one's own, as in `focoop run`.
    overrides = with_weights(overrides, weights and weights.absolute())
    given = [f"data.id={OWN}", f"partition.clients={max(1, len(names))}", *(overrides or [])]
    config, _ = load_tuned(file, given, None, untuned)
    config = replace(config, name=config.name or folder.resolve().name)
    check_parties(config, len(names))
    try:
        Policy().check(config)
    except Refusal as refusal:
        advice = f"note: sites must open their policy.toml for this study: {refusal}"
        messages().print(advice, markup=False, soft_wrap=True)
    for note in study_notes(config):
        messages().print(f"note: {note}", markup=False, soft_wrap=True)
    addresses = [host_port(text) for text in hosts]
    ports = {port for _, port in addresses}
    if len(ports) > 1:
        raise ConfigError("all hosts must have the same port")
    federation = Federation(tuple(host for host, _ in addresses), ports.pop(), quorum=quorum)
    bundles = make(folder, federation, names, config, classes)
    console = out()
    advice = "send each site its bundle so that nobody else can read it; each can be used once:"
    console.print(f"made the federation {folder}; {advice}", markup=False, soft_wrap=True)
    for path in bundles:
        console.print(f"  {path}", markup=False, soft_wrap=True)
    console.print(f"then: focoop federation start {folder}", markup=False, soft_wrap=True)


def study_notes(config: "RunConfig") -> list[str]:
    """Say what somebody who makes a study may not expect of its settings.

    Args:
        config: The study's settings.

    Returns:
        A sentence each.
    """
    from focoop.flower import Policy
    from focoop.methods import lookup

    notes, rounds, name = [], config.federation.rounds, config.method.name
    if lookup(name).closed_form and rounds > 1:
        notes.append(
            f"{name} adds up what sites measure and trains nothing: one round is enough, and "
            f"{rounds} rounds tell the same {rounds} times (--set federation.rounds=1)"
        )
    if Policy().raise_least_images(config) != config:
        notes.append(
            f"{name}: a site sends nothing of a class of which it has fewer than "
            f"{Policy().least_images} training images, unless its policy.toml says otherwise "
            "(least_images)"
        )
    # Without a number, images that `shots` leaves over are taken; sites train on all of theirs.
    if config.data.calibration == 0 or (config.data.calibration < 0 and not config.partition.shots):
        notes.append(
            "no images are set aside for thresholds: models will not answer unknown until a site "
            "calibrates its own (--set data.calibration=0.2 takes a fifth of each class)"
        )
    return notes


@app.command()
def start(
    folder: Name,
    listen: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Address to listen on, instead of all.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="Port to listen on, if the public port is forwarded to another one."),
    ] = None,
    status_port: StatusPort = STATUS_PORT,
    log_json: LogJson = False,
    track: Track = None,
) -> None:
    """Serve the sites and run the study to its end; a run that was stopped goes on."""
    need_flower()
    from focoop.cli.coordinator import serve, study_settings
    from focoop.flower import CLASSES, RUN, aside, is_done, listed, numbered, read

    federation = read(folder)
    config = load_config(folder / RUN, None, None, own=True)
    path, keys = (folder / "run").resolve(), folder / "keys"
    classes = class_names(str(folder / CLASSES)) or ""
    if is_done(path, config, listed(classes), numbered(keys).values()):
        text = f"{path} is finished. For another run, as with new images: {aside(path)}"
        messages().print(text, markup=False, soft_wrap=True)
        return
    settings = study_settings(
        config,
        keys,
        classes,
        path,
        quorum=federation.quorum,
        spare=federation.spare,
        deadline=federation.deadline,
        wait=federation.wait,
        rejoin=federation.rejoin,
        resume=(path / "manifest.json").is_file(),
    )
    where = listen or federation.listen, port or federation.port
    again = "start it again by the same command"
    display = DisplayOptions(config.federation.rounds, status_port, log_json)
    serve(keys, where, path, settings, display, again, track or ())


@app.command("invite")
def invite_site(
    folder: Name, site: Annotated[str, typer.Argument(metavar="SITE", help="The site's name.")]
) -> None:
    """Make a new join bundle: for a new site, or for one whose key is lost, which ends the old key.

    For a new site a coordinator that runs must be started again: its number of sites is fixed.
    """
    need_flower()
    from focoop.flower import invite_site as make

    path = make(folder, site)
    advice = f"send {path} to {site} so that nobody else can read it; it can be used once"
    out().print(advice, markup=False, soft_wrap=True)
