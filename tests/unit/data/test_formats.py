"""Files of the formats' own libraries, and of their specifications: what is read of them, and what is refused."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from federations import common, held, in_order, labelled, make

import mpifed as mf
from mpifed.core.errors import DataError
from mpifed.data.shards import shard_of
from mpifed.data.store import Federation, open_federation
from mpifed.data.summary import summary

RNG = np.random.default_rng(5)
ONE = ("--split", "rows", "--clients", "1")


def read(folder: Federation, client: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return held(folder, client, dtype="f4"), np.asarray(shard_of(folder, client).y)


# LEAF


def leaf(users: dict[str, tuple[Any, Any]], **more: object) -> dict[str, object]:
    return {
        "users": list(users), "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()}, **more,
    }  # fmt: skip


def test_a_federation_of_leaf(tmp_path: Path) -> None:
    """Users in several files; one has test rows alone, one training rows alone."""
    train, test = tmp_path / "leaf/train", tmp_path / "leaf/test"
    train.mkdir(parents=True)
    test.mkdir()
    (train / "b.json").write_text(json.dumps(leaf({"u9": ([[1, 2], [3, 4]], [0, 1])})))
    with gzip.open(train / "a.json.gz", "wt") as file:
        json.dump(leaf({"u10": ([[5.5, 6]], [1.0]), "u1": ([[7, 8]], [0])}, hierarchies=["h"]), file)
    (test / "a.json").write_text(json.dumps(leaf({"u9": ([[9, 9]], [1]), "other": ([[8, 8]], [0])})))
    folder = make(tmp_path / "out", "leaf", tmp_path / "leaf")
    ids, _ = folder.natural() or ((), None)
    assert ids == ("u1", "u10", "u9") and folder.counts.tolist() == [1, 1, 2]
    assert [read(folder, n)[0].tolist() for n in (0, 1)] == [[[7, 8]], [[5.5, 6]]]
    assert sorted(common(folder, "f4")[0].tolist()) == [[8, 8], [9, 9]]
    assert set(folder.provenance["files"]) == {"a.json.gz", "b.json", "a.json"}
    alone = make(tmp_path / "out", "leaf", tmp_path / "leaf", "--split", "rows", "--clients", 2)
    assert alone.clients == 2 and not alone.test_counts.any() and "tests" not in alone.provenance


def own_tests(folder: Federation) -> list[list[list[float]]]:
    """The rows [x..., label] with which each client tests, sorted."""
    return [labelled(folder, number, True) for number in range(folder.clients)]


TRAIN = {"u9": ([[1, 2], [3, 4]], [0, 1]), "u10": ([[5, 6]], [1]), "u1": ([[7, 8]], [0])}
TEST = {"u9": ([[9, 9], [9, 8]], [1, 0]), "v": ([[8, 8]], [0]), "u10": ([[6, 6]], [1]), "w": ([[0, 1]] * 3, [0, 1, 1])}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ((), [[], [[6, 6, 1]], [[9, 8, 0], [9, 9, 1]]]),
        (("--min-rows", 2), [[[9, 8, 0], [9, 9, 1]]]),  # test rows do not count: u1 and u10 have one each
    ],
    ids=str,
)
def test_users_test_with_their_rows_of_the_test_folder(
    tmp_path: Path, more: tuple[object, ...], expected: list[list[list[float]]]
) -> None:
    """Beside the common test rows, which are all; training rows are those of the folder without tests, to the bit."""
    for name, users in (("train", TRAIN), ("test", TEST)):
        (tmp_path / "leaf" / name).mkdir(parents=True)
        (tmp_path / "leaf" / name / "a.json").write_text(json.dumps(leaf(users)))
    folder = make(tmp_path / "out", "leaf", tmp_path / "leaf", *more)
    assert own_tests(folder) == expected
    assert folder.test_counts.tolist() == [len(rows) for rows in expected]
    assert in_order(*common(folder, "f4")) == sorted(
        [*row, label] for x, labels in TEST.values() for row, label in zip(x, labels, strict=True)
    )
    bare = make(tmp_path / "bare", "leaf", tmp_path / "leaf/train", *more)
    assert folder.samples == bare.samples and folder.counts.tolist() == bare.counts.tolist()
    for number in range(bare.clients):
        assert all(np.array_equal(a, b) for a, b in zip(read(folder, number), read(bare, number), strict=True))
        assert shard_of(folder, number).rows.tolist() == shard_of(bare, number).rows.tolist()


def test_users_without_rows_are_no_clients(tmp_path: Path) -> None:
    """They are named, and the others as they are without them; what they lack is no fault of the file."""
    for name, users in (("train", TRAIN), ("test", TEST)):
        (tmp_path / "leaf" / name).mkdir(parents=True)
        (tmp_path / "leaf" / name / "a.json").write_text(json.dumps(leaf({"z": ([], []), **users, "u1b": ([], [])})))
    folder = make(tmp_path / "out", "leaf", tmp_path / "leaf")
    said = "u1b, v, w, ... (4 in all): no rows to train on, so no client; rows to test with: 4"
    assert folder.provenance["tests"] == said and said in summary(folder)
    assert (folder.natural() or ())[0] == ("u1", "u10", "u9") and folder.test_samples == 7
    alone = make(tmp_path / "out", "leaf", tmp_path / "leaf/train", "--client-test-fraction", 0.5)
    assert alone.provenance["tests"] == "u1b, z: no rows to train on, so no client; rows to test with: 0"
    held_out = make(tmp_path / "out", "leaf", tmp_path / "leaf/train", "--test-fraction", 0.5)
    assert held_out.provenance["tests"] == alone.provenance["tests"]


def test_own_test_rows_fit_nothing(tmp_path: Path) -> None:
    """Scaling, gaps and categories are those of the training rows; a class that only tests have is refused."""
    train = pd.DataFrame(
        {"a": [0.0, 2.0, 4.0, None], "b": ["p", "p", "q", "q"], "who": [1, 1, 2, 2], "y": [0, 1, 0, 1]}
    )
    test = pd.DataFrame({"a": [100.0, None], "b": ["r", "p"], "who": [2, 3], "y": [1, 0]})
    words = ("--label", "y", "--by", "who", "--categorical", "one-hot", "--missing", "mean", "--scale", "minmax")
    train.to_csv(tmp_path / "a.csv", index=False)
    test.to_csv(tmp_path / "t.csv", index=False)
    folder = make(tmp_path / "out", "csv", tmp_path / "a.csv", "--test", tmp_path / "t.csv", *words)
    assert folder.names() == ("a", "b=p", "b=q")
    assert own_tests(folder) == [[], [[25, 0, 0, 1]]]  # a / 4, and r is neither p nor q
    assert sorted(common(folder, "f4")[0].tolist()) == [[0.5, 1, 0], [25, 0, 0]]
    test.assign(y=[2, 0]).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match="has the label 2, which no training row has"):
        make(tmp_path / "out", "csv", tmp_path / "a.csv", "--test", tmp_path / "t.csv", *words)


def test_the_published_file_of_leaf(real_data: Path, tmp_path: Path) -> None:
    path = real_data / "leaf/fedprox-synthetic_1_1-mytest.json.gz"
    folder = make(tmp_path / "out", "leaf", path)
    content = json.loads(gzip.decompress(path.read_bytes()))
    assert (folder.clients, folder.samples, folder.features, folder.classes) == (30, 1084, 60, 10)
    ids, _ = folder.natural() or ((), None)
    assert ids == tuple(sorted(content["users"]))
    for client, user in enumerate(ids):
        own = content["user_data"][user]
        assert labelled(folder, client) == in_order(own["x"], own["y"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (leaf({"ann": ([[1], [2, 3]], [0, 1])}), "user 'ann': .*expected samples x of numbers, of one shape"),
        (
            leaf({"ann": ([[1]], [0]), "bob": ([[1, 2]], [1])}),
            r"'bob': samples of numbers of shape \(2,\); others have samples of numbers of shape \(1,\)",
        ),
        (
            leaf({"ann": ([[1]], [0]), "bob": ([[1]], ["o"])}),
            r"'bob': labels that are texts; others have labels that are numbers",
        ),
        (leaf({"ann": (["to be"], ["o"])}), "expected samples x of numbers"),
        (leaf({"ann": ([[1], [2]], [0])}), r"user 'ann': 2 samples, and y of int64 \(1,\)"),
        (leaf({"ann": ([], [])}), "no rows of any client"),
        (leaf({"a\0b": ([[1], [2]], [0, 1])}), "the name has a control character"),
        ({"users": 3, "num_samples": [1], "user_data": {}}, "no rows of any client"),
        ({}, "no rows; expected `users`"),
        ({"user_data": {"ann": [1]}}, r"user 'ann': expected {\"x\": \[...\], \"y\": \[...\]}"),
        ("[" * 10**5, "cannot be read as JSON"),
        ('{"user_data": ', "cannot be read as JSON"),
        ('{"user_data": {"ann": {"x": [[' + "9" * 5000 + ']], "y": [1]}}}', "a.json: "),
    ],
)
def test_faulty_leaf(tmp_path: Path, content: object, said: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(DataError, match=said):
        make(tmp_path / "out", "leaf", path)


# Parquet, and folders of `datasets`


def frame(rows: int = 50) -> pd.DataFrame:
    return pd.DataFrame({
        "age": RNG.integers(20, 90, rows), "dose": RNG.random(rows), "smokes": RNG.random(rows) < 0.5,
        "sex": pd.Categorical(RNG.choice(["m", "f"], rows)), "ward": RNG.integers(1, 12, rows),
        "ill": RNG.choice(["no", "yes"], rows),
    })  # fmt: skip


def as_parquet(table: pd.DataFrame, path: Path) -> None:
    table.to_parquet(path, index=False, row_group_size=7)


def as_csv(table: pd.DataFrame, path: Path) -> None:
    table.assign(smokes=table["smokes"].astype(int)).to_csv(path, index=False)


def as_folder(table: pd.DataFrame, path: Path, features: object = None) -> None:
    """As datasets.save_to_disk lays it out: two Arrow streams and state.json; `features` in the streams' metadata."""
    path.mkdir(parents=True)
    content = pa.Table.from_pandas(table, preserve_index=False)
    if features is not None:
        content = content.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    names = []
    for number, part in enumerate((content.slice(0, 20), content.slice(20))):
        names.append({"filename": f"data-{number:05d}-of-00002.arrow"})
        with pa.OSFile(str(path / names[-1]["filename"]), "wb") as file, pa.ipc.new_stream(file, part.schema) as stream:
            stream.write_table(part)
    (path / "state.json").write_text(json.dumps({"_data_files": names, "_split": "train"}))


