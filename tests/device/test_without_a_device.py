"""What a job says and does where there is no CUDA device, or no CuPy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from both import job_of
from registry import CASES, NAMES

from mpifed.core.device import Device
from mpifed.core.errors import UsageError
from mpifed.maths import device
from mpifed.maths.device import open_device


@pytest.mark.parametrize("driver", [False, True])
def test_the_processor_needs_no_cupy(driver: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "driver", lambda: driver)
    monkeypatch.setitem(sys.modules, "cupy", None)  # importing it fails
    assert type(open_device("cpu", 0, 1)) is Device
    assert type(open_device("auto", 0, 1)) is Device
    with pytest.raises(UsageError, match=r'device = "gpu".*install.*mpifed\[gpu\].*device = "cpu"'):
        open_device("gpu", 0, 1)


@pytest.mark.launch
def test_a_job_that_needs_a_device_ends_with_a_remedy(
    skewed: Path, tmp_path: Path, write_job: Any, launch: Callable[..., Any]
) -> None:
    job = job_of(skewed, CASES[NAMES.index("fedavg-0")], "cpu").table()
    job["compute"]["device"] = "gpu"
    path = write_job(tmp_path / "job.toml", job)
    ended = launch(2, "run", path, "--out", tmp_path / "out", env={"CUDA_VISIBLE_DEVICES": ""})
    assert ended.code == 2
    assert ended.text.count('[compute] device = "gpu"') == 1 and "mpifed[gpu]" in ended.text
