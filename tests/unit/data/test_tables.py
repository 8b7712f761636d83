"""Tables of several clients, joined by identifiers: against a join by dictionaries."""

from __future__ import annotations

import csv
import hashlib
import hmac
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mpifed.cli import data
from mpifed.core.errors import DataError, UsageError
from mpifed.data.shards import shard_of
from mpifed.data.sources import Tables
from mpifed.data.store import open_federation

# a bank and two shops, which know different things about overlapping people
BANK = "person,income,age,paid\nann,3,40,1\nbob,1,31,0\n cem ,2,50,1\ndua,2.5,28,0\n"
NORTH = "age,person,visits\n33,eva,7\n61,fay,2\n"
SOUTH = 'visits,likes,person,paid\n5,0.5,bob,0\n4,0.25,"cem",1\n9,1,eva,1\n1,0,fay,0\n'
FILES = {"bank.csv": BANK, "north.csv": NORTH, "south.csv": SOUTH}
KEY = b"sixteen bytes or more"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "key").write_bytes(KEY)
    folder = tmp_path / "clients"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "notes.txt").write_text("no table")
    return folder


def in_order(ids: set[str]) -> list[str]:
    return sorted(ids, key=lambda name: hmac.new(KEY, name.encode(), hashlib.sha256).hexdigest())


def test_tables_are_joined(folder: Path) -> None:
    # north and south overlap in rows and columns, but south has no ages, and visits are of other people
    (folder / "south.csv").write_text(SOUTH.replace("9,1,eva,1", "9,1,ann,1").replace("1,0,fay,0", "1,0,dua,0"))
    (folder / "north.csv").write_text("visits,person,age,paid\n7,eva,33,1\n2,fay,61,0\n")  # in another order
    read = Tables(folder, "person", "paid", folder.parent / "key", missing="zero").read(0)
    names = ("income", "age", "visits", "likes")
    assert read.names == names
    cells: dict[tuple[str, str], float] = {}
    paid: dict[str, int] = {}
    for path in (folder / name for name in FILES):
        for line in csv.DictReader(path.read_text().splitlines()):
            person = line.pop("person").strip()
            paid |= {person: int(line.pop("paid"))} if "paid" in line else {}
            cells |= {(person, name): float(value) for name, value in line.items()}
    ids = in_order({person for person, _ in cells})
    expected = [[cells.get((person, name), 0.0) for name in names] for person in ids]
    assert read.X.tolist() == expected
    assert read.y.tolist() == [paid[person] for person in ids]
    assert read.partition is not None
    assert read.partition.missing == len(ids) * 4 - len(cells)
    held = {
        (ids[row], names[column])
        for client in range(3)
        for rows, columns in [read.partition.of(client)] for row in rows for column in columns
    }  # fmt: skip
    assert held == set(cells)


def make(folder: Path, *words: str) -> Path:
    out = folder.parent / "out"
    arguments = ["tables", folder, "--id", "person", "--label", "paid", "--key", folder.parent / "key", *words]
    result = CliRunner().invoke(
        data, [str(word) for word in (*arguments, "--out", out)], catch_exceptions=False, standalone_mode=False
    )
    assert "clients  3, split by grid" in result.output
    return out


def join(folder: Path) -> None:
    """Make the files fit together, with 2 x 4 cells for people of whom only some things are known."""
    (folder / "north.csv").write_text("person,age,visits,paid\neva,33,7,1\nfay,61,2,0\n")
    (folder / "south.csv").write_text("visits,likes,person,paid\n5,0.5,bob,0\n4,0.25,cem,1\n9,1,ann,1\n1,0,dua,0\n")


def test_command(folder: Path) -> None:
    join(folder)
    federation = open_federation(make(folder, "--missing", "zero", "--scale", "unit"), verify=True)
    assert (federation.samples, federation.features, federation.classes) == (6, 4, 2)
    assert federation.counts.tolist() == [4, 2, 4]
    assert federation.widths.tolist() == [2, 2, 2]
    assert federation.provenance["missing_cells"] == 4
    assert set(federation.provenance["files"]) == set(FILES)
    stored = b"".join(path.read_bytes() for path in federation.path.iterdir())
    assert not any(name.encode() in stored for name in ("ann", "bob", "cem", "dua"))
    bank = shard_of(federation, 0)
    X = np.empty((4, 2))
    bank.take(np.arange(4), X)
    ids = in_order({"ann", "bob", "cem", "dua", "eva", "fay"})
    known = {"ann": (3, 40, 1), "bob": (1, 31, 0), "cem": (2, 50, 1), "dua": (2.5, 28, 0)}
    for row, x, y in zip(bank.rows, X * 61, bank.y, strict=True):
        np.testing.assert_allclose((*x, y), known[ids[row]], rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("bank.csv", BANK + "ann,1,1,1\n", r"bank.csv: 2 rows have the identifier 'ann'; keep one"),
        ("bank.csv", BANK + " ,1,1,1\n", r"bank.csv: 1 rows have no identifier"),
        ("bank.csv", BANK.replace("person", "who"), r"bank.csv: no column 'person', .*; of "),
        ("bank.csv", "1,2,3\n", r"bank.csv: no column 'person', .*; of "),
        ("bank.csv", BANK.replace("income", "age"), r"bank.csv: 2 columns are called 'age'"),
        ("bank.csv", "person,paid\nann,1\n", r"bank.csv: no column besides person, paid"),
        ("bank.csv", BANK.replace("2.5", "much"), r"bank.csv: row 4, column 'income': 'much' is not a number"),
        ("bank.csv", BANK.replace("ann,3,40", "ann,3"), r"bank.csv: .*Expected 4 columns, got 3"),
        (
            "south.csv",
            SOUTH.replace("bob,0", "bob,1"),
            "sample 'bob' has the label 1, but 0 in another file",
        ),
        ("south.csv", SOUTH.replace("eva", "eve"), r"north.csv: sample 'eva' has no label in any file"),
        ("bank.csv", BANK.replace("2.5", ""), r"bank.csv: row 4, column 'income' is a missing value"),
        ("south.csv", SOUTH, r"'visits' of sample '(eva|fay)' is held by north.csv and south.csv; leave it to one"),
    ],
)
def test_faulty_tables(folder: Path, name: str, text: str, words: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(DataError, match=words):
        make(folder, "--missing", "zero")


def test_identifiers_that_are_not_utf8_are_not_joined(folder: Path) -> None:
    """Read with replaced letters, Müller and Möller would be one sample."""
    (folder / "bank.csv").write_bytes(BANK.replace("ann", "Möller").encode("latin-1"))
    with pytest.raises(DataError, match=r"bank.csv: is not UTF-8 .*; save it as UTF-8"):
        make(folder, "--missing", "zero")


def test_short_key_and_no_tables(folder: Path) -> None:
    (folder.parent / "key").write_bytes(b"secret")
    with pytest.raises(UsageError, match="6 bytes; expected 16 or more"):
        make(folder)
    with pytest.raises(DataError, match="key"):
        Tables(folder, "person", "paid", folder / "nowhere").read(0)
    with pytest.raises(DataError, match="expected a folder of CSV files"):
        Tables(folder / "nowhere", "person", "paid").read(0)
    with pytest.raises(DataError, match=r"no file \*.csv"):
        Tables(folder.parent, "person", "paid").read(0)