def test_one_table_in_every_format(tmp_path: Path) -> None:
    """The same shards, whatever the door and the order of the rows."""
    table, words = frame(), ("--label", "ill", "--by", "ward", "--categorical", "one-hot", "--min-rows", 3)
    formats: dict[str, Callable[[pd.DataFrame, Path], None]] = {
        "csv": as_csv, "parquet": as_parquet, "arrow": as_folder
    }  # fmt: skip
    checksums = set()
    for number, (name, write) in enumerate(formats.items()):
        write(table.sample(frac=1, random_state=number), tmp_path / name)
        folder = make(tmp_path / "out", name, tmp_path / name, *words)
        checksums.add(folder.sha256)
        assert folder.names() == ("age", "dose", "smokes", "sex=f", "sex=m")
        counts = table["ward"].value_counts()
        assert (folder.natural() or ())[0] == tuple(map(str, sorted(counts[counts >= 3].index)))
        left_out = counts[counts < 3]
        assert f"{left_out.sum()} rows of {len(left_out)} clients with fewer than 3 are left out" in summary(folder)
    for content in (
        table[::-1], table.astype({"ill": "category", "ward": float}), table.astype({"age": "Int64", "sex": str}),
        pa.Table.from_pandas(table.sample(frac=1), preserve_index=False),
    ):  # fmt: skip
        made = mf.FederatedDataset.from_dataframe(content, label="ill", by="ward", categorical="one-hot", min_rows=3)
        checksums.add(open_federation(made.path).sha256)
    assert len(checksums) == 1


