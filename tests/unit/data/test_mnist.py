"""MNIST: the original files, and downloading them from servers of our own on this machine."""

from __future__ import annotations

import gzip
import hashlib
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from mpifed.core.errors import DataError
from mpifed.data.sources import Mnist, idx

CLOSED = "http://127.0.0.1:9/"


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_the_files_are_downloaded_once_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a server that is not there, one of other content, and one that has the files; these are small ones."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MPIFED_DATA", raising=False)
    files = dict[str, str]()
    for name in idx.MNIST:
        shape = (6, 2, 3) if "images" in name else (6,)
        content = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes() + bytes(range(np.prod(shape)))
        files[name] = hashlib.md5(packed := gzip.compress(content)).hexdigest()
        for folder, served in (("good", packed), ("other", packed[:-4])):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / name).write_bytes(served)
    monkeypatch.setattr(idx, "MNIST", files)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            other, good = (f"http://127.0.0.1:{server.server_port}/{name}/" for name in ("other", "good"))
            for wrong in (CLOSED, other):
                with pytest.raises(DataError, match=f"{wrong}: .*; bring .* by `mpifed data mnist FOLDER"):
                    Mnist(mirror=wrong).read(0)
            data = Mnist(mirror=good).read(0)
        finally:
            server.shutdown()
            thread.join()
    assert np.array_equal(data.X, np.arange(36).reshape(6, 1, 2, 3)) and data.test is not None
    assert {path.name for path in (tmp_path / "cache/mpifed/mnist").iterdir()} == {*files}
    assert Mnist(mirror=CLOSED).read(0).files == data.files  # they are there


def test_mnist(real_data: Path) -> None:
    data = Mnist(real_data / "mnist").read(0)
    assert data.test is not None
    assert (data.X.shape, data.test.X.shape, len(data.files)) == ((60000, 1, 28, 28), (10000, 1, 28, 28), 4)
    assert data.y[:5].tolist() == [5, 0, 4, 1, 9]
