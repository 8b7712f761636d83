"""Which device a rank takes, what it says without one, and where rows lie."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from both import job_of, outcome
from jobs_in_python import checked
from registry import CASES, FEW, NAMES, Case, table
from written_files import read_json

from mpifed import doctor
from mpifed.core.device import Device
from mpifed.core.errors import UsageError
from mpifed.maths import device
from mpifed.maths.device import Cuda, open_device
from mpifed.run.setup import prepare
from mpifed.testing import Solo


class Library:
    """In CuPy's place: its names for a device, with NumPy's arrays. Nothing is computed elsewhere."""

    __version__ = "0"

    def __init__(self, devices: int = 1) -> None:
        self.used: list[int] = []
        runtime = SimpleNamespace(
            getDeviceCount=lambda: devices, getDeviceProperties=lambda number: {"name": b"A device"},
            memGetInfo=lambda: (2**32, 2**33), runtimeGetVersion=lambda: 12090,
        )  # fmt: skip
        use = lambda number: SimpleNamespace(use=lambda: self.used.append(number))  # noqa: E731
        self.cuda = SimpleNamespace(runtime=runtime, Device=use)

    def get_default_memory_pool(self) -> Any:
        return SimpleNamespace(free_bytes=lambda: 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    """There is a driver and a library."""
    monkeypatch.setattr(device, "driver", lambda: True)
    monkeypatch.setitem(sys.modules, "cupy", found := Library())
    yield found


# --- which one ---------------------------------------------------------------------------------------------------


def test_nothing_is_imported_without_a_driver(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "driver", lambda: False)
    assert type(open_device("auto", 0, 1)) is Device
    assert isinstance(open_device("gpu", 0, 1), Cuda)  # asked for, it is looked for


def test_the_processor_needs_no_cupy(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # importing it fails
    assert type(open_device("cpu", 0, 1)) is Device
    assert type(open_device("auto", 0, 1)) is Device
    with pytest.raises(UsageError, match=r'device = "gpu".*install.*mpifed\[gpu\].*device = "cpu"'):
        open_device("gpu", 0, 1)


def test_a_library_without_a_device(library: Library) -> None:
    def none() -> int:
        raise RuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")

    for count, said in ((none, r"cudaErrorNoDevice.*CUDA_VISIBLE_DEVICES"), (lambda: 0, "no device is visible")):
        library.cuda.runtime.getDeviceCount = count
        assert type(open_device("auto", 0, 1)) is Device
        with pytest.raises(UsageError, match=said):
            open_device("gpu", 0, 1)


@pytest.mark.parametrize(("node_rank", "devices", "number"), [(0, 1, 0), (3, 1, 0), (1, 4, 1), (6, 4, 2)])
def test_ranks_of_a_node_take_devices_in_turn(
    library: Library, monkeypatch: pytest.MonkeyPatch, node_rank: int, devices: int, number: int
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", library := Library(devices))
    found = open_device("auto", node_rank, 8)
    assert isinstance(found, Cuda) and library.used == [number]
    free = 2**32  # of which the ranks who share a device have equal parts
    assert found.room == int(0.8 * free / (8 / devices))
    assert open_device("gpu", node_rank, 8, memory_gib=0.5).room == 2**29  # type: ignore[attr-defined]


def test_reduced_precision_is_refused(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [(one.level, "A device" in one.what) for one in doctor.devices()] == [("ok", True)]
    monkeypatch.setenv("CUPY_TF32", "1")
    assert [one.level for one in doctor.devices()] == ["ok", "error"]
    with pytest.raises(UsageError, match="CUPY_TF32"):
        open_device("auto", 0, 1)
    monkeypatch.setenv("CUPY_TF32", "0")
    open_device("auto", 0, 1)


def test_cupy_is_not_imported_where_it_is_not_asked_for(skewed: Path, tmp_path: Path, write_job: Any) -> None:
    job = job_of(skewed, CASES[NAMES.index("fedavg-0")], "cpu")
    path = write_job(tmp_path / "job.toml", job.table())
    code = (
        "import sys; sys.modules['cupy'] = None\n"
        f"from mpifed.cli import main; main(['run', {str(path)!r}, '--out', {str(tmp_path / 'out')!r}])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
    assert read_json(tmp_path / "out" / "run.json")["device"] == "cpu"


def test_a_job_that_needs_a_device_ends_with_a_remedy(
    skewed: Path, tmp_path: Path, write_job: Any, launch: Callable[..., Any]
) -> None:
    job = job_of(skewed, CASES[NAMES.index("fedavg-0")], "cpu").table()
    job["compute"]["device"] = "gpu"
    path = write_job(tmp_path / "job.toml", job)
    ended = launch(2, "run", path, "--out", tmp_path / "out", env={"CUDA_VISIBLE_DEVICES": ""})
    assert ended.code == 2
    assert ended.text.count('[compute] device = "gpu"') == 1 and "mpifed[gpu]" in ended.text


def test_other_values_are_refused() -> None:
    with pytest.raises(UsageError, match="device"):
        checked({"name": "x", "rounds": 1, "compute": {"device": "rocm"}})


def test_sparse_rows_stay_with_the_processor(library: Library, tmp_path: Path, make_data: Callable[..., Path]) -> None:
    path = tmp_path / "rows.svm"
    path.write_text("".join(f"{i % 2} {1 + i % 5}:1 {6 + i % 3}:2\n" for i in range(40)))
    folder = make_data(tmp_path / "data", "svmlight", str(path), "--split", "rows", "--clients", "4")
    algorithm = {"name": "fedavg", "batch_size": 2, "client_optimizer": {"learning_rate": 0.1}}
    job = table(folder, algorithm, model={"name": "logistic", "bias": False})
    assert prepare(checked(job), Solo()).ranks.device.name == "cpu"
    with pytest.raises(UsageError, match=r'device = "gpu": .* has sparse rows, which need the cpu; set "cpu"'):
        prepare(checked(job | {"compute": {"device": "gpu"}}), Solo())


# --- where rows lie ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [CASES[NAMES.index(name)] for name in FEW], ids=FEW)
def test_rows_there_have_the_bits_of_rows_in_memory(
    library: Library, case: Case, skewed: Path, sides: Path, halves: Path, patches: Path
) -> None:
    folder = {"rows": skewed, "columns": sides, "halves": halves, "cells": patches}[case.split]
    here = outcome(job_of(folder, case, "cpu"), certify=False).bits
    for room in (1.0, 2e-5, 1e-9):  # for all, some, none
        job = job_of(folder, case, "gpu", compute={"device": "gpu", "memory_gib": room})
        there = outcome(job, certify=False)
        assert there.bits == here and there.ranks.device.name == "A device"
