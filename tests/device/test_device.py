"""Which device a rank takes, what it says without one, and the same bits on any number of ranks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from both import job_of
from jobs_in_python import checked
from lengths import covering
from registry import CASES, NAMES
from written_files import read_json

from mpifed import doctor
from mpifed.comm.sums import Message, Sum
from mpifed.core.device import Device, any_on_device, host_record
from mpifed.core.errors import NumericalError, UsageError
from mpifed.core.exchange import Exchange, Field, Placed, fields_like
from mpifed.core.holdings import Holdings
from mpifed.core.record import put, take
from mpifed.files.run_folder import summary
from mpifed.maths import device
from mpifed.maths.device import Cuda, open_device
from mpifed.testing import Solo

PROGRAM = Path(__file__).with_name("on_ranks.py")


# --- which one ---------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one."""
    monkeypatch.setattr(device, "driver", lambda: True)


def test_nothing_is_imported_without_a_driver(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "driver", lambda: False)
    assert type(open_device("auto", 0, 1)) is Device
    assert isinstance(open_device("gpu", 0, 1), Cuda)  # asked for, it is looked for


def test_the_processor_needs_no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # importing it fails
    assert type(open_device("cpu", 0, 1)) is Device
    assert type(open_device("auto", 0, 1)) is Device
    with pytest.raises(UsageError, match=r'device = "gpu".*install.*mpifed\[gpu\].*device = "cpu"'):
        open_device("gpu", 0, 1)


def test_a_library_without_a_device(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> int:
        raise RuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")

    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", none)
    assert type(open_device("auto", 0, 1)) is Device
    with pytest.raises(UsageError, match=r"cudaErrorNoDevice.*CUDA_VISIBLE_DEVICES"):
        open_device("gpu", 0, 1)
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: 0)
    with pytest.raises(UsageError, match="no device is visible"):
        open_device("gpu", 0, 1)


@pytest.mark.parametrize(("node_rank", "devices", "number"), [(0, 1, 0), (3, 1, 0), (1, 4, 1), (6, 4, 2)])
def test_ranks_of_a_node_take_devices_in_turn(
    cupy: Any, monkeypatch: pytest.MonkeyPatch, node_rank: int, devices: int, number: int
) -> None:
    used: list[int] = []
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: devices)
    monkeypatch.setattr(cupy.cuda, "Device", lambda n: SimpleNamespace(use=lambda: used.append(n)))
    found = open_device("auto", node_rank, 8)
    assert isinstance(found, Cuda) and found.number == number and used == [number]
    free = 2**32  # of which the ranks who share a device have equal parts
    assert found.room.nbytes == int(0.8 * free / (8 / devices))
    assert open_device("gpu", node_rank, 8, memory_gib=0.5).room.nbytes == 2**29  # type: ignore[attr-defined]


