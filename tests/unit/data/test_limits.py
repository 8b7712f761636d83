"""Small files and short options that ask for much: refused, in a moment and in little memory."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sklearn import datasets  # noqa: F401 -- now, and not while memory is measured

from mpifed.core.errors import DataError
from mpifed.data.maps import read_map
from mpifed.data.samples import checked
from mpifed.data.sources import CsvTable, Svmlight

PACKERS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
MOST = 200e6  # bytes that a refusal may take; the packer of xz takes 100e6


def csv_table(path: Path, test: Path | None = None, label: str = "-1") -> CsvTable:
    return CsvTable((path,), test, label)


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """No test may take more."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MOST


# packed files


@pytest.mark.parametrize(("suffix", "kind"), [(".gz", csv_table), (".bz2", Svmlight), (".xz", csv_table)])
def test_packed_files_are_read_to_their_end(tmp_path: Path, suffix: str, kind: Any) -> None:
    path = tmp_path / f"a{suffix}"
    line = b"1,2\n" if kind is csv_table else b"1 1:2\n-1 2:1\n"
    packed = PACKERS[suffix](line * 20_000)
    path.write_bytes(packed)
    assert len(kind(path).read(0).y) == 20_000 * line.count(b"\n")
    path.write_bytes(packed[:-20])
    with pytest.raises(DataError, match=rf"a{suffix}: cannot be read to its end"):
        kind(path).read(0)


@pytest.mark.parametrize("kind", [csv_table, Svmlight])
def test_what_has_no_end_is_no_file(kind: Any, tmp_path: Path) -> None:
    for path, words in ((Path("/dev/zero"), "not a regular file"), (tmp_path, "not a regular file")):
        with pytest.raises(DataError, match=words):
            kind(path).read(0)
        with pytest.raises(DataError, match=words):
            read_map(path, 3, 3)
    with pytest.raises(DataError, match=r"cannot be read .File name too long"):
        kind(tmp_path / ("x" * 300)).read(0)


# column numbers and labels


@pytest.mark.parametrize("label", ["1e300", "-1e39", "9" * 400])
def test_svmlight_labels_are_numbers_in_float32(tmp_path: Path, label: str) -> None:
    path = tmp_path / "a.svm"
    path.write_text(f"1 1:1\n{label} 1:2\n")
    with pytest.raises(DataError, match="label of row 1 is"):
        checked("svmlight", Svmlight(path).read(0))


# cells and names


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1," + "9" * 140_000 + "\n", "column 'b': .*is not a finite number"),
        ("a,b\n1," + "9" * 5000 + "\n", "column 'b': .*is not a finite number"),
        ("a,b\n1,-1e39\n", r"row 1, column 'b': -1e\+39 is not a finite number"),
        ("a,b\n1,2,3\n4,5,6\n", "Row #2: Expected 2 columns, got 3: 1,2,3; expected UTF-8 with ','"),
        ("a,a\n1,2\n", "2 columns are called 'a'; every column needs a name of its own"),
        ("a,,b\n1,2,3\n", "column 2 '' has no name"),
        ("a,b\0\n1,2\n", r"column 2 'b\\x00' has the control character|line contains NUL"),  # Python 3.10
        ("y\n1\n2\n", "no column besides the label's"),
    ],
)
def test_faulty_csv(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=words) as caught:
        csv_table(path).read(0)
    assert len(str(caught.value)) < 400


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\ufeffa,y\n1,2\n3,4\n", encoding="utf-8")
    assert csv_table(path).read(0).names == ("a",)
    path.write_text("\ufeff1,2\n3,4\n", encoding="utf-8")
    assert csv_table(path).read(0).y.tolist() == [2, 4]
