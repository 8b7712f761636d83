"""A federation: arrays that plain h5py reads, the same in memory, loaded and mapped; damage has a name."""

from __future__ import annotations

import gc
import hashlib
import resource
import shutil
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
from federations import common
from limits import soft_limit
from scipy import sparse

from mpifed.core.errors import DataError
from mpifed.data.block import vectors
from mpifed.data.partition import Partition, by_grid
from mpifed.data.scaling import IDENTITY, Scaling
from mpifed.data.shards import common_shard, hosted_blocks, shard_of
from mpifed.data.store import ABOUT, ARRAYS, Federation, make_federation, open_federation
from mpifed.files.json_file import read_json, write_json
from mpifed.files.schemas import conforming

RNG = np.random.default_rng(3)
X = RNG.integers(0, 256, (90, 7)).astype("u1")
Y = RNG.integers(0, 3, 90)
REAL = RNG.standard_normal((90, 2))
OVERLAPPING = Partition(
    "grid",
    [np.arange(50), np.arange(40, 90)],
    [np.arange(3), np.array([3, 5]), np.array([4, 6])],
    np.array([[0, 0], [0, 1], [1, 2], [1, 0]]),
)


class Case(NamedTuple):
    """Rows, and who holds them."""

    X: Any
    y: Any
    partition: Partition
    settings: Mapping[str, Any] = MappingProxyType({})


BY_ROWS = by_grid("rows", Y, 7, (4, 1), "dirichlet:0.5")
# together they begin with the first row and end with the last one, and are not in order
BY_TURNS = BY_ROWS._replace(rows=[np.arange(0, 90, 2), np.arange(1, 90, 2)], holds=np.array([[0, 0], [1, 0]]))
BY_COLUMN = Scaling(np.linspace(1, 2, 7), np.linspace(-1, 1, 7))
CASES = {
    "bytes by rows": Case(X, Y, BY_ROWS, {"scaling": Scaling(np.array(1 / 255), np.array(0.0))}),
    "floats by rows": Case(X.astype("f4") / 7, Y, BY_ROWS, {"scaling": BY_COLUMN, "test": (X[:9].astype("f4"), Y[:9])}),
    "targets": Case(X.astype("f4"), REAL[:, 0], BY_ROWS, {"target_scale": 4.0}),
    "vectors of targets": Case(
        X.astype("f4"), vectors(REAL), BY_ROWS, {"test": (X[:9].astype("f4"), vectors(REAL[:9]))}
    ),
    "their own tests": Case(
        X, Y, by_grid("rows", Y, 7, (4, 1)), {"client_tests": np.arange(90) % 5 == 0, "names": list("abcdefg")}
    ),
    "columns": Case(X, Y, by_grid("columns", Y, 7, (1, 3)), {"scaling": BY_COLUMN, "test": (X[:5], Y[:5])}),
    "grid": Case(X, Y, by_grid("grid", Y, 7, (2, 3)), {"scaling": BY_COLUMN}),
    "rectangles": Case(X, Y, OVERLAPPING),
    "sparse by rows": Case(sparse.csr_matrix(X * (X < 60)), Y, BY_ROWS, {"test": (sparse.csr_matrix(X[:9]), Y[:9])}),
    "by turns": Case(X, Y, BY_TURNS),
    "sparse by turns": Case(sparse.csr_matrix(X * (X < 60)), Y, BY_TURNS),
    "sparse grid": Case(sparse.csr_matrix((X * (X < 60)).astype("f4")), Y, by_grid("grid", Y, 7, (2, 3))),
}


def made(case: Case, folder: Path | None = None) -> Federation:
    given = {"scaling": IDENTITY, "provenance": {"source": "test"}, "seed": 0} | case.settings
    given["classes"] = int(case.y.max()) + 1 if case.y.dtype.kind == "i" else 0
    return make_federation(case.partition, case.y, case.X, folder=folder, **given)


def dense(values: Any) -> Any:
    return values.toarray() if sparse.issparse(values) else values


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def expected(case: Case, client: int, tests: bool = False) -> tuple[Any, Any, Any, Any]:
    """(rows, columns, raw values, labels) of a client."""
    rows, columns = case.partition.of(client)
    own = case.settings.get("client_tests", np.zeros(len(case.y), bool))
    rows = rows[own[rows] == tests]
    return rows, columns, dense(case.X)[np.ix_(rows, columns)], case.y[rows]


