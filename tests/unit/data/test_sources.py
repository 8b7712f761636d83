"""Sources of arrays: the same rows by every door are the same data, and what is no data is refused by name."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from federations import common, held, in_order, labelled, make
from PIL import Image
from scipy import sparse

import mpifed as mf
from mpifed.core.errors import DataError, MpifedError
from mpifed.data import samples as samples_module
from mpifed.data.sources import Synthetic, images
from mpifed.data.store import Federation, open_federation

RNG = np.random.default_rng(5)
PIXELS, KINDS = RNG.integers(0, 256, (12, 1, 4, 3), np.uint8), np.repeat([0, 1, 2], 4)
NAMES = np.array(["ant", "bee", "cat"])
ONE = ("--split", "rows", "--clients", 1)

# --- the law of doors ------------------------------------------------------------------------------------------------


def as_npz(path: Path, X: np.ndarray, y: np.ndarray) -> Path:
    np.savez(path / "a.npz", X=X, y=y)
    return path / "a.npz"


def as_idx(path: Path, X: np.ndarray, y: np.ndarray) -> Path:
    for name, values in (("images", X[:, 0]), ("labels", y.astype(np.uint8))):
        head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
        (path / f"train-{name}").write_bytes(head + values.tobytes())
    return path


def as_images(path: Path, X: np.ndarray, y: np.ndarray) -> Path:
    for number, (pixels, kind) in enumerate(zip(X, y, strict=True)):
        (path / str(kind)).mkdir(exist_ok=True)
        Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(
            path / f"{kind}/{number:03d}.png"
        )
    return path


def as_hdf5(path: Path, X: np.ndarray, y: np.ndarray) -> Path:
    with h5py.File(path / "one.h5", "w") as file:
        file.create_dataset("X", data=X, compression="gzip")
        file["y"] = y
    return path


OWN = """
from dataclasses import dataclass
from pathlib import Path
import numpy as np
from mpifed.data.sources import Samples, Source

@dataclass(frozen=True)
class Stored(Source):
    path: Path

    def read(self, seed: int) -> Samples:
        content = np.load(self.path)
        return Samples(content["X"], content["y"])
