"""Entry point of `focoop` and `python -m focoop`."""

import os
import sys

MISSING = """focoop's command line needs typer and rich, which a plain install brings along:
  pip install typer rich"""


def main() -> None:
    """Run the command line, or say what it lacks."""
    try:
        import focoop.cli.interruption as interruption  # `from focoop.cli` would look for its names

        interruption.watch()  # before all that takes time
    except KeyboardInterrupt:  # a moment too early for it
        os.write(2, b"interrupted\n")
        os._exit(130)
    from focoop.errors import MissingExtra
    from focoop.lazy import defer
    from focoop.processor import apply_remembered_limit

    # Threads that wait asleep: spinning makes a shared machine several times slower. Read by OpenMP
    # when torch is first imported, which no command does before this line.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    apply_remembered_limit()
    defer("torch")  # commands that only print a table need none of it
    try:
        from focoop.cli import main as run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(MISSING, file=sys.stderr)
        sys.exit(MissingExtra.exit_code)
    run()


if __name__ == "__main__":
    main()