def test_reduced_precision_is_refused(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [(one.level, "Make-believe" in one.what) for one in doctor.devices()] == [("ok", True)]
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


# --- records -----------------------------------------------------------------------------------------------------


def test_records_on_a_device(cupy: Any) -> None:
    there, who = cupy.asarray(np.arange(6.0).reshape(3, 2)), np.array([0, 2])
    assert take(there, who).get().tolist() == [[0, 1], [4, 5]]
    new = np.full((2, 2), 9.0)
    assert put(there, who, cupy.asarray(new), in_place=False).get().tolist() == [[9, 9], [2, 3], [9, 9]]
    assert there.get()[0].tolist() == [0, 1]
    common = cupy.broadcast_to(cupy.asarray(np.zeros(2)), (3, 2))  # one row for all: not to be written to
    assert put(common, who, cupy.asarray(new), in_place=True).get().tolist() == [[9, 9], [0, 0], [9, 9]]
    assert common.get().tolist() == np.zeros((3, 2)).tolist()
    placed = Placed([there], [slice(0, 3)], 3)
    assert any_on_device(placed) and not any_on_device(host_record(placed))


# --- sums --------------------------------------------------------------------------------------------------------


def _sums(cupy: Any, fields: Any) -> tuple[Any, Any]:
    message = Message(Exchange("x", fields, None, None, None), 8)  # type: ignore[arg-type]
    return Sum(message, Cuda(cupy, 0)), Sum(message)


def _filled(adder: Any, answers: list[tuple[Any, Any]]) -> Any:
    adder.begin(True)
    for answer, clients in answers:
        adder.add(answer, clients)
    return adder.close()[:-1].tolist()


@pytest.mark.parametrize("bound", [2.0**10, 2.0**30])
def test_sums_of_whole_answers(cupy: Any, bound: float) -> None:
    there, here = _sums(cupy, fields_like(np.zeros((2, 3)), 2.0**-40, bound))
    rng, answers = np.random.default_rng(1), []
    for clients in (np.array([0, 1]), np.array([4]), np.array([5, 6, 7])):
        answers.append((rng.standard_normal((len(clients), 2, 3)).astype("f4"), clients))
    for _ in range(2):  # a second time into the same buffers
        assert _filled(there, [(cupy.asarray(a), c) for a, c in answers]) == _filled(here, answers)
    assert _filled(there, answers) == _filled(here, answers)  # from memory


@pytest.mark.parametrize("bound", [2.0**10, 2.0**30])
def test_sums_of_blocks(cupy: Any, bound: float) -> None:
    """Each is one addition; a value may be up to the number of clients times the bound."""
    there, here = _sums(cupy, fields_like(np.zeros((2, 3)), 2.0**-40, bound))
    rng, blocks = np.random.default_rng(1), [np.array([0, 1]), np.array([4]), np.array([5, 6, 7])]
    totals = [(len(who) * bound * rng.uniform(-1, 1, (2, 3))).astype("f4") for who in blocks]

    def filled(adder: Any, module: Any) -> Any:
        adder.begin(True)
        for total, who in zip(totals, blocks, strict=True):
            adder.add_total(module.asarray(total), who)
        return adder.close()[:-1].tolist()

    expected = filled(here, np)
    assert filled(there, cupy) == filled(there, np) == filled(there, cupy) == expected
    totals[2][1, 1] = 3.5 * bound
    for adder, module in ((here, np), (there, cupy)):
        with pytest.raises(NumericalError, match=r"clients 5, 6, 7, a block, has a value of .* outside 3 times"):
            filled(adder, module)


@covering({"bound": [2.0**10, 2.0**30], "at": [slice(1, 4), np.array([0, 2, 5])]})
def test_sums_of_answers_in_parts(cupy: Any, at: Any, bound: float) -> None:
    held = Holdings(6, np.array([0, 1, 2, 0, 0, 0, 0, 0]), (slice(0, 0), at, slice(3, 5)))
    there, here = _sums(cupy, Field((2, 6), 2.0**-40, bound, held=held, axis=1))
    rng = np.random.default_rng(2)
    values = [rng.standard_normal((2, 3)).astype("f4"), rng.standard_normal((2, 2)).astype("f4")]
    places = [at, slice(3, 5)]
    found = _filled(there, [(Placed([cupy.asarray(v) for v in values], places, 6, 1), np.array([1, 2]))])
    assert found == _filled(here, [(Placed(values, places, 6, 1), np.array([1, 2]))])
    there, here = _sums(cupy, Field((3,), sender=2))
    answer = rng.standard_normal((2, 3)).astype("f4")
    assert _filled(there, [(cupy.asarray(answer), np.array([1, 2]))]) == _filled(here, [(answer, np.array([1, 2]))])


def test_a_wrong_shape_and_a_wrong_value(cupy: Any) -> None:
    there, _ = _sums(cupy, Field((3,)))
    with pytest.raises(UsageError, match=r"shape \(1, 4\), its field declares \(1, 3\)"):
        _filled(there, [(cupy.zeros((1, 4)), np.array([0]))])
    values = np.zeros((2, 3))
    values[1, 2] = -3e3
    with pytest.raises(NumericalError, match=r"client 5 has a value of 3000 .* outside the bound 1024.*= 6000"):
        _filled(there, [(cupy.asarray(values), np.array([4, 5]))])
    assert _filled(there, [(cupy.zeros((1, 3)), np.array([0]))]) == [0, 0, 0]  # the next one is fine


class _Shared:
    """Arrays in memory that ranks share, of two ranks that send the same."""

    def __init__(self, length: int, dtype: Any) -> None:
        self.mine = np.zeros(length, dtype)

    def reduce(self, everywhere: bool) -> Any:
        return 2 * self.mine


def test_a_message_that_moves_into_shared_memory(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpifed.comm.sums.shared_message", lambda comm, length, dtype: _Shared(length, dtype))
    there, here = _sums(cupy, Field((5,)))
    values = np.random.default_rng(6).standard_normal((3, 5))
    before = there.numbers
    for turn, answer in enumerate((cupy.asarray(values), values, cupy.asarray(values))):
        there.begin(True)
        there.add(answer, np.arange(3))
        there.close()[-1] = turn
        reduced = there.reduce(Solo(), True)
        assert reduced[:-1].tolist() == [2 * one for one in _filled(here, [(values, np.arange(3))])]
        assert reduced[-1] == 2 * turn and there.numbers is not before


# --- ranks -------------------------------------------------------------------------------------------------------

ON_RANKS = ["fedpdm-1", "hyfdca-3"]


@pytest.mark.launch
def test_the_same_bits_on_any_number_of_ranks(
    skewed: Path, sides: Path, patches: Path, tmp_path: Path, write_job: Any, launch: Callable[..., Any]
) -> None:
    paths = []
    for name in ON_RANKS:
        case = CASES[NAMES.index(name)]
        job = job_of({"rows": skewed, "columns": sides, "cells": patches}[case.split], case, "cpu").table()
        job |= {"rounds": 2, "record": {"evaluate_every": 0, "checkpoint_every": 0}, "data": job["data"] | {"block": 2}}
        job["compute"]["device"] = "gpu"
        paths.append(write_job(tmp_path / f"{name}.toml", job))
    hashes = []
    for ranks in (0, 2):
        ended = launch(ranks, tmp_path / f"on-{ranks}", *paths, program=(str(PROGRAM),))
        assert ended.code == 0, ended.text
        hashes.append([summary(tmp_path / f"on-{ranks}" / path.stem)["model_sha256"] for path in paths])
    assert hashes[0] == hashes[1] and len(set(hashes[0])) == len(ON_RANKS)
    told = read_json(tmp_path / "on-2" / paths[0].stem / "run.json")
    assert told["device"] == "Make-believe" and told["versions"]["cuda"] == "12.9"
