"""Networks that people bring: a ResNet, an LSTM of bytes, a transformer of which adapters alone train and travel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from records import flat
from safetensors.torch import load_file
from torch.func import functional_call
from torch.nn import functional

from mpifed.core.record import leaves, map_leaves
from mpifed.files.history import read_history
from mpifed.files.run_folder import summary
from mpifed.maths.clipping import clipped_gradient
from mpifed.maths.objectives import TorchNetwork
from mpifed.models import ByteLSTM, ByteTransformer, low_rank, resnet18

pytestmark = pytest.mark.launch
ROOT = Path(__file__).resolve().parents[2]
LENGTH = 12  # bytes of a piece of text
TRAINED = {
    "resnet18": 11_173_962,  # as of the well-known PyTorch implementation with batch norms, which have as many
    "lstm": 256 * 8 + 4 * 256 * (8 + 256 + 2) + 4 * 256 * (256 + 256 + 2) + 257 * 91,
    # of two layers: attention's [192, 64] and [64, 64], and [256, 64] and [64, 256] behind it
    "adapters": 2 * 4 * ((64 + 192) + (64 + 64) + 2 * (64 + 256)) + 65 * 91,
}


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """`jobs` is imported from there."""
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(ROOT)


@pytest.fixture
def texts(make_data: Any, tmp_path: Path) -> Path:
    """Three files in which what comes next is always the same."""
    (tmp_path / "texts").mkdir()
    for number in range(3):
        (tmp_path / f"texts/{number}.md").write_text(40 * "a rose is a rose is a rose. "[number:])
    source = ["jobs.examples.texts:Texts", "--folder", str(tmp_path / "texts"), "--length", str(LENGTH)]
    folder: Path = make_data(tmp_path / "data", *source, "--scale", "none", "--test-fraction", "0.1")
    return folder


def trained(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in net.named_parameters() if tensor.requires_grad}


def adapted(outputs: int) -> torch.nn.Module:
    from jobs.examples.adapters import adapted

    return adapted((LENGTH,), outputs)


def test_parameters() -> None:
    """As many as their layers have, counted by hand."""
    nets = {"resnet18": resnet18((3, 32, 32), 10), "lstm": ByteLSTM(91), "adapters": adapted(91)}
    assert {name: sum(map(torch.numel, trained(net).values())) for name, net in nets.items()} == TRAINED


@pytest.mark.parametrize("name", TRAINED)
def test_jobs(name: str, digits: Path, texts: Path, launch: Any, tmp_path: Path) -> None:
    """They learn; one SHA-256 on one rank and on two; what travels and is saved is what trains."""
    data = digits if name == "resnet18" else texts
    settings = {
        "data.path": data, "participation.clients_per_round": 2, "rounds": 2, "record.evaluate_every": 2,
        "record.evaluate_rows": 50, "algorithm.batch_size": 5, "algorithm.local_steps": 2,
        "client_optimizer.learning_rate": 0.005 if name == "resnet18" else 0.1,
    }  # fmt: skip
    changes = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    path, found = ROOT / f"jobs/examples/{name}.toml", set()
    for ranks in (None, 2):
        ended = launch(ranks, "run", path, *changes, "--out", tmp_path / f"on-{ranks}", cwd=ROOT)
        assert ended.code == 0, ended.text
        found.add(summary(tmp_path / f"on-{ranks}")["model_sha256"])
    history, out = read_history(tmp_path / "on-2"), tmp_path / "on-None"
    assert len(found) == 1 and history["train_loss"][-1] < history["train_loss"][0]

    forecast = json.loads(launch(None, "check", path, *changes, "--json").out)
    saved = load_file(out / "model.safetensors")
    size = sum(map(torch.numel, saved.values()))
    (exchange,) = forecast["exchanges"]
    sent = [(one["sent"], np.prod(one["shape"], dtype=int)) for one in exchange["fields"]]
    assert sent == [("broadcast", size), ("broadcast", 1), ("upload", size), ("upload", 1)]
    assert exchange["up_bytes"] == 2 * 8 * (size + 1) and exchange["down_bytes"] == 2 * (4 * size + 8)
    assert history["up_bytes"][-1] == 2 * exchange["up_bytes"]
    if name == "adapters":
        again = tmp_path / "resumed"
        for rounds, more in ((1, []), (2, ["--resume"])):
            ended = launch(None, "run", path, *changes, "--set", f"rounds={rounds}", "--out", again, *more)
            assert ended.code == 0, ended.text
        assert found == {summary(again)["model_sha256"]}
        net = adapted(saved["scores.bias"].numel())
        assert saved.keys() == trained(net).keys()
        frozen = sum(tensor.nbytes for tensor in net.parameters() if not tensor.requires_grad)
        kept = sum(path.stat().st_size for path in (out / "checkpoint").rglob("*") if path.is_file())
        assert kept < frozen / 2
        assert net.load_state_dict(saved, strict=False).unexpected_keys == []


def test_adapters_begin_with_the_module_that_they_are_put_in() -> None:
    """Adapters in each matrix of linear and attention layers, at zero; each of them has a part in the outputs."""
    net, x = ByteTransformer((LENGTH,), 5), torch.randint(0, 256, (3, LENGTH)).float()
    before, matrices = net(x), [name for name, one in net.named_parameters() if one.ndim == 2 and "layers" in name]
    low_rank(net, 2)
    assert torch.equal(net(x), before)
    assert len(trained(net)) == 2 * (len(matrices) + 1) == 18
    for name, tensor in trained(net).items():
        if name.endswith("up"):
            with torch.no_grad():
                tensor.add_(0.1)
            assert not torch.equal(net(x), before), name
            with torch.no_grad():
                tensor.zero_()


@pytest.mark.parametrize(("build", "outputs"), [("jobs.examples.adapters:adapted", 5), ("mpifed.models:ByteLSTM", 3)])
def test_clipped_gradients_are_those_of_a_loop(build: str, outputs: int) -> None:
    """One sample after the other, as of all modules with code of their own; of what trains alone."""
    objective, rng = TorchNetwork(build, (LENGTH,)), np.random.default_rng(2)
    assert objective.check(LENGTH, outputs) == []
    model = objective.start(LENGTH, outputs, rng, "float64")
    own = map_leaves(lambda leaf: leaf[None] + 0.1 * rng.standard_normal((1, *leaf.shape)), model)
    X, y = rng.integers(0, 256, (1, 4, LENGTH)).astype(float), rng.integers(0, outputs, (1, 4))
    net = (adapted(outputs) if "adapters" in build else ByteLSTM(outputs)).double()
    gradients = []
    for x, target in zip(torch.tensor(X[0]), torch.tensor(y[0]), strict=True):
        tensors = {name.removeprefix("head."): torch.tensor(leaf[0], requires_grad=True) for name, leaf in leaves(own)}
        loss = functional.cross_entropy(functional_call(net, tensors, (x[None],)), target[None])
        slopes = torch.autograd.grad(loss, list(tensors.values()))
        gradients.append(np.concatenate([slope.numpy().ravel() for slope in slopes]))
    norms = np.linalg.norm(gradients, axis=1)
    clip = float(np.median(norms))
    expected = np.minimum(1, clip * (1 - 2.0**-20) / norms) @ np.array(gradients)
    assert not objective.passes_at_once
    came = flat(clipped_gradient(objective, own, X, y, np.ones((1, 4)), clip))
    np.testing.assert_allclose(came, expected, rtol=1e-8, atol=1e-11)
