"""What `mpifed data` refuses, a table a kind: its words, what the answer names, and the files that it was given."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import re
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import click
import h5py
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from federations import hdf5, idx, leaf, make, png
from limits import little_memory
from scipy import sparse

from mpifed.core.errors import DataError, MpifedError, UsageError
from mpifed.core.io_errors import explaining
from mpifed.data.command import data
from mpifed.data.options import Options
from mpifed.data.prepare import prepare
from mpifed.data.samples import Samples, Source
from mpifed.data.sources import CsvTable, Svmlight

RNG = np.random.default_rng(5)
ONE = "--split rows --clients 1"
USAGE = (UsageError, click.UsageError)


class Bad(NamedTuple):
    """A row: what is given, and what is named in the answer."""

    words: str
    named: str
    files: Mapping[str, str | bytes] = MappingProxyType({})
    error: type[Exception] | tuple[type[Exception], ...] = DataError


@pytest.fixture(autouse=True)
def importable(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(here)
    monkeypatch.delitem(sys.modules, "waves", raising=False)  # of another test of this process


def check(bad: Bad) -> None:
    """The error that was promised, short, and nothing is left of it; nor was any byte of the files executed."""
    for name, content in bad.files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    words = ["--out", "out", *bad.words.split()]
    with pytest.raises(bad.error) as caught, explaining():
        CliRunner().invoke(data, [words[2], *words[:2], *words[3:]], catch_exceptions=False, standalone_mode=False)
    said = caught.value.format_message() if isinstance(caught.value, click.UsageError) else str(caught.value)
    assert re.search(bad.named, said), said
    assert len(said) < 450 and not Path("out").exists() and not Path("executed").exists()


# --- options ---------------------------------------------------------------------------------------------------------

WORDS = {  # after these words, of which the last ones count
    "digits --split rows --clients 2": [
        ("--clients 1000000000", "1000000000 clients for 1797 rows"),
        ("--partition classes:1000000000", "of 10 classes each"),
        (f"--partition classes:{'9' * 5000}", "classes:K or shards:K with K"),
        ("--partition dirichlet:inf", "dirichlet:A with A > 0"),
        ("--skew nan", "--skew nan"),
        ("--grid 2x1", "--grid: --split rows gives all columns to each client"),
        ("--scale minmax,rows", "'rows' is not a scaling; did you mean .unit-rows..; expected one of none, unit,"),
        ("--samples 7", "No such option.*--samples"),
        ("somewhere", "unexpected extra argument .*somewhere"),
        ("--test-fraction 0", "--test-fraction 0"),
        ("--client-test-fraction 1.5", "above 0 and below 1"),
        ("--clients 1797 --client-test-fraction 0.4", "no client has rows enough"),
        ("--labels odd", "with K one of 0, 1"),
    ],
    "digits": [
        ("--split grid --grid 100000x100000", "100000 clients for 1797 rows"),
        (f"--split grid --grid {'9' * 5000}x2", "expected R groups of rows"),
        ("--split grid", "--split grid: --grid is missing"),
        ("--split grid --grid 2x3 --clients 5", "--clients: --grid says how many groups there are; leave it out"),
        ("--split rows", "--split rows: --clients is missing"),
        ("--clients 2", "--split is missing; expected rows, columns or grid"),
        ("--split columns --clients 2 --skew 1", "--skew: --split columns gives all rows to each client"),
        ("--split columns --clients 2 --client-test-fraction 0.2", "split by columns.*--test-fraction"),
    ],
    "synthetic --split rows --clients 5": [
        ("--noise inf", "--noise inf"),
        ("--partition dirichlet:1", "real targets"),
        ("--labels even-odd", "--task classification"),
        ("--task auto", "Invalid value for '--task': 'auto' is not one of"),
        ("--classes 3", "--classes 3"),
        ("--samples 0", "--samples 0"),
    ],
    "csv": [("--split rows --clients 2", "Missing argument 'PATH...'")],
}
OPTIONS = [Bad(f"{a} {b}", named, error=USAGE) for a, rows in WORDS.items() for b, named in rows] + [
    Bad("synthetic --split rows --clients 2 --samples 1000000 --features 1000000000",
        r"synthetic: not enough memory \(.*\); use less data"),
    Bad("synthetic --split rows --clients 2 --samples 9223372036854775807", "expected a number from 1", error=USAGE),
    Bad(f"digits --split rows --clients 2 --out {'x' * 256}", "File name too long; choose a shorter name"),
    Bad("digits --split rows --clients 2 --out /proc/nothing/out", "/proc/nothing: No such file"),
]  # fmt: skip


# --- tables of text --------------------------------------------------------------------------------------------------


def of_csv(train: str | bytes, named: str, words: str = "", error: Any = DataError, **more: str | bytes) -> Bad:
    """A file a.csv with the label y, and others."""
    files = {"given.toml" if name == "given" else f"{name}.csv": text for name, text in more.items()}
    return Bad(f"csv a.csv --label y {ONE} {words}", named, {"a.csv": train, **files}, error)


def of_toml(train: str, toml: str, named: str, words: str = "") -> Bad:
    return of_csv(train, named, f"--given given.toml {words}", MpifedError, given=toml)


OF_WARDS = "x,ward,y\n1,a,0\n2,b,1\n3,b,0\n"
NATURAL = {
    "--by who": "--by who: .* has no such column; expected the names x, ward",
    "--by ward --clients 3": "--clients: the data say whose each row is; leave it out",
    "--by ward --partition dirichlet:1": "--partition: the data say whose each row is",
    "": "--split is missing; .* as --split rows --clients 10, or --by NAME for a client of each",
}
TWO = "x,y\n1,0\n2,1\n"
TEXTS = "x,y\n1,no\n2,yes\n3,no\n"
CSV = [
    of_csv("x;y\n1;0\n", r"a.csv: line 1: 'x;y'; has no ','; give --separator ';'"),
    of_csv("x;y\n1,5;0\n2,5;1\n", "'1,5' is not a number", "--separator ;"),
    of_csv("x,größe,y\n1,2,0\n".encode("latin-1"), "a.csv: cannot be read .*; save it as UTF-8"),
    of_csv("a,b,y\n1,2,groß\n".encode("latin-1"), "a.csv: .*UTF-?8"),
    of_csv("x,y", "a.csv: .*no rows"),
    of_csv("a,b,y\n1,2\n", "a.csv: .*Expected 3 columns, got 2"),
    of_csv("x,y\n1,2,3\n4,5,6\n", "Row #2: Expected 2 columns, got 3: 1,2,3.; expected UTF-8 with ','"),
    of_csv("y\n1\n2\n", "no column besides the label's"),
    of_csv("x,y\n1,0\n", "no column besides the label's", "--ignore 0"),
    of_csv("x,y\n1,0\n", "--ignore X: .* has no such column; expected the names x", "--ignore X", USAGE),
    of_csv("x,x,y\n1,0,1\n", "column 1 'x' has the name of 2 columns; give it one of its own"),
    of_csv("x,,y\n1,2,0\n", "column 2 '' has no name"),
    of_csv("y,b\0\n1,2\n", r"column 2 'b\\x00' has the control character|line contains NUL"),  # Python 3.10
    of_csv("x,y\n" + "9" * 140_000 + ",1\n", "column 'x': .*is not a finite number"),
    of_csv("x,h,y\n1.5,0xFFFFFFFFFFFFFFFF,0\n2,-1,1\n", "row 1, column 'h': '0xFFFFFFFFFFFFFFFF' is not"),
    of_csv("x,y\n1,0\n", "b.csv: .*: x, z differs", "b.csv", b="z,y\n1,1\n"),
    of_csv("x,y\n1,0\n", "b.csv: row 2, column 'x': 'u' is not a number; a.csv has numbers", "b.csv",
           b="x,y\n2,1\nu,1\n"),
    of_csv(TWO, "b.csv: row 2, column 'x' is a missing value, of 1", "b.csv", b="x,y\n3,1\n,1\n"),
    of_csv(TWO, "^a.csv, a.csv: 2 clients are called 'a'; give each", "a.csv"),
    of_csv(TWO, r"t.csv: other columns than a.csv: x differs", "--test t.csv", t="z,y\n1,1\n"),
    of_csv(TWO, "'u' is no", "--test t.csv", t="x,y\nu,1\n"),
    of_csv(TWO, "t.csv: row 1, column 'y': '01' is not a number; a.csv has numbers", "--test t.csv", t="x,y\n1,01\n"),
    of_csv("x,y\n" + "".join(f"{n}.5,n{n}\n" for n in range(30)), "labels are 30 different texts in 30 rows, classes",
           error=USAGE),
    *(of_csv(f"x,y\n1,{label}\n2,{label}\n", f"column 'y': '{label}' is not a number; .*classes, in a file")
      for label in ("9%", "1.234.567", "5€")),
    of_csv("x;y\n1.5;0\n2.5;1\n", "'1.5' is not a number; .*comma", "--separator ; --decimal , --categorical one-hot"),
    of_csv('s,y\n"a,0\nb,1\n"c,0\nd,1\n', "5 lines, and 3 rows: a cell begins with a quote", "--categorical one-hot"),
    of_csv("d,y\n01.02.2024,0\n2.2.2024,1\n", "'01.02.2024' is not a number; .*dates out", "--categorical one-hot"),
    of_csv(TWO, "such as 0.5", "--test t.csv", t="x,y\n1,.5\n"),
    of_csv(TWO, "has the label 2, which no training row has", "--test t.csv", t="x,y\n1,2\n"),
    of_csv(TEXTS, "row 1 has the label maybe, which no training row has; expected one of no, yes", "--test t.csv",
           t="x,y\n1,maybe\n"),
    of_csv(TEXTS, "expected all, or class:K with K one of no, yes", "--labels even-odd", MpifedError),
    of_csv("x,y\n1,0\n2,\n3,1\n", "row 2, column 'y' is a missing value", "--missing mean"),  # is never filled in
    of_csv("x,b,y\n1,NA,0\n2,?,1\n", "--missing mean: column 'b' has no value in the training rows; remove it",
           "--missing mean"),
    of_toml(TWO, "[columns.x]\nrage = [0, 1]\n", "given.toml: columns.x.rage = "),
    of_toml(TWO, "[columns.x]\ncategories = ['u', 'v', 'u']\n", "columns.x.categories = .*: expected different texts"),
    of_toml(TWO, "[columns.x]\ncategories = ['u ', 'e\u0301']\n", "columns.x.categories = .*without blanks"),
    of_toml(TWO, "classes = ['no', 'yes', 'no']\n", "given.toml: classes = .*: expected different texts"),
    of_toml(TWO, "[columns.x]\nfill = 1e300\n", "of numbers that float32 holds"),
    of_toml(TWO, "[columns.x]\nrange = [0, 1e-300]\n", "of numbers that float32 holds"),
    *(of_csv(f"{head}\n5,6,0\n2,3,1\n", f"line 1: '{head.replace(',', ', ')}'; expected .* names in all", "--label 2")
      for head in ("0,1,2", "2019,2020,2021", "x,1,y")),
    of_csv("5,6,0\n2,3,1\n", "--label x5: .* names 0, 1, 2, .*a first line of numbers is a row", "--label x5", USAGE),
    of_csv("x,y\n1,0\n2,01\n", "b.csv has numbers there; correct it", "b.csv", b="x,y\n2,1\n"),
    of_csv("zip,y\n1067,0\n01067,1\n", "row 1, column 'zip': .* is not a number; encode categories, .*leave"),
    of_toml(TWO, "[columns.X]\nfill = 1\n", "columns.X: no such feature; did you mean \"x\""),
    of_toml(TWO, "[columns.x]\nfill = 'a'\n", "columns.x.fill = 'a': expected a number"),
    of_toml("x,y\nu,0\nv,1\n", "[columns.x]\nfill = 'w'\n", "columns.x.fill = 'w': expected .* a category",
          "--categorical one-hot"),
    of_toml(TEXTS, "classes = ['no', 'maybe']", "label 'yes' is none of the given no, maybe"),
    Bad(f"csv a.csv {ONE}", "--label is missing: a.csv has the columns x, y", {"a.csv": TWO}, USAGE),
    Bad("csv nan.csv b.csv --label y --missing drop", "nan.csv, b.csv: 1 rows have no value",
        {"nan.csv": TWO, "b.csv": TWO}),
    Bad("csv \u00e9.csv e\u0301.csv --label y", "2 clients are called '\u00e9'",
        {"\u00e9.csv": TWO, "e\u0301.csv": TWO}),
    Bad("csv none.csv --label y " + ONE, "none.csv: cannot be read .*No such file"),
    *(Bad(f"csv a.csv --label y {words}", named, {"a.csv": OF_WARDS}, USAGE) for words, named in NATURAL.items()),
]  # fmt: skip


LINES = {
    "1 1:1\n-1 1:nan\n": "a.svm: .*nan is not a finite number",
    "1 1:1\ninf 1:1\n": "label of row 1 is inf",
    "1 1:1\n-1e39 1:2\n": "label of row 1 is",
    f"1 1:1\n{'9' * 400} 1:2\n": "label of row 1 is",
    "1 1:1\n-1 1:x\n": "a.svm: .*x.*; expected lines `label column:value",
    "": "a.svm: .*no values at all",
    "01 1:1\n1 1:2\n": "a.svm: the label 01 begins with 0, .*; write it without, or give codes as texts, by csv",
    "1 1:1700000001\n-1 1:1700000002\n": "a.svm: column 0: 2 different numbers, .* are 1 in float32",
}
SVMLIGHT = [Bad(f"svmlight a.svm {ONE}", named, {"a.svm": text}) for text, named in LINES.items()]


PACKERS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def csv_table(path: Path) -> CsvTable:
    return CsvTable((path,), label="-1")


@pytest.mark.parametrize(("suffix", "kind"), [(".gz", csv_table), (".bz2", Svmlight), (".xz", csv_table)])
@little_memory()
def test_packed_files_are_read_to_their_end(tmp_path: Path, suffix: str, kind: Any) -> None:
    path = tmp_path / f"a{suffix}"
    packed = PACKERS[suffix]((b"1,2\n" if kind is csv_table else b"1 1:2\n") * 20_000)
    path.write_bytes(packed)
    assert len(kind(path).read(0).y) == 20_000
    path.write_bytes(packed[:-20])
    with pytest.raises(DataError, match=rf"a{suffix}: cannot be read .*; get the file again"):
        kind(path).read(0)


@pytest.mark.parametrize("kind", [csv_table, Svmlight])
@little_memory()
def test_what_has_no_end_is_no_file(kind: Any, tmp_path: Path) -> None:
    for path, words in ((Path("/dev/zero"), "a pipe, a device or a folder"), (tmp_path, "Is a directory")):
        with pytest.raises(DataError, match=words):
            kind(path).read(0)
    with pytest.raises(DataError, match=r"cannot be read .*File name too long"):
        kind(tmp_path / ("x" * 300)).read(0)


# --- LEAF ------------------------------------------------------------------------------------------------------------

JSON: list[tuple[object, str]] = [
    (leaf(ann=([[1], [2, 3]], [0, 1])), "user 'ann': .*expected .*x of numbers, of one shape"),
    (leaf(ann=([[1]], [0]), bob=([[1, 2]], [1])),
     r"'bob': samples of shape \(2,\); expected \(1,\)"),
    (leaf(ann=([[1]], [0]), bob=([[1]], ["o"])),
     "'bob': labels are <U1 .*, those to train on int64"),
    (leaf(ann=(["to be"], ["o"])), "an array of <U5.; expected .*x of numbers"),
    (leaf(ann=([[1], [2]], ["1", 1])), "user 'ann': y: row 1 has 1, and not a text"),
    (leaf(ann=([[1], [2]], [[1, 0], [1]])), "user 'ann': cannot be read"),
    (leaf(ann=([], [])), "no rows of any client"),
    (leaf(**{"a\0b": ([[1], [2]], [0, 1])}), "has a control character"),
    (leaf(a=([[1], [2]], [2**60, 2**60 + 1])), "labels up to 1152921504606846977 can't be told apart"),
    ({"users": 3, "num_samples": [1], "user_data": {}}, "no rows of any client"),
    ({}, "KeyError: 'user_data'.*expected `users`"),
    ({"user_data": {"ann": [1]}}, r"user 'ann': .*expected {\"x\": \[...\], \"y\": \[...\]}"),
    ("[" * 10**5, "cannot be read"),
    ('{"user_data": ', "cannot be read"),
    ('{"user_data": {"ann": {"x": [[1]], "y": [1]}, "ann": {"x": [[2]], "y": [0]}}}', "'ann'. is there twice"),
    ('{"user_data": {"ann": {"x": [[' + "9" * 5000 + ']], "y": [1]}}}', "a.json: "),
]  # fmt: skip
LEAF = [
    Bad("leaf a.json", named, {"a.json": content if isinstance(content, str) else json.dumps(content)})
    for content, named in JSON
]


# --- files of arrays -------------------------------------------------------------------------------------------------

X, Y = RNG.random((6, 2)), np.arange(6) % 2


class Executed:
    """What a pickle does as soon as it is read."""

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, ("executed",)


def test_what_no_table_executes_would_be_executed() -> None:
    pickle.loads(pickle.dumps(Executed()))
    assert Path("executed").exists()


def npz(**arrays: Any) -> bytes:
    """Arrays as np.savez has them, and bytes that stand for one."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name, values in arrays.items():
            content = io.BytesIO()
            content.write(values) if isinstance(values, bytes) else np.save(content, values)
            file.writestr(f"{name}.npy", content.getvalue())
    return packed.getvalue()


