"""The result files of a run: what is written comes back, and a torn or resumed history is whole again."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mpifed.core.errors import DataError, UsageError
from mpifed.files.clients import read_clients
from mpifed.files.history import History, read_history
from mpifed.files.json_file import read_json, write_json
from mpifed.files.model_file import model_sha256, read_model, write_arrays
from mpifed.files.run_folder import SUMMARY, summary

HEADER = "round,elapsed_s,train_loss,test_accuracy,up_bytes,down_bytes,epsilon"


def row(index: int) -> dict[str, float | int | None]:
    return {
        "round": index, "elapsed_s": index / 3, "train_loss": 1 / (1 + index), "kkt_residual": np.float32(0.1),
        "up_bytes": np.int64(8 * index), "down_bytes": None,
    }  # fmt: skip


def write_rounds(run: Path, *rounds: int) -> History:
    history = History(run)
    for index in rounds:
        history.append(row(index))
    return history


def test_columns_come_in_the_promised_order_and_floats_come_back_exactly(tmp_path: Path) -> None:
    write_rounds(tmp_path, 0, 10)
    lines = (tmp_path / "history.csv").read_text().splitlines()
    assert lines[0] == HEADER.replace("accuracy,", "accuracy,kkt_residual,")
    assert lines[2] == f"10,{10 / 3!r},{1 / 11!r},,{float(np.float32(0.1))!r},80,,"
    history = read_history(tmp_path)
    assert history["round"].dtype == history["up_bytes"].dtype == np.int64
    assert history["elapsed_s"][1] == 10 / 3
    assert np.isnan(history["epsilon"]).all() and np.isnan(history["test_accuracy"]).all()
    with pytest.raises(UsageError, match=r"history\.csv.*--resume"):
        History(tmp_path)


def test_every_cut_of_the_file_can_be_read_and_resumed(tmp_path: Path) -> None:
    write_rounds(tmp_path, 0, 1, 2)
    path = tmp_path / "history.csv"
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        rows_left = max(whole[:length].count(b"\n") - 1, 0)
        assert list(read_history(tmp_path).get("round", ())) == list(range(rows_left))
        history = History.resume(tmp_path, round=2)
        history.cut()
        for index in range(rows_left, 3):
            history.append(row(index))
        assert path.read_bytes() == whole
    history = History.resume(tmp_path, round=1)  # a checkpoint of before
    assert [row["round"] for row in history.rows()] == [0, 1]
    history.cut()
    history.append(row(7))
    assert list(read_history(tmp_path)["round"]) == [0, 1, 7]
    assert [path.name for path in tmp_path.iterdir()] == ["history.csv"]


@pytest.mark.parametrize(("text", "message"), [
    ("a,b\n1,2\n", "its first line has a, b, expected"),
    (f"{HEADER}\n1,2\n", "argument 2 is shorter"),
    (f"{HEADER}\n1,soon,,,,,\n", "'soon'"),
    (f"{HEADER}\n9223372036854775808,0,,,,,\n", "column round does not ascend"),
    ("round,elapsed_s,train_loss,test_accuracy,up_bytes,epsilon\n", "expected different columns: .*down_bytes"),
    (f"{HEADER},up_bytes\n", "expected different columns"),
    ("\udcff\n", "utf-8"),
])  # fmt: skip
def test_another_file_is_not_a_history(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "history.csv").write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(DataError, match=rf"history\.csv: cannot be read .*{message}"):
        read_history(tmp_path)


def test_other_files_are_no_tables(tmp_path: Path) -> None:
    for text in ("[]", "3", "null"):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(DataError, match=r"run\.json: cannot be read .*it holds no table"):
            read_json(tmp_path / "run.json")
    (tmp_path / "clients.csv").write_text("client,rows,accuracy,loss,name\n0,5,0.5,1.0,a\n1,5,0.5,1.0\n")
    with pytest.raises(DataError, match=r"clients\.csv: cannot be read .*lines of 4 cells, or all of 5"):
        read_clients(tmp_path)


def test_a_model_comes_back_with_its_bits(tmp_path: Path) -> None:
    arrays = {"first": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.float64(0.5), "mask": np.eye(2) > 0}
    write_arrays(tmp_path / "model.safetensors", arrays)
    read = read_model(tmp_path / "model.safetensors")
    assert read.keys() == arrays.keys()
    for name, values in arrays.items():
        assert read[name].dtype == values.dtype and np.array_equal(read[name], values)
    assert model_sha256(read) == model_sha256(arrays)
    (tmp_path / "damaged.h5").write_bytes(b"not HDF5")
    for name in ("absent.h5", "damaged.h5"):
        with pytest.raises(DataError, match=name):
            read_model(tmp_path / name)


def test_the_hash_is_that_of_the_documented_bytes() -> None:
    arrays: dict[str, NDArray[Any]] = {"w": np.array([[1.0, 2.0]], dtype=np.float32), "b": np.array(3, dtype=np.int8)}
    recipe = b"b\0|i1\0\0" + struct.pack("<b", 3) + b"w\0<f4\x001,2\0" + struct.pack("<2f", 1, 2)
    assert model_sha256(arrays) == hashlib.sha256(recipe).hexdigest()
    assert model_sha256({"w": arrays["w"].astype(">f4"), "b": arrays["b"]}) == hashlib.sha256(recipe).hexdigest()


def test_the_summary_has_the_promised_keys_and_invents_nothing(tmp_path: Path) -> None:
    known = {"rounds": 21, "exit": 0, "peak_rss_bytes": 5}
    write_json(tmp_path / "run.json", {"name": "run", "up_bytes": None, **known})
    assert summary(tmp_path) == dict.fromkeys(SUMMARY) | known
    constraints = {f"constraint_{m}": None if m == 3 else m / 2 for m in range(11, 0, -1)}
    write_rounds(tmp_path, 0, 10).append(row(20) | {"train_loss": float("inf"), "multiplier_1": 7.0} | constraints)
    model = {"w": np.array([0.0, 1.0, 2.0])}
    write_arrays(tmp_path / "model.safetensors", model)
    assert summary(tmp_path) == dict.fromkeys(SUMMARY) | known | {
        "elapsed_s": 20 / 3, "kkt_residual": float(np.float32(0.1)), "up_bytes": 160, "nonzeros": 2,
        "model_sha256": model_sha256(model), "multipliers": [7.0],
        "constraint_values": [None if m == 3 else m / 2 for m in range(1, 12)],
    }  # fmt: skip
