"""`mpifed data`: from words to the opened federation; columns of texts and gaps."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas
import pytest
from federations import command, common, held, make
from sklearn.datasets import load_digits

from mpifed.core.errors import DataError, UsageError
from mpifed.data.recipe import Recipe
from mpifed.data.shards import shard_of
from mpifed.data.store import Federation, open_federation
from mpifed.data.table import as_table

pytestmark = pytest.mark.usefixtures("here")


def run(*words: object) -> Federation:
    """What the command makes, in the place of what it made before."""
    return make(Path("out"), *words)


def everything(federation: Federation) -> tuple[np.ndarray, np.ndarray]:
    """All training rows [s, p] and labels [s], put together from the shards."""
    X, y = np.full((federation.samples, federation.features), np.nan), np.full(federation.samples, np.nan)
    for client in range(federation.clients):
        shard = shard_of(federation, client)
        X[np.ix_(shard.rows, shard.columns)] = held(federation, client)
        y[shard.rows] = shard.y
    return X, y


def test_digits() -> None:
    federation = run("digits", "--split", "grid", "--grid", "3x4", "--partition", "classes:5")
    X, y = everything(federation)
    digits = load_digits()
    np.testing.assert_array_equal(X, digits.data / 16)  # unit is the default; sixteenths are exact
    np.testing.assert_array_equal(y, digits.target)
    about = federation.provenance
    assert federation.names() == tuple(digits.feature_names) and federation.shape == (1, 8, 8)
    assert (about["source"], about["options"]["split"], about["classes"]) == ("digits", "grid", list("0123456789"))


def by_hand(kinds: str, X: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Training and test rows, scaled in turn by what is known of the training rows alone."""
    for kind in kinds.split(","):
        center, spread = np.zeros(X.shape[1]), np.ones(X.shape[1])
        if kind == "unit":
            spread = np.full(X.shape[1], np.abs(X).max())
        if kind == "minmax":
            center, spread = X.min(axis=0), np.ptp(X, axis=0)
        if kind == "standard":
            center, spread = X.mean(axis=0), X.std(axis=0)
        spread = np.where(spread > 0, spread, 1)
        X, test = (X - center) / spread, (test - center) / spread
        if kind == "unit-rows":
            X, test = (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300) for rows in (X, test))
    return X, test