"""
DOORS: dict[str, Callable[[Path, np.ndarray, np.ndarray], Path]] = {
    "npz": as_npz, "idx": as_idx, "images": as_images, "hdf5": as_hdf5, "stored:Stored": as_npz,
}  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
def test_the_same_images_by_every_door(door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes stay bytes, and are divided by 255 unless something else is said."""
    (tmp_path / "stored.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "stored", raising=False)
    (tmp_path / "in").mkdir()
    path = DOORS[door](tmp_path / "in", PIXELS, KINDS)
    words = () if door == "hdf5" else ONE
    data = make(tmp_path / "out", door, path, *words)
    assert data.shape == (1, 4, 3) and data.classes == 3 and data.array("X").dtype == np.uint8
    assert labelled(data) == in_order(PIXELS.reshape(12, -1) * np.float32(1 / 255), KINDS)
    raw = make(tmp_path / "out", door, path, *words, "--scale", "none")
    assert labelled(raw) == in_order(PIXELS.reshape(12, -1), KINDS)


def test_colours_and_tests_of_folders_of_images(tmp_path: Path) -> None:
    """Channels first; a grey image among coloured ones has three equal channels."""
    X = RNG.integers(0, 256, (8, 3, 2, 5), np.uint8)
    X[5] = X[5, :1]
    for name, at in (("train", slice(6)), ("test", slice(6, 8))):
        (tmp_path / "in" / name).mkdir(parents=True)
        as_images(tmp_path / "in" / name, X[at], NAMES[np.arange(8)[at] % 2])
    grey = tmp_path / "in/train/bee/005.png"
    Image.open(grey).convert("L").save(grey)
    data = make(tmp_path / "out", "images", tmp_path / "in", *ONE, "--scale", "none")
    assert data.shape == (3, 2, 5) and data.provenance["classes"] == ["ant", "bee"]
    assert labelled(data) == in_order(X[:6].reshape(6, -1), np.arange(6) % 2)
    assert in_order(*common(data)) == in_order(X[6:].reshape(2, -1), [0, 1])


def test_clients_bring_hdf5_files(tmp_path: Path) -> None:
    """Called as their files are; with rows to test with; those without rows are no clients, and named."""
    rows: dict[str, tuple[int, int]] = {"north": (3, 1), "east": (2, 0), "west": (0, 2)}
    folder, expected = tmp_path / "in", {}
    folder.mkdir()
    for name, (count, tests) in rows.items():
        X = RNG.random((count + tests, 2)).astype("f4")
        y = RNG.choice(["no", "yes"], count + tests)
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["X"], file["y"] = X[:count], np.array(y[:count], dtype=h5py.string_dtype())
            if tests:
                file["X_test"], file["y_test"] = X[count:], np.array(y[count:], dtype=h5py.string_dtype())
        expected[name] = in_order(X[:count], y[:count] == "yes"), in_order(X[count:], y[count:] == "yes")
    data = make(tmp_path / "out", "hdf5", folder)
    assert (data.natural() or ())[0] == ("east", "north")
    for number, name in enumerate(("east", "north")):
        assert (labelled(data, number), labelled(data, number, True)) == expected[name]
    assert data.provenance["tests"] == "west: no rows to train on, so no client; rows to test with: 2"
    assert data.test_samples == 3


def layout(version: type[images.Cifar10], count: int) -> tuple[bytes, np.ndarray, np.ndarray]:
    """(an archive of the layout that the publisher's page describes, pixels and classes of its training images)."""
    X, y = RNG.integers(0, 256, (count * len(version.train), 3072), np.uint8), RNG.integers(0, 4, 99, np.uint8)
    y = y[: len(X)]
    coarse = [] if version.labels == 1 else [y[:, None] // 2]
    records = np.concatenate([*coarse, y[:, None], X], axis=1)
    parts = np.split(records, len(version.train))
    content = {name: part.tobytes() for name, part in zip(version.train, parts, strict=True)}
    content |= {version.test: records[:2].tobytes(), version.meta: b"ant\nbee\ncat\ndog\n\n"}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, part in content.items():
            member = tarfile.TarInfo(f"cifar/{name}")
            member.size = len(part)
            tar.addfile(member, io.BytesIO(part))
    return packed.getvalue(), X, y


@pytest.mark.parametrize(("source", "version"), [("cifar10", images.Cifar10), ("cifar100", images.Cifar100)])
def test_cifar(source: str, version: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed, X, y = layout(version, 3)
    (tmp_path / "a.tar.gz").write_bytes(packed)
    words = (source, "--from", tmp_path / "a.tar.gz", *ONE, "--scale", "none")
    with pytest.raises(DataError, match=r"a.tar.gz: MD5 is \w+, expected \w+; get the original cifar-100?-binary"):
        make(tmp_path / "out", *words)
    monkeypatch.setattr(version, "md5", hashlib.md5(packed).hexdigest())
    data = make(tmp_path / "out", *words)
    assert data.shape == (3, 32, 32) and data.test_samples == 2
    order = {name: at for at, name in enumerate(data.provenance["classes"])}
    assert labelled(data) == in_order(X, [order[["ant", "bee", "cat", "dog"][kind]] for kind in y])


# --- what is refused -------------------------------------------------------------------------------------------------

X, Y = RNG.random((6, 2)), np.arange(6) % 2
STAMPS = 1_700_000_000_000_000_000 + np.arange(12).reshape(6, 2)
MASKED = np.ma.masked_array(X, mask=X[2, 1] == X)
IDS = [1, 1, 2, None, 2, 2]


def arrays(X: Any = X, y: Any = Y, **more: Any) -> Callable[[Path], Federation]:
    """By a source of one's own, which gives arrays as they are."""

    def made(folder: Path) -> Federation:
        from mpifed.data.options import Options
        from mpifed.data.prepare import prepare
        from mpifed.data.samples import Samples, Source

        class Given(Source):
            names_clients = "ids" in more

            def read(self, seed: int) -> Samples:
                return Samples(X, y, **more) if "what" not in more else more["what"]

        how: dict[str, Any] = {} if "ids" in more else {"split": "rows", "clients": 2}
        return prepare(Options("given", Given(), None, **how))

    return made


def of_test(X: Any, y: Any = Y[:2]) -> Any:
    from mpifed.data.samples import Samples

    return Samples(X, y)


def npz(*words: object, **content: Any) -> Callable[[Path], Federation]:
    def made(folder: Path) -> Federation:
        np.savez(folder / "a.npz", **content)
        return make(folder / "out", "npz", folder / "a.npz", *(words or ONE))

    return made


def hdf5(**content: Any) -> Callable[[Path], Federation]:
    def made(folder: Path) -> Federation:
        for client in ("a", "b"):
            with h5py.File(folder / f"{client}.h5", "w") as file:
                for name, value in content.items():
                    file[name] = value(client) if callable(value) else value
        return make(folder / "out", "hdf5", folder)

    return made


def image(content: bytes | np.ndarray) -> Callable[[Path], Federation]:
    def made(folder: Path) -> Federation:
        as_images(folder, PIXELS, KINDS)
        file = folder / "1/bad.png"
        file.write_bytes(content) if isinstance(content, bytes) else Image.fromarray(content).save(file)
        return make(folder / "out", "images", folder, *ONE)

    return made


REFUSED = {
    # arrays, by whichever door
    "no Samples": (arrays(what=(X, Y)), r"given: read\(\) returned tuple; expected mpifed.data.samples.Samples"),
    "masked": (arrays(MASKED), "given: X: 1 masked entries; fill them in, or leave their rows out"),
    "masked labels": (arrays(X, np.ma.masked_equal(Y, 1)), "given: y: 3 masked entries"),
    "masked ids": (arrays(ids=np.ma.masked_equal(Y, 1)), "given: ids: 3 masked entries"),
    "ids with a gap": (arrays(ids=IDS), "given: ids: 1 rows have no value"),
    "ids of fractions": (arrays(ids=X[:, 0]), "given: ids: float64, such as .*; expected integers or texts"),
    "ids of other rows": (arrays(ids=Y[:4]), r"ids of shape \(4,\); expected one for each of 6 rows"),
    "time stamps": (arrays(STAMPS), "X: column 0: integers up to 1700000000000000010, .* dates and identifiers"),
    "unsigned ids": (arrays(np.full((6, 2), 2**63, np.uint64)), "column 0: integers up to 9223372036854775808"),
    "stamps as floats": (arrays(1.7e9 + Y[:, None] * [1, 2]), "column 0: 1700000000 and all others are one"),
    "dates": (arrays(STAMPS.astype("M8[ns]")), r"X: an array of datetime64\[ns\] \(6, 2\); expected numbers"),
    "complex": (arrays(X * 1j), "X: an array of complex128"),
    "texts": (arrays(X.astype(str)), "X: an array of <U"),
    "ragged": (arrays([[1, 2], [3]]), "X: no array of numbers"),
    "one axis": (arrays(X[:, 0]), r"expected numbers \[samples, ...\]; one sample x is x\[None\]"),
    "gap": (arrays(np.where(X[4, 1] == X, np.nan, X)), "row 4, column 1: nan is not a finite number in float32, as"),
    "too large": (arrays(X * 1e39), "row 0, column 0: .*e.38 is not a finite number in float32, as are [0-9]+ others"),
    "sparse gap": (arrays(sparse.coo_array(X * np.nan)), "X: row 0, .*nan is not a finite number"),
    "labels too large": (arrays(y=np.full(6, 2**63, np.uint64)), "label of row 0 is 9223372036854775808"),
    "labels not finite": (arrays(y=np.full(6, np.inf)), "y: label of row 0 is inf; expected finite numbers"),
    "labels with a gap": (arrays(y=np.array(["a", "b", None] * 2, object)), "row 2 has None, and not a text"),
    "labels that break lines": (arrays(y=np.array(["a", "b\nc"] * 3)), "row 1: the label .* has the control"),
    "labels in columns": (arrays(y=2 * np.eye(6, dtype=int)), r"labels are int64 \(6, 6\), such as 2; several labels"),
    "labels of other rows": (arrays(y=Y[:5]), "6 rows and 5 labels; expected a label for each row"),
    "names": (arrays(names=("a",)), "1 names for 2 features"),
    "shape": (arrays(shape=(2, 2)), r"shape \(2, 2\) for 2 features; their product must be that number"),
    "own tests": (arrays(own_tests=Y), r"own_tests is int64 \(6,\); expected bool \(6,\), as the labels"),
    # test rows
    "test of another width": (arrays(test=of_test(X[:2, :1])), r"test: samples of shape \(1,\); expected \(2,\)"),
    "test with channels last": (
        arrays(PIXELS[:6], test=of_test(PIXELS[:2].transpose(0, 2, 3, 1).reshape(2, 3, 4, 1))),
        r"test: samples of shape \(3, 4, 1\); expected \(1, 4, 3\): transpose, or reshape",
    ),
    "test in bytes": (
        arrays(test=of_test((X[:2] * 255).astype(np.uint8))),
        "test: samples are uint8, those to train on float32: bytes are divided by 255",
    ),
    "test labels of fractions": (arrays(test=of_test(X[:2], [0.5, 1])), "labels are float64 .*, those to"),
    "test labels of texts": (arrays(test=of_test(X[:2], ["a", "b"])), "labels are <U1 .*; give both alike"),
    "test label unknown": (arrays(test=of_test(X[:2], [0, 7])), "row 2 has the label 7, which no training row has"),
    # files
    "npz, no samples": (npz(z=X, y=Y), r"--samples is missing: .*a.npz has the arrays z, y; give the name of one"),
    "npz, no name": (npz("--by", "who", X=X, y=Y), "--by who: .* has the arrays X, y"),
    "npz, a gap": (npz(X=X * np.nan, y=Y), r"a.npz: X: row 0, column 0: nan is not"),
    "npz, labels of another length": (npz(X=X, y=Y[:3]), "a.npz: 6 rows and 3 labels"),
    "hdf5, no y": (hdf5(X=X), "a.h5: cannot be read .*y is no dataset of this file"),
    "hdf5, a link": (hdf5(X=lambda _: h5py.ExternalLink("b.h5", "y"), y=Y), "a.h5: .*X is no dataset of this file"),
    "hdf5, other shapes": (hdf5(X=lambda c: X[:, : 1 + (c == "a")], y=Y), r"b.h5: samples of numbers of shape \(1,\)"),
    "hdf5, bytes and numbers": (
        hdf5(X=lambda c: X if c == "a" else X.astype(np.uint8), y=Y), "b.h5: samples of bytes of shape",
    ),
    "hdf5, nothing": (lambda folder: make(folder / "out", "hdf5", folder), "no rows of any client"),
    "images, none": (lambda folder: make(folder / "out", "images", folder, *ONE), "a folder for each class, as "),
    "images, a text": (image(b"no image"), r"bad.png: no image .*; expected BMP, GIF, JPEG"),
    "images, PostScript": (image(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 2 2\n"), "bad.png: no image"),
    "images, another size": (image(np.zeros((2, 2), np.uint8)), r"bad.png: \(2, 2\) pixels, 000.png has \(4, 3\)"),
    "cifar, no file": (
        lambda folder: make(folder / "out", "cifar10", "--from", folder / "none.tar.gz", *ONE), "none.tar.gz: no such",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, tmp_path: Path) -> None:
    made, said = REFUSED[case]
    with pytest.raises(MpifedError, match=said):
        made(tmp_path)


@pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.csr_array, sparse.coo_array, sparse.csc_matrix])
def test_every_sparse_form(form: Any, tmp_path: Path) -> None:
    rows = np.where(X > 0.4, X, 0)
    data, test = arrays(form(rows), test=of_test(rows[:2]))(tmp_path), None
    assert data.sparse
    found = [labelled_sparse(data, client) for client in range(2)]
    assert sorted([*found[0], *found[1]]) == in_order(rows, Y)
    test = common(data, "f4")[0]
    np.testing.assert_array_equal(test.toarray(), rows[:2].astype("f4"))


def labelled_sparse(data: Federation, client: int) -> list[list[float]]:
    from mpifed.data.shards import shard_of

    shard = shard_of(data, client)
    return in_order(shard.take_sparse(np.arange(shard.samples), "f4").toarray(), shard.y)


# --- digits, synthetic data, data that are larger than memory --------------------------------------------------------


def test_digits(tmp_path: Path) -> None:
    data = make(tmp_path, "digits", *ONE)
    assert (data.samples, data.features, data.shape) == (1797, 64, (1, 8, 8))
    assert held(data).max() == 1 and np.bincount(np.array(labelled(data))[:, -1].astype(int)).min() == 174


def test_synthetic_rows_are_a_function_of_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Synthetic(samples=50, features=5).read(1)
    assert np.array_equal(whole.X, Synthetic(samples=50, features=5).read(1).X)
    assert not np.array_equal(Synthetic(samples=50, features=5).read(2).X, whole.X)
    monkeypatch.setattr("mpifed.data.sources.synthetic.CHUNK_VALUES", 100)  # 20 rows a chunk
    longer, shorter = Synthetic(samples=50, features=5).read(1), Synthetic(samples=45, features=5).read(1)
    assert np.array_equal(shorter.X[:40], longer.X[:40]) and np.array_equal(shorter.y[:40], longer.y[:40])


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_synthetic_classes(dtype: Any) -> None:
    data = Synthetic(5000, 50, noise=0.2, task="classification", classes=4, dtype=dtype).read(0)
    assert data.X.dtype == dtype
    counts = np.bincount(data.y)
    assert len(counts) == 4
    assert counts.min() > 700  # none favoured: 1250 on average, and classes' scores differ in norm by chance
    # a linear model explains most labels, as they are planted by one
    centred = data.X.astype(np.float64) - data.X.mean(axis=0)
    weights = np.linalg.lstsq(centred, np.eye(4)[data.y], rcond=None)[0]
    assert np.mean(np.argmax(centred @ weights, axis=1) == data.y) > 0.7


@pytest.mark.parametrize(
    "words",
    ["--scale unit-rows", "--test-fraction 0.2 --client-test-fraction 0.3 --scale minmax", "--feature-noise 0.1"],
)
def test_rows_beyond_memory_are_mapped(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same data, where arrays are files of $TMPDIR, which is empty afterwards."""
    source = f"synthetic --samples 300 --features 7 --task classification --split rows --clients 3 {words}"
    known = make(tmp_path / "memory", *source.split())
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    made: list[bool] = []

    def little() -> int:
        made.append(True)
        return 0

    monkeypatch.setattr(samples_module, "room", little)
    mapped = make(tmp_path / "mapped", *source.split())
    assert made and mapped.sha256 == known.sha256 and not list((tmp_path / "tmp").iterdir())
    assert open_federation(tmp_path / "mapped", verify=True).sha256 == known.sha256


def test_data_of_python_are_what_files_give(tmp_path: Path) -> None:
    of_arrays = mf.FederatedDataset.from_arrays(PIXELS, KINDS, clients=1, out=tmp_path / "a")
    of_file = make(tmp_path / "b", "npz", as_npz(tmp_path, PIXELS, KINDS), *ONE)
    assert open_federation(of_arrays.path).sha256 == of_file.sha256
    assert json.loads((tmp_path / "b/federation.json").read_text())["provenance"]["scale"].startswith("bytes divided")
