"""Runs without their models in a few small files, and back, for reports on another machine.

    python tools/pack_runs.py pack RUNS OUT    # finished runs below RUNS: OUT/runs-1.tar.xz ...
    python tools/pack_runs.py unpack OUT FOLDER

`focoop report FOLDER` shows unpacked runs; only what asks the models again is missing.
"""

import argparse
import io
import shutil
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from focoop.runs import CONFIG, RunFolder, slim_files

KEPT_MEMORY = ("plan_by_word", "seemly")  # of the first seed's server, for the report
LARGEST = 12 * 2**20  # bytes of a packed file, which may come out a little larger


def pack(folders: Sequence[Path], runs: Path, out: Path) -> list[Path]:
    """Write finished runs without their models into files of a few MiB.

    Args:
        folders: The run folders.
        runs: The folder that their names are relative to.
        out: Where the files are written.

    Returns:
        The files.
    """
    files: list[Path] = []
    left = sorted(folders)
    while left:
        files.append(out / f"runs-{len(files) + 1}.tar.xz")
        with files[-1].open("wb") as raw, tarfile.open(fileobj=raw, mode="w:xz", preset=3) as tar:
            while left and raw.tell() < LARGEST:
                folder = left.pop(0)
                kept = KEPT_MEMORY if folder.name == "seed0" else ()
                for name, content in slim_files(RunFolder.open(folder), kept).items():
                    entry = tarfile.TarInfo(f"{folder.relative_to(runs).as_posix()}/{name}")
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))
    return files


def unpack(files: Path, folder: Path) -> int:
    """Lay packed runs out in a folder, and reports beside them.

    Args:
        files: The folder of packed files.
        folder: The folder of runs.

    Returns:
        How many runs the folder holds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(files.glob("runs-*.tar.xz")):
        with tarfile.open(path) as tar:
            tar.extractall(folder, filter="data")
    for path in files.glob("report*.html"):
        shutil.copy(path, folder / path.name)
    return sum(1 for _ in folder.rglob(CONFIG))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=["pack", "unpack"])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    given = parser.parse_args(arguments)
    if given.command == "unpack":
        print(f"{unpack(given.source, given.target)} runs in {given.target}")
        return 0
    folders = [path.parent for path in given.source.rglob(CONFIG)]
    done = [path for path in folders if RunFolder.open(path).status == "finished"]
    given.target.mkdir(parents=True, exist_ok=True)
    files = pack(done, given.source, given.target)
    size = sum(path.stat().st_size for path in files)
    print(f"{len(done)} of {len(folders)} runs in {len(files)} files, {size / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
