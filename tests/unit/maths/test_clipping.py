"""Clipping: bounds that hold to the last bit, whatever comes; sums of what is clipped are a law of `mpifed.laws`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lengths import covering
from scipy.sparse import csr_matrix
from test_objectives import CASES, FEATURES, N, S, data, flat, make, model_of

from mpifed.core.record import leaves, map_leaves
from mpifed.maths.clipping import clip_record, clipped_gradient
from mpifed.maths.losses import CrossEntropy
from mpifed.maths.objectives import MLP, Objective, Parameters, Softmax

MILLIONTH = 2.0**-19  # twice what a clipped gradient may fall short of the bound


def own_models(objective: Any) -> Parameters:
    """One for every client."""
    return map_leaves(lambda *parts: np.stack(parts), *[model_of(objective, seed) for seed in range(N)])


def of_client(record: Any, i: int) -> Any:
    return flat(map_leaves(lambda leaf: leaf[i], record))


def sparse(X: Any) -> Any:
    return tuple(csr_matrix(x) for x in X)


def rare(X: Any) -> Any:
    """With many zeros, and two rows of nothing else."""
    X[np.random.default_rng(5).random(X.shape) < 0.5] = 0
    X[0, 2] = X[2, S - 1] = 0
    return X


@covering({"name": CASES, "own": [False, True], "kind": ["dense", "sparse"], "dtype": ["float32", "float64"]}, 1)
def test_a_bound_that_nothing_reaches_changes_no_bit(name: str, dtype: str, kind: str, own: bool) -> None:
    objective = make(name)
    model = map_leaves(lambda leaf: leaf.astype(dtype), own_models(objective) if own else model_of(objective))
    X, y, weights = data(objective, (N,))
    X = rare(X).astype(dtype)
    wide, wide_model = X.astype("f8"), map_leaves(lambda leaf: leaf.astype("f8"), model)
    if kind == "sparse":
        X, wide = sparse(X), sparse(wide)
    plain = objective.gradient(wide_model, wide, y, weights)
    clipped = clipped_gradient(objective, model, X, y, weights, 1e6)
    assert type(clipped.head) is type(plain.head)
    for (_, one), (_, two) in zip(leaves(plain), leaves(clipped), strict=True):
        assert one.dtype == two.dtype == np.float64
        if dtype == "float64" and isinstance(objective, MLP):  # whose hidden layer is passed before samples are weighed
            np.testing.assert_allclose(one, two, rtol=0, atol=1e-15 * np.abs(one).max())
        elif dtype == "float64":
            np.testing.assert_array_equal(one, two)
        else:  # but for the scores, which are computed in the model's precision
            np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5 * np.abs(one).max())


@covering({"name": CASES, "dtype, kind": [("float32", "dense"), ("float64", "sparse"), ("float32", "sparse")]}, 1)
def test_no_sample_is_longer_than_the_bound(name: str, dtype: str, kind: str) -> None:
    """Of 300 clients with one row each, of any length: the bound holds for what is computed, and is nearly reached."""
    rng, objective, clip = np.random.default_rng(1), make(name), 0.3
    model = map_leaves(lambda leaf: leaf.astype(dtype), model_of(objective))
    _, y, _ = data(objective, (300,))
    X = (rng.standard_normal((300, 1, FEATURES)) * 10.0 ** rng.uniform(-4, 4, (300, 1, 1))).astype(dtype)
    found = clipped_gradient(objective, model, sparse(X) if kind == "sparse" else X, y[:, :1], np.ones((300, 1)), clip)
    norms = np.linalg.norm(np.hstack([leaf.reshape(300, -1).astype("f8") for _, leaf in leaves(found)]), axis=1)
    assert norms.max() <= clip
    assert norms.max() >= clip * (1 - MILLIONTH)
    assert norms.min() < clip / 2


@covering({"name": CASES, "kind": ["dense", "sparse"]}, 1)
def test_a_sample_that_is_not_finite_counts_with_nothing(name: str, kind: str) -> None:
    """Nobody is told that it is there: neither by an error nor by what it does to the others."""
    objective = make(name)
    X, y, weights = data(objective, (N,))
    without = weights.copy()
    without[1, 2] = 0
    expected = clipped_gradient(objective, model_of(objective), sparse(X) if kind == "sparse" else X, y, without, 0.1)
    for bad in (np.nan, np.inf, -np.inf, 1e308):
        X[1, 2, 0] = bad
        given = sparse(X) if kind == "sparse" else X
        found = clipped_gradient(objective, model_of(objective), given, y, weights, 0.1)
        for i in range(N):
            if bad != 1e308 or i != 1:
                np.testing.assert_array_equal(of_client(found, i), of_client(expected, i))
            assert np.linalg.norm(of_client(found, i) - of_client(expected, i)) <= 0.1 * weights[1, 2]


# --- objectives of one's own ----------------------------------------------------------------------------------------


class Careless(Softmax):
    """Whose code does with the samples what it likes; `does` gets the scores, the features and the model."""

    def does(self, z: Any, X: Any, first: Any) -> Any:
        return z

    def scores(self, first: Any, X: Any, out: Any = None) -> Any:
        return self.does(super().scores(first, X), X, first)


def far(X: Any) -> bool:
    return bool(abs(X).max() > 50)


def raised(z: Any, X: Any, with_what: BaseException) -> Any:
    if far(X):
        raise with_what
    return z


def seen(self: Any, X: Any) -> Any:
    held = self.__dict__["most"] = max(abs(X).max(), self.__dict__.get("most", 0.0))
    return held


CARELESS: dict[str, Any] = {
    "raises": lambda self, z, X, first: raised(z, X, IndexError("record 7")),
    "ends the process": lambda self, z, X, first: raised(z, X, SystemExit(3)),
    "gives NaN": lambda self, z, X, first: np.where(far(X), np.nan, z),
    "gives other shapes": lambda self, z, X, first: z.repeat(2 if far(X) else 1, axis=-2),
    "reads its neighbours": lambda self, z, X, first: z - z.mean(axis=-2, keepdims=True) + X.max(),
    "decides by the batch": lambda self, z, X, first: z / 255 if far(X) else z,
    "sorts the batch": lambda self, z, X, first: np.sort(z, axis=-2),
    "keeps what it has seen": lambda self, z, X, first: z * seen(self, X),
    "changes its parameters": lambda self, z, X, first: np.add(first, abs(X).max(), out=first).sum() * 0 + z,
}


@pytest.mark.parametrize("does", CARELESS)
def test_no_record_moves_another_or_raises(does: str) -> None:
    """Neighbours differ in one record: its own part of one sum moves, by no more than the bound, and no other bit."""
    objective = type("Careless", (Careless,), {"does": CARELESS[does], "__module__": __name__})()
    X, y, weights = data(objective, (N,))
    model = own_models(objective)
    without = weights * (np.arange(N * S).reshape(N, S) != S + 2)
    expected = clipped_gradient(objective, model, X, y, without, 0.1)
    before = [leaf.tobytes() for _, leaf in leaves(model)]
    for value in (0.0, 1e3, -1e3, np.nan):
        X[1, 2] = value
        found = clipped_gradient(objective, model, X, y, weights, 0.1)
        for i in range(N):
            apart = np.linalg.norm(of_client(found, i) - of_client(expected, i))
            assert apart <= 0.1 * weights[1, 2] * (1 + 1e-9) * (i == 1)
        if value == 1e3 and does in ("raises", "ends the process", "gives NaN", "gives other shapes"):
            np.testing.assert_array_equal(of_client(found, 1), of_client(expected, 1))
        np.testing.assert_array_equal(flat(clipped_gradient(objective, model, X, y, without, 0.1)), flat(expected))
    assert [leaf.tobytes() for _, leaf in leaves(model)] == before


class Turned(Softmax):
    """Whose way back is another: what is clipped is what the norm is of all the same."""

    def pull(self, X: Any, slopes: Any, out: Any = None) -> Any:
        return 9 * super().pull(X, slopes)


class Bare(Objective):
    """Of which nothing is known but the gradient of all samples."""

    sample_loss = CrossEntropy()

    def start(self, *given: Any) -> Any:
        return Softmax().start(*given)

    def forward(self, model: Any, X: Any) -> Any:
        return Softmax().forward(model, X)


def test_the_bound_holds_whatever_a_class_changes() -> None:
    model, (X, y, weights) = map_leaves(lambda leaf: leaf[None], model_of(Turned())), data(Turned(), (300,))
    found = clipped_gradient(Turned(), model, X[:, :1], y[:, :1], np.ones((300, 1)), 0.1)
    assert np.linalg.norm(found.first.reshape(300, -1), axis=1).max() <= 0.1
    bare, given = clipped_gradient(Bare(), model, X, y, weights, 0.3), (X, y, weights, 0.3)
    np.testing.assert_allclose(flat(bare), flat(clipped_gradient(Softmax(), model_of(Softmax()), *given)), rtol=1e-9)


@covering({"name": CASES, "dtype": ["float32", "float64"]}, 1)
def test_several_values_in_a_cell_are_their_sum(name: str, dtype: str) -> None:
    """As SciPy's sparse matrices have it; the norm is that of the sum."""
    objective = make(name)
    model = map_leaves(lambda leaf: leaf.astype(dtype), model_of(objective))
    _, y, _ = data(objective, (1,))
    parts = np.full(300, 2.0, dtype), np.repeat([1, 3, 1], 100), np.array([0, 100, 300])
    X = csr_matrix(parts, shape=(2, FEATURES))
    found = clipped_gradient(objective, model, (X,), y[:, :2], np.ones((1, 2)), 0.1)
    assert not X.has_canonical_format and X.nnz == 300  # stands
    expected = clipped_gradient(objective, model, X.toarray()[None], y[:, :2], np.ones((1, 2)), 0.1)
    np.testing.assert_allclose(of_client(found, 0), of_client(expected, 0), rtol=1e-5, atol=1e-7)


