"""The first contact with a GPU, as far as it goes without one: what its script names is there; times are measured."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from launching import ROOT

DRILL = ROOT / "benchmarks" / "gpu_drill.sh"


def test_the_script_names_what_there_is() -> None:
    """Files, and tests of `test_gpu.py`: each word of -k is in the name of some, and they choose all of them."""
    read = subprocess.run(["bash", "-n", DRILL], capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stderr
    text = DRILL.read_text()
    assert all((ROOT / name).exists() for name in re.findall(r"(?:tests|benchmarks)/[\w/.]+\.py", text))
    found = re.findall(r"^def (test_\w+)", (ROOT / "tests/device/test_gpu.py").read_text(), re.MULTILINE)
    words = [word for chosen in re.findall(r"'tests \"?([\w ]+)\"?'", text) for word in chosen.split(" or ")]
    assert len(words) == 6
    assert all(any(word in name for name in found) for word in words)
    assert all(any(word in name for word in words) for name in found)
    limits = [int(limit) for limit in re.findall(r"^stage \w+ (\d+)", text, re.MULTILINE)]
    assert len(limits) == 7 and sum(limits) <= 490


def test_seconds_of_a_round(tmp_path: Path, make_data: Any, monkeypatch: Any) -> None:
    spec = importlib.util.spec_from_file_location("device", ROOT / "benchmarks" / "device.py")
    assert spec is not None and spec.loader is not None
    device = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "device", device)
    spec.loader.exec_module(device)
    made = "synthetic --samples 120 --features 9 --task classification --classes 3 --split rows --clients 4"
    make_data(tmp_path / "data", *made.split())
    monkeypatch.setattr(device, "PRESENT", 2)
    assert 0 < device.seconds({"model": {"name": "softmax"}}, 1, "cpu", tmp_path) < 10