def array_of(kind: str, shape: str) -> bytes:
    return npy_header(f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}")


def npy_header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + (119).to_bytes(2, "little") + text.encode().ljust(118) + b"\n"


OBJECTS = np.array([[1, Executed()]], object)
ZIPS = [
    (npz(X=array_of("|O", "(2, 1)"), y=Y[:2]), "cannot be read .Object arrays cannot be loaded"),
    (npz(X=array_of("<f8", "(9999999999, 99)"), y=Y[:2]), "npz: not enough memory"),
    (npz(X=array_of("<f8", "(-1, 2)"), y=Y[:2]), "cannot be read"),
    (npz(X=array_of("<c8", "(0, 2)"), y=Y[:2]), r"X: an array of complex64 \(0, 2\); expected numbers"),
    (npz(X=npy_header("__import__('os').mkdir('executed')"), y=Y[:2]), "cannot be read"),
    (npz(X=array_of("<f8", "(2, 2)"), y=Y[:2]), "cannot be read"),
    (npz(X=npy_header("{'descr': '<f8', 'fortran_order': (False"), y=Y[:2]), "cannot be read"),
    (npz(X=OBJECTS, y=Y[:1]), "a.npz: cannot be read .*; expected numbers and texts, by np.savez"),
    (pickle.dumps(OBJECTS), "a.npz: cannot be read .*; expected numbers and texts, by np.savez"),
    (npz(z=X, y=Y), "--samples is missing: .*a.npz has the arrays z, y; give the name of one"),
    *(
        (npz(X=X, y=y), "a.npz: y: labels are ")
        for y in (Y.astype("M8[D]"), Y.astype("m8[s]"), Y * 1j, np.array([b"a", b"b"])[Y], Y.astype([("a", int)]))
    ),
    (npz(X=X, y=np.eye(2, dtype=int)[Y], X_test=X, y_test=2.0 * np.eye(2)[Y]), r"test: y: labels are .*, such as 2"),
    (npz(X_train=X, y_train=Y, x_test=X, y_test=Y), "has x_test, y_test; rows to test with are X_test, y_test, as"),
    (npz(x_train=X, y_train=Y, x_test=X), "has x_test; rows to test with are x_test, y_test"),
]
NPZ = [
    *(Bad(f"npz a.npz {ONE}", named, {"a.npz": content}, MpifedError) for content, named in ZIPS),
    Bad("npz a.npz --by who", "--by who: .* has the arrays X, y", {"a.npz": npz(X=X, y=Y)}, MpifedError),
]


