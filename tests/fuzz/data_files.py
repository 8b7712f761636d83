"""Data files for fuzzing `mpifed data`: small good ones, what may stand in them, and the command on them."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
from fuzzing import Ended, check, ended
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet
from sklearn import datasets, feature_extraction, preprocessing  # noqa: F401 -- here, and not anew in every child

from mpifed.data.shards import shard_of
from mpifed.data.store import open_federation

ROWS = np.round(np.random.default_rng(0).normal(0, 3, (12, 4)), 3).tolist()
CSV = ("a,b,c,d,y\n" + "".join(",".join(map(str, row)) + f",{i % 3}\n" for i, row in enumerate(ROWS))).encode()
SVMLIGHT = "".join(
    f"{i % 2} " + " ".join(f"{j + 1}:{x}" for j, x in enumerate(row) if (i + j) % 3) + "\n"
    for i, row in enumerate(ROWS)
).encode()  # fmt: skip
# what cells, names, labels, column numbers, options may be; many of them are fine in some places
NUMBERS = [
    "", " ", "0", "1", "-1", "2", "-0", "+1", "007", "1.", ".5", "-2.5e3", "1e-400", "1e38", "3.5e38", "1e39", "-1e308",
    "1e999", "nan", "-nan", "inf", "-Infinity", "1_000", "0x10", "1e", "1,5", "1;2", "9007199254740993", "4294967296",
    "9223372036854775807", "4611686018427387904", "18446744073709551616", "2147483647", "2147483648", "16777215",
    "16777216", "999999999", "true", "null", "'", '"', "''", '""', "#", ":", "=", "-", "--", "\u0663", "½", "1\u00a0",
    "\0", "\x1b[31m", "\ufeff1", "%s", "../../x", "9" * 400, "9" * 5000, "0." + "1" * 400, "1" * 140_000,
    "x" * 140_000, "a\rb", "é" * 300,
]  # fmt: skip
WORDS = st.one_of(
    st.sampled_from(NUMBERS), st.integers(-(2**70), 2**70).map(str), st.floats(width=64).map(repr), st.text(max_size=12)
)


def make(folder: Path, *words: object) -> Ended:
    """`mpifed data ... --out out` ended cleanly; what it made can be read, what it did not make is not there."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    end = ended(["data", *words, "--out", out], folder)
    check(end)
    assert len(end.text) < 3000 + sum(len(str(word)) for word in words), end.text[:5000]
    assert (out / "federation.h5").exists() == (end.code == 0), end
    if end.code == 0:
        federation = open_federation(out, verify=True)
        assert (federation.counts > 0).all()
        assert (federation.widths > 0).all()
        for client in range(min(federation.clients, 5)):
            shard = shard_of(federation, client)
            rows = np.arange(min(shard.samples, 20))
            if federation.sparse:
                values = shard.take_sparse(rows, np.float64).data
            else:
                shard.take(rows, values := np.full((len(rows), shard.features), np.nan))
            assert np.isfinite(values).all()
            assert np.isfinite(shard.y).all()
    return end


@cache
def formats() -> dict[str, bytes]:
    """Small files of every format, by name."""
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"age": [30.5, np.nan, 60, 20] * 3, "sex": ["m", "f", None] * 4, "ward": [7, 8, 8] * 4,
                          "ill": ["no", "yes"] * 6})  # fmt: skip
    content, files = pa.Table.from_pandas(table, preserve_index=False), {"a.csv": CSV, "a.svm": SVMLIGHT}

    def saved(name: str, save: Callable[[io.BytesIO], object]) -> None:
        save(file := io.BytesIO())
        files[name] = file.getvalue()

    saved("t.csv", lambda file: table.to_csv(file, index=False))
    saved("t.parquet", lambda file: parquet.write_table(content, file, row_group_size=5))
    X, y = rng.integers(0, 9, (12, 2, 3), np.uint8), np.arange(12, dtype=np.uint8) % 3
    saved("a.npz", lambda file: np.savez_compressed(file, X=X, y=y, who=y.astype(str)))
    with h5py.File(whole := io.BytesIO(), "w") as file:
        file["X"], file["y"] = X, y
    files["shards/a.h5"] = whole.getvalue()
    saved("pictures/cat/1.png", lambda file: Image.fromarray(X[0]).save(file, "PNG"))
    saved("pictures/dog/1.png", lambda file: Image.fromarray(X[1]).save(file, "PNG"))
    users = {name: {"x": X[at::2, 0].tolist(), "y": y[at::2].tolist()} for at, name in enumerate("ab")}
    leaf = {"users": ["a", "b"], "num_samples": [6, 6], "user_data": users}
    files["a.json"] = json.dumps(leaf).encode()
    for name, values in (("train-images-idx3", X), ("train-labels-idx1", y)):
        shape = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
        files[f"images/{name}-ubyte"] = shape + values.tobytes()
    return files


def lines(rows: Iterable[Iterable[str]], separator: str = ",") -> bytes:
    """The lines of a file, with whatever is in them."""
    return "".join(separator.join(row) + "\n" for row in rows).encode(errors="replace")


def written(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
