"""One network twice: mpifed's own multilayer perceptron in NumPy, and the same layers in PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nets
import numpy as np
import pytest
from jobs_in_python import checked

from mpifed.core.record import map_leaves
from mpifed.maths.objectives import MLP
from mpifed.maths.parameters import Parameters
from mpifed.testing import Played, rounds

NAMES = ["first", "head.hidden_bias", "head.second", "head.output_bias"]  # in the order of PyTorch's layers


def job_of(data: Path, model: dict[str, Any], dtype: str) -> Any:
    return checked({
        "name": "same", "rounds": 4, "data": {"path": str(data)}, "compute": {"dtype": dtype},
        "model": {"l2": 1e-3, **model}, "participation": {"clients_per_round": 5},
        "algorithm": {"name": "fedavg", "batch_size": 8, "local_steps": 3, "client_optimizer": {"learning_rate": 0.1}},
        "record": {"evaluate_every": 4, "checkpoint_every": 0},
    })  # fmt: skip


def as_in_torch(played: Played) -> list[Any]:
    """Weights and biases of all layers, in the shapes of PyTorch: [outputs, inputs]."""
    return [played.model[name].T for name in NAMES]


@pytest.mark.parametrize(("dtype", "close"), [("float32", 1e-5), ("float64", 1e-10)])
def test_four_rounds_of_fedavg(dtype: str, close: float, skewed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the same start, with the same minibatches and penalty: the same model, up to rounding."""
    start = MLP.start

    def rounded(self: MLP, features: int, outputs: int, rng: Any, dtype: str) -> Parameters:
        """In single precision, which is that of modules when they are built."""
        return map_leaves(lambda leaf: leaf.astype(dtype), start(self, features, outputs, rng, "float32"))

    monkeypatch.setattr(MLP, "start", rounded)
    first, *_, ours = rounds(job_of(skewed, {"name": "mlp", "hidden": 12}, dtype))
    before = as_in_torch(first)
    monkeypatch.setattr(nets, "START", [np.asarray(leaf, "f4") for leaf in before])
    *_, theirs = rounds(job_of(skewed, {"name": "torch", "build": "nets:perceptron"}, dtype))
    for a, b, old in zip(as_in_torch(ours), theirs.model.values(), before, strict=True):
        assert a.dtype == b.dtype == dtype and np.abs(b - old).max() > 1e-3
        np.testing.assert_allclose(a, b, rtol=0, atol=close)
