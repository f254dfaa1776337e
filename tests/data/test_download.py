"""Downloads from a server of our own: whole, resumed, refused."""

import hashlib
import io
import json
import re
import socket
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from focoop.caching import is_intact
from focoop.data import download as fetching
from focoop.data import registry, unpacking
from focoop.data.dataset import Dataset, Download
from focoop.data.download import fetch
from focoop.data.transfer import download
from focoop.errors import DataError
from tests.data import trees

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


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def md5(content: bytes) -> str:
    return "md5:" + hashlib.md5(content).hexdigest()


def test_a_file_comes_whole_with_progress_and_its_hash(server: Server, tmp_path: Path) -> None:
    server.files["x.bin"] = CONTENT
    told: list[tuple[str, int, int]] = []
    digest = download(
        server.url("x.bin"), tmp_path / "a/x.bin", md5(CONTENT), lambda *a: told.append(a)
    )
    assert (tmp_path / "a" / "x.bin").read_bytes() == CONTENT
    assert digest == hashlib.sha256(CONTENT).hexdigest()
    assert told[-1] == ("x.bin", len(CONTENT), len(CONTENT))
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["x.bin"]


def test_a_broken_download_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.files["x.bin"], server.cut = CONTENT, 6000
    target = tmp_path / "x.bin"
    for _ in range(2):
        with pytest.raises(DataError, match="continues where it stopped"):
            download(server.url("x.bin"), target, md5(CONTENT))
    assert not target.exists() and (tmp_path / "x.bin.part").stat().st_size == 12000
    server.cut = 0
    download(server.url("x.bin"), target, md5(CONTENT))
    assert target.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=6000-", "bytes=12000-"]


def test_a_file_that_changed_meanwhile_is_sent_from_its_start(
    server: Server, tmp_path: Path
) -> None:
    server.files["x.bin"], server.cut = CONTENT, 6000
    with pytest.raises(DataError):
        download(server.url("x.bin"), tmp_path / "x.bin")
    server.files["x.bin"], server.cut, server.etag = CONTENT[::-1], 0, '"two"'
    download(server.url("x.bin"), tmp_path / "x.bin")
    assert (tmp_path / "x.bin").read_bytes() == CONTENT[::-1]


def test_a_part_that_is_the_whole_needs_no_more_bytes(server: Server, tmp_path: Path) -> None:
    server.files["x.bin"] = CONTENT
    (tmp_path / "x.bin.part").write_bytes(CONTENT)
    download(server.url("x.bin"), tmp_path / "x.bin", md5(CONTENT))
    assert (tmp_path / "x.bin").read_bytes() == CONTENT


def test_wrong_content_web_pages_and_missing_files_are_refused(
    server: Server, tmp_path: Path
) -> None:
    server.files["x.bin"] = CONTENT
    target = tmp_path / "x.bin"
    with pytest.raises(DataError, match=f"md5 differs from {'0' * 32}"):
        download(server.url("x.bin"), target, "md5:" + "0" * 32)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match=f"404.*put it at {target}"):
        download(server.url("y.bin"), target)
    server.kind = "text/html; charset=utf-8"
    with pytest.raises(DataError, match="a web page in place of the file"):
        download(server.url("x.bin"), target)
    assert not target.exists()


def test_without_network_the_message_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"check the network.*{tmp_path / 'x.bin'}"):
        download("http://127.0.0.1:9/x.bin", tmp_path / "x.bin")


def archive(folder: Path, kind: str) -> bytes:
    """All of a folder as a tar or zip."""
    buffer = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(buffer, "w") as zipped:
            for path in sorted(folder.rglob("*")):
                zipped.write(path, path.relative_to(folder))
    else:
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            tar.add(folder, ".")
    return buffer.getvalue()


