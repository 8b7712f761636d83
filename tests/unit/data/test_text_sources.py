"""Sources of text, svmlight and CSV: what they give, and what is wrong with faulty files."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy import sparse

from mpifed.core.errors import DataError
from mpifed.data.labels import encode
from mpifed.data.samples import Samples, checked
from mpifed.data.sources import CsvTable, Svmlight

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress
}  # fmt: skip


def csv_table(path: Path, test: Path | None = None, label: str = "-1") -> CsvTable:
    return CsvTable((path,), test, label)


def rows(data: Samples) -> Any:
    """All rows of a source in one array."""
    return data.X.toarray() if sparse.issparse(data.X) else data.X


# svmlight

LINES = b"-1 1:0.5 3:2\n+1 2:1.5 # a remark\n+1 1:-1 2:2 3:3\n"


@pytest.mark.parametrize("suffix", PACKERS)
def test_svmlight(tmp_path: Path, suffix: str) -> None:
    path, test = tmp_path / f"train.svm{suffix}", tmp_path / f"test.svm{suffix}"
    path.write_bytes(PACKERS[suffix](LINES))
    test.write_bytes(PACKERS[suffix](b"-1 5:9\n"))
    data = Svmlight(path, test).read(0)
    assert data.features == 5  # of the wider file
    assert rows(data).tolist() == [[0.5, 0, 2, 0, 0], [0, 1.5, 0, 0, 0], [-1, 2, 3, 0, 0]]
    labels = encode(data, "all")
    assert labels.y.tolist() == [0, 1, 1]
    assert labels.test_y is not None
    assert labels.test_y.tolist() == [0]
    assert labels.meaning == ("-1", "1")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (b"1 1:1\n-1 1:nan\n", "nan is not a finite number"),
        (b"1 1:1\ninf 1:1\n", "label of row 1 is inf"),
        (b"1 1:1\n-1 1:x\n", "x.*; expected lines `label column:value"),
        (b"1 1:1\n-1 2:1 1:1\n", "expected lines `label column:value ...`, columns ascending"),
        (b"1 1:1\n-1 1\n", "expected lines `label"),
        (b"", "no values at all"),
    ],
)
def test_faulty_svmlight(tmp_path: Path, lines: bytes, words: str) -> None:
    path = tmp_path / "a.svm"
    path.write_bytes(lines)
    with pytest.raises(DataError, match=words) as caught:
        checked("svmlight", Svmlight(path).read(0))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("suffix", "kind", "lines"), [(".bz2", Svmlight, LINES), (".xz", csv_table, b"1,2\n"), (".gz", csv_table, b"1,2\n")]
)
def test_cut_off_packed_text(tmp_path: Path, suffix: str, kind: Any, lines: bytes) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(PACKERS[suffix](lines * 1000)[:-9])
    with pytest.raises(DataError, match=f"a{suffix}: cannot be read to its end"):
        kind(path).read(0)


def test_a9a(real_data: Path) -> None:
    folder = real_data / "libsvm"
    path, test = folder / "a9a.bz2", folder / "a9a.t.bz2"
    data = Svmlight(path, test).read(0)
    assert data.test is not None
    assert data.sparse
    words = [line.split() for line in bz2.decompress(path.read_bytes()).splitlines()]
    assert data.y.tolist() == [int(line[0]) for line in words]
    assert data.X.sum() == sum(len(line) - 1 for line in words)  # all values are 1
    assert data.test.X.shape == (len(data.test.y), data.features)


# CSV


@pytest.mark.parametrize("suffix", PACKERS)
def test_csv_with_names(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.csv{suffix}"
    path.write_bytes(PACKERS[suffix](b'a,"b",kind\n1,2,7\n3,4.5,2\n'))
    data = csv_table(path).read(0)
    assert data.names == ("a", "b")
    assert rows(data).tolist() == [[1, 2], [3, 4.5]]
    assert data.y.tolist() == [7, 2]
    assert encode(data, "class:7").y.tolist() == [1, 0]


@pytest.mark.parametrize("label", ["0", "-3"])
def test_csv_without_names(tmp_path: Path, label: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text("7,1,2\n2,3,4\n")
    data = csv_table(path, label=label).read(0)
    assert data.names == (("1", "2") if label == "0" else ("0", "1"))[: data.features] or label == "-3"
    assert rows(data).tolist() == [[1, 2], [3, 4]]
    assert data.y.tolist() == [7, 2]


def test_csv_label_by_name_and_test_file(tmp_path: Path) -> None:
    path, test = tmp_path / "a.csv", tmp_path / "t.csv"
    path.write_text("a,y,b\n1,0,2\n3,1,4\n")
    test.write_text("a,y,b\n5,1,6\n")
    data = csv_table(path, test, "y").read(0)
    assert data.test is not None
    assert (data.test.X.tolist(), data.test.y.tolist()) == ([[5, 6]], [1])
    test.write_text("a,y,c\n5,1,6\n")
    with pytest.raises(DataError, match=r"t.csv: no column 'b', which .*a.csv has"):
        csv_table(path, test, "y").read(0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a;b;y\n1,5;2;0\n", "line 1: 'a;b;y' has no ','; give --separator ';'"),
        (b"a\tb\ty\n1\t2\t0\n", "has no ','"),
        ("a,größe,y\n1,2,0\n".encode("latin-1"), "is not UTF-8 .*; save it as UTF-8"),
        ("a,b,y\n1,2,groß\n".encode("latin-1"), "UTF-?8"),
        (b"a,b,y", "no rows"),
        (b"a,b,y\n1,2\n", "Expected 3 columns, got 2"),
    ],
)
def test_faulty_csv(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"a.csv: .*{words}"):
        csv_table(path).read(0)


def test_svmlight_regression(tmp_path: Path) -> None:
    path = tmp_path / "a.svm"
    path.write_bytes(b"0.5 1:1\n2 1:2\n")
    labels = encode(Svmlight(path).read(0), "all")
    assert (labels.y.tolist(), labels.meaning) == ([0.5, 2.0], ())
    with pytest.raises(DataError, match=r"row 1 has the label 0.5, not a class; .*--task regression"):
        Svmlight(path, task="classification").read(0)
    path.write_bytes(b"1 1:1\n2 1:2\n")
    assert encode(Svmlight(path, task="regression").read(0), "all").meaning == ()
