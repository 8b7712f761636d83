"""Natural clients: the same shards of shuffled rows, one numbering of identifiers, small clients joined."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from federations import common, held, make

from mpifed.cli import main
from mpifed.core.errors import DataError, MpifedError, UsageError
from mpifed.data.shards import shard_of
from mpifed.data.store import Federation

NAMES = ["age", "weight", "hospital", "sex", "ill"]
RNG = random.Random(3)
ROWS = [
    [RNG.randint(20, 90), round(RNG.gauss(70, 9), 2), f"h{RNG.choice([1, 2, 2, 10])}", RNG.choice("mf"),
     RNG.choice(["no", "yes"])]
    for _ in range(120)
]  # fmt: skip
BY = ("--label", "ill", "--by", "hospital", "--categorical", "one-hot", "--scale", "none")


def write(path: Path, rows: list[list[Any]], names: list[str] | None = NAMES) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([*([names] if names else []), *rows])
    return path


def client(folder: Federation, number: int) -> tuple[list[list[float]], list[int]]:
    return held(folder, number).tolist(), shard_of(folder, number).y.tolist()


@pytest.mark.parametrize(
    "more",
    [
        ("--test-fraction", 0.25),
        ("--client-test-fraction", 0.3, "--feature-noise", 0.1),
        ("--scale", "standard"),
        ("--min-rows", 40),
    ],
    ids=str,
)
def test_shuffled_rows_give_the_same_files(tmp_path: Path, more: tuple[object, ...]) -> None:
    shuffled = RNG.sample(ROWS, len(ROWS))
    assert shuffled != ROWS
    digests = set()
    for name, rows in (("a", ROWS), ("b", shuffled)):
        folder = make(tmp_path / name, "csv", write(tmp_path / f"{name}.csv", rows), *BY, *more)
        digests.add(folder.sha256)
    assert len(digests) == 1


def test_whose_rows_they_are(tmp_path: Path) -> None:
    folder = make(tmp_path / "a", "csv", write(tmp_path / "a.csv", ROWS), *BY)
    assert folder.names() == ("age", "weight", "sex=f", "sex=m")
    assert folder.provenance["classes"] == ["no", "yes"]
    shown = CliRunner().invoke(main, ["show", str(tmp_path / "a")]).output
    assert "clients  3, split by rows, natural: h1, h10, h2\n" in shown
    ids, client_of = folder.natural() or ((), None)
    assert ids == ("h1", "h10", "h2") and client_of is not None and client_of.tolist() == [0, 1, 2]
    for number, name in enumerate(ids):
        own = [row for row in ROWS if row[2] == name]
        X, y = client(folder, number)
        expected = [([np.float32(a), np.float32(w), s == "f", s == "m"], int(ill == "yes")) for a, w, _, s, ill in own]
        assert sorted(zip(X, y, strict=True)) == sorted(expected)


def test_labels_that_a_terminal_would_obey(tmp_path: Path) -> None:
    rows = [[n, 1, "h", "f", "no" if n % 3 else "\x1b[2J\nrows     9"] for n in range(9)]
    with pytest.raises(DataError, match=r"the label '\\x1b\[2J\\nrows     9' has the control character"):
        make(tmp_path / "a", "csv", write(tmp_path / "a.csv", rows), *BY)


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        (("--by", "ward"), UsageError, "--by ward: .* has no such column; expected the names age, weight"),
        (("--by", "ill"), UsageError, "column 'ill' has two roles of --label, --by and --ignore; give it one"),
        (("--by", "hospital", "--clients", 3), UsageError, "--clients: --by says whose each row is; leave it out"),
        (
            ("--by", "hospital", "--partition", "dirichlet:1"),
            UsageError,
            "--partition: --by says whose each row is",
        ),
        (("--by", "hospital", "--feature-noise", -1), UsageError, "expected a variance above 0"),
        (("--by", "hospital", "--min-rows", 0), UsageError, "--min-rows 0: expected 1 or more"),
        ((), UsageError, "--split is missing; .* as --split rows --clients 10, or --by NAME for a client of each"),
    ],
)
def test_what_does_not_fit(tmp_path: Path, words: tuple[object, ...], error: type[MpifedError], said: str) -> None:
    path = write(tmp_path / "a.csv", ROWS)
    with pytest.raises(error, match=said):
        make(tmp_path / "a", "csv", path, "--label", "ill", "--categorical", "one-hot", *words)
    assert not (tmp_path / "a").exists()


def test_natural_clients_have_test_rows_of_their_own(tmp_path: Path) -> None:
    """Each a tenth of its rows, beside the common ones; together they are the rows of the file."""
    words = ("--test-fraction", 0.25, "--client-test-fraction", 0.1)
    folder = make(tmp_path / "a", "csv", write(tmp_path / "a.csv", ROWS), *BY, *words)
    of_client = folder.counts + folder.test_counts
    assert folder.test_counts.tolist() == np.rint(0.1 * of_client).astype(int).tolist()
    parts = [common(folder)[0], *(held(folder, number, tests) for number in range(3) for tests in (False, True))]
    ages = np.concatenate([X[:, 0] for X in parts]).tolist()
    assert sorted(ages) == sorted(row[0] for row in ROWS)


def test_a_published_split_of_rows(tmp_path: Path) -> None:
    path, split = write(tmp_path / "a.csv", [[i, i % 2] for i in range(6)], None), tmp_path / "split.csv"
    split.write_text("row,client\n5,1\n0,0\n1,1\n2,2\n3,0\n4,0\n")
    plain = ("csv", path, "--label", -1, "--scale", "none", "--split", "rows", "--map")
    folder = make(tmp_path / "a", *plain, split)
    assert folder.split == "rows"
    assert [client(folder, number)[0] for number in range(3)] == [[[0], [3], [4]], [[1], [5]], [[2]]]
    folder = make(tmp_path / "a", *plain, split, "--client-test-fraction", 0.4)
    assert folder.counts.tolist() == [2, 1, 1] and folder.test_counts.tolist() == [1, 1, 0]
    with pytest.raises(UsageError, match=r"--(skew|partition|min-samples): --map says who holds what; leave it out"):
        make(tmp_path / "b", *plain, split, "--min-samples", 2)
    path = write(tmp_path / "c.csv", [[i, i, i % 2] for i in range(6)], None)
    split.write_text("client,rows,columns\n0,all,0\n1,all,1\n")
    with pytest.raises(UsageError, match="divides columns too; give --split grid"):
        make(tmp_path / "b", "csv", path, "--label", -1, "--split", "rows", "--map", split)