def test_each_client_has_its_rectangle(case: Case, tmp_path: Path) -> None:
    """In memory, loaded and mapped: the same bits of minibatches, pieces and labels, and one digest."""
    in_memory = made(case)
    assert made(case, tmp_path).sha256 == in_memory.sha256
    read = open_federation(tmp_path, verify=True)
    assert read.sha256 == in_memory.sha256
    for tests in (False, True) if read.test_counts.any() else (False,):
        for client in range(read.clients):
            rows, columns, raw, y = expected(case, client, tests)
            scaling = read.scaling.part(columns)
            shards = [
                hosted_blocks(data, range(read.clients), np.arange(read.clients + 1), "float64", room, tests)[
                    client
                ].shards[0]
                for data, room in ((read, np.inf), (read, 0), (in_memory, np.inf))
            ]
            for shard in (*shards, shard_of(read, client, tests)):
                out, at = np.empty((len(rows), len(columns))), np.arange(len(rows))[::-1]
                shard.take(at, out)
                np.testing.assert_array_equal(out, scaling.apply(raw[::-1], "f8"))
                np.testing.assert_array_equal(shard.y, y)
                assert shard.columns.tolist() == columns.tolist() and (tests or len(shard.rows) == len(rows))
                whole = np.concatenate([dense(piece) for _, piece in shard.pieces("float64")])
                np.testing.assert_array_equal(whole, out[::-1])
    for data in (read, in_memory) if "test" in case.settings else ():
        test_X, test_y = common(data)
        np.testing.assert_array_equal(dense(test_X), data.scaling.apply(dense(case.settings["test"][0]), "f8"))
        np.testing.assert_array_equal(test_y, case.settings["test"][1])
        rest = common_shard(data, 1)  # as ranks share these rows
        assert rest is not None and common_shard(data, len(test_y)) is None
        out = np.empty((rest.samples, rest.features))
        rest.take(np.arange(rest.samples), out)
        np.testing.assert_array_equal(out, dense(test_X)[1:])
        np.testing.assert_array_equal(rest.y, test_y[1:])


