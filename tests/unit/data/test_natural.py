"""Natural clients: the same shards of shuffled rows, one numbering of identifiers, small clients joined."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import common, held, make

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
    assert [held(folder, number).tolist() for number in range(3)] == [[[0], [3], [4]], [[1], [5]], [[2]]]
    folder = make(tmp_path / "a", *plain, split, "--client-test-fraction", 0.4)
    assert folder.counts.tolist() == [2, 1, 1] and folder.test_counts.tolist() == [1, 1, 0]
