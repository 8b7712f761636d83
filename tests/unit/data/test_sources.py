"""What each source gives: the same rows by every door are the same data; formats by the books of their libraries."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from federations import common, hdf5, idx, in_order, labelled, leaf, make, png
from pyarrow import parquet

from mpifed.core.errors import DataError
from mpifed.data.shards import shard_of
from mpifed.data.sources import Mnist, Synthetic
from mpifed.data.sources import idx as idx_source
from mpifed.data.summary import summary

RNG = np.random.default_rng(5)
PIXELS, KINDS = RNG.integers(0, 256, (12, 1, 4, 3), np.uint8), np.repeat([0, 1, 2], 4)
NAMES = np.array(["ant", "bee", "cat"])
ONE = ("--split", "rows", "--clients", 1)


# --- images ----------------------------------------------------------------------------------------------------------


def put(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def npz(**arrays: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


OWN = b"""
from dataclasses import dataclass
from pathlib import Path
import numpy as np
from mpifed.data.sources import Samples, Source

@dataclass(frozen=True)
class Stored(Source):
    path: Path

    def read(self, seed: int) -> Samples:
        content = np.load(self.path / "a.npz")
        return Samples(content["X"], content["y"])
"""
DOORS: dict[str, tuple[str, dict[str, bytes]]] = {  # the path, and files
    "npz": ("a.npz", {"a.npz": npz(X=PIXELS, y=KINDS)}),
    "idx": ("", {"train-images": idx(PIXELS[:, 0]), "train-labels": idx(KINDS)}),
    "images": ("", {f"{kind}/{n:03d}.png": png(x[0]) for n, (x, kind) in enumerate(zip(PIXELS, KINDS, strict=True))}),
    "hdf5": ("", {"one.h5": hdf5(X=PIXELS, y=KINDS)}),
    "stored:Stored": ("", {"a.npz": npz(X=PIXELS, y=KINDS), "stored.py": OWN}),
}


@pytest.mark.parametrize("door", DOORS)
def test_the_same_images_by_every_door(door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes stay bytes, and are divided by 255 unless something else is said."""
    path, files = DOORS[door]
    monkeypatch.syspath_prepend(put(tmp_path / "in", files))
    monkeypatch.delitem(sys.modules, "stored", raising=False)
    words = (tmp_path / "in" / path, *(() if door == "hdf5" else ONE))
    data = make(tmp_path / "out", door, *words)
    assert data.shape == (1, 4, 3) and data.classes == 3 and data.array("X").dtype == np.uint8
    assert labelled(data) == in_order(PIXELS * np.float32(1 / 255), KINDS)
    assert labelled(make(tmp_path / "out", door, *words, "--scale", "none")) == in_order(PIXELS, KINDS)


def test_colours_and_tests_of_folders_of_images(tmp_path: Path) -> None:
    """Channels first; a grey image among coloured ones has three equal channels."""
    X = RNG.integers(0, 256, (8, 3, 2, 5), np.uint8)
    X[5] = X[5, :1]
    pixels = [*X[:5].transpose(0, 2, 3, 1), X[5, 0], *X[6:].transpose(0, 2, 3, 1)]
    put(tmp_path, {f"{'train' if n < 6 else 'test'}/{NAMES[n % 2]}/{n}.png": png(x) for n, x in enumerate(pixels)})
    data = make(tmp_path / "out", "images", tmp_path, *ONE, "--scale", "none")
    assert data.shape == (3, 2, 5) and data.provenance["classes"] == ["ant", "bee"]
    assert labelled(data) == in_order(X[:6], np.arange(6) % 2)
    assert in_order(*common(data)) == in_order(X[6:], [0, 1])