@pytest.mark.parametrize(
    ("kinds", "values"),
    [("minmax,unit-rows", 1), ("unit-rows,minmax", 64), ("none,minmax,none", 64), ("standard,unit-rows,unit", 1)],
)
def test_scalings_in_turn(tmp_path: Path, kinds: str, values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ranges that differ, a constant column, and test rows beyond what training rows have."""
    monkeypatch.setattr("mpifed.data.samples.CHUNK_VALUES", values)  # so that rows come in pieces
    rng = np.random.default_rng(5)
    X = np.float32(rng.normal([0, 5, -300, 2, 1], [1, 0.1, 90, 0, 40], (50, 5)))
    files = {"train": X[:40], "test": 2 * X[40:]}
    for name, rows in files.items():
        lines = (",".join(f"{x:.9g}" for x in row) + f",{i % 2}" for i, row in enumerate(rows))
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    words = f"csv {tmp_path}/train --label -1 --test {tmp_path}/test --split grid --grid 2x2".split()
    federation = run(*words, "--scale", kinds)
    expected = by_hand(kinds, *(rows.astype(np.float64) for rows in files.values()))
    test = common(federation)
    for found, rows in zip((everything(federation)[0], test[0]), expected, strict=True):
        np.testing.assert_allclose(found, rows, rtol=0, atol=1e-6 * np.abs(rows).max())
    assert federation.provenance["options"]["scale"] == kinds


def test_sparse_rows_are_scaled_in_turn(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.random((40, 30)) * (rng.random((40, 30)) < 0.1)
    X[:, 29] = 1
    lines = [f"{i % 2} " + " ".join(f"{j + 1}:{x:.9g}" for j, x in enumerate(row) if x) for i, row in enumerate(X)]
    path, test = written(tmp_path / "a.svm", "\n".join(lines[:30])), written(tmp_path / "t.svm", "\n".join(lines[30:]))
    words = ("svmlight", path, "--test", test, "--split", "grid", "--grid", "3x2", "--scale")
    federation, expected = run(*words, "unit-rows"), X / np.linalg.norm(X, axis=1, keepdims=True)
    assert federation.sparse and set(federation.provenance["files"]) == {"a.svm", "t.svm"}
    np.testing.assert_allclose(everything(federation)[0], expected[:30], rtol=1e-6)
    np.testing.assert_allclose(common(federation)[0].toarray(), expected[30:], rtol=1e-6)
    with pytest.raises(UsageError, match="--scale minmax: column 29 would be shifted"):  # a constant that is not 0
        run(*words, "minmax,unit-rows")
    in_turn = run(*words, "unit,unit-rows,unit")
    np.testing.assert_allclose(everything(in_turn)[0], expected[:30] / expected[:30].max(), rtol=1e-6)


def test_out_is_replaced_by_force_alone_and_by_data_that_are_whole(here: Path) -> None:
    run("digits", "--split", "rows", "--clients", 5)
    code, text = command(*["data", "digits", "--split", "rows", "--clients", "3", "--out", "out"])
    assert code == 2 and "--force" in text
    with pytest.raises(DataError, match="No such file"):
        run("csv", "missing.csv", "--label", "y", "--split", "rows", "--clients", 3)
    assert open_federation("out", verify=True).clients == 5
    assert run("digits", "--split", "rows", "--clients", 3).clients == 3


def test_importing_the_command_is_cheap() -> None:
    heavy = "{'numpy', 'h5py', 'scipy', 'sklearn', 'mpi4py', 'pooch'}"
    code = f"import sys, mpifed.data.command; print(sorted({heavy} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


# --- columns of texts and gaps ---------------------------------------------------------------------------------------


TABLE = "size,colour,shape,y\n1,red,a,0\n,blue,b,1\n4,,a,0\n7,red,?,1\n6,red,b,1\n"
ONE_CLIENT = ("--split", "rows", "--clients", "1", "--label", "-1", "--scale", "none")


def of_one(*words: object) -> Federation:
    return run(*words, *ONE_CLIENT)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def rows(folder: Federation) -> list[list[float]]:
    found: list[list[float]] = held(folder).tolist()
    return found


@pytest.mark.parametrize(("missing", "expected"), [
    ("drop", [[1, 0, 1, 0], [6, 0, 1, 1]]),
    ("zero", [[1, 0, 1, 1, 0], [0, 1, 0, 0, 1], [4, 0, 0, 1, 0], [7, 0, 1, 0, 0], [6, 0, 1, 0, 1]]),
    ("mean", [[1, 0, 1, 1, 0], [4.5, 1, 0, 0, 1], [4, 0, 1, 1, 0], [7, 0, 1, 1, 0], [6, 0, 1, 0, 1]]),
    ("median", [[1, 0, 1, 1, 0], [5, 1, 0, 0, 1], [4, 0, 1, 1, 0], [7, 0, 1, 1, 0], [6, 0, 1, 0, 1]]),
])  # fmt: skip
def test_gaps(tmp_path: Path, missing: str, expected: list[list[float]]) -> None:
    words = ("csv", written(tmp_path / "a.csv", TABLE), "--categorical", "one-hot", "--missing", missing)
    folder = of_one(*words)
    names = ("size", "colour=blue", "colour=red", "shape=a", "shape=b")
    if missing == "drop":  # and with it the only blue
        names, expected = names[:1] + names[2:], [[1, 1, 1, 0], [6, 1, 0, 1]]
    assert folder.names() == names and rows(folder) == expected


def test_what_is_stated_is_no_gap_when_it_is_applied(tmp_path: Path) -> None:
    """And None is one, as pandas reads it, in texts too."""
    frame = pandas.DataFrame({"land": ["NA", "DE", "None", "NA"], "a": [1.0, np.nan, 3, 4], "y": [1.5, 2, 3, 4]})
    given = written(tmp_path / "p.toml", "columns.land.categories = ['DE', 'NA']\n")
    path = tmp_path / "a.csv"
    frame.to_csv(path, index=False)
    folder = of_one("csv", path, "--given", given, "--categorical", "one-hot", "--missing", "zero")
    expected = [[0, 1, 1], [1, 0, 0], [0, 0, 3], [0, 1, 4]]
    assert folder.names() == ("land=DE", "land=NA", "a") and rows(folder) == expected
    applied = Recipe(folder.about.recipe or ()).rows(as_table(frame, "frame"), "frame")
    assert applied.tolist() == expected


def test_it_is_fitted_on_training_rows_alone(tmp_path: Path) -> None:
    """And a file may be for both."""
    train = written(tmp_path / "a.csv", "a,b,y\n1,u,0\n3,w,1\n,u,1\n")
    test = written(tmp_path / "t.csv", "a,b,y\n,v,0\n9,w,1\n")
    expected = {train: [[1, 1, 0], [3, 0, 1], [2, 1, 0]], test: [[2, 0, 0], [9, 0, 1]]}  # v, which no training row has
    for path, rows_of in expected.items():
        folder = of_one("csv", train, "--test", path, "--missing", "mean", "--categorical", "one-hot")
        assert folder.names() == ("a", "b=u", "b=w") and rows(folder) == expected[train]
        assert common(folder)[0].tolist() == rows_of


def test_own_test_rows_are_not_in_the_preparation(tmp_path: Path) -> None:
    """Fault 32: the mean is that of the rows to train on, once the clients' own test rows are drawn."""
    x = np.random.default_rng(0).normal(size=60).round(6)
    lines = "".join(f"{'' if n % 7 == 0 else x[n]},{n % 3},{n % 2}\n" for n in range(60))
    table = written(tmp_path / "a.csv", f"x,ward,y\n{lines}")
    words = ("--by", "ward", "--missing", "mean", "--client-test-fraction", 0.3, "--scale", "none")
    folder = run("csv", table, "--label", "y", *words)
    (column,) = folder.about.recipe or ()
    values = np.concatenate([held(folder, client)[:, 0] for client in range(3)])
    trained = values[~np.isclose(values, column.fill)]
    assert folder.test_counts.sum() and len(trained) < len(values)
    assert column.fill == pytest.approx(trained.mean(), rel=1e-6) and abs(column.fill - x.mean()) > 1e-3


def test_a_gap_that_becomes_zeros_is_no_category_of_that_name(tmp_path: Path) -> None:
    """And a training row has one of the categories that are stated."""
    (tmp_path / "p.toml").write_text('columns.b = {categories = ["0.0", "u"]}\n')
    words = ("csv", written(tmp_path / "a.csv", "a,b,y\n1,0.0,0\n2,,1\n3,u,0\n"), "--given", tmp_path / "p.toml")
    folder = of_one(*words, "--categorical", "one-hot", "--missing", "zero")
    assert rows(folder) == [[1, 1, 0], [2, 0, 0], [3, 0, 1]]
    written(tmp_path / "a.csv", "a,b,y\n1,0.0,0\n2,w,1\n")
    with pytest.raises(DataError, match="column 'b': 'w' is none of the given"):
        of_one(*words, "--categorical", "one-hot")


def test_the_job_of_rows_sorted_by_class(tmp_path: Path) -> None:
    """Over ten clients, the rows of each as the file has them."""
    y = [1, -1, -1, 1, -1] * 9
    path = written(tmp_path / "a.svm", "".join(f"{label} 1:{row + 1}\n" for row, label in enumerate(y)))
    found = run("jobs.heterogeneous.by_class:SortedByClass", path, "--test", path)
    order = [row for kind in (-1, 1) for row, label in enumerate(y) if label == kind]
    cuts = [len(y) * part // 10 for part in range(11)]
    held_rows = [shard_of(found, client).rows.tolist() for client in range(10)]
    assert held_rows == [sorted(order[a:b]) for a, b in pairwise(cuts)]
