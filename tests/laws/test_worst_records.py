"""Records made to break the mechanism: not finite, or huge; and sums that floats round far from where they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lengths import covering
from scipy.sparse import csr_matrix
from small import algorithm, block_of, flat, share_of

from mpifed.core.record import leaves, map_leaves
from mpifed.core.round import Round

S, P, L = 12, 5, 3
AVG = {"name": "fedavg", "batch_size": S, "client_optimizer": {"learning_rate": 0.3}}
SOFTMAX, BIASED = {"name": "softmax", "bias": False}, {"name": "softmax", "bias": True}
MODELS: dict[str, dict[str, Any]] = {
    "gradients": {},
    "gradients, by chance": {"sampling": "poisson", "adjacency": "add-remove"},
    "local": {"noise_on": "upload"},
    "distributed": {"trust": "distributed"},
    "central": {"trust": "central"},
    "central, by chance": {"trust": "central", "sampling": "poisson"},
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
    shared = share_of(one)
    reach = 0.3 * 2 / S if np.isnan(shared.sensitivity) else shared.sensitivity
    assert np.linalg.norm(found[1] - found[0]) <= reach / 2 * 1.01


# --- sums ------------------------------------------------------------------------------------------------------------

ROWS = 6000
SUMS: dict[str, dict[str, Any]] = {
    "left out": {"adjacency": "add-remove", "sampling": "poisson"},
    "exchanged": {"sampling": "poisson"},
}


def apart(settings: dict[str, Any], pair: Any, shard: type) -> tuple[Any, Any]:
    """([d] how far two data sets' integers are apart before a trusted server adds noise, in sensitivities; mechanism).

    All rows are drawn, in their order.
    """
    settings = {"trust": "central", "clip": 1.0, "noise_multiplier": 3.0} | settings
    rows, features = len(pair[0][1]), pair[0][0].shape[1]
    table = {"name": "fedavg", "batch_size": rows, "client_optimizer": {"learning_rate": 0.3}}
    one = algorithm(table, settings, [rows], features, 1, {"name": "least-squares", "bias": False}, dtype="float32")
    (exchange,), now, sent = one.exchanges, at(), []
    for X, y in pair:
        block = block_of([(X, y)], shard, "float32")
        server = one.start_server(now._replace(index=-1))
        sent.append(flat(exchange.answer((), exchange.ask(server, now), block, now)[1].value)[0])
    assert all((value == np.rint(value)).all() for value in sent)
    how = share_of(one).how
    assert how.equivalent_multiplier(np.ones(1))[0] <= 3.0 / (1 + how.inexact)  # what roundings add is accounted for
    return (sent[0] - sent[1]) * 2.0**-how.exponent, how


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", SUMS)
def test_sums_that_float32_would_move_apart(name: str, sparse: bool, array_shard: Any) -> None:
    """One record takes the sum over a power of two, from where every small number after it is rounded up twice as far.

    Added one after the other in float32 the sums would be a fifth further apart than one record is.
    """
    large = 2.0 * (1 - 2.0**-19) if name == "exchanged" else 1 - 2.0**-19
    y = np.full(ROWS, 2.0**-13 * (1 + 2.0**-10))
    y[0], y[1:4097] = large / (2 if name == "exchanged" else 1), 0.5
    y[1] = {"exchanged": 0.25, "left out": 0.0}[name]
    pair = []
    for own in (1.0, -1.0 if name == "exchanged" else 0.0):
        X = np.zeros((ROWS, 2))
        X[:, 0] = 1.0
        X[0, 0] = abs(own)
        targets = y.copy()
        targets[0] *= np.sign(own)
        pair.append((csr_matrix(X) if sparse else X, targets))
    moved, how = apart(SUMS[name], pair, array_shard)
    assert 0.99 < np.linalg.norm(moved) <= 1 + how.inexact


# --- scores that cancel ----------------------------------------------------------------------------------------------


def cancelling(one: Any, rows: int) -> Any:
    """[rows, p] at right angles to all hidden cells of the public first model, but for rounding, and huge."""
    (first, _), rng = one.start_server(at(1, -1)).model, np.random.default_rng(0)
    found, basis = rng.normal(size=(rows, len(first))), np.linalg.qr(first)[0]
    for _ in range(3):
        found -= (found @ basis) @ basis.T
    return found / np.linalg.norm(found, axis=1)[:, None] * 1e30


@pytest.mark.parametrize(("features", "hidden", "rows"), [(784, 10, 128), (784, 32, 40), (64, 100, 157), (60, 5, 33)])
def test_a_row_that_is_not_drawn_moves_no_other(
    features: int, hidden: int, rows: int, array_shard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where scores are nothing but rounding, a product of another size would turn every row's gradient round."""
    table, settings = AVG | {"batch_size": rows}, SUMS["left out"] | {"noise_on": "upload", "clip": 1.0}
    one = algorithm(table, settings, [rows], features, 10, {"name": "mlp", "bias": False, "hidden": hidden})
    rng = np.random.default_rng(1)
    block = block_of([(cancelling(one, rows), rng.integers(0, 10, rows))], array_shard)
    model, found = one.start_server(at(1, -1)).model, []
    for some in (np.arange(rows), np.arange(1, rows), np.delete(np.arange(rows), rows // 2)):
        drawn = some[None], np.ones((1, len(some)), dtype=bool)
        monkeypatch.setattr(type(block), "coins", lambda *_, drawn=drawn: drawn)
        (batch,) = one.local.minibatches(block, at())
        found.append(flat(one.local._down(model, batch, float(rows), block, at(), 0)))
    assert max(np.linalg.norm(less - found[0]) for less in found[1:]) <= 1