@pytest.mark.parametrize("files", [
    {"data_batch_1.bin": 3, "data_batch_2.bin": 2, "test_batch.bin": 2, "batches.meta.txt": 0},
    {"train.bin": 4, "test.bin": 1, "fine_label_names.txt": 0},
], ids=["10", "100"])  # fmt: skip
def test_cifar(files: dict[str, int], tmp_path: Path) -> None:
    """In the layout that the publisher's page describes: of CIFAR-100 a coarse label stands before the fine one."""
    (tmp_path / "in").mkdir()
    rows = {name: RNG.integers(0, 256, (count, 3072), np.uint8) for name, count in files.items()}
    kinds = {name: np.arange(count, dtype=np.uint8) % 4 for name, count in files.items()}
    for name, X in rows.items():
        labels = [kinds[name] // 2, kinds[name]][1 - ("train.bin" in files) :]
        content = np.column_stack([*labels, X]).tobytes() if len(X) else b"ant\nbee\ncat\ndog\n\n"
        (tmp_path / "in" / name).write_bytes(content)
    data = make(tmp_path / "out", "cifar", tmp_path / "in", *ONE, "--scale", "none")
    train = [name for name in files if files[name] and "test" not in name]
    (test,) = [name for name in files if "test" in name]
    known = sorted(np.unique(np.concatenate([kinds[name] for name in train])))
    assert data.shape == (3, 32, 32) and data.provenance["classes"] == [["ant", "bee", "cat", "dog"][n] for n in known]
    expected = [(np.concatenate([of[name] for name in train])) for of in (rows, kinds)]
    assert labelled(data) == in_order(expected[0], np.searchsorted(known, expected[1]))
    assert in_order(*common(data)) == in_order(rows[test], np.searchsorted(known, kinds[test]))
    (tmp_path / "in" / test).write_bytes(b"0")
    with pytest.raises(DataError, match=r"test.*bin: 1 bytes; expected 307\d of each image; get it again"):
        make(tmp_path / "out", "cifar", tmp_path / "in", *ONE)


def test_fashion_mnist(tmp_path: Path) -> None:
    """A packed file counts, and not what torchvision leaves unpacked beside it; tests may be missing."""
    X, y = RNG.integers(0, 256, (9, 4, 6), np.uint8), np.array([0, 1, 2] * 3)
    for kind, at in (("train", slice(6)), ("t10k", slice(6, 9))):
        (tmp_path / f"{kind}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(X[at])))
        (tmp_path / f"{kind}-labels-idx1-ubyte").write_bytes(idx(y[at]))
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"other bytes")
    folder = make(tmp_path / "out", "idx", tmp_path, *ONE, "--scale", "none")
    assert folder.shape == (1, 4, 6) and folder.test_samples == 3
    assert labelled(folder) == in_order(X[:6], y[:6])
    for path in tmp_path.glob("t10k*"):
        path.unlink()
    assert make(tmp_path / "out", "idx", tmp_path, *ONE).test_samples == 0


# --- MNIST, by servers of our own on this machine --------------------------------------------------------------------


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
    for name in idx_source.MNIST:
        shape = (6, 2, 3) if "images" in name else (6,)
        content = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes() + bytes(range(np.prod(shape)))
        files[name] = hashlib.md5(packed := gzip.compress(content)).hexdigest()
        for folder, served in (("good", packed), ("other", packed[:-4])):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / name).write_bytes(served)
    monkeypatch.setattr(idx_source, "MNIST", files)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            other, good = (f"http://127.0.0.1:{server.server_port}/{name}/" for name in ("other", "good"))
            for wrong in (CLOSED, other):
                monkeypatch.setattr(idx_source, "MIRROR", wrong)
                with pytest.raises(DataError, match=f"{wrong}: .*; bring .* by `mpifed data mnist FOLDER"):
                    Mnist().read(0)
            monkeypatch.setattr(idx_source, "MIRROR", good)
            data = Mnist().read(0)
        finally:
            server.shutdown()
            thread.join()
    assert np.array_equal(data.X, np.arange(36).reshape(6, 1, 2, 3)) and data.test is not None
    assert {path.name for path in (tmp_path / "cache/mpifed/mnist").iterdir()} == {*files}
    monkeypatch.setattr(idx_source, "MIRROR", CLOSED)
    assert Mnist().read(0).files == data.files  # they are there


def test_mnist(real_data: Path) -> None:
    data = Mnist(real_data / "mnist").read(0)
    assert data.test is not None
    assert (data.X.shape, data.test.X.shape, len(data.files)) == ((60000, 1, 28, 28), (10000, 1, 28, 28), 4)
    assert data.y[:5].tolist() == [5, 0, 4, 1, 9]


# --- clients of files -----------------------------------------------------------------------------------------------


def test_a_user_of_few_rows_may_have_many_classes(tmp_path: Path) -> None:
    """Of which it can't be said that they are targets: all users have 25 classes in 500 rows."""
    users = {f"u{n}": ([[n, k / 8] for k in range(25)], list(range(25))) for n in range(20)}
    (tmp_path / "a.json").write_text(json.dumps(leaf(**users)))
    assert make(tmp_path / "out", "leaf", tmp_path / "a.json").classes == 25


