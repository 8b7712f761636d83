"""Small files and short options that ask for much: refused, in a moment and in little memory."""

from __future__ import annotations

import bz2
import csv
import gzip
import lzma
import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn import datasets  # noqa: F401 -- now, and not while memory is measured

from mpifed.cli import data
from mpifed.core.errors import DataError, UsageError
from mpifed.shards.maps import read_map
from mpifed.shards.sources import CsvTable, Svmlight, Tables
from mpifed.shards.sources.dataset import listed, shown
from mpifed.shards.sources.mnist import read_idx
from mpifed.shards.store import open_federation

PACKERS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
MOST = 200e6  # bytes that a refusal may take; the packer of xz takes 100e6


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """No test may take more."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MOST


def run(*words: object) -> None:
    CliRunner().invoke(data, list(map(str, words)), catch_exceptions=False, standalone_mode=False)


# packed files


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("kind", [CsvTable, Svmlight])
def test_packed_files_are_read_to_their_end(tmp_path: Path, suffix: str, kind: Any) -> None:
    path = tmp_path / f"a{suffix}"
    line = b"1,2\n" if kind is CsvTable else b"1 1:2\n-1 2:1\n"
    packed = PACKERS[suffix](line * 60_000)
    path.write_bytes(packed)
    assert len(kind(path).read(0).labels) == 60_000 * line.count(b"\n")
    path.write_bytes(packed[:-20])
    with pytest.raises(DataError, match=rf"a{suffix}: cannot be read to its end"):
        kind(path).read(0)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_an_idx_file_of_more_than_it_says(tmp_path: Path, suffix: str) -> None:
    path, header = tmp_path / f"images{suffix}", bytes([0, 0, 8, 2]) + np.array([2**31, 2**31], ">u4").tobytes()
    path.write_bytes((gzip.compress if suffix else bytes)(header + bytes(10**7)))
    words = r"more than 18 bytes, and a header for an array \(2147483648, 2147483648\); expected 18 bytes and \(2, 3\)"
    with pytest.raises(DataError, match=words):
        read_idx(path, (2, 3), "")


def test_the_damaged_one_of_two_files_is_named(tmp_path: Path) -> None:
    path, test = tmp_path / "a.gz", tmp_path / "t.gz"
    path.write_bytes(gzip.compress(b"1 1:2\n2 1:1\n" * 999)[:-20])
    test.write_bytes(gzip.compress(b"1 1:2\n2 1:1\n"))
    with pytest.raises(DataError, match=r"^[^;]*a\.gz: cannot be read to its end"):
        Svmlight(path, test).read(0)


@pytest.mark.parametrize("kind", [CsvTable, Svmlight])
def test_what_has_no_end_is_no_file(kind: Any, tmp_path: Path) -> None:
    for path, words in ((Path("/dev/zero"), "not a regular file"), (tmp_path, "not a regular file")):
        with pytest.raises(DataError, match=words):
            kind(path).read(0)
        with pytest.raises(DataError, match=words):
            read_map(path, 3, 3)
    with pytest.raises(DataError, match=r"cannot be read .File name too long"):
        kind(tmp_path / ("x" * 300)).read(0)


# column numbers and labels


def test_few_values_of_very_many_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.svm"
    path.write_text("1 1:1\n-1 2147483647:1\n")
    with monkeypatch.context() as patch:
        patch.setattr(os, "sysconf", lambda name: 2**16)
        with pytest.raises(UsageError, match=r"a.svm: 2147483647 features: needs 128 GiB of memory, .* without gaps"):
            Svmlight(path).read(0)
    path.write_text("1 0:1\n-1 2147483648:1\n")
    with pytest.raises(DataError, match=r"line 2: column 2147483648; expected a column below 2\^31"):
        Svmlight(path).read(0)


def test_few_values_as_dense_numbers(tmp_path: Path) -> None:
    path, rows = tmp_path / "a.svm", 2 * 10**4
    path.write_text("1 16777216:1\n" + "-1 1:1\n" * rows)
    with pytest.raises(UsageError, match=r"20001 rows of 16777216 features .* needs 1250 GiB of memory, .*--sparse"):
        Svmlight(path, dense=True).read(0)
    assert Svmlight(path).read(0).dtype is None
    (tmp_path / "few.svm").write_text("1 16777216:1\n")
    with pytest.raises(UsageError, match="20002 rows of 16777216 features"):
        Svmlight(tmp_path / "few.svm", path, dense=True).read(0)


@pytest.mark.parametrize("label", ["1e300", "-1e39", "9" * 400])
def test_svmlight_labels_are_numbers_in_float32(tmp_path: Path, label: str) -> None:
    path = tmp_path / "a.svm"
    path.write_text(f"1 1:1\n{label} 1:2\n")
    with pytest.raises(DataError, match="row 2 has a value that is not finite"):
        Svmlight(path).read(0)


def test_labels_up_to_2_62(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("1,0\n2,4611686018427387904\n3,9007199254740991\n")
    assert CsvTable(path).read(0).labels.dtype == np.float64
    path.write_text("1,0\n2,1\n3,9007199254740991\n4,-9007199254740991\n")
    out = tmp_path / "out"
    run("csv", path, "--split", "rows", "--clients", 2, "--partition", "dirichlet:1", "--out", out)
    assert open_federation(out).classes == 4


# cells and names


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1," + "9" * 140_000 + "\n", r"line 2: field larger than field limit|'9+\.\.\.9+' is no finite"),
        ("x" * 140_000 + ",b\n1,2\n", "line 1: field larger than field limit"),
        ("a,b\n1," + "9" * 400 + "\n", r"line 2, column 2 \(b\): '9+\.\.\.9+' is not a finite number"),
        ("a,b\n1," + "9" * 5000 + "\n", r"line 2, column 2 \(b\): '9+\.\.\.9+' is not a finite number"),
        ("a,b\n1,-1e39\n", r"line 2, column 2 \(b\): '-1e39' is not a finite number"),
        ("a,b\n1,2,3\n4,5,6\n", "line 2: 3 columns, the first line has 2"),
        ("a,a\n1,2\n", "line 1 names 2 columns 'a'; every column needs a name of its own"),
        ("a, a ,b\n1,2,3\n", "line 1 names 2 columns 'a'"),
        ("a,,b\n1,2,3\n", "line 1, column 2 has no name; every column needs a name of its own"),
        ("a,  \n1,2\n", "line 1, column 2 has no name"),
        ("a,b\0\n1,2\n", r"column 2 has the name 'b\\x00', with a control character|line contains NUL"),  # Python 3.10
        ('a,"b\nc"\n1,2\n', r"line 1, column 2 has the name 'b\\nc', with a control character"),
        ("y\n1\n2\n", "no column besides the label's"),
    ],
)
def test_faulty_csv(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=words) as caught:
        CsvTable(path).read(0)
    assert len(str(caught.value)) < 400


def test_names_in_tables_are_checked_as_well(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for head, words in (("id,b,b ,y", "names 2 columns 'b'"), ("id,,y", "column 2 has no name")):
        path.write_text(head + "\nk,1,2,3\n")
        with pytest.raises(DataError, match=words):
            Tables(tmp_path, "id", "y").read(0)


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    path, who = tmp_path / "a.csv", tmp_path / "map.csv"
    path.write_text("\ufeffa,y\n1,2\n3,4\n", encoding="utf-8")
    assert CsvTable(path).read(0).names == ("a",)
    path.write_text("\ufeff1,2\n3,4\n", encoding="utf-8")
    assert CsvTable(path).read(0).labels.tolist() == [2, 4]
    who.write_text("\ufeffclient,rows,columns\n0,all,all\n", encoding="utf-8")
    assert read_map(who, 2, 2).clients == 1


def test_messages_are_short() -> None:
    assert listed(range(3)) == "0, 1, 2"
    assert listed(range(99), 2) == "0, 1, ... (99 in all)"
    assert len(shown("x" * 10**6)) < 100
    assert shown("an identifier of an ordinary length, such as a UUID") == repr(
        "an identifier of an ordinary length, such as a UUID"
    )


# maps


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0,4000000000,all\n", "'4000000000'; expected numbers or ranges FIRST-LAST within 0 to 2, or all"),
        ("0,0-4000000000,all\n", "'0-4000000000'; expected numbers or ranges"),
        ("0," + "9" * 5000 + ",all\n", "expected numbers or ranges"),
        ("0,0-" + "9" * 5000 + ",all\n", "expected numbers or ranges"),
        ("0,3,all\n", "'3'; expected numbers or ranges FIRST-LAST within 0 to 2"),
        ("0,0-3,all\n", "'0-3'; expected numbers or ranges FIRST-LAST within 0 to 2"),
        ("0,0-,all\n", "'0-'; expected numbers or ranges"),
        ("0,all,all\n4000000000,all,all\n", "no entry for client 1; every client from 0 to the last"),
        ("4000000000,all,all\n", "no entry for client 0"),
        ("9" * 19 + ",all,all\n", "client '9+'; expected a number from 0"),
        ("9" * 5000 + ",all,all\n", "client '9+...9+'; expected a number from 0"),
        ('0,"0\n', "line 2, columns: empty"),
        # a long line is no fault
        ("0,0" + " 0" * 2000 + " " * 140_000 + ",all\n", "row 1 and column 0 is held by no client"),
    ],
)
def test_faulty_map(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "map.csv"
    path.write_text("client,rows,columns\n" + text)
    with pytest.raises(DataError, match=words) as caught:
        read_map(path, 3, 2)
    assert len(str(caught.value)) < 400


def test_a_map_in_which_very_many_clients_hold_very_much(tmp_path: Path) -> None:
    """Each a group of its own: 20,000 of 100,000 rows would be 16 GB."""
    path = tmp_path / "map.csv"
    lines = (f"{client},{client}-99999,all\n" for client in range(20_000))
    path.write_text("client,rows,columns\n" + "".join(lines))
    with pytest.raises(DataError, match="the cell of row 1 and column 0 is held by clients 0, 1; expected one client"):
        read_map(path, 10**5, 1)
    path.write_text(
        "client,rows,columns\n7,1-99999,all\n3,all,all\n"
        + "".join(f"{client},0,all\n" for client in (0, 1, 2, 4, 5, 6))
    )
    with pytest.raises(DataError, match="row 1 and column 0 is held by clients 3, 7"):  # by their numbers in the file
        read_map(path, 10**5, 1)


def test_a_map_that_needs_more_memory_than_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "map.csv"
    path.write_text("client,rows,columns\n0,0-49999,all\n1,50000-99999,all\n")
    assert read_map(path, 10**5, 1).clients == 2
    monkeypatch.setattr(os, "sysconf", lambda name: 2**10)
    with pytest.raises(DataError, match=r"map.csv: what clients 0 to 0 hold: needs .* let clients hold fewer"):
        read_map(path, 10**5, 1)


def test_long_lines_are_allowed_in_maps_alone(tmp_path: Path) -> None:
    path, before = tmp_path / "map.csv", csv.field_size_limit()
    for last in ("all", "x"):
        path.write_text("client,rows,columns\n0,all" + " " * before + f",all\n1,all,{last}\n")
        with pytest.raises(DataError):
            read_map(path, 3, 2)
        assert csv.field_size_limit() == before


def test_a_word_that_comes_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "map.csv"
    path.write_text("client,rows,columns\n0," + "0-99999 " * 10_000 + "50-70,all\n")
    (rows,) = read_map(path, 10**5, 1).rows
    assert np.array_equal(rows, np.arange(10**5))
    path.write_text("client,rows,columns\n0,7 0-2 2-4 3 9,all\n1,5-6 8,0\n")
    assert read_map(path, 10, 1).rows[0].tolist() == [0, 1, 2, 3, 4, 7, 9]
