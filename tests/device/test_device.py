"""Which device a rank takes, what it says without one, and how rows are read there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from both import job_of
from jobs_in_python import checked
from registry import CASES, NAMES, table
from written_files import read_json

from mpifed.core.device import Device
from mpifed.core.errors import UsageError
from mpifed.data import store
from mpifed.forecast.job import forecast
from mpifed.job import combinations
from mpifed.job.combinations import device_pays
from mpifed.maths import device
from mpifed.maths.device import DeviceBlock, DeviceShard, open_device
from mpifed.run.setup import prepare
from mpifed.testing import Solo

FEDAVG = CASES[NAMES.index("fedavg-0")]


def test_the_processor_needs_no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # importing it fails
    for driver in (True, False):
        monkeypatch.setattr(device, "driver", lambda driver=driver: driver)
        assert type(open_device("auto", 0)) is Device
        with pytest.raises(UsageError, match=r'device = "cuda".*install.*mpifed\[gpu\].*device = "cpu"'):
            open_device("cuda", 0)


def test_cupy_is_not_imported_where_it_is_not_asked_for(skewed: Path, tmp_path: Path, write_job: Any) -> None:
    path = write_job(tmp_path / "job.toml", job_of(skewed, FEDAVG, "cpu").table())
    code = (
        "import sys; sys.modules['cupy'] = None\n"
        f"from mpifed.cli import main; main(['run', {str(path)!r}, '--out', {str(tmp_path / 'out')!r}])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
    assert read_json(tmp_path / "out" / "run.json")["device"] == "cpu"


def test_a_job_that_needs_a_device_ends_with_a_remedy(
    skewed: Path, tmp_path: Path, write_job: Any, launch: Callable[..., Any]
) -> None:
    job = job_of(skewed, FEDAVG, "cpu").table()
    job["compute"]["device"] = "cuda"
    path = write_job(tmp_path / "job.toml", job)
    ended = launch(2, "run", path, "--out", tmp_path / "out", env={"CUDA_VISIBLE_DEVICES": ""})
    assert ended.code == 2
    assert ended.text.count('[compute] device = "cuda"') == 1 and "mpifed[gpu]" in ended.text


def test_other_values_are_refused() -> None:
    with pytest.raises(UsageError, match="device"):
        checked({"name": "x", "rounds": 1, "compute": {"device": "rocm"}})


def test_sparse_rows_stay_with_the_processor(tmp_path: Path, make_data: Callable[..., Path]) -> None:
    path = tmp_path / "rows.svm"
    path.write_text("".join(f"{i % 2} {1 + i % 5}:1 {6 + i % 3}:2\n" for i in range(40)))
    folder = make_data(tmp_path / "data", "svmlight", str(path), "--split", "rows", "--clients", "4")
    algorithm = {"name": "fedavg", "batch_size": 2, "client_optimizer": {"learning_rate": 0.1}}
    job = table(folder, algorithm, model={"name": "logistic", "bias": False})
    at = prepare(checked(job | {"compute": {"device": "auto"}}), Solo())
    pays, why = device_pays(store.open_federation(folder), replace(at.algorithm, batch_size=10**7))
    assert not pays and why.startswith("cpu: ") and at.ranks.device.name == "cpu"
    with pytest.raises(UsageError, match=r'device = "cuda": .* has sparse rows, which need the cpu; set "cpu"'):
        prepare(checked(job | {"compute": {"device": "cuda"}}), Solo())


@pytest.mark.parametrize(("batch", "opened", "text"), [(2, [], "cpu: 2 rows"), (10**7, ["auto"], "a CUDA device")])
def test_auto_takes_a_device_where_it_pays(
    batch: int, opened: list[str], text: str, skewed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()
    monkeypatch.setattr(device, "open_device", lambda wanted, rank: asked.append(wanted) or Device())
    job = job_of(skewed, FEDAVG, "cpu").table()
    size = prepare(checked(job), Solo()).algorithm.problem.layout.size
    monkeypatch.setattr(combinations, "_PAYS", 2.5 * size)
    job["algorithm"]["batch_size"], job["compute"]["device"] = batch, "auto"
    prepare(checked(job), Solo())
    assert asked == opened
    assert forecast(checked(job), 1)["device"].startswith(text)


def test_rows_there_are_those_in_memory(skewed: Path) -> None:
    for block in prepare(job_of(skewed, FEDAVG, "cpu"), Solo()).ranks.blocks:
        there = DeviceBlock(tuple(DeviceShard(shard, np) for shard in block.shards), block.dtype)
        at = np.array([[2, 0, 1]] * len(block.clients))
        for one, other in zip(there.take(at), block.take(at), strict=True):
            np.testing.assert_array_equal(one, other)
        assert there.host.shards == block.shards
        for one, other in zip(there.shards, block.shards, strict=True):
            pieces = list(zip(one.pieces("f4"), other.pieces("f4"), strict=True))
            assert pieces and all(a == b and np.array_equal(X, Y) for (a, X), (b, Y) in pieces)
