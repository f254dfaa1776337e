"""Write `log.txt` of a run: events with their times, warnings, and errors with their traceback.

The code that drives a run opens its log by `run_log`; then `RunFolder.log` writes there. Warnings
and records of the logger `focoop` are written too. A log is for people: nothing reads it, and one
that cannot be written does not stop a run.
"""

import logging
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from focoop.runs.files import LOG

FORMAT = "%(asctime)sZ %(levelname)-7s %(message)s"
# The run that this thread works on: runs that train side by side must not write in each other's
# log. A thread that belongs to none (a reader of images) is heard by all that are open.
_current: ContextVar[Path | None] = ContextVar("run log", default=None)
_open: list["_Handler"] = []
_lock = threading.Lock()


class _Handler(logging.FileHandler):
    """Appends to the log of one run."""

    def __init__(self, run: Path) -> None:
        super().__init__(run / LOG, encoding="utf-8", delay=True)
        self.run = run
        formatter = logging.Formatter(FORMAT, "%Y-%m-%d %H:%M:%S")
        formatter.converter = time.gmtime
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)  # the file is opened here, where it may be refused
        except OSError:
            self.handleError(record)

    def filter(self, record: logging.LogRecord) -> Any:
        return _current.get() in (None, self.run) and super().filter(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Say nothing: a full disk is told by the run's own files."""


@contextmanager
def run_log(run: Path, log: logging.Logger) -> Iterator[None]:
    """Keep a run's log inside this context; an error that ends it is written with its traceback.

    Args:
        run: The run folder.
        log: The run's own logger, `RunFolder.log`.

    Yields:
        Nothing.
    """
    handler, token = _Handler(run), _current.set(run)
    shared = logging.getLogger("focoop")
    for logger in (log, shared):
        logger.addHandler(handler)
    _listen(handler)
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        log.info("interrupted (%s)", type(error).__name__)
        raise
    except BaseException as error:
        log.error("failed: %s", error, exc_info=True)
        raise
    finally:
        _unlisten(handler)
        for logger in (log, shared):
            logger.removeHandler(handler)
        with suppress(OSError):  # what a full disk did not take is tried once more
            handler.close()
        _current.reset(token)


def _listen(handler: _Handler) -> None:
    """Write warnings to this log too, and show them as before."""
    with _lock:
        if not _open:
            _hook.install()
        _open.append(handler)


def _unlisten(handler: _Handler) -> None:
    with _lock:
        _open.remove(handler)
        if not _open:
            _hook.remove()


class _Hook:
    """Stands in for `warnings.showwarning` while a log is open."""

    def __init__(self) -> None:
        self._shown: Any = None

    def install(self) -> None:
        # A block of `catch_warnings` that outlived an earlier log may have put this one back.
        if warnings.showwarning != self.show:
            self._shown, warnings.showwarning = warnings.showwarning, self.show

    def remove(self) -> None:
        # Someone may have put another function there meanwhile, such as a test that records.
        if warnings.showwarning == self.show:
            warnings.showwarning = self._shown

    def show(self, message: Warning | str, *rest: Any, **more: Any) -> None:
        """Log a warning and hand it on."""
        record = logging.LogRecord(
            "focoop", logging.WARNING, "", 0, str(message), None, None, "warning"
        )
        for handler in list(_open):
            handler.handle(record)
        self._shown(message, *rest, **more)


_hook = _Hook()
