"""One file from a server: whole, resumed, refused."""

import hashlib
from pathlib import Path

import pytest

from focoop.data.transfer import download
from focoop.errors import DataError
from tests.data.toy_server import CONTENT, Raw, Server, answer, md5, partial_answer


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
