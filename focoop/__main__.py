"""Entry point of `focoop` and `python -m focoop`."""

import sys

MISSING = """focoop's command line needs typer and rich, which a plain install brings along:
  pip install typer rich"""


def main() -> None:
    """Run the command line, or say what it lacks."""
    try:
        from focoop.cli import main as run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(MISSING, file=sys.stderr)
        sys.exit(1)
    run()


if __name__ == "__main__":
    main()
