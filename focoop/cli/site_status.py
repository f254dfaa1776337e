"""`focoop site status`: how a site stands, as its `focoop site join` last wrote it down."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from focoop.cli.keys import need_flower
from focoop.cli.screen import AsJson, messages, out, print_json

LogJson = Annotated[bool, typer.Option("--log-json", help="Write every event as one line of JSON.")]
Alive = Annotated[
    bool,
    typer.Option("--alive", help="Exit code 1 unless focoop site join runs now: a health check."),
]
State = Annotated[Path, typer.Option(metavar="DIR", help="State folder of focoop site join.")]


def site_status(
    state: State = Path("focoop-site"), alive: Alive = False, as_json: AsJson = False
) -> None:
    """Show how this site stands: connected or not, rounds, what was sent, refused, left out.

    Also what its noised updates have cost in epsilon, and whose keys it knows from secure sums.

    Exit code 0 whatever the state is, unless --alive is given; 6 where no site has joined there.
    """
    need_flower()
    from focoop.flower import privacy_facts, privacy_sentences, read_status, sentences

    status = {**read_status(state), **privacy_facts(state)}
    if as_json:
        print_json(status)
    else:
        for line in [*sentences(status), *privacy_sentences(status)]:
            out().print(line, markup=False, soft_wrap=True)
    if alive and not status["running"]:
        raise typer.Exit(1)


def speaker(name: str, log_json: bool) -> Callable[[dict[str, Any], str], None]:
    """Return how a site's events are shown: a line for people, or JSON for programs.

    Args:
        name: The site's name.
        log_json: JSON for programs.

    Returns:
        A function of event and line.
    """
    console = messages()

    def say(event: dict[str, Any], text: str) -> None:
        if log_json:
            typer.echo(json.dumps({"site": name, **event}), err=True)
        else:
            console.print(f"{name}: {text}", markup=False, soft_wrap=True)

    return say
