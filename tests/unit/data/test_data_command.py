"""`mpifed data`, from the command line to the opened federation."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from federations import common, held
from sklearn.datasets import load_digits

from mpifed.cli import data
from mpifed.core.errors import DataError, UsageError
from mpifed.data.shards import shard_of
from mpifed.data.store import Federation, open_federation

Run = Callable[..., Federation]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs the command with --out and opens what it made."""

    def run(*words: object) -> Federation:
        out = tmp_path / "out"
        arguments = [str(word) for word in (*words, "--out", out)]
        result = CliRunner().invoke(data, arguments, catch_exceptions=False, standalone_mode=False)
        assert f"folder   {out}" in result.output
        return open_federation(out, verify=True)

    return run


def everything(federation: Federation) -> tuple[np.ndarray, np.ndarray]:
    """All training rows [s, p] and labels [s], put together from the shards."""
    X, y = np.full((federation.samples, federation.features), np.nan), np.full(federation.samples, np.nan)
    for client in range(federation.clients):
        shard = shard_of(federation, client)
        X[np.ix_(shard.rows, shard.columns)] = held(federation, client)
        y[shard.rows] = shard.y
    return X, y


@pytest.mark.parametrize(
    "split",
    [("rows", "--clients", 7, "--partition", "dirichlet:0.5", "--skew", 1), ("columns", "--clients", 10),
     ("grid", "--grid", "3x4", "--partition", "classes:5")],
    ids=lambda split: split[0],
)  # fmt: skip
def test_digits(run: Run, split: tuple[object, ...]) -> None:
    federation = run("digits", "--split", *split)
    X, y = everything(federation)
    digits = load_digits()
    np.testing.assert_array_equal(X, digits.data / 16)  # unit is the default; sixteenths are exact
    np.testing.assert_array_equal(y, digits.target)
    assert federation.names() == tuple(digits.feature_names) and federation.shape == (1, 8, 8)
    assert federation.provenance["source"] == "digits"
    assert federation.provenance["options"]["split"] == split[0]
    assert federation.provenance["classes"] == [str(number) for number in range(10)]


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
def test_scalings_in_turn(run: Run, tmp_path: Path, kinds: str, values: int, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_sparse_grid(run: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.random((40, 30)) * (rng.random((40, 30)) < 0.1)
    X[:, 29] = 1
    lines = [f"{i % 2} " + " ".join(f"{j + 1}:{x:.9g}" for j, x in enumerate(row) if x) for i, row in enumerate(X)]
    path = tmp_path / "a.svm"
    path.write_text("\n".join(lines[:30]))
    test = tmp_path / "t.svm"
    test.write_text("\n".join(lines[30:]))
    federation = run("svmlight", path, "--test", test, "--split", "grid", "--grid", "3x2", "--scale", "unit-rows")
    assert federation.sparse
    expected = X / np.linalg.norm(X, axis=1, keepdims=True)
    np.testing.assert_allclose(everything(federation)[0], expected[:30], rtol=1e-6)
    loaded = common(federation)
    np.testing.assert_allclose(loaded[0].toarray(), expected[30:], rtol=1e-6)
    words = ("svmlight", path, "--test", test, "--split", "grid", "--grid", "3x2", "--force", "--scale")
    with pytest.raises(UsageError, match="--scale minmax: column 29 would be shifted"):  # a constant that is not 0
        run(*words, "minmax,unit-rows")
    in_turn = run(*words, "unit,unit-rows,unit")
    np.testing.assert_allclose(everything(in_turn)[0], expected[:30] / expected[:30].max(), rtol=1e-6)
    assert set(federation.provenance["files"]) == {"a.svm", "t.svm"}


def test_a_published_split_of_rows(run: Run, tmp_path: Path) -> None:
    table, split = tmp_path / "a.csv", tmp_path / "split.csv"
    table.write_text("".join(f"{row},{row % 2}\n" for row in range(6)))
    split.write_text("row,client\n5,1\n0,0\n1,1\n2,2\n3,0\n4,0\n")
    words = ("csv", table, "--label", -1, "--scale", "none", "--split", "rows", "--map", split, "--force")
    federation = run(*words)
    assert federation.split == "rows"
    assert [held(federation, number).tolist() for number in range(3)] == [[[0], [3], [4]], [[1], [5]], [[2]]]
    federation = run(*words, "--client-test-fraction", 0.4)
    assert federation.counts.tolist() == [2, 1, 1] and federation.test_counts.tolist() == [1, 1, 0]


def test_out_is_replaced_by_force_alone_and_by_data_that_are_whole(run: Run, tmp_path: Path) -> None:
    run("digits", "--split", "rows", "--clients", 5)
    with pytest.raises(UsageError, match="--force"):
        run("digits", "--split", "rows", "--clients", 3)
    with pytest.raises(DataError, match="no such file"):
        run("csv", tmp_path / "missing.csv", "--split", "rows", "--clients", 3, "--force")
    assert open_federation(tmp_path / "out", verify=True).clients == 5
    assert run("digits", "--split", "rows", "--clients", 3, "--force").clients == 3


def test_importing_the_command_is_cheap() -> None:
    heavy = "{'numpy', 'h5py', 'scipy', 'sklearn', 'mpi4py', 'pooch'}"
    code = f"import sys, mpifed.data.command; print(sorted({heavy} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


@pytest.mark.parametrize("source", ["csv", "svmlight"])
def test_cells_that_nobody_holds_are_zero(run: Run, tmp_path: Path, source: str) -> None:
    table, who = tmp_path / "table", tmp_path / "map.csv"
    rows = np.array([[3, 4, 12], [1, 2, 2], [6, 0, 8]])
    form = {"csv": "{0},{1},{2},{y}", "svmlight": "{y} 1:{0} 2:{1} 3:{2}"}[source]
    table.write_text("".join(form.format(*row, y=i % 2) + "\n" for i, row in enumerate(rows)))
    who.write_text("client,rows,columns\n0,0 2,0 1\n1,1,all\n")
    more = "--sparse" if source == "svmlight" else "--label -1"
    words = f"{source} {table} {more} --split grid --map {who}".split()
    with pytest.raises(DataError, match="row 0 and column 2 is held by no client"):
        run(*words)
    federation = run(*words, "--missing", "zero", "--scale", "unit-rows")
    assert federation.provenance["missing_cells"] == 2
    np.testing.assert_allclose(held(federation, 0), [[0.6, 0.8], [1, 0]], rtol=1e-6)
    np.testing.assert_allclose(held(federation, 1), [[1 / 3, 2 / 3, 2 / 3]], rtol=1e-6)
    reason = {
        "csv": "would shift columns, .* the 2 cells that no client",
        "svmlight": "fills the zeros of sparse",
    }
    for kinds in ("minmax", "minmax,unit-rows"):
        with pytest.raises(UsageError, match=f"--scale {kinds.partition(',')[0]}.*{reason[source]}"):
            run(*words, "--missing", "zero", "--scale", kinds, "--force")
