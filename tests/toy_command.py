"""The command line in a test: runs small enough to wait for."""

from pathlib import Path

from typer.testing import CliRunner, Result

from focoop.cli import app

ROOT = Path(__file__).resolve().parents[1]
TINY = [
    "--set=partition.clients=2",
    "--set=partition.shots=1",
    "--set=federation.epochs=1",
    "--set=federation.rounds=2",
    "--set=federation.batch_size=64",
    "--set=data.corrupted=[]",
    '--set=data.ood=["demo:dtd_32px"]',
]
FAST = [*TINY, "--set=method.name=promptfl"]
PRIVATE = [*TINY, "--set=method.bos=false", "--set=negatives.count=10"]  # focoop keeps tensors


class SlowClock:
    """Stands in for the module `time`: two seconds pass between any two looks."""

    seconds = 0.0

    def monotonic(self) -> float:
        self.seconds += 2.0
        return self.seconds


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))