Users = dict[str, tuple[Any, Any]]
TRAIN: Users = {"u9": ([[1, 2], [3, 4]], [0, 1]), "u10": ([[5.5, 6]], [1]), "u1": ([[7, 8]], [0])}
TEST: Users = {
    "u9": ([[9, 9], [9, 8]], [1, 0]), "v": ([[8, 8]], [0]), "u10": ([[6, 6]], [1]), "w": ([[0, 1]] * 3, [0, 1, 1])
}  # fmt: skip


def as_leaf(more: Users) -> dict[str, bytes]:
    """Users in several files, of which one is packed; some users have test rows alone, some training rows alone."""
    last = {"u9": TRAIN["u9"]}
    first = {user: rows for user, rows in TRAIN.items() if user not in last}
    files = {"train/a.json.gz": more | first, "train/b.json": last, "test/a.json": more | TEST}
    texts = {name: json.dumps(leaf(**users)).encode() for name, users in files.items()}
    return {name: gzip.compress(text) if name.endswith("gz") else text for name, text in texts.items()}


def as_hdf5(more: Users) -> dict[str, bytes]:
    """A file of each, with rows to test with."""
    files = {}
    for user in {**TRAIN, **TEST, **more}:
        x, y = TRAIN.get(user, (np.zeros((0, 2)), []))
        tests = dict(zip(("X_test", "y_test"), map(np.array, TEST.get(user, ())), strict=False))
        files[f"{user}.h5"] = hdf5(X=np.array(x), y=np.array(y, int), **tests)
    return files


@pytest.mark.parametrize(("source", "files"), [("leaf", as_leaf), ("hdf5", as_hdf5)])
@pytest.mark.parametrize("more", [{}, {"z": ([], []), "u1b": ([], [])}], ids=["all have rows", "some have none"])
def test_clients_bring_their_rows_and_tests(source: str, files: Any, tmp_path: Path, more: Users) -> None:
    """Who is without training rows is no client, and named; the others are what they are without them."""
    path = put(tmp_path / "in", files(more))
    folder = make(tmp_path / "out", source, path)
    assert folder.client_names() == ("u1", "u10", "u9") and folder.counts.tolist() == [1, 1, 2]
    for client, user in enumerate(folder.client_names()):
        assert labelled(folder, client) == in_order(*TRAIN[user])
        assert labelled(folder, client, True) == (in_order(*TEST[user]) if user in TEST else [])
    assert in_order(*common(folder)) == sorted(row for rows in TEST.values() for row in in_order(*rows))
    named = "u1b, v, w, ... (4 in all)" if more else "v, w"
    said = f"{named}: no rows to train on, so no client; rows to test with: 4"
    assert folder.provenance["tests"] == said and said in summary(folder)
    by_rows = make(tmp_path / "out", source, path, "--split", "rows", "--clients", 2)
    assert by_rows.clients == 2 and not by_rows.test_counts.any() and "tests" not in by_rows.provenance


def test_the_published_file_of_leaf(real_data: Path, tmp_path: Path) -> None:
    path = real_data / "leaf/fedprox-synthetic_1_1-mytest.json.gz"
    folder = make(tmp_path / "out", "leaf", path)
    content = json.loads(gzip.decompress(path.read_bytes()))
    assert (folder.clients, folder.samples, folder.features, folder.classes) == (30, 1084, 60, 10)
    ids = folder.client_names()
    assert ids == tuple(sorted(content["users"]))
    for client, user in enumerate(ids):
        own = content["user_data"][user]
        assert labelled(folder, client) == in_order(own["x"], own["y"])


# --- tables ----------------------------------------------------------------------------------------------------------


NAMED = ("--label", "label", "--by", "who")


def with_names(path: Path, names: object, labels: list[int]) -> Path:
    """A file as `datasets` writes it, whose labels are of a ClassLabel."""
    columns = {"a": np.arange(len(labels)) / 8, "who": [f"w{n % 2}" for n in range(len(labels))], "label": labels}
    features = {"a": {"dtype": "float64", "_type": "Value"}, "label": {"names": names, "_type": "ClassLabel"}}
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    parquet.write_table(pa.table(columns).replace_schema_metadata(about), path)
    return path


