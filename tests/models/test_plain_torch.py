"""A run's model in plain PyTorch: the logits that mpifed computes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifed.core.record import named_arrays
from mpifed.files.model_file import read_model
from mpifed.maths.objectives import TorchNetwork
from mpifed.maths.parameters import Parameters

torch = pytest.importorskip("torch", reason="needs the extra `torch`")
import nets  # noqa: E402  # needs torch

# what a reader has: PyTorch and the module, and no mpifed
_PLAIN = """
import sys
import numpy, torch
sys.path.insert(0, sys.argv[1])
import nets
torch.set_num_threads(1)
from safetensors.torch import load_file
net = nets.convolutions(10)
net.load_state_dict(load_file(sys.argv[2]))
with torch.no_grad():
    numpy.save(sys.argv[4], net(torch.from_numpy(numpy.load(sys.argv[3])).reshape(-1, 1, 8, 8)).numpy())
assert "mpifed" not in sys.modules
"""


@pytest.fixture(scope="module")
def trained(digits: Path, write_job: Any, launch: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    job = {
        "name": "exported", "rounds": 3, "data": {"path": str(digits)}, "model": nets.IMAGE,
        "algorithm": {"name": "fedavg", "batch_size": 8, "client_optimizer": {"learning_rate": 0.1}},
    }  # fmt: skip
    done = launch(None, "run", write_job(folder / "job.toml", job), "--out", folder / "run", cwd=Path(__file__).parent)
    assert done.code == 0, done.text
    return folder / "run"


def test_the_logits_are_those_of_mpifed(trained: Path, tmp_path: Path) -> None:
    file = trained / "model.safetensors"
    X = np.random.default_rng(0).uniform(0, 16, (20, 64)).astype("f4")
    np.save(tmp_path / "X.npy", X)
    command = [sys.executable, "-c", _PLAIN, Path(__file__).parent, file, tmp_path / "X.npy", tmp_path / "logits.npy"]
    plain = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert plain.returncode == 0, plain.stderr
    objective, arrays = TorchNetwork("nets:convolutions", (1, 8, 8)), read_model(trained / "model.safetensors")
    start = objective.start(64, 10, np.random.default_rng(0), "float32")
    assert set(start.head._fields) == set(arrays)
    names: tuple[str, ...] = start.head._fields
    model = Parameters((), named_arrays(names)(*(arrays[name] for name in names)))  # type: ignore[arg-type]
    logits = objective.scores_of(model, X[None])[0]
    assert np.ptp(logits) > 0.1
    np.testing.assert_allclose(np.load(tmp_path / "logits.npy"), logits, rtol=1e-6, atol=1e-6)
