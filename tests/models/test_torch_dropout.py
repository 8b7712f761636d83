"""Dropout by each sample's seed: independent masks, derivatives, clipping, one record's own part, exact runs."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import nets
import numpy as np
import pytest
import torch
from records import bare_leaves
from test_torch_bits import hashes
from torch import nn
from torch.func import functional_call
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from mpifed import FedAvg, Privacy
from mpifed.algorithms.local import LocalSteps
from mpifed.core.exchange import Problem
from mpifed.core.record import leaves, map_leaves
from mpifed.core.round import Round
from mpifed.core.row_seeds import row_seeds, with_seeds
from mpifed.data.block import Block
from mpifed.data.shards import shard_of
from mpifed.data.store import open_federation
from mpifed.files.history import read_history
from mpifed.files.run_folder import summary
from mpifed.maths import laws
from mpifed.maths.objectives import TorchNetwork
from mpifed.maths.objectives.torch_dropout import DropoutMasks

HERE = Path(__file__).parent
N, S = 3, 7
KINDS = {
    "by layers": TorchNetwork("nets:dropped", (1, 8, 8)),
    "by gradients": TorchNetwork("nets:dropped_twice"),
    "one by one": TorchNetwork("nets:dropped_sequences"),
}
every_kind = pytest.mark.parametrize("objective", KINDS.values(), ids=KINDS)


def seeds(rows: Any, index: int = 1, seed: int = 3, clients: Any = (0, 1, 2), steps: Any = 0) -> Any:
    now = Round(index, seed, np.ones(5, dtype=bool))
    return row_seeds(now, np.array(clients)[: len(rows)], np.asarray(rows), steps)


def task(objective: TorchNetwork, dtype: str = "float64") -> tuple[Any, Any, Any, Any]:
    """(a model of each client, X with seeds, y, weights)."""
    rng = np.random.default_rng(7)
    model = objective.start(64, 10, np.random.default_rng(0), dtype)
    own = map_leaves(lambda leaf: np.stack([leaf + 0.01 * rng.standard_normal(leaf.shape) for _ in range(N)]), model)
    X = with_seeds(rng.standard_normal((N, S, 64)).astype(dtype), seeds(np.arange(N * S).reshape(N, S)))
    own = map_leaves(lambda leaf: leaf.astype(dtype), own)
    return own, X, rng.integers(0, 10, (N, S)), rng.uniform(0.5, 1.5, (N, S))


# --- masks --------------------------------------------------------------------------------------------------------


def dropped(layer: nn.Module, seeds: Any, shape: tuple[int, ...] = (64,)) -> torch.Tensor:
    """Ones [s, *shape] after one layer."""
    net = nn.Sequential(layer)
    DropoutMasks(net, shape)
    X = with_seeds(np.ones((1, len(seeds), int(np.prod(shape)))), seeds[None])
    given: torch.Tensor = net(torch.from_numpy(X[0]))
    return given


@pytest.mark.parametrize("p", [0.01, 0.3, 0.5, 0.9])
def test_a_unit_stays_with_its_probability(p: float) -> None:
    """Of 128,000 units; within five standard deviations, which one sound generator in two million exceeds."""
    came = dropped(nn.Dropout(p), seeds([np.arange(2000)])[0])
    kept = came > 0
    assert torch.equal(came[kept], torch.full_like(came[kept], 1 / (1 - p)))
    five = 5 * np.sqrt(p * (1 - p))
    assert abs(float(kept.double().mean()) - (1 - p)) < five / np.sqrt(kept.numel())
    assert float((kept.double().mean(0) - (1 - p)).abs().max()) < five / np.sqrt(2000)  # each unit
    assert float((kept.double().mean(1) - (1 - p)).abs().max()) < 1.2 * five / np.sqrt(64)  # each of 2,000 rows


def test_masks_of_other_rows_steps_rounds_clients_seeds_and_layers_are_independent() -> None:
    """No two the same, and of 2,048 units as many agree as of independent masks, within five standard deviations."""
    rows = np.arange(4)[None]
    of = {
        "plain": seeds(rows), "step": seeds(rows, steps=1), "round": seeds(rows, index=2), "setup": seeds(rows, -1),
        "client": seeds(rows, clients=[1]), "seed": seeds(rows, seed=4), "far": seeds(rows + 2**33),
    }  # fmt: skip
    masks = {(name, row): dropped(nn.Dropout(), each[0], (2048,))[row] for name, each in of.items() for row in range(4)}
    net = nn.Sequential(nn.Dropout(), nn.Dropout())
    drop = net[0]
    DropoutMasks(net, (2048,))
    once, twice = (layer for layer in net)
    net.forward = lambda x: torch.stack([once(x), twice(x), drop(x)], 1)  # type: ignore[method-assign]
    parts = net(torch.from_numpy(with_seeds(np.ones((1, 1, 2048)), of["plain"][:, :1])[0]))[0]
    assert torch.equal(parts[0], masks["plain", 0])
    masks |= {("second layer", 0): parts[1], ("used again", 0): parts[2]}
    for one, other in itertools.combinations(masks.values(), 2):
        assert abs(int((one == other).sum()) - 1024) < 5 * np.sqrt(512)
    assert torch.equal(dropped(nn.Dropout(), seeds(rows)[0], (2048,))[2], masks["plain", 2])


def test_a_row_s_seed_is_that_of_its_number() -> None:
    """Whoever is beside it, and wherever it stands: a record added or left out changes no other's mask."""
    rows = np.array([[4, 9, 2, 7]])
    all_, fewer = seeds(rows)[0], seeds(rows[:, [3, 0, 2]])[0]
    assert fewer.tolist() == all_[[3, 0, 2]].tolist() and len(set(all_.tolist())) == 4
    three = seeds(np.tile(rows, (3, 1)))
    assert three[1].tolist() == seeds(rows, clients=[1])[0].tolist()
    each = [seeds(rows[:, [i]], steps=[i])[0, 0] for i in range(4)]
    assert seeds(rows, steps=np.arange(4))[0].tolist() == each