def test_a_class_label_keeps_its_names(tmp_path: Path) -> None:
    """In its own order; the numbers, and so the checksum of the data, are those of labels without names."""
    labels = [n % 3 for n in range(40)]
    named = make(tmp_path / "out", "parquet", with_names(tmp_path / "a", ["zebra", "ant", "cat"], labels), *NAMED)
    assert named.provenance["classes"] == ["zebra", "ant", "cat"] and named.provenance["named"]
    lines = summary(named).splitlines()
    assert "classes  3: zebra, ant, cat" in lines
    numbers = make(tmp_path / "out", "parquet", with_names(tmp_path / "b", None, labels), *NAMED)
    assert numbers.provenance["classes"] == ["0", "1", "2"] and not numbers.provenance["named"]
    assert numbers.sha256 == named.sha256
    digits = make(tmp_path / "out", "parquet", with_names(tmp_path / "c", ["0", "1", "2"], labels), *NAMED)
    assert digits.provenance["classes"] == ["0", "1", "2"] and not digits.provenance["named"]  # as of MNIST
    one = make(tmp_path / "out", "parquet", tmp_path / "a", *NAMED, "--labels", "class:ant")
    assert one.provenance["classes"] == ["not ant", "ant"]
    assert make(tmp_path / "out", "parquet", tmp_path / "a", *NAMED, "--task", "regression").classes == 0
    many = list(range(40))  # too many different integers to be classes, but for their names
    assert make(tmp_path / "out", "parquet", with_names(tmp_path / "d", [f"n{n}" for n in many], many), *NAMED).classes


# --- text ------------------------------------------------------------------------------------------------------------


def test_svmlight(tmp_path: Path) -> None:
    path, test = tmp_path / "train.svm", tmp_path / "test.svm.bz2"
    path.write_bytes(b"-1 1:0.5 3:2\n+1 2:1.5 # a remark\n+1 1:-1 2:2 3:3\n")
    test.write_bytes(bz2.compress(b"-1 5:9\n"))
    data = make(tmp_path / "out", "svmlight", path, "--test", test, *ONE)
    assert (data.sparse, data.features, data.provenance["classes"]) == (False, 5, ["-1", "1"])  # of the wider file
    assert labelled(data) == in_order([[0.5, 0, 2, 0, 0], [0, 1.5, 0, 0, 0], [-1, 2, 3, 0, 0]], [0, 1, 1])
    assert in_order(*common(data)) == [[0, 0, 0, 0, 9, 0]]


@pytest.mark.parametrize(("label", "names", "rows"), [
    (0, ("1", "2"), [[1, 2, 1], [3, 4, 0]]), (-3, ("1", "2"), [[1, 2, 1], [3, 4, 0]]),
    (-1, ("0", "1"), [[2, 3, 1], [7, 1, 0]]),
])  # fmt: skip
def test_csv_without_names(tmp_path: Path, label: int, names: tuple[str, str], rows: list[list[float]]) -> None:
    """A first line of numbers is a row, and said."""
    (tmp_path / "a.csv").write_text("\ufeff7,1,2\n2,3,4\n", encoding="utf-8")
    data = make(tmp_path / "out", "csv", tmp_path / "a.csv", "--label", label, *ONE, "--scale", "none")
    assert data.names() == names and "names    numbers: a first line of numbers alone is a row" in summary(data)
    assert labelled(data) == rows


def test_columns_with_integers_that_begin_with_0_are_texts(tmp_path: Path) -> None:
    """01 is not 1, as codes of departments and towns are not, in test rows either."""
    (tmp_path / "a.csv").write_text("x,y\n1.5,01\n2,1\n3,1\n4, 01\n")
    (tmp_path / "t.csv").write_text("x,y\n1.5,1\n2,1\n")
    data = make(tmp_path / "out", "csv", tmp_path / "a.csv", "--label", "y", "--test", tmp_path / "t.csv", *ONE)
    assert data.provenance["classes"] == ["01", "1"] and shard_of(data, 0).y.tolist() == [0, 1, 1, 0]
    assert common(data)[1].tolist() == [1, 1]
    (tmp_path / "a.csv").write_text("zip,n,y\n01067,0,0\n1067,10,1\n")
    data = make(tmp_path / "out", "csv", tmp_path / "a.csv", "--label", "y", "--categorical", "one-hot", *ONE)
    assert data.names() == ("zip=01067", "zip=1067", "n")


# --- synthetic data, data of Python ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_synthetic_classes(dtype: Any) -> None:
    data = Synthetic(5000, 50, noise=0.2, task="classification", classes=4, dtype=dtype).read(0)
    assert data.X.dtype == dtype
    counts = np.bincount(data.y)
    assert len(counts) == 4
    assert counts.min() > 700  # none favoured: 1250 on average, and classes' scores differ in norm by chance
    # a linear model explains most labels, as they are planted by one
    centred = data.X.astype(np.float64) - data.X.mean(axis=0)
    weights = np.linalg.lstsq(centred, np.eye(4)[data.y], rcond=None)[0]
    assert np.mean(np.argmax(centred @ weights, axis=1) == data.y) > 0.7
