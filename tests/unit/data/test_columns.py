"""Columns of texts and gaps in tables: what they become, fitted on the training rows alone."""

from __future__ import annotations

from pathlib import Path

import federations
import numpy as np
import pandas as pd
import pytest

from mpifed.data.store import Federation

TABLE = "size,colour,shape,y\n1,red,a,0\n,blue,b,1\n4,,a,0\n7,red,?,1\n6,red,b,1\n"
ONE_CLIENT = ("--split", "rows", "--clients", "1", "--label", "-1", "--scale", "none")


def make(out: Path, *words: object) -> Federation:
    return federations.make(out, *words, *ONE_CLIENT)


def csv(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def rows(folder: Federation) -> list[list[float]]:
    found: list[list[float]] = federations.held(folder).tolist()
    return found


@pytest.mark.parametrize(("missing", "expected"), [
    ("drop", [[1, 0, 1, 0], [6, 0, 1, 1]]),
    ("zero", [[1, 0, 1, 1, 0], [0, 1, 0, 0, 1], [4, 0, 0, 1, 0], [7, 0, 1, 0, 0], [6, 0, 1, 0, 1]]),
    ("mean", [[1, 0, 1, 1, 0], [4.5, 1, 0, 0, 1], [4, 0, 1, 1, 0], [7, 0, 1, 1, 0], [6, 0, 1, 0, 1]]),
    ("median", [[1, 0, 1, 1, 0], [5, 1, 0, 0, 1], [4, 0, 1, 1, 0], [7, 0, 1, 1, 0], [6, 0, 1, 0, 1]]),
])  # fmt: skip
def test_gaps(tmp_path: Path, missing: str, expected: list[list[float]]) -> None:
    words = ("csv", csv(tmp_path / "a.csv", TABLE), "--categorical", "one-hot", "--missing", missing)
    folder = make(tmp_path / "a", *words)
    names = ("size", "colour=blue", "colour=red", "shape=a", "shape=b")
    if missing == "drop":  # and with it the only blue
        names, expected = names[:1] + names[2:], [[1, 1, 1, 0], [6, 1, 0, 1]]
    assert folder.names() == names and rows(folder) == expected


def test_numbers_and_a_text_are_classes(tmp_path: Path) -> None:
    words = ("csv", csv(tmp_path / "a.csv", "a,y\n1,1\n2,x\n3,0\n"), "--task", "classification")
    assert make(tmp_path / "a", *words).provenance["classes"] == ["0", "1", "x"]


def test_it_is_fitted_on_training_rows_alone(tmp_path: Path) -> None:
    train, test = (
        csv(tmp_path / "a.csv", "a,b,y\n1,u,0\n3,w,1\n,u,1\n"),
        csv(tmp_path / "t.csv", "a,b,y\n,v,0\n9,w,1\n"),
    )
    words = ("csv", train, "--test", test, "--missing", "mean", "--categorical")
    folder = make(tmp_path / "a", *words, "one-hot")
    tested = federations.common(folder)
    assert folder.names() == ("a", "b=u", "b=w")
    assert rows(folder) == [[1, 1, 0], [3, 0, 1], [2, 1, 0]]
    assert tested[0].tolist() == [[2, 0, 0], [9, 0, 1]]  # v, which no training row has
    test.write_text("a,b,y\n5,w,0\n")
    folder = make(tmp_path / "a", *words, "ordinal")
    tested = federations.common(folder)
    assert (folder.names(), rows(folder), tested[0].tolist()) == (("a", "b"), [[1, 0], [3, 1], [2, 0]], [[5, 1]])


def test_rows_to_train_on_may_be_those_to_test_with(tmp_path: Path) -> None:
    table = csv(tmp_path / "a.csv", "a,b,y\n1,2,0\n3,5,1\n")
    for paths in ([table], [csv(tmp_path / "b.csv", "a,b,y\n4,4,1\n"), table]):
        folder = make(tmp_path / "out", "csv", *paths, "--test", table)
        assert federations.common(folder)[0].tolist() == [[1, 2], [3, 5]]
        assert folder.names() == ("a", "b")  # and not `file`, which says of several whose each row is


def test_the_numbers_are_those_of_pandas(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.standard_normal((300, 3)) * 10.0 ** rng.integers(-20, 20, (300, 3)), columns=list("abc"))
    frame["y"] = rng.integers(0, 3, 300)
    frame.to_csv(tmp_path / "a.csv", index=False)
    assert rows(make(tmp_path / "a", "csv", tmp_path / "a.csv")) == frame[["a", "b", "c"]].astype("f4").values.tolist()


@pytest.mark.parametrize("ignored", ["patient,day", "0,2", "-5,day"])
@pytest.mark.parametrize("source", ["csv", "parquet"])
def test_columns_that_are_left_out(tmp_path: Path, source: str, ignored: str) -> None:
    frame = pd.DataFrame({
        "patient": ["p1", "p2", "p3"], "age": [30, 40, 50], "day": [None, "mon", "tue"], "ward": [1, 2, 1],
        "ill": [0, 1, 0],
    })  # fmt: skip
    path = tmp_path / f"a.{source}"
    frame.to_csv(path, index=False) if source == "csv" else frame.to_parquet(path)
    folder = make(tmp_path / "a", source, path, "--ignore", ignored)
    assert folder.names() == ("age", "ward") and rows(folder) == [[30, 1], [40, 2], [50, 1]]
