"""Standard output that may fail: a full disk or a closed pipe stops no work and makes no traceback.

Rounds of hours are printed into files and pipes. Where one of them takes nothing any more, the work
goes on, and the command says so at its end.
"""

import errno
import io
import logging
import os
import sys
from typing import Any


class Output(io.TextIOWrapper):
    """A text stream that falls silent where it cannot be written, and remembers why."""

    failed: OSError | None = None

    def write(self, text: str) -> int:
        """Write text, or nothing after a failure.

        Args:
            text: The text.

        Returns:
            Its length.
        """
        try:
            return super().write(text)
        except OSError as error:
            self._silence(error)
            return len(text)

    def flush(self) -> None:
        """Hand everything to the system, or nothing after a failure."""
        try:
            super().flush()
        except OSError as error:
            self._silence(error)

    def _silence(self, error: OSError) -> None:
        """Send what is left and all that follows nowhere."""
        self.failed = error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        reason = "it was closed" if error.errno == errno.EPIPE else error.strerror
        log = logging.getLogger("focoop")
        if log.hasHandlers():  # a run goes on and keeps a log
            log.warning("%s takes no more (%s): the work goes on", self.name, reason)


def open_outputs() -> None:
    """Put such streams in the places of standard output and standard error.

    Streams that a program put there itself, such as a notebook or a test, stay. Characters that
    the stream's encoding lacks, as of file names in other encodings, are written as escapes.
    """
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:  # closed by whoever started the command
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            encoding, at_once = stream.encoding, stream.line_buffering
            setattr(
                sys,
                name,
                Output(
                    stream.detach(),
                    encoding=encoding,
                    errors="backslashreplace",
                    line_buffering=at_once,
                    write_through=name == "stderr",
                ),
            )


def failed_output() -> str:
    """Write out what is left, and say why standard output could not take all of it.

    Returns:
        The reason; empty where all is written, or where the reader of a pipe wanted no more.
    """
    stream = sys.stdout
    if not isinstance(stream, Output):
        return ""
    stream.flush()
    error = stream.failed
    if error is None or error.errno == errno.EPIPE:
        return ""
    return error.strerror or str(error)
