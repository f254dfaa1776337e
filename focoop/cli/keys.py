"""Commands that make keys: `focoop keys` for a federation, `focoop site key` for one site."""

from pathlib import Path
from typing import Annotated

import typer

from focoop.cli.screen import out
from focoop.errors import ConfigError, MissingExtra


def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the federation's keys.")],
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", help="Name or address of the server; may be repeated."),
    ] = None,
    sites: Annotated[
        list[str] | None,
        typer.Option(
            "--site",
            metavar="NAME[=KEY.pub]",
            help="A site, with its public key if it made one; may be repeated.",
        ),
    ] = None,
    add: Annotated[bool, typer.Option("--add", help="Add these sites to DIR.")] = False,
    renew: Annotated[
        bool, typer.Option("--renew", help="Make a new certificate of the server in DIR.")
    ] = False,
) -> None:
    """Make a federation's keys: an authority, the server's certificate, one key per site."""
    need_flower()
    from focoop.flower import add_sites, make_keys, renew_server

    given = dict(text.partition("=")[::2] for text in sites or [])
    if len(given) < len(sites or []):
        raise ConfigError("two sites have the same name")
    publics = {name: Path(path) for name, path in given.items() if path}
    console = out()
    if renew:
        if not hosts or add or sites:
            raise ConfigError("--renew makes the server's certificate alone: give it --host")
        renew_server(folder, hosts)
        return console.print(f"a new certificate in {folder}; start the coordinator again")
    if add:
        if hosts:
            raise ConfigError("--add adds sites; a host needs --renew")
        add_sites(folder, list(given), publics)
    else:
        make_keys(folder, hosts or [], list(given), publics)
    console.print(f"keys in {folder}; give each site its folder and nothing else:", markup=False)
    for name in given:
        console.print(f"  {folder / 'sites' / name}", markup=False, soft_wrap=True)
    return None


def site_key(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="This site's folder of keys.")],
    name: Annotated[str, typer.Option(help="This site's name.")],
) -> None:
    """Make this site's key here; only DIR/key.pub is sent to the coordinator."""
    need_flower()
    from focoop.flower import make_site_key

    make_site_key(folder, name)
    advice = f"send {folder / 'key.pub'} to the coordinator; {folder / 'key'} stays here"
    out().print(advice, markup=False, soft_wrap=True)


def need_flower() -> None:
    """Refuse where flwr is not installed."""
    try:
        import flwr  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtra("this needs Flower: pip install 'focoop[flower]'") from error