def test_huge_hidden_values_beside_tiny_derivatives() -> None:
    """Where the square of one underflows, the other's would make the product count as 0."""
    objective = MLP(hidden=1)
    model = objective.start(1, 2, np.random.default_rng(0), "float64")
    for size in 10.0 ** np.arange(90, 153):
        at = Parameters(np.full(model.first.shape, size), map_leaves(np.ones_like, model.head))
        at.head[-1][:] = [375 / size, 0.0]  # the other class has the probability exp(-375)
        found = clipped_gradient(objective, at, np.ones((1, 1, 1)), np.zeros((1, 1), int), np.ones((1, 1)), 1e-12)
        assert np.linalg.norm(flat(found)) <= 1e-12


@pytest.mark.parametrize(("dtype", "huge"), [("float32", 1e18), ("float64", 1e30)])
@pytest.mark.parametrize("clip", [0.3, 0.01])
def test_terms_that_cancel_leave_no_gradient_above_the_bound(clip: float, dtype: str, huge: float) -> None:
    """Two equal outputs: the slopes' terms cancel, those of a scaled loss but for roundings, which x makes huge."""
    rng, objective = np.random.default_rng(11), MLP(4, False)
    for _ in range(50):
        model = map_leaves(lambda leaf: leaf.astype(dtype), objective.start(2, 2, rng, "float64"))
        model.head.second[:, 1] = model.head.second[:, 0]
        model.first[1] = 0
        X = np.array([[[rng.normal() + 3, huge]]], dtype)
        for narrow in (False, True):
            found = clipped_gradient(objective, model, X, np.zeros((1, 1), int), np.ones((1, 1)), clip, narrow)
            assert np.linalg.norm(flat(found).astype("f8")) <= clip


