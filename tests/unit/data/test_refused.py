"""What is refused, by every door: a row says what is given, and what is named in the answer. Faults have numbers."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import re
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import h5py
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from federations import hdf5, idx, leaf, make, png
from limits import little_memory

import mpifed as mf
from mpifed.core.errors import MpifedError
from mpifed.core.io_errors import explaining
from mpifed.data.command import data
from mpifed.data.sources import CsvTable, Svmlight

RNG = np.random.default_rng(5)
ONE = "--split rows --clients 1"
Files = Mapping[str, str | bytes]
Bad = tuple[str, str, Files]  # words, what is named in the answer, files


@pytest.fixture(autouse=True)
def importable(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(here)
    monkeypatch.delitem(sys.modules, "waves", raising=False)  # of another test of this process


def check(words: str, named: str, files: Files) -> None:
    """An error that is short, and nothing is left of it; nor was any byte of the files executed."""
    for name, content in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    source, *more = words.split()
    with pytest.raises((MpifedError, click.UsageError)) as caught, explaining():
        command = [source, "--out", "out", *more]
        CliRunner().invoke(data, command, catch_exceptions=False, standalone_mode=False)
    said = caught.value.format_message() if isinstance(caught.value, click.UsageError) else str(caught.value)
    assert re.search(named, said), said
    assert len(said) < 450 and not Path("out").exists() and not Path("executed").exists()


# --- options ---------------------------------------------------------------------------------------------------------

WORDS = {  # after these words, of which the last ones count
    "digits --split rows --clients 2": {
        "--clients 1000000000": "1000000000 clients for 1797 rows",
        "--partition classes:11": "of 10 classes each",
        "--partition dirichlet:inf": "dirichlet:A with A > 0",
        "--partition shards:2 --skew 1": "and no --skew",
        "--skew gamma:1": "--skew gamma:1: expected A, dirichlet:A or power:A",
        "--grid 2x1": "--grid: --split rows gives all columns to each client",
        "--scale minmax,rows": "'rows' is not a scaling; did you mean .unit-rows..; expected one of none, unit,",
        "--client-test-fraction 1.5": "above 0 and below 1",
        "--clients 1797 --client-test-fraction 0.4": "no client has rows enough",
        "--labels odd": "with K one of 0, 1",
    },
    "digits": {
        f"--split grid --grid {'9' * 5000}x2": "expected R groups of rows",
        "--split grid": "--split grid: --grid is missing",
        "--split grid --grid 2x3 --clients 5": "--clients: --grid says how many groups there are; leave it out",
        "--split columns --clients 65": "65 clients for 64 columns",
        "--clients 2": "--split is missing; expected rows, columns or grid",
        "--split columns --clients 2 --client-test-fraction 0.2": "split by columns.*--test-fraction",
    },
    "synthetic --split rows --clients 5": {
        "--noise inf": "--noise inf",
        "--partition dirichlet:1": "real targets",
        "--classes 3": "--classes 3",
        "--labels even-odd": "--task classification",
        "--samples 1000000 --features 1000000000": r"synthetic: not enough memory \(.*\); use less data",
    },
    "parqet": {"": "'parqet': is not a source; did you mean \"parquet\"\\?; give one of digits"},
}
OPTIONS: list[Bad] = [(f"{of} {words}", named, {}) for of, rows in WORDS.items() for words, named in rows.items()]


# --- tables of text --------------------------------------------------------------------------------------------------

TWO, TEXTS = "x,y\n1,0\n2,1\n", "x,y\n1,no\n2,yes\n3,no\n"
CSV: list[tuple[str | bytes, str, str]] = [  # the file a.csv with the label y, more words, what is named
    ("x;y\n1;0\n", "", r"a.csv: line 1: 'x;y'; has no ','; give --separator ';'"),  # 27
    ("x;y\n1,5;0\n2,5;1\n", "--separator ;", "'1,5' is not a number"),  # 28
    ("x,größe,y\n1,2,0\n".encode("latin-1"), "", "a.csv: cannot be read .*; save it as UTF-8"),
    ("x,y", "", "a.csv: .*no rows"),
    ("x,y\n1,2,3\n4,5,6\n", "", r"Row #2: Expected 2 columns, got 3: 1,2,3.; expected UTF-8 with ','"),
    ("x,y\n1,0\n", "--ignore 0", "no column besides the label's"),
    ("x,x,y\n1,0,1\n", "", "column 1 'x' has the name of 2 columns; give it one of its own"),  # 24
    ("x,,y\n1,2,0\n", "", "column 2 '' has no name"),
    *(
        (f"x,y\n1,{text}\n2,{text}\n", "", f"column 'y': '{text}' is not a number; .*classes, in a file")
        for text in ("9%", "5€")
    ),
    ('s,y\n"a,0\nb,1\n"c,0\nd,1\n', "--categorical one-hot", "5 lines, and 3 rows: a cell begins with a quote"),
    ("x,y\n1,0\n2,\n3,1\n", "--missing mean", "row 2, column 'y' is a missing value"),  # is never filled in
    ("x,b,y\n1,NA,0\n2,?,1\n", "--missing mean", "column 'b' has no value in the training rows"),
    *(
        (f"{head}\n5,6,0\n2,3,1\n", "--label 2", f"'{head.replace(',', ', ')}'; expected .* names in all")
        for head in ("0,1,2", "2019,2020,2021", "x,1,y")
    ),
    ("5,6,0\n2,3,1\n", "--label x5", "--label x5: .* names 0, 1, 2, .*a first line of numbers is a row"),
    ("zip,y\n1067,0\n01067,1\n", "", "row 1, column 'zip': .* or category, not a number; encode categories, .*leave"),
    ("p,y\n18446744073709551616,0\n1.5,1\n", "", "row 1, column 'p': .* or category, not a number"),
    ("x,y\n1,0\n,1\n2,0\n3,.5\n", "--missing drop --task classification", "row 4, column 'y': the label 0.5 is not"),
    ("x,y\nnone,0\n2,1\n", "--missing mean", "row 1, column 'x': 'none' is not a number"),  # a gap is None
    ('x,c,y\r1,u,0\r2,"u,1\r3,v,0\r4,u",1\r5,v,0\r', "--categorical one-hot", "6 lines, and 4 rows: a cell begins"),
    ("x,ward,y\n1,a,0\n2,b,1\n", "--by ward", "--clients: the data say whose each row is; leave it out"),
]
SEVERAL: list[tuple[str, str, str, str]] = [  # a.csv, another file, how it is given, what is named
    ("x,y\n1,0\n", "z,y\n1,1\n", "b.csv", "b.csv: .*: x, z differs"),
    ("x,y\n1,0\n", "x,y\n2,1\nu,1\n", "b.csv", "b.csv: row 2, column 'x': 'u' is not a number; a.csv has numbers"),
    (TWO, "x,y\n3,1\n,1\n", "b.csv", "b.csv: row 2, column 'x' is a missing value, of 1"),
    (TWO, TWO, "a.csv", "^a.csv, a.csv: 2 clients are called 'a'; give each"),
    ("x,y\n1,0\n2,01\n", TWO, "b.csv", "b.csv has numbers there; correct it"),
    (TWO, "z,y\n1,1\n", "--test b.csv", "b.csv: other columns than a.csv: x differs"),
    (TWO, "x,y\n1,0\n2,1e30\n", "b.csv --task classification", "b.csv: row 2, column 'y': the label 1e\\+30 is not"),
    ("x,y\n1,0\n", "x,y\n1,0\n", "b.csv", "a.csv, b.csv: column 'y': all rows have the label 0"),
    (TWO, "x,y\n1,.5\n", "--test b.csv", "such as 0.5"),
    (TWO, "x,y\n1,2\n", "--test b.csv", "b.csv: row 1, column 'y': no training row has the label 2"),
    (TEXTS, "x,y\n1,maybe\n", "--test b.csv", "row 1, .*the label maybe; expected one of no, yes"),
]
GIVEN: list[tuple[str, str, str]] = [  # a.csv, the file of --given, what is named
    (TWO, "[columns.x]\nrage = [0, 1]\n", "given.toml: columns.x.rage = "),
    (TWO, "[columns.x]\ncategories = ['u ', 'e\u0301']\n", "columns.x.categories = .*without blanks"),
    (TWO, "[columns.x]\nfill = 1e300\n", "of numbers that float32 holds"),
    (TWO, "[columns.X]\nfill = 1\n", "columns.X: no such feature; did you mean \"x\""),
    (TWO, "[columns.x]\nfill = 'a'\n", "columns.x.fill = 'a': expected a number"),
    ("x,y\nu,0\nv,1\n", "[columns.x]\nfill = 'w'\n", "columns.x.fill = 'w': expected .* a category"),
    ("x,y\nu,0\nv,1\n", "[columns.x]\ncategories = ['u']\n", "column 'x': 'v' is none of the given"),
    (TEXTS, "classes = ['no', 'maybe']", "row 2, .* label 'yes' is none of the given no, maybe"),
    (TWO, "classes = ['no', 'yes']", "row 1, column 'y' is 0, of type int64, and none of the texts no, yes"),
]  # fmt: skip
TABLES: list[Bad] = [
    *((f"csv a.csv --label y {ONE} {words}", named, {"a.csv": text}) for text, words, named in CSV),
    *((f"csv a.csv --label y {ONE} {words}", named, {"a.csv": a, "b.csv": b}) for a, b, words, named in SEVERAL),
    *(
        (f"csv a.csv --label y --categorical one-hot --given given.toml {ONE}", named, {"a.csv": a, "given.toml": toml})
        for a, toml, named in GIVEN
    ),
    (f"csv a.csv {ONE}", "--label is missing: a.csv has the columns x, y", {"a.csv": TWO}),  # 38
    ("csv a.csv --label y", "--split is missing; .* or --by NAME for a client of each", {"a.csv": TWO}),
    ("csv \u00e9.csv e\u0301.csv --label y", "2 clients are called '\u00e9'", {"\u00e9.csv": TWO, "e\u0301.csv": TWO}),
]
LINES = {
    "1 1:1\n-1 1:nan\n": r"a.svm: X\[1, 0\]: nan is not a finite number",
    "1 1:1\n-1e39 1:2\n": r"a.svm: y\[1\]: the label -1e\+39; expected finite numbers",
    "1 1:1\n-1 1:x\n": "a.svm: .*x.*; expected lines `label column:value",
    "": "a.svm: .*no values at all",
    "01 1:1\n1 1:2\n": "a.svm: the label 01 begins with 0, .*; write it without, or give codes as texts, by csv",
    "1 1:1700000001\n-1 1:1700000002\n": r"a.svm: X\[:, 0\]: 2 different numbers, .* are 1 in float32",
}
LEAF: list[tuple[object, str]] = [
    (leaf(ann=([[1], [2, 3]], [0, 1])), "user 'ann': .*expected .*x of numbers, of one shape"),
    (leaf(ann=([[1]], [0]), bob=([[1, 2]], [1])), r"'bob': samples of shape \(2,\); expected \(1,\)"),
    (leaf(ann=(["to be"], ["o"])), "an array of <U5.; expected .*x of numbers"),
    (leaf(ann=([[1], [2]], ["1", 1])), r"user 'ann': y\[1\]: the label 1 is no text"),
    (leaf(ann=([], [])), "no rows of any client"),
    (leaf(a=([[1], [2]], [2**60, 2**60 + 1])), r"user 'a': y\[0\]: the label 1152921504606846976 is not a class"),
    ({}, "KeyError: 'user_data'.*expected `users`"),
    ({"user_data": {"ann": [1]}}, r"user 'ann': .*expected {\"x\": \[...\], \"y\": \[...\]}"),
    ("[" * 10**5, "cannot be read"),
    ('{"user_data": {"ann": {"x": [[1]], "y": [1]}, "ann": {"x": [[2]], "y": [0]}}}', "'ann'. is there twice"),
    ('{"user_data": {"ann": {"x": [[' + "9" * 5000 + ']], "y": [1]}}}', "a.json: "),
]
TABLES += [
    *((f"svmlight a.svm {ONE}", named, {"a.svm": text}) for text, named in LINES.items()),
    *(("leaf a.json", named, {"a.json": of if isinstance(of, str) else json.dumps(of)}) for of, named in LEAF),
]


@pytest.mark.parametrize("kind", [lambda path: CsvTable((path,), label="-1"), Svmlight], ids=["csv", "svmlight"])
@little_memory()
def test_files_are_read_to_their_end_and_what_has_none_is_no_file(kind: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    packed = gzip.compress((b"1 1:2\n" if kind is Svmlight else b"1,2\n") * 20_000)
    path.write_bytes(packed)
    assert len(kind(path).read(0).y) == 20_000
    path.write_bytes(packed[:-20])
    for wrong, words in {
        path: "a.gz: cannot be read .*; get the file again", Path("/dev/zero"): "a pipe, a device or a folder",
        tmp_path: "Is a directory", tmp_path / ("x" * 300): "cannot be read .*File name too long",
    }.items():  # fmt: skip
        with pytest.raises(MpifedError, match=words):
            kind(wrong).read(0)


# --- files of arrays and images --------------------------------------------------------------------------------------

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


def header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + (119).to_bytes(2, "little") + text.encode().ljust(118) + b"\n"


def array_of(kind: str, shape: str) -> bytes:
    return header(f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}")


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


OBJECTS = np.array([[1, Executed()]], object)
NPZ: list[tuple[bytes, str]] = [
    (npz(X=array_of("<f8", "(9999999999, 99)"), y=Y[:2]), "npz: not enough memory"),
    (npz(X=array_of("<c8", "(0, 2)"), y=Y[:2]), r"X: an array of complex64 \(0, 2\); expected numbers"),
    (npz(X=header("__import__('os').mkdir('executed')"), y=Y[:2]), "cannot be read"),
    (npz(X=OBJECTS, y=Y[:1]), "a.npz: cannot be read .*; expected numbers and texts, by np.savez"),
    (npz(z=X, y=Y), "--samples is missing: .*a.npz has the arrays z, y; give the name of one"),
    *((npz(X=X, y=y), "a.npz: y: labels are ") for y in (Y.astype("M8[D]"), Y * 1j, Y.astype([("a", int)]))),
    (npz(X=X, x_train=X, y=Y), "--samples may be X, x_train: .* has the arrays X, x_train, y; give the name of one"),
    (npz(X_train=X, y_train=Y, x_test=X, y_test=Y), "has x_test, y_test; rows to test with are X_test, y_test, as"),
]
TRAIN = {"train-images": idx(np.zeros((6, 4, 6))), "train-labels": idx(Y), "t10k-images": idx(np.zeros((3, 4, 6)))}
IDX: list[tuple[str, bytes, str]] = [
    ("t10k-labels", idx(Y[:2]), "3 rows and 2 labels"),
    ("t10k-labels", b"\0\0\x08\x01\xff\xff\xff\xff", "8 bytes .* array .4294967295,."),
    ("t10k-labels", b"\0\0\x0d\x01\0\0\0\1\0\0\0\0", "begin with 00000d01, .*expected IDX of unsigned bytes"),
    ("b-train-labels", idx(Y), r"b-train-labels, train-labels: two files \*train-labels\*"),
    ("other", b"", "has train-images, train-labels, t10k-images; expected"),
]
GREY = {f"{kind}/{n}.png": png(np.zeros((4, 3), np.uint8)) for kind in "ab" for n in (0, 1)}
IMAGES: list[tuple[str, bytes, str]] = [
    ("b/9.png", b"no image", r"9.png: cannot be read .*; expected BMP, GIF, JPEG"),
    ("b/9.png", png(np.zeros((4, 3), np.uint16)), r"9.png: cannot be read .*more than 8 bits, mode I;16"),
    ("b/9.png", png(np.zeros((4, 3), np.uint8), np.ones((4, 3), np.uint8)), "9.png: .*several images in one file"),
    ("b/9.png", png(np.ones((4, 3, 4), np.uint8)), "9.png: .*transparent pixels, which have no colour: paint"),
    ("b/9.png", png(np.zeros((2, 2), np.uint8)), r"9.png: \(2, 2\) pixels, 0.png has \(4, 3\)"),
    ("b/c/9.png", GREY["b/0.png"], "b/c: cannot be read .*Is a directory"),
]
HDF5: list[tuple[dict[str, bytes], str]] = [
    ({"a.h5": hdf5(X=X)}, "a.h5: cannot be read .*y is no dataset of this file"),
    ({"a.h5": hdf5(X=h5py.ExternalLink("b.h5", "y"), y=Y)}, "a.h5: .*X is no dataset of this file"),
    ({"a.h5": hdf5(X=h5py.SoftLink("/Z"), Z=X, y=Y)}, "a.h5: .*X is no dataset of this file"),
    *(({"a.h5": led_elsewhere(of), "b.h5": hdf5(X=X, y=Y)}, "X is no dataset of this file") for of in (False, True)),
    ({"a.h5": hdf5(X=X, y=Y), "b.h5": hdf5(X=X.astype("u1"), y=Y)}, "b.h5: samples are uint8, those"),
    *(
        ({f"{first}.h5": hdf5(X=X, y=Y + 0.5), f"{then}.h5": hdf5(X=X, y=Y)}, f"{first}.h5: labels are .*, such as")
        for first, then in ("ab", "ba")
    ),
    ({"a.h5": hdf5(X=X, y=Y, x_test=Y)}, "a.h5: .*X_test is no dataset of this file"),
    *(({"a.h5": hdf5(X=X, y=Y, of_X={name: 0.5})}, f"X has {name}: apply") for name in ("scale_factor", "_FillValue")),
    ({"a.h5": hdf5(X=X[:4], y=Y)}, "a.h5: 4 rows and 6 labels"),
    ({"a.h5": hdf5(X=X, y=Y), "a.hdf5": hdf5(X=X, y=Y)}, "2 clients are called 'a'"),
    ({}, r"no file \*.h5, \*.hdf5"),
]
LISTS = io.BytesIO()
pd.DataFrame({"a": [[1, 2], [3, 4]], "y": [0, 1]}).to_parquet(LISTS)
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

@dataclass(frozen=True)
class Pair(Waves):
    def read(self, seed: int) -> Samples:
        return "X", "y"
"""
OWN = {
    "waves:Waves": "Missing option '--rows'",
    "waves:Shadows": "waves:Shadows: split: every source has that option; rename the field",
    "waves:Misspelt --rows 3": 'waves:Misspelt: has "reads": did you mean "read"\\?',
    "waves:Pair --rows 3": "waves:Pair: read.. returned tuple; expected mpifed.data.samples.Samples",
    "no_such_module:A": "no_such_module:A: importing no_such_module: ModuleNotFoundError: ",
}
FILES: list[Bad] = [
    *((f"npz a.npz {ONE}", named, {"a.npz": content}) for content, named in NPZ),
    ("npz a.npz --by who", "--by who: .* has the arrays X, y", {"a.npz": npz(X=X, y=Y)}),
    *((f"idx . {ONE}", named, {**TRAIN, name: content}) for name, content, named in IDX),
    *((f"images . {ONE}", named, {**GREY, name: content}) for name, content, named in IMAGES),
    (f"images . {ONE}", "a folder for each class, as ", {}),
    *(("hdf5 .", named, files) for files, named in HDF5),
    (f"cifar . {ONE}", r"no file \*batches.meta.txt, \*fine_label_names.txt; expected a folder", {}),
    (f"parquet a.parquet --label y {ONE}", "'a' is of type list<.*from_arrays", {"a.parquet": LISTS.getvalue()}),
    *((f"{words} {ONE}", named, {"waves.py": WAVES}) for words, named in OWN.items()),
]