def test_folders_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for said in (r"no file \*.arrow; expected a folder of datasets.save_to_disk", "x.arrow: cannot be read"):
        with pytest.raises(DataError, match=said):
            make(tmp_path / "out", "arrow", tmp_path / "a", *ONE)
        (tmp_path / "a/x.arrow").write_text("no table")


# npz


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_images_of_npz(tmp_path: Path, save: Callable[..., None]) -> None:
    """As Keras has MNIST."""
    X, y = RNG.integers(0, 256, (20, 5, 4), np.uint8), RNG.integers(0, 3, 20)
    save(tmp_path / "a.npz", x_train=X[:15], y_train=y[:15], x_test=X[15:], y_test=y[15:])
    folder = make(tmp_path / "out", "npz", tmp_path / "a.npz", *ONE, "--scale", "unit")
    assert folder.shape == (5, 4) and folder.scaling.scale == 1 / 255
    folder = make(tmp_path / "out", "npz", tmp_path / "a.npz", *ONE, "--scale", "none")
    np.testing.assert_array_equal(read(folder)[0], X[:15].reshape(15, -1).astype("f4"))
    np.testing.assert_array_equal(common(folder, "f4")[1], y[15:])
    assert folder.nbytes()[0] == 15 * 20 + 15  # bytes as they came