def served(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """Oxford Pets in two archives and a split file, on our server."""
    made = tmp_path / "made"
    trees.plant(made / "a", "images/Abyssinian_1.jpg")
    trees.write(made / "b" / "annotations" / "list.txt", "x")
    server.files = {
        "images.tar.gz": archive(made / "a", "tar"),
        "annotations.zip": archive(made / "b", "zip"),
        "split_zhou_OxfordPets.json": b'{"train": [], "val": [], "test": []}',
    }
    files = server.files
    dataset = replace(
        registry.lookup("oxford_pets"),
        downloads=(
            Download(
                server.url("images.tar.gz"),
                "images.tar.gz",
                md5(files["images.tar.gz"]),
                unpack="oxford_pets",
            ),
            Download(
                server.url("annotations.zip"),
                "annotations.zip",
                unpack="oxford_pets",
                gives="annotations",
            ),
            Download(server.url("split_zhou_OxfordPets.json"), "split_zhou_OxfordPets.json"),
        ),
    )
    monkeypatch.setattr(fetching, "lookup", lambda name: dataset)
    return dataset


def test_a_dataset_is_fetched_unpacked_and_recorded(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = served(server, tmp_path, monkeypatch)
    root = tmp_path / "root"
    base = fetch("oxford_pets", root)
    assert base == root / "oxford_pets" and (base / "images" / "Abyssinian_1.jpg").is_file()
    assert sorted(path.name for path in base.iterdir()) == [
        "annotations",
        "images",
        "split_zhou_OxfordPets.json",
    ]
    assert sorted(path.name for path in root.iterdir()) == [".focoop", "oxford_pets"]
    record = json.loads((root / ".focoop" / "oxford_pets.json").read_text("utf-8"))
    assert record["licence"] == dataset.licence
    assert [one["checked"].partition(":")[0] for one in record["files"]] == [
        "md5",
        "no published checksum",
        "no published checksum",
    ]
    for one in record["files"]:
        content = server.files[one["file"]]
        assert one["bytes"] == len(content) and one["sha256"] == hashlib.sha256(content).hexdigest()
    asked = len(server.ranges)
    fetch("oxford_pets", root)
    assert len(server.ranges) == asked  # nothing is fetched twice


def test_a_file_without_a_published_checksum_is_the_one_of_the_first_fetch(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served(server, tmp_path, monkeypatch)
    root, name = tmp_path / "root", "split_zhou_OxfordPets.json"
    split = fetch("oxford_pets", root) / name
    record = root / ".focoop" / "oxford_pets.json"
    assert is_intact(json.loads(record.read_text()))
    split.unlink()
    fetch("oxford_pets", root)
    assert split.read_bytes() == server.files[name]
    split.unlink()
    server.files[name] = b'{"train": [], "val": [], "test": [1]}'
    with pytest.raises(DataError, match=r"first fetched .*remove .*oxford_pets\.json"):
        fetch("oxford_pets", root)
    assert not split.exists()
    whole = record.read_bytes()
    record.write_bytes(whole.replace(b'"bytes": 36', b'"bytes": 35'))
    with pytest.warns(UserWarning, match=r"oxford_pets\.json is damaged .its checksum differs"):
        fetch("oxford_pets", root)
    assert split.read_bytes() == server.files[name] and is_intact(json.loads(record.read_text()))


def test_a_file_on_disk_is_compared_with_its_published_checksum(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = served(server, tmp_path, monkeypatch)
    split = replace(dataset.downloads[2], checksum=md5(server.files["split_zhou_OxfordPets.json"]))
    pinned = replace(dataset, downloads=(*dataset.downloads[:2], split))
    monkeypatch.setattr(fetching, "lookup", lambda name: pinned)
    base = fetch("oxford_pets", tmp_path / "root")
    fetch("oxford_pets", tmp_path / "root")
    (base / split.file).write_text('{"train": [], "val": [], "test": [2]}')
    with pytest.raises(DataError, match=r"split_zhou_OxfordPets\.json is not the file .*remove it"):
        fetch("oxford_pets", tmp_path / "root")


def test_every_split_file_has_a_pinned_checksum() -> None:
    """All files to fetch have one but a single archive, whose bytes nobody publishes."""
    unknown = {
        entry.file
        for name in registry.available()
        for entry in registry.lookup(name).downloads
        if not re.fullmatch("md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", entry.checksum)
    }
    assert unknown == {"office_caltech_10_dataset.zip"}


def test_what_is_on_disk_already_is_not_fetched(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served(server, tmp_path, monkeypatch)
    root = trees.plant(tmp_path / "root", "oxford-iiit-pet/images/mine.jpg")
    (root / "annotations.zip").write_bytes(server.files["annotations.zip"])  # got by hand
    base = fetch("oxford_pets", root)
    assert base == root / "oxford-iiit-pet" and len(server.ranges) == 1  # the split file alone
    assert (base / "split_zhou_OxfordPets.json").is_file() and (base / "annotations").is_dir()
    assert not (root / "oxford_pets").exists()


def test_damaged_archives_and_full_disks_are_refused(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = served(server, tmp_path, monkeypatch)
    server.files["images.tar.gz"] = b"no archive at all"
    first = replace(dataset.downloads[0], checksum="")
    broken = replace(dataset, downloads=(first,))
    monkeypatch.setattr(fetching, "lookup", lambda name: broken)
    with pytest.raises(DataError, match=r"cannot unpack .*images.tar.gz"):
        fetch("oxford_pets", tmp_path / "root")
    assert not list((tmp_path / "root").glob("oxford_pets/*"))
    large = replace(dataset, downloads=(replace(first, size=10**18, file="y.tar.gz"),))
    monkeypatch.setattr(fetching, "lookup", lambda name: large)
    with pytest.raises(DataError, match="make room"):
        fetch("oxford_pets", tmp_path / "other")
    with pytest.raises(DataError, match=r"cannot be fetched.*PACS/"):
        monkeypatch.setattr(fetching, "lookup", registry.lookup)
        fetch("pacs", tmp_path)


def test_an_archive_inside_an_archive_is_unpacked_too(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trees.plant(tmp_path / "in", "101_ObjectCategories/ant/image_0001.jpg")
    outer = tmp_path / "out" / "caltech-101"
    outer.mkdir(parents=True)
    (outer / "101_ObjectCategories.tar.gz").write_bytes(archive(made, "tar"))
    server.files["c.zip"] = archive(tmp_path / "out", "zip")
    real = registry.lookup("caltech101")
    dataset = replace(real, downloads=(replace(real.downloads[0], url=server.url("c.zip"),
                                               checksum="", size=0),))  # fmt: skip
    monkeypatch.setattr(fetching, "lookup", lambda name: dataset)
    base = fetch("caltech101", tmp_path / "root")
    assert (base / "101_ObjectCategories" / "ant" / "image_0001.jpg").is_file()
    assert [path.name for path in base.iterdir()] == ["101_ObjectCategories"]


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


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (answer(b"10\r\nonly a few", "Transfer-Encoding: chunked"), "the connection ended"),
        (b"this is no HTTP\r\n\r\n", "no HTTP"),
        (b"", "no HTTP|closed connection"),
        (answer(b"short", "Content-Length: 100"), "after 5 of 100 bytes"),
    ],
    ids=["cut chunk", "no http", "nothing", "cut"],
)
def test_replies_that_break_off_are_told(reply: bytes, told: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=told):
        download(Raw(reply).url, tmp_path / "x.bin")
    assert not (tmp_path / "x.bin").exists()


def test_a_cut_reply_without_length_is_seen_by_the_known_size(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="sent 5 bytes and the file has 100"):
        download(Raw(answer(b"short")).url, tmp_path / "x.bin", size=100)
    with pytest.raises(DataError, match="more than the 3 bytes"):
        download(Raw(answer(b"longer")).url, tmp_path / "x.bin", size=3)
    with pytest.raises(DataError, match="cut off or no JSON"):
        download(Raw(answer(b'{"train": [')).url, tmp_path / "split.json")
    assert list(tmp_path.iterdir()) == []


def test_a_part_of_nobody_knows_what_is_not_gone_on_with(server: Server, tmp_path: Path) -> None:
    server.files["x.bin"] = CONTENT
    (tmp_path / "x.bin.part").write_bytes(b"stale")
    download(server.url("x.bin"), tmp_path / "x.bin")  # no checksum, no mark of the server
    assert (tmp_path / "x.bin").read_bytes() == CONTENT and server.ranges == [None]


@pytest.mark.parametrize("checksum", [True, False])
def test_a_part_that_is_larger_than_the_file_is_dropped(
    checksum: bool, server: Server, tmp_path: Path
) -> None:
    server.files["x.bin"] = CONTENT
    (tmp_path / "x.bin.part").write_bytes(CONTENT + b"more")
    (tmp_path / "x.bin.tag").write_text(server.etag)
    download(server.url("x.bin"), tmp_path / "x.bin", md5(CONTENT) if checksum else "")
    assert (tmp_path / "x.bin").read_bytes() == CONTENT


def test_a_stale_part_under_a_checksum_is_fetched_again_at_once(
    server: Server, tmp_path: Path
) -> None:
    server.files["x.bin"] = CONTENT
    (tmp_path / "x.bin.part").write_bytes(b"x" * 1000)
    download(server.url("x.bin"), tmp_path / "x.bin", md5(CONTENT))
    assert (tmp_path / "x.bin").read_bytes() == CONTENT


def partial_answer(content: bytes, *headers: str) -> bytes:
    length = f"Content-Length: {len(content)}"
    return answer(content, length, *headers, status="206 Partial Content")


@pytest.mark.parametrize(
    "ranges",
    [["Content-Range: bytes 0-5/6"], ["Content-Range: bytes 3 to 5"], []],
    ids=["another", "no range", "none"],
)
def test_a_wrong_range_is_not_glued_to_the_part(ranges: list[str], tmp_path: Path) -> None:
    (tmp_path / "x.bin.part").write_bytes(b"abc")
    (tmp_path / "x.bin.tag").write_text('"one"')
    server = Raw(partial_answer(b"xyz", *ranges), answer(b"abcdef", "Content-Length: 6"))
    download(server.url, tmp_path / "x.bin")
    assert (tmp_path / "x.bin").read_bytes() == b"abcdef"
    assert "Range: bytes=3-" in server.asked[0] and "Range" not in server.asked[1]


def test_a_part_of_the_file_is_not_taken_for_all_of_it(tmp_path: Path) -> None:
    unasked = Raw(partial_answer(b"def", "Content-Range: bytes 3-5/6"))
    with pytest.raises(DataError, match="sent a part of the file"):
        download(unasked.url, tmp_path / "x.bin")
    (tmp_path / "x.bin.part").write_bytes(b"abc")
    (tmp_path / "x.bin.tag").write_text('"one"')
    short = Raw(partial_answer(b"de", "Content-Range: bytes 3-4/6", 'ETag: "one"'))
    with pytest.raises(DataError, match="after 5 of 6 bytes"):
        download(short.url, tmp_path / "x.bin")
    rest = Raw(partial_answer(b"f", "Content-Range: bytes 5-5/6", 'ETag: "one"'))
    download(rest.url, tmp_path / "x.bin")
    assert (tmp_path / "x.bin").read_bytes() == b"abcdef"


def test_a_cut_split_file_is_fetched_again(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served(server, tmp_path, monkeypatch)
    base = fetch("oxford_pets", tmp_path / "root")
    split = base / "split_zhou_OxfordPets.json"
    for damaged in (b"", split.read_bytes()[:10]):
        split.write_bytes(damaged)
        fetch("oxford_pets", tmp_path / "root")
        assert split.read_bytes() == server.files["split_zhou_OxfordPets.json"]


def test_bombs_and_encrypted_archives_are_refused(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("zeros", bytes(3_000_000))
    small = unpacking.Limits(1_000_000, 100)
    with pytest.raises(DataError, match="more than this dataset can have"):
        unpacking.unpack(bomb, tmp_path / "out", small)
    tar = tmp_path / "bomb.tar.gz"
    with tarfile.open(tar, "w:gz") as packed:
        for index in range(200):
            packed.addfile(tarfile.TarInfo(f"{index}"))
    with pytest.raises(DataError, match="more than this dataset can have"):
        unpacking.unpack(tar, tmp_path / "out", small)
    locked = bytearray(bomb.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        locked[locked.index(mark) + place] |= 1  # says: encrypted
    (tmp_path / "locked.zip").write_bytes(locked)
    with pytest.raises(DataError, match="encrypted.*unpack it yourself"):
        unpacking.unpack(tmp_path / "locked.zip", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_limits_leave_room_for_every_real_dataset() -> None:
    for dataset in registry.available().values():
        for entry in dataset.downloads:
            most = unpacking.limits(dataset, entry.size)
            assert most.files > sum(dataset.counts.values())
            assert most.bytes > 3 * entry.size
