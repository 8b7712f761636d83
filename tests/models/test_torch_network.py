"""Networks of PyTorch against PyTorch itself: gradients, losses, clipping, pieces, constants; and what is refused.

Random numbers of modules in training are PyTorch's own after a pass's key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import nets
import numpy as np
import pytest
import torch
from lengths import covering
from records import bare_leaves, flat
from torch.func import functional_call
from torch.nn import functional

from mpifed import laws
from mpifed.core.record import leaves, map_leaves
from mpifed.core.round import Round
from mpifed.data.block import vectors
from mpifed.maths.clipping import clipped_gradient
from mpifed.maths.objectives import TorchNetwork, layout_of
from mpifed.maths.objectives.network import NeuralNetwork
from mpifed.maths.problem import Problem

N, S = 3, 7
KEYS = np.array([5, 2**62 - 9, 7])
RANDOM = {
    "dropout, by layers": TorchNetwork("nets:dropped", (1, 8, 8)),
    "dropout, one by one": TorchNetwork("nets:dropped_twice"),
    "dropout, recurrent": TorchNetwork("nets:dropped_sequences"),
}
KINDS = {
    "convolutions": TorchNetwork("nets:convolutions", (1, 8, 8)),
    "tied": TorchNetwork("nets:tied"),
    "own loss": TorchNetwork("nets:tied", loss_name="nets:smoothed"),
    "regression": TorchNetwork("nets:regression", loss_name="mse"),
    "patches": TorchNetwork("nets:patches", (1, 8, 8)),
    "tokens": TorchNetwork("nets:tokens"),
    "summed": TorchNetwork("nets:summed"),
    "used again": TorchNetwork("nets:used_again"),
    "groups of units": TorchNetwork("nets:groups_of_units"),
    "rows as samples": TorchNetwork("nets:rows_as_samples"),
    "own loss of real targets": TorchNetwork("nets:regression", loss_name="nets:huber"),
}
# no code but PyTorch's own
BY_LAYERS = {"convolutions", "regression", "patches", "groups of units", "dropout, by layers"}
every_kind = pytest.mark.parametrize("objective", KINDS.values(), ids=KINDS)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def task(objective: TorchNetwork, rng: np.random.Generator, dtype: str = "float64") -> tuple[Any, Any, Any, Any, Any]:
    """(model, a model for each client, X, y, weights) of N clients."""
    outputs = 10 if objective.classifies else 1
    model = objective.start(64, outputs, np.random.default_rng(0), dtype)
    own = map_leaves(lambda leaf: np.stack([leaf + 0.01 * rng.standard_normal(leaf.shape) for _ in range(N)]), model)
    own = map_leaves(lambda leaf: leaf.astype(dtype), own)
    X = rng.standard_normal((N, S, 64)).astype(dtype)
    y = rng.integers(0, 10, (N, S)) if objective.classifies else rng.standard_normal((N, S))
    return model, own, X, y, rng.uniform(0.5, 1.5, (N, S))


def keys_of(objective: TorchNetwork) -> tuple[Any, ...]:
    """Those of the clients' passes, where modules draw."""
    return (KEYS,) if objective in RANDOM.values() else ()


def by_torch(objective: TorchNetwork, parameters: Any, X: Any, y: Any, key: int | None = None) -> tuple[Any, list[Any]]:
    """(losses [s], parameters) of one client, by `functional_call` on a module built here, in training after `key`."""
    name = objective.build.partition(":")[2]
    settings: dict[str, Any] = {"shape": (64,)} if name == "regression" else {"outputs": 10}
    net = getattr(nets, name)(**settings).to(torch.float64).train(key is not None)
    tensors = {name: torch.tensor(leaf, requires_grad=True) for name, leaf in leaves(parameters)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key or 0)
        z = functional_call(net, tensors, (torch.tensor(X).reshape(-1, *(objective.shape or (64,))),))
    target = torch.tensor(y)
    if objective.loss_name == "mse":
        losses = functional.mse_loss(z[:, 0], target, reduction="none") / 2
    elif objective.loss_name == "nets:huber":
        losses = functional.huber_loss(z[:, 0], target, reduction="none")
    else:
        smoothing = 0.1 if ":" in objective.loss_name else 0.0
        losses = functional.cross_entropy(z, target, reduction="none", label_smoothing=smoothing)
    return losses, list(tensors.values())


def slopes_of(loss: Any, tensors: list[Any]) -> Any:
    """[d]"""
    slopes = torch.autograd.grad(loss, tensors, materialize_grads=True, retain_graph=True)
    return torch.cat([slope.flatten() for slope in slopes]).numpy()