def member(header: str, content: bytes = b"") -> bytes:
    text = header.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("{'descr': '|O', 'fortran_order': False, 'shape': (2, 1)}", "cannot be read .Object arrays cannot be loaded"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999, 99)}", "npz: not enough memory"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 2)}", "cannot be read"),
        (
            "{'descr': '<c8', 'fortran_order': False, 'shape': (0, 2)}",
            r"X: an array of complex64 \(0, 2\); expected numbers",
        ),
        ("__import__('os').system('touch executed')", "cannot be read"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (2, 2)}", "cannot be read"),
        ("{'descr': '<f8', 'fortran_order': (False", "cannot be read"),
    ],
)
def test_headers_of_npz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: str, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "good.npz", y=np.arange(2))
    with zipfile.ZipFile(tmp_path / "good.npz") as good, zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("y.npy", good.read("y.npy"))
        file.writestr("X.npy", member(header))
    with pytest.raises(DataError, match=said):
        make(tmp_path / "out", "npz", tmp_path / "a.npz", *ONE)
    assert not (tmp_path / "executed").exists()


class Executed:
    """What a pickle does as soon as it is read."""

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, ("executed",)


@pytest.mark.parametrize(
    "save", [lambda path, X: np.savez(path, X=X, y=np.arange(1)), lambda path, X: path.write_bytes(pickle.dumps(X))],
    ids=["object", "pickle"],
)  # fmt: skip
def test_objects_in_npz_are_not_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: Callable[[Path, object], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "a.npz", np.array([[1, Executed()]], object))
    with pytest.raises(DataError, match=r"a.npz: cannot be read .*; expected numbers and texts, by np.savez"):
        make(tmp_path / "out", "npz", tmp_path / "a.npz", *ONE)
    assert not (tmp_path / "executed").exists()
    pickle.loads(pickle.dumps(Executed()))  # it would
    assert (tmp_path / "executed").exists()


# images


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes()