@pytest.mark.parametrize(("words", "named", "files"), [*OPTIONS, *FILES], ids=lambda of: str(of)[-40:])
def test_what_is_refused(words: str, named: str, files: Files) -> None:
    check(words, named, files)


@pytest.mark.parametrize(("words", "named", "files"), TABLES, ids=lambda of: str(of)[-40:])
@little_memory()
def test_texts_that_are_refused(words: str, named: str, files: Files) -> None:
    check(words, named, files)


def test_a_source_of_ones_own() -> None:
    Path("waves.py").write_text(WAVES)
    made = make(Path("out"), *f"waves:Waves --rows 30 --slope 2.5 --test-fraction 0.2 {ONE}".split())
    assert (made.samples, made.test_samples, made.features) == (24, 6, 2)
    assert made.provenance["options"]["source"] == {"rows": 30, "slope": 2.5}


# --- frames, by Python and as files ----------------------------------------------------------------------------------


def table(**columns: Any) -> pd.DataFrame:
    """Thirty rows, with some columns changed."""
    rng = np.random.default_rng(1)
    content = {"x": rng.normal(size=30), "sex": ["m", "f"] * 15, "ward": [1, 2, 3] * 10, "ill": [0, 1] * 15}
    return pd.DataFrame({**content, **columns})


