"""One network twice: mpifed's own multilayer perceptron in NumPy, and the same layers in PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ended import run
from jobs_in_python import checked
from records import bare_leaves

from mpifed.comm.rounds import play
from mpifed.core.record import leaves, map_leaves
from mpifed.core.round import SETUP, Round
from mpifed.maths.objectives import MLP
from mpifed.maths.parameters import Parameters
from mpifed.run.setup import prepare
from mpifed.testing import Solo

torch = pytest.importorskip("torch", reason="needs the extra `torch`")
import nets  # noqa: E402  # needs torch


def as_in_torch(model: Parameters) -> list[Any]:
    """Weights and biases of all layers, in the order and shapes of PyTorch: [outputs, inputs]."""
    named = {name.removeprefix("head."): leaf for name, leaf in leaves(model)}
    order = ["first", "hidden_bias", "second", "output_bias"]
    assert sorted(order) == sorted(named)
    return [named[name].swapaxes(-1, -2) if "bias" not in name else named[name] for name in order]


def job_of(data: Path, model: dict[str, Any], dtype: str) -> Any:
    return checked({
        "name": "same", "rounds": 4, "data": {"path": str(data)}, "compute": {"dtype": dtype},
        "model": {"l2": 1e-3, **model}, "participation": {"clients_per_round": 5},
        "algorithm": {"name": "fedavg", "batch_size": 8, "local_steps": 3, "client_optimizer": {"learning_rate": 0.1}},
        "record": {"evaluate_every": 4, "checkpoint_every": 0},
    })  # fmt: skip


def initial(job: Any) -> Parameters:
    at = prepare(job, Solo())
    everybody = Round(SETUP, job.seed, np.ones(at.ranks.clients, dtype=bool))
    server, _ = play(at.algorithm.setup, at.server, at.clients, everybody, at.ranks)
    model: Parameters = at.algorithm.model(server)
    return model


@pytest.mark.parametrize(("dtype", "close"), [("float32", 1e-5), ("float64", 1e-10)])
def test_four_rounds_of_fedavg(
    dtype: str, close: float, skewed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the same start, with the same minibatches and penalty: the same model, up to rounding."""
    start = MLP.start

    def rounded(self: MLP, features: int, outputs: int, rng: Any, dtype: str) -> Parameters:
        """In single precision, which is that of modules when they are built."""
        return map_leaves(lambda leaf: leaf.astype(dtype), start(self, features, outputs, rng, "float32"))

    monkeypatch.setattr(MLP, "start", rounded)
    job = job_of(skewed, {"name": "mlp", "hidden": 12}, dtype)
    before = as_in_torch(initial(job))
    monkeypatch.setattr(nets, "START", [np.asarray(leaf, "f4") for leaf in before])
    ours, theirs = (
        run(job, Solo(), tmp_path / "numpy"),
        run(job_of(skewed, {"name": "torch", "build": "nets:perceptron"}, dtype), Solo(), tmp_path / "torch"),
    )
    assert ours is not None and theirs is not None
    for a, b, old in zip(as_in_torch(ours.model), bare_leaves(theirs.model), before, strict=True):
        assert a.dtype == b.dtype == dtype and np.abs(b - old).max() > 1e-3
        np.testing.assert_allclose(a, b, rtol=0, atol=close)