TRAIN = {"train-images": idx(np.zeros((6, 4, 6))), "train-labels": idx(Y)}
TEST = {"t10k-images": idx(np.zeros((3, 4, 6))), "t10k-labels": idx(Y[:3])}
LABELS = [
    (idx(Y[:2]), "3 rows and 2 labels"),
    (idx(Y[:3])[:-1], "10 bytes that begin with 00000801, and a header for"),
    (idx(Y[:3]) + b"x", r"12 bytes .* array \(3,\); expected IDX of unsigned bytes in 1 dimensions"),
    (b"\0\0\x08\x01\xff\xff\xff\xff", "8 bytes .* array .4294967295,."),
    (idx(Y)[:6], "6 bytes that begin"),
    (b"", "0 bytes that begin with , and"),
    (b"\0\0\x0d\x01\0\0\0\1\0\0\0\0", "begin with 00000d01, .*expected IDX of unsigned bytes"),
]
IDX = [
    *(Bad("idx . " + ONE, named, {**TRAIN, **TEST, "t10k-labels": content}) for content, named in LABELS),
    Bad("idx . " + ONE, r"b-train-labels, train-labels: two files \*train-labels\*",
        {**TRAIN, "b-train-labels": idx(Y)}),
    Bad("idx . " + ONE, "train-labels, t10k-images; expected",
        {**TRAIN, "t10k-images": TEST["t10k-images"]}),
    Bad(f"cifar . {ONE}", r"no file \*batches.meta.txt, \*fine_label_names.txt; expected a folder"),
]  # fmt: skip