# --- what clients upload --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_client_s_record_is_clipped_over_all_leaves(dtype: str) -> None:
    rng, clip = np.random.default_rng(0), 3.0
    model = map_leaves(lambda leaf: leaf.astype(dtype), own_models(make("mlp, bias")))
    lengths = np.array([1e-3, 1.0, 50.0]) * rng.uniform(1, 2, N)
    record = map_leaves(lambda leaf: leaf * lengths.astype(dtype).reshape(-1, *[1] * (leaf.ndim - 1)), model)
    before = np.array([np.linalg.norm(of_client(record, i).astype("f8")) for i in range(N)])
    assert sorted(before > clip) == [False, True, True]
    found = clip_record(record, clip)
    for i in range(N):
        after = of_client(found, i)
        assert after.dtype == dtype
        if before[i] <= clip:
            np.testing.assert_array_equal(after, of_client(record, i))
            continue
        assert clip * (1 - MILLIONTH) <= np.linalg.norm(after.astype("f8")) <= clip
        np.testing.assert_allclose(after, of_client(record, i) * (clip / before[i]), rtol=1e-5)


@pytest.mark.parametrize(("rows", "features", "outputs"), [
    (1, 5, 1), (7, 60, 3), (30, 784, 10), (100, 784, 128), (257, 33, 17),
])  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_record_s_scores_are_of_its_own_row(rows: int, features: int, outputs: int, dtype: str) -> None:
    """Bit for bit, whatever the other rows are: the privacy of minibatches of fixed size rests on it."""
    rng, softmax = np.random.default_rng(0), Softmax()
    X, other = rng.standard_normal((2, 1, rows, features)).astype(dtype)
    first = rng.standard_normal((features, outputs)).astype(dtype)
    for i in {0, rows // 2, rows - 1}:
        mixed = other * 1e6
        mixed[:, i] = X[:, i]
        assert softmax.scores(first, mixed)[0, i].tobytes() == softmax.scores(first, X)[0, i].tobytes()
