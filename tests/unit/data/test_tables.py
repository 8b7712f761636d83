"""Tables of several clients, joined by identifiers: against a join by dictionaries."""

from __future__ import annotations

import csv
import hashlib
import hmac
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from federations import held

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


def make(folder: Path, *words: str) -> Path:
    out = folder.parent / "out"
    arguments = ["tables", folder, "--id", "person", "--label", "paid", "--key", folder.parent / "key", *words]
    result = CliRunner().invoke(
        data, [str(word) for word in (*arguments, "--out", out)], catch_exceptions=False, standalone_mode=False
    )
    assert "clients  3, split by grid" in result.output
    return out


def test_tables_are_joined(folder: Path) -> None:
    """North and south overlap in rows and columns, but south has no ages, and visits are of other people."""
    (folder / "south.csv").write_text(SOUTH.replace("9,1,eva,1", "9,1,ann,1").replace("1,0,fay,0", "1,0,dua,0"))
    (folder / "north.csv").write_text("visits,person,age,paid\n7,eva,33,1\n2,fay,61,0\n")  # in another order
    federation = open_federation(make(folder, "--missing", "zero", "--scale", "unit"), verify=True)
    names = ("income", "age", "visits", "likes")
    assert federation.names() == names and set(federation.provenance["files"]) == set(FILES)
    people: list[dict[str, dict[str, float]]] = []  # by client
    for name in FILES:
        lines = csv.DictReader((folder / name).read_text().splitlines())
        people.append({line.pop("person").strip(): {key: float(x) for key, x in line.items()} for line in lines})
    ids = in_order({person for rows in people for person in rows})
    assert federation.provenance["missing_cells"] == 4 * len(ids) - sum(
        len(row) - ("paid" in row) for rows in people for row in rows.values()
    )
    paid = {person: row["paid"] for rows in people for person, row in rows.items() if "paid" in row}
    for client, rows in enumerate(people):
        shard = shard_of(federation, client)
        assert [ids[row] for row in shard.rows] == in_order(set(rows))
        assert shard.y.tolist() == [paid[ids[row]] for row in shard.rows]
        expected = [[rows[ids[row]][names[column]] / 61 for column in shard.columns] for row in shard.rows]
        np.testing.assert_allclose(held(federation, client), expected, rtol=1e-12)
    stored = b"".join(path.read_bytes() for path in federation.path.iterdir())
    assert not any(person.encode() in stored for person in ids)


@pytest.mark.parametrize(("name", "text", "words"), [
    ("bank.csv", BANK + "ann,1,1,1\n", r"bank.csv: 2 rows have the identifier 'ann'; every"),
    ("bank.csv", BANK + " ,1,1,1\n", r"bank.csv: 1 rows have the identifier ''"),
    ("bank.csv", BANK.replace("person", "who"), r"bank.csv: no column 'person', .*; of "),
    ("bank.csv", "1,2,3\n", r"bank.csv: no column 'person', .*; of "),
    ("bank.csv", BANK.replace("income", "age"), r"bank.csv: 2 columns are called 'age'"),
    ("bank.csv", "person,paid\nann,1\n", r"bank.csv: no column besides person, paid"),
    ("bank.csv", BANK.replace("2.5", "much"), r"bank.csv: row 4, column 'income': 'much' is not a number"),
    ("bank.csv", BANK.replace("ann,3,40", "ann,3"), r"bank.csv: .*Expected 4 columns, got 3"),
    ("south.csv", SOUTH.replace("bob,0", "bob,1"), "sample 'bob' has the label 1, but 0 in another file"),
    ("south.csv", SOUTH.replace("eva", "eve"), r"north.csv: sample 'eva' has no label in any file"),
    ("bank.csv", BANK.replace("2.5", ""), r"bank.csv: row 4, column 'income' is a missing value"),
    ("bank.csv", "person,id\nann,16777217\nbob,16777216\n", "column 'id': 2 different numbers.* are 1 in"),
    ("south.csv", SOUTH, r"'visits' of sample '(eva|fay)' is held by north.csv and south.csv; leave it to one"),
])  # fmt: skip
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
    with pytest.raises(DataError, match=r"no file \*.csv"):
        Tables(folder / "nowhere", "person", "paid").read(0)
    with pytest.raises(DataError, match=r"no file \*.csv"):
        Tables(folder.parent, "person", "paid").read(0)