def test_fashion_mnist(tmp_path: Path) -> None:
    X, y = RNG.integers(0, 256, (9, 4, 6), np.uint8), np.array([0, 1, 2] * 3, np.uint8)
    for kind, at in (("train", slice(6)), ("t10k", slice(6, 9))):
        (tmp_path / f"{kind}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(X[at])))
        (tmp_path / f"{kind}-labels-idx1-ubyte").write_bytes(idx(y[at]))
    assert make(tmp_path / "out", "idx", tmp_path, *ONE).scaling.scale == 1 / 255
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"as torchvision leaves it beside the packed one")
    folder = make(tmp_path / "out", "idx", tmp_path, *ONE, "--scale", "none")
    assert folder.shape == (1, 4, 6) and read(folder)[1].tolist() == y[:6].tolist()
    np.testing.assert_array_equal(read(folder)[0], X[:6].reshape(6, -1))
    with pytest.raises(
        DataError, match=r"train-images-idx3-ubyte.gz: MD5 .* is \w+, expected .* original file of MNIST"
    ):
        make(tmp_path / "out", "mnist", tmp_path, *ONE)
    path = tmp_path / "t10k-labels-idx1-ubyte"
    for content, said in (
        (idx(y[:2]), "3 rows and 2 labels"), (idx(y[6:])[:-1], "10 bytes, and a header for"),
        (idx(y[6:]) + b"x", r"12 bytes, and a header for an array \(3,\); expected 11 bytes"),
        (b"\0\0\x08\x01\xff\xff\xff\xff", "8 bytes, and a header for an array .4294967295,."),
        (idx(y)[:6], "6 bytes, and a header for"), (b"", "starts with , an IDX file of unsigned bytes in 1 dimensions"),
        (b"\0\0\x0d\x01\0\0\0\1\0\0\0\0", "starts with 00000d01, an IDX file of unsigned bytes"),
    ):  # fmt: skip
        path.write_bytes(content)
        with pytest.raises(DataError, match=said):
            make(tmp_path / "out", "idx", tmp_path, *ONE)
    path.rename(tmp_path / "b-train-labels-idx1-ubyte")
    with pytest.raises(DataError, match=r"b-train-.* and train-.*: two files \*train-labels\*"):
        make(tmp_path / "out", "idx", tmp_path, *ONE)
    (tmp_path / "b-train-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=r"no folder with a file \*t10k-labels\*"):
        make(tmp_path / "out", "idx", tmp_path, *ONE)
    (tmp_path / "t10k-images-idx3-ubyte.gz").unlink()
    assert make(tmp_path / "out", "idx", tmp_path, *ONE).test_samples == 0
    with pytest.raises(DataError, match=r"no file \*t10k-images\*"):
        make(tmp_path / "out", "mnist", tmp_path, *ONE)


def test_clients_of_npz(tmp_path: Path) -> None:
    X, y, who = RNG.random((30, 3)), RNG.random((30, 2)), RNG.choice(["b", "a", "c"], 30)
    orders = (np.arange(30), RNG.permutation(30))
    digests = set()
    for order in orders:
        np.savez(tmp_path / "a.npz", X=np.asfortranarray(X[order]), targets=y[order], who=who[order])
        folder = make(tmp_path / "out", "npz", tmp_path / "a.npz", "--by", "who")
        digests.add(folder.sha256)
    assert len(digests) == 1 and folder.targets == 2 and (folder.natural() or ())[0] == ("a", "b", "c")
    assert sorted(read(folder, 1)[0].tolist()) == sorted(X[who == "b"].astype("f4").tolist())


NAMED = ("--label", "label", "--by", "who")


def with_names(path: Path, names: object, labels: list[int]) -> Path:
    """A folder of `datasets` whose labels are of a ClassLabel."""
    table = pd.DataFrame({"a": np.arange(len(labels)) / 8, "who": [f"w{n % 2}" for n in range(len(labels))]})
    features = {"a": {"dtype": "float64", "_type": "Value"}, "label": {"names": names, "_type": "ClassLabel"}}
    as_folder(table.assign(label=labels), path, features)
    return path


def test_a_class_label_keeps_its_names(tmp_path: Path) -> None:
    """In its own order; the numbers, and so the checksum of the data, are those of labels without names."""
    labels = [n % 3 for n in range(40)]
    named = make(tmp_path / "out", "arrow", with_names(tmp_path / "a", ["zebra", "ant", "cat"], labels), *NAMED)
    assert named.provenance["classes"] == ["zebra", "ant", "cat"] and named.provenance["named"]
    lines = summary(named).splitlines()
    assert "classes  3: zebra (14), ant (13), cat (13)" in lines and lines[-3:] == [
        "client   zebra   ant   cat", "w0           7     6     7", "w1           7     7     6",
    ]  # fmt: skip
    numbers = make(tmp_path / "out", "arrow", with_names(tmp_path / "b", None, labels), *NAMED)
    assert numbers.provenance["classes"] == ["0", "1", "2"] and not numbers.provenance["named"]
    assert numbers.sha256 == named.sha256
    digits = make(tmp_path / "out", "arrow", with_names(tmp_path / "c", ["0", "1", "2"], labels), *NAMED)
    assert digits.provenance["classes"] == ["0", "1", "2"] and not digits.provenance["named"]  # as of MNIST
    one = make(tmp_path / "out", "arrow", tmp_path / "a", *NAMED, "--labels", "class:ant")
    assert one.provenance["classes"] == ["not ant", "ant"]
    assert make(tmp_path / "out", "arrow", tmp_path / "a", *NAMED, "--task", "regression").classes == 0
    many = [n for n in range(40)]  # too many different integers to be classes, but for their names
    assert make(tmp_path / "out", "arrow", with_names(tmp_path / "d", [f"n{n}" for n in many], many), *NAMED).classes


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            {"a": pd.to_datetime(["2020-01-01", "2021-01-01"])},
            "'a' is of type timestamp.*; expected numbers or texts; convert it, or leave the column out, by --ignore",
        ),
        (
            {"a": [[1, 2], [3, 4]]},
            r"'a' is of type list<.*; convert it \(lists and images: FederatedDataset.from_arrays in Python",
        ),
        ({"a": ["u", "v"]}, "row 1, column 'a': 'u' is not a number; encode categories"),
        ({"a": [1.0, np.inf]}, "row 2, column 'a': inf is not a finite number"),
    ],
)
def test_other_columns_of_parquet(tmp_path: Path, columns: dict[str, Any], said: str) -> None:
    pd.DataFrame({**columns, "y": [0, 1]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=said):
        make(tmp_path / "out", "parquet", tmp_path / "a.parquet", *ONE, "--label", "y")


def test_images_and_words_of_leaf(tmp_path: Path) -> None:
    path, X = tmp_path / "a.json", RNG.random((3, 2, 4)).astype("f4")
    path.write_text(json.dumps(leaf({"ann": (X.tolist(), ["cat", "dog", "cat"])})))
    folder = make(tmp_path / "out", "leaf", path)
    assert folder.shape == (2, 4) and folder.provenance["classes"] == ["cat", "dog"]


def test_gaps_of_parquet(tmp_path: Path) -> None:
    pd.DataFrame({"a": [1, None, 4.0], "y": [0, 1, 1]}).to_parquet(tmp_path / "a.parquet")
    words = ("parquet", tmp_path / "a.parquet", *ONE, "--label", "y", "--scale", "none")
    with pytest.raises(DataError, match="row 2, column 'a' is a missing value, of 1; fill it in, by --missing mean"):
        make(tmp_path / "out", *words)
    assert read(make(tmp_path / "out", *words, "--missing", "mean"))[0].tolist() == [[1], [2.5], [4]]
    assert read(make(tmp_path / "out", *words, "--missing", "drop"))[0].tolist() == [[1], [4]]
