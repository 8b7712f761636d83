"""Modules as people write them who have never read what mpifed asks for: some are right, the others are refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from custom import Custom, of_one
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

torch.set_default_dtype(torch.float64)  # as scripts begin; for nobody else
torch.set_num_threads(2)


def on_images(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 8, 8)), *layers)


def two_layers(inner: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(inner or nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))


def sequences(cells: nn.Module, width: int) -> nn.Module:
    return Custom(
        lambda net, x: net.out(net.cells(x.reshape(-1, 8, 8))[0][:, -1]), cells=cells, out=nn.Linear(width, 10)
    )


def transformer(dropout: float = 0.0, batch_first: bool = True) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=batch_first)
    return Custom(lambda net, x: net.out(net.layer(x.reshape(-1, 8, 8)).mean(1)), layer=layer, out=nn.Linear(8, 10))


def dropping_sequences() -> nn.Module:
    """Which draw between the layers of cells, and without a layer of dropout."""
    return Custom(
        lambda net, x: net.out(dropout(net.cells(x.reshape(-1, 8, 8))[0][:, -1], 0.2, net.training)),
        cells=nn.LSTM(8, 4, num_layers=2, dropout=0.5, batch_first=True), out=nn.Linear(4, 10),
    )  # fmt: skip


def with_depth() -> nn.Module:
    """Leaves its inner layer out for some samples, while it trains."""

    def some(net: Any, x: Tensor) -> Any:
        kept = torch.rand(len(x), 1, dtype=x.dtype) < 0.5 if net.training else 0.5
        return net.out(x + kept * torch.tanh(net.inner(x)))

    return Custom(some, inner=nn.Linear(64, 64), out=nn.Linear(64, 10))


def embedded(index: Callable[[Tensor], Tensor], **settings: Any) -> nn.Module:
    return Custom(
        lambda net, x: net.out(net.table(index(x)).flatten(1)), table=nn.Embedding(17, 4, **settings),
        out=nn.Linear(256, 10),
    )  # fmt: skip


def frozen_convolution() -> nn.Module:
    layer = nn.Conv2d(1, 4, 3).requires_grad_(False)
    nn.init.constant_(layer.weight, 0.1)
    nn.init.constant_(layer.bias, 0.1)
    return on_images(layer, nn.Flatten(), nn.Linear(144, 10))


def awkward_names() -> nn.Module:
    net = Custom(
        lambda net, x: getattr(net, 'größe, "1"')(torch.tanh(net.head(x @ net.first) @ net.name) @ net.count),
        first=nn.Parameter(torch.randn(64, 8) / 8), head=nn.Linear(8, 8), name=nn.Parameter(torch.randn(8, 8)),
        count=nn.Parameter(torch.randn(8, 8)),
    )  # fmt: skip
    net.add_module('größe, "1"', nn.Linear(8, 10))
    return net


def without_gradients() -> nn.Module:
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(False)
    return two_layers()


def as_it_was() -> nn.Module:
    return Custom(
        lambda net, x: net.out(checkpoint(net.inner, x, use_reentrant=False)), inner=nn.Linear(64, 16),
        out=nn.Linear(16, 10),
    )  # fmt: skip


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # newer versions of PyTorch deprecate it
        module: nn.Module = torch.jit.script(two_layers())
    return module


RIGHT: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: sequences(nn.LSTM(8, 6, num_layers=2, bidirectional=True, batch_first=True), 12),
    "gru": lambda: sequences(nn.GRU(8, 6, batch_first=True), 6),
    "transformer": transformer,
    "dropping_transformer": lambda: transformer(0.1),
    "dropping_sequences": dropping_sequences,
    "stochastic_depth": with_depth,
    "weight_norm": lambda: two_layers(parametrizations.weight_norm(nn.Linear(64, 16))),
    "lazy": lambda: on_images(nn.LazyConv2d(4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.LazyLinear(10)),
    "wide": lambda: Custom(
        lambda net, x: net.layer(x - net.shift), layer=nn.Linear(64, 10), shift=torch.linspace(0, 1, 64)
    ).double(),
    "indices": lambda: embedded(lambda x: x.long()),
    "frozen": frozen_convolution,
    "names": awkward_names,
    "no_gradients": without_gradients,
    "scripted": scripted,
    "checkpointed": as_it_was,
    "seeding_itself": lambda: [torch.manual_seed(0), two_layers()][1],
}


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {  # by name: what is built, what the message says
    "sequence_first": (lambda: transformer(batch_first=False), "depends on the other samples.*batch_first=True"),
    "spectral": (lambda: two_layers(parametrizations.spectral_norm(nn.Linear(64, 16))),
                 r'weight.0._u" is another when the module is built again'),
    "tuple": (of_one(lambda net, x: (net.layer(x), x)), r"gives a tuple; \[3, 10\] .* is expected"),
    "probabilities": (of_one(lambda net, x: net.layer(x).softmax(1)), "leave the softmax at the end out"),
    "in_place": (lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(64, 10)), "changes its samples in place"),
    "item": (of_one(lambda net, x: net.layer(x) * net.scale[0].item(), scale=nn.Parameter(torch.ones(1))),
             'its outputs depend on parameter "scale", and have no derivative by it'),
    "detached": (of_one(lambda net, x: net.layer(x).detach()), "have no derivative by any parameter; leave out detach"),
    "single_number": (of_one(lambda net, x: net.layer(x) * net.scale, scale=nn.Parameter(torch.tensor(1.0))),
                      r'parameter "scale": give it an axis, as torch.ones\(1\)'),
    "list": (lambda: with_list([nn.Linear(64, 64)]), r"RuntimeError: .*dtype.* called with samples .* float64"),
    "sparse": (lambda: embedded(lambda x: x.long(), sparse=True), '"table.weight" has a sparse gradient; set sparse'),
    "floats_as_indices": (lambda: embedded(lambda x: x), r"and indices by x.long\(\)"),
    "numpy": (lambda: two_layers().apply(drawn_by_numpy), "is another when the module is built again"),
    "slash": (lambda: nn.Sequential(nn.ModuleDict({"a/b": nn.Linear(64, 10)})["a/b"]).append(slashed()), "without"),
    "argument": (lambda classes: nn.Linear(64, classes), "missing 1 required .*it is given shape = .64,. and outputs"),
}  # fmt: skip


def with_list(layers: list[nn.Module]) -> nn.Module:
    """Layers that PyTorch does not see."""
    net = Custom(lambda net, x: net.out(net.layers[0](x)), out=nn.Linear(64, 10))
    net.layers = layers  # type: ignore[assignment]
    return net


def slashed() -> nn.Module:
    net = Custom(lambda net, x: x)
    net.add_module("c/d", nn.Linear(10, 10))
    return net


def drawn_by_numpy(layer: nn.Module) -> None:
    if isinstance(layer, nn.Linear):
        with torch.no_grad():
            layer.weight.copy_(torch.tensor(np.random.default_rng().standard_normal(layer.weight.shape)))


already_built = nn.Linear(64, 10)


def __getattr__(name: str) -> Any:
    """`right_lstm`, `refused_list` and so on, as jobs name them."""
    kind, _, rest = name.partition("_")
    if kind == "right" and rest in RIGHT:
        return RIGHT[rest]
    if kind == "refused" and rest in REFUSED:
        return REFUSED[rest][0]
    raise AttributeError(name)