DAY = pd.date_range("2024-01-01", periods=30)
FRAMES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {  # columns, settings, what is named
    "23: a date": ({"day": DAY}, {}, r"'day' is of type (timestamp|date)"),
    "23: a time span": ({"stay": pd.to_timedelta(range(30), unit="h")}, {}, "'stay'"),
    "23: time stamps": ({"t": [1_700_000_000_000_000_000 + n // 2 for n in range(30)]}, {}, "column 't': "),
    "an identifier": ({"p": [1, 2, *[2**53 + 1] * 28]}, {}, "row 3, column 'p': Integer value .* identifiers"),
    "23: beyond float32": ({"t": [2**24 + n % 5 for n in range(30)]}, {}, "'t': 5 different numbers.* are 3 in"),
    "numbers of rows": ({"p": [*range(29), None]}, {}, "'p': another integer in each of 29 rows.*ignore.*NAME"),
    "notes": ({"note": [f"n{n % 16}" for n in range(30)]}, {}, "'note': 16 different texts in 30 training rows"),
    "texts as features": ({}, {"categorical": None}, "row 1, column 'sex': 'm' is not a number.*one-hot"),
    "categories of integers": ({"sex": pd.Categorical([1, 2] * 15)}, {"categorical": None}, "'1' is a text or"),
    "values of several types": ({"sex": ["m", 1] * 15}, {}, "column sex with type object.*; expected a DataFrame"),
    "separated thousands": ({"x": ["1,234.5", "234.5"] * 15}, {}, "'1,234.5' is not a number; .*thousands"),
    "percentages": ({"x": ["10%", "7.5 %"] * 15}, {}, "'10%' is not a number; .*units"),
    "marks": (
        {"x": [*map(str, range(20, 49)), "-"]},
        {},
        "row 30, .*'-' is not a number; 29 of 30 texts are",
    ),
    "fractions as texts": ({"x": ["1.5", "-0.5", "+2.5"] * 10}, {}, "column 'x': '1.5' is a text or category"),
    "months": ({"at": ["2024-01", "1 Jan 2024", "Feb-24"] * 10}, {}, "'2024-01' is not a number; .*leave dates out"),
    "too large": ({"x": [-1e39, *range(29)]}, {}, r"row 1, column 'x': -1e\+39 is not a finite number"),
    "gaps": ({"x": [0.5, None] * 15}, {"missing": "error"}, "row 2, column 'x' is a missing value, of 15; fill it"),
    "labels with gaps": ({"ill": [0, None, 1] * 10}, {}, "row 2, column 'ill' is a missing value, of 10; leave"),
    "22: identifiers with gaps": ({"ward": [None, "a", "b"] * 10}, {}, "column 'ward' is a missing value, of 10"),
    "22: rounded": ({"ward": [2.0**60, 1.0] * 15}, {}, r"'ward': object, such as 1.15\S+e\+18; expected integers"),
    "a control character": ({"ward": ["a\x1b[2J", "b", "c"] * 10}, {}, "'ward': .*control character"),
    "what a terminal would obey": ({"ill": ["a\x1b[2J", "b"] * 15}, {}, r"label 'a\\x1b\[2J' has the control"),
    "many integers": ({"ill": [n % 25 for n in range(30)]}, {}, "the labels are 25 different integers"),
    "23: labels beyond float64": ({"ill": [2**63 + 5, 1] * 15}, {}, "'ill'.*92233720368547758"),
    "dates as labels": ({"ill": DAY}, {}, "'ill' is of type"),
    "24: one column in two roles": ({}, {"by": "ill"}, "'ill' has two roles"),
    "an empty table": ({name: [] for name in ("x", "sex", "ward", "ill")}, {}, "no rows"),
}
MIXED = ("values of several types",)
ALONE = {  # these are texts in such files, or cannot be written
    "csv": (
        "categories of integers",
        "23: a time span",
        "22: rounded",
        "fractions as texts",
        "values of several types",
    ),
    "parquet": MIXED,
    "frame": (),
}


@pytest.mark.parametrize(("bad", "door"), [(bad, door) for bad in FRAMES for door in ALONE if bad not in ALONE[door]])
def test_a_bad_table_is_named(bad: str, door: str) -> None:
    columns, more, named = FRAMES[bad]
    frame = table(**columns)
    settings = {"label": "ill", "by": "ward", "categorical": "one-hot", "missing": "mean", **more}
    if door == "frame":
        with pytest.raises(MpifedError, match=named):
            mf.FederatedDataset.from_dataframe(frame, **settings)
        return
    frame.to_csv("t", index=False) if door == "csv" else frame.to_parquet("t", index=False)
    words = " ".join(f"--{name} {value}" for name, value in settings.items() if value is not None)
    check(f"{door} t {words}", named, {})
