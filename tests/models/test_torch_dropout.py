"""Random numbers of modules in training: PyTorch's own after a pass's key, in gradients, clipping and exact runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nets
import numpy as np
import pytest
import torch
from records import flat
from safetensors.torch import load_file
from test_torch_bits import hashes
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from mpifed.core.record import leaves, map_leaves
from mpifed.core.round import Round
from mpifed.data.shards import shard_of
from mpifed.data.store import open_federation
from mpifed.files.history import read_history
from mpifed.files.run_folder import summary
from mpifed.maths.clipping import clipped_gradient
from mpifed.maths.objectives import TorchNetwork
from mpifed.maths.objectives.network import NeuralNetwork

HERE = Path(__file__).parent
N, S = 3, 7
KEYS = np.array([5, 2**62 - 9, 7])
KINDS = {
    "by layers": TorchNetwork("nets:dropped", (1, 8, 8)),
    "one by one": TorchNetwork("nets:dropped_twice"),
    "recurrent": TorchNetwork("nets:dropped_sequences"),
}
every_kind = pytest.mark.parametrize("objective", KINDS.values(), ids=KINDS)


def task(objective: TorchNetwork) -> tuple[Any, Any, Any, Any]:
    """(a model of each client, X, y, weights)."""
    rng = np.random.default_rng(7)
    model = objective.start(64, 10, np.random.default_rng(0), "float64")
    own = map_leaves(lambda leaf: np.stack([leaf + 0.01 * rng.standard_normal(leaf.shape) for _ in range(N)]), model)
    return own, rng.standard_normal((N, S, 64)), rng.integers(0, 10, (N, S)), rng.uniform(0.5, 1.5, (N, S))


def by_torch(objective: TorchNetwork, model: Any, X: Any, y: Any, key: int | None) -> tuple[Tensor, list[Tensor]]:
    """(losses [s], parameters) of one client, of a module built here, by PyTorch's generator after `key`."""
    net = getattr(nets, objective.build.partition(":")[2])(10).double().train(key is not None)
    tensors = {name: torch.tensor(leaf, requires_grad=True) for name, leaf in leaves(model)}
    x = torch.tensor(X).reshape(-1, *(objective.shape or (64,)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key or 0)
        z = functional_call(net, tensors, (x,))
    return functional.cross_entropy(z, torch.tensor(y), reduction="none"), list(tensors.values())


def of_client(model: Any, i: int) -> Any:
    return map_leaves(lambda leaf: leaf[i], model.head)


def joined(slopes: Any) -> Any:
    return torch.cat([slope.flatten() for slope in slopes]).numpy()


@every_kind
@pytest.mark.parametrize("by_default", [False, True], ids=["as it is", "by outputs"])
def test_gradients_are_pytorch_s_after_the_key(
    objective: TorchNetwork, by_default: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_default:
        monkeypatch.setattr(TorchNetwork, "add_gradient", NeuralNetwork.add_gradient)
    own, X, y, weights = task(objective)
    came, again = (objective.gradient(own, X, y, weights, KEYS) for _ in range(2))
    np.testing.assert_array_equal(flat(came), flat(again))
    assert np.abs(flat(came) - flat(objective.gradient(own, X, y, weights, KEYS + 1))).max() > 1e-3
    for i, key in enumerate(KEYS.tolist()):
        losses, tensors = by_torch(objective, of_client(own, i), X[i], y[i], key)
        slopes = torch.autograd.grad(losses @ torch.tensor(weights[i]), tensors)
        np.testing.assert_allclose(flat(of_client(came, i)), joined(slopes), rtol=1e-9, atol=1e-12)


@every_kind
def test_clipped_gradients_are_of_the_same_passes(objective: TorchNetwork) -> None:
    """By layers all samples pass at once; else sample s alone, with the key and s."""
    own, X, y, weights = task(objective)
    clip, whole = 0.5, objective is KINDS["by layers"]
    came = clipped_gradient(objective, own, X, y, weights, clip, False, KEYS)
    for i, key in enumerate(KEYS.tolist()):
        expected = 0
        for s in range(S):
            at = slice(None) if whole else slice(s, s + 1)
            losses, tensors = by_torch(objective, of_client(own, i), X[i, at], y[i, at], key + (0 if whole else s))
            gradient = joined(torch.autograd.grad(losses[s if whole else 0], tensors))
            expected += weights[i, s] * gradient * min(1.0, clip * (1 - 2.0**-20) / np.linalg.norm(gradient))
        np.testing.assert_allclose(flat(of_client(came, i)), expected, rtol=1e-8, atol=1e-11)


@every_kind
def test_a_record_moves_its_own_part_alone(objective: TorchNetwork) -> None:
    """Whatever stands in its place: masks belong to places. On this epsilon rests."""
    own, X, y, weights = task(objective)
    other = X.copy()
    other[:, 2] = 100
    kept = np.where(np.arange(S) == 2, 0.0, weights)
    parts = [clipped_gradient(objective, own, x, y, kept, 0.5, False, KEYS) for x in (X, other)]
    np.testing.assert_allclose(flat(parts[0]), flat(parts[1]), rtol=1e-9, atol=1e-12)


@every_kind
def test_evaluation_is_without_random_numbers(objective: TorchNetwork) -> None:
    own, X, y, _ = task(objective)
    came = objective.loss(own.head, objective.scores_of(own, X), y)
    for i in range(N):
        expected, _ = by_torch(objective, of_client(own, i), X[i], y[i], None)
        np.testing.assert_allclose(came[i], expected.detach(), rtol=1e-9, atol=1e-12)


def test_keys() -> None:
    """Another for each client, step, round and seed, whoever is beside; secret ones are never the same again."""
    objective, present, clients = KINDS["recurrent"], np.ones(5, dtype=bool), np.arange(5)

    def keys(index: int = 1, seed: int = 3, step: int = 0, clients: Any = clients, secure: bool = False) -> Any:
        (keys,) = objective.pass_keys(Round(index, seed, present, secure), step, clients, secure)
        assert keys.min() >= 0 and keys.max() < 2**62
        return keys.tolist()

    several = [keys(), keys(2), keys(seed=4), keys(step=1), keys(-1), keys(secure=True), keys(secure=True)]
    assert len({key for each in several for key in each}) == 5 * len(several)
    assert keys() == several[0] and keys(clients=np.array([1, 4])) == [several[0][1], several[0][4]]


# --- runs -----------------------------------------------------------------------------------------------------------

RATE = {"client_optimizer": {"learning_rate": 0.3}}
METHODS = [
    {"name": "fedavg", "batch_size": 8} | RATE,
    {"name": "fedavg", "batch_size": 50, "local_epochs": 2, "client_optimizer": {"learning_rate": 0.2,
                                                                         "momentum": 0.5}},
    {"name": "fedprox", "mu": 0.1, "batch_size": 8, "local_steps": 3} | RATE,
    {"name": "scaffold", "batch_size": 8, "local_steps": 2} | RATE,
    {"name": "fedpdm", "rho": 1.0, "batch_size": 8, "local_steps": 2} | RATE,
    {"name": "ssca", "batch_size": 8, "rho": [0.9, 0.3], "gamma": [0.9, 0.35], "tau": 0.2},
    {"name": "ssca", "batch_size": 8, "rho": [0.9, 0.3], "gamma": [0.9, 0.35], "tau": 0.2,
     "variance_reduction": "recursive"},
]  # fmt: skip
PRIVATE = {"delta": 1e-5, "clip": 0.5, "noise_multiplier": 0.7, "noise": "test", "public_preparation": True}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)


def job_of(data: Path, **tables: Any) -> dict[str, Any]:
    plain = {
        "name": "dropout", "rounds": 3, "data": {"path": str(data)},
        "model": {"name": "torch", "build": "nets:dropped", "shape": [1, 8, 8]},
        "algorithm": {"name": "scaffold", "batch_size": 8, "local_steps": 2} | RATE,
        "record": {"evaluate_every": 3, "checkpoint_every": 1},
    }  # fmt: skip
    return plain | tables


def sha(launch: Any, path: Path, out: Path, *more: str) -> str:
    ended = launch(None, "run", path, "--out", out, *more)
    assert ended.code == 0, ended.text
    return str(summary(out)["model_sha256"])


def test_one_hash_on_any_ranks_and_in_any_blocks(
    skewed: Path, launch: Any, write_job: Any, tmp_path: Path, here: None
) -> None:
    """Of every algorithm, of clients of different sizes, in one process and on three ranks."""
    from jobs_in_python import as_in_a_file

    methods = [as_in_a_file({"algorithm": method}) for method in METHODS]
    methods += [
        as_in_a_file({"algorithm": METHODS[2], "privacy": PRIVATE | more}) for more in ({}, {"level": "client"})
    ]
    path, found = write_job(tmp_path / "job.toml", job_of(skewed, rounds=2, sweep={"methods": methods})), []
    for ranks, block in ((None, 1), (3, 4)):
        out = tmp_path / f"blocks-of-{block}"
        ended = launch(ranks, "run", path, "--out", out, "--set", f"data.block={block}", cwd=ranks and HERE)
        assert ended.code == 0, ended.text
        found.append(hashes(out / "sweep.csv"))
    assert found[0] == found[1]
    assert len(set(found[0])) == len(found[0]) == 9 and all(len(one) == 64 for one in found[0])


def test_plain_masked_encrypted_and_resumed(
    digits: Path, launch: Any, write_job: Any, tmp_path: Path, here: None
) -> None:
    found = set()
    for security in ("plain", "masked", "encrypted"):
        path = write_job(tmp_path / f"{security}.toml", job_of(digits, aggregation={"security": security}))
        found.add(sha(launch, path, tmp_path / security))
    path, out = write_job(tmp_path / "job.toml", job_of(digits)), tmp_path / "resumed"
    for rounds in ("1", "2", "3"):
        resumed = sha(launch, path, out, "--set", f"rounds={rounds}", *(["--resume"] if out.exists() else []))
    assert found == {resumed}


def test_it_trains_and_the_plain_module_takes_its_model(
    digits: Path, launch: Any, write_job: Any, tmp_path: Path, here: None
) -> None:
    """Measured without dropout; the file loads in the user's own module, whose losses in eval() are those measured."""
    job = job_of(
        digits, rounds=20, record={"evaluate_every": 20},
        model={"name": "torch", "build": "nets:dropped_twice", "shape": [64]},
        algorithm={"name": "fedavg", "batch_size": 20, "local_steps": 8, "client_optimizer": {"learning_rate": 0.5}},
    )  # fmt: skip
    path, out = write_job(tmp_path / "job.toml", job), tmp_path / "run"
    sha(launch, path, out)
    assert summary(out)["test_accuracy"] > 0.85
    net = nets.dropped_twice(10)
    net.load_state_dict(load_file(out / "model.safetensors"))
    data = open_federation(digits)
    shards = [shard_of(data, client) for client in range(data.clients)]
    losses = []
    for shard in shards:
        X = np.empty((shard.samples, 64), np.float32)
        shard.take(np.arange(shard.samples), X)
        with torch.no_grad():
            z = net.eval()(torch.from_numpy(X))
        losses.append(functional.cross_entropy(z, torch.from_numpy(shard.y).long(), reduction="none").numpy())
    expected = float(np.concatenate(losses).mean(dtype=np.float64))
    assert expected < 0.7
    assert read_history(out)["train_loss"][-1] == pytest.approx(expected, rel=1e-5)  # of sums in float32