@covering({"kind": [*KINDS, *RANDOM], "own": [False, True], "by_default": [False, True]})
def test_losses_and_gradients_are_pytorch_s(
    kind: str, own: bool, by_default: bool, rng: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses in eval(), gradients in training, the same twice; by the way back through the outputs too."""
    if by_default:
        monkeypatch.setattr(TorchNetwork, "add_gradient", NeuralNetwork.add_gradient)
    objective = (KINDS | RANDOM)[kind]
    keys, (common, separate, X, y, weights) = keys_of(objective), task(objective, rng)
    model = separate if own else common
    gradient, again = (objective.gradient(model, X, y, weights, *keys) for _ in range(2))
    np.testing.assert_array_equal(flat(gradient), flat(again))
    losses = objective.loss(model.head, objective.scores_of(model, X), y)
    for i in range(N):
        head = _of_client(model.head, i) if own else model.head
        expected, tensors = by_torch(objective, head, X[i], y[i])
        np.testing.assert_allclose(losses[i], expected.detach().numpy(), rtol=1e-9)
        if keys:
            expected, tensors = by_torch(objective, head, X[i], y[i], int(KEYS[i]))
        slopes = slopes_of((expected * torch.tensor(weights[i])).sum(), tensors)
        np.testing.assert_allclose(flat(_of_client(gradient, i)), slopes, rtol=1e-9, atol=1e-12)


@every_kind
def test_what_is_right_is_not_refused(objective: TorchNetwork) -> None:
    outputs = 10 if objective.classifies else 1
    assert objective.check(64, outputs) == []
    problem = Problem(objective, "rows", np.array([8]), 8, 64, outputs, "float32")
    laws.check_function(laws.ModelFunction(objective), problem, np.random.default_rng(5))


@every_kind
def test_parameters_are_views_of_one_vector(objective: TorchNetwork, rng: Any) -> None:
    """With their names, shapes and bits; matrices and kernels stand before vectors."""
    model, *_ = task(objective, rng, "float32")
    layout = layout_of(objective, model)
    views = layout.views(x := layout.flat(model))
    for (name, leaf), came, view in zip(leaves(model), layout.shapes, views, strict=True):
        assert (came, view.shape, view.tobytes()) == (name, leaf.shape, leaf.tobytes())
        assert (layout.at[name].stop <= layout.penalized.stop) == (leaf.ndim > 1)
        view[...] = 7
    assert (x == 7).all()


def test_a_pass_remembers_its_parameters(rng: Any) -> None:
    """The way back of a pass is that of its own parameters, whatever passed since."""
    objective = KINDS["convolutions"]
    one, own, X, y, weights = task(objective, rng)
    other = map_leaves(lambda leaf: leaf[0], own)
    scores, backward = objective.forward(one, X)
    objective.forward(other, X)
    late = backward(objective.slope(one.head, scores, y, weights))
    for came, expected in zip(bare_leaves(late), bare_leaves(objective.gradient(one, X, y, weights)), strict=True):
        np.testing.assert_allclose(came, expected, rtol=1e-12, atol=1e-14)


def test_pieces_add_up(rng: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    objective = KINDS["convolutions"]
    model, _, X, y, weights = task(objective, rng)
    whole, scores = objective.gradient(model, X, y, weights), objective.scores_of(model, X)
    clipped = clipped_gradient(objective, model, X, y, weights, 0.1)
    monkeypatch.setattr(TorchNetwork, "samples_at_once", 2)
    np.testing.assert_allclose(objective.scores_of(model, X), scores, rtol=1e-12)
    for pieces, expected in (
        (objective.gradient(model, X, y, weights), whole),
        (clipped_gradient(objective, model, X, y, weights, 0.1), clipped),
    ):
        np.testing.assert_allclose(flat(pieces), flat(expected), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", [*KINDS, *RANDOM])
@pytest.mark.parametrize("size", [None, 2, 0], ids=["as it is", "few at a time", "one after the other"])
def test_clipped_gradients_are_those_of_a_loop(
    kind: str, size: int | None, rng: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By layers where all are PyTorch's own, all samples at once; own code sees one, with the key and its number."""
    objective = (KINDS | RANDOM)[kind]
    keys, (_, own, X, y, weights) = keys_of(objective), task(objective, rng)
    at_once = objective.passes_at_once
    assert at_once == (kind in BY_LAYERS)
    if size is not None and not keys:
        monkeypatch.setattr(objective._held, "samples_by_layers", size if at_once else 0)
    X[0, 2] = np.nan if not keys else X[0, 2]  # counts as zero
    gradients = np.zeros((N, S, flat(own).size // N))
    for i, s in np.ndindex(N, S):
        rows = slice(None) if at_once and keys else slice(s, s + 1)
        key = int(KEYS[i]) + (0 if at_once else s) if keys else None
        losses, tensors = by_torch(objective, _of_client(own.head, i), X[i, rows], y[i, rows], key)
        gradients[i, s] = slopes_of(losses[s if len(losses) > 1 else 0], tensors)
    norms = np.linalg.norm(gradients, axis=-1)
    assert np.isnan(norms).sum() == (not keys)
    clip = float(np.nanmedian(norms))
    factors = np.nan_to_num(np.minimum(1.0, clip * (1 - 2.0**-20) / norms))
    expected = np.einsum("ns,nsd->nd", weights * factors, np.nan_to_num(gradients))
    came = clipped_gradient(objective, own, X, y, weights, clip, False, *keys)
    for i in range(N):
        np.testing.assert_allclose(flat(_of_client(came, i)), expected[i], rtol=1e-8, atol=1e-11)
    assert all(leaf.dtype == np.float64 for leaf in bare_leaves(came))


@pytest.mark.parametrize("objective", RANDOM.values(), ids=RANDOM)
def test_a_record_moves_its_own_part_alone(objective: TorchNetwork, rng: Any) -> None:
    """Whatever stands in its place: masks belong to places. On this epsilon rests."""
    _, own, X, y, weights = task(objective, rng)
    other, kept = X.copy(), np.where(np.arange(S) == 2, 0.0, weights)
    other[:, 2] = 100
    parts = [clipped_gradient(objective, own, x, y, kept, 0.5, False, KEYS) for x in (X, other)]
    np.testing.assert_allclose(flat(parts[0]), flat(parts[1]), rtol=1e-9, atol=1e-12)


def test_keys() -> None:
    """Another for each client, step, round and seed, whoever is beside; secret ones are never the same again."""
    objective, present, clients = RANDOM["dropout, recurrent"], np.ones(5, dtype=bool), np.arange(5)

    def keys(index: int = 1, seed: int = 3, step: int = 0, clients: Any = clients, secure: bool = False) -> Any:
        (keys,) = objective.pass_keys(Round(index, seed, present, secure), step, clients, secure)
        assert keys.min() >= 0 and keys.max() < 2**62
        return keys.tolist()

    several = [keys(), keys(2), keys(seed=4), keys(step=1), keys(-1), keys(secure=True), keys(secure=True)]
    assert len({key for each in several for key in each}) == 5 * len(several)
    assert keys() == several[0] and keys(clients=np.array([1, 4])) == [several[0][1], several[0][4]]


CARELESS = {
    "an index outside of an embedding": TorchNetwork("nets:embedded"),
    "own code that raises": TorchNetwork("nets:raises"),
    "own code that keeps what it met": TorchNetwork("nets:remembers"),
    "own code that changes its parameters": TorchNetwork("nets:changes"),
    "statistics of the batch": TorchNetwork("nets:of_batches"),
    "an own loss by the batch": TorchNetwork("nets:rectified", loss_name="nets:by_largest"),
    "a hook": TorchNetwork("nets:hooked"),
    "a hook of a parameter": TorchNetwork("nets:hooked_weight"),
    "an own function of PyTorch's layer": TorchNetwork("nets:overridden"),
}


@pytest.mark.parametrize("name", CARELESS)
def test_no_record_moves_another_or_raises(name: str, rng: Any) -> None:
    """Neighbours differ in one record: its own part of one sum moves, by no more than the bound, and no other bit."""
    objective = CARELESS[name]
    _, own, X, y, weights = task(objective, rng)
    assert not objective.passes_at_once
    X, before = abs(X) * 3 % 4 // 1, [leaf.tobytes() for leaf in bare_leaves(own)]
    without = weights * (np.arange(N * S).reshape(N, S) != S + 2)
    expected = clipped_gradient(objective, own, X, y, without, 0.1)
    assert all(flat(_of_client(expected, i)).any() for i in range(N))
    for value in (0.0, 3.0, 1e3, -1e3, np.nan):
        X[1, 2] = value
        came = clipped_gradient(objective, own, X, y, weights, 0.1)
        for i in range(N):
            apart = np.linalg.norm(flat(_of_client(came, i)) - flat(_of_client(expected, i)))
            assert apart <= 0.1 * weights[1, 2] * (1 + 1e-9) * (i == 1)
        if abs(value) == 1e3 and ("embedding" in name or "raises" in name):
            np.testing.assert_array_equal(flat(came), flat(expected))
    assert [leaf.tobytes() for leaf in bare_leaves(own)] == before


@pytest.mark.parametrize("objective", [
    TorchNetwork("nets:without_samples", (1, 8, 8)), KINDS["convolutions"], KINDS["tied"],
], ids=["refuses it", "by layers", "by samples"])  # fmt: skip
def test_no_sample_at_all(objective: TorchNetwork, rng: Any) -> None:
    _, own, X, y, weights = task(objective, rng, "float32")
    came = clipped_gradient(objective, own, X[:, :0], y[:, :0], weights[:, :0], 1.0)
    for leaf, like in zip(bare_leaves(came), bare_leaves(own), strict=True):
        assert leaf.shape == like.shape and leaf.dtype == np.float64 and not leaf.any()


@pytest.mark.parametrize("by_default", [False, True], ids=["as it is", "one sample after the other"])
@pytest.mark.parametrize("objective", [
    TorchNetwork("nets:rectified"), TorchNetwork("nets:rectified_convolution", (1, 8, 8)),
], ids=["linear layers", "a convolution"])  # fmt: skip
def test_no_clipped_gradient_exceeds_the_bound(
    objective: TorchNetwork, by_default: bool, rng: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the terms of a derivative cancel, what is left may change by a factor, and huge features meet it.

    Outputs that are equal are such terms; weights of zero keep the features from the outputs.
    """
    if by_default:
        monkeypatch.setattr(TorchNetwork, "passes_at_once", False)
    model, _, X, *_ = task(objective, rng)
    bound, most = 0.3, 0.0
    first, bias, last, of_outputs = bare_leaves(model.head)
    first[:], of_outputs[:] = 0, 0
    for _ in range(100):
        last[:] = rng.standard_normal(last.shape[1])
        bias[:] = np.abs(rng.standard_normal(bias.shape))
        x = X[:1, :1] * 10.0 ** rng.uniform(0, 30)
        own = map_leaves(lambda leaf: leaf[None], model)
        came = clipped_gradient(objective, own, x, rng.integers(0, 10, (1, 1)), np.ones((1, 1)), bound)
        most = max(most, float(np.linalg.norm(flat(came))))
    assert 0.299 < most <= bound


@every_kind
@pytest.mark.parametrize("own", [False, True], ids=["one model", "own models"])
def test_a_gradient_is_put_into_views(
    objective: TorchNetwork, own: bool, rng: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of clients in one array; with the bits of the way back through the outputs, in one piece."""
    common, separate, X, y, weights = task(objective, rng, "float32")
    model, layout = separate if own else common, layout_of(objective, common)
    x = np.full((N, layout.size), np.nan, "float32")
    objective.gradient(model, X, y, weights, out=layout.record(x, common))
    np.testing.assert_array_equal(x, layout.flat(NeuralNetwork.gradient(objective, model, X, y, weights)))
    whole = x.copy()
    monkeypatch.setattr(TorchNetwork, "samples_at_once", 2)
    objective.gradient(model, X, y, weights, out=layout.record(x, common))
    np.testing.assert_allclose(x, whole, rtol=1e-4, atol=1e-5)


def test_leaves_of_a_gradient_are_apart(rng: Any) -> None:
    """Of a sum, PyTorch gives both terms the same tensor; callers write to leaves."""
    objective = KINDS["summed"]
    _, own, X, y, weights = task(objective, rng)
    first, second, *_ = objective.gradient(map_leaves(lambda leaf: leaf[:1], own), X[:1], y[:1], weights[:1]).head
    np.testing.assert_array_equal(first, second)
    assert not np.shares_memory(first, second)


def _of_client(record: Any, i: int) -> Any:
    return map_leaves(lambda leaf: leaf[i], record)


def test_names_and_starts() -> None:
    """Names are those of state_dict, initial numbers PyTorch's after the seed, what does not train stays out."""
    objective = KINDS["tied"]
    start = objective.start(64, 10, np.random.default_rng(3), "float32")
    names = [name.removeprefix("head.") for name, _ in leaves(start)]
    state = nets.tied(10).state_dict()
    assert names == ["inward.weight", "inward.bias", "out.weight", "out.bias"] and set(names) < set(state)
    torch.manual_seed(int(np.random.default_rng(3).integers(2**62)))
    expected = nets.tied(10).state_dict()
    for name, leaf in leaves(start):
        np.testing.assert_array_equal(leaf, expected[name.removeprefix("head.")].numpy())
    before = torch.random.get_rng_state()
    objective.start(64, 10, np.random.default_rng(4), "float32")
    assert torch.equal(before, torch.random.get_rng_state())


def test_matrices_are_penalized_and_vectors_are_not() -> None:
    model = KINDS["convolutions"].start(64, 10, np.random.default_rng(0), "float32")
    assert list(KINDS["convolutions"].penalized(model).head) == [leaf.ndim > 1 for leaf in model.head]


@pytest.mark.parametrize(("settings", "message"), [
    ({"shape": (1, 8, 9)}, r"\[model\] shape = \[1, 8, 9\]: is of 72 numbers, and a sample of the data has 64"),
    ({"loss_name": "huber"}, r'\[model\] loss = "huber": give "cross-entropy", "binary-cross-entropy", "mse", or'),
    ({"loss_name": "nets:averaged"}, r"gives \[\], .* for 3 samples, with a derivative; .* reduction=\"none\""),
    ({"loss_name": "nets:ranked"}, "and of its own alone: their mean is taken here"),
    ({"loss_name": "nets:detached"}, r"gives \[3\], .* for 3 samples, without a derivative; .* leave out detach"),
    ({"loss_name": "nets:nothing"}, "nets has no nothing; .*it defines .*smoothed"),
    ({"build": "nets:convolutoins"}, "nets has no convolutoins; did you mean \"convolutions\""),
    ({"build": "no_such_module:net"}, "importing no_such_module: ModuleNotFoundError"),
    ({"build": "convolutions"}, 'give it as "module:name"'),
])  # fmt: skip
def test_refused_settings(settings: dict[str, Any], message: str) -> None:
    try:
        found = TorchNetwork(**{"build": "nets:tied"} | settings).check(64, 10)
    except Exception as error:
        found = [str(error)]
    assert len(found) == 1 and re.search(message, found[0]), found


@pytest.fixture
def from_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(Path(__file__).parent)
    yield


def test_columns_sparse_rows_and_groups_are_refused(
    sides: Path, digits: Path, launch: Any, write_job: Any, tmp_path: Path, from_here: None
) -> None:
    algorithm = {"name": "ssca", "batch_size": 8, "rho": [0.9, 0.3], "gamma": [0.9, 0.35], "tau": 0.2}
    job = {"name": "refused", "rounds": 1, "model": nets.IMAGE, "algorithm": algorithm}
    by_columns = launch(None, "check", write_job(tmp_path / "a.toml", job | {"data": {"path": str(sides)}}))
    assert by_columns.code == 2 and "needs all features of a sample" in by_columns.err
    averaging = {"name": "fedavg", "batch_size": 8, "client_optimizer": {"learning_rate": 0.1}}
    groups = job | {"algorithm": averaging, "regularizer": {"name": "group-l1", "weight": 0.1}}
    grouped = launch(None, "check", write_job(tmp_path / "b.toml", groups | {"data": {"path": str(digits)}}))
    assert grouped.code == 2 and "groups the weights of features" in grouped.err


def test_several_targets(rng: Any) -> None:
    """The loss is PyTorch's mean over a sample's targets; its gradients follow; predictions are all the values."""
    objective = TorchNetwork("nets:several", loss_name="mse")
    model = objective.start(64, 3, rng, "float64")
    X, targets, weights = rng.standard_normal((N, S, 64)), rng.standard_normal((N, S, 3)), rng.uniform(size=(N, S))
    y = vectors(targets)
    scores = objective.scores_of(model, X)
    assert scores.shape == objective.predict(model.head, scores).shape == (N, S, 3)
    expected = (functional.mse_loss(torch.tensor(scores), torch.tensor(targets), reduction="none").mean(-1) / 2).numpy()
    np.testing.assert_allclose(objective.loss(model.head, scores, y), expected, rtol=1e-12)
    own = replace(objective, loss_name="nets:squares")
    assert own.check(64, 3) == objective.check(64, 3) == []
    own.start(64, 3, rng, "float64")
    model = map_leaves(lambda leaf: leaf[None], model)
    for other, factor in ((objective, 2.0), (own, 3.0)):
        gradient = flat(other.gradient(model, X, y, weights)) * factor
        np.testing.assert_allclose(gradient, flat(own.gradient(model, X, y, weights)) * 3.0, rtol=1e-9, atol=1e-12)
        clipped = clipped_gradient(other, model, X, y, weights, 1e9)
        np.testing.assert_allclose(flat(clipped) * factor, gradient, rtol=1e-9, atol=1e-12)