def test_blocks_that_are_not_used_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the last ones; the others are opened again, with the same rows."""
    monkeypatch.setattr("mpifed.data.shards.MOST_OPEN", 4)
    case = Case(X, Y, by_grid("rows", Y, 7, (20, 1)), {})
    roster = hosted_blocks(made(case), range(20), np.arange(21), "float32", np.inf)
    opened = [weakref.ref(roster[i]) for i in range(20)]
    gc.collect()
    assert [i for i, block in enumerate(opened) if block() is not None] == [16, 17, 18, 19]
    assert all(np.array_equal(block.shards[0].y, expected(case, i)[3]) for i, block in enumerate(roster))


@pytest.mark.parametrize("kind", ["u1", "f4"])
def test_rows_of_a_block_are_read_as_those_of_each_client(kind: str, tmp_path: Path) -> None:
    """Minibatches by one gather, columns in one call; of fewer clients, each by itself; loaded and mapped."""
    raw, at = X.astype(kind), np.array([5, 17, 0, 5])
    scaled = BY_COLUMN.apply(raw, "f4")
    by_rows = made(Case(raw, Y, by_grid("rows", Y, 7, (4, 1)), {"scaling": BY_COLUMN}), tmp_path)
    by_columns = made(Case(raw, Y, by_grid("columns", Y, 7, (1, 3)), {"scaling": BY_COLUMN}))
    for room in (np.inf, 0):
        (block,) = hosted_blocks(by_rows, range(4), np.array([0, 4]), "float32", room)
        for part in (block, block.only(np.array([0, 2]))):
            batch = part.take(np.tile(at, (len(part.shards), 1)))
            for client, x, y in zip(part.shards, batch.X, batch.y, strict=True):
                np.testing.assert_array_equal(x, scaled[client.rows[at]])
                np.testing.assert_array_equal(y, Y[client.rows[at]])
        for wrong in (int(by_rows.counts.min()), -1):
            with pytest.raises(IndexError, match=r"rows .* of clients with"):
                block.take(np.full((4, 1), wrong))
        (block,) = hosted_blocks(by_columns, range(3), np.array([0, 3]), "float32", room)
        for part in (block, block.only(np.array([0, 2])), block.only(np.array([1]))):
            for shard, found in zip(part.shards, part.take_alike(at), strict=True):
                np.testing.assert_array_equal(found[0], scaled[at][:, shard.columns])
                (piece,) = shard.pieces("float32")
                np.testing.assert_array_equal(piece[1], scaled[:, shard.columns])


def test_plain_h5py_reads_it(tmp_path: Path) -> None:
    data = made(CASES["floats by rows"], tmp_path)
    with h5py.File(tmp_path / ARRAYS) as file:
        first, last = file["rows/bounds"][2:4]
        rows, _, raw, y = expected(CASES["floats by rows"], 2)
        np.testing.assert_array_equal(file["X"][first:last], raw)
        np.testing.assert_array_equal(file["y"][first:last], y)
        assert file["rows/members"][first:last].tolist() == rows.tolist()
        for name, extent in data.about.arrays.items():
            assert file[name].shape == tuple(extent.shape) and (file[name].id.get_offset() or 0) == extent.offset


def test_a_flipped_byte_names_its_array(case: Case, tmp_path: Path) -> None:
    data = made(case, tmp_path)
    content = (tmp_path / ARRAYS).read_bytes()
    for name, extent in data.about.arrays.items():
        at = extent.offset + len(extent.view(content)) * np.dtype(extent.dtype).itemsize // 2
        (tmp_path / ARRAYS).write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        who = f"{name}: .*was changed" if extent.sha256 else "client |y: "
        with pytest.raises(DataError, match=rf"federation\.h5: ({who}|.*{name}.*; make)"):
            open_federation(tmp_path, verify=True)


def forge(array: str = "", values: Any = None, *shape: int, **facts: Any) -> Callable[[Path], None]:
    """An attacker writes an array of other values, or what a function makes of it, or facts by dotted key; with all
    digests anew."""

    def write(folder: Path) -> None:
        from mpifed.data.store import About, _identity

        table, stored = read_json(folder / ABOUT), (folder / ARRAYS).read_bytes()
        if array:
            extents = table["arrays"]
            old = extents.get(array, {"sha256": None if array in ("X", "y", "indptr") else ""})
            new = np.asarray(values)
            if callable(values):
                new = np.frombuffer(bytearray(stored), old["dtype"], np.prod(old["shape"]), old["offset"])
                new = values(new.reshape(old["shape"]))
            stored += bytes(-len(stored) % 64)
            sha256 = None if old["sha256"] is None else hashlib.sha256(np.ascontiguousarray(new)).hexdigest()
            extents[array] = {
                "offset": len(stored), "shape": list(shape or new.shape), "dtype": new.dtype.str, "sha256": sha256
            }  # fmt: skip
            (folder / ARRAYS).write_bytes(stored + new.tobytes())
        for key, value in facts.items():
            at, *path, last = table, *key.split(".")
            for part in path:
                at = at[part]
            at.pop(last) if value is GONE else at.update({last: value})
        with suppress(ValueError):
            table["data_sha256"] = _identity(conforming(About, table))
        write_json(folder / ABOUT, table)

    return write


GONE = object()


def put(index: Any, value: Any) -> Callable[[Any], Any]:
    def change(values: Any) -> Any:
        values[index] = value
        return values

    return change


def rewrite(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


# by case: what a stranger does to the folder, and what is named
BAD: dict[str, list[tuple[Callable[[Path], object], str]]] = {
    "bytes by rows": [
        (lambda folder: (folder / ABOUT).unlink(), r"of mpifed 0\.1, or not written to its end; .*--force --out .*`"),
        (shutil.rmtree, "no such file.*make the data with `mpifed data"),
        (rewrite(ARRAYS, lambda content: content[:3000]), "cannot be read"),
        (rewrite(ABOUT, lambda content: b"{"), "cannot be read"),
        (rewrite(ABOUT, lambda content: content.replace(b'"rows"', b'"grid"')), "was changed"),
        (forge(schema_version=4), "schema_version = 4: expected 3"),
        (forge(clients=5), r"holds: .*\(5,2\)"),
        (forge(split="columns"), "split in"),
        (forge(**{"arrays.X.offset": 2**62, "arrays.X.shape": [2**62]}), "X: cannot be read"),
        (forge(**{"arrays.X.offset": 3}), r"arrays.X.offset = 3: .*multiple"),
        (forge(**{"arrays.X.shape": [1, 7]}), r"arrays: .*\(90,7\)"),
        (forge(**{"arrays.X": GONE}), "arrays: .*'X'"),
        (forge(**{"arrays.holds.dtype": "|O"}), "dtype"),
        (forge(names=["a"]), "names in"),
        (forge(shape=[2, 2]), "shape in"),
        (forge(target_scale=0.5), "target_scale = 0.5"),
        (forge(samples=2**60), "samples in"),
        (forge(features=2**60), "arrays: "),
        (forge(**{"provenance.classes": ["a"]}), "provenance.classes in"),
        (forge(**{"provenance.classes": ["a", ["b"], {}]}), r"classes.1 = \[\"b\"\]: expected text"),
        (forge(**{"provenance.options": [1]}), r"options = \[1\]: expected a table"),
        (forge(names=[*"abcdefg"], recipe=[{"name": name, "fill": "x"} for name in "abcdefg"]), "recipe in"),
        (forge("rows/bounds", put(1, 0)), "bounds in"),
        (forge("rows/bounds", put(1, 80)), "bounds in"),
        (forge("rows/bounds", put(1, -1)), "bounds in"),
        (forge("holds", put((0, 0), 77)), "arrays: .*index 77"),
        (forge("holds", np.array([[0, 0], [1, 1], [2, 0], [3, 1]])), "holds in"),
        (forge("y", put(0, 200)), "labels"),
        (forge("rows/members", put(0, 5000)), "members"),
        (forge("scaling/scale", put(0, np.inf)), "scaling in"),
        (forge("clients/ids", np.array([[b"a", b"b"]])), r"clients/ids: .*\(4,\)"),
    ],
    "sparse by rows": [
        (forge("indices", put(0, 99)), "client 0: .*indices must be < 7"),
        (forge("indices", put(0, -1)), "client 0: .*indices must be >= 0"),
        (forge("indptr", put(-1, 2**40)), "client 3: "),
        (forge("indptr", np.arange(91) % 90), "client 3: .*indptr does not ascend"),
        (forge("indptr", np.array([0, 2**15 - 1, *[-(2**15)] * 89], "i2")), "indptr does not ascend"),
        (forge("test/indptr", put(slice(1, None, 2), 2**20)), "the test set: .*indptr does not ascend"),
        (forge("test/indptr", np.zeros(3, "i8")), r"arrays: .*\(10,\)"),
        (forge("test/indices", put(0, 10**6)), "the test set: .*indices must be < 7"),
        (forge("test/indptr", put(-1, 2**40)), "the test set: "),
        (forge("data", put(0, np.nan)), "not finite"),
    ],
    "their own tests": [
        (forge(**{"arrays.client_tests/y": GONE}), "arrays: .*client_tests/y"),
        (forge("client_tests/bounds", put(1, 80)), "bounds in"),
    ],
}


@pytest.mark.parametrize(("name", "number"), [(name, number) for name in BAD for number in range(len(BAD[name]))])
def test_bad_folders(name: str, number: int, tmp_path: Path) -> None:
    """What a stranger's folder claims is held against what there is, whatever its digests say."""
    folder = tmp_path / "data"
    folder.mkdir()
    made(CASES[name], folder)
    change, words = BAD[name][number]
    change(folder)
    with pytest.raises(DataError, match=words) as caught:
        data = open_federation(folder)
        list(hosted_blocks(data, range(data.clients), np.arange(data.clients + 1), "float32", np.inf))
        assert len(data.members("rows")) and data.nbytes("client_tests/").sum() >= len(data.client_names())
        if data.test_samples:
            common(data)
    assert str(folder) in str(caught.value)


def test_what_is_written_beside(tmp_path: Path) -> None:
    """Of two writers the data of the one that ends last are there, as a whole; on a full disk, those of before."""
    first = CASES["bytes by rows"]

    class Slow(np.ndarray[Any, Any]):
        def __getitem__(self, at: Any) -> Any:
            made(CASES["floats by rows"], tmp_path)
            return np.asarray(self)[at]

    facts = {"provenance": {}, "seed": 0, "classes": 3}
    last = make_federation(first.partition, first.y, first.X.view(Slow), IDENTITY, tmp_path, **facts)
    assert open_federation(tmp_path, verify=True).sha256 == last.sha256
    with soft_limit(resource.RLIMIT_FSIZE, 4096), pytest.raises(OSError, match="File too large"):
        made(CASES["floats by rows"], tmp_path)
    assert open_federation(tmp_path, verify=True).sha256 == last.sha256
    assert sorted(path.name for path in tmp_path.iterdir()) == [ARRAYS, ABOUT]
