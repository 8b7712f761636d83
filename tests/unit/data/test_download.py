"""Downloading, from a server of our own on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mpifed.core.errors import DataError
from mpifed.data.sources import download, mnist
from mpifed.data.sources.download import fetch

CONTENT = bytes(range(256)) * 1000


@dataclass
class Mirror:
    """A server of CONTENT whose every answer may be faulty."""

    url: str = ""
    cut: list[int] = field(default_factory=list)  # bytes sent in each of the next answers before the line goes dead
    ranges: bool = True
    content: bytes = CONTENT
    asked: list[str | None] = field(default_factory=list)  # the Range of each request


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    """A running server."""
    state = Mirror()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.asked.append(wanted)
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and state.ranges else 0
            if start and start >= len(state.content):
                self.send_response(416)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            body = state.content[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: state.cut.pop(0)] if state.cut else body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}/file.gz"
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def check(part: Path) -> None:
    """Accept CONTENT alone."""
    assert part.suffix == ".gz"
    if part.read_bytes() != CONTENT:
        raise DataError("another content")


def test_fetch(mirror: Mirror, tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.gz"
    fetch(path, [mirror.url], check)
    assert path.read_bytes() == CONTENT
    assert [file.name for file in path.parent.iterdir()] == ["file.gz"]


def test_fetch_goes_on_after_interruptions(mirror: Mirror, tmp_path: Path) -> None:
    mirror.cut = [70_000, 80_000]
    fetch(tmp_path / "file.gz", [mirror.url], check)
    assert (tmp_path / "file.gz").read_bytes() == CONTENT
    assert mirror.asked[0] is None
    assert len(mirror.asked) == 3
    assert all(wanted and wanted != "bytes=0-" for wanted in mirror.asked[1:])


def test_fetch_tries_the_next_mirror(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "file.part.gz").write_bytes(b"x" * 1234)  # with which the first download is wrong
    fetch(tmp_path / "file.gz", [mirror.url, mirror.url], check)
    assert (tmp_path / "file.gz").read_bytes() == CONTENT
    assert mirror.asked == ["bytes=1234-", None]


def test_fetch_gives_up_on_wrong_content(mirror: Mirror, tmp_path: Path) -> None:
    mirror.content = b"y" * 999
    with pytest.raises(DataError, match=r"file.gz: cannot be downloaded .*another content"):
        fetch(tmp_path / "file.gz", [mirror.url], check)
    assert not list(tmp_path.iterdir())


def test_a_download_has_an_end(mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "MOST_BYTES", 100_000)
    with pytest.raises(DataError, match=r"file.gz: cannot be downloaded .*more than 100000 bytes"):
        fetch(tmp_path / "file.gz", [mirror.url], check)
    assert not list(tmp_path.iterdir())


def test_mnist_without_network_says_what_to_do(mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("MPIFED_DATA", raising=False)
    closed = "http://127.0.0.1:9/"
    with pytest.raises(DataError) as caught:
        mnist.Mnist(mirrors=(closed,)).read(0)
    message = str(caught.value)
    assert closed in message
    assert all(name in message for name in mnist.FILES)
    assert f"into {tmp_path / 'mpifed' / 'mnist'}" in message