def splitmix(word: int, number: int) -> int:
    """Of integers without a sign, as the paper has it."""
    word = (word + number * 0x9E3779B97F4A7C15) % 2**64
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
    return word ^ (word >> 31)


def stays(seed: int, stream: int, unit: int, p: float) -> bool:
    """Two units a word, the lower half first; a signed half below its share of 2^32 is dropped."""
    half = splitmix(splitmix(seed, stream), unit // 2) >> (32 * (unit % 2)) & (2**32 - 1)
    signed = half - 2**32 if half >= 2**31 else half
    return signed >= round(p * 2**32) - 2**31


def test_gradients_are_those_of_pytorch_with_these_masks() -> None:
    """Computed in Python's integers, and put in by hand: of a layer that is used twice."""
    objective = KINDS["by gradients"]
    own, X, y, weights = task(objective)
    came = objective.gradient(own, X, y, weights)
    for i in range(N):
        keys = [int(low) + (int(high) << 24) for low, high in X[i, :, 64:]]
        first, second = (
            torch.tensor([[stays(key, use, unit, 0.3) / 0.7 for unit in range(16)] for key in keys], dtype=torch.double)
            for use in (0, 1)
        )
        w, a, b, v, c = (torch.tensor(leaf[i], requires_grad=True) for leaf in own.head)
        hidden = first * torch.tanh(torch.tensor(X[i, :, :64]) @ w)
        z = (second * torch.tanh(hidden @ a.T + b)) @ v.T + c
        loss = functional.cross_entropy(z, torch.tensor(y[i]), reduction="none") @ torch.tensor(weights[i])
        for leaf, slope in zip(bare_leaves(came), torch.autograd.grad(loss, (w, a, b, v, c)), strict=True):
            np.testing.assert_allclose(leaf[i], slope.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("layer", "shape"), [
    (nn.Dropout(0.4), (3, 4)), (nn.Dropout(0.4, inplace=True), (3, 4)), (nn.Dropout1d(0.4), (6, 4)),
    (nn.Dropout2d(0.4), (6, 2, 2)), (nn.Dropout3d(0.4), (6, 2, 2, 2)), (nn.AlphaDropout(0.4), (3, 4)),
    (nn.FeatureAlphaDropout(0.4), (6, 4)), (nn.Dropout(1.0), (3, 4)), (nn.AlphaDropout(1.0), (3, 4)),
])  # fmt: skip
def test_layers_give_what_pytorch_s_give(layer: nn.Module, shape: tuple[int, ...]) -> None:
    """The same two values, for the same groups of units: of kept ones and of dropped ones."""
    own = dropped(layer, seeds([np.arange(200)])[0], shape).reshape(200, *shape)
    torch.manual_seed(0)
    expected = type(layer)(layer.p)(torch.ones(200, *shape, dtype=torch.double))
    np.testing.assert_allclose(own.unique(), expected.unique(), rtol=1e-12, atol=1e-15)
    whole = {"Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout"}
    for came in (own, expected):
        alike = (came.flatten(2) == came.flatten(2)[..., :1]).all()
        assert bool(alike) == (type(layer).__name__ in whole or layer.p == 1)


def test_hooks_of_the_module_get_samples_without_seeds() -> None:
    net, met = nn.Sequential(nn.Flatten(), nn.Dropout()), []
    net.register_forward_pre_hook(lambda net, given: met.append(given[0].shape))
    DropoutMasks(net, (1, 8, 8))
    assert net(torch.from_numpy(with_seeds(np.ones((1, 2, 64)), seeds([[0, 1]]))[0])).shape == (2, 64)
    assert met == [(2, 1, 8, 8)]


# --- derivatives, clipping, one record ------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("pieces", [None, 2])
def test_laws_with_the_masks_held(objective: TorchNetwork, pieces: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample's norm and its gradient are with one mask, and a record changes its own part alone, also in pieces."""
    if pieces:
        monkeypatch.setattr(TorchNetwork, "samples_at_once", pieces)
    problem = Problem(objective, "rows", np.array([8]), 8, 64, 10, "float32")
    laws.check_function(laws.ModelFunction(objective), problem, np.random.default_rng(6), True)
    assert objective._held.of_samples._layers_do == (objective is KINDS["by layers"])


@every_kind
def test_evaluation_is_without_dropout(objective: TorchNetwork) -> None:
    own, X, _, _ = task(objective)
    build = getattr(nets, objective.build.partition(":")[2])
    net = build(10).double().eval()
    for i, scores in enumerate(objective.scores_of(own, np.ascontiguousarray(X[..., :64]))):
        tensors = {name: torch.tensor(leaf[i]) for name, leaf in leaves(own.head)}
        x = torch.tensor(X[i, :, :64]).reshape(-1, *(objective.shape or (64,)))
        np.testing.assert_allclose(scores, functional_call(net, tensors, (x,)).detach(), rtol=1e-9, atol=1e-12)
    assert np.abs(objective.scores_of(own, X) - objective.scores_of(own, X[..., :64].copy())).max() > 0.1


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
PRIVATE = {"delta": 1e-5, "clip": 0.5, "noise_multiplier": 0.7, "noise": "test"}


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
        as_in_a_file({"algorithm": METHODS[2], "privacy": PRIVATE | more})
        for more in ({}, {"level": "client", "noise_on": "upload"})
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


def test_it_trains_and_is_exported_for_the_plain_module(
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
    ended = launch(None, "export", out, "--to", "torch", "--out", tmp_path / "model.pt")
    assert ended.code == 0, ended.text
    net = nets.dropped_twice(10)
    net.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
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


@pytest.mark.parametrize(("settings", "privacy"), [
    ({"batch": 3, "epochs": 2}, None),
    ({"batch": 2, "steps": 3}, None),
    ({"batch": 2, "steps": 3}, {}),
])  # fmt: skip
def test_minibatches_have_the_seeds_of_their_rows_and_steps(
    settings: dict[str, Any], privacy: dict[str, Any] | None, array_shard: Any
) -> None:
    """Of several clients, of the same steps; padding of minibatches of random size counts nothing."""
    objective, counts = KINDS["by gradients"], np.array([10, 10])
    objective.start(64, 10, np.random.default_rng(0), "float32")
    private = None if privacy is None else Privacy(**(PRIVATE | privacy))
    problem = Problem(objective, "rows", counts, 20, 64, 10, "float32", privacy=private)
    X = np.broadcast_to(np.arange(10.0)[:, None], (10, 64)).copy()  # a row's number, in all its features
    block = Block(tuple(array_shard(client, X, np.zeros(10, np.int64)) for client in range(2)))
    now, met = Round(5, 3, np.ones(2, dtype=bool)), 0
    for step, batch in enumerate(LocalSteps(problem, **settings).minibatches(block, now)):
        assert not isinstance(batch.X, tuple) and batch.X.dtype == np.float32
        rows = batch.X[..., 0].astype(np.int64)
        expected = with_seeds(X[rows].astype(np.float32), row_seeds(now, block.clients, rows, step))
        np.testing.assert_array_equal(batch.X, expected)
        met += 1
    assert met == (8 if settings.get("epochs") else 3)


# --- refused --------------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Any, str]] = {
    "around": (lambda net, x: checkpoint(lambda x: net.drop(net.inner(x)), x, use_reentrant=False),
               "dropout outside of the module's forward, .*leave out torch.utils.checkpoint"),
    "time_first": (lambda net, x: net.drop(net.inner(x).reshape(-1, 4, 16).transpose(0, 1)).transpose(0, 1).flatten(1),
                   r"Dropout of a tensor of shape \[4, 3, 16\], of 3 samples: its first axis must be that of the s"),
    "six_steps": (lambda net, x: net.drop(net.inner(x)[:, :60].reshape(-1, 6, 10).transpose(0, 1)).transpose(0, 1)
                  .flatten(1).repeat(1, 2)[:, :64], "a sample's output depends on the other samples of the batch"),
    "flat": (lambda net, x: net.few(net.inner(x)), r"Dropout3d of a tensor of shape \[3, 64\]: give it \[samples, "),
    "functional": (lambda net, x: functional.dropout(net.inner(x), net.drop.p, net.training),
                   r"draws from PyTorch's own generator .*: self.drop = torch.nn.Dropout\(0.5\)"),
    "faint": (lambda net, x: functional.dropout(net.inner(x), 1e-9), "draws from PyTorch's own generator"),
}  # fmt: skip


class Dropping(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function, self.drop, self.few = function, nn.Dropout(0.01), nn.Dropout3d(0.2)
        self.inner, self.out = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> Any:
        return self.out(self.function(self, x))


def __getattr__(name: str) -> Any:
    """`refused_around` and so on, as jobs name them."""
    if (rest := name.removeprefix("refused_")) == name or rest not in REFUSED:
        raise AttributeError(name)
    return lambda: Dropping(REFUSED[rest][0])


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    """However seldom a unit is dropped."""
    said = TorchNetwork(f"test_torch_dropout:refused_{name}").check(64, 10)
    assert len(said) == 1 and re.search(REFUSED[name][1], said[0]), said


def test_a_transformer_whose_attention_has_none() -> None:
    """Its layers of dropout are keyed; flattened tokens follow their sample."""
    assert TorchNetwork("careless:right_dropping_transformer").check(64, 10) == []


@dataclass(frozen=True)
class WithoutSeeds(FedAvg):
    seeds_rows: ClassVar[bool] = False


def test_an_algorithm_that_takes_rows_without_seeds(
    digits: Path, launch: Any, write_job: Any, tmp_path: Path, here: None
) -> None:
    own = METHODS[0] | {"name": "test_torch_dropout:WithoutSeeds"}
    ended = launch(None, "check", write_job(tmp_path / "job.toml", job_of(digits, algorithm=own)))
    assert ended.code == 2 and "takes rows without the seeds of dropout masks" in ended.err
    plain = job_of(digits, algorithm=own, model={"name": "torch", "build": "nets:flat_linear"})
    assert launch(None, "check", write_job(tmp_path / "plain.toml", plain)).code == 0