GREY = {f"{kind}/{n}.png": png(np.zeros((4, 3), np.uint8)) for kind in "ab" for n in (0, 1)}
NO_IMAGES = [
    (b"no image", r"9.png: cannot be read .*; expected BMP, GIF, JPEG"),
    (png(np.zeros((4, 3), np.uint16)), r"9.png: cannot be read .*more than 8 bits, mode I;16"),
    (png(np.zeros((4, 3), np.uint8), np.ones((4, 3), np.uint8)), "9.png: cannot be read .*several images in one file"),
    (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 2 2\n", "9.png: cannot be read"),
    (png(np.zeros((2, 2), np.uint8)), r"9.png: \(2, 2\) pixels, 0.png has \(4, 3\)"),
]
LISTS = io.BytesIO()
pd.DataFrame({"a": [[1, 2], [3, 4]], "y": [0, 1]}).to_parquet(LISTS)


def led_elsewhere(external: bool) -> bytes:
    """A file of HDF5 whose X is in b.h5, by a virtual dataset or as its bytes."""
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        file["y"] = Y
        if external:
            file.create_dataset("X", X.shape, X.dtype, external=[("b.h5", 0, X.nbytes)])
        else:
            layout = h5py.VirtualLayout(X.shape, X.dtype)
            layout[...] = h5py.VirtualSource("b.h5", "X", X.shape)
            file.create_virtual_dataset("X", layout)
    return content.getvalue()


FOLDERS = [
    Bad(f"parquet a.parquet --label y {ONE}",
        r"'a' is of type list<.*; convert it \(lists and images: FederatedDataset.from_arrays in Python",
        {"a.parquet": LISTS.getvalue()}),
    Bad("hdf5 .", "a.h5: cannot be read .*y is no dataset of this file", {"a.h5": hdf5(X=X)}),
    Bad("hdf5 .", "a.h5: .*X is no dataset of this file", {"a.h5": hdf5(X=h5py.ExternalLink("b.h5", "y"), y=Y)}),
    Bad("hdf5 .", "a.h5: .*X is no dataset of this file", {"a.h5": hdf5(X=h5py.SoftLink("/Z"), Z=X, y=Y)}),
    *(Bad("hdf5 .", "a.h5: .*X is no dataset of this file", {"a.h5": led_elsewhere(external), "b.h5": hdf5(X=X, y=Y)})
      for external in (False, True)),
    Bad("hdf5 .", r"b.h5: samples of shape \(1,\); expected", {"a.h5": hdf5(X=X, y=Y), "b.h5": hdf5(X=X[:, :1], y=Y)}),
    Bad("hdf5 .", "b.h5: samples are uint8, those", {"a.h5": hdf5(X=X, y=Y), "b.h5": hdf5(X=X.astype("u1"), y=Y)}),
    Bad("hdf5 .", r"no file \*.h5, \*.hdf5"),
    Bad("hdf5 .", "a.H5: cannot be read .*y is no dataset", {"a.H5": hdf5(X=X), "b.h5": hdf5(X=X, y=Y)}),
    *(Bad("hdf5 .", "a.h5: .*X_test is no dataset of this file", {"a.h5": hdf5(X=X, y=Y, **{name: Y})})
      for name in ("y_test", "x_test")),
    Bad("hdf5 .", "a.h5: 4 rows and 6 labels",
        {"a.h5": hdf5(X=X[:4], y=Y), "b.h5": hdf5(X=X, y=Y[:4])}),
    Bad("hdf5 .", "2 clients are called 'a'", {"a.h5": hdf5(X=X, y=Y), "a.hdf5": hdf5(X=X, y=Y)}),
    Bad("images . " + ONE, "a folder for each class, as "),
    *(Bad("images . " + ONE, named, {**GREY, "b/9.png": content}) for content, named in NO_IMAGES),
    Bad("images . " + ONE, "b/c: cannot be read .*Is a directory",
        {**GREY, "b/c/9.png": GREY["b/0.png"]}),
]  # fmt: skip


# --- sources of one's own --------------------------------------------------------------------------------------------

WAVES = """
from dataclasses import dataclass
from mpifed.data.samples import Samples, Source

@dataclass(frozen=True)
class Waves(Source):
    rows: int
    slope: float = 1.0

    def read(self, seed: int) -> Samples:
        X = [[x, 1.0] for x in range(self.rows)]
        return Samples(X, [self.slope * x + 0.5 for x, _ in X])

@dataclass(frozen=True)
class Misspelt(Waves):
    def reads(self, seed: int) -> Samples:
        return self.read(seed)

@dataclass(frozen=True)
class Shadows(Waves):
    split: str = "rows"

class Unrelated:
    pass
"""
OWN = [Bad(f"{words} {ONE}", f"^{named}", {"waves.py": WAVES}, USAGE) for words, named in {
    "waves:Waves": "Missing option '--rows'",
    "waves:Waves --rows many": "Invalid value for '--rows': 'many' is not a valid integer",
    "waves:Waves --row 3": r"No such option '--row'. \(Did you mean ",
    "waves:Misspelt --rows 3": 'waves:Misspelt: has "reads": did you mean "read"\\?',
    "waves:Unrelated": "waves:Unrelated: is no Source; derive it from mpifed.data.samples.Source",
    "waves:Shadows": "waves:Shadows: split: every source has that option; rename the field",
    "no_such_module:A": "no_such_module:A: importing no_such_module: ModuleNotFoundError: ",
    "parqet": "'parqet': is not a source; did you mean \"parquet\"\\?; give one of digits",
}.items()]  # fmt: skip


def test_a_source_of_ones_own() -> None:
    Path("waves.py").write_text(WAVES)
    made = make(Path("out"), *f"waves:Waves --rows 30 --slope 2.5 --test-fraction 0.2 {ONE}".split())
    assert (made.samples, made.test_samples, made.features) == (24, 6, 2)
    assert made.provenance["source"] == "waves:Waves"
    assert made.provenance["options"]["source"] == {"rows": 30, "slope": 2.5}


# --- and so they are -------------------------------------------------------------------------------------------------


def ids(bad: Bad) -> str:
    return f"{bad.words[-40:]} {bad.named[:30]}"


@pytest.mark.parametrize("bad", [*OPTIONS, *NPZ, *IDX, *FOLDERS, *OWN], ids=ids)
def test_what_is_refused(bad: Bad) -> None:
    check(bad)


@pytest.mark.parametrize("bad", [*CSV, *SVMLIGHT, *LEAF], ids=ids)
@little_memory()
def test_texts_that_are_refused(bad: Bad) -> None:
    check(bad)


# --- arrays, by whichever door ---------------------------------------------------------------------------------------

PIXELS = RNG.integers(0, 256, (6, 1, 4, 3), np.uint8)
STAMPS = 1_700_000_000_000_000_000 + np.arange(12).reshape(6, 2)
MASKED = np.ma.masked_array(X, mask=X[2, 1] == X)
IDS = [1, 1, 2, None, 2, 2]
ARRAYS: dict[str, tuple[Any, str]] = {  # of Samples(X, Y) with these fields, or what is returned in their place
    "no Samples": (("X", "y"), r"given: read\(\) returned tuple; expected mpifed.data.samples.Samples"),
    "masked": (dict(X=MASKED), "given: X: 1 masked entries; fill them in, or leave their rows out"),
    "masked ids": (dict(ids=np.ma.masked_equal(Y, 1)), "given: ids: 3 masked entries"),
    "ids with a gap": (dict(ids=IDS), "given: ids: 1 rows have no value"),
    "ids of blanks": (dict(ids=[" ", "x", "nan ", "x", "y", "y"]), "given: ids: 2 rows have no value"),
    "ids of fractions": (dict(ids=X[:, 0]), "given: ids: float64, such as .*; expected integers or texts"),
    "ids of other rows": (dict(ids=Y[:4]), r"ids of shape \(4,\); expected one for each of 6 rows"),
    "time stamps": (
        dict(X=STAMPS),
        "X: column 0: integers up to 1700000000000000010, .* dates and identifiers",
    ),
    "large below zero": (dict(X=-1.7e9 - 40.0 * np.arange(12).reshape(6, 2)), "X: column 0: 6 different numbers"),
    "unsigned ids": (dict(X=np.full((6, 2), 2**63, np.uint64)), "column 0: integers up to 9223372036854775808"),
    "dates": (dict(X=STAMPS.astype("M8[ns]")), r"X: an array of datetime64\[ns\] \(6, 2\); expected numbers"),
    "texts": (dict(X=X.astype(str)), "X: an array of <U"),
    "ragged": (dict(X=[[1, 2], [3]]), "X: cannot be read .*; expected numbers"),
    "one axis": (dict(X=X[:, 0]), r"expected numbers \[samples, ...\]; one sample x is x\[None\]"),
    "gap": (dict(X=np.where(X[4, 1] == X, np.nan, X)), "row 4, column 1: nan is not a finite number in float32, as"),
    "too large": (dict(X=X * 1e39), "row 0, column 0: .*e.38 is not a finite number in float32, as are [0-9]+ others"),
    "sparse gap": (dict(X=sparse.coo_array(X * np.nan)), "X: row 0, .*nan is not a finite number"),
    "labels not finite": (dict(y=np.full(6, np.inf)), "y: label of row 0 is inf; expected finite numbers"),
    "labels with a gap": (dict(y=np.array(["a", "b", None] * 2, object)), "row 2 has None, and not a text"),
    "labels that break lines": (dict(y=np.array(["a", "b\nc"] * 3)), "row 1: the label .* has the control"),
    "labels in columns": (dict(y=2 * np.eye(6, dtype=int)), r"labels are int64 \(6, 6\), such as 2; several labels"),
    "labels in cubes": (dict(y=np.ones((6, 2, 1))), r"labels are float64 \(6, 2, 1\)"),
    "a target that is none": (dict(y=np.where(X[4, 1] == X, np.nan, X)), "label of row 4 is"),
    "labels of other rows": (dict(y=Y[:5]), "6 rows and 5 labels; expected a label for each row"),
    "shape": (dict(shape=(2, 2)), r"shape \(2, 2\) for 2 features; their product must be that number"),
    "own tests": (dict(own_tests=Y), r"own_tests is int64 \(6,\); expected bool \(6,\), as the labels"),
    "test of another width": (dict(test=Samples(X[:2, :1], Y[:2])), r"test: samples of shape \(1,\); expected \(2,\)"),
    "test with channels last": (
        dict(X=PIXELS, test=Samples(PIXELS[:2].transpose(0, 2, 3, 1).reshape(2, 3, 4, 1), Y[:2])),
        r"test: samples of shape \(3, 4, 1\); expected \(1, 4, 3\): transpose, or reshape",
    ),
    "test labels of texts": (dict(test=Samples(X[:2], ["a", "b"])), "labels are <U1 .*; give both alike"),
    "test label unknown": (dict(test=Samples(X[:2], [0, 7])), "row 2 has the label 7, which no training row has"),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_arrays(case: str) -> None:
    """By a source of one's own, which gives arrays as they are."""
    fields, named = ARRAYS[case]

    class Given(Source):
        names_clients = "ids" in fields

        def read(self, seed: int) -> Samples:
            return Samples(**{"X": X, "y": Y, **fields}) if isinstance(fields, dict) else fields

    how: dict[str, Any] = {} if "ids" in fields else {"split": "rows", "clients": 2}
    with pytest.raises(MpifedError, match=named):
        prepare(Options("given", Given(), None, **how))
