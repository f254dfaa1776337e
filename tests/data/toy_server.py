"""Web servers to download from: one of files, and one that answers byte for byte as it is told."""

import hashlib
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CONTENT = bytes(range(256)) * 64


class Server(ThreadingHTTPServer):
    """Serves `files`; `cut` bytes per answer at most; remembers what was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.files: dict[str, bytes] = {}
        self.cut = 0
        self.kind = "application/octet-stream"
        self.etag = '"one"'
        self.ranges: list[str | None] = []

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"


class Answers(BaseHTTPRequestHandler):
    """Whole files and ranges, as a static server answers."""

    server: Server

    def do_GET(self) -> None:
        content = self.server.files.get(self.path[1:])
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        if content is None:
            self.send_error(404)
            return
        first = 0
        if asked and self.headers.get("If-Range", self.server.etag) == self.server.etag:
            first = int(asked.removeprefix("bytes=").rstrip("-"))
        if first >= len(content) > 0:
            self.send_error(416)
            return
        self.send_response(206 if first else 200)
        self.send_header("Content-Type", self.server.kind)
        self.send_header("ETag", self.server.etag)
        self.send_header("Content-Length", str(len(content) - first))
        if first:
            last = len(content) - 1
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        self.end_headers()
        sent = content[first:]
        self.wfile.write(sent[: self.server.cut] if self.server.cut else sent)

    def log_message(self, *_: object) -> None:
        pass


def md5(content: bytes) -> str:
    return "md5:" + hashlib.md5(content).hexdigest()


class Raw:
    """A server of one answer each, byte for byte as given."""

    def __init__(self, *answers: bytes) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.asked: list[str] = []
        self.thread = threading.Thread(target=self._serve, args=(answers,), daemon=True)
        self.thread.start()

    def _serve(self, answers: tuple[bytes, ...]) -> None:
        for answer in answers:
            connection, _ = self.socket.accept()
            with connection:
                self.asked.append(connection.recv(65536).decode())
                connection.sendall(answer)
        self.socket.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.socket.getsockname()[1]}/x.bin"


def answer(content: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, "Connection: close", "", ""]
    return "\r\n".join(lines).encode() + content


def partial_answer(content: bytes, *headers: str) -> bytes:
    length = f"Content-Length: {len(content)}"
    return answer(content, length, *headers, status="206 Partial Content")
