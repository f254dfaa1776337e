"""Write files that survive a crash: whole or not at all, and on the disk when a call returns."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from focoop.errors import RunError

DRAFT = ".draft"
IN_USE = "wait for it, or choose another folder with --out"
TOGETHER = 16  # files that wait for the disk at a time


def write(path: Path, content: bytes, *, wait: bool = True) -> None:
    """Replace a file in one step; a reader sees the old content or the new, never a part.

    Args:
        path: The file.
        content: All of its bytes.
        wait: Wait until it is on the disk; otherwise `sync` must follow before anything relies on
            it, since a power cut may leave an empty file.

    Raises:
        RunError: It cannot be written.
    """
    draft = path.with_name(path.name + DRAFT)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(draft, "wb") as file:
            file.write(content)
            file.flush()
            if wait:
                os.fsync(file.fileno())
        os.replace(draft, path)
        if wait:
            _sync_one(path.parent)
    except OSError as error:
        raise refusal(path, error) from error


def sync(paths: Collection[Path]) -> None:
    """Wait until files or folders are on the disk, all together.

    Waiting for each in turn costs a turn of the disk per file; a disk that is asked for many at
    once writes them in few.

    Args:
        paths: Files that were written without waiting, and the folders of their names.

    Raises:
        RunError: One cannot be written.
    """
    if not paths:
        return
    with ThreadPoolExecutor(min(len(paths), TOGETHER)) as pool:
        done = [(path, pool.submit(_sync_one, path)) for path in paths]
    for path, future in done:
        try:
            future.result()
        except OSError as error:
            raise refusal(path, error) from error


def append(path: Path, content: bytes) -> None:
    """Add to the end of a file; a crash leaves a beginning of the content at worst.

    Args:
        path: The file.
        content: The bytes to add.

    Raises:
        RunError: It cannot be written.
    """
    try:
        with open(path, "ab") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise refusal(path, error) from error


def keep_copy(path: Path, copy: Path) -> None:
    """Give a file a second name, under which it stays when the first is replaced.

    Args:
        path: The file.
        copy: Its second name; what had it is replaced.

    Raises:
        RunError: It cannot be written.
    """
    draft = copy.with_name(copy.name + DRAFT)
    try:
        if copy.exists() and os.path.samefile(path, copy):  # replacing it by itself does nothing
            return
        if draft.exists():
            draft.unlink()
        os.link(path, draft)
        os.replace(draft, copy)
    except OSError:  # a file system without links
        try:
            content = path.read_bytes()
        except OSError as error:
            raise refusal(copy, error) from error
        write(copy, content)


def remove(path: Path) -> None:
    """Remove a file that may be gone already.

    Args:
        path: The file.

    Raises:
        RunError: It cannot be removed.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise refusal(path, error) from error


class Lock:
    """A lock that one process at a time can hold.

    It is the kernel's lock on a file, and is released when its process ends, however it ends.

    Args:
        path: The lock's file, in the folder that it guards.
        advice: What somebody should do who finds the folder in use.
    """

    def __init__(self, path: Path, advice: str = IN_USE) -> None:
        self.path, self.advice = path, advice
        self._file: IO[str] | None = None

    def take(self) -> None:
        """Take the lock.

        Raises:
            RunError: Another process holds it; the message says which. Or it cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = open(self.path, "a+", encoding="utf-8")  # noqa: SIM115 - held until `release`
        except OSError as error:
            raise refusal(self.path, error) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                file.seek(0)
                holder = file.read().strip() or "unknown"
                file.close()
                raise RunError(
                    f"{self.path.parent} is in use by another process (id {holder}): {self.advice}"
                ) from error
            # A file system without locks: the run goes on unguarded.
        try:
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        except OSError as error:
            with contextlib.suppress(OSError):
                file.close()  # it tries to write once more
            raise refusal(self.path, error) from error
        self._file = file

    def release(self) -> None:
        """Give the lock back; harmless where it is not held."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def free(self) -> bool:
        """Return whether no living process holds the lock."""
        try:
            with open(self.path, encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return True
        except OSError as error:
            return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
        return True


@contextlib.contextmanager
def locked(path: Path, advice: str = IN_USE) -> Iterator[None]:
    """Hold a lock inside this context.

    Args:
        path: The lock's file, in the folder that it guards.
        advice: What somebody should do who finds the folder in use.

    Yields:
        Nothing.
    """
    lock = Lock(path, advice)
    lock.take()
    try:
        yield
    finally:
        lock.release()


def _sync_one(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def refusal(path: Path, error: OSError) -> RunError:
    """Return the error that says which file could not be written and what to do.

    Args:
        path: The file.
        error: What the system said.

    Returns:
        The error to raise.
    """
    advice = (
        "free some space, then continue with --resume"
        if error.errno in (errno.ENOSPC, errno.EDQUOT)
        else "check the folder and its permissions, or choose another with --out"
    )
    return RunError(f"cannot write {path}: {error.strerror or error}; {advice}")
