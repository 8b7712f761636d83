"""Records made to break the mechanism: not finite, or huge; and sums that floats round far from where they are."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lengths import covering
from small import algorithm, block_of, flat, sensitivity

import mpifed as mf
from mpifed.core.errors import NumericalError
from mpifed.core.record import leaves, map_leaves
from mpifed.core.round import Round
from mpifed.privacy.guards import on_grid

S, P, L = 12, 5, 3
AVG = {"name": "fedavg", "batch_size": S, "client_optimizer": {"learning_rate": 0.3}}
SOFTMAX, BIASED = {"name": "softmax", "bias": False}, {"name": "softmax", "bias": True}
MODELS: dict[str, dict[str, Any]] = {
    "gradients": {},
    "paper": {"noise": "paper"},
    "clients, by chance": {"level": "client", "trust": "central", "sampling": "poisson"},
    "clients": {"level": "client"},
    "clients, distributed": {"level": "client", "trust": "distributed"},
    "clients, central": {"level": "client", "trust": "central"},
}
BAD = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "huge": 1e300, "largest": float(np.finfo("f8").max)}


def at(clients: int = 1, index: int = 0) -> Round:
    return Round(index, 1, np.ones(clients, dtype=bool))


def after(one: Any, rows: Any, shard: type) -> Any:
    """[d] the model after a round."""
    (exchange,), now, block = one.exchanges, at(len(rows)), block_of(rows, shard)
    server = one.start_server(now._replace(index=-1))
    answer = exchange.answer(one.start_clients(block, now), exchange.ask(server, now), block, now)[1]
    total = map_leaves(lambda leaf: leaf.sum(axis=0), answer)
    found = one.model(exchange.absorb(server, total, now))
    return np.concatenate([leaf.ravel() for _, leaf in leaves(found)])


@pytest.mark.filterwarnings("error::RuntimeWarning")
@covering(
    {
        "name": MODELS,
        "bad": BAD.values(),
        "objective": [SOFTMAX, BIASED, {"name": "mlp", "bias": False, "hidden": 3}],
    }
)
def test_a_record_of_any_numbers_ends_no_run(name: str, bad: float, objective: Any, array_shard: Any) -> None:
    """The model is finite, and, with the same noise, within the reach of one record, or client, of the one without."""
    settings = {"clip": 1.0, "noise_multiplier": 3.0} | MODELS[name]
    one, rng, found = algorithm(AVG, settings, [S, S], P, L, objective), np.random.default_rng(2), []
    X, y = rng.normal(size=(2, S, P)), rng.integers(0, L, (2, S))
    for value in (0.0, bad):
        X[1, 4, 2:] = value
        found.append(after(one, list(zip(X, y, strict=True)), array_shard))
    assert np.isfinite(found[1]).all()
    reach = 0.3 * 2 / S if one.problem.privacy.on_gradients else sensitivity(one)
    assert np.linalg.norm(found[1] - found[0]) <= reach / 2 * 1.01


@pytest.mark.parametrize("released_only", [False, True])
def test_no_message_has_a_record_s_numbers(released_only: bool, tmp_path: Path) -> None:
    """Whatever is measured without noise may end a run, and says neither whose number it was, nor which."""
    X, y = np.ones((8, 2)), np.append(np.ones(7), 3e38)
    data, privacy = mf.FederatedDataset.from_arrays(X, y, clients=2), mf.Privacy(delta=1e-5, clip=1, noise_multiplier=1)
    run = partial(
        mf.run, mf.FedAvg(batch_size=2, client_optimizer=mf.SGD(0.1)), data, mf.LeastSquares(), rounds=1,
        privacy=privacy, record=mf.Record(released_only=released_only), out=tmp_path / "run", progress="none",
    )  # fmt: skip
    if released_only:
        run()
        return
    with pytest.raises(NumericalError, match="released_only = true, which measures none of it") as caught:
        run()
    assert "client" not in str(caught.value) and "e+" not in str(caught.value)


# --- sums ------------------------------------------------------------------------------------------------------------

ROWS = 6000


def apart(pair: Any, shard: type) -> tuple[Any, Any]:
    """([d] how far two data sets' integers are apart before noise is added, in sensitivities; the mechanism).

    All rows are drawn.
    """
    rows, features = len(pair[0][1]), pair[0][0].shape[1]
    table = {"name": "fedavg", "batch_size": rows, "client_optimizer": {"learning_rate": 0.3}}
    settings = {"clip": 1.0, "noise_multiplier": 3.0}
    one = algorithm(table, settings, [rows], features, 1, {"name": "least-squares", "bias": False}, dtype="float32")
    guard, how, now, sent = one.guard, one.guard.how, at(), []
    model = guard.record(one.start_server(now._replace(index=-1)).model[None])
    for X, y in pair:
        block = block_of([(X, y)], shard, "float32")
        total = guard.clipped(model, guard.minibatch(block.take(np.arange(rows)[None]), (), 1.0))
        each = np.array([1 / one.problem.privacy.reach])
        sent.append(flat(on_grid(how, "gradient", total, each, 0.0, block.clients, now, None, "float64"))[0])
    assert all((value == np.rint(value)).all() for value in sent)
    assert how.equivalent <= 3.0 / (1 + how.inexact)  # what roundings add is accounted for
    return (sent[0] - sent[1]) * 2.0**-how.exponent, how


@pytest.mark.parametrize("rows", [1, 7, 100, 1023, 2049, ROWS])
def test_sums_of_many_sizes(rows: int, array_shard: Any) -> None:
    """Of records of any length, most of which pull one way; the last one is turned round."""
    rng = np.random.default_rng(rows)
    X = np.abs(rng.normal(size=(rows, 40))) * 10 ** rng.uniform(-3, 6, (rows, 1))
    y = 10 ** rng.uniform(-3, 6, rows)
    y[-1], X[-1] = 1e6, (X[-1] / np.linalg.norm(X[-1])).astype("f4")
    other = (X.copy(), y.copy())
    other[1][-1] *= -1
    moved, how = apart([(X, y), other], array_shard)
    assert 0.99 < np.linalg.norm(moved) <= 1 + how.inexact
    assert np.abs(np.abs(moved) - X[-1]).max() <= 1.01 * 2.0**-how.exponent + 2.0**-19  # both sums are rounded once
